"""Gradient inversion: the examples that a client trained on, from what it sent.

Geiping et al. 2020, "Inverting gradients – how easy is it to break privacy in federated learning?"; beside it the
squared distance of Zhu et al. 2019, the rows of tables of Vero et al. 2023, and the label rule of Zhao et al. 2020. The
server has nothing of the examples: it looks for some whose training would have moved the model as the client's did.

Clients of many steps may be imitated by one gradient at the middle of their path (Zhu et al. 2023, "Surrogate model
extension"). There the point between both models is searched for, too; here it is the middle, where theirs begins.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedattack.attacks._fan_out import fan_out
from fedattack.attacks.base import Attack, Seen
from fedattack.attacks.first_layer import FirstLayer, find_first_layer
from fedattack.attacks.knowledge import Knowledge, ModelKnowledge
from fedattack.attacks.last_layer import compute_outputs, find_last_layer
from fedattack.attacks.matching import check_model, check_state, is_finite, is_zero
from fedattack.attacks.replies import choose_rounds, replied, why_left_out
from fedattack.base.errors import ModelError, NeedsError, RecordError, short
from fedattack.base.stored import Axes, Count, Finite, Name, Number
from fedattack.learning import LocalSGD, check_gradients, pick_device
from fedattack.learning.importing import trust_given
from fedattack.record import Observation, Record
from fedattack.threats.inversion.batch_norm import read_statistics
from fedattack.threats.inversion.gradient_inversion import (
    ONE_GRADIENT,
    Box,
    ClientModel,
    Reconstructed,
    ReplyBatch,
    Search,
    groups_of,
    invert_group,
)
from fedattack.threats.inversion.options import (
    POOLED,
    UNBOUNDED,
    GradientInversionOptions,
    Imitation,
    Labels,
    Method,
    Order,
)
from fedattack.threats.inversion.table_rows import Span, find_span
from fedattack.threats.labels.rules import restore_labels, round_counts, subtract_gradient

LOSSES = ("cross-entropy", "mse")
"""Losses under which examples are searched for."""

VARIATION: Mapping[Method, float] = {"cos": 3.0, "l2": 0.0, "table": 0.0}
"""Weights of the total variation. Geiping et al. regularise their cosine search; deep leakage has no such term."""


def _read_labels(
    model: nn.Module,
    movement: Mapping[str, NDArray[Any]],
    count: int,
    training: LocalSGD,
    states: Sequence[Mapping[str, NDArray[Any]]],
    typical: NDArray[np.float32] | None,
) -> NDArray[np.int64]:
    """Read labels (count,) off the mean gradient of a movement, and say what to do where that cannot be done.

    Parameters
    ----------
    model, movement, count, training
        The architecture, how it moved by parameter name, on how many examples, and how.
    states
        The models between which it moved; one where the movement is a gradient.
    typical
        (1, *shape): an input of which these models make about what they make of a client's examples; ``None`` where
        none is known. Then all classes are taken to be predicted alike.
    """
    reach = np.float32(training.reach(count))
    gradient = {name: moved / reach for name, moved in movement.items()}
    try:
        labels = restore_labels(model, gradient, count)
        last = find_last_layer(model)
    except NeedsError as cause:
        raise NeedsError(f"{cause}; take label=free") from None
    if typical is None:
        return labels
    outputs = [compute_outputs(model, last, state, typical) for state in states]
    path = [of_state for of_state in outputs if of_state is not None]
    if not path:
        return labels
    shares = subtract_gradient(path, last.join(gradient))
    if shares is None:
        return labels
    return np.repeat(np.arange(last.classes), round_counts(shares, count))


def client_training(record: Record, training: LocalSGD) -> LocalSGD:
    """Return the local training of which replies of the record's protocol are the movement.

    Raises
    ------
    NeedsError
        If the learning rate of local steps is 0: such updates say nothing.
    """
    if record.protocol == "fedsgd":
        return replace(ONE_GRADIENT, weight_decay=training.weight_decay)
    if not training.lr > 0:
        raise NeedsError("inversion needs updates of a learning rate above 0; knowledge of training has lr = 0")
    return training


def movement_of(reply: Observation, record: Record, model: nn.Module, training: LocalSGD) -> dict[str, NDArray[Any]]:
    """Return by parameter name the gradient that a client of FedSGD sent, or (received − sent) / lr.

    Raises
    ------
    ModelError
        If the reply's arrays are not the model's.
    RecordError
        If the reply, or what it is a reply to, is not in the record.
    """
    received = reply.received
    if reply.arrays is None or received is None:
        raise RecordError("the reply, or the model that it answers, is not in the record")
    check_state(model, dict(reply.arrays))
    check_state(model, dict(received))
    names = dict(model.named_parameters())
    if record.protocol == "fedsgd":
        return {name: reply.arrays[name] for name in names}
    update = reply.update()
    return {name: -update[name] / np.float32(training.lr) for name in names}


def take_one_gradient(training: LocalSGD) -> LocalSGD:
    """Return the training in which one gradient over all examples stands for all steps."""
    return replace(ONE_GRADIENT, weight_decay=training.weight_decay)


def take_middle(
    received: Mapping[str, NDArray[Any]],
    sent: Mapping[str, NDArray[Any]],
    movement: Mapping[str, NDArray[Any]],
    reach: float,
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Return the model in the middle of a client's path, and the mean gradient along it, by parameter name.

    Parameters
    ----------
    received, sent
        The models at both ends, with buffers, which stay as they were received.
    movement
        (received − sent) / lr, by parameter name.
    reach
        The sum of how much the gradients of all steps count in the movement.
    """
    middle = dict(received)
    for name in movement:
        middle[name] = (received[name] + sent[name]) / np.float32(2)
    return middle, {name: moved / np.float32(reach) for name, moved in movement.items()}


