"""numpyexample: a Flower app."""
