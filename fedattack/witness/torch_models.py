"""By which import path, and with which arguments, a model can be built again."""

import ast
import builtins
import collections
import functools
import importlib
import inspect
import json
import math
import random
import sys
import textwrap
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from fedattack.witness.current import current, is_paused, pause_watching
from fedattack.witness.pretrained import description
from fedattack.witness.seen import WitnessedModel
from fedattack.witness.seen_model import SeenModel

_PRETRAINED = "fedattack.learning.pretrained:from_description"
_LARGE = 10**7
_LONG = 1000
_METHODS = {"append", "extend", "add_module"}
_HELPERS = {range, zip, len, list, tuple, dict, int, collections.OrderedDict}

Made = tuple[str, dict[str, Any]]
"""An import path, and the keyword arguments of a call."""

# By class, and not by model: what a client trains is often a copy, which no constructor made.
# ``None`` stands for the arguments of a constructor that cannot be written down.
_made: "weakref.WeakKeyDictionary[type, dict[str, tuple[str, dict[str, Any] | None]]]" = weakref.WeakKeyDictionary()
_defaults: "weakref.WeakKeyDictionary[Callable[..., Any], dict[str, Any]]" = weakref.WeakKeyDictionary()
# By what makes models, the texts and the modules that its code names.
_named: "weakref.WeakKeyDictionary[Callable[..., Any], tuple[set[str], list[ModuleType]]]" = weakref.WeakKeyDictionary()
_CALLS = 64
_rebuilding: dict[tuple[object, str], bool] = {}


