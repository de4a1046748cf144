"""Watch Flower's clients and its server."""

import functools
import io
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Context, Message, MessageType
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.common.logger import log
from numpy.typing import NDArray

from fedattack.base.errors import short
from fedattack.witness import sources
from fedattack.witness.arrays import Arrays
from fedattack.witness.current import is_watched, watching
from fedattack.witness.hold_out import HoldOut
from fedattack.witness.node import Call, known_rows, save
from fedattack.witness.seen import SERVER, AskedToTrain
from fedattack.witness.store import RUN_FOLDER
from fedattack.witness.watch import KEEP, CallWatch

if TYPE_CHECKING:
    from flwr.clientapp.typing import ClientAppCallable

_COUNTS = ("num-examples", "num_examples")
_LOCAL_DP = ("clipping_norm", "sensitivity", "epsilon", "delta")
# Most apps have none, and do not import it.
_DEFENCE_MOD = ("fedattack.defences.mods", "DefenceMod")
_EMPTY = "_empty"
_LONG = 1000
# How version 1.0 of NumPy's format begins, and where the header's own text does.
_NPY, _FIRST = b"\x93NUMPY\x01\x00", 10
_INFO, _WARNING = 20, 30

# By folder, as for Watch.by_steps: in a simulation each message comes to another copy of the app.
_by_steps: dict[Path, dict[Any, tuple[str, ...]]] = {}
_compared: dict[Path, set[Any]] = {}
_labelled: dict[Path, set[Any]] = {}

WITNESS_FOLDER = "FEDATTACK_WITNESS"
"""Environment variable that names the folder of a :class:`WitnessMod` that was given none."""


class WitnessedClientApp(ClientApp):
    """A ClientApp that notes what it trains on, and otherwise behaves like the app that it wraps.

    Parameters
    ----------
    inner
        The project's own ClientApp.
    folder
        Folder to write into, on the client's own machine; :func:`fedattack.witness.read_witnesses` reads it.
    seed
        Key of the examples' hashes; use the same for all clients.
    keep
        Number of examples to keep of each role (trained, evaluated).
    hold_out
        Which examples clients do not train on; this changes the run.

    Notes
    -----
    It draws no random number, and its own errors never reach the app.
    """

    def __init__(
        self,
        inner: ClientApp,
        folder: Path | str,
        *,
        seed: int = 0,
        keep: int = KEEP,
        hold_out: HoldOut | None = None,
    ) -> None:
        super().__init__()
        self._inner = inner
        self._witness = _Calls(Path(folder), seed, keep, lambda: mods_of(inner), hold_out)

    def __call__(self, message: Message, context: Context) -> Message:
        """Run the inner app and watch."""
        return self._witness.call(message, context, self._inner)


class WitnessMod:
    """A client mod that notes what its client trains on, on the client's own machine.

    Put it first, before all other mods::

        app = ClientApp(client_fn, mods=[WitnessMod()])

    Each run gets its own subfolder, ``run-ID``. ``fedattack gather`` makes one truth from the folders of several
    machines. The hashes of all machines have the same key, so that equal examples have equal hashes.

    Parameters
    ----------
    folder
        Folder to write into, an absolute path. Without it the environment variable :data:`WITNESS_FOLDER` names the
        folder, so each site decides for itself; without either, the mod notes nothing.
    keep
        Number of examples to keep of each role (trained, evaluated).

    Notes
    -----
    It draws no random number, and its own errors never reach the app.
    """

    def __init__(self, folder: Path | str | None = None, *, keep: int = KEEP) -> None:
        self._folder = folder
        self._keep = keep
        self._told = False

    def __call__(self, message: Message, context: Context, call_next: "ClientAppCallable") -> Message:
        """Pass the message on and watch."""
        # Both would note the same, in two places.
        if is_watched():
            # `fedattack audit` witnesses the whole app.
            return call_next(message, context)
        folder = self._folder or os.environ.get(WITNESS_FOLDER)
        if not folder:
            if not self._told:
                log(_INFO, "fedattack.witness: %s names no folder, so nothing is noted", WITNESS_FOLDER)
            self._told = True
            return call_next(message, context)
        of_run = Path(folder) / f"{RUN_FOLDER}{context.run_id}"
        return _Calls(of_run, 0, self._keep, lambda: _mods_behind(call_next)).call(message, context, call_next)


@contextmanager
def watching_server(folder: Path | str) -> Iterator[None]:
    """Note which examples, held by no client, a ServerApp's own process evaluates on; the node is then ``server``."""
    watch = CallWatch(0, KEEP)
    watch.notes |= dict.fromkeys(sources.install())
    try:
        with watching(watch):
            yield
    finally:
        _save(Path(folder), watch, Call(SERVER))


