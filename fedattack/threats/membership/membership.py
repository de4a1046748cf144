"""Membership inference: whether a client trained on an example.

A federated server sees what no other attacker sees: updates of clients that did not train on the example. See
:mod:`fedattack.threats.membership.fedmia`, and the guide beside it for the attacks that it is compared with.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from typing_extensions import TypedDict

from fedattack.errors import NeedsError
from fedattack.learning import per_record_loss, pick_device
from fedattack.learning.importing import given, one_line
from fedattack.record import Observation, Record, Round
from fedattack.record.format import PROTOCOLS, Arrays
from fedattack.threats.base import Attack, Needs, Progress, Scores
from fedattack.threats.form import ArrayForm, Form, Name, Number
from fedattack.threats.knowledge import Knowledge, Targets
from fedattack.threats.local_models import REBUILD, local_models, readable
from fedattack.threats.matching import fits_model
from fedattack.threats.membership.fedmia import FEWEST_OTHERS, against_others, below_others, logits_of, mean_where_seen
from fedattack.threats.membership.measures import ExampleGradients, difference, length_of, losses_at, rows_at_once
from fedattack.threats.membership.options import MembershipOptions
from fedattack.threats.membership.references import Shadows
from fedattack.threats.threat import ADAPTIVE

Floats = NDArray[np.float64]

SCORE = "score/"
"""How the names of arrays begin that hold a method's scores."""

METHODS = {
    "fedmia": "FedMIA: loss and cosine, against the other clients",
    "fedmia-loss": "FedMIA: loss, against the other clients",
    "fedmia-cosine": "FedMIA: cosine of gradient and update, against the other clients",
    "likelihood-ratio": "likelihood ratio: loss, against shadow models of the attacker's",
    f"likelihood-ratio{ADAPTIVE}": "likelihood ratio, shadows put through the clients' defence",
    "rmia": "RMIA: loss, against shadow models and the attacker's examples",
    "average-cosine": "cosine of gradient and update, mean over rounds",
    "loss-series": "loss, mean over rounds",
    "loss-threshold": "loss of the last model",
    "gradient-norm": "norm of the gradient at the last model",
    "gradient-difference": "how much the update shrinks without the gradient",
}
"""All methods in words; the first is what the attack is about."""

ALONE = ("average-cosine", "loss-series", "loss-threshold", "gradient-norm", "gradient-difference")
"""Methods that look at the asked client alone."""

# RMIA's a: a model that did not train on an example gives p, one that did about (1 + a)p / 2 + (1 − a) / 2.
_RMIA_SLOPE = 0.3

# RMIA compares with the first of the attacker's examples; more change its answers little.
_SAMPLE = slice(500)


class _Facts(TypedDict):
    clients: list[Name]
    rounds: list[Number]
    targets: Name
    methods: list[Name]
    trained: Number


SCORES_FORM = Form(
    TypeAdapter(_Facts),
    {
        f"{SCORE}*": ArrayForm("f", ("targets", "clients"), nan=True),
        "per_round": ArrayForm("f", ("rounds", "targets", "clients"), nan=True),
        "labels": ArrayForm("f", ("targets",), rest=True),
    },
    {"clients": "clients", "rounds": "rounds"},
)


def in_form(
    attack: str,
    targets: Targets,
    methods: Mapping[str, Floats],
    per_round: NDArray[Any],
    notes: Sequence[str],
    **facts: Any,
) -> Scores:
    """Put each method's scores into :data:`SCORES_FORM`, with the facts that the targets and methods do not tell."""
    arrays = {f"{SCORE}{name}": values for name, values in methods.items()}
    arrays |= {"per_round": per_round.astype(np.float32, copy=False), "labels": targets.y}
    facts |= {"targets": targets.fingerprint, "methods": list(methods)}
    return Scores(attack, arrays, facts, tuple(notes))


