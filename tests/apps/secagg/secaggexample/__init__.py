"""secaggexample: a Flower app."""
