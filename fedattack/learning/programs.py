"""A model as a described program: the operators that it applies, one after another, as plain data.

So a model can be built that nothing can import, such as one of a class inside of a function. What
:mod:`fedattack.witness.torch_export` writes has no code, and reading it runs none. ``torch.export.save`` would do the
same by pickle, and by expressions that are evaluated. Here:

- an operator is one of a fixed list (:mod:`fedattack.learning.operators`), or a layer of :data:`LAYERS`;
- it takes numbers, and what inputs, parameters and earlier operators gave: there are no loops and no cycles;
- before a program is taken, it is tried on tensors without memory. Each value must be of a size that fits the model's
  input, and may grow with the number of examples as that number at most.

Layers of PyTorch are made as such, under the names that they had. So whatever looks for them finds them: dropout masks,
batch norm, gradients of layers.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, JsonValue, TypeAdapter, with_config
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import TypedDict

from fedattack.errors import FedAttackError, ModelError, short
from fedattack.learning.models import MAX_ENTRIES
from fedattack.learning.operators import LEFT_OUT, MAKING, OPERATORS
from fedattack.structured import SEPARATOR, are_places, arguments, places
from fedattack.untrusted import Text, parse_json, read_npz, validated

PROGRAM = "program"
"""What names a model that is described by a program."""

LAYERS: Mapping[str, type[nn.Module]] = {
    layer.__name__: layer
    for layer in (
        *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
        *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout),
        *(nn.LSTM, nn.GRU, nn.RNN),
    )
}
"""Layers that are made as such."""

DTYPES: Mapping[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    )
}
"""Types of numbers, by the names that a program has for them."""

MOST_NODES = 20_000
"""Operators of one program."""

MOST_NUMBERS = 2**22
"""Numbers of one value for one example, for inputs of up to 65,536 numbers; 64 times the input for larger ones."""

MOST_CONSTANTS = 2**25
"""Bytes of the numbers that a program has besides parameters and buffers."""

MOST_PIECES = 20_000
"""Pieces into which all operators of a program split their inputs."""

MOST_ABOUT = 2**24
"""Bytes of the JSON that says what a program is made of."""

_ABOUT = "about"
_CONSTANTS = "fedattack_constants"
_PER_INPUT = 64
_VALUES = 16  # as large as the largest
_DEPTH = 8
_MOST_LAYERS = 100
_NAME = re.compile(r"[A-Za-z_0-9]{1,100}(?:\.[A-Za-z_0-9]{1,100}){0,30}")
_HINT = "have the run witnessed again, or name the model by --model"
_STRICT = ConfigDict(extra="forbid", strict=True)

_Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
_Side = Annotated[int, Field(ge=0, le=2**31)]
_Shape = Annotated[list[_Side], Field(max_length=16)]
_Setting = bool | _Whole | Annotated[float, Field(allow_inf_nan=False)] | Text | list[_Whole] | None


@with_config(_STRICT)
class _Input(TypedDict):
    place: Text
    shape: _Shape
    dtype: Text


@with_config(_STRICT)
class _Array(TypedDict):
    name: Text
    shape: _Shape
    dtype: Text
    kind: Literal["parameter", "buffer"]
    trains: bool


@with_config(_STRICT)
class _Layer(TypedDict):
    name: Text
    kind: Text
    settings: dict[Text, _Setting]


@with_config(_STRICT)
class _Node(TypedDict):
    op: Text
    args: list[JsonValue]
    kwargs: NotRequired[dict[Text, JsonValue]]


@with_config(_STRICT)
class _Graph(TypedDict):
    nodes: Annotated[list[_Node], Field(max_length=MOST_NODES)]
    returns: Annotated[dict[Text, JsonValue], Field(min_length=1, max_length=64)]


@with_config(_STRICT)
class _About(TypedDict):
    inputs: Annotated[list[_Input], Field(min_length=1, max_length=64)]
    modules: Annotated[list[Text | _Layer], Field(max_length=MOST_NODES)]
    arrays: Annotated[list[_Array], Field(max_length=MOST_NODES)]
    tied: dict[Text, Text]
    train: _Graph
    eval: _Graph | None


_ADAPTER: TypeAdapter[_About] = TypeAdapter(_About)


@dataclass(frozen=True, eq=False)
class Program:
    """A described model.

    Attributes
    ----------
    about
        What it is made of, as JSON has it:

        - ``inputs``: place in the call (see :mod:`fedattack.structured`), shape of one example, and type of each;
        - ``modules``: in the model's order, names of modules that hold arrays, and layers of :data:`LAYERS` with the
          settings that make them;
        - ``arrays``: name, shape, type and kind of each parameter and buffer, as in ``state_dict``;
        - ``tied``: names of parameters that are others as well;
        - ``train``, ``eval``: nodes and what is returned, by place, in each mode; ``eval`` is ``None`` where only what
          follows the mode differs.

        A node has the name of an operator, or ``layer.NAME``. What it takes are numbers, texts, lists, and references:
        ``{"node": 3}``, ``{"input": "0"}``, ``{"array": "fc.weight"}``, ``{"constant": "c0"}``, ``{"batch": [4, 1]}``
        (4 times the number of examples, plus 1), ``{"training": true}``, ``{"dtype": "int64"}``,
        ``{"number": "-inf"}``.
    constants
        Numbers that are neither parameters nor buffers of the state, by name.
    """

    about: Mapping[str, Any]
    constants: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example; none where there is more than one array, as examples of structured type have."""
        first, *others = self.about["inputs"]
        alone = not others and first["place"] == "0" and first["dtype"] == "float32"
        return tuple(first["shape"]) if alone else ()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the file that :func:`read_program` reads."""
        text = json.dumps(self.about, allow_nan=False, separators=(",", ":")).encode()
        return {_ABOUT: np.frombuffer(text, np.uint8), **self.constants}

    def build(self) -> nn.Module:
        """Build the model; its parameters are arbitrary, the same each time. The global random state stays as it was.

        Raises
        ------
        ModelError
            If its parts do not fit each other.
        """
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            return ProgramModel(self)


def read_program(path: Path, error: type[FedAttackError] = ModelError) -> Program:
    """Read a program, and try it on tensors without memory.

    Raises
    ------
    FedAttackError
        ``error``, in one line, if it is damaged, uses what is no operator of the list, refers to what is not there, or
        would take more memory than such models take.
    """
    arrays = read_npz(path, error, _HINT, most=MOST_CONSTANTS)
    text = arrays.pop(_ABOUT, None)
    try:
        if text is None or text.dtype != np.uint8 or text.ndim != 1:
            raise ValueError(f"there are no bytes {_ABOUT!r}")
        if text.size > MOST_ABOUT:
            raise ValueError(f"it is told in {text.size:,} bytes; expected at most {MOST_ABOUT:,}")
        about = validated(_ADAPTER, parse_json(text.tobytes()), f"{path}: {_ABOUT}", error, _HINT)
        program = Program(about, arrays)
        check_program(program)
    except (ValueError, ModelError) as cause:
        raise error(f"{path} is no program of a model ({short(str(cause), 200)}); {_HINT}") from None
    return program


def check_program(program: Program) -> None:
    """Check a program's parts, and try it on tensors without memory.

    Raises
    ------
    ModelError
        In one line, if something does not fit.
    """
    if not are_places([each["place"] for each in program.about["inputs"]]):
        raise ModelError("its inputs have no places in a call")
    for graph in (program.about["train"], program.about["eval"]):
        returned = [*graph["returns"]] if graph is not None else ["0"]
        if not are_places(returned) or any(place.split(SEPARATOR)[0] != "0" for place in returned):
            raise ModelError("what it returns has no places")
    for name, array in program.constants.items():
        if not _NAME.fullmatch(name) or "." in name or array.dtype.name not in DTYPES:
            raise ModelError(f"the constant {short(name, 60)} of {array.dtype}: expected numbers with a plain name")
    if sum(array.nbytes for array in program.constants.values()) > MOST_CONSTANTS:
        raise ModelError(f"its constants take more than {MOST_CONSTANTS:,} bytes")
    # Sizes are looked at before memory is taken.
    if sum(math.prod(array["shape"]) for array in program.about["arrays"]) > MAX_ENTRIES:
        raise ModelError(f"it has more than {MAX_ENTRIES:,} parameters")
    with torch.device("meta"):
        model = ProgramModel(program)
    largest = max(MOST_NUMBERS, _PER_INPUT * sum(math.prod(each["shape"]) for each in program.about["inputs"]))
    for training in (True, False):
        model.train(training)
        few, many = (_sizes(model, examples, largest) for examples in _TRIED)
        if max(few, default=0) > _TRIED[0] * largest or sum(few) > _TRIED[0] * _VALUES * largest:
            raise ModelError(
                f"an example would give values of {max(few) // _TRIED[0]:,} numbers, {sum(few) // _TRIED[0]:,} in all; "
                f"expected at most {largest:,}, and {_VALUES} times as many in all"
            )
        if any(_TRIED[0] * more > _TRIED[1] * less for less, more in zip(few, many, strict=True)):
            raise ModelError("its values grow faster than the number of examples")


_TRIED = (2, 64)


class _Within(TorchDispatchMode):
    """Refuse operators that make more numbers on the way to their values than a value may have."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        # Views, such as those of a layer's weights, take no memory.
        own = all(value.alias_info is None for value in func._schema.returns)
        made = max((each.numel() for each in _tensors(returned)), default=0) if own else 0
        name, most = func.overloadpacket.__name__, self._most
        if name in _HELD_TOGETHER:
            # Such a loss gives a mean, and has one number for each pair before.
            made = torch.broadcast_shapes(args[0].shape, args[1].shape).numel()
        elif name == "convolution":
            # What each position sees: some numbers' types are laid out so, and all are multiplied.
            moved = args[0] if args[6] else returned
            made, most = moved.shape[0] * moved.shape[2:].numel() * args[1].shape[1:].numel(), _VALUES * most
        if made > most:
            raise ModelError(f"{func} would take {made:,} numbers; expected at most {most:,}")
        return returned


