"""How fast and how exactly clients' least-squares problems are decoded, and what attacking ten at once saves.

``python -m tests.benchmarks.model_based`` prints processor time, not time on the clock.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedattack.attacks import ATTACKS, Knowledge, read_knowledge
from fedattack.attacks.knowledge import PartialRecords
from fedattack.learning import LocalSGD
from fedattack.record import Record
from fedattack.threats.attribute.local_optimum import decode_least_squares, fit_update_maps
from tests.worlds.attributes import tables, write_attribute_run

CLIENTS, RECORDS, FEATURES, LR = 10, 200, 99, 0.01


def seconds(work: Callable[[], object]) -> float:
    """Return the least processor time of three runs."""
    found = []
    for _ in range(3):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


def decode(received: np.ndarray, moves: np.ndarray, precision: float) -> list[np.ndarray]:
    """Decode the clients (clients, rounds, p) and return the relative errors' subject, their optima."""
    fits = fit_update_maps(received, moves, precision)
    return [decode_least_squares(fit, lr=LR).optimum for fit in fits]


def main() -> None:
    """Print the figures."""
    draw = np.random.default_rng(0)
    data = [(np.c_[x, np.ones(len(x))].astype(float), y) for x, y in tables(CLIENTS, RECORDS, FEATURES)]
    optima = [np.linalg.lstsq(x, y, rcond=None)[0] for x, y in data]
    for dtype in (np.float64, np.float32):
        for rounds in (FEATURES + 2, 3 * FEATURES):
            received = draw.normal(size=(rounds, FEATURES + 1)).astype(dtype).astype(float)
            gradients = np.stack([2 / len(x) * (received @ x.T - y) @ x for x, y in data])
            moves = received - (received - LR * gradients).astype(dtype).astype(float)
            precision = float(np.finfo(dtype).eps)
            found = decode(received, moves, precision)
            errors = [np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(found, optima, strict=True)]
            one = seconds(lambda a=received, b=moves, c=precision: decode(a, b[:1], c))
            each = seconds(lambda a=received, b=moves, c=precision: [decode(a, item[None], c) for item in b])
            together = seconds(lambda a=received, b=moves, c=precision: decode(a, b, c))
            print(
                f"{FEATURES + 1} unknowns, {rounds} messages in {np.dtype(dtype)}: median error of θ* "
                f"{statistics.median(errors):.1e}; one client {1000 * one:.0f} ms; {CLIENTS} clients at once "
                f"{1000 * together:.0f} ms, one after another {1000 * each:.0f} ms, {each / together:.1f} times"
            )
    with tempfile.TemporaryDirectory() as name:
        training = LocalSGD(epochs=1, batch_size=0, lr=LR)
        folder = write_attribute_run(
            Path(name), tables(CLIENTS, RECORDS, FEATURES), training=training, rounds=150, share=0.8
        )
        record, known = Record(folder / "record"), read_knowledge(folder / "knowledge")
        together = seconds(lambda: ATTACKS["aia"].run(record, known, device="cpu"))
        start = time.process_time()
        for client in np.unique(known.partial.clients):
            ATTACKS["aia"].run(
                record, Knowledge(**{**vars(known), "partial": only(known.partial, client)}), device="cpu"
            )
        each = time.process_time() - start
        print(
            f"the whole attack on a record of 150 rounds: {CLIENTS} clients at once {together:.1f} s, one after "
            f"another {each:.1f} s, {each / together:.1f} times"
        )


def only(partial: PartialRecords, client: str) -> PartialRecords:
    """Return one client's records."""
    rows = partial.clients == client
    arrays = {name: getattr(partial, name)[rows] for name in ("x", "y", "clients")}
    return PartialRecords(**{**vars(partial), **arrays})


if __name__ == "__main__":
    main()