@dataclass(frozen=True)
class Membership(MembershipOptions, Attack):
    """FedMIA, and beside it what others do with the same record.

    Scores hold ``score/METHOD`` (targets, clients), larger for likelier members, NaN for clients of whom nothing is
    known; ``per_round`` (rounds, targets, clients), FedMIA in each round alone; ``labels`` (targets,). The fact
    ``methods`` names the methods that could be computed, ``trained`` says how many shadow models that took.
    """

    name: ClassVar[str] = "membership"
    title: ClassVar[str] = "Membership inference"
    paper: ClassVar[str] = "Zhu et al. 2025, FedMIA, Section 4"
    needs: ClassVar[Needs] = Needs(
        views=("individual",),
        protocols=tuple(REBUILD),
        knowledge=("model", "targets"),
        takes=("rounds", "clients", "precision", "frozen", "structures"),
    )
    form: ClassVar[Form] = SCORES_FORM
    knows: ClassVar[tuple[str, ...]] = (
        "the model's architecture and loss",
        "examples with their labels, of which it asks for each client whether it trained on them",
        "for methods with shadow models, auxiliary examples and how clients train",
        "for adaptive methods, the clients' defence and its settings, but not what it draws",
    )

    def _run(self, record: Record, knowledge: Knowledge, seed: int, device: str, progress: Progress) -> Scores:
        if knowledge.model is None or knowledge.targets is None:
            raise AssertionError("checked by run")
        notes: list[str] = []
        shadows = self._shadows_of(record, knowledge, seed, pick_device(device), notes)
        meter = _Meter(
            record, knowledge, knowledge.targets, shadows, seed, pick_device(device), notes, bound=self.memory // 8
        )
        tally = _Tally()
        rounds: list[int] = []
        for done, round_ in enumerate(record):
            measured = meter.measure(round_)
            if measured is not None:
                tally.add(measured)
                rounds.append(round_.number)
            progress(done + 1, len(record))
        if not rounds:
            raise NeedsError(f"attack {self.name} needs at least one usable reply, and {record.path} holds none")
        scores = tally.scores()
        if "fedmia" not in scores:
            notes.append("in no round were three clients seen, so that none can be held against others; no FedMIA")
        facts = {"clients": list(record.nodes), "rounds": rounds, "trained": shadows.trained if shadows else 0}
        return in_form(self.name, knowledge.targets, scores, np.stack(tally.per_round), notes, **facts)

    def _shadows_of(
        self, record: Record, knowledge: Knowledge, seed: int, device: torch.device, notes: list[str]
    ) -> Shadows | None:
        # Without auxiliary examples nobody expects any.
        if self.shadows < FEWEST_OTHERS or knowledge.auxiliary is None:
            return None
        if not Shadows.possible(knowledge):
            notes.append(
                "no shadow models: the attacker has too few auxiliary examples, or does not know how clients train; "
                "the likelihood ratio and RMIA are left out"
            )
            return None
        if not PROTOCOLS[record.protocol].sends_back:
            notes.append(f"no shadow models: the attacker has no way to train clients of {record.protocol}")
            return None
        return Shadows(knowledge, self.shadows, seed=seed, device=device)


@dataclass(frozen=True)
class _Measured:
    """What one round shows of each target and client; NaN where a client was not seen.

    Attributes
    ----------
    losses
        (targets, clients): at the client's own model.
    products, norms, lengths
        (targets, clients), (targets, clients), (clients,): ⟨−∇ℓ, Δ⟩ and ‖∇ℓ‖ at the model that the client was sent,
        and ‖Δ‖.
    last_norms
        (targets, clients): ‖∇ℓ‖ at the client's own model, in the last round in which it is seen.
    references
        By method, scores (targets, clients) that need shadow models.
    """

    losses: Floats
    products: Floats
    norms: Floats
    lengths: Floats
    last_norms: Floats
    references: dict[str, Floats]


