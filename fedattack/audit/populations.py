"""Rates of parts of the population, and of the targets of which an attack is surest: what a mean hides."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.measures import Rate
from fedattack.audit.truth import Truth

_MOST_LABELS = 100
# Of all targets one in ten is among the surest.
_TENTH = 10
_FEWEST_SURE = 5
_TIES = 16
"""Stream of the draws that order targets of which an attack is equally sure."""


@dataclass(frozen=True)
class RatedTargets:
    """How an attack's questions about some targets (n,) of one seed were answered.

    Attributes
    ----------
    truth
        Of that seed.
    credit
        (n,): in [0, 1].
    clients
        (n,): who holds each target.
    parts
        What the targets are parted by, such as labels, and each target's part (n,).
    """

    truth: Truth
    credit: NDArray[np.float64]
    clients: Sequence[str]
    parts: Mapping[str, NDArray[np.str_]]

    @classmethod
    def by_label(
        cls, truth: Truth, credit: NDArray[np.float64], clients: Sequence[str], labels: NDArray[Any]
    ) -> "RatedTargets":
        """Part the targets by their labels (n, …); those of a regression part nothing."""
        parts: dict[str, NDArray[np.str_]] = {}
        if labels.ndim == 1 and len(labels) and np.issubdtype(labels.dtype, np.integer):
            names = np.array(truth.classes, dtype=np.str_)
            parts["label"] = labels.astype(np.str_)
            if labels.min() >= 0 and labels.max() < len(names):
                parts["label"] = names[labels]
        return cls(truth, credit, clients, parts)

    def with_groups(self) -> dict[str, NDArray[np.str_]]:
        """Return the parts, and what clients' private attributes part the targets into."""
        parted = dict(self.parts)
        for attribute, values in self.truth.private.items():
            of_client = dict(zip(self.truth.clients, np.array(values.names)[list(values.values)], strict=True))
            parted[attribute] = np.array([of_client.get(client, "unknown") for client in self.clients], dtype=np.str_)
        return parted


def rate_populations(seeds: Iterable[RatedTargets]) -> list[dict[str, Any]]:
    """Rate each part of the population for ``series["populations"]``, the highest rate of each kind first.

    Parts are labels, and the values of clients' private attributes, such as sites that were declared. The intervals
    are widened for all parts: they hold together. A kind of which there is one part says nothing, and is left out.
    """
    credit: dict[str, dict[str, list[NDArray[np.float64]]]] = defaultdict(lambda: defaultdict(list))
    for answers in seeds:
        for kind, parts in answers.with_groups().items():
            for name in np.unique(parts).tolist():
                credit[kind][name].append(answers.credit[parts == name])
    kinds = {kind: parts for kind, parts in credit.items() if 1 < len(parts) <= _MOST_LABELS}
    comparisons = sum(map(len, kinds.values()))
    entries: list[dict[str, Any]] = []
    for kind, by_name in kinds.items():
        rated = []
        for name, of_seeds in by_name.items():
            rated.append({"kind": kind, "name": name} | Rate.of(of_seeds).as_entry(comparisons))
        entries += sorted(rated, key=lambda entry: -entry["value"])
    return entries


def rate_surest(
    seeds: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]], seed: int, chance: float
) -> Mapping[str, Any]:
    """Rate the tenth of the targets of which the attack was surest, for ``series["surest"]``; empty if that is too few.

    The tenth is fixed in advance, and the attack chooses without the truth, so that nothing is to be paid for choosing.
    For each seed it is given how sure the attack was (n,), and whether it was right (n,), in [0, 1]. ``seed`` orders
    targets of which it was equally sure.
    """
    draw = np.random.default_rng((seed, _TIES))
    credit = []
    for sure, right in seeds:
        order = draw.permutation(len(sure))
        order = order[np.argsort(-sure[order], kind="stable")]
        credit.append(right[order[: len(order) // _TENTH]].astype(np.float64))
    rate = Rate.of(credit)
    if min(rate.sizes, default=0) < _FEWEST_SURE:
        return {}
    return rate.as_entry() | {"chance": chance}
