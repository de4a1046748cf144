"""Membership inference beside the code of FedMIA's authors (Zhu et al. 2025).

Their function ``lira_attack_ldh_cosine`` holds one client's cosines of gradient and update against those of the other
clients, in one round. It reads the cosines from files, and gives each example a probability. As in their code, these
are averaged over the rounds. Both sides get the same cosines, measured once by ours.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedattack.attacks import ATTACKS, Knowledge
from fedattack.audit.roc import area_value, tpr_value_at
from fedattack.audit.truth import NOBODY, Truth
from fedattack.learning.importing import trust_given
from fedattack.record import Record
from fedattack.threats.membership.fedmia import against_others
from fedattack.threats.membership.measures import ExampleGradients, difference, length_of
from tests.benchmarks.peers.getting import FEDMIA_AUTHORS, PeerMissingError, load_file, quiet
from tests.benchmarks.peers.rows import Method, Row, beside, by_value, missing_row
from tests.benchmarks.peers.runs import recorded

FALSE_POSITIVES = 0.01

Floats = NDArray[np.float64]


def cosines(record: Record, knowledge: Knowledge, truth: Truth) -> Floats:
    """Return the cosine of −gradient and update (rounds, targets, clients), clients in the truth's order."""
    if knowledge.model is None or knowledge.targets is None:
        raise AssertionError("the preset has both")
    model, targets = knowledge.model.build(), knowledge.targets
    gradients = ExampleGradients(model, trust_given(knowledge.model.loss), targets.x, targets.y)
    found = []
    for round_ in record:
        of_round = np.zeros((len(targets), len(truth.clients)))
        common = dict(round_.common or {})
        for reply in round_.observations:
            update = difference(dict(reply.arrays or {}), common, gradients.names)
            products, norms = gradients.along(common, [update])
            # An example whose gradient vanishes points nowhere.
            scale = np.maximum(norms * length_of(update), np.finfo(float).tiny)
            of_round[:, _position(reply.node, truth)] = products[:, 0] / scale
        found.append(of_round)
    return np.stack(found)


def ours(measured: Floats) -> Floats:
    """Return the mean over the rounds of our test's probabilities (targets, clients)."""
    return np.asarray(np.mean([against_others(of_round) for of_round in measured], axis=0))


def authors(code: Any, measured: Floats) -> Floats:
    """Return the mean over the rounds of the authors' probabilities (targets, clients)."""
    clients = measured.shape[2]
    # What their script sets for clients of unlike data; of ten clients it leaves none out. It prints into files.
    code.MODE, code.select_mode, code.select_method = "test", 1, "outlier"
    code.print = lambda *words, **options: None
    found = np.zeros(measured.shape)
    with tempfile.TemporaryDirectory() as folder:
        pattern = f"{folder}/client_{{}}_epoch{{}}.pt"
        for number, of_round in enumerate(measured):
            for asked in range(clients):
                # They take the client in the first file for the one that is asked about.
                for place in range(clients):
                    column = torch.from_numpy(of_round[:, (asked + place) % clients])
                    # Two sets of examples are expected, and scored alike; ours go into both.
                    saved = {"test_acc": 0.0, "tarin_cos": column, "test_cos": column}
                    torch.save(saved, pattern.format(place, number))
                with quiet():
                    scores = code.lira_attack_ldh_cosine(pattern, number, clients, folder)[-1]
                found[number, :, asked] = scores[0]
    return np.asarray(found.mean(axis=0))


def split(scores: Floats, truth: Truth) -> tuple[Floats, Floats]:
    """Return the scores of members with the clients that hold them, and of nobody's targets with all clients."""
    members = []
    for column, client in enumerate(truth.clients):
        members.append(scores[truth.owners == client, column])
    return np.concatenate(members), scores[truth.owners == NOBODY].ravel()


def rows(peers: Path | None, seeds: Sequence[int]) -> Iterator[Row]:
    """Test the same cosines by both, in turns."""
    code, missing = None, ""
    try:
        code = load_file(FEDMIA_AUTHORS.find(peers) / FEDMIA_AUTHORS.files[0])
    except PeerMissingError as reason:
        missing = str(reason)
    budget = "the same cosines of 8 rounds"
    own = Method("ours, cosine against other clients", budget)
    whole = Method("ours, FedMIA as a whole", "cosines and losses of 8 rounds")
    theirs = Method(f"{FEDMIA_AUTHORS.name}, FedMIA-II", budget)
    reached: dict[str, list[tuple[float, float]]] = {own.name: [], whole.name: [], theirs.name: []}
    for seed in seeds:
        with recorded("membership", ("auxiliary=0",), seed) as (record, knowledge, truth):
            measured = cosines(record, knowledge, truth)
            reached[own.name].append(_reached(own.run(ours, measured), truth))
            if code is not None:
                reached[theirs.name].append(_reached(theirs.run(authors, code, measured), truth))
            scores = whole.run(ATTACKS["membership"].run, record, knowledge)
            columns = np.argsort([_position(node, truth) for node in scores.facts["clients"]])
            reached[whole.name].append(_reached(scores.arrays["score/fedmia"][:, columns], truth))
    for place, statistic in enumerate(("area under the ROC", "hits at 1 % false alarms")):
        setting = f"membership, digits, {statistic}"
        values = {name: [100 * found[place] for found in pairs] for name, pairs in reached.items()}
        for method in (own, whole):
            row = _row(setting, method, values[method.name])
            if code is not None:
                row |= beside(theirs.name, np.subtract(values[method.name], values[theirs.name]).tolist())
            yield row
        yield missing_row(setting, theirs.name, missing) if missing else _row(setting, theirs, values[theirs.name])


def _position(node: str, truth: Truth) -> int:
    """Return the position among the truth's clients of the one that is a node."""
    return truth.clients.index(truth.nodes.get(node, node))


def _reached(scores: Floats, truth: Truth) -> tuple[float, float]:
    members, others = split(scores, truth)
    return area_value(members, others), tpr_value_at(members, others, FALSE_POSITIVES)


def _row(setting: str, method: Method, values: Sequence[float]) -> Row:
    value, low, high = by_value(values, (0.0, 100.0))
    row = {"setting": setting, "method": method.name, "unit": "%", "value": value, "low": low, "high": high}
    return row | {"seconds": method.typical_seconds(), "budget": method.budget}
