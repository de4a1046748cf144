"""wards: a Flower app."""