class _Calls:
    """Watches the calls of one app."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        keep: int,
        mods: Callable[[], tuple[str, ...]],
        hold_out: HoldOut | None = None,
    ) -> None:
        self._folder = folder
        self._hold_out = hold_out
        self._seed = seed
        self._keep = keep
        self._mods = mods

    def call(self, message: Message, context: Context, inner: Callable[[Message, Context], Message]) -> Message:
        """Call an app."""
        try:
            watch, call = self._begin(message, context)
        except Exception as cause:  # the run must go on
            log(_WARNING, "fedattack.witness: a call of a client was not watched: %s", short(str(cause)))
            return inner(message, context)
        loaded = sources.find_loaded()
        failed = ""
        reply: Message | None = None
        try:
            with watching(watch):
                reply = inner(message, context)
        except BaseException as cause:
            failed = type(cause).__name__
            raise
        finally:
            for name in sources.find_loaded() - loaded:
                watch.note(f"{name} was imported during a call of the client, and was not watched until the next call")
            _save(self._folder, watch, _with_reply(watch, replace(call, failed=failed), reply))
        return reply

    def _begin(self, message: Message, context: Context) -> tuple[CallWatch, Call]:
        node = str(message.metadata.dst_node_id)
        client = str(context.node_config.get("partition-id", ""))
        # Projects have types of their own, such as ``train.warmup``.
        trains = message.metadata.message_type.partition(".")[0] == MessageType.TRAIN
        # Mods and clients may take arrays out of the message.
        arrays = _models(message)
        known = known_rows(self._folder, node)
        # What one client shows of a model's steps is known to the next client from its first step on.
        by_steps = _by_steps.setdefault(self._folder, {})
        compared = _compared.setdefault(self._folder, set())
        watch = CallWatch(
            self._seed,
            self._keep,
            known,
            received=lambda: _numpy(arrays),
            by_steps=by_steps,
            compared=compared,
            labelled=_labelled.setdefault(self._folder, set()),
        )
        watch.notes |= dict.fromkeys(sources.install())
        asked = _read_asked(message) if trains else None
        watch.hold_out = self._hold_out if trains else None
        kind = message.metadata.message_type
        return watch, Call(node, client, self._mods(), trains=trains, run=str(context.run_id), asked=asked, type=kind)


def _with_reply(watch: CallWatch, call: Call, reply: Message | None) -> Call:
    """Add what a reply tells."""
    if reply is None:
        return call
    if reply.has_error():
        return replace(call, failed=f"an error reply of code {reply.error.code}")
    try:
        sent, names, stated = _numpy(_models(reply)), _names(reply), _read_stated(reply)
        lists = _read_lists(reply)
    except Exception as cause:
        watch.note_error("the reply", cause)
        return call
    return replace(call, sent=sent, names=names, stated=stated, lists=lists)


def _save(folder: Path, watch: CallWatch, call: Call) -> None:
    """Write; an error ends in Flower's log, and never in the run."""
    try:
        save(folder, watch, call)
    except (Exception, SystemExit) as cause:  # what a project's own state_dict does may even exit
        log(_WARNING, "fedattack.witness: node %s was not noted: %s", call.node, short(str(cause)))


def _models(message: Message) -> list[list[Any]]:
    models = []
    for record, names in _records(message):
        models.append([record[name] for name in names])
    return models


def _names(message: Message) -> list[list[str]]:
    """Return the names of arrays as a record has them: of several, each begins with its record's key."""
    if not message.has_content():
        return []
    keys = [*message.content.array_records]
    if len(keys) < 2:
        return [names for _, names in _records(message)]
    return [[f"{key}.{name}" for name in names] for key, (_, names) in zip(keys, _records(message), strict=True)]


def _records(message: Message) -> Iterator[tuple[Any, list[str]]]:
    """Yield the records of arrays, each with the names of its arrays."""
    # Flower fails where an error message is asked for its content.
    if message.has_content():
        for record in message.content.array_records.values():
            yield record, [name for name in record if name != _EMPTY]


def _read_asked(message: Message) -> AskedToTrain:
    """Return the form of a message; bytes, such as those of encryption, are left out."""
    arrays = {name: tuple(record) for name, record in message.content.array_records.items()}
    configs: dict[str, dict[str, Any]] = {}
    for name, record in message.content.config_records.items():
        configs[name] = {key: value for key, value in record.items() if _is_plain(value)}
    return AskedToTrain(message.metadata.message_type, arrays, configs)


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return len(value) <= _LONG and all(map(_is_plain, value))
    if isinstance(value, str):
        return len(value) <= _LONG and value.isprintable()
    return isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))