# Nobody reconstructs as many from one reply, and a client may say what it likes.
_MOST_RECORDS = 4096
# No client with more steps is imitated: each step is differentiated in each iteration.
_MOST_STEPS = 1_000


@dataclass(frozen=True)
class InvertedReply:
    """A reply of which examples were reconstructed: whose it is, and what it told.

    Attributes
    ----------
    node, client, round
        Whose reply it is, and in which round.
    records
        How many examples it is about.
    statistics
        Of how many layers it told the batch's means and variances.
    """

    node: Name
    client: Name
    round: Number
    records: Number
    statistics: Count


@dataclass(frozen=True, eq=False)
class ReconstructedExamples:
    """Examples that were reconstructed of replies, and how they were searched for.

    Attributes
    ----------
    batches
        The replies, each of which is about one batch.
    method, iterations, restarts, variation, statistics, order
        How they were searched for, as :class:`~fedattack.threats.inversion.gradient_inversion.Search` has it.
    box
        Least and largest inputs, by channel; ``None`` where they were not known.
    label
        How labels were found.
    targets
        Fingerprint of the targets that the attacker knows.
    images
        (records, *shape): model inputs.
    labels
        (records,); (records, outputs) in a regression.
    of_batch
        (records,): by which reply each example was reconstructed.
    objectives
        (batches, restarts): NaN where a search diverged.
    unsure
        (records, columns): how unsure of each cell of a table the attacker is, from 0 to 1; ``None`` for what was not
        searched for as a table.
    imitate
        What of a client was imitated: each of its steps, or one gradient at the middle of its path.
    """

    batches: tuple[InvertedReply, ...]
    method: Method
    iterations: Count
    restarts: Count
    variation: Finite
    statistics: Finite
    order: Order
    box: tuple[tuple[Finite, ...], tuple[Finite, ...]] | None
    label: Labels
    targets: Name
    images: Annotated[NDArray[np.floating[Any]], Axes("records", nan=True, rest=True)]
    labels: Annotated[NDArray[Any], Axes("records", nan=True, rest=True, kinds="iuf")]
    of_batch: Annotated[NDArray[np.int64], Axes("records", low=0, called="batches", into="batches")]
    objectives: Annotated[NDArray[np.float64] | None, Axes("batches", "restarts", nan=True)] = None
    unsure: Annotated[NDArray[np.float64] | None, Axes("records", "columns", low=0, high=1)] = None
    imitate: Imitation = "steps"


