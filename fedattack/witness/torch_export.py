"""A model of which nobody knows how it is made, written down as a program of PyTorch's operators.

``torch.export`` traces the model, in training and in evaluation, with two numbers of examples each. What differs by the
number of examples follows it; what differs by the mode follows the mode. The program is kept only if it computes what
the model computes, random draws included. All that is done to a copy.
"""

import copy
import operator
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from fedattack.errors import ModelError, short
from fedattack.learning.inputs import Inputs
from fedattack.learning.operators import LEFT_OUT, OPERATORS
from fedattack.learning.programs import DTYPES, LAYERS, MOST_NODES, Program, check_program
from fedattack.structured import arguments, places
from fedattack.untrusted import parse_json

_COUNTS = (3, 5)
_TRIED = ((1, False, 0), (4, False, 0), (4, True, 1), (5, True, 2), (7, True, 3))
"""Numbers of examples, modes and seeds by which a program is compared with its model."""

_RTOL, _ATOL = 1e-4, 1e-5
_CONVOLUTION = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")
_NORM = ("num_features", "eps", "momentum", "affine", "track_running_stats")
_DROPOUT = ("p", "inplace")
_THROUGH_TIME = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional")

# By layer: the settings that make it, and the operators that it is.
_KINDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "Linear": (("in_features", "out_features"), ("linear",)),
    **{f"Conv{axes}d": (_CONVOLUTION, (f"conv{axes}d",)) for axes in (1, 2, 3)},
    **{f"BatchNorm{axes}d": (_NORM, ("batch_norm",)) for axes in (1, 2, 3)},
    "Dropout": (_DROPOUT, ("dropout", "dropout_")),
    **{f"Dropout{axes}d": (_DROPOUT, ("feature_dropout", "feature_dropout_")) for axes in (1, 2, 3)},
    "AlphaDropout": (_DROPOUT, ("alpha_dropout",)),
    "LSTM": ((*_THROUGH_TIME, "proj_size"), ("lstm",)),
    "GRU": (_THROUGH_TIME, ("gru",)),
    "RNN": ((*_THROUGH_TIME, "nonlinearity"), ("rnn_tanh", "rnn_relu")),
}

# They check what the trace took for granted, and compute nothing.
_CHECKS = {"_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size"}


class UnlikeError(Exception):
    """A model that no program describes, and why."""


def program_of(module: nn.Module, sample: NDArray[Any], known: Sequence[Program] = ()) -> tuple[Program | None, str]:
    """Describe a model by a program.

    Parameters
    ----------
    module
        The model, which is left as it is.
    sample
        (n, …): some examples as it takes them; see :mod:`fedattack.structured`.
    known
        Programs one of which may be the model's already.

    Returns
    -------
    tuple of Program or None, str
        The program; or ``None``, and why there is none.
    """
    try:
        with warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            model = _copy(module)
            for program in known:
                if _same_state(program, model) and not _difference(program, model, sample, _TRIED[1:3]):
                    return program, ""
            program = _described(model, sample)
            check_program(program)
            difference = _difference(program, model, sample, _TRIED)
        return (None, difference) if difference else (program, "")
    except (UnlikeError, ModelError) as cause:
        return None, short(str(cause), 200)
    except KeyboardInterrupt:
        raise
    except BaseException as cause:  # the model's own code, and what traces it, may raise anything, and even exit
        return None, short(f"{type(cause).__name__}: {cause}", 200)


def _copy(module: nn.Module) -> nn.Module:
    for name, part in module.named_modules():
        hooks = [*part._forward_hooks.values(), *part._forward_pre_hooks.values(), *part._backward_hooks.values()]
        if any(not getattr(hook, "__module__", "").startswith("opacus") for hook in hooks):
            raise UnlikeError(f"its part {name or 'itself'} has hooks, which may do anything")
    model = copy.deepcopy(module).cpu()
    for part in model.modules():
        for held in (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks):
            held.clear()
    model.zero_grad(set_to_none=True)
    return model