_HELD_TOGETHER = frozenset({"mse_loss", "huber_loss", "smooth_l1_loss"})


def _sizes(model: ProgramModel, examples: int, largest: int) -> list[int]:
    """Return how many numbers each value has; ``largest`` is how many there may be for an example on the way."""
    sizes: list[int] = []
    model.sizes = sizes
    model.pieces = 0
    try:
        leaves = {}
        for each in model.about["inputs"]:
            leaves[each["place"]] = torch.empty((examples, *each["shape"]), dtype=_dtype(each["dtype"]), device="meta")
        args, kwargs = arguments(leaves)
        with torch.no_grad(), _Within(examples * largest):
            model(*args, **kwargs)
    except Exception as cause:  # operators raise whatever comes of what does not fit
        told = short(f"{type(cause).__name__}: {cause}", 120)
        raise ModelError(f"its node {len(sizes)} cannot be computed ({told})") from None
    finally:
        model.sizes = None
    return sizes


class ProgramModel(nn.Module):
    """What a program describes, as a module with the names of the model that it was."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.about = program.about
        self.layers = frozenset(each["name"] for each in self.about["modules"] if not isinstance(each, str))
        # Where sizes are to be noted, those of all values so far.
        self.sizes: list[int] | None = None
        self.pieces = 0
        for each in self.about["modules"]:
            self._add(each if isinstance(each, str) else each["name"], None if isinstance(each, str) else each)
        for array in self.about["arrays"]:
            self._add_array(array)
        for name, other in self.about["tied"].items():
            self._tie(name, other)
        self._check_arrays()
        constants = nn.Module()
        for name, values in program.constants.items():
            constants.register_buffer(name, torch.tensor(values), persistent=False)
        self.add_module(_CONSTANTS, constants)
        self._last = {name: _last_uses(self._graph(name)) for name in ("train", "eval")}

    @cached_property
    def numbers(self) -> int:
        """How many numbers all values of one example have, in the mode that makes more: so many are at most held."""
        model, examples, most = copy.deepcopy(self).to_empty(device="meta"), _TRIED[0], 0
        for training in (True, False):
            model.train(training)
            most = max(most, sum(_sizes(model, examples, MAX_ENTRIES)) // examples)
        return most

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Apply the operators of this mode, one after another."""
        mode = "train" if self.training else "eval"
        graph, last = self._graph(mode), self._last[mode]
        given = places(args, kwargs)
        for each in self.about["inputs"]:
            leaf = given.get(each["place"])
            got = list(leaf.shape[1:]) if isinstance(leaf, Tensor) and leaf.ndim else None
            if got != each["shape"]:
                raise ModelError(f"the model takes {each['place']!r} of shape {each['shape']} an example; got {got}")
        first = given[self.about["inputs"][0]["place"]]
        values: list[Any] = []
        call = _Call(self, given, values, len(first), first.device)
        for index, node in enumerate(graph["nodes"]):
            values.append(call.node(node))
            if self.sizes is not None:
                self.sizes.append(sum(value.numel() for value in _tensors(values[-1])))
            for done in last[index]:
                values[done] = None
        returned = {place: call.value(value) for place, value in graph["returns"].items()}
        return arguments(returned)[0][0]

    def _graph(self, mode: str) -> Any:
        return self.about[mode] or self.about["train"]

    def _parent(self, name: str) -> nn.Module:
        """Return the module that holds a part, and make those that are not there."""
        if not _NAME.fullmatch(name):
            raise ModelError(f"{short(name, 60)!r} is no name of a part of a model")
        module: nn.Module = self
        for part in name.split(".")[:-1]:
            if part not in module._modules:
                _put(module.add_module, part, nn.Module())
            inner = module._modules[part]
            if inner is None:
                raise ModelError(f"{short(name, 60)} lies in nothing")
            module = inner
        return module

    def _add(self, name: str, layer: _Layer | None) -> None:
        if not name:
            return
        made: nn.Module = nn.Module()
        if layer is not None:
            made = _made(name, layer)
        _put(self._parent(name).add_module, name.rpartition(".")[2], made)

    def _add_array(self, array: _Array) -> None:
        owner, last = self._parent(array["name"]), array["name"].rpartition(".")[2]
        if last in owner._parameters or last in owner._buffers:
            if last in owner._parameters and owner._parameters[last] is not None:
                owner._parameters[last].requires_grad_(array["trains"])  # type: ignore[union-attr]
            return
        dtype = _dtype(array["dtype"])
        try:
            values = torch.zeros(array["shape"], dtype=dtype)
        except RuntimeError as cause:
            # Of no numbers at all, but with sides that cannot be multiplied.
            raise ModelError(f"{short(array['name'], 60)} cannot be made ({short(str(cause), 80)})") from None
        if array["kind"] == "buffer":
            _put(owner.register_buffer, last, values)
            return
        if values.is_floating_point() and not values.is_meta:
            nn.init.normal_(values, std=0.02)
        try:
            parameter = nn.Parameter(values, requires_grad=array["trains"])
        except RuntimeError as cause:
            raise ModelError(f"{short(array['name'], 60)} cannot be a parameter ({short(str(cause), 80)})") from None
        _put(owner.register_parameter, last, parameter)

    def _tie(self, name: str, other: str) -> None:
        held = dict(self.named_parameters(remove_duplicate=False))
        if name not in held or other not in held or held[name].shape != held[other].shape:
            raise ModelError(f"{short(name, 60)} and {short(other, 60)} are no two parameters of one shape")
        self._parent(name)._parameters[name.rpartition(".")[2]] = held[other]

    def _check_arrays(self) -> None:
        """Layers have arrays of their own; all must be those that are described."""
        wanted = {array["name"]: (tuple(array["shape"]), array["dtype"]) for array in self.about["arrays"]}
        there = {}
        for name, value in self.state_dict().items():
            there[name] = tuple(value.shape), str(value.dtype).removeprefix("torch.")
        for name in {**wanted, **there}:
            if wanted.get(name) != there.get(name):
                raise ModelError(
                    f"the array {short(name, 60)} is described as {short(str(wanted.get(name)), 60)}, and the layers "
                    f"have {short(str(there.get(name)), 60)}"
                )


