"""Model-based attribute inference: the attribute that fits a client's own local optimum best.

Driouich et al. 2022, "A novel model-based attribute inference attack in federated learning". The attacker has a
client's examples without one attribute. It decodes the model that the client would have trained alone, and fills in the
value with the smallest loss under that model.
"""

import copy
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from torch import Tensor
from torch.func import functional_call
from typing_extensions import TypedDict

from fedattack.attacks.base import Attack, Progress, Scores
from fedattack.attacks.form import ArrayForm, Finite, Form, Name, Share
from fedattack.attacks.knowledge import Knowledge, ModelKnowledge, PartialRecords
from fedattack.attacks.matching import check_model, fits_model, flatten_arrays, is_finite
from fedattack.attacks.replies import replied, why_left_out
from fedattack.base.errors import DataError, ModelError, NeedsError
from fedattack.learning import LOSSES, LocalSGD, losses_of_models, per_record_loss, pick_device
from fedattack.learning.importing import trust_given
from fedattack.learning.losses import mean_squared_error
from fedattack.record import Observation, Record, Round
from fedattack.threats.attribute.imputation import draw_largest
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
from fedattack.threats.attribute.options import ModelBasedOptions

Array = NDArray[np.float64]
State = Mapping[str, Any]

METHODS = ("global", "last-returned", "reconstructed", "moments")
"""What fills in the attribute.

The last common model, the client's last reply, or its local optimum; and, for least squares and a binary attribute, all
that the decoded problem holds of the attribute
(:meth:`fedattack.threats.attribute.local_optimum.BinaryAttribute.estimates`).
"""

DOMAIN_LIMIT = 1_000
"""Most values of the attribute that are tried one after another."""

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
    """Return the value with the smallest loss for each example (Algorithm 4, line 2).

    ``losses`` is (n, v). Returns (n,) positions of values: equals are drawn, and −1 where no loss is finite.
    """
    finite = np.where(np.isfinite(losses), losses, np.inf)
    return np.where(np.isfinite(losses).any(axis=1), draw_largest(-finite, generator), -1)


def beliefs_of(losses: Array, prior: Array, *, gaussian: bool) -> tuple[Array, float]:
    """Return what a model says of the attribute, and how well it explains the labels.

    Bayes' rule with the likelihood exp(−loss), or, for squared errors, a normal one whose variance is the likeliest.

    ``losses`` (n, v) are of each example with each value, ``prior`` (v,) the shares of the values; ``gaussian`` says
    whether the losses are squared errors. Returns beliefs (n, v), rows summing to one (the prior where losses are not
    finite), and the mean log likelihood of the labels, up to a constant; −inf if a loss is not finite.
    """
    with np.errstate(divide="ignore"):
        log_prior = np.log(prior)
    usable = np.isfinite(losses).all(axis=1)
    beliefs = np.tile(prior, (len(losses), 1))
    if not usable.any():
        return beliefs, -math.inf
    finite = losses[usable]
    tiny = np.finfo(float).tiny
    variance, passes = 0.5, 1
    if gaussian:
        variance, passes = max(float(finite.min(axis=1).mean()), tiny), 50
    for _ in range(passes):
        logits = log_prior - finite / (2 * variance)
        top = logits.max(axis=1, keepdims=True)
        weights = np.exp(logits - top)
        total = weights.sum(axis=1, keepdims=True)
        posterior = weights / total
        evidence = float(np.mean(top + np.log(total)))
        if gaussian:
            evidence -= 0.5 * math.log(variance)
            variance = max(float((posterior * finite).sum(axis=1).mean()), tiny)
    beliefs[usable] = posterior
    if not usable.all():
        evidence = -math.inf
    return beliefs, evidence


class _ClientFacts(TypedDict):
    client: Name
    share: Share | None
    weight: dict[Name, Finite | None] | None


class _ModelBasedFacts(TypedDict):
    methods: list[Name]
    values: list[Name]
    clients: list[_ClientFacts]
    targets: Name


