"""Find the layers whose inputs are checked, by what enters them; run a model up to such a layer."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedattack.attacks.lookups import find_ids, is_mask
from fedattack.attacks.matching import fits_model
from fedattack.base.errors import ModelError, NeedsError
from fedattack.base.structured import MASK, SEPARATOR, leaves_of
from fedattack.learning.inputs import Inputs, returned_for
from fedattack.learning.torch_utils import in_mode

Floats = NDArray[np.float64]

# What models call the places of tokens in a sequence.
_PLACES = "position_ids"

# How much two inputs may differ, as a share of the largest number, to count as alike.
_ALIKE = 1e-5

# Numbers that enter a layer at a time.
_AT_ONCE = 2**22


@dataclass(frozen=True)
class Weight:
    """A matrix that multiplies what enters a layer."""

    name: str  # The array's.
    outputs_first: bool  # Whether its first axis is that of the outputs, as in ``nn.Linear``.

    def orient(self, array: NDArray[Any]) -> Floats:
        """Return it with inputs along the first axis."""
        return np.asarray(array.T if self.outputs_first else array, dtype=np.float64)


@dataclass(frozen=True)
class Entry:
    """What enters one layer, or several: queries, keys and values are made of the same numbers."""

    module: str  # The first of these layers.
    weights: tuple[Weight, ...]  # Of all of them.
    mixes: bool  # Whether what enters at a token depends on other tokens.
    looks_ahead: bool  # Whether it depends on later ones.
    by_place: bool  # Whether it depends on the token's place.

    def stack(self, arrays: Mapping[str, NDArray[Any]]) -> Floats:
        """Return the matrices of those layers that are among some arrays beside each other, (width, outputs)."""
        there = [weight for weight in self.weights if weight.name in arrays]
        return np.concatenate([weight.orient(arrays[weight.name]) for weight in there], axis=1)


class Reached(Exception):  # noqa: N818 no error: the way out of a model
    """The layer that was asked for is reached; what follows need not be computed."""


@dataclass(frozen=True)
class LayerCall:
    """What enters a layer for sequences, (n, tokens, width); ``module`` names the layer."""

    module: str
    weight: Weight
    given: Tensor


class InputReader(ABC):
    """Puts sequences into what clients train, as they do, and reads what enters a layer.

    It takes what a client was sent before anything is read.

    Attributes
    ----------
    words
        Rows of the table of words.
    longest
        Tokens of the longest sequence.
    """

    words: int
    longest: int

    def _put_ids(self, sample: Mapping[str, NDArray[Any]], place: str, words: int) -> None:
        """Note how ids are put in: where they stand in a ``sample``, by its places (1, …), and how many words are."""
        self._sample, self._place = sample, place
        self.words, self.longest = words, sample[place].shape[1]

    @abstractmethod
    def take(self, weights: Mapping[str, NDArray[Any]], node: str, where: str, notes: list[str]) -> bool:
        """Put in what a client was sent; ``False``, with a note that begins with ``where``, if it cannot be."""

    @abstractmethod
    def choose(self, moved: Collection[str]) -> tuple[Entry, Entry] | None:
        """Choose the two entries that are checked, of which arrays moved; ``None`` if there are no two.

        Raises
        ------
        NeedsError
            If nothing can be computed of sequences.
        """

    @abstractmethod
    def _call(self, leaves: Mapping[str, Tensor]) -> None:
        """Compute examples, by their places (n, …)."""

    @abstractmethod
    def _read(self, ids: Tensor, module: str) -> Tensor:
        """Return what enters a layer for a few sequences (n, tokens), as (n, tokens, width)."""

    @abstractmethod
    def _width_of(self, module: str) -> int:
        """Return how many numbers enter a layer, or leave it, for each token."""

    @abstractmethod
    def _watch(self, ids: Tensor) -> list[LayerCall]:
        """Return what enters each layer for a few sequences (n, tokens), in the order of computing."""

    def read(self, ids: Tensor, module: str) -> Tensor:
        """Return what enters a layer for sequences (n, tokens), as (n, tokens, width)."""
        step = max(1, _AT_ONCE // max(1, ids.shape[1] * self._width_of(module)))
        return torch.cat([self._read(part, module) for part in ids.split(step)])

    def entries(self) -> list[Entry]:
        """List what enters linear layers token by token, in the order of computing.

        Raises
        ------
        NeedsError
            If nothing can be computed of so few tokens.
        """
        tokens = min(4, self.longest)
        if tokens < 2:
            raise NeedsError("it needs sequences of two tokens or more")
        probe = torch.arange(tokens).remainder(max(self.words - 1, 1)).expand(4, tokens).clone()
        probe[1, -1] = self.words - 1
        probe[2, 0] = self.words - 1
        probe[3] = probe[3].flip(0)
        return [*_join_calls(self._watch(probe))]

    def _make_leaves(self, ids: Tensor) -> dict[str, Tensor]:
        """Make examples of ids: all of them attended to, and labels that do not matter."""
        leaves = {}
        count, tokens = ids.shape
        for place, leaf in self._sample.items():
            last = place.split(SEPARATOR)[-1]
            kind = torch.from_numpy(leaf[:1])
            if place == self._place:
                leaves[place] = ids.to(kind.dtype)
            elif leaf.shape[1:] == (self.longest,):
                if last == MASK or is_mask(leaf[:1]):
                    leaves[place] = torch.ones((count, tokens), dtype=kind.dtype)
                elif last == _PLACES:
                    leaves[place] = torch.arange(tokens).expand(count, tokens).to(kind.dtype)
                else:
                    leaves[place] = torch.zeros((count, tokens), dtype=kind.dtype)
            else:
                leaves[place] = kind.expand(count, *kind.shape[1:])
        return leaves


class ModelReader(InputReader):
    """Puts sequences into a model that the attacker builds."""

    def __init__(self, model: nn.Module, sample: Mapping[str, NDArray[Any]], place: str, words: int) -> None:
        self._put_ids(sample, place, words)
        self._model = model

    @classmethod
    def of(cls, model: nn.Module, examples: NDArray[Any]) -> "ModelReader":
        """Find how a model takes ids.

        Raises
        ------
        NeedsError
            If no ids enter a table of the model.
        """
        found = find_ids(model, examples)
        if found is None:
            raise NeedsError(
                "it needs a model with an embedding that receives the ids in the examples; this model has none"
            )
        return cls(model, leaves_of(examples[:1]), *found)

    def take(self, weights: Mapping[str, NDArray[Any]], node: str, where: str, notes: list[str]) -> bool:
        """Put in what a client was sent."""
        if not fits_model(self._model, weights, where, notes):
            return False
        self._model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
        return True

    def choose(self, moved: Collection[str]) -> tuple[Entry, Entry] | None:
        """Choose the entries of the first attention layer, and of the second, by the list in which blocks are."""
        return choose_entries(self._model, self.entries(), moved)

    def _call(self, leaves: Mapping[str, Tensor]) -> None:
        examples: Any = Inputs(dict(leaves))
        if [*leaves] == ["0"] and leaves["0"].is_floating_point():
            examples = leaves["0"]
        with torch.no_grad(), in_mode(self._model, training=False):
            returned_for(self._model, examples)

    def _read(self, ids: Tensor, module: str) -> Tensor:
        reached: list[Tensor] = []

        def keep(_: nn.Module, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
            reached.append(_first_of(given, named))
            raise Reached

        handle = self._model.get_submodule(module).register_forward_pre_hook(keep, with_kwargs=True)
        try:
            with suppress(Reached):
                self._call(self._make_leaves(ids))
        finally:
            handle.remove()
        return reached[0]

    def _width_of(self, module: str) -> int:
        found = _matrix_of(self._model.get_submodule(module))
        if found is None:
            return 1
        return max(found[1].shape)

    def _watch(self, ids: Tensor) -> list[LayerCall]:
        with _watch(self._model, ids.shape) as calls:
            try:
                self._call(self._make_leaves(ids))
            except (RuntimeError, TypeError, ValueError, IndexError, ModelError) as cause:
                raise NeedsError(f"the model cannot be called with {ids.shape[1]} tokens: {cause}") from None
        return calls


@contextmanager
def _watch(model: nn.Module, shape: torch.Size) -> Iterator[list[LayerCall]]:
    """Note what enters each linear layer for sequences of a shape."""
    calls: list[LayerCall] = []

    def note(name: str) -> Callable[..., None]:
        def keep(layer: nn.Module, given: tuple[Any, ...], named: Mapping[str, Any], returned: Any) -> None:
            x = _first_of(given, named)
            if not isinstance(x, Tensor) or x.ndim != 3 or x.shape[:2] != shape or not x.is_floating_point():
                return
            weight = _weight_of(name, layer, x, returned)
            if weight is not None:
                calls.append(LayerCall(name, weight, x))

        return keep

    handles = []
    for name, layer in model.named_modules():
        if _matrix_of(layer) is not None:
            handles.append(layer.register_forward_hook(note(name), with_kwargs=True))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _first_of(given: Sequence[Any], named: Mapping[str, Any]) -> Any:
    return next(iter((*given, *named.values())), None)


def _matrix_of(layer: nn.Module) -> tuple[str, Tensor] | None:
    """Return the matrix of a layer of its own, with its name; ``None`` if it has none."""
    for name in ("weight", "in_proj_weight"):
        matrix = dict(layer.named_parameters(recurse=False)).get(name)
        if matrix is not None and matrix.ndim == 2 and not isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            return name, matrix
    return None


def _weight_of(name: str, layer: nn.Module, x: Tensor, returned: Any) -> Weight | None:
    """Return a layer's matrix if what the layer returns is what enters it times that, and a bias; else ``None``."""
    found = _matrix_of(layer)
    if found is None:
        return None
    own, matrix = found
    full = f"{name}.{own}" if name else own
    if isinstance(layer, nn.Linear | nn.MultiheadAttention):
        return Weight(full, True)
    bias = getattr(layer, "bias", None)
    if not isinstance(returned, Tensor) or matrix.shape != (x.shape[-1], returned.shape[-1]):
        return None
    with torch.no_grad():
        expected = x @ matrix
        if bias is not None:
            expected += bias
    if not _are_alike(expected, returned):
        return None
    return Weight(full, False)


