"""textexample: a Flower app."""
