"""One step of training in PyTorch, whatever it computes: what goes into the models, and what their outputs then meet.

A step begins with the call of a model that no other model makes, and ends where a gradient comes back. An example of it
is one row of the *leaves*: of all tensors that the model is called with, and of all others that its outputs meet
outside of models, such as labels, masks, or noise. The step may also be kept as a *tape*, and played again with other
examples in the leaves' place: then the app's own code says which loss they have.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from fedattack.base.errors import DataError
from fedattack.base.structured import SEPARATOR, pack

CALL, MET = "call", "met"
"""How places of leaves begin: ``call1`` is of the second call of a step, ``met0`` what its outputs met first."""

_WIDTHS = (16, 64, 256)
"""Lengths that lists of varying length are padded to, such as the boxes of an image."""

PADDING = float(np.finfo(np.float32).min)
"""What they are padded with: a number, so that an example stays finite."""

# What ends a step, or changes how a tensor is watched, is no part of the computation.
_ASIDE = {"backward", "__set__", "requires_grad_", "register_hook"}
_IN_PLACE = "__setitem__"
_ADDS = ("add", "radd", "iadd", "sub", "rsub", "isub")


@dataclass(eq=False)
class Step:
    """One step, from the first call of a model on.

    Attributes
    ----------
    count
        Number of its examples.
    calls
        Arguments by position and by name of each call.
    met
        The tensors that outputs met, in their order.
    modes
        By the id of each model, whether it was in training.
    trains
        Whether gradients were on.
    odd
        How long a tensor was that outputs met, and that has no row an example; 0 where there was none. What is as long
        as an output is wide, such as weights of classes, is the same for all examples.
    held_out
        (n,): which examples others stand in the place of; ``None`` where none.
    stand_in
        Returns what stands in the place of a leaf, by its place and what the app has there; ``None`` where all stay.
    places
        (n,): where its examples stand in the dataset that a loader took them from; ``None`` where that is not known.
    is_mixed
        Whether it takes more than losses of the micro-batches before it, of which one gradient is asked together.
    come_back
        Tells a witness that noted the step that another gradient came back; ``None`` before the first.
    """

    count: int
    trains: bool
    odd: int = 0
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    met: list[Tensor] = field(default_factory=list)
    modes: dict[int, bool] = field(default_factory=dict)
    held_out: NDArray[np.bool_] | None = None
    stand_in: Callable[[str, Any], Any] | None = None
    places: Sequence[int] | None = None
    is_mixed: bool = False
    come_back: Callable[[], None] | None = None

    def take_out(self, chosen: NDArray[np.bool_]) -> None:
        """Put other examples into the places of those that are chosen, unless all are."""
        kept, left_out = np.flatnonzero(~chosen), np.flatnonzero(chosen)
        if len(kept) and len(left_out):
            order = np.arange(self.count)
            # Those that stay, from the first on, and again where they are fewer.
            order[left_out] = np.resize(kept, len(left_out))
            self.held_out = chosen
            self.stand_in = lambda place, tree: reorder(tree, order, self.count)

    def replace_leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the latest call with what stands in the place of its leaves."""
        if self.stand_in is None:
            return args, kwargs
        before, (known_args, known_kwargs) = _before(len(self.calls) - 1), self.calls[-1]
        # Only leaves: what another model of the step returned follows from those already.
        others = list(args)
        for at, known in enumerate(known_args):
            if not is_made(known):
                others[at] = self.stand_in(f"{before}{at}", args[at])
        named = dict(kwargs)
        for name, known in known_kwargs.items():
            if not is_made(known):
                named[name] = self.stand_in(f"{before}{name}", kwargs[name])
        return tuple(others), named

    def trees(self) -> Iterator[tuple[str, Any]]:
        """Yield what the leaves stand in, with the place of each."""
        for index, (args, kwargs) in enumerate(self.calls):
            before = _before(index)
            for name, value in [*((str(at), value) for at, value in enumerate(args)), *kwargs.items()]:
                yield f"{before}{name}", value
        for index, value in enumerate(self.met):
            yield f"{MET}{index}", value

    def rows(self) -> NDArray[Any]:
        """Return the step's examples (n,), of structured type.

        Raises
        ------
        DataError
            If there are none that can be told apart.
        """
        if self.odd:
            raise DataError(f"a model was called with {self.count} rows and {self.odd} labels: rows are not examples")
        if self.is_mixed:
            raise DataError(
                "a step compares its model's outputs of several batches: the rows of one batch are not examples"
            )
        leaves: dict[str, NDArray[Any]] = {}
        for place, tree in self.trees():
            _read_leaves(place, tree, self.count, leaves)
        if not leaves:
            raise DataError("a step has no tensor with one row for each example")
        try:
            return pack(leaves)
        except ValueError as cause:
            raise DataError(str(cause)) from None


