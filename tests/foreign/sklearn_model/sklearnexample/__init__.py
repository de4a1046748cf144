"""sklearnexample: a Flower app."""
