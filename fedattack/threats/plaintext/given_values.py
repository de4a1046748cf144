"""What known examples give under the models that clients sent and were sent: losses, predictions and embeddings."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedattack.attacks.answers import Answers
from fedattack.attacks.base import Seen
from fedattack.attacks.knowledge import ModelKnowledge, Targets
from fedattack.attacks.matching import fits_model
from fedattack.base.errors import FedAttackError, ModelError, RecordError
from fedattack.learning import losses_of_models, per_record_loss
from fedattack.learning.importing import trust_given
from fedattack.learning.inputs import Inputs, call
from fedattack.learning.returned import output_in
from fedattack.learning.torch_utils import activations, in_mode, to_tensor
from fedattack.record import Observation
from fedattack.record.format import PROTOCOLS, Arrays
from fedattack.threats.plaintext.value_sources import OF_CLIENT, OF_SERVER, Computes, Given, Rows

LOSSES = "losses"

# Numbers that all models together may compute, and the most and fewest models that are asked.
_MOST_COMPUTED, _MOST_MODELS, _FEWEST_MODELS = 2**31, 64, 4

# Classes of which each is compared alone, and numbers of the widest embedding.
_MOST_CLASSES, _WIDEST = 10, 4096

# Examples that pass a model at once.
_CHUNK = 128

# How far apart two computations of a number in float32 are, as a part of it, and of the numbers that it is made of.
_ROUNDING, _OF_OUTPUTS = 4e-6, 4e-7

Floats = NDArray[np.float64]
Column = tuple[str, Floats, Floats]
"""What values are, the values (examples, width), and how far apart two computations of them may be."""


def choose_computing(seen: Seen, widths: Collection[int]) -> Computes:
    """Return what computes values of the known examples: the model that the attacker builds, or the app's answers.

    Parameters
    ----------
    widths
        Of rows that are to be told.

    Raises
    ------
    FedAttackError
        If the model cannot be built.
    """
    targets, answers = seen.knowledge.targets, seen.knowledge.answers
    if targets is None:
        raise AssertionError("the caller looks whether there are targets")
    if answers is not None:
        return _ByAnswers(answers)
    model = seen.knowledge.model
    if model is None:
        raise AssertionError("the caller looks whether there is a model")
    return _ByModel(seen, model, targets, widths)


class _ByAnswers:
    """The losses that the clients' own app gave."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._rows = answers.rows()

    def give(self, rows: Rows) -> Iterator[Given]:
        """Yield the losses under the model of the reply; of other messages under the client's latest one before."""
        if rows.values.shape[1] != 1:
            return
        seqs = [seq for seq, node in self._rows if node == rows.node and seq <= rows.seq]
        if rows.type == "train":
            seqs = [seq for seq in seqs if seq == rows.seq]
        if seqs:
            losses = self._answers.losses[self._rows[max(seqs), rows.node]][:, None]
            yield Given(LOSSES, OF_CLIENT, 1, losses, _ROUNDING * np.abs(losses) + 1e-6)


