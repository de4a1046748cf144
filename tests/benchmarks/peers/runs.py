"""Runs of the reference system's presets in this process, for attacks of ours and of peers to read."""

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedattack.audit.truth import Truth, read_truth
from fedattack.record import Record
from fedattack.runs.presets import load_preset, resolve_settings
from fedattack.runs.settings import load_settings
from fedattack.threats import Knowledge, read_knowledge
from simulations.prepare import prepare_run
from tests.worlds.reference import run_app


@contextlib.contextmanager
def recorded(preset: str, changes: Sequence[str], seed: int) -> Iterator[tuple[Record, Knowledge, Truth]]:
    """Run a preset with changes such as ``rounds=5``; the record lasts as long as the context."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    defaults = {name: setting.default for name, setting in load_settings().items()}
    config = defaults | resolve_settings(load_preset(preset), changes)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        places = {"knowledge": str(folder / "knowledge"), "truth": str(folder / "truth")}
        config |= {**places, "seed": seed, "device": "cpu"}
        prepare_run(config)
        record = run_app(folder, config)
        yield record, read_knowledge(folder / "knowledge"), read_truth(folder / "truth")
