"""Mechanisms of any kind as one thing: an update goes in, and many draws of what would be sent come out.

A mechanism is one of these, told apart by its parameters:

- a function ``f(update)``, ``f(update, rng)`` or ``f(update, rng, count)`` of arrays by name, which returns such
  arrays; with ``count``, as many draws at once along a first axis;
- a defence, with a method ``apply(update, rng)``;
- a client mod of Flower, ``mod(message, context, call_next)``, of either generation;
- a wrapper of a NumPyClient, ``wrap(client)``, which returns a client;
- a function without parameters, which returns one of these.
"""

from __future__ import annotations

import inspect
import logging
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import ConfigError, FedAttackError, short

Arrays = Mapping[str, NDArray[Any]]
Vector = NDArray[np.float64]
_Call = Callable[[dict[str, NDArray[np.float32]], np.random.Generator, int], Arrays]

LAYERS = ("first", "second")
"""Names of the arrays of an update: each has half of its entries, the first as a matrix of two rows."""

_REMEDY = "the guide fedattack/claims/README.md says what a mechanism is"


@dataclass(frozen=True)
class Mechanism:
    """What turns an update into what is sent.

    Attributes
    ----------
    name
        As error messages call it.
    size
        Entries of an update, an even number of at least 4.
    call
        Draws: from arrays by name, a generator and a count to arrays with a first axis of that length.
    seeded
        Whether it takes its randomness from the generator that it is given.
    source
        The object behind it.
    """

    name: str
    size: int
    call: _Call
    seeded: bool
    source: object

    def draws(self, update: Vector, count: int, rng: np.random.Generator) -> Vector:
        """Draw what would be sent.

        Parameters
        ----------
        update
            (size,): as a vector, which the mechanism gets as two arrays of float32.
        count, rng
            How many draws, and their randomness. Who does not take ``rng`` draws from global generators, which are
            seeded by it for the moment.

        Returns
        -------
        ndarray
            (count, size).

        Raises
        ------
        ConfigError
            If the mechanism raises, or gives other arrays, other shapes, or numbers that are not finite.
        """
        try:
            with _seed_generators(rng):
                sent = self.call(self._arrays(update), rng, count)
        except FedAttackError as error:
            raise ConfigError(f"{self.name}: {error}") from error
        except Exception as error:  # it is the user's code, which may raise anything
            kind = f"{type(error).__name__}: {error}"
            norm = float(np.linalg.norm(update))
            raise ConfigError(
                f"{self.name} raised {short(kind, 120)} for an update of norm {norm:.3g}; {_REMEDY}"
            ) from error
        return self._vectors(sent, count)

    def _arrays(self, update: Vector) -> dict[str, NDArray[np.float32]]:
        half = self.size // 2
        # Half of the entries as a matrix: mechanisms may treat matrices and vectors differently.
        first, second = update[:half].reshape(2, -1), update[half:]
        return {name: part.astype(np.float32) for name, part in zip(LAYERS, (first, second), strict=True)}

    def _vectors(self, sent: Arrays, count: int) -> Vector:
        half = self.size // 2
        shapes = {LAYERS[0]: (count, 2, half // 2), LAYERS[1]: (count, half)}
        if not isinstance(sent, Mapping) or set(sent) != set(shapes):
            got = sorted(map(str, sent)) if isinstance(sent, Mapping) else type(sent).__name__
            raise ConfigError(f"{self.name}: expected arrays {', '.join(LAYERS)} as they came, got {got}; {_REMEDY}")
        parts = []
        for name, shape in shapes.items():
            array = np.asarray(sent[name])
            if array.shape != shape:
                raise ConfigError(
                    f"{self.name} changes shapes: {name} was {shape[1:]} and comes back as {array.shape[1:]}, "
                    f"{array.shape[0] if array.ndim else 0} times of {count}; {_REMEDY}"
                )
            if not np.issubdtype(array.dtype, np.floating):
                raise ConfigError(f"{self.name}: {name} comes back as {array.dtype}, not as floats; {_REMEDY}")
            parts.append(array.reshape(count, -1).astype(np.float64))
        vectors = np.concatenate(parts, axis=1)
        if not np.isfinite(vectors).all():
            raise ConfigError(
                f"{self.name} returns NaN or infinity for a finite update; correct it, then test it again"
            )
        return vectors

    def check(self, update: Vector, seed: int) -> bool:
        """Refuse a mechanism that is not repeatable although it takes a generator; say whether another one is.

        Raises
        ------
        ConfigError
            Also as :meth:`draws`.
        """
        first, again = (self.draws(update, 3, np.random.default_rng(seed)) for _ in range(2))
        repeatable = np.array_equal(first, again)
        if self.seeded and not repeatable:
            raise ConfigError(
                f"{self.name} is not repeatable: the same update and the same generator give something else; it draws "
                "from elsewhere, or keeps state between calls; take all randomness from rng"
            )
        return repeatable


def mechanism_of(source: object, *, name: str = "the mechanism", size: int = 64, clip: float = 1.0) -> Mechanism:
    """Take an object for a mechanism; see the top of this module.

    Parameters
    ----------
    source
        The object.
    name
        As error messages call it.
    size
        Entries of an update, a multiple of 4.
    clip
        The norm that Flower's server would send with its messages.

    Raises
    ------
    ConfigError
        If it is none.
    """
    if size < 4 or size % 4:
        raise ConfigError(f"size = {size}: expected a multiple of 4, the entries of an update")
    # A class with `apply` is none until it is made.
    if hasattr(source, "apply") and not inspect.isclass(source):
        apply = source.apply
        return Mechanism(name, size, _draw_one_by_one(lambda update, rng: apply(update, rng)), True, source)
    if not callable(source):
        raise ConfigError(f"{name} is a {type(source).__name__}, which cannot be called; {_REMEDY}")
    parameters = _read_parameters(source, name)
    required = [key for key, parameter in parameters.items() if _is_required(parameter)]
    # A function without parameters makes the mechanism.
    if not required and "update" not in parameters:
        made = source()
        if not callable(made) and not hasattr(made, "apply"):
            raise ConfigError(f"{name} takes no update and returns a {type(made).__name__}; {_REMEDY}")
        return mechanism_of(made, name=name, size=size, clip=clip)
    # Three parameters in any names: message, context and the next one, as Flower's mods have them.
    if len(required) == 3 and not {"rng", "count"} & set(required):
        return Mechanism(name, size, _draw_one_by_one(_play_mod(source, clip)), False, source)
    if required == ["client"]:
        return Mechanism(name, size, _draw_one_by_one(_play_wrapper(source)), False, source)
    return _wrap_function(source, parameters, name, size)


def _read_parameters(source: Callable[..., Any], name: str) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(source).parameters
    except ValueError:
        raise ConfigError(f"{name} does not state its parameters; wrap it in a function of your own") from None


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is inspect.Parameter.empty


def _wrap_function(
    source: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], name: str, size: int
) -> Mechanism:
    # Only what it asks for by name is given.
    extra = {"rng", "count"} & set(parameters)
    unknown = [key for key in list(parameters)[1:] if key not in extra and _is_required(parameters[key])]
    if unknown:
        raise ConfigError(
            f"{name} asks for {', '.join(unknown)}; expected update, and perhaps rng and count; {_REMEDY}"
        )

    def call(update: Arrays, rng: np.random.Generator, count: int) -> Arrays:
        offered = {"rng": rng, "count": count}
        return source(update, **{key: offered[key] for key in extra})  # type: ignore[no-any-return]

    if "count" in extra:
        return Mechanism(name, size, call, "rng" in extra, source)
    return Mechanism(name, size, _draw_one_by_one(lambda update, rng: call(update, rng, 1)), "rng" in extra, source)


def _draw_one_by_one(once: Callable[[Arrays, np.random.Generator], Arrays]) -> _Call:
    """Draw by as many calls, each with a copy of the update, which a mechanism may work in."""

    def call(update: dict[str, NDArray[np.float32]], rng: np.random.Generator, count: int) -> Arrays:
        sent: dict[str, list[NDArray[Any]]] = {}
        for _ in range(count):
            copied = {name: array.copy() for name, array in update.items()}
            answer = once(copied, rng)
            if not isinstance(answer, Mapping):
                return answer  # which is refused with what it is
            for name, array in answer.items():
                sent.setdefault(name, []).append(np.asarray(array))
        return {name: np.stack(arrays) for name, arrays in sent.items()}

    return call


def _play_mod(mod: Callable[..., Any], clip: float) -> Callable[[Arrays, np.random.Generator], Arrays]:
    """Play client and server around a mod: zeros are received, and the model that comes back is the update."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict

    # Legacy messages have keys of their own for parameters, configuration and results.
    legacy = str(getattr(mod, "__module__", type(mod).__module__)).startswith("flwr.client.")
    key, config_key, answer_key = "arrays", "config", "arrays"
    if legacy:
        key, config_key, answer_key = "fitins.parameters", "fitins.config", "fitres.parameters"
    # One context for all draws, as a mod may keep state in it.
    context = Context(run_id=0, node_id=1, node_config={"partition-id": 0}, state=RecordDict(), run_config={})

    def record_of(arrays: Arrays) -> ArrayRecord:
        return ArrayRecord({name: Array(array) for name, array in arrays.items()})

    def once(update: Arrays, rng: np.random.Generator) -> Arrays:
        zeros = {name: np.zeros_like(array) for name, array in update.items()}
        config = ConfigRecord({"clipping_norm": clip, "server-round": 1})
        request = _make_message(RecordDict({key: record_of(zeros), config_key: config}))
        content = RecordDict({answer_key: record_of(update)})
        if legacy:
            content["fitres.num_examples"] = MetricRecord({"num_examples": 1})
            content["fitres.metrics"] = ConfigRecord()
            content["fitres.status"] = ConfigRecord({"code": 0, "message": ""})
        else:
            content["metrics"] = MetricRecord({"num-examples": 1})
        with _silence_flower():
            reply = mod(request, context, lambda message, context: _make_message(content))
        if reply.has_error():
            raise ConfigError(f"the mod refuses the reply: {short(str(reply.error.reason), 120)}")
        (sent,) = reply.content.array_records.values()
        names = [name for name in sent if name != "_empty"]
        # Messages of the first generation have numbers for names.
        return {own: sent[name].numpy() for own, name in zip(update, names, strict=True)}

    return once


@contextmanager
def _silence_flower() -> Iterator[None]:
    """Hide what Flower's mods log at each message, of which there are thousands."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _make_message(content: Any) -> Any:
    """As much of a message as mods look at; a real one exists only within a run."""
    metadata = SimpleNamespace(
        message_type="train",
        group_id="1",
        run_id=0,
        src_node_id=0,
        dst_node_id=1,
        message_id="",
        reply_to_message_id="",
    )
    return SimpleNamespace(content=content, metadata=metadata, has_error=lambda: False, has_content=lambda: True)


def _play_wrapper(wrap: Callable[..., Any]) -> Callable[[Arrays, np.random.Generator], Arrays]:
    from flwr.client import NumPyClient

    class Adds(NumPyClient):
        update: Arrays

        def fit(self, parameters: Any, config: Any) -> Any:
            moved = zip(parameters, self.update.values(), strict=True)
            return [received + change for received, change in moved], 1, {}

    def once(update: Arrays, rng: np.random.Generator) -> Arrays:
        client = Adds()
        client.update = update
        zeros = [np.zeros_like(array) for array in update.values()]
        sent, _, _ = wrap(client).fit(zeros, {"server-round": 1})
        return dict(zip(update, sent, strict=True))

    return once


@contextmanager
def _seed_generators(rng: np.random.Generator) -> Iterator[None]:
    """Seed the generators that mods draw from, and put them back; torch's is touched only where torch is in use."""
    seed = int(rng.integers(2**31))
    torch = sys.modules.get("torch")
    state, python = np.random.get_state(), random.getstate()  # noqa: NPY002
    torch_state = None if torch is None else torch.get_rng_state()
    try:
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        if torch is not None:
            torch.default_generator.manual_seed(seed)
        yield
    finally:
        np.random.set_state(state)  # noqa: NPY002
        random.setstate(python)
        if torch is not None:
            torch.set_rng_state(torch_state)
