"""Write what is true of a run, and what its attacker knows, before the run starts.

``python -m simulations.prepare CONFIGS.json`` reads a list of run configs and fills the folders ``knowledge`` and
``truth`` that each names. It runs apart from server and clients: the server must not know the truth, and the clients
only their part.
"""

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks import Knowledge, ModelKnowledge, Targets, write_knowledge
from fedattack.audit.truth import NOBODY, write_truth
from fedattack.data import label_counts
from fedattack.errors import FedAttackError
from fedattack.learning import pick_device
from simulations.study import TARGET_STREAM, Study, derive_seed

# Enough to know an accuracy to within a point, and quick to evaluate for every client and round.
_EVALUATION_RECORDS = 2000


def prepare(study: Study, *, targets: int, knowledge: Path, truth: Path) -> None:
    """Draw the targets and write both folders.

    ``targets`` training records of each client (fewer where it holds fewer), as in the SIA paper, Section 4.2, are
    mixed with as many records that no client holds, as far as the test split reaches, and shuffled. Records that occur
    more than once in the data are left out: they have no single owner.
    """
    data = study.data
    draw = np.random.default_rng(derive_seed(study.seed, TARGET_STREAM))
    single_train, single_test = _singles(data.x_train, data.x_test)
    chosen: list[NDArray[np.int64]] = []
    owners: list[str] = []
    for client, part in enumerate(study.parts):
        own = np.intersect1d(part, single_train)
        picked = draw.choice(own, size=min(targets, len(own)), replace=False)
        chosen.append(picked)
        owners += [str(client)] * len(picked)
    members = np.concatenate(chosen)
    null = draw.choice(single_test, size=min(len(members), len(single_test)), replace=False)
    order = draw.permutation(len(members) + len(null))
    x = np.concatenate([data.x_train[members], data.x_test[null]])[order]
    y = np.concatenate([data.y_train[members], data.y_test[null]])[order]
    owners += [NOBODY] * len(null)
    model = ModelKnowledge(
        spec=study.model_name, input_shape=data.input_shape, classes=data.classes, hidden=study.hidden
    )
    model.build()  # a model that does not fit the data is better refused now than after the training
    drawn = Targets(x, y)
    write_knowledge(knowledge, Knowledge(model=model, targets=drawn))
    sample = np.sort(draw.permutation(len(data.y_test))[:_EVALUATION_RECORDS])
    write_truth(
        truth,
        clients=[str(client) for client in range(study.clients)],
        classes=[str(label) for label in range(data.classes)],
        counts=label_counts(data.y_train, study.parts, data.classes),
        owners=[owners[index] for index in order],
        evaluation=(data.x_test[sample], data.y_test[sample]),
        targets=drawn.fingerprint,
        data=data.fingerprint,
    )


def _singles(train: NDArray[np.float32], test: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of records that occur once in training and test data together."""
    keys = [record.tobytes() for record in (*train, *test)]
    count = Counter(keys)
    single = np.array([count[key] == 1 for key in keys])
    return np.flatnonzero(single[: len(train)]), np.flatnonzero(single[len(train) :])


def main() -> None:
    """Run from the command line: one line and exit code 2 on bad input."""
    configs = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        for config in configs:
            pick_device(str(config["device"]))
            prepare(
                Study.of(config),
                targets=int(config["targets"]),
                knowledge=Path(config["knowledge"]),
                truth=Path(config["truth"]),
            )
    except FedAttackError as problem:
        print(problem, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
