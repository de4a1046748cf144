"""Read sequences of tokens off updates, through the app's own step, where the attacker can build no model of the app.

It runs in the process that asks the app; see :mod:`fedattack.apps.answering`. The search is that of the attack
``dager``. Which arrays are words and projections of attention is known by the roles of arrays. What enters a projection
is read where PyTorch multiplies by it, so that no layer type and no name is needed.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedattack.apps.counting import count_seconds
from fedattack.apps.player import Form, Player, form_of
from fedattack.attacks.base import Seen
from fedattack.attacks.knowledge import Knowledge
from fedattack.attacks.roles import PROJECTION, ArrayRole, choose_form, find_words
from fedattack.base.errors import DataError, FedAttackError, NeedsError
from fedattack.learning.importing import one_line
from fedattack.record import Record
from fedattack.record.format import Arrays
from fedattack.threats.sequences.dager import ReadSequences, SpanCheck
from fedattack.threats.sequences.layers import Entry, InputReader, LayerCall, Reached, Weight, has_moved
from fedattack.witness.tape import leaves_for

# Seconds, counted and not measured, that all sequences may be put through the app's step.
_SECONDS = 10.0

# By how many sequences at once it is counted how long one more takes.
_COUNTED = 32

_PRODUCTS = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.baddbmm.default,
}
"""The operations of PyTorch that multiply what enters a layer by a matrix; that comes last."""


@dataclass(frozen=True)
class _Product:
    """What was multiplied by an array: rows (m, width), and whether the array's first axis is that of the outputs."""

    name: str
    outputs_first: bool
    rows: Tensor


class _Products(TorchDispatchMode):
    """Yields what is multiplied by some of a model's matrices to ``note``."""

    def __init__(self, matrices: Mapping[str, Tensor], note: Callable[[_Product], None]) -> None:
        super().__init__()
        self._matrices = {matrix.untyped_storage().data_ptr(): (name, matrix) for name, matrix in matrices.items()}
        self._note = note

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PRODUCTS:
            given, by = args[-2:]
            name, matrix = self._matrices.get(by.untyped_storage().data_ptr(), ("", by))
            # In a product of batches one matrix stands for all of them.
            if name and (by.ndim == 2 or len(by) == 1 or not by.stride(0)):
                outputs_first = by.stride()[-2:] != matrix.stride()
                self._note(_Product(name, outputs_first, given.detach().reshape(-1, given.shape[-1])))
        return func(*args, **(kwargs or {}))


