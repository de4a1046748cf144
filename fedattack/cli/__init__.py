"""The command line."""

from fedattack.cli.entry import app, main

__all__ = ["app", "main"]
