"""Runs of the reference system's presets in this process, for attacks of ours and of peers to read."""

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedattack.attacks import Knowledge, read_knowledge
from fedattack.audit.truth import Truth, read_truth
from fedattack.record import Record
from tests.worlds.reference import run_preset


@contextlib.contextmanager
def recorded(preset: str, changes: Sequence[str], seed: int) -> Iterator[tuple[Record, Knowledge, Truth]]:
    """Run a preset with changes such as ``rounds=5``; the record lasts as long as the context."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        record = run_preset(preset, changes, seed, folder)
        yield record, read_knowledge(folder / "knowledge"), read_truth(folder / "truth")
