"""What noise on updates leaves of a column of numbers, where clients' models tell it.

``python -m tests.benchmarks.numbers`` draws six clients of 20 examples, whose labels are a linear function of the
columns, another one for each client. They train by full batches for 50 epochs in each of five rounds. Gaussian noise is
added to each reply afterwards, as ``fedattack what-if --noise`` does. It prints a row for each standard deviation: how
many numbers are met within the tolerance, the rank correlation, and the bars of both; means of three seeds.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedattack.attacks import ATTACKS, Targets, read_knowledge
from fedattack.audit.truth import read_truth
from fedattack.grids.whatif.alteration import Alteration, alter_record
from fedattack.learning import LocalSGD
from fedattack.record import Record
from fedattack.threats.attribute.numbers_judge import NumberCase, NumbersJudge
from tests.worlds.attributes import Table, write_number_run
from tests.worlds.cases import make_case

SEEDS = (0, 1, 2)
NOISE = (0.0, 0.1, 0.3, 1.0)
TRAINING = LocalSGD(epochs=50, batch_size=0, lr=0.1)
METRICS = ("within", "rank")


def draw_tables(clients: int, each: int, seed: int) -> list[Table]:
    """Draw tables (each, 4) whose labels follow from the columns, in a way of each client's own."""
    draw, tables = np.random.default_rng(seed), []
    for _ in range(clients):
        x = draw.normal(size=(each, 4)).astype(np.float32)
        tables.append((x, (x @ np.append(draw.normal(size=3), 1.5)).astype(np.float32)))
    return tables


def measure(folder: Path, seed: int, deviation: float) -> list[float]:
    """Return value and highest bar of each metric, with this noise."""
    public = draw_tables(6, 30, seed + 100)
    auxiliary = Targets(*(np.concatenate(part) for part in zip(*public, strict=True)))
    write_number_run(folder, draw_tables(6, 20, seed), auxiliary=auxiliary, training=TRAINING, rounds=5, seed=seed)
    record = alter_record(Record(folder / "record"), folder / "noised", Alteration("noise", deviation), seed=(seed,))
    known, truth = read_knowledge(folder / "knowledge"), read_truth(folder / "truth")
    scores = (
        ATTACKS["attribute-number"].with_options({"restarts": "1", "workers": "1"}).run(record, known, device="cpu")
    )
    case = make_case(NumberCase, 0, scores, truth, record, known)
    judge = NumbersJudge([case], setting={}, provenance={})
    judge.draws = 999
    findings = {finding.metric: finding for finding in judge.findings()}
    values = []
    for metric in METRICS:
        finding = findings[metric]
        values += [finding.value, max(finding.baselines.values())]
    return values


def main() -> None:
    """Print the table."""
    sys.stdout.write("| σ | within | best guess | rank | best guess |\n")
    for deviation in NOISE:
        values = []
        for seed in SEEDS:
            with TemporaryDirectory() as folder:
                values.append(measure(Path(folder), seed, deviation))
        cells = " | ".join(f"{value:.3f}" for value in np.mean(values, axis=0))
        sys.stdout.write(f"| {deviation:g} | {cells} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
