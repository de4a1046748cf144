"""Attacks beside their peers, on the same records and with the same budget.

``python -m tests.benchmarks.peers --peers FOLDER --mnist MNIST.npz --out peers.json`` runs ours and the peers' own code
in turns, on one thread, and prints what each reached, at which processor time, and by how much ours is above. A peer
that cannot be had or imported is named with the reason, and the others run. ``--only sia`` keeps to one part.

The peers are fetched into FOLDER by ``git clone``, or put there by hand:

- ``sia``: source-inference-FL, the code of the authors of source inference;
- ``mia``: FedMIA, the code of the authors of that membership inference;
- ``aia``: fedkit-learn, attribute inference (it is not on the package index);
- ``labels``: LeakPro;
- ``epsilon``: jax_privacy, whose auditing is one file.

Nothing of theirs is part of this repository, and nothing is installed into the environment that runs this. Gradient
inversion has a command of its own, ``tests.benchmarks.inversion``.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from tests.benchmarks.peers import attributes, labels, membership, one_run, source
from tests.benchmarks.peers.rows import CELLS, Row, shown

PARTS = ("sia", "mia", "aia", "labels", "epsilon")


def main() -> None:
    """Run what is asked for, and show it."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.peers", description=__doc__)
    parser.add_argument("--peers", type=Path, help="folder of the peers; without it ours alone runs")
    parser.add_argument("--mnist", type=Path, help="MNIST as an .npz with x and y; without it nothing of images runs")
    parser.add_argument("--only", choices=PARTS, help="one part (all)")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each setting (5)")
    parser.add_argument(
        "--out", type=Path, default=Path("peers.json"), help="file to write; other parts in it are kept"
    )
    asked = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(asked.seeds)
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "sia": lambda: source.rows(asked.peers, asked.mnist, seeds),
        "mia": lambda: membership.rows(asked.peers, seeds),
        "aia": lambda: attributes.rows(asked.peers, seeds),
        "labels": lambda: labels.rows(asked.peers),
        "epsilon": lambda: one_run.rows(asked.peers),
    }
    results = json.loads(asked.out.read_text(encoding="utf-8")) if asked.out.is_file() else {}
    for part in [asked.only] if asked.only else PARTS:
        results[part] = [*parts[part]()]
        asked.out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        _print_table(results[part])


def _print_table(rows: list[Row]) -> None:
    table = Table(*CELLS)
    for row in rows:
        table.add_row(*shown(row))
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
