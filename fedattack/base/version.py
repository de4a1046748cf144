"""The version of this installation."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("fedattack")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
