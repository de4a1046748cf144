"""privateexample: a Flower app."""
