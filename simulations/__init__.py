"""The Flower app of the reference system: server, presets, and what the simulation knows as truth."""
