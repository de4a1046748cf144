"""One seed's answers about clients' private attributes beside the true values.

A client of several rounds counts once, with the share of its rounds in which the adversary was right: its examples are
the same in all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.judge import Case
from fedattack.base.errors import DataError
from fedattack.threats.group.private_attribute import AttributeBeliefs

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


def credits_of(beliefs: Floats, held: Rows) -> Floats:
    """Return whether each decision is right, 1/m where m values tie for the largest belief, NaN without one.

    Parameters
    ----------
    beliefs
        (rounds, nodes, values).
    held
        (nodes,).

    Returns
    -------
    ndarray
        (rounds, nodes).
    """
    best = beliefs == beliefs.max(axis=-1, keepdims=True)
    right = np.take_along_axis(best, held[None, :, None], axis=-1)[..., 0]
    credit = right / np.maximum(best.sum(axis=-1), 1)
    return np.where(np.isnan(beliefs).any(axis=-1), np.nan, credit)


@dataclass(frozen=True, eq=False)
class PrivateAttributeCase(Case[AttributeBeliefs]):
    """One seed's scores beside its truth, which must have their attributes and clients."""

    NODES = "nodes"

    def __post_init__(self) -> None:
        for name, values in self.found.attributes.items():
            true_values = self.truth.private.get(name)
            if true_values is None or true_values.names != values:
                true = "none" if true_values is None else ", ".join(true_values.names)
                raise DataError(
                    f"seed {self.seed}: the scores are about {name!r} with the values {', '.join(values)}, the truth "
                    f"has {true}; attack again, or mend truth/private.json"
                )
        self.truth.check_nodes(self.found.nodes, seed=self.seed, where="scores")

    def beliefs(self, name: str, adversary: str) -> Floats:
        """Return what an adversary believes of an attribute, (rounds, nodes, values)."""
        beliefs: Floats = self.found.beliefs[name][self.found.adversaries.index(adversary)]
        return beliefs

    def held(self, name: str) -> Rows:
        """Return the true value of each client, (clients,)."""
        return self._codes(name, self.clients)

    def held_by_node(self, name: str) -> Rows:
        """Return the true value of each node's client, (nodes,)."""
        return self._codes(name, self.node_clients)

    def _codes(self, name: str, clients: Sequence[str]) -> Rows:
        codes = dict(zip(self.truth.clients, self.truth.private[name].values, strict=True))
        return np.array([codes[client] for client in clients], dtype=np.int64)

    def credit(self, name: str, adversary: str) -> Floats:
        """Return whether an adversary names each client's value in each reply, (rounds, nodes); NaN without one."""
        return credits_of(self.beliefs(name, adversary), self.held_by_node(name))

    def shares(self, name: str, adversary: str) -> Floats:
        """Return in which share of a client's replies an adversary names each value, (clients, values)."""
        beliefs = self.beliefs(name, adversary)
        _, nodes, values = beliefs.shape
        shares = np.empty((len(self.clients), values))
        for value in range(values):
            credit = credits_of(beliefs, np.full(nodes, value))
            shares[:, value] = [np.nanmean(credit[:, self.columns(client)]) for client in self.clients]
        return shares

    def hits(self, name: str, adversary: str) -> Floats:
        """Return in which share of a client's replies its own value is named, (clients,)."""
        return np.asarray(self.shares(name, adversary)[np.arange(len(self.clients)), self.held(name)])