class _ByModel:
    """The values that a model gives, each model asked once."""

    def __init__(self, seen: Seen, known: ModelKnowledge, targets: Targets, widths: Collection[int]) -> None:
        self._seen = seen
        self._known = known
        self._targets = targets
        self._widths = {width for width in widths if 1 < width <= _WIDEST}
        self._model = known.build()
        self._columns: dict[tuple[str, int, str], list[Column] | None] = {}
        self._rounds = {round_.seq: round_ for round_ in seen.record}
        self._replies: dict[tuple[int, str], Observation] = {}
        for round_ in seen.record:
            for reply in round_.observations:
                if reply.status == "ok":
                    self._replies[round_.seq, reply.node] = reply
        size = sum(value.numel() for value in self._model.state_dict().values())
        try:
            size += activations(self._model, Inputs.of(targets.x[:1]).leaves["0"])
        except (FedAttackError, RuntimeError, KeyError, TypeError, ValueError):
            size *= 2
        most = _MOST_COMPUTED // max(1, size * len(targets))
        self._left = max(_FEWEST_MODELS, min(_MOST_MODELS, most))
        self._is_noted = False

    def give(self, rows: Rows) -> Iterator[Given]:
        """Yield what examples give under the client's own model, and under those that it was sent."""
        keys = self._list_models(rows)
        for key in keys:
            model = OF_CLIENT if key[0] == "reply" else OF_SERVER
            for what, values, errors in self._compute(key) or ():
                width = values.shape[1]
                # Lists that hold several numbers of an example one after another are as long as whole examples.
                flat = rows.values.shape[1] == 1 and width > 1 and len(rows.values) % width == 0
                if flat or rows.values.shape[1] == width:
                    yield Given(what, model, len(keys), values, errors)

    def _list_models(self, rows: Rows) -> list[tuple[str, int, str]]:
        """Name the models that a client had when it sent rows."""
        record, keys = self._seen.record, []
        if rows.type == "train":
            if record.view == "individual" and PROTOCOLS[record.protocol].sends_back:
                keys.append(("reply", rows.seq, rows.node))
            return [*keys, ("received", rows.seq, rows.node)]
        # Between two rounds a client has the model that came out of the one, as an evaluation does, and its own.
        for seq in (rows.seq, rows.seq - 1):
            keys += [("after", seq, ""), ("common", seq, ""), ("reply", seq, rows.node)]
        return keys

    def _read(self, kind: str, seq: int, node: str) -> Arrays | None:
        """Return the arrays of a model; ``None`` where the record does not have it."""
        round_ = self._rounds.get(seq)
        if round_ is None:
            return None
        if kind == "common":
            return round_.common
        if kind == "after":
            return round_.after
        reply = self._replies.get((seq, node))
        if reply is None:
            return None
        return reply.arrays if kind == "reply" else reply.received

    def _compute(self, key: tuple[str, int, str]) -> list[Column] | None:
        """Return what examples give under a model; ``None`` where there is none, or too many were asked."""
        kind, seq, node = key
        try:
            arrays = self._read(kind, seq, node)
            if arrays is None:
                return None
            reply = self._replies.get((seq, node))
            if kind == "received" and reply is not None and not reply.singled_out:
                # All clients were sent this one: it is asked once.
                key = ("common", seq, "")
            if key in self._columns:
                return self._columns[key]
            if self._left <= 0:
                self._note_rest()
                return None
            # Other arrays may stand beside those of the model.
            state = {name: arrays[name] for name in self._model.state_dict() if name in arrays}
        except RecordError:
            return None
        self._columns[key] = None
        if fits_model(self._model, state, f"round {seq + 1}: values of examples", []):
            self._left -= 1
            try:
                self._columns[key] = self._list_columns(state)
            except FedAttackError as cause:
                self._seen.notes.append(f"values of single examples are not computed: {cause}")
                self._left = 0
        return self._columns[key]

    def _note_rest(self) -> None:
        if not self._is_noted:
            self._seen.notes.append(
                "values of single examples are sought under the models of some replies of each client alone, to save "
                "time"
            )
        self._is_noted = True

    def _list_columns(self, state: Arrays) -> list[Column]:
        """Return what all known examples give under one model."""
        targets = self._targets
        loss = per_record_loss(trust_given(self._known.loss))
        losses = losses_of_models(self._model, [state], targets.x, targets.y, loss).numpy()[0]
        layers = _outputs_of_layers(self._model, state, Inputs.of(targets.x), self._widths)
        outputs = layers.pop("")
        size = np.full(len(targets), _OF_OUTPUTS)
        if len(outputs):
            size = _find_rounding(outputs)
        columns = [_as_column(LOSSES, losses, size)]
        if len(outputs):
            columns += _list_predictions(outputs, targets.y, size)
        for name, values in layers.items():
            columns.append(_as_column(f"outputs of {name}", values, _find_rounding(values)))
        return columns


def _find_rounding(outputs: Floats) -> Floats:
    """Return how far apart two computations of each row (examples, width) may be, by its largest number."""
    return np.asarray(_OF_OUTPUTS * np.abs(outputs).max(axis=1, initial=1.0))


def _as_column(what: str, values: Floats, least: Floats) -> Column:
    """Give values (examples,) or (examples, width) their errors, of which ``least`` (examples,) are the smallest."""
    table = values.reshape(len(values), -1)
    return what, table, _ROUNDING * np.abs(table) + least[:, None]


