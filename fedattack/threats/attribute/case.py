"""One seed's scores of an attack on attributes beside the attribute's values, and guesses without any update."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks import ATTACKS, Scores
from fedattack.attacks.knowledge import PartialRecords, Targets
from fedattack.audit.judge import Case, F
from fedattack.audit.truth import Attributes
from fedattack.base.errors import DataError
from fedattack.threats.attribute.aia import FilledInByModels
from fedattack.threats.attribute.ara import FilledInByMatching
from fedattack.threats.attribute.filled_in import FilledIn
from fedattack.threats.attribute.imputation import impute

# The stream of a seed's random numbers by which columns are imputed.
_IMPUTATION = 3

BASELINES = "attribute-baselines"
"""The attack whose methods are guesses, to be held against the others'."""

BESIDE = "aia", "ara", BASELINES
"""Attacks whose scores are compared where they are about the same examples."""

MAJORITY = "majority"
IMPUTATION = "imputation without the model"

Rows = NDArray[np.int64]
Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]

A = TypeVar("A", bound=NDArray[Any])


@dataclass(frozen=True, eq=False)
class ColumnCase(Case[F], Generic[F, A]):
    """One seed's scores of an attack on a column that the server lacks; it checks that the truth holds the column."""

    @property
    def attributes(self) -> Attributes:
        """The truth."""
        if self.truth.attributes is None:
            raise AssertionError("checked at the start")
        return self.truth.attributes

    @cached_property
    def imputed(self) -> tuple[A, str]:
        """What imputation without the model says of each example, and what it is called."""
        partial, auxiliary = self.knowledge.partial, self.knowledge.auxiliary
        if partial is None or auxiliary is None:
            raise AssertionError("asked for only where both are there")
        seed = int(np.random.SeedSequence((self.seed, _IMPUTATION)).generate_state(1)[0])
        return self.impute(partial, auxiliary, seed)

    def impute(self, partial: PartialRecords, auxiliary: Targets, seed: int) -> tuple[A, str]:
        """Return what :attr:`imputed` is."""
        raise NotImplementedError

    @property
    def imputed_by(self) -> str:
        """The model that imputes; empty without public records."""
        return self.imputed[1] if self.knowledge.auxiliary is not None else ""


