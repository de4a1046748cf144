"""sums: a Flower app."""
