"""Flower clients of the reference system: part of the Flower app, which the wheel does not offer for import."""
