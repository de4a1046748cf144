"""Print how many sequences DAGER finds exactly by batch, in which time; and what defences, steps and adapters leave.

``python -m tests.benchmarks.dager`` prints all; names of tables after it print these alone.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from fedattack.learning import LocalSGD
from tests.threats.sequences.world import judged, write_texts_run


def measure(kind: str, label: str, clients: int = 2, **options) -> None:
    """Print one row: the shares that are found exactly, by ROUGE-1 and by ROUGE-2, and seconds a client."""
    with tempfile.TemporaryDirectory() as folder:
        written = write_texts_run(Path(folder) / "run", kind, clients=clients, **options)
        start = time.perf_counter()
        found = judged(written)
        seconds = (time.perf_counter() - start) / clients
    values = " | ".join(f"{found[metric].value:6.1%}" for metric in ("exact", "rouge1", "rouge2"))
    print(f"| {kind} | {label} | {values} | {found['exact'].chance:.1%} | {seconds:.1f} |", flush=True)


def batches() -> None:
    """Print the curve over batches, for models that are wide enough and for narrow ones."""
    for kind in ("gpt2", "bert"):
        for each in (1, 2, 4, 8):
            measure(kind, f"width 128, batch {each}", clients=4, each=each)
    for kind in ("gpt2", "bert"):
        for each in (16, 32):
            measure(kind, f"width 512, batch {each}", each=each, width=512)
    for kind in ("gpt2", "bert", "llama"):
        measure(kind, "width 128, batch 4 of 4 to 12 tokens", each=4, shortest=4)
    for each in (1, 4, 8):
        measure("llama", f"width 128, batch {each}", each=each)
    for kind in ("gpt2", "bert"):
        for each in (10, 11, 12):
            measure(kind, f"width 128, batch {each}", each=each)


def add_noise(scale: float, name: str, array, start, rng):
    """Add normal noise to what is sent."""
    return (array + rng.normal(scale=scale, size=array.shape)).astype(array.dtype)


def keep_largest(share: float, name: str, array, start, rng):
    """Keep the largest entries of an array alone."""
    most = np.quantile(np.abs(array), 1 - share)
    return np.where(np.abs(array) >= most, array, 0).astype(array.dtype)


def defences() -> None:
    """Print what noise, sparsification and dropout leave of batches of two."""
    for kind in ("gpt2", "bert"):
        for scale in (1e-7, 1e-6, 1e-5, 1e-4, 1e-3):
            measure(kind, f"noise, σ = {scale:g}", alter=partial(add_noise, scale))
        for share in (0.9, 0.5, 0.1):
            measure(kind, f"the largest {share:.0%} of each array", alter=partial(keep_largest, share))
        for dropout in (0.01, 0.1):
            measure(kind, f"dropout {dropout:g}", dropout=dropout)


def steps() -> None:
    """Print what several local steps leave of batches of two: FedAvg."""
    for kind in ("gpt2", "bert"):
        for epochs, size, rate in ((1, 4, 0.01), (1, 2, 0.01), (5, 2, 0.001), (5, 2, 0.01), (10, 4, 0.01), (5, 2, 0.1)):
            training = LocalSGD(epochs, size, rate)
            count = epochs * (4 // size)
            measure(kind, f"{count} steps, learning rate {rate:g}", each=4, protocol="fedavg", training=training)


TABLES: dict[str, Callable[[], None]] = {"batches": batches, "defences": defences, "steps": steps}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for table in sys.argv[1:] or TABLES:
        print(
            f"\n{table}\n| model | | exact | ROUGE-1 | ROUGE-2 | null | seconds |\n|---|---|---|---|---|---|---|",
            flush=True,
        )
        TABLES[table]()
