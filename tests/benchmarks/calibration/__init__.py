"""How often intervals hold what they state, measured on draws of which the truth is known."""
