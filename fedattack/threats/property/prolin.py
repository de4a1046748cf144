"""PROLIN: which clients have a property, from sums alone.

Kerkouche et al. 2023, "Client-specific property inference against secure aggregation in federated learning". A sum over
a changing group of clients is a linear equation in each client's features. Four steps solve these equations:

1. a detector for each round, from auxiliary data;
2. the densities of its feature;
3. a weighted ridge regression;
4. a joint likelihood.
"""

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedattack.attacks._fan_out import fan_out
from fedattack.attacks.base import Attack, Seen
from fedattack.attacks.knowledge import Knowledge, ModelKnowledge, Targets
from fedattack.attacks.matching import check_model, flatten_arrays
from fedattack.attacks.replies import MOST_EXAMPLES, check_steps
from fedattack.base.errors import NeedsError, short
from fedattack.base.files import array_on_disk
from fedattack.base.machine import shown_size
from fedattack.base.stored import Axes, Finite, Name, Number, Share
from fedattack.base.structured import padded_alike
from fedattack.learning import LocalSGD, pick_device
from fedattack.learning.importing import trust_given
from fedattack.learning.torch_utils import has_dropout
from fedattack.record import Record, Round
from fedattack.record.format import Arrays
from fedattack.threats.property.detectors import Detector, can_be_linear, fit_detectors
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
from fedattack.threats.property.memory import STEPS, bytes_needed, sketch_width, steps_within
from fedattack.threats.property.options import Mode, ProlinOptions
from fedattack.threats.property.properties import questions
from fedattack.threats.property.setting import DetectorSetting, divide

METHODS = ("PROLIN", "REG", "OLS", "BASELINE", "posterior")
"""The paper's four, and the exact posterior under PROLIN's model."""

WINDOW = 10
"""Decisions are made after every tenth round, as in the paper's figures."""

_RESAMPLED = 100
# Differences and sums of a few of these must not overflow.
_LARGEST = float(np.finfo(np.float32).max) / 1e4
_MOST_SIZES = 4
# Steps of a client that are imitated at most: detectors take those of many clients, in every round.
_MOST_STEPS = 2_000
# Questions at most, each of which has detectors of its own: of membership there is one for each target.
_MOST_QUESTIONS = 5_000
_SHOWN_ROUNDS = 4
# Share of the memory that what is read from disk may take.
_ON_DISK = 0.0625
# Standard deviation that stands for none.
_SILENCE = 1e-6

_MOMENTS = ("plus_mean", "plus_sd", "minus_mean", "minus_sd")
_LIMITS = ("posterior_low", "posterior_high")
_SAMPLES = ("plus_sample", "minus_sample")

_ANSWERS = Axes("methods", "questions", "windows", "clients")
_CHANCES = Axes("questions", "clients", low=0, high=1, nan=True)