def place_of(index: int, argument: int) -> str:
    """Return the place of an argument by position of a call of a step."""
    return f"{_before(index)}{argument}"


def _before(index: int) -> str:
    """Return how places of the arguments of a call begin."""
    return f"{CALL}{index}{SEPARATOR}" if index else ""


def count_examples(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Return how many examples a call has: lists of one length, as detectors take them, or the rows of a tensor."""
    values = [*args, *kwargs.values()]
    lists = [len(value) for value in values if isinstance(value, list)]
    # Detectors take a list of images and a list of targets, one entry an example each.
    if lists and (len(lists) > 1 or _are_items(next(value for value in values if isinstance(value, list)))):
        return lists[0] if len({*lists}) == 1 else 0
    tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor) and leaf.ndim]
    return len(tensors[0]) if tensors else 0


def is_going_back() -> bool:
    """Say whether gradients are computed right now: what is called meanwhile was called before, at a checkpoint."""
    # Autograd numbers each backward pass that is under way in a thread.
    return bool(torch._C._current_graph_task_id() != -1)


def tensors_of(output: Any) -> list[Tensor]:
    """Return all tensors of what a model or a function returned."""
    return [value for value in tree_flatten(output)[0] if isinstance(value, Tensor)]


def _are_items(values: Sequence[Any]) -> bool:
    """Say whether a list holds an entry for each example, and not several tensors of all examples."""
    if any(isinstance(value, Mapping) for value in values):
        return True
    shapes = {tuple(value.shape) for value in values if isinstance(value, Tensor)}
    return len(shapes) > 1


def _read_leaves(place: str, tree: Any, count: int, leaves: dict[str, NDArray[Any]]) -> None:
    """Add what of a tree has a row, or a run of rows, for each example."""
    if isinstance(tree, Tensor):
        if tree.ndim and len(tree) and not len(tree) % count:
            # Such as the tokens of all examples in one row, or the boxes of all images.
            each = len(tree) // count
            array = to_array(tree)
            leaves[place] = array if each == 1 else array.reshape(count, each, *array.shape[1:])
    elif isinstance(tree, list) and len(tree) == count:
        _read_items(place, tree, leaves)
    elif isinstance(tree, Mapping):
        for name, value in tree.items():
            _read_leaves(f"{place}{SEPARATOR}{name}", value, count, leaves)
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            _read_leaves(f"{place}{SEPARATOR}#{index}", value, count, leaves)


def _read_items(place: str, items: Sequence[Any], leaves: dict[str, NDArray[Any]]) -> None:
    """Add lists that hold one entry an example."""
    entries: list[dict[str, NDArray[Any]]] = []
    for item in items:
        entry: dict[str, NDArray[Any]] = {}
        for name, value in item.items() if isinstance(item, Mapping) else [("", item)]:
            array = to_array(value) if isinstance(value, Tensor) else _numbers(value)
            if array is not None:
                entry[f"{place}{SEPARATOR}{name}" if name else place] = array
        entries.append(entry)
    for name in entries[0]:
        arrays = [entry[name] for entry in entries if name in entry]
        # What some items lack is no part of an example, such as a note on an image.
        if len(arrays) == len(entries):
            leaves[name] = _stack(arrays, padded=name != place)


def _numbers(value: Any) -> NDArray[Any] | None:
    """Return numbers in lists as an array; ``None`` if it is something else."""
    try:
        array = np.asarray(value, dtype=np.float32)
    except (TypeError, ValueError):
        return None
    return array


def _stack(arrays: Sequence[NDArray[Any]], *, padded: bool) -> NDArray[Any]:
    """Put one array an example together; those of varying length are padded."""
    shapes = {array.shape for array in arrays}
    if len(shapes) == 1 and (not padded or arrays[0].ndim == 0):
        return np.stack(arrays)
    filled = [array for array in arrays if array.size]
    inner = max((array.shape[1:] for array in filled), default=())
    longest = max(map(len, filled), default=0)
    # Few widths: examples of two batches then have one form, and one hash.
    width = next((width for width in _WIDTHS if longest <= width), None)
    if width is None or any(array.shape[1:] != inner for array in filled):
        raise DataError(f"examples of shapes {sorted(shapes)[:2]} …, which differ in more than their length")
    together = np.full((len(arrays), width, *inner), PADDING, dtype=np.float32)
    for row, array in zip(together, arrays, strict=True):
        if array.size:
            row[: len(array)] = array
    return together


def to_array(tensor: Tensor) -> NDArray[Any]:
    """Copy a tensor to an array; NumPy has no bfloat16, and complex numbers are no numbers of an example.

    Raises
    ------
    DataError
        If it is complex.
    """
    if tensor.is_complex():
        raise DataError("an input holds complex numbers")
    return np.array(as_array(tensor))


def as_array(tensor: Tensor) -> NDArray[Any]:
    """View a tensor as a contiguous array, without a copy where that can be; NumPy has no bfloat16."""
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.detach().float()
    array = tensor.numpy(force=True)
    # NumPy gives a single number an axis here, and Flower sends it without one.
    return array if array.flags.c_contiguous else np.ascontiguousarray(array).reshape(array.shape)


def fill_leaves(place: str, tree: Any, count: int, leaves: Mapping[str, NDArray[Any] | Tensor]) -> Any:
    """Return a tree with other examples in it.

    Parameters
    ----------
    place, tree, count
        As the step had it, with so many examples.
    leaves
        By place, (m, …): the rows of other examples.
    """

    def fill(place: str, value: Any) -> Any:
        if isinstance(value, list):
            return _fill_items(place, value, leaves)
        array = leaves.get(place)
        if array is None:
            return value
        # Runs of rows are laid out as the step had them: (m, each, …) becomes (m·each, …).
        shape = array.shape if value.ndim == array.ndim else (array.shape[0] * array.shape[1], *array.shape[2:])
        tensor = array if isinstance(array, Tensor) else torch.from_numpy(np.ascontiguousarray(array))
        return tensor.to(value.dtype).reshape(shape).to(value.device)

    return _replace_leaves(place, tree, count, fill)


def reorder(tree: Any, order: NDArray[np.int64], count: int) -> Any:
    """Return a tree with its rows, or runs of rows, of ``count`` examples in another order; some may stand twice."""

    def pick(place: str, value: Any) -> Any:
        if isinstance(value, list):
            return [value[row] for row in order]
        if not value.ndim or not len(value) or len(value) % count:
            return value
        rows = torch.from_numpy(order).to(value.device)
        return value.reshape(count, len(value) // count, *value.shape[1:])[rows].reshape(value.shape)

    return _replace_leaves("", tree, count, pick)


def _replace_leaves(place: str, tree: Any, count: int, other: Callable[[str, Any], Any]) -> Any:
    """Return a tree with others in the place of its tensors, and of its lists of one entry for each example."""
    if isinstance(tree, Tensor) or (isinstance(tree, list) and len(tree) == count):
        return other(place, tree)
    if isinstance(tree, Mapping):
        replaced = {}
        for name, value in tree.items():
            replaced[name] = _replace_leaves(f"{place}{SEPARATOR}{name}", value, count, other)
        # Mappings of others, such as what a tokenizer returns, are made of a dict.
        return replaced if type(tree) is dict else type(tree)(replaced)  # type: ignore[call-arg]
    if type(tree) in (list, tuple):
        values = enumerate(tree)
        return type(tree)(_replace_leaves(f"{place}{SEPARATOR}#{at}", value, count, other) for at, value in values)
    return tree


def _fill_items(place: str, items: Sequence[Any], leaves: Mapping[str, NDArray[Any] | Tensor]) -> Any:
    first = items[0]
    if not isinstance(first, Mapping):
        array = leaves.get(place)
        return list(items) if array is None else [_as_given(first, row) for row in array]
    size = max(len(array) for name, array in leaves.items() if name.startswith(f"{place}{SEPARATOR}"))
    filled = []
    for index in range(size):
        item = dict(first)
        for name, value in first.items():
            array = leaves.get(f"{place}{SEPARATOR}{name}")
            if array is not None:
                item[name] = _as_given(value, array[index])
        filled.append(item)
    return filled


def _as_given(value: Any, given: NDArray[Any] | Tensor) -> Any:
    """Return what one example has in the place of a value, without padding."""
    row = np.asarray(given)
    if row.ndim and row.dtype.kind == "f":
        # Rows that are padding whole were put there by this module.
        row = row[~(row == PADDING).reshape(len(row), -1).all(axis=1)]
    if isinstance(value, Tensor):
        return torch.from_numpy(np.ascontiguousarray(row)).to(value.dtype).to(value.device)
    return row.tolist()


@dataclass
class Slot:
    """A tensor that the tape makes, by the order of making."""

    number: int


@dataclass
class Leaf:
    """A tree of the step, by its place."""

    place: str
    tree: Any


def is_made(tree: Any) -> bool:
    """Say whether the tape makes something of a tree, as where one model takes what another returned."""
    return any(isinstance(node, Slot) for node in tree_flatten(tree, is_leaf=lambda node: isinstance(node, Slot))[0])


@dataclass
class TapeLine:
    """One thing that a step computes."""

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    makes: list[int]


class Reader(TorchFunctionMode):
    """Reads what one thread computes outside of models.

    Parameters
    ----------
    keeps_tape
        Whether to keep what is computed, so that it can be played again.
    """

    def __init__(self, *, keeps_tape: bool = False) -> None:
        super().__init__()
        self.step: Step | None = None
        # The micro-batches of the step that is under way, of which its own is the last.
        self.micro_batches: list[Step] = []
        self.inside = False
        self.keeps_tape = keeps_tape
        self.lines: list[TapeLine] = []
        # Tensors stay alive meanwhile, or another would get the id of one that is gone.
        self._made: dict[int, tuple[int, Tensor]] = {}
        self._leaves: dict[int, tuple[str, Tensor]] = {}
        # What is the same for all examples may be computed before the step begins.
        self._shared: dict[int, tuple[int, Tensor]] = {}
        self._common: list[TapeLine] = []
        # What the app gave outputs to meet, by what they met in its place.
        self._given: dict[int, tuple[Tensor, Tensor]] = {}
        self._count = 0
        # How many tensors were made before the last micro-batch began, and whether there is a loss of it.
        self._earlier, self._has_loss = 0, False

    def put_beneath(self) -> None:
        """Begin to read, beneath all modes that the app has switched on: these come and go in their own order."""
        others = []
        while _get_current_function_mode_stack():
            others.append(_pop_mode())
        _push_mode(self)
        for mode in reversed(others):
            _push_mode(mode)

    def remove(self) -> None:
        """Stop reading."""
        others = []
        while stack := _get_current_function_mode_stack():
            if stack[-1] is self:
                _pop_mode()
                break
            others.append(_pop_mode())
        for mode in reversed(others):
            _push_mode(mode)

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step | None:
        """Note the call of a model; a new step begins, unless one is under way, or its next micro-batch."""
        goes_on = self.goes_on(module)
        if not goes_on:
            self.lines, self._made, self._given, self.micro_batches = [*self._common], {}, {}, []
        # Accumulated gradients: the same model, other examples, one loss already.
        if not goes_on or self._is_next(module, args, kwargs):
            count = count_examples(args, kwargs)
            self.step = Step(count, torch.is_grad_enabled()) if count else None
            self._leaves, self._earlier, self._has_loss = {}, self._count, False
            if self.step is not None:
                self.micro_batches.append(self.step)
        if self.step is not None:
            self.step.calls.append((self._as_slots(args), self._as_slots(kwargs)))
            self.step.modes[id(module)] = module.training
        return self.step

    def goes_on(self, module: nn.Module) -> bool:
        """Whether the call of a model belongs to the step that is under way.

        A model that is evaluated with gradients on, and trained afterwards, makes two.
        """
        step = self.step
        if step is None or step.modes.get(id(module), module.training) != module.training:
            return False
        # No gradient shows which calls belong together where it only evaluates.
        return step.trains and torch.is_grad_enabled()

    def _is_next(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call begins a micro-batch: the model takes other tensors than before, of which there is a loss."""
        if self.step is None or not self._has_loss or id(module) != next(iter(self.step.modes)):
            return False
        given = tensors_of((args, kwargs))
        if any(id(value) in self._made for value in given):
            return False
        before = tensors_of(self.step.calls)
        return any(not any(torch.equal(value, other) for other in before) for value in given)

    def note_returned(self, module: nn.Module, output: Any) -> None:
        """Note what a model returned."""
        if self.step is None:
            return
        args, kwargs = self.step.calls[-1]
        if self.keeps_tape:
            before = _before(len(self.step.calls) - 1)
            filled = [Leaf(f"{before}{at}", value) for at, value in enumerate(args)]
            named = {name: Leaf(f"{before}{name}", value) for name, value in kwargs.items()}
            self._write(module, filled, named, output)
        else:
            self._make(output)

    def end(self) -> Step | None:
        """Return the step that is under way, which is over."""
        step, self.step = self.step, None
        self._made, self._leaves, self._given, self.micro_batches = {}, {}, {}, []
        return step

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        # Within a model nothing is read: it is one line of the tape.
        is_aside = self.inside or getattr(func, "__name__", "") in _ASIDE
        if is_aside or (self.step is None and not self.keeps_tape):
            return func(*args, **kwargs)
        # PyTorch hands over arguments as the caller had them, in lists and dicts, too.
        flat, form = tree_flatten((args, kwargs))
        if not any(isinstance(value, Tensor) and id(value) in self._made for value in flat):
            output = func(*args, **kwargs)
            if self.keeps_tape:
                self._share(func, args, kwargs, output)
            return output
        return self._follow(func, args, kwargs, flat, form)

    def _follow(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], flat: Sequence[Any], form: Any
    ) -> Any:
        """Call what takes something that was computed of the examples, and note what it returns."""
        # First, since a function in place changes what it takes.
        written = [self._meet(value) if isinstance(value, Tensor) else value for value in flat]
        if self.step is not None and self.step.stand_in is not None:
            args, kwargs = tree_unflatten(self._stand_in(func, flat, written, self.step.stand_in), form)
        if self.keeps_tape and getattr(func, "__name__", "").strip("_") in _ADDS:
            written = self._without_terms(written)
        output = func(*args, **kwargs)
        if self.keeps_tape:
            own_args, own_kwargs = tree_unflatten(written, form)
            self._write(func, own_args, own_kwargs, output)
        else:
            self._make(output)
        return output

    def _share(self, func: Callable[..., Any], args: Any, kwargs: Any, output: Any) -> None:
        """Write what is computed of parameters alone, such as their norms: it is the same for all examples."""
        # What sets weights, as where they are initialized, is no part of the step.
        if not any(value.grad_fn is not None for value in tensors_of(output)):
            return
        line = TapeLine(func, tree_map(self._as_constant, args), tree_map(self._as_constant, kwargs), [])
        for value in tensors_of(output):
            number = self._shared[id(value)][0] if id(value) in self._shared else self._next_number()
            self._shared[id(value)] = number, value
            line.makes.append(number)
        self._common.append(line)
        self.lines.append(line)

    def _as_constant(self, value: Any) -> Any:
        """Return what a value is in the tape that is the same for all examples."""
        if not isinstance(value, Tensor):
            return value
        if id(value) in self._shared:
            return Slot(self._shared[id(value)][0])
        return value if value.is_leaf else value.detach()

    def _without_terms(self, written: list[Any]) -> list[Any]:
        """Put constants in the place of terms of the loss that are the same for all examples, such as FedProx's."""
        shared = dict(self._shared.values())
        kept = []
        for value in written:
            term = shared.get(value.number) if isinstance(value, Slot) else None
            kept.append(value if term is None or term.ndim else term.detach().clone())
        return kept

    def _meet(self, value: Tensor) -> Any:
        """Return what a tensor is in the tape: made by it, a leaf, or the same for all examples."""
        known = self._as_slots(value)
        step = self.step
        if step is None:
            return known
        if known is not value:
            # An output of an earlier micro-batch; its loss is one number, and may be added.
            step.is_mixed = step.is_mixed or (known.number <= self._earlier and value.ndim > 0)
            return known
        # A weight of the app's own, outside of any model.
        if value.requires_grad or isinstance(value, nn.Parameter):
            return self._as_constant(value)
        if not value.ndim or not len(value):
            return value
        if len(value) % step.count:
            # As long as an output is wide, it may be weights of classes.
            if len(value) > 1 and not any(made.shape[-1:] == value.shape[:1] for _, made in self._made.values()):
                step.odd = len(value)
            return value
        leaf = self._leaves.get(id(value))
        if leaf is None:
            leaf = self._leaves[id(value)] = f"{MET}{len(step.met)}", value
            step.met.append(value)
        return Leaf(leaf[0], value)

    def _stand_in(
        self, func: Callable[..., Any], flat: Sequence[Any], written: Sequence[Any], other: Callable[[str, Any], Any]
    ) -> list[Any]:
        """Return arguments with what stands in the place of the leaves that outputs meet."""
        name = getattr(func, "__name__", "")
        # PyTorch's functions in place end so, and Python's own methods do, too.
        writes = name == _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
        given = []
        for at, (value, in_tape) in enumerate(zip(flat, written, strict=True)):
            # What is written into stays the tensor that its owner has.
            if isinstance(in_tape, Leaf) and not (writes and at == 0):
                stands = other(in_tape.place, value)
                self._given[id(stands)] = stands, value
                value = stands
            given.append(value)
        return given

    def as_given(self, value: Tensor) -> Tensor:
        """Return what the app gave outputs to meet, of what they met in its place."""
        return self._given.get(id(value), (value, value))[1]

    def _as_slots(self, tree: Any) -> Any:
        """Put slots in the place of what the tape has made."""

        def slot(value: Any) -> Any:
            made = self._made.get(id(value)) if isinstance(value, Tensor) else None
            return value if made is None else Slot(made[0])

        return tree_map(slot, tree)

    def _write(self, function: Callable[..., Any], args: Any, kwargs: Any, output: Any) -> None:
        makes = self._make(output)
        if makes or getattr(function, "__name__", "") == _IN_PLACE:
            self.lines.append(TapeLine(function, args, kwargs, makes))

    def _make(self, output: Any) -> list[int]:
        numbers = []
        for value in tensors_of(output):
            number = self._made[id(value)][0] if id(value) in self._made else self._next_number()
            self._made[id(value)] = number, value
            numbers.append(number)
            self._has_loss = self._has_loss or (not value.ndim and value.grad_fn is not None)
        return numbers

    def _next_number(self) -> int:
        self._count += 1
        return self._count

    def slot_of(self, value: Tensor) -> int | None:
        """Return the number of a tensor that the tape has made."""
        made = self._made.get(id(value))
        return None if made is None else made[0]
