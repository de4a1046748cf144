"""Which files a command opens for reading, and how often.

An audit hook sees the opens in the command's process, and in those that it forks. It does not see what a library opens
below Python, as safetensors does.
"""

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedattack.cli.entry import main

ROOT = Path(__file__).parents[1]


def count_opens(folder: Path, words: Sequence[str]) -> Counter[str]:
    """Run ``fedattack`` with some words; returns how often each file of a folder was opened for reading, by its path.

    Raises
    ------
    subprocess.CalledProcessError
        If the command does not succeed.
    """
    folder = folder.resolve()
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "opens"
        log.touch()
        command = [sys.executable, "-m", "tests.opens", str(log), *words]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        return read_opens(log, folder)


def read_opens(log: Path, folder: Path) -> Counter[str]:
    """Count how often a log names each file of a folder, by its path there."""
    opened = [Path(line) for line in log.read_text().splitlines()]
    return Counter(str(path.relative_to(folder)) for path in opened if path.is_relative_to(folder))


def note_opens(log: Path) -> None:
    """Append the path of each file that this process opens for reading to a log, a line each."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open":
            return
        path, _, flags = arguments
        is_read = flags & os.O_ACCMODE == os.O_RDONLY
        # A file that is opened by its number was opened by its path before, and folders are opened to be synced.
        if is_read and isinstance(path, str | Path) and not Path(path).is_dir():
            os.write(descriptor, f"{Path(path).resolve()}\n".encode())

    sys.addaudithook(note)


if __name__ == "__main__":
    note_opens(Path(sys.argv[1]))
    sys.argv = ["fedattack", *sys.argv[2:]]
    main()