class _Call:
    """What one forward pass knows."""

    def __init__(
        self, model: ProgramModel, given: Mapping[str, Any], values: Sequence[Any], examples: int, device: torch.device
    ) -> None:
        self.model = model
        self.given = given
        self.values = values
        self.examples = examples
        self.device = device

    def node(self, node: _Node) -> Any:
        """Apply one operator."""
        op = node["op"]
        args = [self.value(each) for each in node["args"]]
        kwargs = {name: self.value(each) for name, each in node.get("kwargs", {}).items()}
        if op == "item":
            values, index = args
            if not isinstance(values, tuple | list) or type(index) is not int:
                raise ModelError("there are no several values of which one could be taken")
            return values[index]
        if op == "to":
            values, dtype = args
            return values.to(dtype)
        if op.startswith("layer."):
            return self._layer(op.removeprefix("layer."), args)
        operator = OPERATORS.get(op)
        if operator is None:
            raise ModelError(f"{short(op, 60)!r} is no operator that a program may use")
        if LEFT_OUT & {*kwargs}:
            # What is tried without memory would otherwise be made in memory.
            raise ModelError(f"{short(op, 60)!r} is told where or how to compute, which no program says")
        if self.model.sizes is not None and op.startswith("scaled_dot_product_attention."):
            # Between its inputs and its output lies a value of its own.
            self.model.sizes.append(args[0].shape[:-1].numel() * args[1].shape[-2])
        if self.model.sizes is not None and op.partition(".")[0] in _SPLITTING:
            # Each is an object of its own, also where it has no memory.
            self.model.pieces += _pieces(operator, args, kwargs)
            if self.model.pieces > MOST_PIECES:
                raise ModelError(f"it splits its inputs into more than {MOST_PIECES:,} pieces")
        if op.partition(".")[0] in MAKING:
            kwargs["device"] = self.device
        return operator(*args, **kwargs)

    def _layer(self, name: str, args: Sequence[Any]) -> Any:
        if name not in self.model.layers:
            raise ModelError(f"{short(name, 60)} is no layer of the model")
        # Lists are the states of what goes through time.
        given: list[Any] = [tuple(each) if isinstance(each, list) else each for each in args]
        # Whoever studies the model may have put another module in the layer's place, such as one for dropout masks.
        layer = self.model.get_submodule(name)
        if self.model.sizes is not None and isinstance(layer, nn.RNNBase):
            states = given[1] if len(given) > 1 else ()
            return _tried_through_time(
                layer, self.model.sizes, given[0], states if isinstance(states, tuple) else (states,)
            )
        returned = layer(*given)
        # Of what goes through time, results and states come as their operators give them.
        if isinstance(returned, tuple):
            output, state = returned
            return (output, *state) if isinstance(state, tuple) else (output, state)
        return returned

    def value(self, value: Any, depth: int = 0) -> Any:
        """Return what an argument stands for."""
        if depth > _DEPTH:
            raise ModelError("arguments are nested too deeply")
        if isinstance(value, list):
            return [self.value(each, depth + 1) for each in value]
        if not isinstance(value, Mapping):
            return value
        if len(value) != 1:
            raise ModelError(f"{short(str(value), 60)} is no reference")
        ((kind, what),) = value.items()
        return self._reference(kind, what)

    def _reference(self, kind: str, what: Any) -> Any:
        if kind == "node" and type(what) is int and 0 <= what < len(self.values):
            return self.values[what]
        if kind == "input" and any(each["place"] == what for each in self.model.about["inputs"]):
            return self.given[what]
        if kind == "array" and isinstance(what, str) and _NAME.fullmatch(what):
            owner, _, last = what.rpartition(".")
            module = self.model.get_submodule(owner)
            # While a function is called at other arrays, they stand in the places of the model's own.
            found = module._parameters.get(last, module._buffers.get(last))
            if isinstance(found, Tensor):
                return found
        if kind == "constant" and isinstance(what, str):
            constant = self.model.get_submodule(_CONSTANTS)._buffers.get(what)
            if constant is not None:
                return constant
        if kind == "batch" and isinstance(what, list) and len(what) == 2 and all(type(each) is int for each in what):
            times, more = what
            return times * self.examples + more
        if kind == "training" and type(what) is bool:
            return self.model.training == what
        if kind == "dtype":
            return _dtype(what)
        if kind == "number" and what in ("inf", "-inf", "nan"):
            return float(what)
        raise ModelError(f"{short(str({kind: what}), 60)} refers to nothing that is there before it")


