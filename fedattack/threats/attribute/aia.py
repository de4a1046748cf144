"""Model-based attribute inference: the attribute that fits a client's own local optimum best.

Driouich et al. 2022, "A novel model-based attribute inference attack in federated learning". The attacker has a
client's records without one attribute, decodes the model that the client would have trained alone, and fills in the
value with the smallest loss under it.
"""

import copy
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from torch import Tensor
from torch.func import functional_call
from typing_extensions import TypedDict

from fedattack.errors import DataError, ModelError, NeedsError
from fedattack.learning import LOSSES, LocalSGD, check_parameters, losses_of_models, per_record_loss, pick_device
from fedattack.learning.importing import given
from fedattack.learning.losses import mean_squared_error
from fedattack.record import Observation, Record
from fedattack.threats.attribute.local_optimum import (
    BinaryAttribute,
    LeastSquares,
    UpdateMap,
    best_attribute,
    decode_least_squares,
    decode_with_public,
    extrapolate,
    fit_update_maps,
)
from fedattack.threats.base import Attack, Needs, Progress, Scores
from fedattack.threats.form import ArrayForm, Finite, Form, Name, Share
from fedattack.threats.knowledge import Knowledge, ModelKnowledge, PartialRecords
from fedattack.threats.matching import check_model

Array = NDArray[np.float64]

METHODS = ("global", "last-returned", "reconstructed", "moments")
"""What fills in the attribute.

The last common model, the client's last reply, or its local optimum; and, for least squares and a binary attribute, all
that the decoded problem holds of the attribute
(:meth:`fedattack.threats.attribute.local_optimum.BinaryAttribute.estimates`).
"""

DOMAIN_LIMIT = 1_000
"""Most values of the attribute that are tried one after another."""

MEMORY = 2**30
"""Bytes that the models of all clients may take; of longer runs the last rounds are used."""

# Rows evaluated in one go, values times records.
_ROWS = 1 << 15
# Noise leaves the number of ones this close to a whole number, or it is not rounded.
_WHOLE = 0.1
# Of larger models no least-squares problem is decoded: its matrix has the square of this many entries.
_UNKNOWNS = 2_000