def _list_predictions(outputs: Floats, y: NDArray[Any], size: Floats) -> Iterator[Column]:
    """Yield what may be told of outputs (examples, width): as they are, as probabilities, and beside the label."""
    yield _as_column("outputs", outputs, size)
    width = outputs.shape[1]
    if y.ndim != 1:
        return
    if width == 1:
        difference = outputs[:, 0] - y
        yield _as_column("errors", difference, size)
        yield _as_column("errors", np.abs(difference), size)
        yield _as_column("squared errors", difference**2, size * np.maximum(np.abs(difference), 1))
        yield _as_column("probabilities", 1 / (1 + np.exp(-np.clip(outputs[:, 0], -500, 500))), size)
        return
    shifted = outputs - outputs.max(axis=1, keepdims=True)
    logarithms = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    probabilities = np.exp(logarithms)
    yield _as_column("probabilities", probabilities, size)
    yield _as_column("logarithms of probabilities", logarithms, size)
    yield _as_column("largest probabilities", probabilities.max(axis=1), size)
    yield _as_column("entropies", -(probabilities * logarithms).sum(axis=1), width * size)
    for label in range(min(width, _MOST_CLASSES)):
        yield _as_column(f"probabilities of class {label}", probabilities[:, label], size)
        yield _as_column(f"outputs of class {label}", outputs[:, label], size)
    if y.dtype.kind in "iu" and len(y) and y.min() >= 0 and y.max() < width:
        rows = np.arange(len(y))
        yield _as_column("probabilities of the label", probabilities[rows, y], size)
        others = outputs.copy()
        others[rows, y] = -np.inf
        yield _as_column("margins of the label", outputs[rows, y] - others.max(axis=1), size)


def _outputs_of_layers(model: nn.Module, state: Arrays, x: Inputs, widths: Collection[int]) -> dict[str, Floats]:
    """Return what layers give for examples, (n, width) of some widths, in evaluation mode; of the model itself as "".

    Where the model returns a loss alone, its own outputs are of no rows.
    """
    reference = model.state_dict()
    parameters = {}
    for name, value in state.items():
        parameters[name] = to_tensor(value, dtype=reference[name].dtype, device=reference[name].device)
    parts: dict[str, list[Floats]] = defaultdict(list)
    kept: dict[str, Tensor] = {}
    hooks = []
    for name, module in model.named_modules():
        if name:
            hooks.append(module.register_forward_hook(_keeping(kept, name, widths)))
    try:
        with torch.inference_mode(), in_mode(model, training=False):
            for start in range(0, len(x), _CHUNK):
                kept.clear()
                chunk = x[start : start + _CHUNK]
                returned = call(model, parameters, chunk.leaves)
                for name, output in kept.items():
                    if len(output) == len(chunk):
                        parts[name].append(output.reshape(len(output), -1).double().cpu().numpy())
                outputs = _find_output(returned)
                if outputs is not None and outputs.ndim and len(outputs) == len(chunk):
                    parts[""].append(outputs.reshape(len(outputs), -1).double().cpu().numpy())
    finally:
        for hook in hooks:
            hook.remove()
    joined = {"": np.zeros((0, 1))}
    for name, arrays in parts.items():
        table = np.concatenate(arrays)
        if len(table) == len(x):
            joined[name] = table
    # A layer that gives what the model does is the model's outputs.
    for name in [name for name, table in joined.items() if name and np.array_equal(table, joined[""])]:
        del joined[name]
    return joined


def _find_output(returned: Any) -> Tensor | None:
    """Return the outputs that a model returned; ``None`` where it returned a loss alone."""
    try:
        return output_in(returned)
    except ModelError:
        return None


def _keeping(kept: dict[str, Tensor], name: str, widths: Collection[int]) -> Callable[..., None]:
    """Return a hook that keeps a layer's output if it has a row of some width for each example."""

    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        has_rows = isinstance(output, Tensor) and output.is_floating_point() and output.ndim > 1
        if has_rows and len(output) and output[0].numel() in widths:
            kept[name] = output.detach().clone()

    return keep
