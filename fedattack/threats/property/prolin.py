"""PROLIN: which clients have a property, from sums alone.

Kerkouche et al. 2023, "Client-specific property inference against secure aggregation in federated learning". Sums over
changing groups of clients are linear equations in each client's own features; four steps solve them: a detector for
each round from auxiliary data, the densities of its feature, a weighted ridge regression, and a joint likelihood.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from fedattack.errors import NeedsError
from fedattack.learning import pick_device
from fedattack.learning.importing import given
from fedattack.record import Record, Round
from fedattack.record.format import Arrays
from fedattack.threats import options
from fedattack.threats._fan_out import fan_out
from fedattack.threats.base import Attack, Needs, Progress, Scores
from fedattack.threats.form import ArrayForm, Form, Name, Number
from fedattack.threats.knowledge import Knowledge
from fedattack.threats.matching import check_model
from fedattack.threats.property.detectors import MODES, Detector, Mode, Setting, can_be_linear, divide, fit_detectors
from fedattack.threats.property.disaggregation import (
    Array,
    Densities,
    Joint,
    baseline_votes,
    least_squares,
    overlap,
    posterior,
    weighted_ridge,
)
from fedattack.threats.property.many_features import FeatureDetector, decide_by_features
from fedattack.threats.property.properties import questions

METHODS = ("PROLIN", "REG", "OLS", "BASELINE", "posterior")
"""The paper's four, and the exact posterior under PROLIN's model."""

WINDOW = 10
"""Decisions are made after every tenth round, as in the paper's figures."""

_RESAMPLED = 100
# Differences and sums of a few of these must not overflow.
_LARGEST = float(np.finfo(np.float32).max) / 1e4
_MOST_SIZES = 4
_SHOWN_ROUNDS = 4
# Standard deviation that stands for none.
_SILENCE = 1e-6


@dataclass(frozen=True)
class _Sums:
    """What the record gives: who took part with which weight, and where the sums and models lie.

    Attributes
    ----------
    rounds
        Numbers of the rounds that had an aggregate.
    A
        (rounds, clients): weights of the clients in a round's sum, m·n_i/Σn_j for m participants, so that they are 1
        where all clients have equally many examples.
    counts
        (rounds, clients): example counts, 0 where absent.
    starts, sums
        (rounds, size) in float32, on disk: the common models, and the sums of the updates.
    """

    rounds: list[int]
    A: Array
    counts: Array
    starts: NDArray[np.float32]
    sums: NDArray[np.float32]


_LIMITS = ("posterior_low", "posterior_high")
_SHOWN = ("plus_sample", "minus_sample")


class _Facts(TypedDict):
    clients: list[Name]
    rounds: list[Number]
    windows: list[Number]
    methods: list[Name]
    questions: list[Name]
    mode: Name
    targets: Name
    sizes: list[Number]
    shown: list[Number]
    unseen: Annotated[int, Field(ge=1, le=2**53)]