def _are_alike(one: Tensor, other: Tensor) -> bool:
    most = float(one.abs().max()) or 1.0
    return bool((one - other).abs().max() <= _ALIKE * most)


def _join_calls(calls: Sequence[LayerCall]) -> Iterator[Entry]:
    """Join layers that the same numbers enter, and say what these depend on."""
    groups: list[list[LayerCall]] = []
    for call in calls:
        if groups and groups[-1][0].given is call.given:
            groups[-1].append(call)
        else:
            groups.append([call])
    for group in groups:
        x = group[0].given
        # Row 1 has another last token, row 2 another first one, row 3 the same in another order.
        looks_ahead = not _are_alike(x[0, :-1], x[1, :-1])
        mixes = looks_ahead or not _are_alike(x[0, 1:], x[2, 1:])
        by_place = not _are_alike(x[0], x[3].flip(0))
        yield Entry(group[0].module, tuple(call.weight for call in group), mixes, looks_ahead, by_place)


def choose_entries(model: nn.Module, entries: Sequence[Entry], moved: Collection[str]) -> tuple[Entry, Entry] | None:
    """Choose the two entries that are checked: that of the first attention layer, and that of the second.

    The first is the first of all, before tokens are mixed. The second is the first one in the block that follows the
    one in which tokens are mixed.

    Parameters
    ----------
    model
        Whose blocks are known by the list in which they are.
    entries
        All of them, in the order of computing.
    moved
        The arrays of which there is a gradient that is not zero.

    Returns
    -------
    tuple or None
        ``None`` if there are no two.
    """
    first = next((entry for entry in entries if not entry.mixes and has_moved(entry, moved)), None)
    mixing = next((entry for entry in entries if entry.mixes), None)
    if first is None or mixing is None:
        return None
    block = _block_of(model, mixing.module)
    if block is None:
        return None
    listed, number = block
    for entry in entries:
        own = entry.module.removeprefix(f"{listed}.").split(".")[0]
        is_later = entry.module.startswith(f"{listed}.") and own.isdecimal() and int(own) > number
        if is_later and entry.mixes and has_moved(entry, moved):
            return first, entry
    return None


def has_moved(entry: Entry, moved: Collection[str]) -> bool:
    """Say whether an array of an entry is among those that moved."""
    return any(weight.name in moved for weight in entry.weights)


def _block_of(model: nn.Module, module: str) -> tuple[str, int] | None:
    """Return the list of blocks that a layer is in, and its block's number; the innermost with another one after it."""
    parts = module.split(".")
    for place in range(len(parts) - 1, 0, -1):
        listed = ".".join(parts[:place])
        blocks = model.get_submodule(listed)
        if isinstance(blocks, nn.ModuleList | nn.Sequential) and parts[place].isdecimal():
            number = int(parts[place])
            if number + 1 < len(blocks) and type(blocks[number + 1]) is type(blocks[number]):
                return listed, number
    return None
