"""One seed's scores of an attack on attributes beside the attribute's values, and guesses without any update."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks import Scores
from fedattack.audit.judge import Case
from fedattack.audit.truth import Attributes
from fedattack.base.errors import DataError
from fedattack.threats.attribute.imputation import impute

# The stream of a seed's random numbers by which columns are imputed.
_IMPUTATION = 3

BASELINES = "attribute-baselines"
"""The attack whose methods are guesses, to be held against the others'."""

MAJORITY = "majority"
IMPUTATION = "imputation without the model"

Rows = NDArray[np.int64]
Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class AttributeCase(Case):
    """One seed's scores of an attack on attributes beside the attribute's values.

    The scores hold ``decisions`` (methods, n), −1 for no answer, and ``beliefs`` (n, v) or (methods, n, v). Their
    facts name the ``methods``. The scores beside them are of other attacks on the same examples. Those of
    :data:`BASELINES` are bars to clear. The others stand in the same table, which the first of them shows.
    """

    def __post_init__(self) -> None:
        for scores in (self.scores, *self.beside):
            self._check(scores)

    def _check(self, scores: Scores) -> None:
        decisions, methods = scores.arrays["decisions"], scores.facts["methods"]
        if self.truth.attributes is None or self.knowledge.partial is None:
            raise DataError(
                f"seed {self.seed}: {scores.attack} asks for an attribute, of which truth/attributes.npz or "
                "knowledge/partial.npz says nothing; expected both, as the run's preparation writes them"
            )
        expected = (len(methods), len(self.attributes.values))
        if decisions.shape != expected or decisions.max(initial=-1) >= len(self.attributes.names):
            raise DataError(
                f"seed {self.seed}: the decisions of {scores.attack} have shape {decisions.shape}; expected "
                f"{expected}, a method and an example each, and values below {len(self.attributes.names)}; attack again"
            )

    @property
    def attributes(self) -> Attributes:
        """The truth."""
        if self.truth.attributes is None:
            raise AssertionError("checked at the start")
        return self.truth.attributes

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
        decisions = scores.arrays["decisions"]
        filled = np.where(decisions < 0, self.commonest, decisions)
        return dict(zip(scores.facts["methods"], filled, strict=True))

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
            baselines[IMPUTATION], _ = self._imputed
        for scores in self.beside:
            if scores.attack == BASELINES:
                # The majority that is right most often is a higher bar than the one that an attacker can know.
                baselines = self._answers_of(scores) | baselines
        return baselines

    @cached_property
    def _imputed(self) -> tuple[Rows, str]:
        partial, auxiliary = self.knowledge.partial, self.knowledge.auxiliary
        if partial is None or auxiliary is None:
            raise AssertionError("asked for only where both are there")
        seed = int(np.random.SeedSequence((self.seed, _IMPUTATION)).generate_state(1)[0])
        beliefs, classifier = impute(partial, auxiliary, seed=seed)
        return beliefs.argmax(axis=1), classifier

    @property
    def imputed_by(self) -> str:
        """The classifier that imputes; empty without public records."""
        return self._imputed[1] if self.knowledge.auxiliary is not None else ""

    def answered(self, method: str) -> Flags:
        """(n,): of which examples a method says something."""
        row = self.scores.facts["methods"].index(method)
        return np.asarray(self.scores.arrays["decisions"][row] >= 0)

    def beliefs(self, method: str) -> Floats | None:
        """(n, v): how sure a method is of each value; ``None`` if it does not say."""
        beliefs = self.scores.arrays.get("beliefs")
        if beliefs is not None and beliefs.ndim == 3:
            beliefs = beliefs[self.scores.facts["methods"].index(method)]
        return beliefs

    def belief(self, method: str) -> Floats | None:
        """(n,): how sure a method is of its answers; ``None`` if it does not say."""
        beliefs = self.beliefs(method)
        if beliefs is None:
            return None
        return np.asarray(np.take_along_axis(beliefs, self.answers[method][:, None], axis=1)[:, 0])

    @property
    def membership(self) -> tuple[Flags, Flags] | None:
        """Who was taken for a member, of the client's examples and of the decoys; ``None`` if nobody was asked."""
        arrays = self.scores.arrays
        if not {"members", "decoys", "decoy_clients"} <= arrays.keys():
            return None
        members, decoys = arrays["members"], arrays["decoys"]
        return members[~np.isnan(members)] > 0.5, decoys[~np.isnan(decoys)] > 0.5

    @property
    def candidates_of(self) -> list[str]:
        """The client of each candidate of :attr:`membership`, examples first."""
        arrays = self.scores.arrays
        owners = np.array(self.attributes.owners)[~np.isnan(arrays["members"])]
        asked = ~np.isnan(arrays["decoys"])
        return [*owners.tolist(), *map(str, arrays["decoy_clients"][asked].tolist())]

    def bound_accuracy(self, method: str) -> dict[str, float]:
        """Compute Proposition 3's bound for each client whose decoded model the scores tell.

        The attack gives the ``losses`` (methods, n, v) of every value. Its fact ``clients`` gives the decoded ``share``
        and the ``weight`` of each method. Which loss is that of the true value is for the auditor to know.
        """
        losses, model = self.scores.arrays.get("losses"), self.knowledge.model
        if losses is None or model is None or model.loss != "mse" or len(self.attributes.names) != 2:
            return {}
        row, owners = self.scores.facts["methods"].index(method), np.array(self.attributes.owners)
        bounds = {}
        for client in self.scores.facts.get("clients", []):
            weight = (client.get("weight") or {}).get(method)
            # Without a decoded share the attack was not the one that the proposition is about.
            if weight is None or client.get("share") is None:
                continue
            # Whoever does not know which client a node is calls it by the node.
            name = self.truth.nodes.get(str(client["client"]), str(client["client"]))
            rows = np.flatnonzero(owners == name)
            mse = float(losses[row, rows, self.values[rows]].mean()) if len(rows) else np.nan
            if np.isfinite(mse):
                bounds[name] = lower_bound(float(self.values[rows].mean()), mse, float(weight))
        return bounds


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
    return max(trivial, 1 - 4 * mse / weight**2) if weight else trivial
