"""lightningexample: a Flower app."""
