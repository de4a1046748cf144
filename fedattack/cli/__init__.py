"""The command line."""

from fedattack.cli.commands import app, main

__all__ = ["app", "main"]
