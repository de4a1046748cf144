"""Flower clients of the reference system. They ride in the Flower app and are never importable from the wheel."""
