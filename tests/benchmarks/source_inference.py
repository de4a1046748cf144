"""How fast source inference evaluates, against a plain loop over clients and records, in one run on one machine.

``python -m tests.benchmarks.source_inference`` takes 1,000 targets, 10 clients and 20 rounds of the SIA CNN; the plain
loop is timed on a share of the targets and scaled up. It prints the peak memory of an attack over 300 rounds, too.
"""

import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from fedattack.attacks import ATTACKS, Knowledge, ModelKnowledge, Targets
from fedattack.record import Exchange, Record, RecordWriter, Reply

TARGETS, CLIENTS, ROUNDS = 1000, 10, 20
LOOPED = 20
CNN = ModelKnowledge(spec="sia-cnn", input_shape=(1, 28, 28), classes=10)


def write_record(folder: Path, rounds: int, clients: int) -> Record:
    """Write random models, as many as asked for."""
    state = {name: value.numpy() for name, value in CNN.build().state_dict().items()}
    draw = np.random.default_rng(0)
    writer = RecordWriter(folder)
    for number in range(1, rounds + 1):
        replies = []
        for client in range(clients):
            arrays = {
                name: array + draw.normal(0, 0.01, array.shape).astype(np.float32) for name, array in state.items()
            }
            replies.append(Reply(str(client), "ok", arrays, 10))
        writer.write(Exchange(number, None, replies))
    writer.close()
    return Record(folder)


def plain_loop(record: Record, targets: Targets) -> None:
    """One client and one record at a time."""
    model = CNN.build().eval()
    for seen in record.rounds[0].observations:
        model.load_state_dict({name: torch.from_numpy(array) for name, array in (seen.arrays or {}).items()})
        for index in range(LOOPED):
            with torch.inference_mode():
                logits = model(torch.from_numpy(targets.x[index : index + 1])).double()
            torch.nn.functional.cross_entropy(logits, torch.from_numpy(targets.y[index : index + 1]))


def timed(work: Callable[[], object]) -> np.ndarray:
    """Wall and CPU seconds of ``work``; on a machine that others use, the second says more."""
    start = np.array([time.perf_counter(), time.process_time()])
    work()
    return np.array([time.perf_counter(), time.process_time()]) - start


def main() -> None:
    """Print the figures."""
    draw = np.random.default_rng(1)
    targets = Targets(draw.normal(size=(TARGETS, 1, 28, 28)).astype(np.float32), draw.integers(10, size=TARGETS))
    knowledge = Knowledge(model=CNN, targets=targets)
    with tempfile.TemporaryDirectory() as name:
        record = write_record(Path(name) / "speed", ROUNDS, CLIENTS)
        batched, looped = [], []
        for _ in range(3):
            batched.append(timed(lambda: ATTACKS["sia"].run(record, knowledge, device="cpu")))
            looped.append(timed(lambda: plain_loop(record, targets)) * ROUNDS * TARGETS / LOOPED)
        (ours, ours_cpu), (loop, loop_cpu) = np.median(batched, axis=0), np.median(looped, axis=0)
        print(
            f"{TARGETS} targets, {CLIENTS} clients, {ROUNDS} rounds of the SIA CNN, {torch.get_num_threads()} threads"
        )
        scaled = f"scaled from {LOOPED} targets and 1 round"
        print(f"  batched {ours:.1f} s, plain loop {loop:.1f} s ({scaled}), {loop / ours:.1f} times")
        print(f"  of CPU {ours_cpu:.1f} s against {loop_cpu:.1f} s, {loop_cpu / ours_cpu:.1f} times")
        few = Knowledge(model=CNN, targets=Targets(targets.x[:10], targets.y[:10]))
        long = write_record(Path(name) / "memory", 300, 2)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        ATTACKS["sia"].run(long, few, device="cpu")
        size = sum(array.nbytes for array in (long.rounds[0].observations[0].arrays or {}).values())
        growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        print(f"  300 rounds x 2 clients ({size / 1e6:.1f} MB a model): peak memory grew by {growth / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
