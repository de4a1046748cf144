"""Attacks and defences of this project beside those of others, on the same records and with the same budget."""