def mark_largest(estimates: Array, ones: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return 1 for the ``ones`` largest estimates and 0 for the others (n,); equals are drawn (Algorithm 3, line 4)."""
    order = np.lexsort((generator.random(len(estimates)), -estimates))
    decisions = np.zeros(len(estimates), dtype=np.int64)
    decisions[order[:ones]] = 1
    return decisions


def smallest_loss(losses: Array, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return the value with the smallest loss for each record (Algorithm 4, line 2).

    Parameters
    ----------
    losses
        (n, v).

    Returns
    -------
    ndarray
        (n,): positions of values; equals are drawn, and −1 where no loss is finite.
    """
    finite = np.where(np.isfinite(losses), losses, np.inf)
    best = finite == finite.min(axis=1, keepdims=True)
    drawn = np.where(best, generator.random(losses.shape), -1.0).argmax(axis=1)
    return np.where(np.isfinite(losses).any(axis=1), drawn, -1)


def beliefs_of(losses: Array, prior: Array, *, gaussian: bool) -> tuple[Array, float]:
    """Return what a model says of the attribute, and how well it explains the labels.

    Bayes' rule with the likelihood exp(−loss), or, for squared errors, a normal one whose variance is the likeliest.

    Parameters
    ----------
    losses
        (n, v): loss of each record with each value.
    prior
        (v,): shares of the values.
    gaussian
        Whether the losses are squared errors.

    Returns
    -------
    beliefs, evidence
        (n, v), rows summing to one (the prior where losses are not finite), and the mean log likelihood of the labels,
        up to a constant; −inf if a loss is not finite.
    """
    with np.errstate(divide="ignore"):
        log_prior = np.log(prior)
    usable = np.isfinite(losses).all(axis=1)
    beliefs = np.tile(prior, (len(losses), 1))
    found = losses[usable]
    if not len(found):
        return beliefs, -math.inf
    tiny = np.finfo(float).tiny
    variance = max(float(found.min(axis=1).mean()), tiny) if gaussian else 0.5
    for _ in range(50 if gaussian else 1):
        logits = log_prior - found / (2 * variance)
        top = logits.max(axis=1, keepdims=True)
        weights = np.exp(logits - top)
        total = weights.sum(axis=1, keepdims=True)
        posterior = weights / total
        evidence = float(np.mean(top + np.log(total))) - (0.5 * math.log(variance) if gaussian else 0.0)
        if gaussian:
            variance = max(float((posterior * found).sum(axis=1).mean()), tiny)
    beliefs[usable] = posterior
    return beliefs, evidence if usable.all() else -math.inf


class _Client(TypedDict):
    client: Name
    share: Share | None
    weight: dict[Name, Finite | None] | None


class _Facts(TypedDict):
    methods: list[Name]
    values: list[Name]
    clients: list[_Client]
    targets: Name


class ModelBased(Attack):
    """Algorithms 3 and 4 under three models, global, last returned and reconstructed, and what else messages hold.

    For least squares and a binary attribute the client's problem is decoded and its ⌈ρm⌉ records with the largest
    estimates are marked (Algorithm 3); elsewhere, and while ρ is unknown, the value with the smallest loss is taken
    (Algorithm 4). How a client's optimum was reconstructed stands in the fact ``clients``; see
    :mod:`fedattack.threats.attribute.local_optimum`.

    Scores hold ``decisions`` (methods, n), positions of values in ``domain`` or −1 for no answer, as for clients that
    were never seen; ``beliefs`` (methods, n, v), rows summing to one; ``losses`` (methods, n, v) in float64, NaN
    where there is no model. The facts name the ``methods`` and the ``values``. For each client they say how many
    ``messages`` were used, ``how`` its optimum was found, and for least squares and a binary attribute how many
    directions they showed (``rank``) of how many ``unknowns``, which parameters the client's records leave
    ``undetermined``, the ``share`` ρ of the second value, and the attribute's ``weight`` θ_s under each method;
    ``null`` stands for what is unknown.
    """

    name: ClassVar[str] = "aia"
    title: ClassVar[str] = "Model-based attribute inference"
    paper: ClassVar[str] = "Driouich et al. 2022, A novel model-based attribute inference attack, Section 4"
    needs: ClassVar[Needs] = Needs(
        views=("individual",), protocols=("fedavg",), knowledge=("model", "training", "partial")
    )
    form: ClassVar[Form] = Form(
        TypeAdapter(_Facts),
        {
            "decisions": ArrayForm("i", ("methods", "records"), low=-1),
            "beliefs": ArrayForm("f", ("methods", "records", "values"), low=0, high=1 + 1e-6, nan=True),
            "losses": ArrayForm("f", ("methods", "records", "values"), nan=True),
        },
        {"methods": "methods", "values": "values"},
    )
    knows: ClassVar[tuple[str, ...]] = (
        "the model's architecture and loss",
        "how clients train: learning rate, epochs, batch size",
        "clients' records and labels but for one attribute, its possible values, and whose they are",
    )

    def _run(self, record: Record, knowledge: Knowledge, seed: int, device: str, progress: Progress) -> Scores:
        if knowledge.model is None or knowledge.partial is None or knowledge.training is None:
            raise AssertionError("checked by run")
        partial = knowledge.partial
        if len(partial.domain) > DOMAIN_LIMIT:
            raise DataError(
                f"attack {self.name}: the attribute {partial.names[0]!r} … has {len(partial.domain)} values, and at "
                f"most {DOMAIN_LIMIT} can be tried one after another; put values together"
            )
        model = _Model(knowledge.model, partial, pick_device(device))
        check_model(model.module, record)
        linear = _Linear.of(model)
        clients = {str(name): np.flatnonzero(partial.clients == name) for name in np.unique(partial.clients)}
        notes: list[str] = []
        seen = _collect(record, knowledge, clients, model, notes, progress)
        if not seen:
            raise NeedsError(
                f"attack {self.name} needs a usable reply of a client that has partial records, and {record.path} "
                "holds none; check that knowledge/nodes names the clients as partial.npz does"
            )
        after = record.final if record.final is not None else record.rounds[-1].common
        final = None if after is None else dict(after)
        maps = dict(_maps(seen.values())) if linear is not None else {}
        answers = _Answers(model, linear, np.random.default_rng(seed))
        answers.losses[0] = model.losses([final], np.arange(len(partial.y)))[0]
        facts: list[dict[str, Any]] = []
        for name, rows in clients.items():
            found, states = _Found(), [final]
            if name in seen:
                found = _reconstruct(seen[name], maps.get(name), model, linear, rows, knowledge.training)
                states += [seen[name].last, model.state(found.optimum, seen[name].last)]
                answers.losses[1:3, rows] = model.losses(states[1:], rows)
            weights = [answers.fill_in(method, rows, state, found) for method, state in enumerate(states)]
            answers.fill_in_moments(rows, found)
            facts.append(
                {
                    "client": name,
                    "records": len(rows),
                    "messages": len(seen[name].rounds) if name in seen else 0,
                    "how": found.how,
                    "rank": found.rank,
                    "unknowns": model.size,
                    "undetermined": [model.parameter(index) for index in found.undetermined],
                    "share": found.share,
                    "weight": dict(zip(METHODS, weights, strict=False)) if linear is not None else None,
                }
            )
        return Scores(
            attack=self.name,
            arrays={"decisions": answers.decisions, "beliefs": answers.beliefs, "losses": answers.losses},
            facts={
                "methods": list(METHODS),
                "values": list(partial.names),
                "server": record.server,
                "clients": facts,
                "targets": partial.fingerprint,
            },
            notes=(*notes, *_how(facts)),
        )


class _Answers:
    """Decisions (methods, n), beliefs (methods, n, v) and losses (methods, n, v), filled in client by client."""

    def __init__(self, model: "_Model", linear: "_Linear | None", generator: np.random.Generator) -> None:
        shape = (len(METHODS), len(model.partial.y))
        self.decisions = np.full(shape, -1, dtype=np.int64)
        self.beliefs = np.tile(model.prior, (*shape, 1))
        self.losses = np.full((*shape, len(model.prior)), np.nan)
        self._model = model
        self._linear = linear
        self._generator = generator

    def fill_in(
        self, method: int, rows: NDArray[np.int64], state: Mapping[str, Any] | None, found: "_Found"
    ) -> float | None:
        """Decide for a client's records from their losses under a state, and return the attribute's weight in it."""
        losses = self.losses[method, rows]
        flat = None if state is None or self._linear is None else self._model.flat(state)
        weight = None
        if self._linear is not None and flat is not None and np.isfinite(flat).all():
            weight = float(self._linear.change @ flat)
        if self._linear is not None and flat is not None and weight is not None and found.share is not None:
            estimates = self._linear.estimates(flat, rows)
            self.decisions[method, rows] = mark_largest(estimates, found.ones(len(rows)), self._generator)
        else:
            self.decisions[method, rows] = smallest_loss(losses, self._generator)
        prior = self._model.prior if found.share is None else np.array([1 - found.share, found.share])
        self.beliefs[method, rows] = beliefs_of(losses, prior, gaussian=self._model.gaussian)[0]
        return weight

    def fill_in_moments(self, rows: NDArray[np.int64], found: "_Found") -> None:
        """Decide by all that a decoded problem holds, if the client's records are all there."""
        if self._linear is None or found.problem is None or found.share is None or not found.whole:
            return
        # what differs by less is the rounding of the messages, which must not order records
        estimates = self._linear.attribute(rows).estimates(found.problem).round(3)
        moments = METHODS.index("moments")
        self.decisions[moments, rows] = mark_largest(estimates, found.ones(len(rows)), self._generator)
        self.beliefs[moments, rows] = np.stack([1 - estimates, estimates], axis=1)


class _Model:
    """The clients' model, its loss, and the records that are asked about."""

    def __init__(self, known: ModelKnowledge, partial: PartialRecords, device: torch.device) -> None:
        self.module = module = known.build()
        self.partial = partial
        values = len(partial.domain)
        self.prior = np.full(values, 1 / values) if partial.prior is None else partial.prior
        self.gaussian = LOSSES.get(given(known.loss)) is mean_squared_error
        self._loss = per_record_loss(given(known.loss))
        self._device = device
        self._shapes = {name: tuple(value.shape) for name, value in module.named_parameters()}
        self._dtypes = {name: value.dtype for name, value in module.named_parameters()}
        self.size = sum(math.prod(shape) for shape in self._shapes.values())

    def flat(self, state: Mapping[str, Any]) -> Array:
        """Return the parameters (p,) of a state, without its buffers."""
        return np.concatenate([np.asarray(state[name], dtype=np.float64).reshape(-1) for name in self._shapes])

    def tensors(self, flat: Tensor) -> dict[str, Tensor]:
        """Return flat parameters (p,) by name."""
        pieces = flat.split([math.prod(shape) for shape in self._shapes.values()])
        return {name: piece.reshape(shape) for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)}

    def state(self, flat: Array, buffers: Mapping[str, Any]) -> dict[str, Any]:
        """Return a whole state with these parameters (p,), and the buffers of another one."""
        ours = {name: value.to(self._dtypes[name]) for name, value in self.tensors(torch.from_numpy(flat)).items()}
        return dict(buffers) | ours

    def parameter(self, index: int) -> str:
        """Return the name of a flat parameter, as ``fc1.weight[0, 3]``."""
        for name, shape in self._shapes.items():
            if index < math.prod(shape):
                return f"{name}[{', '.join(str(int(place)) for place in np.unravel_index(index, shape))}]"
            index -= math.prod(shape)
        raise AssertionError("no such parameter")

    def losses(self, states: Sequence[Mapping[str, Any] | None], rows: NDArray[np.int64]) -> Array:
        """Return the losses (states, rows, v) of records with each value."""
        count = len(self.partial.domain)
        found = np.full((len(states), len(rows), count), np.nan)
        given = [index for index, state in enumerate(states) if state is not None]
        step = max(1, _ROWS // max(len(rows), 1))
        for start in range(0, count, step):
            values = range(start, min(start + step, count))
            x = np.concatenate([self.partial.completed(value, rows) for value in values])
            y = np.concatenate([self.partial.y[rows]] * len(values))
            ours = [state for state in states if state is not None]
            single = losses_of_models(self.module, ours, x, y, self._loss, device=self._device, chunk=_ROWS).numpy()
            found[np.ix_(given, range(len(rows)), values)] = single.reshape(len(ours), len(values), -1).swapaxes(1, 2)
        return found


@dataclass(frozen=True)
class _Linear:
    """A model whose one output is linear in its parameters, and to which a binary attribute always adds the same.

    The output for record i is (base_i + s_i·change)·θ, with s_i = 1 for the attribute's second value.
    """

    base: Array
    change: Array
    y: Array

    @classmethod
    def of(cls, model: _Model) -> "_Linear | None":
        """Find whether the model and the attribute are so; ``None`` if not."""
        if not model.gaussian or len(model.partial.domain) != 2 or model.size > _UNKNOWNS:
            return None
        rows = np.arange(len(model.partial.y))
        base = _derivative(model, model.partial.completed(0, rows))
        if base is None:
            return None
        other = _derivative(model, model.partial.completed(1, rows))
        if other is None or np.ptp(other - base, axis=0).max() > 1e-6 * np.abs(other).max():
            return None
        return cls(base, (other - base).mean(axis=0), model.partial.y.astype(np.float64))

    def estimates(self, flat: Array, rows: NDArray[np.int64]) -> Array:
        """Return s̃ (rows,) under some parameters (p,)."""
        return best_attribute(self.y[rows] - self.base[rows] @ flat, float(self.change @ flat))

    def attribute(self, rows: NDArray[np.int64]) -> BinaryAttribute:
        """Return some records alone, as what is to be decoded with."""
        return BinaryAttribute(self.base[rows], self.change, self.y[rows])

    def share(self, H: Array) -> float | None:
        """Decode ρ from H (Proposition 2): from the attribute's mean, its mean square, or both, as far as they tell.

        With a 0/1 attribute the mean square is H_ss/2; with a bias H holds the mean as well, whatever the encoding.
        """
        first, step = self.base[0], self.change
        constant = (np.ptp(self.base, axis=0) == 0) & (step == 0) & (first != 0)
        moves = step != 0
        per_share = np.concatenate(
            [np.outer(first[constant], step[moves]).ravel(), ((first + step) ** 2 - first**2)[moves]]
        )
        at_zero = np.concatenate([np.outer(first[constant], first[moves]).ravel(), (first**2)[moves]])
        seen = np.concatenate([H[np.ix_(constant, moves)].ravel(), H.diagonal()[moves]]) / 2
        if not per_share.any():
            return None
        return float(per_share @ (seen - at_zero) / (per_share @ per_share))


def _derivative(model: _Model, x: NDArray[np.float32]) -> Array | None:
    """Return the derivative (n, p) of a single output by the parameters if it is linear in them, else ``None``."""
    module = copy.deepcopy(model.module).double().cpu().eval()
    records = torch.from_numpy(x).double()

    def output(flat: Tensor, rows: slice = slice(None)) -> Tensor:
        result: Tensor = functional_call(module, model.tensors(flat), (records[rows],))
        return result

    draw = torch.Generator().manual_seed(0)
    one, two = torch.randn(2, model.size, generator=draw, dtype=torch.float64)
    with torch.inference_mode():
        try:
            few = [output(flat, slice(0, 8)) for flat in (one, two, one + two)]
        except (IndexError, RuntimeError, TypeError, ValueError) as cause:
            raise ModelError(
                f"the model failed on records of shape {x.shape[1:]} ({cause}); give the right model"
            ) from None
        if few[0].numel() != len(few[0]) or not torch.allclose(few[0] + few[1], few[2], rtol=1e-9, atol=1e-9):
            return None
        columns = [output(unit).reshape(-1) for unit in torch.eye(model.size, dtype=torch.float64)]
    return torch.stack(columns, dim=1).numpy()


@dataclass
class _Messages:
    """What one client received and returned, in the order of the rounds."""

    name: str
    rounds: list[int] = field(default_factory=list)
    received: list[Array] = field(default_factory=list)
    returned: list[Array] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)
    examples: float | None = None
    precision: float = 0.0
    alone: bool = False


