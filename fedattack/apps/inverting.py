"""Search for clients' examples through the app's own step, where the attacker can build no model of the app.

It runs in the process that asks the app; see :mod:`fedattack.apps.answering`. The search is that of the attack
``inversion``. What a client would send of other examples is computed by the tape of the app's step, which is played
with examples and parameters that want gradients, once for each step that the client makes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor, nn

from fedattack.apps.counting import count_seconds
from fedattack.apps.player import STEPPING, Player
from fedattack.apps.targets import FEW
from fedattack.attacks import Knowledge, ModelKnowledge
from fedattack.attacks.lookups import is_mask
from fedattack.base.errors import DataError, FedAttackError, short
from fedattack.base.stored import Name
from fedattack.base.structured import MASK, SEPARATOR, leaves_of, list_searchable, searchable
from fedattack.learning import LocalSGD
from fedattack.learning.importing import one_line, trust_given
from fedattack.record import Observation, Record
from fedattack.record.format import Arrays
from fedattack.threats.attribute.gradient_matching import soft_targets
from fedattack.threats.inversion.gradient_inversion import (
    ONE_GRADIENT,
    ClientModel,
    ReplyBatch,
    Search,
    Tensors,
    invert_group,
)
from fedattack.threats.inversion.inversion import (
    VARIATION,
    GradientInversion,
    InvertedReply,
    ReconstructedExamples,
    client_training,
    take_middle,
    take_one_gradient,
)
from fedattack.threats.inversion.options import OF_MANY, POOLED
from fedattack.witness.tape import BATCH_NORM, Tape

# Gradients that are computed for a reply, and seconds, counted and not measured, that all searches may take.
_ITERATIONS, _SECONDS = 1_000, 10.0
# Seconds, counted likewise, for a client of many examples.
_SECONDS_OF_MANY = 1.0

# A gradient that is differentiated takes about as long as so many.
_DIFFERENTIATED = 2

# Examples of each class by whose gradients labels are told.
_OF_A_CLASS = 8


class AppClient(ClientModel):
    """What a client computes in a round, by the tape of the app's own step.

    Parameters
    ----------
    tape
        Of the step, under weights of the client's form.
    label
        Where the labels stand in the step, and their shape; ``None`` where the step takes no labels.
    searched
        The shapes of what is searched for, by place; what an example is searched by is all of it in a row.
    fixed
        By place, (1, …): what is not searched for, such as masks and ids.
    learned
        By the names of the weights, the parameters that the step trains.
    training
        How often, and in which batches, the client makes it.
    """

    def __init__(
        self,
        tape: Tape,
        label: tuple[str, tuple[int, ...]] | None,
        searched: Mapping[str, tuple[int, ...]],
        fixed: Mapping[str, NDArray[Any]],
        learned: Mapping[str, Tensor],
        training: LocalSGD,
    ) -> None:
        self.device = torch.device("cpu")
        self.model: nn.Module = nn.Identity()
        # Labels are given to the step as they are.
        self.loss, self.training = "the app's own", training
        self._tape, self._label, self._learned = tape, label, dict(learned)
        self._searched = searched
        self._fixed = {place: torch.from_numpy(value) for place, value in fixed.items()}
        self._parameters, self._buffers = {*learned}, set()
        self._momenta, self._cuts = {}, {}
        self._is_together = True

    @classmethod
    def of(cls, player: Player, x: NDArray[Any], training: LocalSGD) -> "AppClient":
        """Make a client of what plays the app's step.

        Raises
        ------
        DataError
            If the step takes no numbers with a point, or normalises by the batch.
        """
        tape, learned = player.tape, player.find_learned()
        if not learned:
            raise DataError("the app's models do not hold the weights as they are sent")
        if any(isinstance(layer, BATCH_NORM) for model in tape.models for layer in model.modules()):
            raise DataError("the app's model normalises by the batch, and the step is played without")
        rows, held = tape.rows.dtype, leaves_of(x)
        searched: dict[str, tuple[int, ...]] = {}
        fixed: dict[str, NDArray[Any]] = {}
        label = None
        for place in rows.names or ():
            if place not in held:
                label = place, rows[place].shape
            elif rows[place].base.kind == "f" and place in (list_searchable(x) or ["0"]):
                searched[place] = held[place].shape[1:]
            else:
                fixed[place] = _find_common(place, held[place])
        if not searched:
            raise DataError("the app's step takes examples of whole numbers, which no gradient moves")
        return cls(tape, label, searched, fixed, learned, training)

    def describe_fixed(self) -> str:
        """Say what is not searched for; empty if everything is."""
        if not self._fixed:
            return ""
        return (
            f"of each example the floating-point numbers alone ({short(', '.join(self._searched), 80)}) are searched "
            f"for; {short(', '.join(self._fixed), 80)} are held fixed: masks at 1, and all else at what is most "
            "frequent among the attacker's examples"
        )

    def outputs(self, shape: tuple[int, ...]) -> int:
        """Return of how many numbers a label is."""
        return 1

    def can_order(self, records: int) -> bool:
        """Say that no order is searched for: the step gives no losses of single examples."""
        return False

    def follow_all(
        self, parameters: Tensors, buffers: Tensors, x: Tensor, targets: Tensor, *parts: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Follow several clients together, or one after another where PyTorch cannot vectorise the app's code."""
        # What is computed alone is faster without vectorising.
        if self._is_together and len(x) > 1:
            try:
                return super().follow_all(parameters, buffers, x, targets, *parts)
            except Exception:  # PyTorch cannot vectorise all that an app may do
                self._is_together = False
        moved = []
        for index in range(len(x)):
            of_one = {name: value[index] for name, value in parameters.items()}
            moved.append(self.follow(of_one, {}, x[index], targets[index])[0])
        return {name: torch.stack([each[name] for each in moved]) for name in moved[0]}, {}

    def _lose(
        self, current: Tensors, buffers: Tensors, records: Tensor, wanted: Tensor, part: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        count, leaves = len(records), dict[str, Tensor]()
        sizes = [math.prod(shape) for shape in self._searched.values()]
        parts = records.reshape(count, -1).split(sizes, dim=1)
        for (place, shape), part_of_place in zip(self._searched.items(), parts, strict=True):
            leaves[place] = part_of_place.reshape(count, *shape)
        for place, value in self._fixed.items():
            leaves[place] = value.expand(count, *value.shape[1:])
        if self._label is not None:
            place, shape = self._label
            leaves[place] = wanted.reshape(count, *shape)
        replaced = {id(self._learned[name]): value for name, value in current.items()}
        return self._tape.play(leaves, replaced=replaced), {}


def _find_common(place: str, leaf: NDArray[Any]) -> NDArray[Any]:
    """Return (1, …): 1 of masks, and of all else what is most frequent in each place among examples (n, …)."""
    if place.split(SEPARATOR)[-1] == MASK or is_mask(leaf):
        return np.ones_like(leaf[:1])
    flat = leaf.reshape(len(leaf), -1)
    columns = []
    for column in flat.T:
        values, counts = np.unique(column, return_counts=True)
        columns.append(values[counts.argmax()])
    return np.array(columns, dtype=leaf.dtype).reshape(1, *leaf.shape[1:])


def invert_replies(
    record: Record,
    knowledge: Knowledge,
    nodes: Sequence[Name],
    examples: tuple[NDArray[Any], NDArray[np.generic]],
    play: Callable[[Arrays, str], Player],
    planted: Mapping[str, int] = MappingProxyType({}),
) -> tuple[ReconstructedExamples, list[str]]:
    """Search for the examples behind the first reply of each of these nodes.

    Parameters
    ----------
    record, knowledge
        What the server saw, and what the attacker knows.
    nodes
        Whose replies.
    examples
        Labelled examples (n, …), (n,) that the attacker asks about, whose gradients tell labels.
    play
        Returns what plays the app's step under weights, of a node.
    planted
        By node, the example on which alone its client sends one plain step in the place of its reply, for a positive
        control; none for the replies as they are.

    Raises
    ------
    DataError
        If none can be searched; the message says why.
    """
    x, y = examples
    training = knowledge.training
    if training is None:
        raise DataError("it is not known how clients train")
    if training.optimizer != "SGD" or record.protocol != "fedavg":
        raise DataError("only updates of plain SGD, with or without momentum, are searched through the app's step")
    training = client_training(record, training)
    if planted:
        training = LocalSGD(epochs=1, batch_size=0, lr=STEPPING)
    attack = GradientInversion().with_options({"clients": ",".join(nodes)})
    method = attack.method_of(knowledge)
    restarts = {"table": POOLED}.get(method, 1)
    shape = searchable(x).shape[1:]
    coding = box = None
    if method == "table":
        coding = knowledge.coding
    else:
        box = attack.box_of(knowledge, shape)
    chosen = attack.list_chosen(record, knowledge)
    is_middle = not planted and any((reply.count or 1) > FEW for _, _, reply in chosen)
    iterations, left = (OF_MANY, _SECONDS_OF_MANY) if is_middle else (_ITERATIONS, _SECONDS)
    how = Search(method, iterations, restarts, VARIATION[method], box, coding=coding)
    is_class = np.issubdtype(y.dtype, np.integer)
    found, replies, notes = [], [], []
    for client, number, reply in chosen:
        try:
            batch, of_app = _read_batch(reply, training, x, y, is_class, is_middle, play, planted.get(reply.node))
            seconds = _count_seconds(of_app, batch, shape, iterations)
            if seconds > left:
                raise DataError(
                    f"its search of {iterations:,} gradients is counted as {seconds:.1f} s, and {left:.1f} s "
                    "of the time for searches through the app are left"
                )
            left -= seconds
            (rebuilt,) = invert_group(of_app, {0: batch}, shape, how, seed=record.seed or 0).values()
        except DataError as cause:
            notes.append(f"round {number}, client {client} left out: {cause}")
            continue
        except Exception as cause:  # the app's own code may raise anything
            notes.append(f"round {number}, client {client} left out: {one_line(cause)}")
            continue
        found.append(rebuilt)
        said = of_app.describe_fixed()
        replies.append(InvertedReply(reply.node, client, number, batch.records, 0))
    if not found:
        raise DataError("; ".join(notes) or "no reply can be used")
    played = "at the middle of its path for all of a client's" if is_middle else "for each step of theirs"
    notes.append(
        f"the attacker searched through the clients' own app: it plays one step of the app {played}, "
        f"with {iterations:,} gradients for each reply"
    )
    notes += [said] if said else []
    # Of rows of a table alone.
    unsure = [each.unsure for each in found if each.unsure is not None]
    return (
        ReconstructedExamples(
            batches=tuple(replies),
            method=method,
            iterations=iterations,
            restarts=restarts,
            variation=VARIATION[method],
            statistics=0.0,
            order="fixed",
            box=None if box is None else (tuple(box[0].flatten().tolist()), tuple(box[1].flatten().tolist())),
            label="rule" if is_class else "free",
            targets=knowledge.asked(),
            images=np.concatenate([each.x for each in found]),
            labels=np.concatenate([each.y for each in found]),
            of_batch=np.repeat(np.arange(len(found)), [each.records for each in replies]),
            objectives=np.stack([each.objectives for each in found]),
            unsure=np.concatenate(unsure) if unsure else None,
            imitate="middle" if is_middle else "steps",
        ),
        notes,
    )


def explain_no_search(model: ModelKnowledge, labels: NDArray[np.generic], *, is_bounded: bool) -> str:
    """Say why no examples can be searched for by a model, which is tried once; empty if they can.

    Parameters
    ----------
    model
        The clients'.
    labels
        (n,): one for each example.
    is_bounded
        Whether the search must not take long, as of a client of many examples.
    """
    try:
        client = ClientModel(model.build(), trust_given(model.loss), ONE_GRADIENT)
        received = {name: value.numpy() for name, value in client.model.state_dict().items()}
        x = torch.zeros((len(labels), *model.input_shape))
        targets = soft_targets(client.loss, labels, client.outputs(model.input_shape))
        of_gradient = count_seconds(lambda: client.follow(*client.split(received), x, targets))
        seconds = _DIFFERENTIATED * OF_MANY * of_gradient
        if is_bounded and seconds > _SECONDS_OF_MANY:
            searched = f"the {len(labels)} examples of the smallest client"
            return f"a search for {searched} is counted as {seconds:.0f} s, which is too long"
        # Any movement will do.
        known = None if model.loss == "mse" else labels.astype(np.int64)
        batch = ReplyBatch(received, received, len(labels), known)
        invert_group(client, {0: batch}, model.input_shape, Search(iterations=1))
    except FedAttackError as cause:
        return str(cause)
    except Exception as cause:  # the app's own model may raise anything
        return f"no gradient of a gradient can be computed by the clients' model: {one_line(cause)}"
    return ""


def search_step(
    record: Record, knowledge: Knowledge, node: Name, row: int, found: ReconstructedExamples
) -> NDArray[np.float32]:
    """Search for one target, as if a client had sent one plain step on that alone, by the model that is known.

    Parameters
    ----------
    record, knowledge
        What the server saw, as models, and what the attacker knows.
    node, row
        Whose first reply is replaced, and the target's index.
    found
        How the attack searched.

    Returns
    -------
    ndarray
        (1, *shape): the example that was found.

    Raises
    ------
    DataError
        If there is no model, no target, or no reply of that node.
    """
    model, targets = knowledge.model, knowledge.targets
    if model is None or targets is None:
        raise DataError("no model can be built to make a step with")
    attack = GradientInversion().with_options({"clients": node})
    _, _, reply = next(iter(attack.list_chosen(record, knowledge)), (None, None, None))
    if reply is None or reply.received is None:
        raise DataError(f"the record holds no reply of {node} with the model that it answers")
    loss, received = trust_given(model.loss), dict(reply.received)
    client = ClientModel(model.build(), loss, ONE_GRADIENT)
    state = client.split(received)
    x, y = targets.x[[row]], targets.y[[row]]
    wanted = soft_targets(loss, y, client.outputs(x.shape[1:]))
    try:
        movement = client.movement(*state, torch.from_numpy(np.asarray(x, dtype=np.float32)), wanted)
    except Exception as cause:  # a batch of one is too small for some normalisations
        raise DataError(f"no step can be made on a single example: {one_line(cause)}") from None
    sent = {name: value.detach().numpy() for name, value in movement.items()}
    # A single label is read off a step without fail.
    labels = np.asarray(y, dtype=np.int64) if found.label == "rule" else None
    box = coding = None
    if found.method == "table":
        coding = knowledge.coding
    else:
        box = attack.box_of(knowledge, model.input_shape)
    how = Search(found.method, found.iterations, found.restarts, found.variation, box, coding=coding)
    batch = ReplyBatch(received, sent, 1, labels)
    (rebuilt,) = invert_group(client, {0: batch}, model.input_shape, how, seed=record.seed or 0).values()
    return rebuilt.x


def _read_batch(
    reply: Observation,
    training: LocalSGD,
    x: NDArray[Any],
    y: NDArray[np.generic],
    is_class: bool,
    is_middle: bool,
    play: Callable[[Arrays, str], Player],
    row: int | None,
) -> tuple[ReplyBatch, AppClient]:
    """Read what a reply, or a plain step on one row, tells of its batch, and make the client that sent it."""
    if reply.received is None or reply.arrays is None:
        raise DataError("the reply, or the model that it answers, is not in the record")
    received, update, count = dict(reply.received), reply.update(), max(int(reply.count or 1), 1)
    player = play(received, reply.node)
    player.take(received)
    client = AppClient.of(player, x, take_one_gradient(training) if is_middle else training)
    names = [*player.find_learned()]
    if row is not None:
        sent = player.step([row])
        update, count = {name: sent[name] - received[name] for name in names}, 1
        player.take(received)
    movement = {name: (-update[name] / np.float32(training.lr)).astype(np.float32) for name in names}
    labels = None
    if is_class:
        labels = _tell_labels(player, movement, count, y)
    start = {name: received[name] for name in names}
    if is_middle:
        start, movement = take_middle(start, dict(reply.arrays), movement, training.reach(count))
    return ReplyBatch(start, movement, count, labels), client


def _count_seconds(client: AppClient, batch: ReplyBatch, shape: tuple[int, ...], iterations: int) -> float:
    """Count how many seconds a search takes on a processor of a fixed speed."""
    labels = np.zeros(batch.records, dtype=np.float32) if batch.labels is None else batch.labels
    x, targets = torch.zeros((batch.records, *shape)), torch.from_numpy(labels)
    of_gradient = count_seconds(lambda: client.follow(*client.split(batch.received), x, targets))
    return _DIFFERENTIATED * iterations * of_gradient


def _tell_labels(player: Player, movement: Arrays, count: int, y: NDArray[np.generic]) -> NDArray[np.int64]:
    """Tell the labels (count,) of a batch: the mixture of gradients of single labels that is nearest to how it moved.

    The arrays that come last tell most of labels, and least of examples.
    """
    learned = [*player.find_learned().items()][-2:]
    classes = np.unique(y)
    directions = []
    for label in classes:
        rows = np.flatnonzero(y == label)[:_OF_A_CLASS]
        gradients = [player.tape.gradient_of(player.leaves, int(row), [value for _, value in learned]) for row in rows]
        directions.append(torch.stack(gradients).mean(dim=0).double().numpy())
    moved = np.concatenate([movement[name].ravel() for name, _ in learned]).astype(np.float64)
    weights = nnls(np.stack(directions, axis=1), moved)[0]
    share = count * weights / max(weights.sum(), np.finfo(np.float64).tiny)
    counts = np.floor(share).astype(np.int64)
    # The largest remainders make up what rounding took.
    for index in np.argsort(counts - share)[: count - counts.sum()]:
        counts[index] += 1
    return np.repeat(classes.astype(np.int64), counts)