class _Meter:
    """Measures a record's rounds, one after another."""

    def __init__(
        self,
        record: Record,
        knowledge: Knowledge,
        targets: Targets,
        shadows: Shadows | None,
        seed: int,
        device: torch.device,
        notes: list[str],
        *,
        bound: int,
    ) -> None:
        if knowledge.model is None:
            raise AssertionError("checked by run")
        self.model = knowledge.model.build()
        self.loss = per_record_loss(given(knowledge.model.loss))
        self.targets = targets
        self.shadows = shadows
        self.device = device
        self.notes = notes
        self.columns = {node: column for column, node in enumerate(record.nodes)}
        self.models_of = local_models(record, knowledge, seed=seed, device=device, notes=notes)
        self.gradients: ExampleGradients | None = None
        if PROTOCOLS[record.protocol].sends_model:
            self.gradients = ExampleGradients(
                self.model,
                given(knowledge.model.loss),
                targets.x,
                targets.y,
                device=device,
                bound=bound,
                frozen=knowledge.frozen or (),
            )
        self.last = _last_rounds(record)
        # In FedSGD the update is the server's step, of which the gradient is what the client sent.
        lr = record.facts.get("lr")
        self.step = lr if isinstance(lr, int | float) and not PROTOCOLS[record.protocol].sends_back else 1.0

    def measure(self, round_: Round) -> _Measured | None:
        """Measure a round; ``None`` if no reply of it can be used."""
        shape = (len(self.targets), len(self.columns))
        measured = _Measured(
            losses=np.full(shape, np.nan),
            products=np.full(shape, np.nan),
            norms=np.full(shape, np.nan),
            lengths=np.full(len(self.columns), np.nan),
            last_norms=np.full(shape, np.nan),
            references={},
        )
        population: dict[int, Floats] = {}
        sizes: list[float] = []
        for batch in self._batches(round_):
            for observation, state in batch:
                column = self.columns[observation.node]
                measured.losses[:, column] = self._losses(state, self.targets)
                if np.isnan(measured.losses[:, column]).any():
                    self.notes.append(
                        f"round {round_.number}, client {observation.node}: its model gives losses that are not "
                        "numbers; it is not held against others"
                    )
                sizes.append(observation.count or 0)
                if self.shadows is not None:
                    population[column] = self._losses(state, self.shadows.population.take(_SAMPLE))
                if self.gradients is not None and self.last[observation.node] == round_.number:
                    measured.last_norms[:, column] = self._norms(state)
            self._measure_updates(batch, measured)
        if np.isnan(measured.losses).all():
            return None
        if self.shadows is not None:
            common = readable(round_.common)
            size = int(np.median([count for count in sizes if count] or [len(self.shadows.population)]))
            if common is not None:
                measured.references.update(self._against_shadows(common, size, measured.losses, population))
        return measured

    def _batches(self, round_: Round) -> Iterator[list[tuple[Observation, Arrays]]]:
        """Group the replies: as many as fit into memory, and each that was sent a model of its own alone."""
        most = rows_at_once(self.gradients.size, self.gradients.bound) if self.gradients is not None else 1
        batch: list[tuple[Observation, Arrays]] = []
        for observation, state in self.models_of(round_):
            if observation.singled_out:
                yield [(observation, state)]
                continue
            batch.append((observation, state))
            if len(batch) == most:
                yield batch
                batch = []
        if batch:
            yield batch

    def _losses(self, state: Arrays, examples: Targets) -> Floats:
        return losses_at(state, self.model, examples, self.loss, self.device)

    def _norms(self, state: Arrays) -> Floats:
        if self.gradients is None:
            return np.full(len(self.targets), np.nan)
        try:
            return self.gradients.norms(state)
        except (RuntimeError, ValueError) as cause:
            self._give_up(cause)
            return np.full(len(self.targets), np.nan)

    def _measure_updates(self, batch: list[tuple[Observation, Arrays]], measured: _Measured) -> None:
        """Measure where the updates of a batch point; all of them started from one model."""
        if self.gradients is None:
            return
        received = readable(batch[0][0].received)
        if received is None:
            return
        if not fits_model(self.model, received, f"what client {batch[0][0].node} was sent", self.notes):
            return
        updates = [difference(state, received, self.gradients.names) for _, state in batch]
        try:
            products, norms = self.gradients.along(received, updates)
        except (RuntimeError, ValueError) as cause:
            self._give_up(cause)
            return
        for position, (observation, _) in enumerate(batch):
            column = self.columns[observation.node]
            measured.products[:, column] = products[:, position] / self.step
            measured.norms[:, column] = norms
            measured.lengths[column] = length_of(updates[position]) / self.step

    def _give_up(self, cause: Exception) -> None:
        """Go on without gradients, which torch.func cannot take of every model."""
        self.gradients = None
        self.notes.append(
            f"gradients of single examples cannot be taken of this model ({one_line(cause)}); losses alone"
        )

    def _against_shadows(
        self, received: Arrays, size: int, losses: Floats, population: dict[int, Floats]
    ) -> dict[str, Floats]:
        """Hold the round's losses against those of shadow models."""
        if self.shadows is None:
            return {}
        plain: list[Floats] = []
        adaptive: list[Floats] = []
        of_population: list[Floats] = []
        sample = self.shadows.population.take(_SAMPLE)
        for state, defended in self.shadows.of_round(received, size):
            plain.append(self._losses(state, self.targets))
            of_population.append(self._losses(state, sample))
            if defended is not None:
                adaptive.append(self._losses(defended, self.targets))
        scores = {
            "likelihood-ratio": below_others(logits_of(losses), logits_of(np.stack(plain, axis=1))),
            "rmia": _rmia(losses, np.stack(plain), population, np.stack(of_population)),
        }
        if adaptive:
            scores[f"likelihood-ratio{ADAPTIVE}"] = below_others(
                logits_of(losses), logits_of(np.stack(adaptive, axis=1))
            )
        return scores