@dataclass(frozen=True, eq=False)
class AttributeCase(ColumnCase[FilledIn, Rows]):
    """One seed's scores of an attack on attributes beside the attribute's values.

    Scores of :data:`BASELINES` are bars to clear. Those of other attacks stand in one table, which the first of them
    shows.
    """

    def __post_init__(self) -> None:
        for scores in (self.scores, *self.beside):
            self._check(scores)

    def _check(self, scores: Scores) -> None:
        if self.truth.attributes is None or self.knowledge.partial is None:
            raise DataError(
                f"seed {self.seed}: {scores.attack} asks for an attribute that is missing in truth/attributes.npz or "
                "knowledge/partial.npz; expected it in both, as the run's preparation writes them"
            )
        decisions = _find_filled_in(scores).decisions
        expected = (len(decisions), len(self.attributes.values))
        if decisions.shape != expected or decisions.max(initial=-1) >= len(self.attributes.names):
            raise DataError(
                f"seed {self.seed}: the decisions of {scores.attack} have shape {decisions.shape}; expected "
                f"{expected}, a method and an example each, and values below {len(self.attributes.names)}; attack again"
            )

    @property
    def beside(self) -> list[Scores]:
        """Scores of other attacks on the same examples."""
        return [scores for name, scores in self.run.scores.items() if name in BESIDE and name != self.attack]

    @property
    def is_first(self) -> bool:
        """Whether no other attack on the same examples is judged before this one."""
        judged = [name for name in self.run.scores if name in BESIDE and name != BASELINES]
        return self.attack == judged[0]

    @property
    def values(self) -> Rows:
        """(n,): index of each example's value."""
        return self.attributes.values

    @cached_property
    def commonest(self) -> int:
        """The value that is right most often where nothing else is known."""
        return int(np.bincount(self.values).argmax())

    @cached_property
    def answers(self) -> dict[str, Rows]:
        """(n,) for each method of the scores; no answer is the commonest value, the guess that is left."""
        return self._answers_of(self.scores)

    def _answers_of(self, scores: Scores) -> dict[str, Rows]:
        found = _find_filled_in(scores)
        answers = np.where(found.decisions < 0, self.commonest, found.decisions)
        return dict(zip(found.methods, answers, strict=True))

    @cached_property
    def others(self) -> dict[str, Rows]:
        """(n,) for each method of other attacks on the same example."""
        others: dict[str, Rows] = {}
        for scores in self.beside:
            if scores.attack != BASELINES:
                for method, answers in self._answers_of(scores).items():
                    others[f"{scores.attack}: {method}"] = answers
        return others

    @cached_property
    def baselines(self) -> dict[str, Rows]:
        """(n,) for each way to guess without updates."""
        baselines = {MAJORITY: np.full(len(self.values), self.commonest, dtype=np.int64)}
        if self.knowledge.auxiliary is not None:
            baselines[IMPUTATION], _ = self.imputed
        for scores in self.beside:
            if scores.attack == BASELINES:
                # The majority that is right most often is a higher bar than the one that an attacker can know.
                baselines = self._answers_of(scores) | baselines
        return baselines

    def impute(self, partial: PartialRecords, auxiliary: Targets, seed: int) -> tuple[Rows, str]:
        """Impute the value of each example by a classifier."""
        beliefs, classifier = impute(partial, auxiliary, seed=seed)
        return beliefs.argmax(axis=1), classifier

    def answered(self, method: str) -> Flags:
        """(n,): of which examples a method says something."""
        return np.asarray(self.found.decisions[self.found.methods.index(method)] >= 0)

    def beliefs(self, method: str) -> Floats:
        """(n, v): how sure a method is of each value."""
        return np.asarray(self.found.beliefs[self.found.methods.index(method)])

    def belief(self, method: str) -> Floats:
        """(n,): how sure a method is of its answers."""
        return np.asarray(np.take_along_axis(self.beliefs(method), self.answers[method][:, None], axis=1)[:, 0])

    @property
    def membership(self) -> tuple[Flags, Flags, list[str]] | None:
        """Who was taken for a member, of the clients' examples and of the decoys, and the client of each of both.

        ``None`` if nobody was asked.
        """
        found = self.found
        if not isinstance(found, FilledInByMatching):
            return None
        if found.members is None or found.decoys is None or found.decoy_clients is None:
            return None
        judged, judged_decoys = ~np.isnan(found.members), ~np.isnan(found.decoys)
        owners = np.array(self.attributes.owners)[judged].tolist()
        owners += found.decoy_clients[judged_decoys].tolist()
        return found.members[judged] > 0.5, found.decoys[judged_decoys] > 0.5, owners

    def bound_accuracy(self, method: str) -> dict[str, float]:
        """Compute Proposition 3's bound for each client whose decoded model the attack tells.

        Which loss is that of the true value is for the auditor to know.
        """
        found, model = self.found, self.knowledge.model
        if not isinstance(found, FilledInByModels) or model is None or model.loss != "mse":
            return {}
        if len(self.attributes.names) != 2:
            return {}
        row, owners = found.methods.index(method), np.array(self.attributes.owners)
        bounds = {}
        for client in found.clients:
            weight = (client.weight or {}).get(method)
            # Without a decoded share the attack was not the one that the proposition is about.
            if weight is None or client.share is None:
                continue
            # Whoever does not know which client a node is calls it by the node.
            name = self.truth.nodes.get(client.client, client.client)
            rows = np.flatnonzero(owners == name)
            mse = float(found.losses[row, rows, self.values[rows]].mean()) if len(rows) else np.nan
            if np.isfinite(mse):
                bounds[name] = lower_bound(float(self.values[rows].mean()), mse, float(weight))
        return bounds


def _find_filled_in(scores: Scores) -> FilledIn:
    """Return what an attack on attributes filled in, as that attack states it."""
    filled_in: FilledIn = scores.as_found(ATTACKS[scores.attack].found)
    return filled_in


def lower_bound(share: float, mse: float, weight: float) -> float:
    """Return Proposition 3's lower bound on the accuracy for a binary attribute and least squares.

    Parameters
    ----------
    share
        ρ, the share of examples with the second value.
    mse
        Mean squared error of the client's decoded model on its examples as they are.
    weight
        θ_s, by how much the second value changes the model's output.
    """
    trivial = abs(1 - 2 * share)
    # An example's estimate of the attribute, 0 or 1, errs by its residual over θ_s. Rounding makes it wrong where that
    # is ½ or more, which by Markov's inequality is so for at most MSE/θ_s² / (½)² of the examples.
    return max(trivial, 1 - 4 * mse / weight**2) if weight else trivial