class ModelBased(Attack):
    """Algorithms 3 and 4 under three models, global, last returned and reconstructed, and what else messages hold.

    For least squares and a binary attribute the client's problem is decoded, and its ⌈ρm⌉ examples with the largest
    estimates are marked (Algorithm 3). Elsewhere, and while ρ is unknown, the value with the smallest loss is taken
    (Algorithm 4). See :mod:`fedattack.threats.attribute.local_optimum` for how a client's optimum is reconstructed.

    Scores hold

    - ``decisions`` (methods, n): indices of values in ``domain``, or −1 for no answer, as for clients never seen;
    - ``beliefs`` (methods, n, v): rows summing to one;
    - ``losses`` (methods, n, v): float64, NaN where there is no model.

    The facts name the ``methods`` and the ``values``. Of each client they say how many ``messages`` were used and
    ``how`` its optimum was found. For least squares and a binary attribute they also say, or ``null`` if unknown,

    - ``rank``: how many of the ``unknowns`` the messages show;
    - ``share``: ρ of the second value;
    - ``weight``: the attribute's θ_s under each method.
    """

    options = ModelBasedOptions()
    form: ClassVar[Form] = Form(
        TypeAdapter(_ModelBasedFacts),
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
        "clients' examples and labels but for one attribute, its possible values, and whose they are",
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
        model = _AttributeModel(knowledge.model, partial, pick_device(device))
        check_model(model.module, record)
        linear = _LinearModel.of(model)
        clients = {str(name): np.flatnonzero(partial.clients == name) for name in np.unique(partial.clients)}
        notes: list[str] = []
        messages = _collect(record, knowledge, clients, model, self.options.memory, notes, progress)
        if not messages:
            raise NeedsError(
                f"attack {self.name} needs a usable reply of a client that has partial records, and {record.path} "
                f"holds none{why_left_out(notes)}; check that knowledge/nodes names the clients as partial.npz does"
            )
        final = _last_state(record)
        maps: dict[str, UpdateMap] = {}
        if linear is not None:
            maps = dict(_maps(messages.values()))
        answers = _Decisions(model, linear, np.random.default_rng(seed))
        if final is not None:
            answers.losses[0] = model.losses([final], np.arange(len(partial)))[0]
        facts: list[dict[str, Any]] = []
        for name, rows in clients.items():
            ours, optimum = messages.get(name, _ClientMessages(name)), _Optimum()
            if ours.rounds:
                optimum = _reconstruct(ours, maps.get(name), model, linear, rows, knowledge.training)
            weights = answers.fill_in_client(rows, final, ours, optimum)
            fact = _describe_client(ours, len(rows), optimum, model) | {"weight": None}
            if linear is not None:
                fact["weight"] = weights
            facts.append(fact)
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


class _Decisions:
    """Decisions (methods, n), beliefs (methods, n, v) and losses (methods, n, v), filled in client by client."""

    def __init__(self, model: "_AttributeModel", linear: "_LinearModel | None", generator: np.random.Generator) -> None:
        shape = (len(METHODS), len(model.partial.y))
        self.decisions = np.full(shape, -1, dtype=np.int64)
        self.beliefs = np.tile(model.prior, (*shape, 1))
        self.losses = np.full((*shape, len(model.prior)), np.nan)
        self._model = model
        self._linear = linear
        self._generator = generator

    def fill_in_client(
        self, rows: NDArray[np.int64], final: State | None, messages: "_ClientMessages", optimum: "_Optimum"
    ) -> dict[str, float | None]:
        """Decide for a client's examples by every method, and return the attribute's weight in each one's model."""
        own: list[State] = []
        if messages.rounds:
            own = [messages.last, self._model.state(optimum.parameters, messages.last)]
            self.losses[1:3, rows] = self._model.losses(own, rows)
        weights = {}
        for method, state in enumerate([final, *own]):
            weights[METHODS[method]] = self._fill_in(method, rows, state, optimum)
        self._fill_in_moments(rows, optimum)
        return weights

    def _fill_in(self, method: int, rows: NDArray[np.int64], state: State | None, optimum: "_Optimum") -> float | None:
        """Decide for a client's examples from their losses under a state, and return the attribute's weight in it."""
        losses, prior = self.losses[method, rows], self._model.prior
        weight = estimates = None
        if self._linear is not None and state is not None:
            flat = self._model.flat(state)
            if np.isfinite(flat).all():
                weight = float(self._linear.change @ flat)
                estimates = self._linear.estimates(flat, rows)
        if estimates is not None and optimum.share is not None:
            self.decisions[method, rows] = mark_largest(estimates, optimum.ones(len(rows)), self._generator)
        else:
            self.decisions[method, rows] = smallest_loss(losses, self._generator)
        if optimum.share is not None:
            prior = np.array([1 - optimum.share, optimum.share])
        self.beliefs[method, rows] = beliefs_of(losses, prior, gaussian=self._model.gaussian)[0]
        return weight

    def _fill_in_moments(self, rows: NDArray[np.int64], optimum: "_Optimum") -> None:
        """Decide by all that a decoded problem holds, if the client's examples are all known."""
        if self._linear is None or optimum.problem is None or optimum.share is None or not optimum.whole:
            return
        # What differs by less is the rounding of the messages, which must not order records.
        estimates = self._linear.attribute(rows).estimates(optimum.problem).round(3)
        moments = METHODS.index("moments")
        self.decisions[moments, rows] = mark_largest(estimates, optimum.ones(len(rows)), self._generator)
        self.beliefs[moments, rows] = np.stack([1 - estimates, estimates], axis=1)


class _AttributeModel:
    """The clients' model, its loss, and the examples that are asked about."""

    def __init__(self, known: ModelKnowledge, partial: PartialRecords, device: torch.device) -> None:
        self.module = module = known.build()
        self.partial = partial
        values = len(partial.domain)
        self.prior = np.full(values, 1 / values)
        if partial.prior is not None:
            self.prior = partial.prior
        self.gaussian = LOSSES.get(trust_given(known.loss)) is mean_squared_error
        self._loss = per_record_loss(trust_given(known.loss))
        self._device = device
        self._parameters = dict(module.named_parameters())
        self._sizes = [*map(Tensor.numel, self._parameters.values())]
        self.size = sum(self._sizes)

    def flat(self, state: State) -> Array:
        """Return the parameters (p,) of a state, without its buffers."""
        return flatten_arrays(state, self._parameters)

    def tensors(self, flat: Tensor) -> dict[str, Tensor]:
        """Return flat parameters (p,) by name."""
        pieces = zip(self._parameters.items(), flat.split(self._sizes), strict=True)
        return {name: piece.reshape(parameter.shape) for (name, parameter), piece in pieces}

    def state(self, flat: Array, buffers: State) -> dict[str, Any]:
        """Return a whole state with these parameters (p,), and the buffers of another one."""
        state = dict(buffers)
        for name, value in self.tensors(torch.from_numpy(flat)).items():
            state[name] = value.to(self._parameters[name].dtype)
        return state

    def losses(self, states: Sequence[State], rows: NDArray[np.int64]) -> Array:
        """Return the losses (states, rows, v) of examples with each value."""
        domain = self.partial.domain
        parts = []
        step = max(1, _ROWS // max(len(rows), 1))
        for start in range(0, len(domain), step):
            values = domain[start : start + step]
            x, y = np.tile(self.partial.x[rows], (len(values), 1)), np.tile(self.partial.y[rows], len(values))
            x[:, list(self.partial.columns)] = np.repeat(values, len(rows), axis=0)
            flat = losses_of_models(self.module, states, x, y, self._loss, device=self._device, chunk=_ROWS).numpy()
            parts.append(flat.reshape(len(states), len(values), -1).swapaxes(1, 2))
        return np.concatenate(parts, axis=2)


@dataclass(frozen=True)
class _LinearModel:
    """A model whose one output is linear in its parameters, and to which a binary attribute always adds the same.

    The output for example i is (base_i + s_i·change)·θ, with s_i = 1 for the attribute's second value.
    """

    base: Array
    change: Array
    y: Array

    @classmethod
    def of(cls, model: _AttributeModel) -> "_LinearModel | None":
        """Find whether the model and the attribute are so; ``None`` if not."""
        if not model.gaussian or len(model.partial.domain) != 2 or model.size > _UNKNOWNS:
            return None
        base = _derivative(model, model.partial.complete(0))
        if base is None:
            return None
        other = _derivative(model, model.partial.complete(1))
        if other is None or np.ptp(other - base, axis=0).max() > 1e-6 * np.abs(other).max():
            return None
        return cls(base, (other - base).mean(axis=0), model.partial.y.astype(np.float64))

    def estimates(self, flat: Array, rows: NDArray[np.int64]) -> Array:
        """Return s̃ (rows,) under some parameters (p,)."""
        return best_attribute(self.y[rows] - self.base[rows] @ flat, float(self.change @ flat))

    def attribute(self, rows: NDArray[np.int64]) -> BinaryAttribute:
        """Return some examples alone, as what is to be decoded with."""
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


def _derivative(model: _AttributeModel, x: NDArray[np.float32]) -> Array | None:
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
                f"the model failed on examples of shape {x.shape[1:]} ({cause}); give the right model"
            ) from None
        if few[0].numel() != len(few[0]) or not torch.allclose(few[0] + few[1], few[2], rtol=1e-9, atol=1e-9):
            return None
        columns = [output(unit).reshape(-1) for unit in torch.eye(model.size, dtype=torch.float64)]
    return torch.stack(columns, dim=1).numpy()


@dataclass
class _ClientMessages:
    """What one client received and returned, in the order of the rounds."""

    name: str
    rounds: list[int] = field(default_factory=list)
    received: list[Array] = field(default_factory=list)
    returned: list[Array] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)
    examples: float | None = None
    precision: float = 0.0
    alone: bool = False

    def add(self, number: int, reply: Observation, state: dict[str, Any], received: Array, returned: Array) -> None:
        """Add a round, with the state that the client returned in it."""
        self.rounds.append(number)
        self.received.append(received)
        self.returned.append(returned)
        self.last, self.examples = state, reply.count
        self.alone |= reply.singled_out
        for array in state.values():
            if np.issubdtype(array.dtype, np.floating):
                self.precision = max(self.precision, float(np.finfo(array.dtype).eps))

    def drop_first(self, most: int) -> bool:
        """Forget the first round if there are more than so many; says whether it did."""
        if len(self.rounds) <= most:
            return False
        del self.rounds[0], self.received[0], self.returned[0]
        return True

    def moves(self) -> Array:
        """Return received − returned (rounds, p)."""
        return np.stack(self.received) - np.stack(self.returned)