@dataclass(frozen=True)
class _Sums:
    """What the record gives: who took part with which weight, the common models and the sums.

    Attributes
    ----------
    rounds
        Numbers of the rounds that had an aggregate.
    A
        (rounds, clients): weights of the clients in a round's sum. With m participants the weight of client i is
        m·n_i/Σn_j, which is 1 where all have equally many examples.
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


@dataclass(frozen=True, eq=False)
class AnsweredQuestions:
    """Which clients have a property, by every method.

    A question is a property; for membership there is one for each target record. A window is "after r rounds".

    Attributes
    ----------
    clients, rounds
        Nodes of the record, and numbers of the rounds that were used.
    windows
        After how many of these rounds clients are judged.
    methods, questions
        Names of the methods, and of the q questions.
    property, targets
        What was asked for, and the fingerprint of the targets, empty without any.
    mode
        How shadow updates were made.
    unknown
        The clients that never took part.
    sizes, shown
        The sizes of clients that are told apart, and the numbers of the rounds of which samples are shown.
    share
        Which share of the clients has the property, as the attacker assumes.
    unseen
        How many clients' worth of auxiliary records the detectors did not see.
    lasting
        By question, which share of the features' variance lasts.
    decisions, scores
        (methods, q, windows, clients): higher scores for likelier positives. A client that had not taken part yet has
        NaN and no decision.
    posterior, posterior_low, posterior_high
        (q, clients): after all rounds, with 95 % limits over resampled rounds.
    overlap, accuracy, checked
        (q, rounds): of the detectors' densities, on unseen auxiliary records, and on exact shadow updates, where that
        is NaN if it was not measured.
    sums
        (q, rounds): of the features.
    participation
        (rounds, clients): the weight of each client in the sum.
    plus_mean, plus_sd, minus_mean, minus_sd
        (q, rounds, sizes): of the features of clients with and without the property.
    plus_sample, minus_sample
        (q, shown, k): features in the rounds that are shown.
    """

    clients: tuple[Name, ...]
    rounds: tuple[Number, ...]
    windows: tuple[Number, ...]
    methods: tuple[Name, ...]
    property: Name
    questions: tuple[Name, ...]
    mode: Mode
    targets: Name
    unknown: tuple[Name, ...]
    sizes: tuple[Number, ...]
    shown: tuple[Number, ...]
    share: Share
    unseen: Annotated[int, Field(ge=1, le=2**53)]
    lasting: tuple[Finite, ...]
    decisions: Annotated[NDArray[np.bool_], _ANSWERS]
    scores: Annotated[Array, Axes(*_ANSWERS.names, nan=True)]
    posterior: Annotated[Array, _CHANCES]
    posterior_low: Annotated[Array, _CHANCES]
    posterior_high: Annotated[Array, _CHANCES]
    overlap: Annotated[Array, Axes("questions", "rounds", low=0, high=1)]
    accuracy: Annotated[Array, Axes("questions", "rounds", low=0, high=1)]
    checked: Annotated[Array, Axes("questions", "rounds", low=0, high=1, nan=True)]
    sums: Annotated[Array, Axes("questions", "rounds")]
    participation: Annotated[Array, Axes("rounds", "clients", low=0)]
    plus_mean: Annotated[Array, Axes("questions", "rounds", "sizes")]
    plus_sd: Annotated[Array, Axes("questions", "rounds", "sizes", low=0)]
    minus_mean: Annotated[Array, Axes("questions", "rounds", "sizes")]
    minus_sd: Annotated[Array, Axes("questions", "rounds", "sizes", low=0)]
    plus_sample: Annotated[Array, Axes("questions", "shown", "plus_sample")]
    minus_sample: Annotated[Array, Axes("questions", "shown", "minus_sample")]


class Prolin(Attack):
    """PROLIN with its comparisons REG, OLS and BASELINE, and the posterior of its model; see :data:`METHODS`."""

    options = ProlinOptions()
    found = AnsweredQuestions
    knows: ClassVar[tuple[str, ...]] = (
        "the model's architecture and loss, and how clients train (epochs, batch size, learning rate)",
        "auxiliary records of about the clients' distribution, none of them a client's",
        "the property that is asked for (for membership: the target record), and about how many clients have it",
    )

    def attack(self, seen: Seen) -> AnsweredQuestions:
        """Fit the detectors of all rounds, and answer all questions by every method."""
        record, knowledge, seed = seen.record, seen.knowledge, seen.seed
        model, auxiliary, training = seen.model, seen.auxiliary, seen.training
        if knowledge.property is None:
            raise AssertionError("checked by run")
        self._refuse_canaries(record, knowledge)
        asked, about = trust_given(knowledge.property), knowledge.asked()
        knowledge, auxiliary = self._pad_alike(knowledge, auxiliary)
        architecture = model.build()
        check_model(architecture, record)
        mode = self._mode(model, auxiliary, training)
        properties = questions(asked, auxiliary, knowledge.targets)
        if len(properties) > _MOST_QUESTIONS:
            raise NeedsError(
                f"attack {self.name} asks one question for each of {len(properties):,} targets; at most "
                f"{_MOST_QUESTIONS:,} are asked: give it fewer targets"
            )
        with TemporaryDirectory() as folder:
            usable = _usable_rounds(record, seen.notes)
            parameters = {name: value for name, value in architecture.named_parameters() if value.numel()}
            sums = _read_sums(usable, record.nodes, parameters, Path(folder))
            rounds = len(sums.rounds)
            steps = rounds + len(properties)
            sizes, group = _groups(sums.counts)
            check_steps(self.name, knowledge, min(max(sizes), len(auxiliary)), _MOST_STEPS)
            shares = _shares(group, sums.counts > 0, len(sizes))
            shown = np.unique(np.linspace(0, rounds - 1, _SHOWN_ROUNDS).round().astype(int)).tolist()
            torch_device = str(pick_device(seen.device))
            setting = DetectorSetting(
                model, training, auxiliary, properties, mode, sizes, seed, torch_device, self.options.memory
            )
            needed = bytes_needed(setting, sums.starts.shape[1], random=has_dropout(architecture))
            tasks = [_RoundTask(sums.rounds[row], sums.starts[row], shares[row], row in shown) for row in range(rounds)]
            fitted = _Fitted.empty(len(properties), rounds)
            for row, detectors in enumerate(self._fit(setting, asked, knowledge, tasks, needed)):
                fitted.add(detectors, partial(_products, sums.sums, memory=self.options.memory))
                _let_go(sums.starts)
                seen.progress(row + 1, steps)
        windows = _windows(rounds)
        evidence, answers = [], []
        for question in range(len(properties)):
            of_question = _QuestionEvidence.of(fitted, question, sums.A, group, shares)
            evidence.append(of_question)
            generator = np.random.default_rng((seed, question))
            answers.append(_decide(of_question, windows, knowledge.positive_share, generator))
            seen.progress(rounds + question + 1, steps)
        unknown = list(compress(record.nodes, ~np.any(sums.A, axis=0)))
        seen.notes.extend(_warnings(sums.A, unknown))
        seen.notes.extend(self._note_detectors(setting, sums, fitted))
        return AnsweredQuestions(
            clients=tuple(record.nodes),
            rounds=tuple(sums.rounds),
            windows=tuple(windows),
            methods=METHODS,
            property=asked,
            questions=tuple(question.name for question in properties),
            mode=mode,
            targets=about,
            unknown=tuple(unknown),
            sizes=sizes,
            shown=tuple(np.array(sums.rounds)[shown].tolist()),
            share=knowledge.positive_share,
            unseen=_count_unseen(auxiliary, seed, sizes),
            lasting=tuple(float(max(of_question.lasting)) for of_question in evidence),
            participation=sums.A,
            **_stack_arrays(fitted, evidence, answers, shown),
        )

    def _refuse_canaries(self, record: Record, knowledge: Knowledge) -> None:
        if knowledge.canaries:
            raise NeedsError(
                f"attack {self.name} separates sums by client, and those of {record.path} also contain the "
                f"replies of {len(knowledge.canaries)} canaries; take the record of a run without canaries"
            )

    def _pad_alike(self, knowledge: Knowledge, auxiliary: Targets) -> tuple[Knowledge, Targets]:
        """Pad targets and auxiliary records to one length, where examples are sequences."""
        about = knowledge.targets
        if about is None:
            return knowledge, auxiliary
        try:
            x, own = padded_alike(about.x, auxiliary.x)
        except ValueError as cause:
            raise NeedsError(
                f"attack {self.name}: targets and auxiliary records: {short(str(cause), 200)}; give both as the "
                "model takes them"
            ) from None
        auxiliary = replace(auxiliary, x=own)
        return replace(knowledge, targets=replace(about, x=x), auxiliary=auxiliary), auxiliary

    def _fit(
        self, setting: DetectorSetting, asked: str, knowledge: Knowledge, tasks: Sequence["_RoundTask"], needed: float
    ) -> Iterator[list[Detector]]:
        """Fit the detectors of each round; so many bytes are needed meanwhile."""
        # Rounds that do not fit into the memory take all of it. So a second process is only for who asks for it.
        workers = self.options.workers or int(needed > self.options.memory)
        memory = min(needed, self.options.memory)
        work = partial(_detect, replace(setting, questions=()), asked, knowledge)
        return fan_out(work, tasks, workers=workers, memory=memory, device=setting.device)

    def _note_detectors(self, setting: DetectorSetting, sums: _Sums, fitted: "_Fitted") -> list[str]:
        """Note what detectors were fitted on, and which of them say nothing."""
        notes = []
        memory, size = self.options.memory, sums.starts.shape[1]
        width = sketch_width(setting, size)
        steps = STEPS
        if width:
            notes.append(
                f"detectors were fitted on sketches: random projections of updates of {size:,} numbers to {width:,}, "
                f"because updates of {shown_size(4 * size)} each do not fit into {shown_size(memory)}"
            )
        else:
            steps = steps_within(memory, size)
        if steps < STEPS:
            notes.append(
                f"detectors are searched for in {steps} dimensions instead of {STEPS}, which do not fit into "
                f"{shown_size(memory)}; more memory may find more"
            )
        silent = list(compress(sums.rounds, ~np.any(fitted.stack_attributes("spread"), axis=0)))
        if silent:
            notes.append(
                f"detectors of {len(silent)} rounds see no difference and say nothing: {', '.join(map(str, silent))}"
            )
        return notes

    def _mode(self, model: ModelKnowledge, auxiliary: Targets, training: LocalSGD) -> Mode:
        why = ""
        if training.optimizer != "SGD":
            why = f"a step of {training.optimizer} is not a multiple of a gradient"
        elif not can_be_linear(model, auxiliary.x[0]):
            why = "with batch norm a batch's gradient is not the mean of its examples' gradients"
        if self.options.shadows == "linear" and why:
            raise NeedsError(f"attack prolin: {why}; take --option shadows=exact")
        if self.options.shadows is None:
            return "exact" if why else "linear"
        return self.options.shadows


def _count_unseen(auxiliary: Targets, seed: int, sizes: Sequence[int]) -> int:
    """Count how many clients' worth of auxiliary records the detectors did not see."""
    return max(1, len(divide(len(auxiliary), seed)["test"]) // max(sizes))


@dataclass(frozen=True)
class _RoundTask:
    """One round to fit detectors for, with the parameters of :func:`fit_detectors`."""

    number: int
    start: NDArray[np.float32]
    shares: Array
    check: bool


def _detect(setting: DetectorSetting, asked: str, knowledge: Knowledge, task: _RoundTask) -> list[Detector]:
    """Fit one round's detectors, in whatever process; the questions hold functions, which do not travel."""
    properties = questions(asked, setting.auxiliary, knowledge.targets)
    setting = replace(setting, questions=properties)
    return fit_detectors(setting, task.start, task.shares, task.number, check=task.check)


@dataclass(frozen=True)
class _Fitted:
    """The detectors of the rounds so far by question, without weights, and their products with all rounds' sums.

    ``products`` is (questions, rounds, rounds).
    """

    detectors: list[list[Detector]]
    products: Array

    @classmethod
    def empty(cls, properties: int, rounds: int) -> "_Fitted":
        return cls([[] for _ in range(properties)], np.zeros((properties, rounds, rounds)))

    def add(self, detectors: Sequence[Detector], products: Callable[[NDArray[np.float32]], Array]) -> None:
        """Add the next round's detectors; their weights are let go, which grow with the model.

        ``products`` gives those of all rounds' sums with weights (size,): (rounds,).
        """
        row = len(self.detectors[0])
        for question, detector in enumerate(detectors):
            self.products[question, row] = products(detector.weights)
            self.detectors[question].append(detector.without_weights())

    def stack_attributes(self, name: str) -> Array:
        """Stack an attribute of all detectors, (questions, rounds, …); ``None`` becomes NaN."""
        return np.stack([_stack_attribute(detectors, name) for detectors in self.detectors])


def _stack_attribute(detectors: Sequence[Detector], name: str) -> Array:
    """Stack an attribute of detectors, (rounds, …)."""
    return np.array([getattr(detector, name) for detector in detectors], dtype=np.float64)


@dataclass(frozen=True)
class _QuestionEvidence:
    """What one question's detectors make of the sums.

    Attributes
    ----------
    A, G, v, densities
        As in :mod:`fedattack.threats.property.disaggregation`.
    products, offsets
        Of the detectors with all rounds' sums, for BASELINE.
    lasting
        Which share of a feature's variance lasts over the rounds, with and without the property.
    """

    A: Array
    G: Array
    v: Array
    densities: Densities
    products: Array
    offsets: Array
    lasting: tuple[float, float]

    @classmethod
    def of(
        cls, fitted: _Fitted, question: int, A: Array, group: NDArray[np.int64], shares: Array
    ) -> "_QuestionEvidence":
        """Look the features of clients up by their group; ``shares`` (rounds, groups) pool them over a round."""
        detectors = fitted.detectors[question]
        products = fitted.products[question]
        moments = np.stack([_stack_attribute(detectors, name) for name in _MOMENTS])
        overlaps = np.array(list(map(overlap, *(moments * shares).sum(axis=2))))
        rows = np.arange(len(A))[:, None]
        plus_mean, plus_sd, minus_mean, minus_sd = moments[:, rows, group]
        offsets = _stack_attribute(detectors, "offset")
        return cls(
            A=A,
            # Each participant's own constant; the sum of m participants has m of them.
            G=products.diagonal() + A.sum(axis=1) * offsets,
            v=1 - overlaps,
            # The features of a detector that saw no difference at all are constant.
            densities=Densities(
                plus_mean=plus_mean,
                plus_sd=np.maximum(plus_sd, _SILENCE),
                minus_mean=minus_mean,
                minus_sd=np.maximum(minus_sd, _SILENCE),
            ),
            products=products,
            offsets=offsets,
            lasting=(
                _lasting(_stack_attribute(detectors, "plus_sample")),
                _lasting(_stack_attribute(detectors, "minus_sample")),
            ),
        )


def _stack_arrays(
    fitted: _Fitted, evidence: Sequence[_QuestionEvidence], answers: Sequence[dict[str, Array]], shown: list[int]
) -> dict[str, NDArray[Any]]:
    """Put the arrays of all questions together; see :class:`AnsweredQuestions`."""
    arrays: dict[str, NDArray[Any]] = {}
    for name in (*_MOMENTS, "accuracy", *_SAMPLES, "checked"):
        arrays[name] = fitted.stack_attributes(name)
    for name in _SAMPLES:
        arrays[name] = arrays[name][:, shown]
    for name in ("posterior", *_LIMITS):
        arrays[name] = np.stack([answer[name] for answer in answers])
    for name in ("decisions", "scores"):
        arrays[name] = np.stack([answer[name] for answer in answers], axis=1)
    arrays["overlap"] = np.stack([1 - of_question.v for of_question in evidence])
    arrays["sums"] = np.stack([of_question.G for of_question in evidence])
    return arrays


def _decide(
    evidence: _QuestionEvidence, windows: Sequence[int], share: float, generator: np.random.Generator
) -> dict[str, Array]:
    """Decide after each window by each method; see :class:`AnsweredQuestions` for the arrays."""
    A, G, clients = evidence.A, evidence.G, evidence.A.shape[1]
    scores = np.full((len(METHODS), len(windows), clients), np.nan)
    decisions = np.zeros(scores.shape, dtype=bool)
    # Each window is a problem of its own for the sampler, and so is each resampling of all rounds.
    prefixes = (np.arange(len(A)) < np.array(windows)[:, None]).astype(np.float64)
    resampled = generator.multinomial(len(A), np.full(len(A), 1 / len(A)), size=_RESAMPLED).astype(np.float64)
    chances = posterior(
        A, G, evidence.densities, share, np.concatenate([prefixes, resampled]), evidence.lasting, generator=generator
    )
    for index, window in enumerate(windows):
        present = np.flatnonzero(A[:window].any(axis=0))
        participation, sums, v = A[:window, present], G[:window], evidence.v[:window]
        chance = np.clip(chances[index, present], 1e-300, 1 - 1e-16)
        answers = {"posterior": (np.log(chance) - np.log1p(-chance), chance > 0.5)}
        answers |= _by_methods(evidence, participation, sums, v, window, present)
        for method, name in enumerate(METHODS):
            scores[method, index, present], decisions[method, index, present] = answers[name]
    low, high = np.quantile(chances[len(windows) :], (0.025, 0.975), axis=0)
    last = chances[len(windows) - 1]
    return {
        "decisions": decisions,
        "scores": scores,
        "posterior": last,
        "posterior_low": np.minimum(low, last),
        "posterior_high": np.maximum(high, last),
    }


def _by_methods(
    evidence: _QuestionEvidence, A: Array, G: Array, v: Array, window: int, present: NDArray[np.int64]
) -> dict[str, tuple[Array, NDArray[np.bool_]]]:
    densities = evidence.densities.of(window, present)
    # Regressions with equal weights must not take the silence of a detector for an answer.
    loud = (densities.plus_sd > _SILENCE).all(axis=1)
    # The detector's threshold lies between the means of all sizes together. A client's own lies between those of its
    # size, and its features are compared with that.
    middle = (densities.plus_mean + densities.minus_mean) / 2
    above = G - (A * middle).sum(axis=1)
    expected = weighted_ridge(A, above, v)
    ordinary = least_squares(A[loud], above[loud])
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


def _lasting(values: Array) -> float:
    """Return what a client's own examples contribute: the mean correlation of its features between rounds.

    ``values`` (rounds, k) are features of the same clients.
    """
    spread = values.std(axis=1)
    values = values[spread > 0]
    if len(values) < 2:
        return 0.0
    standard = (values - values.mean(axis=1, keepdims=True)) / spread[spread > 0, None]
    rounds = len(standard)
    # The squared sum of standardised features over R rounds has the mean R + R(R − 1)·r, r being what is asked for.
    together = float((standard.sum(axis=0) ** 2).mean())
    return float(np.clip((together - rounds) / (rounds * (rounds - 1)), 0.0, 0.95))


def _usable_rounds(record: Record, notes: list[str]) -> list[Round]:
    """Return the rounds whose sums can be used; ``notes`` gets a line for each of the others."""
    kind = dict(record.manifest["aggregation"] or {})
    if (kind.get("kind"), kind.get("weight")) != ("mean", "num-examples"):
        raise NeedsError(
            f"attack prolin needs aggregates that are example-weighted means, and {record.path} says that they are "
            f"{kind or 'unknown'}"
        )
    usable = []
    for round_ in record:
        fault = _fault(round_)
        if fault:
            notes.append(f"round {round_.number} left out: {fault}")
        else:
            usable.append(round_)
    if not usable:
        raise NeedsError(f"attack prolin needs at least one round with an aggregate, and {record.path} holds none")
    return usable


def _read_sums(usable: Sequence[Round], nodes: Sequence[str], parameters: Mapping[str, Tensor], folder: Path) -> _Sums:
    """Read the sums and common models as vectors of the ``parameters`` in their order, buffers left out."""
    size = sum(map(Tensor.numel, parameters.values()))
    # On disk, so that neither the rounds nor the model's size decide whether the attack fits into memory.
    starts = np.lib.format.open_memmap(folder / "starts.npy", "w+", np.float32, (len(usable), size))
    # Workers open the file of the common models by its name. What clients sent has none, and goes with this process.
    sums = array_on_disk((len(usable), size), np.float32)
    columns = dict(zip(nodes, range(len(nodes)), strict=True))
    counts = np.zeros((len(usable), len(nodes)))
    A = np.zeros_like(counts)
    numbers = []
    for row, round_ in enumerate(usable):
        for reply in round_.observations:
            if reply.status == "ok":
                counts[row, columns[reply.node]] = reply.num_examples or 0
        present = int((counts[row] > 0).sum())
        A[row] = present * counts[row] / counts[row].sum()
        before = flatten_arrays(round_.common or {}, parameters)
        starts[row] = before
        sums[row] = present * (flatten_arrays(round_.aggregate or {}, parameters) - before)
        _let_go(starts)
        _let_go(sums)
        numbers.append(round_.number)
    return _Sums(numbers, A, counts, starts, sums)


def _products(sums: NDArray[np.float32], weights: NDArray[np.float32], *, memory: float) -> Array:
    """Multiply sums (rounds, size), which lie on disk, with weights (size,)."""
    if sums.nbytes <= _ON_DISK * memory:
        return np.asarray(sums @ weights)
    products = []
    step = max(1, int(_ON_DISK * memory // (4 * sums.shape[1])))
    for first in range(0, len(sums), step):
        products.append(sums[first : first + step] @ weights)
        _let_go(sums)
    return np.concatenate(products)


def _let_go(array: NDArray[np.float32]) -> None:
    """Give back the memory in which the system keeps what was read of an array on disk."""
    mapped = getattr(array, "_mmap", None)
    if mapped is not None and hasattr(mapped, "madvise"):
        mapped.madvise(mmap.MADV_DONTNEED)


def _fault(round_: Round) -> str:
    """Say why a round's sum cannot be used; empty if it can."""
    counts = [reply.num_examples for reply in round_.observations if reply.status == "ok"]
    summed = round_.aggregate
    if summed is None or not counts:
        return "there is no aggregate"
    if round_.common is None:
        return "the model that was sent is unknown"
    if not _fits_first_round(round_, round_.common):
        return "the arrays of the model that was sent differ from those of the first round"
    if not _alike(round_.common, summed):
        return "the arrays of the aggregate differ from those of the model that was sent"
    why = _fault_of_counts(counts)
    if not why and not all(map(_is_finite, (*summed.values(), *round_.common.values()))):
        why = "the aggregate is not finite, or the model that was sent is not"
    return why


def _fits_first_round(round_: Round, common: Arrays) -> bool:
    """Say whether the model that was sent has the arrays of that of the first round."""
    known = {parameter.name: parameter.shape for parameter in round_.parameters}
    return {name: array.shape for name, array in common.items()} == known


def _fault_of_counts(counts: Sequence[float | None]) -> str:
    """Say why participants' example counts are no weights; empty if they are."""
    if None in counts:
        return "a participant's example count is unknown, and with it its weight"
    if not all(map(_is_count, counts)):
        return f"example counts are {short(', '.join(map(str, counts)), 200)}, and weights must be 1 or more"
    most = max(count or 0 for count in counts)
    if most > MOST_EXAMPLES:
        return f"a participant says that it has {most:,.0f} examples, more than {MOST_EXAMPLES:,}, and outweighs all"
    return ""


def _alike(common: Arrays, aggregate: Arrays) -> bool:
    """Say whether the aggregate has every array of the model, of the same shape and of numbers."""
    for name, array in common.items():
        if name not in aggregate or aggregate[name].shape != array.shape:
            return False
        if aggregate[name].dtype.kind not in "biuf":
            return False
    return True


def _is_count(count: float | None) -> bool:
    return count is not None and bool(np.isfinite(count)) and count >= 1


def _is_finite(array: NDArray[Any]) -> bool:
    """Say whether all entries are numbers that single precision can hold."""
    return float(np.abs(array).max(initial=0)) < _LARGEST


def _groups(counts: Array) -> tuple[tuple[int, ...], NDArray[np.int64]]:
    """Put clients of similar sizes together: a few sizes (groups,), and each entry's group (rounds, clients)."""
    present = counts[counts > 0]
    distinct = np.unique(present)
    if len(distinct) > _MOST_SIZES:
        distinct = np.unique(np.quantile(present, (np.arange(_MOST_SIZES) + 0.5) / _MOST_SIZES).round())
    group = np.abs(counts[..., None] - distinct).argmin(axis=-1)
    return tuple(distinct.astype(int).tolist()), group


def _shares(group: NDArray[np.int64], present: NDArray[np.bool_], groups: int) -> Array:
    """How each round's participants are distributed over the sizes (rounds, groups)."""
    members = (group[..., None] == np.arange(groups)) & present[..., None]
    return np.asarray(members.sum(axis=1) / present.sum(axis=1, keepdims=True))


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
    known = clients - len(unknown)
    rank = int(np.linalg.matrix_rank(A))
    if rank < known:
        notes.append(
            f"the participation matrix has rank {rank} for {known} clients that took part: clients that always appear "
            "together cannot be told apart"
        )
    return notes