class StepReader(InputReader):
    """Puts sequences into the app's own step.

    Parameters
    ----------
    roles
        What arrays are, of each form of model.
    examples
        (n, …), (n,): labelled examples of the attacker's.
    play
        Returns what plays the step under weights, of a node.

    """

    def __init__(
        self,
        roles: Sequence[ArrayRole],
        examples: tuple[NDArray[Any], NDArray[Any]],
        play: Callable[[Arrays, str], Player],
    ) -> None:
        self._roles, self._examples, self._play = roles, examples, play
        self._matrices: dict[str, Tensor] = {}
        self._projections: set[str] = set()
        # By array, whether rows of what enters are ordered by sequence first, or by token.
        self._is_by_sequence: dict[str, bool] = {}
        self._left = _SECONDS
        # By layer and tokens, for all weights of one form.
        self._costs: dict[Form, dict[tuple[str, int], tuple[float, float]]] = {}

    def take(self, weights: Mapping[str, NDArray[Any]], node: str, where: str, notes: list[str]) -> bool:
        """Put in what a client was sent."""
        try:
            roles = choose_form(self._roles, weights)
            words = find_words(roles)
            self._player = self._play(weights, node)
            self._player.take(weights)
            x, y = self._examples
            leaves = leaves_for(self._player.tape, x[:1, ...], y[:1])
            self._put_ids(leaves, words.ids, words.shape[0])
        except FedAttackError as cause:
            notes.append(f"{where}: {cause}")
            return False
        except Exception as cause:  # the app's own code may raise anything
            notes.append(f"{where}: {one_line(cause)}")
            return False
        self._projections = {role.name for role in roles if role.kind == PROJECTION}
        self._cost = self._costs.setdefault(form_of(weights), {})
        learned = self._player.find_learned()
        self._matrices = {name: matrix for name, matrix in learned.items() if matrix.ndim == 2}
        if not self._matrices:
            notes.append(f"{where}: the weights do not stand in the app's models as they are sent")
        return bool(self._matrices)

    def choose(self, moved: Collection[str]) -> tuple[Entry, Entry] | None:
        """Choose the first projections before tokens are mixed, and the first ones after that."""
        entries = []
        for entry in self.entries():
            if has_moved(entry, moved) and any(weight.name in self._projections for weight in entry.weights):
                entries.append(entry)
        first = next((entry for entry in entries if not entry.mixes), None)
        second = next((entry for entry in entries if entry.mixes), None)
        if first is None or second is None:
            raise NeedsError(
                "it needs projections of attention that moved before tokens are mixed, and others after that; in the "
                "app's step there are none"
            )
        return first, second

    def read(self, ids: Tensor, module: str) -> Tensor:
        """Return what enters a layer for sequences (n, tokens), as (n, tokens, width).

        Raises
        ------
        DataError
            If all that was put through the step by now takes longer than it may.
        """
        key = module, ids.shape[1]
        if key not in self._cost:
            self._cost[key] = self._count(*key)
        at_once, each = self._cost[key]
        self._left -= at_once + each * len(ids)
        if self._left < 0:
            raise DataError(
                f"the search takes more than the {_SECONDS:.0f} s that sequences may be put through the app's own step"
            )
        return super().read(ids, module)

    def _count(self, module: str, tokens: int) -> tuple[float, float]:
        """Return how many seconds the step takes at all, and how many more for each sequence."""
        one, some = (
            count_seconds(partial(self._read, torch.zeros((count, tokens), dtype=torch.int64), module))
            for count in (1, _COUNTED)
        )
        each = max(some - one, 0.0) / (_COUNTED - 1)
        return max(one - each, 0.0), each

    def _call(self, leaves: Mapping[str, Tensor]) -> None:
        # Where gradients are wanted, PyTorch multiplies by parameters one after another, as the client does.
        with torch.enable_grad():
            self._player.tape.play(leaves)

    def _read(self, ids: Tensor, module: str) -> Tensor:
        reached: list[Tensor] = []

        def note(product: _Product) -> None:
            reached.append(product.rows)
            raise Reached

        try:
            with suppress(Reached), _Products({module: self._matrices[module]}, note):
                self._call(self._make_leaves(ids))
        except Exception as cause:  # the app's own code may raise anything
            raise DataError(f"the app's step cannot take {ids.shape[1]} tokens: {one_line(cause)}") from None
        if not reached or len(reached[0]) != ids.numel():
            raise DataError(f"what enters {module} is not one row for each of {ids.shape[1]} tokens")
        return _part(reached[0], ids.shape, self._is_by_sequence[module])

    def _width_of(self, module: str) -> int:
        return max(self._matrices[module].shape)

    def _watch(self, ids: Tensor) -> list[LayerCall]:
        # If sequences are alike, rows are alike in one of the two orders.
        orders = {product.name: _find_order(product.rows, ids.shape) for product in self._list(ids[:1].expand_as(ids))}
        calls: list[LayerCall] = []
        for product in self._list(ids):
            order = orders.get(product.name)
            if order is None or len(product.rows) != ids.numel():
                continue
            self._is_by_sequence[product.name] = order
            given = _part(product.rows, ids.shape, order)
            # What enters several layers is the same tensor to those that group them.
            if calls and given.shape == calls[-1].given.shape and torch.equal(given, calls[-1].given):
                given = calls[-1].given
            calls.append(LayerCall(product.name, Weight(product.name, product.outputs_first), given))
        return calls

    def _list(self, ids: Tensor) -> list[_Product]:
        """List what is multiplied by matrices for a few sequences."""
        found: list[_Product] = []

        def note(product: _Product) -> None:
            # Later operations may write in its place.
            found.append(_Product(product.name, product.outputs_first, product.rows.clone()))

        try:
            with _Products(self._matrices, note):
                self._call(self._make_leaves(ids))
        except Exception as cause:  # the app's own code may raise anything
            raise NeedsError(f"the app's step cannot take {ids.shape[1]} tokens: {one_line(cause)}") from None
        return found


def _part(rows: Tensor, shape: torch.Size, is_by_sequence: bool) -> Tensor:
    """Return rows (n · tokens, width) as (n, tokens, width)."""
    count, tokens = shape
    if is_by_sequence:
        return rows.reshape(count, tokens, -1)
    return rows.reshape(tokens, count, -1).transpose(0, 1)


def _find_order(rows: Tensor, shape: torch.Size) -> bool | None:
    """Say whether rows of sequences that are all alike are ordered by sequence; ``None`` if they are in no order."""
    if len(rows) != shape.numel():
        return None
    for is_by_sequence in (True, False):
        parts = _part(rows, shape, is_by_sequence)
        if torch.allclose(parts, parts[:1].expand_as(parts), rtol=1e-4, atol=1e-6):
            return is_by_sequence
    return None


def read_sequences(
    record: Record,
    knowledge: Knowledge,
    examples: tuple[NDArray[Any], NDArray[Any]],
    play: Callable[[Arrays, str], Player],
) -> tuple[ReadSequences, list[str]]:
    """Read sequences off the updates of a record; returns them with notes.

    Parameters
    ----------
    record, knowledge
        What the server saw, and what the attacker knows.
    examples
        (n, …), (n,): labelled examples of the attacker's.
    play
        Returns what plays the app's step under weights, of a node.

    Raises
    ------
    NeedsError
        If nothing can be read; the message says why.
    """
    reader = StepReader(knowledge.roles, examples, play)
    seen = Seen(record, knowledge, record.seed or 0, "cpu", lambda done, total: None)
    found = SpanCheck().search(seen, reader)
    seen.notes.append("the attacker put sequences through the clients' own app, up to its second layer of attention")
    return found, seen.notes