def _numpy(models: Sequence[Sequence[Any]]) -> list[Arrays]:
    return [list(map(_array, model)) for model in models]


def _array(array: Any) -> NDArray[Any]:
    """Return what Flower's ``numpy()`` does, without a copy, and without the parse of a header that was met before.

    NumPy evaluates each header as Python. For a small model that takes longer than all else that a call notes.
    """
    data = array.data
    # The magic string, two bytes of version, two bytes of the header's length; the numbers follow the header.
    length = _FIRST + int.from_bytes(data[_FIRST - 2 : _FIRST], "little")
    if array.stype == "numpy.ndarray" and data[: len(_NPY)] == _NPY and length <= len(data):
        shape, dtype = _header(data[:length])
        # Whatever does not fit goes to Flower's own reader, which says what is wrong.
        if dtype is not None and len(data) - length == dtype.itemsize * math.prod(shape):
            return np.frombuffer(data, dtype, offset=length).reshape(shape)
    read: NDArray[Any] = array.numpy()
    return read


@functools.lru_cache(maxsize=1024)
def _header(raw: bytes) -> tuple[tuple[int, ...], np.dtype[Any] | None]:
    """Return shape and type of an array as ``numpy.save`` writes it; no type where the numbers are in another order."""
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(io.BytesIO(raw[len(_NPY) :]))
    return shape, None if fortran or dtype.hasobject else dtype


def _read_stated(reply: Message) -> int | None:
    """Return with how many examples a client says that it trained."""
    for record in reply.content.metric_records.values():
        for name in _COUNTS:
            value = record.get(name)
            if isinstance(value, int | float) and value > 0:
                return int(value)
    return None


def _read_lists(reply: Message) -> dict[str, NDArray[Any]]:
    """Return the lists of numbers in a reply, by their names."""
    lists: dict[str, NDArray[Any]] = {}
    if not reply.has_content():
        return lists
    content = reply.content
    records: list[Mapping[str, Any]] = [*content.metric_records.values(), *content.config_records.values()]
    for record in records:
        for name, value in record.items():
            if isinstance(value, list) and all(isinstance(each, int | float) for each in value):
                lists[name] = np.array(value)
    return lists


def mods_of(app: ClientApp) -> tuple[str, ...]:
    """List an app's mods, the outermost first."""
    functions = [app._call, *app._registered_funcs.values()]
    mods: dict[str, None] = {}
    for function in functions:
        for mod in _mods_behind(function):
            mods[mod] = None
    return tuple(mods)


def _mods_behind(function: Any) -> tuple[str, ...]:
    """List the mods that Flower has put around a function, one in the closure of the other."""
    mods = []
    # Flower's ``make_ffn`` returns a function that has the mod as ``_mod`` and what comes behind it as ``_ffn``. It
    # keeps no list of them. No app has so many that a hundred would not do, and a circle must end.
    for _ in range(100):
        code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
        variables = dict(zip(code.co_freevars if code else (), cells, strict=False))
        if "_mod" not in variables or "_ffn" not in variables:
            break
        mods.append(name_of_mod(variables["_mod"].cell_contents))
        function = variables["_ffn"].cell_contents
    return tuple(mods)


def name_of_mod(mod: object) -> str:
    """Return the name of a mod, and the arguments of a known one; anything else that a mod holds may be a secret."""
    if isinstance(mod, FunctionType):
        return mod.__name__
    kind = type(mod)
    described = ""
    # The numbers of this mod say how much noise there is; it keeps no secret.
    if kind is LocalDpMod:
        described = _numbers({name: getattr(mod, name, None) for name in _LOCAL_DP})
    elif (kind.__module__, kind.__name__) == _DEFENCE_MOD:
        described = _defence(getattr(mod, "settings", None) or {})
    return short(f"{kind.__name__}({described})" if described else kind.__name__)


def _defence(settings: Mapping[str, Any]) -> str:
    """Tell what defence there is, without files and names, by which somebody could be known."""
    # Where there is such a mod, its package is loaded.
    defences: Any = sys.modules["fedattack.defences"]
    numbers = _numbers({name: settings.get(name) for name in defences.SETTINGS})
    named = settings.get("defence")
    return f"defence={named}, {numbers}" if named in defences.DEFENCES else numbers


def _numbers(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items() if isinstance(value, int | float))