def _last_state(record: Record) -> State | None:
    """Return the common model after the last round, or else the last one that was sent; ``None`` without any."""
    after = record.final
    if after is None:
        after = record.rounds[-1].common
    if after is None:
        return None
    return dict(after)


def _flatten_received(reply: Observation, round_: Round, common: list[Array], model: _AttributeModel) -> Array | None:
    """Return what a client was sent; the round's common model is flattened once, and kept in ``common``."""
    if reply.singled_out and reply.received is not None:
        return model.flat(reply.received)
    if not common and not reply.singled_out and round_.common is not None:
        common.append(model.flat(round_.common))
    if not common:
        return None
    return common[0]


def _collect(
    record: Record,
    knowledge: Knowledge,
    clients: Mapping[str, NDArray[np.int64]],
    model: _AttributeModel,
    memory: int,
    notes: list[str],
    progress: Progress,
) -> dict[str, _ClientMessages]:
    """Read what each client received and returned, each common model once."""
    most = max(2, int(memory // (16 * model.size * len(clients))))
    short = f"only the last {most} rounds of each client are used: their models take {memory >> 20} MiB"
    messages: dict[str, _ClientMessages] = {}
    for done, round_ in enumerate(record):
        common: list[Array] = []
        for reply in filter(replied, round_.observations):
            name = knowledge.client_of(reply.node)
            if name not in clients:
                continue
            received = _flatten_received(reply, round_, common, model)
            state = dict(reply.arrays or {})
            where = f"round {round_.number}, client {name} left out"
            if not fits_model(model.module, state, where, notes):
                continue
            returned = model.flat(state)
            if received is None:
                notes.append(f"{where}: what it was sent is unknown")
            elif not is_finite([received, returned]):
                notes.append(f"{where}: its model is not finite")
            else:
                ours = messages.setdefault(name, _ClientMessages(name))
                ours.add(round_.number, reply, state, received, returned)
                if ours.drop_first(most) and short not in notes:
                    notes.append(short)
        progress(done + 1, len(record))
    return messages


def _describe_client(
    ours: _ClientMessages, examples: int, optimum: "_Optimum", model: _AttributeModel
) -> dict[str, Any]:
    """Say what of a client was decoded, and from how much."""
    return {
        "client": ours.name,
        "records": examples,
        "messages": len(ours.rounds),
        "how": optimum.how,
        "rank": optimum.rank,
        "unknowns": model.size,
        "share": optimum.share,
    }


def _maps(messages: Iterable[_ClientMessages]) -> Iterator[tuple[str, UpdateMap]]:
    """Fit the update maps of all clients, those that received the same models together."""

    def received_models(ours: _ClientMessages) -> tuple[bool, tuple[int, ...], str]:
        name = ""
        if ours.alone:
            name = ours.name
        return ours.alone, tuple(ours.rounds), name

    for _, group in itertools.groupby(sorted(messages, key=received_models), received_models):
        members = list(group)
        moves = np.stack([*map(_ClientMessages.moves, members)])
        fits = fit_update_maps(np.stack(members[0].received), moves, max(ours.precision for ours in members))
        for ours, fit in zip(members, fits, strict=True):
            yield ours.name, fit


@dataclass(frozen=True)
class _Optimum:
    """A client's local optimum, and how it was found.

    ``how`` is a key of :data:`_HOW`, ``share`` the decoded ρ, and ``whole`` says whether all of the client's examples
    are known but for the attribute.
    """

    parameters: Array = field(default_factory=lambda: np.zeros(0))
    how: str = "not seen"
    rank: int | None = None
    problem: LeastSquares | None = None
    share: float | None = None
    whole: bool = False

    @property
    def is_determined(self) -> bool:
        """Whether the client's examples determine all parameters."""
        return self.problem is not None and bool(self.problem.determined.all())

    def ones(self, records: int) -> int:
        """Return ⌈ρ·examples⌉; a share of whole examples is inexact, and must not be rounded up to one more."""
        if self.share is None:
            return 0
        return math.ceil(self.share * records - 1e-9)


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
    """Say in a line each how the optima were found, if not as in the paper."""
    for how, words in _HOW.items():
        names = [client["client"] for client in clients if client["how"] == how]
        if names and words:
            yield f"{len(names)} of {len(clients)} clients ({', '.join(names[:5])}{' …' * (len(names) > 5)}): {words}"


def _reconstruct(
    messages: _ClientMessages,
    fit: UpdateMap | None,
    model: _AttributeModel,
    linear: _LinearModel | None,
    rows: NDArray[np.int64],
    training: LocalSGD,
) -> _Optimum:
    """Decode a client's local optimum from messages alone, else with its public attributes, else extrapolate."""
    proposals: list[_Optimum] = []
    rank = None
    if fit is not None:
        rank = fit.rank
    if fit is not None and linear is not None and training.lr:
        total = max(1, round(messages.examples or len(rows)))
        alone = _decode_messages(fit, linear, total, len(rows), training)
        if total == len(rows) and (alone is None or not alone.is_determined):
            found, exact = _decode_with_public(messages, fit, linear, rows, training)
            if found is not None and exact:
                return found
            if found is not None:
                proposals.append(found)
        if alone is not None:
            return alone
    returned, *others = extrapolate(np.stack(messages.received), messages.moves(), messages.precision)
    proposals.append(_Optimum(returned, "last returned", rank))
    proposals += [_Optimum(parameters, "extrapolated", rank) for parameters in others]
    return _choose_likeliest(proposals, messages, model, rows)


def _choose_likeliest(
    proposals: Sequence[_Optimum], messages: _ClientMessages, model: _AttributeModel, rows: NDArray[np.int64]
) -> _Optimum:
    """Choose the proposal under which the client's examples are the likeliest."""
    states = [model.state(proposal.parameters, messages.last) for proposal in proposals]
    evidence = []
    for losses in model.losses(states, rows):
        evidence.append(beliefs_of(losses, model.prior, gaussian=model.gaussian)[1])
    return proposals[int(np.argmax(evidence))]


def _decode_messages(
    fit: UpdateMap, linear: _LinearModel, total: int, known: int, training: LocalSGD
) -> _Optimum | None:
    """Decode from messages alone, if the client makes full batches whose steps the paper's rule describes."""
    if 0 < training.batch_size < total or (training.epochs > 1 and training.momentum):
        return None
    problem = decode_least_squares(fit, lr=training.lr, steps=training.epochs, weight_decay=training.weight_decay)
    if problem is None:
        return None
    return _decode_best(problem, "messages", fit.rank, linear, total, total == known)


def _decode_with_public(
    messages: _ClientMessages, fit: UpdateMap, linear: _LinearModel, rows: NDArray[np.int64], training: LocalSGD
) -> tuple[_Optimum | None, bool]:
    """Decode with the public attributes of all the client's examples, and say whether the result is exact."""
    decoded = decode_with_public(
        np.stack(messages.received),
        messages.moves(),
        linear.attribute(rows),
        lr=training.lr,
        steps=training.steps(len(rows)),
        momentum=training.momentum,
        weight_decay=training.weight_decay,
    )
    if decoded is None:
        return None, False
    how = "messages and public attributes"
    return _decode_best(decoded.problem, how, fit.rank, linear, len(rows), whole=True), decoded.exact


def _decode_best(problem: LeastSquares, how: str, rank: int, linear: _LinearModel, total: int, whole: bool) -> _Optimum:
    share = linear.share(problem.H)
    if share is not None:
        ones = share * total
        if abs(ones - round(ones)) < _WHOLE:
            share = round(ones) / total
        share = min(max(share, 0.0), 1.0)
    return _Optimum(problem.optimum, how, rank, problem, share, whole)
