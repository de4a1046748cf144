"""See the package."""

from numpy import arange

__all__ = ["arange"]
