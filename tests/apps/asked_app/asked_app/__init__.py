"""asked_app: clients of many kinds."""
