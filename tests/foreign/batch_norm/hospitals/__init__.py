"""hospitals: a Flower app."""
