"""Run a module of the app in a process of its own, as ``python -m`` does, but in less processor time."""

import sys
from importlib import import_module

from fedattack.base.imports import end_without_collections, importing


def main() -> None:
    """Call what a module calls its ``main``: ``python -m fedattack.runs.module MODULE ARGUMENT``."""
    end_without_collections()
    # The module reads the command line as if it had been called itself.
    del sys.argv[0]
    with importing():
        module = import_module(sys.argv[0])
    module.main()


if __name__ == "__main__":
    main()
