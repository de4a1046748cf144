"""xgboostexample: a Flower app."""