def _collect(
    record: Record,
    knowledge: Knowledge,
    clients: Mapping[str, NDArray[np.int64]],
    model: _Model,
    notes: list[str],
    progress: Progress,
) -> dict[str, _Messages]:
    """Read what each client received and returned, each common model once."""
    most = max(2, int(MEMORY // (16 * model.size * len(clients))))
    found: dict[str, _Messages] = {}
    for done, item in enumerate(record):
        usable = [seen for seen in item.observations if _answered(seen) and knowledge.client_of(seen.node) in clients]
        common = None
        if any(not seen.singled_out for seen in usable) and item.common is not None:
            common = model.flat(item.common)
        for seen in usable:
            name = knowledge.client_of(seen.node)
            state = dict(seen.arrays or {})
            received = common if not seen.singled_out or seen.received is None else model.flat(seen.received)
            try:
                check_parameters(model.module, {key: array.shape for key, array in state.items()})
            except ModelError as cause:
                notes.append(f"round {item.number}, client {name} left out: {cause}")
                continue
            returned = model.flat(state)
            if received is None or not (np.isfinite(received).all() and np.isfinite(returned).all()):
                why = "what it was sent is unknown" if received is None else "its model is not finite"
                notes.append(f"round {item.number}, client {name} left out: {why}")
                continue
            ours = found.setdefault(name, _Messages(name))
            ours.rounds.append(item.number)
            ours.received.append(received)
            ours.returned.append(returned)
            ours.last, ours.examples = state, seen.count
            ours.alone |= seen.singled_out
            floats = [array.dtype for array in state.values() if np.issubdtype(array.dtype, np.floating)]
            ours.precision = max([ours.precision, *(float(np.finfo(dtype).eps) for dtype in floats)])
            if len(ours.rounds) > most:
                del ours.rounds[0], ours.received[0], ours.returned[0]
                note = f"only the last {most} rounds of each client are used: their models take {MEMORY >> 20} MiB"
                if note not in notes:
                    notes.append(note)
        progress(done + 1, len(record))
    return found


def _answered(seen: Observation) -> bool:
    return seen.status == "ok" and seen.arrays is not None


def _maps(seen: Sequence[_Messages] | Any) -> Iterator[tuple[str, UpdateMap]]:
    """Fit the update maps of all clients, those that received the same models together."""

    def key(item: _Messages) -> tuple[bool, tuple[int, ...], str]:
        return item.alone, tuple(item.rounds), item.name if item.alone else ""

    for _, group in itertools.groupby(sorted(seen, key=key), key):
        members = list(group)
        received = np.stack(members[0].received)
        moves = received - np.stack([np.stack(item.returned) for item in members])
        fits = fit_update_maps(received, moves, max(item.precision for item in members))
        yield from zip((item.name for item in members), fits, strict=True)


@dataclass(frozen=True)
class _Found:
    """How a client's local optimum was found.

    ``how`` is a key of :data:`_HOW`, ``share`` the decoded ρ, and ``whole`` says whether all of the client's records
    are known but for the attribute.
    """

    optimum: Array = field(default_factory=lambda: np.zeros(0))
    how: str = "not seen"
    rank: int | None = None
    problem: LeastSquares | None = None
    share: float | None = None
    whole: bool = False

    @property
    def undetermined(self) -> list[int]:
        """The flat parameters that the client's records do not determine."""
        return [] if self.problem is None else np.flatnonzero(~self.problem.determined).tolist()

    def ones(self, records: int) -> int:
        """Return ⌈ρ·records⌉; a share of whole records is inexact, and must not be rounded up to one more."""
        return 0 if self.share is None else math.ceil(self.share * records - 1e-9)


_HOW = {
    "messages": "",
    "messages and public attributes": (
        "messages alone do not determine the local optimum (they are fewer than unknowns, or the models sent hardly "
        "differ in some directions), so it was decoded with the help of the public attributes"
    ),
    "extrapolated": "the local optimum is not determined and was extrapolated from the messages",
    "last returned": (
        "the local optimum is not determined, and no extrapolation explains the labels better than the last returned "
        "model, which stands for it"
    ),
    "not seen": "no usable reply",
}


def _how(clients: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say in a line each how the optima were found, if not as in the paper, and what is left open."""
    for how, words in _HOW.items():
        names = [str(item["client"]) for item in clients if item["how"] == how]
        if names and words:
            yield f"{len(names)} of {len(clients)} clients ({_few(names)}): {words}"
    names = [str(item["client"]) for item in clients if item["undetermined"]]
    if names:
        missing = sorted({name for item in clients for name in item["undetermined"]})
        yield (
            f"{len(names)} of {len(clients)} clients ({_few(names)}): their records leave parameters open "
            f"({_few(missing)}) as far as the messages show; these stay as last received"
        )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + " …" * (len(names) > 5)


def _reconstruct(
    seen: _Messages,
    fit: UpdateMap | None,
    model: _Model,
    linear: _Linear | None,
    rows: NDArray[np.int64],
    training: LocalSGD,
) -> _Found:
    """Decode a client's local optimum from messages alone, else with its public attributes, else extrapolate."""
    received = np.stack(seen.received)
    moves = received - np.stack(seen.returned)
    rank = None if fit is None else fit.rank
    proposals: list[_Found] = []
    alone: _Found | None = None
    if linear is not None and fit is not None and training.lr:
        total = round(seen.examples or len(rows))
        whole = total == len(rows)
        per_epoch = math.ceil(total / training.batch_size) if 0 < training.batch_size < total else 1
        steps = per_epoch * training.epochs
        if per_epoch == 1 and (steps == 1 or not training.momentum):
            problem = decode_least_squares(fit, lr=training.lr, steps=steps, weight_decay=training.weight_decay)
            if problem is not None:
                alone = _decoded(problem, "messages", rank, linear, total, whole)
        if whole and (alone is None or alone.undetermined):
            decoded = decode_with_public(
                received,
                moves,
                linear.attribute(rows),
                lr=training.lr,
                steps=steps,
                momentum=training.momentum,
                weight_decay=training.weight_decay,
            )
            if decoded is not None:
                found = _decoded(decoded.problem, "messages and public attributes", rank, linear, total, whole)
                if decoded.exact:
                    return found
                proposals.append(found)
    if alone is not None:
        return alone
    first, *rest = extrapolate(received, moves, seen.precision)
    proposals.append(_Found(first, "last returned", rank))
    proposals += [_Found(optimum, "extrapolated", rank) for optimum in rest]
    losses = model.losses([model.state(item.optimum, seen.last) for item in proposals], rows)
    explained = [beliefs_of(single, model.prior, gaussian=model.gaussian)[1] for single in losses]
    return proposals[int(np.argmax(explained))]


def _decoded(problem: LeastSquares, how: str, rank: int | None, linear: _Linear, total: int, whole: bool) -> _Found:
    share = linear.share(problem.H)
    if share is not None:
        ones = share * total
        share = round(ones) / total if abs(ones - round(ones)) < _WHOLE else share
        share = min(max(share, 0.0), 1.0)
    return _Found(problem.optimum, how, rank, problem, share, whole)
