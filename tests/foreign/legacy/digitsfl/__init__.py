"""digitsfl: a Flower app."""