@dataclass(frozen=True)
class Prolin(Attack):
    """PROLIN with its comparisons REG, OLS and BASELINE, and the posterior of its model.

    Scores hold, with q questions (properties; for membership one for each target record), w windows ("after r rounds")
    and the methods of :data:`METHODS`: ``decisions`` and ``scores`` (methods, q, w, clients), scores higher for
    likelier positives, NaN and no decision for clients that had not taken part yet; ``posterior``, ``posterior_low``,
    ``posterior_high`` (q, clients) with 95 % limits over resampled rounds; ``overlap``, ``accuracy``, ``checked`` (q,
    rounds), ``checked`` NaN where exact shadow updates were not made; ``sums`` (q, rounds), ``plus_mean``, ``plus_sd``,
    ``minus_mean``, ``minus_sd`` (q, rounds, sizes) of the features; ``plus_sample``, ``minus_sample`` (q, shown, k) of
    the rounds ``shown``; ``participation`` (rounds, clients). Facts: ``clients``, ``rounds``, ``windows``, ``methods``,
    ``property``, ``mode``, ``targets``, ``questions``, ``unknown`` (clients that never took part), ``sizes``,
    ``share``, ``lasting`` (per question), and ``unseen``: how many clients' worth of auxiliary records the detectors
    did not see.
    """

    name: ClassVar[str] = "prolin"
    title: ClassVar[str] = "Property inference against secure aggregation"
    paper: ClassVar[str] = "Kerkouche et al. 2023, PROLIN, Sections 5 and 6"
    needs: ClassVar[Needs] = Needs(
        views=("aggregate",), protocols=("fedavg",), knowledge=("model", "auxiliary", "training", "property")
    )
    form: ClassVar[Form] = Form(
        TypeAdapter(_Facts),
        {
            "decisions": ArrayForm("b", ("methods", "questions", "windows", "clients")),
            "scores": ArrayForm("f", ("methods", "questions", "windows", "clients"), nan=True),
            **{
                name: ArrayForm("f", ("questions", "clients"), low=0, high=1, nan=True)
                for name in ("posterior", *_LIMITS)
            },
            **{name: ArrayForm("f", ("questions", "rounds"), low=0, high=1) for name in ("overlap", "accuracy")},
            "checked": ArrayForm("f", ("questions", "rounds"), low=0, high=1, nan=True),
            "sums": ArrayForm("f", ("questions", "rounds")),
            "participation": ArrayForm("f", ("rounds", "clients"), low=0),
            **{name: ArrayForm("f", ("questions", "rounds", "sizes")) for name in ("plus_mean", "minus_mean")},
            **{name: ArrayForm("f", ("questions", "rounds", "sizes"), low=0) for name in ("plus_sd", "minus_sd")},
            **{name: ArrayForm("f", ("questions", "shown", name)) for name in _SHOWN},
        },
        {name: name for name in ("methods", "questions", "windows", "clients", "rounds", "sizes", "shown")},
    )
    knows: ClassVar[tuple[str, ...]] = (
        "the model's architecture and loss, and how clients train (epochs, batch size, learning rate)",
        "auxiliary records of about the clients' distribution, none of them a client's",
        "the property that is asked for (for membership: the target record), and about how many clients have it",
    )
    shadows: Mode | None = options.choice(
        None, "linear (from per-record gradients, the default where the model allows it) or exact", MODES
    )
    workers: int = options.whole(0, "processes; 0 for as many as there are cores and memory for", least=0)
    features: int = options.whole(1, "how many linear features a round has; 1 as in the paper's experiments", least=1)
    ray: str = options.text("", "address of a Ray cluster that does the work, or auto", reaches_out=True)

    def _run(self, record: Record, knowledge: Knowledge, seed: int, device: str, progress: Progress) -> Scores:
        model, auxiliary, training, asked = knowledge.model, knowledge.auxiliary, knowledge.training, knowledge.property
        if model is None or auxiliary is None or training is None or asked is None:
            raise AssertionError("checked by run")
        architecture, asked = model.build(), given(asked)
        check_model(architecture, record)
        notes: list[str] = []
        mode = self._mode(can_be_linear(model, auxiliary.x[0]))
        place = str(pick_device(device))
        properties = questions(asked, auxiliary, knowledge.targets)
        with TemporaryDirectory() as folder:
            sums = _read_sums(record, dict(architecture.named_parameters()), Path(folder), notes)
            sizes, group = _groups(sums.counts)
            setting = Setting(model, training, auxiliary, (), mode, sizes, seed, place, self.features)
            shown = np.unique(np.linspace(0, len(sums.rounds) - 1, _SHOWN_ROUNDS).round().astype(int)).tolist()
            items = [
                (number, sums.starts[row], _shares(group[row], sums.A[row] > 0, len(sizes)), row in shown)
                for row, number in enumerate(sums.rounds)
            ]
            work = partial(_detect, setting, asked, knowledge)
            # twice the gradients, or thrice the updates with and without, in float32
            memory = 4.0 * sums.starts.shape[1] * len(auxiliary) * (2 if mode == "linear" else 6)
            workers = 1 if place != "cpu" else self.workers
            found: list[list[Detector]] = []
            products = np.zeros((len(properties), len(items), len(items)))
            many = np.zeros((*products.shape, self.features if self.features > 1 else 0))
            for row, detectors in enumerate(fan_out(work, items, workers=workers, memory=memory, ray=self.ray)):
                for question, detector in enumerate(detectors):
                    products[question, row] = sums.sums @ detector.weights
                    if detector.many is not None:
                        many[question, row] = sums.sums @ detector.many.weights.T
                found.append([item.without_weights() for item in detectors])
                progress(row + 1, len(items) + len(properties))
        evidence = [
            _Evidence.of([row[question] for row in found], products[question], many[question], sums.A, group)
            for question in range(len(properties))
        ]
        windows = _windows(len(items))
        decided = []
        for question, item in enumerate(evidence):
            generator = np.random.default_rng((seed, question))
            decided.append(_decide(item, windows, knowledge.positive_share, generator))
            progress(len(items) + question + 1, len(items) + len(properties))
        unknown = [node for node, weights in zip(record.nodes, sums.A.T, strict=True) if not weights.any()]
        notes += _warnings(sums.A, unknown)
        silent = [
            number for number, row in zip(sums.rounds, found, strict=True) if not any(item.spread for item in row)
        ]
        if silent:
            notes.append(
                f"detectors of {len(silent)} rounds see no difference and say nothing: {', '.join(map(str, silent))}"
            )
        per_question = {
            name: np.array([[getattr(item, name) for item in detectors] for detectors in zip(*found, strict=True)])
            for name in ("plus_mean", "plus_sd", "minus_mean", "minus_sd", "accuracy", *_SHOWN)
        }
        checked = [[item.checked for item in detectors] for detectors in zip(*found, strict=True)]
        return Scores(
            attack=self.name,
            arrays=per_question
            | {name: per_question[name][:, shown] for name in _SHOWN}
            | {"checked": np.array(checked, dtype=np.float64)}
            | {name: np.stack([item[name] for item in decided]) for name in ("posterior", *_LIMITS)}
            | {name: np.stack([item[name] for item in decided], axis=1) for name in ("decisions", "scores")}
            | {
                "overlap": np.stack([1 - item.v for item in evidence]),
                "sums": np.stack([item.G for item in evidence]),
                "participation": sums.A,
            },
            facts={
                "clients": list(record.nodes),
                "rounds": sums.rounds,
                "windows": windows,
                "methods": list(METHODS),
                "property": asked,
                "questions": [item.name for item in properties],
                "mode": mode,
                "targets": knowledge.targets.fingerprint if knowledge.targets is not None else "",
                "unknown": unknown,
                "sizes": list(sizes),
                "shown": [sums.rounds[row] for row in shown],
                "share": knowledge.positive_share,
                "unseen": max(1, len(divide(len(auxiliary), seed)["test"]) // max(sizes)),
                "lasting": [float(max(item.lasting)) for item in evidence],
            },
            notes=tuple(notes),
        )

    def _mode(self, separable: bool) -> Mode:
        if self.shadows == "linear" and not separable:
            raise NeedsError(
                "attack prolin: with batch norm a batch's gradient is no mean of its records' gradients; take --option "
                "shadows=exact"
            )
        return self.shadows or ("linear" if separable else "exact")


def _detect(
    setting: Setting, asked: str, knowledge: Knowledge, item: tuple[int, NDArray[np.float32], Array, bool]
) -> list[Detector]:
    """Fit one round's detectors, in whatever process; the questions hold functions, which do not travel."""
    number, start, shares, check = item
    asked_of = questions(asked, setting.auxiliary, knowledge.targets)
    return fit_detectors(replace(setting, questions=asked_of), start, shares, number, check=check)


@dataclass(frozen=True)
class _Evidence:
    """What one question's detectors make of the sums.

    Attributes
    ----------
    A, G, v, densities
        As in :mod:`fedattack.threats.property.disaggregation`.
    products, offsets
        Of the detectors with all rounds' sums, for BASELINE.
    lasting
        Which share of a feature's variance lasts over the rounds, with and without the property.
    many, many_products
        With t > 1, the detectors of all features, and their products with all rounds' sums (rounds, rounds, t).
    """

    A: Array
    G: Array
    v: Array
    densities: Densities
    products: Array
    offsets: Array
    lasting: tuple[float, float]
    many: list[FeatureDetector]
    many_products: Array

    @classmethod
    def of(
        cls, detectors: Sequence[Detector], products: Array, many: Array, A: Array, group: NDArray[np.int64]
    ) -> "_Evidence":
        rows = np.arange(len(A))[:, None]
        means = {
            name: np.stack([getattr(item, name) for item in detectors])
            for name in ("plus_mean", "plus_sd", "minus_mean", "minus_sd")
        }
        offsets = np.array([item.offset for item in detectors])
        shares = [_shares(group[row], A[row] > 0, means["plus_mean"].shape[1]) for row in range(len(A))]
        pooled = {name: (values * shares).sum(axis=1) for name, values in means.items()}
        return cls(
            A=A,
            # each participant's own constant; the sum has m of them
            G=products.diagonal() + A.sum(axis=1) * offsets,
            v=np.array([1 - overlap(*values) for values in zip(*pooled.values(), strict=True)]),
            # the features of a detector that saw no difference at all are constant
            densities=Densities(
                **{
                    name: np.maximum(values[rows, group], _SILENCE) if name.endswith("sd") else values[rows, group]
                    for name, values in means.items()
                }
            ),
            products=products,
            offsets=offsets,
            lasting=(
                _lasting([item.plus_sample for item in detectors]),
                _lasting([item.minus_sample for item in detectors]),
            ),
            many=[item.many for item in detectors if item.many is not None],
            many_products=many,
        )


def _decide(
    evidence: _Evidence, windows: Sequence[int], share: float, generator: np.random.Generator
) -> dict[str, Array]:
    """Decide after each window by each method; see :class:`Prolin` for the arrays."""
    A, G, clients = evidence.A, evidence.G, evidence.A.shape[1]
    scores = np.full((len(METHODS), len(windows), clients), np.nan)
    decisions = np.zeros(scores.shape, dtype=bool)
    # each window is a problem of its own for the sampler, and so is each resampling of all rounds
    prefixes = np.array([[float(row < window) for row in range(len(A))] for window in windows])
    resampled = generator.multinomial(len(A), np.full(len(A), 1 / len(A)), size=_RESAMPLED).astype(np.float64)
    chances = posterior(
        A, G, evidence.densities, share, np.concatenate([prefixes, resampled]), evidence.lasting, generator=generator
    )
    for place, window in enumerate(windows):
        seen = np.flatnonzero(A[:window].any(axis=0))
        part, sums, v = A[:window, seen], G[:window], evidence.v[:window]
        chance = np.clip(chances[place, seen], 1e-300, 1 - 1e-16)
        found = {"posterior": (np.log(chance) - np.log1p(-chance), chance > 0.5)}
        if evidence.many:
            products = evidence.many_products[:window, :window]
            found |= decide_by_features(part, products, v, evidence.many[:window])
        else:
            found |= _by_one_feature(evidence, part, sums, v, window, seen)
        for method, name in enumerate(METHODS):
            scores[method, place, seen], decisions[method, place, seen] = found[name]
    low, high = np.quantile(chances[len(windows) :], (0.025, 0.975), axis=0)
    last = chances[len(windows) - 1]
    return {
        "decisions": decisions,
        "scores": scores,
        "posterior": last,
        "posterior_low": np.minimum(low, last),
        "posterior_high": np.maximum(high, last),
    }


def _by_one_feature(
    evidence: _Evidence, A: Array, G: Array, v: Array, window: int, seen: NDArray[np.int64]
) -> dict[str, tuple[Array, NDArray[np.bool_]]]:
    densities = evidence.densities.of(window, seen)
    # regressions with equal weights must not take the silence of a detector for an answer
    loud = (densities.plus_sd > _SILENCE).all(axis=1)
    # The detector's threshold lies between the means of all sizes together. A client's own lies between those of its
    # size, and that is what its features are compared with.
    middle = (densities.plus_mean + densities.minus_mean) / 2
    above = G - (A * middle).sum(axis=1)
    expected, ordinary = weighted_ridge(A, above, v), least_squares(A[loud], above[loud])
    usual = np.average(middle, axis=0, weights=A > 0)
    joint = Joint(A, G, v, densities, expected + usual)
    tau, _ = joint.solve(expected > 0)
    products = evidence.products[:window, :window][np.ix_(loud, loud)]
    votes = baseline_votes(A[loud], products, evidence.offsets[:window, None][loud] - middle[loud])
    return {
        "PROLIN": (joint.gains(tau), tau),
        "REG": (expected, expected > 0),
        "OLS": (ordinary, ordinary > 0),
        "BASELINE": (votes, votes > 0.5),
    }


def _lasting(samples: Sequence[Array]) -> float:
    """Mean correlation between rounds of the features of the same clients: what a client's own records contribute."""
    values = np.array(samples)
    spread = values.std(axis=1)
    values = values[spread > 0]
    if len(values) < 2:
        return 0.0
    standard = (values - values.mean(axis=1, keepdims=True)) / spread[spread > 0, None]
    rounds = len(standard)
    together = float((standard.sum(axis=0) ** 2).mean())
    return float(np.clip((together - rounds) / (rounds * (rounds - 1)), 0.0, 0.95))


def _read_sums(record: Record, names: Collection[str], folder: Path, notes: list[str]) -> _Sums:
    """Read the sums and common models as vectors, parameters in the order of ``names``, buffers left out."""
    kind = dict(record.manifest["aggregation"] or {})
    if (kind.get("kind"), kind.get("weight")) != ("mean", "num-examples"):
        raise NeedsError(
            f"attack prolin needs aggregates that are example-weighted means, and {record.path} says that they are "
            f"{kind or 'unknown'}"
        )
    shapes = {parameter.name: parameter.shape for parameter in record.parameters}
    size = sum(int(np.prod(shapes[name])) for name in names)
    place = {node: column for column, node in enumerate(record.nodes)}
    usable = [item for item in record if _usable(item, notes)]
    if not usable:
        raise NeedsError(f"attack prolin needs at least one round with an aggregate, and {record.path} holds none")
    # on disk, so that neither the rounds nor the model's size decide whether the attack fits into memory
    starts, sums = (
        np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=np.float32, shape=(len(usable), size))
        for name in ("starts", "sums")
    )
    A, counts = np.zeros((len(usable), len(place))), np.zeros((len(usable), len(place)))
    for row, item in enumerate(usable):
        common, aggregate = item.common, item.aggregate
        if common is None or aggregate is None:
            raise AssertionError("only usable rounds")
        for seen in item.observations:
            if seen.status == "ok":
                counts[row, place[seen.node]] = seen.num_examples or 0
        present = int((counts[row] > 0).sum())
        A[row] = present * counts[row] / counts[row].sum()
        before = np.concatenate([common[name].reshape(-1).astype(np.float64) for name in names])
        after = np.concatenate([aggregate[name].reshape(-1).astype(np.float64) for name in names])
        starts[row], sums[row] = before, present * (after - before)
    return _Sums([item.number for item in usable], A, counts, starts, sums)


