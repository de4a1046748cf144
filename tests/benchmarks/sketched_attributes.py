"""What sketches of updates cost those who infer private attributes from them.

``python -m tests.benchmarks.sketched_attributes RUN…`` takes folders of ``fedattack simulate private-attribute``. Of
each, copies of the record keep sketches of some share of an update's numbers. A table says which share of the clients,
over the rounds that the attack takes, each adversary names the attribute of.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedattack.attacks import ATTACKS, read_knowledge
from fedattack.audit.truth import read_truth
from fedattack.record import Keep, Record, shrink_record
from fedattack.threats.group.case import PrivateAttributeCase, credits_of

SHARES = (0.5, 0.1, 0.02)


def right(case: PrivateAttributeCase) -> list[float]:
    """Return the share of replies whose client's attribute is named, by adversary."""
    (name,) = case.scores.facts["attributes"]
    held = case.held_by_node(name)
    return [float(np.nanmean(credits_of(beliefs, held))) for beliefs in case.scores.arrays[f"beliefs-{name}"]]


def compare(folder: Path, shares: Sequence[float], clients: int, epochs: int) -> None:
    """Print the lines of one run."""
    options = {"clients": str(clients), "epochs": str(epochs)}
    attack = ATTACKS["private-attribute"].with_options(options)
    known, truth, whole = read_knowledge(folder / "knowledge"), read_truth(folder / "truth"), Record(folder / "record")
    size = sum(parameter.size for parameter in whole.parameters)
    for share in (None, *shares):
        with tempfile.TemporaryDirectory() as made:
            record = whole
            if share is not None:
                record = shrink_record(whole, Path(made) / "record", Keep(sketch=int(share * size), seed=1))
            scores = attack.run(record, known, device="cpu")
            found = right(PrivateAttributeCase(0, scores, truth, record, known))
        kept = "whole" if share is None else f"{int(share * size):,}"
        print(f"| {folder.name} | {size:,} | {kept} | " + ", ".join(f"{100 * value:.0f}" for value in found) + " % |")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="of the numbers, those of a sketch")
    parser.add_argument("--clients", type=int, default=300, help="made up from auxiliary records (300)")
    parser.add_argument("--epochs", type=int, default=20, help="of the networks' training (20)")
    chosen = parser.parse_args()
    print("| run | parameters | numbers kept | stru-nn, unkwn-nn, svm, random-forest |")
    print("|---|---|---|---|", flush=True)
    for folder in chosen.runs:
        compare(folder, chosen.shares, chosen.clients, chosen.epochs)


if __name__ == "__main__":
    main()