class _Tally:
    """Puts rounds together, method by method."""

    def __init__(self) -> None:
        self.per_round: list[NDArray[np.float32]] = []
        self._total: dict[str, Floats] = {}
        self._seen: dict[str, NDArray[np.uint16]] = {}
        self._last: dict[str, Floats] = {}

    def add(self, measured: _Measured) -> None:
        """Add a round."""
        with np.errstate(invalid="ignore", divide="ignore"):
            cosines = measured.products / (measured.norms * measured.lengths)
        # An example whose gradient vanishes, or an update of nothing, points nowhere.
        cosines = np.where(np.isfinite(cosines), cosines, np.where(np.isnan(measured.products), np.nan, 0.0))
        by_loss = against_others(logits_of(measured.losses))
        by_cosine = against_others(cosines)
        both = mean_where_seen(np.stack([by_loss, by_cosine]))
        self.per_round.append(both.astype(np.float32))
        self._sum("fedmia", both)
        self._sum("fedmia-loss", by_loss)
        self._sum("fedmia-cosine", by_cosine)
        for method, values in measured.references.items():
            self._sum(method, values)
        self._sum("average-cosine", cosines)
        self._sum("loss-series", -measured.losses)
        self._sum("gradient-difference", 2 * measured.products - measured.norms**2)
        self._keep("loss-threshold", -measured.losses)
        self._keep("gradient-norm", -measured.last_norms)

    def scores(self) -> dict[str, Floats]:
        """Return each method's scores (targets, clients), without methods that could not be computed."""
        found: dict[str, Floats] = {}
        for method in METHODS:
            if method in self._total:
                with np.errstate(invalid="ignore", divide="ignore"):
                    values = np.where(self._seen[method] > 0, self._total[method] / self._seen[method], np.nan)
            elif method in self._last:
                values = self._last[method]
            else:
                continue
            if not np.isnan(values).all():
                found[method] = values
        return found

    def _sum(self, method: str, values: Floats) -> None:
        seen = ~np.isnan(values)
        self._total[method] = self._total.get(method, 0.0) + np.where(seen, values, 0.0)
        self._seen[method] = self._seen.get(method, np.uint16(0)) + seen.astype(np.uint16)

    def _keep(self, method: str, values: Floats) -> None:
        """Keep what was seen last of each client."""
        self._last[method] = np.where(np.isnan(values), self._last.get(method, np.nan), values)


def _last_rounds(record: Record) -> dict[str, int]:
    """Return the last round in which each node replied."""
    last: dict[str, int] = {}
    for round_ in record:
        last.update(dict.fromkeys(round_.participants, round_.number))
    return last


def _rmia(losses: Floats, shadows: Floats, population: dict[int, Floats], shadows_on_population: Floats) -> Floats:
    """Return the share of the attacker's examples that a target beats in p(example | model) / p(example).

    Zarifzadeh et al. 2024, "Low-cost high-power membership inference attacks" (RMIA), offline, with γ = 1.

    Parameters
    ----------
    losses, shadows
        (targets, clients), (shadows, targets): losses of the targets.
    population, shadows_on_population
        By column (examples,), and (shadows, examples): losses of the attacker's examples.
    """
    scores = np.full(losses.shape, np.nan)
    of_targets = _probability(shadows)
    of_population = _probability(shadows_on_population)
    for column, own in population.items():
        ratios = np.sort(-own - np.log(of_population))
        ratio = -losses[:, column] - np.log(of_targets)
        beaten = np.searchsorted(ratios, ratio, side="right") / len(ratios)
        scores[:, column] = np.where(np.isnan(ratio) | np.isnan(ratios).any(), np.nan, beaten)
    return scores


def _probability(losses: Floats) -> Floats:
    """Return p(example): over models that trained on it and models that did not."""
    without = np.exp(-losses).mean(axis=0)
    return np.asarray(((1 + _RMIA_SLOPE) * without + (1 - _RMIA_SLOPE)) / 2)