def _usable(item: Round, notes: list[str]) -> bool:
    """Whether a round's sum can be used; says why not."""
    counts = [seen.num_examples for seen in item.observations if seen.status == "ok"]
    reason = None
    if item.aggregate is None or not counts:
        reason = "there is no aggregate"
    elif item.common is None:
        reason = "the model that was sent is unknown"
    elif not _alike(item.common, item.aggregate):
        reason = "the aggregate has other arrays than the model that was sent"
    elif any(count is None for count in counts):
        reason = "a participant's example count is unknown, and with it its weight"
    elif not all(count is not None and np.isfinite(count) and count >= 1 for count in counts):
        reason = f"example counts are {', '.join(map(str, counts))}, and weights must be 1 or more"
    elif not all(_is_finite(array) for array in (*item.aggregate.values(), *item.common.values())):
        reason = "the aggregate is not finite, or the model that was sent is not"
    if reason is not None:
        notes.append(f"round {item.number} left out: {reason}")
    return reason is None


def _alike(common: Arrays, aggregate: Arrays) -> bool:
    """Whether the aggregate has every array of the model, of the same shape and of numbers."""
    return all(
        name in aggregate and aggregate[name].shape == array.shape and aggregate[name].dtype.kind in "biuf"
        for name, array in common.items()
    )