_SPLITTING = frozenset({"chunk", "split", "split_with_sizes", "unbind"})


def _pieces(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Return into how many pieces at most an operator splits its input."""
    names = [argument.name for argument in operator._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if "chunks" in given:
        return int(given["chunks"])
    side = int(given["self"].shape[given.get("dim", 0)])
    into = given.get("split_sizes", given.get("split_size", 1))
    return len(into) if isinstance(into, list) else side // max(1, into) + 1


def _tried_through_time(layer: nn.RNNBase, sizes: list[int], x: Tensor, states: Any = ()) -> tuple[Tensor, ...]:
    """Return values of the form that a layer gives.

    Without memory, PyTorch takes milliseconds for each step in time.
    """
    if x.ndim != 3 or x.shape[2] != layer.input_size:
        raise ModelError(f"what goes through time has the shape {short(str(tuple(x.shape)), 60)}")
    directions, width = 1 + bool(layer.bidirectional), layer.proj_size or layer.hidden_size
    before = (layer.num_layers * directions, x.shape[0 if layer.batch_first else 1])
    shapes = [(*before, width), (*before, layer.hidden_size)][: 2 if layer.mode == "LSTM" else 1]
    if states and [tuple(state.shape) for state in states] != shapes:
        raise ModelError("what goes through time begins with states of other shapes")
    # Its hidden numbers are there for all steps together, also where results are projected to few.
    sizes.append(directions * layer.hidden_size * x.shape[:2].numel())
    return x.new_empty((*x.shape[:2], directions * width)), *(x.new_empty(shape) for shape in shapes)


def _made(name: str, layer: _Layer) -> nn.Module:
    kind = LAYERS.get(layer["kind"])
    if kind is None:
        raise ModelError(f"{short(name, 60)} is of the kind {short(layer['kind'], 60)!r}, which is not known")
    settings: dict[str, Any] = {}
    for key, each in layer["settings"].items():
        settings[key] = tuple(each) if isinstance(each, list) else each
    try:
        if {"device", "dtype"} & {*settings} or settings.get("num_layers", 1) > _MOST_LAYERS:
            raise ValueError("it says where to be, or has too many layers")
        return kind(**settings)
    except Exception as cause:  # PyTorch raises whatever comes of settings that make no layer
        told = short(f"{type(cause).__name__}: {cause}", 100)
        raise ModelError(f"{short(name, 60)} cannot be made ({told})") from None


def _put(put: Any, name: str, part: Any) -> None:
    try:
        put(name, part)
    except (KeyError, TypeError, RuntimeError) as cause:
        raise ModelError(f"a model has no part {short(name, 60)!r} ({short(str(cause), 80)})") from None


def _dtype(name: Any) -> torch.dtype:
    found = DTYPES.get(name) if isinstance(name, str) else None
    if found is None:
        raise ModelError(f"{short(str(name), 60)!r} is no type of numbers; expected one of {', '.join(DTYPES)}")
    return found


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [each for each in value if isinstance(each, Tensor)] if isinstance(value, tuple | list) else []


def _last_uses(graph: _Graph) -> list[list[int]]:
    """Return after each node which values nobody takes any more."""
    last: dict[int, int] = {}
    for index, node in enumerate(graph["nodes"]):
        last[index] = index
        for used in _nodes_in([node["args"], list(node.get("kwargs", {}).values())]):
            last[used] = index
    kept = {*_nodes_in([*graph["returns"].values()])}
    done: list[list[int]] = [[] for _ in graph["nodes"]]
    for used, index in last.items():
        if used not in kept and 0 <= used <= index:
            done[index].append(used)
    return done


def _nodes_in(value: Any, depth: int = 0) -> list[int]:
    if depth > _DEPTH + 2:
        raise ModelError("arguments are nested too deeply")
    if isinstance(value, list):
        return [used for each in value for used in _nodes_in(each, depth + 1)]
    used = value.get("node") if isinstance(value, Mapping) else None
    return [used] if type(used) is int else []