def noting(original: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``torch.nn.Module.__init__`` so that it notes what a model was made with."""

    @functools.wraps(original)
    def make(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not torch.compiler.is_compiling():
            watch, frame = current(), sys._getframe(1)
            if watch is not None:
                watch.guard("what a model was made with", _note, self, frame)
            elif not is_paused():
                # Such as a model that a module makes when it is imported.
                with suppress(Exception):
                    _note(None, self, frame)

    return make


def _note(watch: object, module: nn.Module, frame: FrameType | None) -> None:
    """Note the arguments of the constructors that are under way, and of the function that called the outermost."""
    outermost = None
    # The frames of a class and its bases, from the innermost out, as long as they make this very module. What calls the
    # outermost is the project's own function, if any.
    while frame is not None and frame.f_code.co_name == "__init__" and _first(frame) is module:
        outermost, frame = frame, frame.f_back
    calls: list[tuple[str, dict[str, Any] | None]] = []
    of_class = _path_of(type(module).__module__, type(module).__qualname__)
    if of_class:
        calls.append((of_class, {} if outermost is None else _arguments(outermost, type(module), skip=1)))
    if frame is not None:
        function = _function_of(frame)
        arguments = _arguments(frame, function, skip=0) if function is not None else None
        if function is not None and arguments is not None:
            calls.append((f"{function.__module__}:{function.__name__}", arguments))
    known = _made.setdefault(type(module), {})
    for made in calls:
        if len(known) < _CALLS:
            known.setdefault(repr(made), made)


def _first(frame: FrameType) -> object:
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def _arguments(frame: FrameType, function: Callable[..., Any], skip: int) -> dict[str, Any] | None:
    """Return what a function was called with, if it may be noted, without what are the defaults anyway."""
    code, values = frame.f_code, frame.f_locals
    positional_only, count = code.co_posonlyargcount, code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames[skip:count]
    rest = list(code.co_varnames[count:])
    if positional_only > skip:
        return None
    # What ``*args`` took has no names by which it could be given again.
    if code.co_flags & inspect.CO_VARARGS and values.get(rest.pop(0)):
        return None
    defaults = _defaults.get(function)
    if defaults is None:
        parameters = inspect.signature(function).parameters
        defaults = _defaults[function] = {name: parameter.default for name, parameter in parameters.items()}
    given = {name: values.get(name) for name in names if values.get(name) is not defaults.get(name)}
    if code.co_flags & inspect.CO_VARKEYWORDS:
        given |= values.get(rest[0]) or {}
    if not all(_may_be_noted(value, function) for value in given.values()):
        return None
    # The model is to be built again with what JSON keeps, which knows no tuples.
    kept: dict[str, Any] = json.loads(json.dumps(given))
    return kept


def _may_be_noted(value: Any, maker: Callable[..., Any]) -> bool:
    """Say whether an argument may be noted: a number, a text that the code of its maker names, or a list of them."""
    if isinstance(value, list | tuple):
        # JSON has one kind of list; a deeper one may be data.
        flat = not any(isinstance(item, list | tuple) for item in value)
        return flat and len(value) <= _LONG and all(_may_be_noted(item, maker) for item in value)
    if isinstance(value, str):
        return len(value) <= _LONG and value.isprintable() and _is_named(value, maker)
    if isinstance(value, int):
        return abs(value) <= 2**53
    return value is None or (isinstance(value, float) and math.isfinite(value))


def _is_named(text: str, maker: Callable[..., Any]) -> bool:
    """Say whether a text chooses something that the code of a class or function names; any other may be a secret."""
    known = _named.get(maker)
    if known is None:
        known = _named[maker] = _names_in(maker)
    texts, modules = known
    return text in texts or any(text in dir(module) for module in modules)


def _names_in(maker: Callable[..., Any]) -> tuple[set[str], list[ModuleType]]:
    """Return the texts in the code of a function, or of a class and its bases, and the modules that it names."""
    texts: set[str] = set()
    modules: list[ModuleType] = [torch, nn, nn.functional]
    made_by: list[Any] = [maker]
    # A class's own methods and its bases': any may compare the argument with a text.
    for owner in maker.__mro__ if isinstance(maker, type) else ():
        made_by += vars(owner).values()
    for value in made_by:
        function = getattr(value, "__func__", value)
        if isinstance(function, FunctionType):
            _read_function(function, texts, modules)
    return texts, modules


def _read_function(function: FunctionType, texts: set[str], modules: list[ModuleType]) -> None:
    """Add the texts in a function's defaults and code, and the modules that it names."""
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    texts |= {value for value in defaults if isinstance(value, str)}
    names: set[str] = set()
    _read_code(function.__code__, texts, names)
    for name in names:
        named = function.__globals__.get(name)
        if isinstance(named, Mapping):
            texts |= {key for key in named if isinstance(key, str)}
        if isinstance(named, ModuleType):
            modules.append(named)
            inner = [vars(named).get(name) for name in names]
            modules += [module for module in inner if isinstance(module, ModuleType)]


def _read_code(code: CodeType, texts: set[str], names: set[str]) -> None:
    """Add all texts and names of a function's code, and of the functions in it."""
    names |= {*code.co_names}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _read_code(constant, texts, names)
        for value in constant if isinstance(constant, tuple | frozenset) else (constant,):
            if isinstance(value, str):
                texts.add(value)


def _path_of(module: str, name: str) -> str | None:
    reachable = "." not in name and module != "__main__" and hasattr(sys.modules.get(module), name)
    return f"{module}:{name}" if reachable else None


def _function_of(frame: FrameType) -> FunctionType | None:
    """Return the function of a module that a frame runs, if it only puts layers together."""
    module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
    function = getattr(sys.modules.get(module), name, None)
    if module == "__main__" or not isinstance(function, FunctionType) or function.__code__ is not frame.f_code:
        return None
    return function


def describe(model: SeenModel) -> WitnessedModel:
    """Return what a witness says of a model of PyTorch."""
    if model.stepwise:
        why = (
            f"no loss of PyTorch with one label for each example was seen of {model.name}: only the app itself knows it"
        )
        return WitnessedModel(None, {}, model.input_shape, 0, None, why)
    module = model.model
    assert isinstance(module, nn.Module)  # noqa: S101 - for mypy
    made = _search(module, model.signature)
    loss = next(iter(model.losses.values()), None)
    reasons = []
    if made is None:
        reasons.append(
            f"no import path, or more than one way, is known by which {model.name} is made with these names and "
            "shapes; give a function without arguments that makes it"
        )
    if loss is None:
        kinds = ", ".join(model.losses)
        reasons.append(f"the loss is {kinds}, which has no name" if kinds else "no loss of PyTorch was seen")
    spec, arguments = made or (None, {})
    return WitnessedModel(spec, arguments, model.input_shape, model.classes, loss, "; ".join(reasons))


def _search(module: nn.Module, signature: Any) -> Made | None:
    """Find the one call that builds the same; models of the same names and shapes may still compute other things."""
    builders: dict[str, Made] = {}
    complete, incomplete = _candidates(module)
    for made in complete:
        attempt = (signature, repr(made))
        if attempt not in _rebuilding:
            _rebuilding[attempt] = _rebuilds(made, module)
        if _rebuilding[attempt] and builders.setdefault(made[0], made) != made:
            return None
    # It may as well be the one whose arguments are not known.
    return None if incomplete & {*builders} else next(iter(builders.values()), None)


def _candidates(module: nn.Module) -> tuple[list[Made], set[str]]:
    """Return the calls that may have built a model, and what was called with arguments that are not known.

    One that was made unwatched may have no arguments.
    """
    described = _describe_pretrained(module)
    if described is not None:
        return [described], set()
    path = _path_of(type(module).__module__, type(module).__qualname__)
    noted = _made.get(type(module), {} if path is None else {"": (path, {})}).values()
    told = [(path, arguments) for path, arguments in noted if arguments is not None]
    return told, {path for path, arguments in noted if arguments is None}


def _describe_pretrained(module: nn.Module) -> Made | None:
    """Return how Hugging Face's own models are made, whose configurations say everything."""
    arguments = description(module)
    return None if arguments is None else (_PRETRAINED, arguments)


def _rebuilds(made: Made, module: nn.Module) -> bool:
    """Say whether a call builds a model of the same names and shapes; it leaves all random states as they are."""
    path, arguments = made
    name, _, attribute = path.partition(":")
    ours = path == _PRETRAINED
    function = getattr(importlib.import_module(name) if ours else sys.modules.get(name), attribute, None)
    # A class is called whatever its constructor does: the app itself called it so. A function may do more than make a
    # model, such as fetch weights.
    if function is None or (not ours and isinstance(function, FunctionType) and not _only_builds(function)):
        return False
    wanted = _shapes(module)
    # On the meta device without memory or time. Some constructors need numbers, and a small model is soon made.
    devices = ["meta", "cpu"] if sum(parameter.numel() for parameter in module.parameters()) < _LARGE else ["meta"]
    for device in devices:
        try:
            with pause_watching(), _same_randomness(), torch.device(device):
                built = function(**arguments)
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: S112 - the project's own code may even exit; then it is another call
            continue
        if isinstance(built, nn.Module) and _shapes(built) == wanted:
            return True
    return False


def _shapes(module: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    return [
        (name, tuple(value.shape)) for name, value in module.state_dict().items() if isinstance(value, torch.Tensor)
    ]


@contextmanager
def _same_randomness() -> Iterator[None]:
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    # Before CUDA is used, a seed for it waits in this list.
    # A seed that a constructor sets would otherwise be there for the app's own use of CUDA.
    waiting: list[Any] = getattr(torch.cuda, "_queued_calls", [])
    waited, started = list(waiting), torch.cuda.is_initialized()
    of_cuda = torch.cuda.get_rng_state_all() if started else []
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])
        if started:
            torch.cuda.set_rng_state_all(of_cuda)
        else:
            waiting[:] = waited


def _only_builds(function: FunctionType) -> bool:
    """Say whether all that a function calls are layers: calling it once more then does nothing else."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError):
        return False
    for node in ast.walk(tree):
        # Anything that reaches beyond putting layers together.
        if isinstance(node, ast.With | ast.Import | ast.ImportFrom | ast.Global | ast.While | ast.Await):
            return False
        if isinstance(node, ast.Call) and not _is_layer(node.func, function):
            return False
    return True


def _is_layer(node: ast.expr, function: FunctionType) -> bool:
    if isinstance(node, ast.Attribute) and node.attr in _METHODS:
        return True
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return False
    value = function.__globals__.get(node.id, getattr(builtins, node.id, None))
    for name in reversed(names):
        value = getattr(value, name, None)
    return value in _HELPERS or (isinstance(value, type) and issubclass(value, nn.Module))