def _find_layer(model: ModelKnowledge) -> FirstLayer | None:
    """Return the first layer if it takes rows of a table as they are, and is fully connected."""
    try:
        return find_first_layer(model)
    except NeedsError:
        return None


def _read_span(batch: ReplyBatch, layer: FirstLayer) -> Span | None:
    """Read what a batch's rows are sums of, if the first layer tells it."""
    if not layer.fits(batch.movement):
        return None
    return find_span(layer.join(batch.movement), batch.records)


def _search(
    model: ModelKnowledge,
    training: LocalSGD,
    how: Search,
    seed: int,
    memory: int,
    device: torch.device,
    group: Mapping[int, ReplyBatch],
) -> dict[int, Reconstructed]:
    """Search for the examples of a group of replies, in whatever process."""
    loss, shape = trust_given(model.loss), model.input_shape
    client = ClientModel(model.build(), loss, training, device=device, shape=shape)
    return invert_group(client, group, shape, how, seed=seed, memory=memory)


class GradientInversion(Attack):
    """Reconstructs the examples of clients, each reply by itself."""

    options = GradientInversionOptions()
    found = ReconstructedExamples
    knows: ClassVar[tuple[str, ...]] = (
        "the model's architecture and loss",
        "how clients train: learning rate, epochs, batch size",
        "how many examples a client has",
        "means and variances in a batch, if clients send the buffers of batch normalisation",
        "the range of an image's pixels, if the knowledge states it or has auxiliary images",
        "how a table's columns are coded, with their means and deviations, if the knowledge states it",
    )

    def unfit(self, record: Record, knowledge: Knowledge) -> list[str]:
        """Say that the clients' loss is none whose labels the search knows, or that weights are frozen."""
        reasons = []
        loss = None if knowledge.model is None else knowledge.model.loss
        if isinstance(loss, str) and loss not in LOSSES:
            named = " and ".join(LOSSES)
            reasons.append(f"labels can be searched for under {named}, and the clients' loss is {short(loss, 100)}")
        if knowledge.frozen:
            reasons.append(f"{next(iter(knowledge.frozen))} is frozen, so that nobody sent its gradient")
        return reasons

    def attack(self, seen: Seen) -> ReconstructedExamples:
        """Read what the replies tell of their batches, and search for the examples."""
        record, knowledge, options = seen.record, seen.knowledge, self.options
        model = seen.model
        architecture = model.build()
        check_model(architecture, record)
        if record.protocol == "fedsgd":
            check_gradients(architecture)
        training = client_training(record, seen.training)
        imitated = take_one_gradient(training) if self._is_middle(record) else training
        client = ClientModel(architecture, trust_given(model.loss), imitated, device=pick_device(seen.device))
        label = self._label_of(model)
        method = self.method_of(knowledge)
        batches, replies = self._read_batches(seen, architecture, training, label)
        if not batches:
            raise NeedsError(
                f"attack {self.name} needs a client's reply, and {record.path} holds none that can be used for "
                f"updates={options.updates} and clients={','.join(options.clients) or 'all'}"
                f"{why_left_out(seen.notes)}; take other rounds or clients"
            )
        counts = [batch.records for batch in batches]
        seen.notes.extend(self._note_order(client, counts))
        if self._is_middle(record):
            seen.notes.append(
                "one gradient over all of a client's examples, at the middle of its path, stands for all of its steps"
            )
        variation = options.variation
        if variation is None:
            variation = VARIATION[method]
        restarts = options.restarts or {"table": POOLED}.get(method, 1)
        box = coding = None
        if method == "table":
            coding, layer = knowledge.coding, _find_layer(model)
            # The weights' decay moves a layer by its own weights, too.
            if layer is not None and not training.weight_decay:
                batches = [replace(batch, span=_read_span(batch, layer)) for batch in batches]
        else:
            box = self.box_of(knowledge, model.input_shape)
        how = Search(method, options.iterations, restarts, variation, box, options.statistics, options.order, coding)
        searched = self._search_batches(batches, how, model, imitated, client.device, seen)
        images, labels, objectives, unsure = zip(*searched, strict=True)
        return ReconstructedExamples(
            batches=tuple(replies),
            method=method,
            iterations=options.iterations,
            restarts=restarts,
            variation=variation,
            statistics=options.statistics,
            order=options.order,
            box=None if box is None else (tuple(box[0].flatten().tolist()), tuple(box[1].flatten().tolist())),
            label=label,
            targets=knowledge.asked(),
            images=np.concatenate(images),
            labels=np.concatenate(labels),
            of_batch=np.repeat(np.arange(len(batches)), counts),
            objectives=np.stack(objectives),
            unsure=None if coding is None else np.concatenate(unsure),
            imitate="middle" if self._is_middle(record) else "steps",
        )

    def _is_middle(self, record: Record) -> bool:
        """Say whether one gradient stands for all steps; a client of FedSGD sends a gradient as it is."""
        return self.options.imitate == "middle" and record.protocol != "fedsgd"

    def method_of(self, knowledge: Knowledge) -> Method:
        """Say which search is made."""
        coding = knowledge.coding
        if self.options.method is None:
            # Numbers alone leave nothing to relax.
            return "cos" if coding is None or all(coding.is_number) else "table"
        if self.options.method == "table" and coding is None:
            raise NeedsError(
                f"attack {self.name}: method=table needs a table whose coding is known, and the knowledge states none; "
                "take method=cos"
            )
        return self.options.method

    def _read_batches(
        self, seen: Seen, architecture: nn.Module, training: LocalSGD, label: Labels
    ) -> tuple[list[ReplyBatch], list[InvertedReply]]:
        """Read what the replies that are asked about tell of their batches, and whose they are."""
        layers = sum(isinstance(layer, _BatchNorm) for layer in architecture.modules())
        typical = None
        if seen.knowledge.coding is not None:
            typical = np.array([seen.knowledge.coding.mean], dtype=np.float32)
        batches: list[ReplyBatch] = []
        replies: list[InvertedReply] = []
        for name, number, reply in self.list_chosen(seen.record, seen.knowledge):
            try:
                batch = self._batch_of(reply, seen.record, architecture, training, label, typical)
            except (ModelError, RecordError) as cause:
                seen.notes.append(f"round {number}, client {name} left out: {cause}")
                continue
            batches.append(batch)
            used = len(batch.statistics) // 2
            replies.append(InvertedReply(reply.node, name, number, batch.records, used))
            if self.options.statistics and used < layers:
                seen.notes.append(
                    f"round {number}, client {name}: the buffers of {layers - used} of {layers} layers of batch "
                    "normalisation do not reveal the means and variances of its batches: they are missing, unchanged "
                    "or not finite, or counted a different number of batches; the attack continues without them"
                )
        return batches, replies

    def _note_order(self, client: ClientModel, counts: Sequence[int]) -> list[str]:
        """Note what the attack does about the order of mini-batches, if any client has several."""
        several = [count for count in counts if len(client.sizes(count)) > 1]
        if not several:
            return []
        taken = "assumes one order for all epochs"
        if self.options.order == "searched" and all(client.can_order(count) for count in several):
            taken = "searches for it with the examples"
        return [
            "Clients train in several mini-batches an epoch, in an order that the server does not know; the attack "
            f"{taken}"
        ]

    def _search_batches(
        self,
        batches: Sequence[ReplyBatch],
        how: Search,
        model: ModelKnowledge,
        training: LocalSGD,
        device: torch.device,
        seen: Seen,
    ) -> list[Reconstructed]:
        """Search for the examples of each batch."""
        by_batch: dict[int, Reconstructed] = {}
        for of_group in fan_out(
            partial(_search, model, training, how, seen.seed, self.options.memory, device),
            list(groups_of(batches, how, training, self.options.memory, device)),
            workers=self.options.workers,
            memory=self.options.memory,
            device=device,
        ):
            by_batch |= of_group
            seen.progress(len(by_batch), len(batches))
        return [by_batch[number] for number in range(len(batches))]

    def box_of(self, knowledge: Knowledge, shape: tuple[int, ...]) -> Box | None:
        """Return the range of inputs, in a shape that broadcasts with an example; none where it is not known."""
        axes = (1,) * (len(shape) - 1)
        if not isinstance(self.options.box, str):
            low, high = (np.full((1, *axes), limit, dtype=np.float32) for limit in self.options.box)
            return low, high
        # Columns of a table have ranges that nobody scaled them to.
        if self.options.box == UNBOUNDED or len(shape) != 3:
            return None
        if knowledge.limits is not None:
            low, high = np.array(knowledge.limits, dtype=np.float32).T.reshape(2, -1, *axes)
            return low, high
        if knowledge.auxiliary is None:
            return None
        x = knowledge.auxiliary.x
        low, high = x.min(axis=(0, 2, 3)), x.max(axis=(0, 2, 3))
        return low.reshape(-1, *axes), high.reshape(-1, *axes)

    def _label_of(self, model: ModelKnowledge) -> Labels:
        """Say how labels are found under the model's loss."""
        if model.loss == "cross-entropy":
            return self.options.label or "rule"
        if self.options.label == "rule":
            raise NeedsError(f"attack {self.name}: label=rule is about cross-entropy, and the loss is {model.loss!r}")
        return "free"

    def _batch_of(
        self,
        reply: Observation,
        record: Record,
        model: nn.Module,
        training: LocalSGD,
        label: Labels,
        typical: NDArray[np.float32] | None,
    ) -> ReplyBatch:
        """Read what a reply tells of its batch; raises a ModelError or a RecordError if it cannot be used."""
        movement = movement_of(reply, record, model, training)
        if not is_finite(movement.values()) or is_zero(movement.values()):
            raise RecordError("what it sent is zero or not finite")
        count = self.options.records or max(int(reply.count or 1), 1)
        if count > _MOST_RECORDS:
            raise RecordError(f"it says that it has {count} examples; at most {_MOST_RECORDS} are searched for")
        if training.steps(count) > _MOST_STEPS and not self._is_middle(record):
            raise RecordError(
                f"a client of {count:,} examples makes {training.steps(count):,} steps according to knowledge of "
                f"training; at most {_MOST_STEPS:,} are imitated: state fewer epochs, or a larger batch_size"
            )
        received = dict(reply.received or {})
        labels = None
        if label == "rule":
            states = [received]
            if record.protocol != "fedsgd":
                states.append(dict(reply.arrays or {}))
            labels = _read_labels(model, movement, count, training, states, typical)
        statistics = read_statistics(model, received, reply.arrays or {}, training.steps(count))
        if self._is_middle(record):
            received, movement = take_middle(received, dict(reply.arrays or {}), movement, training.reach(count))
        return ReplyBatch(received, movement, count, labels, statistics)

    def list_chosen(self, record: Record, knowledge: Knowledge) -> list[tuple[str, int, Observation]]:
        """List client, round and reply of all that is to be attacked, client by client."""
        wanted = self.options.clients
        replies: dict[str, dict[int, Observation]] = defaultdict(dict)
        for round_ in record:
            for observation in round_.observations:
                client = knowledge.client_of(observation.node)
                asked = not wanted or client in wanted or observation.node in wanted
                if asked and replied(observation):
                    replies[client].setdefault(round_.number, observation)
        chosen = []
        for client, by_round in replies.items():
            for number in choose_rounds(self.options.updates, sorted(by_round)):
                chosen.append((client, number, by_round[number]))
        return chosen