def _is_finite(array: NDArray[Any]) -> bool:
    """Whether all entries are numbers that single precision can hold."""
    return float(np.abs(array).max(initial=0)) < _LARGEST


def _groups(counts: Array) -> tuple[tuple[int, ...], NDArray[np.int64]]:
    """Put clients of similar sizes together: a few sizes (groups,), and each entry's group (rounds, clients)."""
    present = counts[counts > 0]
    distinct = np.unique(present)
    if len(distinct) > _MOST_SIZES:
        distinct = np.unique(np.quantile(present, (np.arange(_MOST_SIZES) + 0.5) / _MOST_SIZES).round())
    group = np.abs(counts[..., None] - distinct).argmin(axis=-1)
    return tuple(int(size) for size in distinct), group


def _shares(group: NDArray[np.int64], present: NDArray[np.bool_], groups: int) -> Array:
    """How a round's participants are distributed over the sizes (groups,)."""
    return np.asarray(np.bincount(group[present], minlength=groups) / present.sum())


def _windows(rounds: int) -> list[int]:
    return [*range(WINDOW, rounds, WINDOW), rounds]


def _warnings(A: Array, unknown: Sequence[str]) -> list[str]:
    rounds, clients = A.shape
    notes = []
    if unknown:
        notes.append(f"{len(unknown)} clients never took part and are unknown, not negative: {', '.join(unknown)}")
    if rounds < clients:
        notes.append(
            f"{rounds} rounds are fewer than {clients} clients: the sums leave features undetermined, and so intervals "
            "are wide"
        )
    rank = int(np.linalg.matrix_rank(A))
    if rank < clients - len(unknown):
        notes.append(
            f"the participation matrix has rank {rank} for {clients - len(unknown)} clients that took part: clients "
            "that always appear together cannot be told apart"
        )
    return notes
