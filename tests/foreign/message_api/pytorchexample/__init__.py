"""pytorchexample: a Flower app."""
