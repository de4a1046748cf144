"""How fast ten students are distilled together, against one after the other, in one run on one machine.

``python -m tests.benchmarks.distillation`` trains the students of ten clients on 1,000 public records. For each
architecture and shape of records it prints the time of an epoch either way and their ratio, as CPU time of one thread
and as time on the clock with two. A clock's time is only worth reading on a quiet machine.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from fedattack.learning import Distillation, build_model, distil, distil_students

CLIENTS, RECORDS, CLASSES = 10, 1000, 10
CASES = (
    ("student-mlp", (60,), 10),
    ("student-mlp", (1, 8, 8), 10),
    ("student-mlp", (1, 28, 28), 10),
    ("sia-mlp", (1, 28, 28), 5),
    ("sia-cnn", (1, 28, 28), 1),
)
REPEATS = 3


def compare(spec: str, shape: tuple[int, ...], epochs: int, clock: Callable[[], float]) -> tuple[float, float, float]:
    """Return the median seconds of an epoch of all students together and one by one, and the largest difference."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(RECORDS, *shape)).astype(np.float32)
    outputs = draw.normal(0, 3, size=(CLIENTS, RECORDS, CLASSES)).astype(np.float32)
    how = Distillation(epochs=epochs)
    model = build_model(spec, input_shape=shape, classes=CLASSES, seed=0)
    start = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    together, single, apart = [], [], 0.0
    for _ in range(REPEATS):
        begin = clock()
        states = distil_students(model, start, x, outputs, how, seed=1)
        together.append((clock() - begin) / epochs)
        begin = clock()
        for state, teacher in zip(states, outputs, strict=True):
            student = build_model(spec, input_shape=shape, classes=CLASSES, seed=0)
            distil(student, x, teacher, how, seed=1)
            single.append(clock() - begin)
            apart = max(
                apart,
                *(float(np.abs(state[name] - value.numpy()).max()) for name, value in student.state_dict().items()),
            )
        single[-CLIENTS:] = [single[-1] / epochs]
    return statistics.median(together), statistics.median(single), apart


def main() -> None:
    """Print the figures."""
    print(f"{CLIENTS} students, {RECORDS} public records, batch {Distillation().batch_size}; ms an epoch")
    for threads, clock, what in (
        (1, time.process_time, "CPU time, 1 thread"),
        (2, time.perf_counter, "clock, 2 threads"),
    ):
        torch.set_num_threads(threads)
        for spec, shape, epochs in CASES:
            together, single, apart = compare(spec, shape, epochs, clock)
            print(
                f"  {what}: {spec} on {' x '.join(map(str, shape))}: together {1e3 * together:.0f}, one by one "
                f"{1e3 * single:.0f}, {single / together:.1f} times; largest difference {apart:.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
