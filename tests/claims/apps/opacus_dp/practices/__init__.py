"""practices: a Flower app."""
