"""loraexample: a Flower app."""
