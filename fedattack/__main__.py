"""``python -m fedattack`` is the command ``fedattack``."""

from fedattack.cli import main

main()