class _Given:
    """Places of what a model returned; lists that are attributes of a module are put back once it is traced."""

    places: Sequence[str] = ()


class _Called(nn.Module):
    """A model that is called with tensors in the order of their places, and returns its tensors in theirs."""

    def __init__(self, model: nn.Module, taken: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.taken = list(taken)
        self.given = _Given()

    def forward(self, *leaves: Tensor) -> tuple[Tensor, ...]:
        args, kwargs = arguments(dict(zip(self.taken, leaves, strict=True)))
        returned = _tensors_in(self.model(*args, **kwargs))
        self.given.places = [*returned]
        return tuple(returned.values())


def _tensors_in(returned: Any) -> dict[str, Tensor]:
    found = {place: value for place, value in places((returned,), {}).items() if isinstance(value, Tensor)}
    if not found:
        raise UnlikeError("it returns no tensor")
    return found


def _examples(sample: NDArray[Any], count: int) -> dict[str, Tensor]:
    return Inputs.of(sample[np.arange(count) % len(sample)]).leaves


def _described(model: nn.Module, sample: NDArray[Any]) -> Program:
    leaves = _examples(sample, 1)
    arrays, tied = _arrays(model)
    layers = {name: _layer(name, part) for name, part in model.named_modules()}
    modules: list[Any] = []
    for name, part in model.named_modules():
        if layers[name] is not None:
            modules.append(layers[name])
        elif name and (part._parameters or part._buffers):
            modules.append(name)
    constants: dict[str, NDArray[Any]] = {}
    graphs = {}
    for training in (True, False):
        traced = []
        for count in _COUNTS:
            called = _Called(model, [*leaves]).train(training)
            exported = torch.export.export(called, tuple(_examples(sample, count).values()), strict=False)
            raised = {name for name, layer in layers.items() if layer is not None}
            traced.append(_Trace(exported, [*leaves], called.given.places, model, raised, constants).graph())
        few, many = traced
        graphs[training] = _merged(few, many, "the number of examples")
    try:
        both, apart = _merged(graphs[True], graphs[False], "the mode"), None
    except UnlikeError:
        both, apart = graphs[True], graphs[False]
    inputs = []
    for place, leaf in leaves.items():
        inputs.append({"place": place, "shape": list(leaf.shape[1:]), "dtype": _name_of(leaf.dtype)})
    about = {"inputs": inputs, "modules": modules, "arrays": arrays, "tied": tied, "train": both, "eval": apart}
    program = Program(about, constants)
    # As a reader will have it.
    return Program(parse_json(program.arrays()["about"].tobytes()), constants)


def _arrays(model: nn.Module) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """List parameters and buffers as ``state_dict`` has them, and parameters that are others as well."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    first: dict[int, str] = {}
    tied = {}
    for name, parameter in parameters.items():
        if first.setdefault(id(parameter), name) != name:
            tied[name] = first[id(parameter)]
    arrays = []
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise UnlikeError(f"its state holds {short(name, 60)}, which is no array")
        kind = "parameter" if name in parameters else "buffer"
        trains = name in parameters and parameters[name].requires_grad
        shape = list(value.shape)
        arrays.append({"name": name, "shape": shape, "dtype": _name_of(value.dtype), "kind": kind, "trains": trains})
    return arrays, tied


def _layer(name: str, part: nn.Module) -> dict[str, Any] | None:
    """Return how a layer is made as such; ``None`` where it is none of PyTorch's own."""
    kind = type(part).__name__
    if not name or LAYERS.get(kind) is not type(part) or getattr(part, "padding_mode", "zeros") != "zeros":
        return None
    if any(parameter.dtype != torch.float32 for parameter in part.parameters()):
        return None
    settings = {}
    for key in _KINDS[kind][0]:
        value = getattr(part, key)
        settings[key] = list(value) if isinstance(value, tuple) else value
    if kind == "Linear" or kind.startswith("Conv"):
        settings["bias"] = part.bias is not None
    return {"name": name, "kind": kind, "settings": settings}


class _Trace:
    """One exported graph, as a program writes it."""

    def __init__(
        self,
        exported: Any,
        taken: Sequence[str],
        given: Sequence[str],
        model: nn.Module,
        raised: set[str],
        constants: dict[str, NDArray[Any]],
    ) -> None:
        self.exported = exported
        self.given = given
        self.model = model
        self.raised = raised
        self.constants = constants
        self.nodes: list[dict[str, Any]] = []
        self.values: dict[fx.Node, Any] = {}
        self._taken = iter(taken)

    def graph(self) -> dict[str, Any]:
        """Return nodes and what is returned."""
        specs = iter(self.exported.graph_signature.input_specs)
        returned: list[Any] = []
        for node in self.exported.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = self._placed(next(specs))
            elif node.op == "output":
                returned = [self._value(each) for each in node.args[0]]
            elif node.op == "call_function":
                self._call(node)
            else:
                raise UnlikeError(f"it takes {short(str(node.target), 60)}")
        if len(self.nodes) > MOST_NODES or len(returned) != len(self.given):
            raise UnlikeError(f"it takes {len(self.nodes):,} operators, and returns {len(returned)} values")
        return {"nodes": self.nodes, "returns": dict(zip(self.given, returned, strict=True))}

    def _placed(self, spec: Any) -> dict[str, Any]:
        kind, name = spec.kind.name, (spec.target or "").removeprefix("model.")
        if kind == "USER_INPUT":
            return {"input": next(self._taken)}
        if kind == "PARAMETER" or (kind == "BUFFER" and spec.persistent):
            return {"array": name}
        if kind not in ("BUFFER", "CONSTANT_TENSOR"):
            raise UnlikeError(f"it holds {short(name, 60)}, which is no array")
        values = self.exported.constants[spec.target].detach().cpu().numpy()
        for known, other in self.constants.items():
            if values.dtype == other.dtype and values.shape == other.shape and values.tobytes() == other.tobytes():
                return {"constant": known}
        self.constants[f"c{len(self.constants)}"] = values.copy()
        return {"constant": f"c{len(self.constants) - 1}"}

    def _call(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            self._write(node, "item", [self._value(each) for each in node.args])
            return
        if not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace != "aten":
            raise UnlikeError(f"it takes {short(str(node.target), 60)}, which is no operator that a program may use")
        name = node.target._schema.name.partition("::")[2]
        form = node.target._schema.overload_name or "default"
        if name in _CHECKS:
            return
        stack = [*node.meta.get("nn_module_stack", {}).values()]
        owner = stack[-1][0].removeprefix("model").removeprefix(".") if stack else ""
        if owner in self.raised and self._is_layer(owner, name, node):
            return
        args, kwargs = self._bound(node)
        if name in ("to", "_to_copy"):
            self._write(node, *_cast(form, args, kwargs))
            return
        known = f"{name}.{form}" if name != "_unsafe_view" else "view.default"
        if known not in OPERATORS:
            raise UnlikeError(f"it takes {known}, which is no operator that a program may use")
        self._write(node, known, args, kwargs)

    def _is_layer(self, owner: str, name: str, node: fx.Node) -> bool:
        """Write a layer's operator as a call of the layer; batches are counted by the layer itself."""
        kind = type(self.model.get_submodule(owner)).__name__
        if name in _KINDS[kind][1]:
            # Inputs; and the states of what goes through time, after which weights stand.
            count = 2 if kind in ("LSTM", "GRU", "RNN") else 1
            self._write(node, f"layer.{owner}", [self._value(each) for each in node.args[:count]])
            return True
        return kind.startswith("BatchNorm") and name == "add_" and not node.users

    def _bound(self, node: fx.Node) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of an operator, without those that say where to compute."""
        assert isinstance(node.target, torch._ops.OpOverload)  # noqa: S101 - for mypy
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        left_out = False
        for argument, value in zip(node.target._schema.arguments, node.args, strict=False):
            if argument.name in LEFT_OUT:
                left_out = True
            elif left_out:
                kwargs[argument.name] = self._value(value)
            else:
                args.append(self._value(value))
        kwargs |= {name: self._value(value) for name, value in node.kwargs.items() if name not in LEFT_OUT}
        return args, kwargs

    def _write(self, node: fx.Node, op: str, args: list[Any], kwargs: dict[str, Any] | None = None) -> None:
        self.values[node] = {"node": len(self.nodes)}
        self.nodes.append({"op": op, "args": args, **({"kwargs": kwargs} if kwargs else {})})

    def _value(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            if value not in self.values:
                raise UnlikeError(f"it uses {short(str(value), 60)}, which is no value of a program")
            return self.values[value]
        if isinstance(value, list | tuple):
            return [self._value(each) for each in value]
        if isinstance(value, torch.dtype):
            return {"dtype": _name_of(value)}
        if isinstance(value, float) and not np.isfinite(value):
            return {"number": str(value)}
        if value is None or type(value) in (bool, int, float, str):
            return value
        raise UnlikeError(f"it uses {short(str(value), 60)}, which is no value of a program")


def _cast(form: str, args: list[Any], kwargs: dict[str, Any]) -> tuple[str, list[Any]]:
    """Write what moves or casts a tensor as a cast alone."""
    if form == "other":
        return "type_as.default", args[:2]
    dtype = next((each for each in [*args[1:], *kwargs.values()] if isinstance(each, dict) and "dtype" in each), None)
    return ("alias.default", args[:1]) if dtype is None else ("to", [args[0], dtype])


def _merged(one: Any, other: Any, what: str) -> Any:
    """Put two graphs together that differ by the number of examples, or by the mode; what differs follows it."""
    if one == other and type(one) is type(other):
        return one
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return {key: _merged(one[key], other[key], what) for key in one}
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [_merged(*pair, what) for pair in zip(one, other, strict=True)]
    if type(one) is bool and type(other) is bool and what == "the mode":
        return {"training": one}
    if type(one) is int and type(other) is int and what != "the mode":
        times, rest = divmod(other - one, _COUNTS[1] - _COUNTS[0])
        if not rest:
            return {"batch": [times, one - times * _COUNTS[0]]}
    raise UnlikeError(f"what it computes depends on {what}")


def _name_of(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise UnlikeError(f"it takes numbers of the type {name}")
    return name


def _same_state(program: Program, model: nn.Module) -> bool:
    try:
        return bool(_arrays(model)[0] == program.about["arrays"])
    except UnlikeError:
        return False


def _difference(
    program: Program, model: nn.Module, sample: NDArray[Any], tried: Sequence[tuple[int, bool, int]]
) -> str:
    """Say in what a program computes something else than its model; empty if in nothing."""
    built = program.build()
    built.load_state_dict(model.state_dict())
    for count, training, seed in tried:
        found = []
        for each in (model, built):
            # Of its own, as a model may write into them.
            args, kwargs = arguments(_examples(sample, count))
            each.train(training)
            with _seeded(seed), torch.no_grad():
                found.append(_tensors_in(each(*args, **kwargs)))
        told = f"in {'training' if training else 'evaluation'}, for {count} examples,"
        if not _alike(*found):
            return f"{told} the program computes something else than the model"
        if not _alike(model.state_dict(), built.state_dict()):
            return f"{told} the program changes its buffers in another way than the model"
    return ""


def _alike(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    if [*one] != [*other]:
        return False
    for a, b in zip(one.values(), other.values(), strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        if not torch.allclose(a.double(), b.double(), rtol=_RTOL, atol=_ATOL, equal_nan=True):
            return False
    return True


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed all that a model may draw from; whoever calls has kept the states."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)
    yield
