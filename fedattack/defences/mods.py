"""Defences as a Flower client mod, for both generations of the API and for SecAgg+.

Put it after ``secaggplus_mod`` in the list of mods, so that SecAgg+ masks the defended update, and before
:data:`fedattack.observe.bridge.numpy_client_bridge`::

    app = ClientApp(client_fn=client_fn, mods=[secaggplus_mod, DefenceMod(), numpy_client_bridge])
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS
from numpy.typing import NDArray

from fedattack.base.errors import ConfigError, DataError
from fedattack.defences import defence_of
from fedattack.defences.applying import Sends, defended_arrays
from fedattack.defences.base import Batch, Defence, Settings, Update, as_float32, number
from fedattack.defences.checked import Last, act, check_moved, check_received, differences, norm_of
from fedattack.defences.hook import Handed, collecting
from fedattack.defences.noise import Noise, global_draws

_EMPTY = "_empty"
_ROUND = "server-round"
# It keeps the noise apart from other draws with the same seed.
_STREAM = 0xDEFE
# Only these metrics stay in a defended reply. Others, such as the training loss, are undefended functions of the
# records or of the clean update.
_NUMBERS = ("num-examples", "num_examples")
_STATUS = "fitres.status"
_LEGACY_METRICS = "fitres.metrics"


@dataclass(frozen=True)
class DefenceMod:
    """Client mod that replaces the client's update by a defended one.

    - It acts only on training messages, including those of actions such as ``train.warmup``.
    - It removes the metrics from a defended reply, except the number of examples.
    - Without a defence messages pass unchanged.
    - If it cannot defend the update, it raises, and Flower sends an error instead of the update.

    Parameters
    ----------
    settings
        See :data:`fedattack.defences.SETTINGS`; ``None`` reads the run config of each call.
    sends
        Whether replies hold a model, or the update itself, such as a gradient.
    seed
        Makes the noise repeatable, with the client (its ``partition-id``, or else its node id) and the round. Whoever
        knows the seed can remove the noise, so use it only in simulations. ``None`` takes randomness from the operating
        system.
    names
        Names of the sent arrays, used instead of their own if the numbers agree. Legacy messages have no names, and
        RecUP-FL needs those with which its zoo was trained. The names of a model that is handed over are known anyway.
    """

    settings: Settings | None = None
    sends: Sends = "model"
    seed: int | None = None
    names: Sequence[str] | None = None

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Defend the reply to a training message.

        Raises
        ------
        ConfigError
            If settings are wrong, or the mod comes before SecAgg+'s and would get what is masked already.
        DataError, ModelError
            See :func:`fedattack.defences.applying.defended_arrays`.
        """
        if message.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        defence = defence_of(context.run_config if self.settings is None else self.settings)
        if defence is None:
            return call_next(message, context)
        rng = self._generator(message, context)
        # Mods and clients further in may take arrays out of the message.
        received = _arrays_of(message.content)
        with collecting(defence.needs_batch) as handed:
            reply = call_next(message, context)
        if reply.has_error():
            return reply
        if RECORD_KEY_CONFIGS in reply.content.config_records:
            raise ConfigError(
                "a defence got a reply that SecAgg+ has made already, and would come after the mask; put "
                "secaggplus_mod before DefenceMod in the list of mods"
            )
        self._defend(reply.content, defence, received, handed, rng)
        _silence(reply.content)
        return reply

    def _defend(
        self,
        content: RecordDict,
        defence: Defence,
        received: dict[str, NDArray],
        handed: Handed,
        rng: np.random.Generator,
    ) -> None:
        """Put defended arrays in the place of those that a reply sends, if it sends any."""
        sent = _arrays_of(content)
        # An evaluation or an error has no arrays.
        if not sent:
            return
        if received.keys() == sent.keys():
            received = {name: received[name] for name in sent}
        names: Sequence[str] = list(sent)
        if self.names is not None and len(self.names) == len(sent):
            names = self.names
        arrays = defended_arrays(
            defence,
            received=[*received.values()],
            sent=[*sent.values()],
            names=names,
            handed=handed,
            rng=rng,
            sends=self.sends,
        )
        # One record of arrays, as `_arrays_of` made sure.
        (key,) = content.array_records
        content[key] = _record_of(dict(zip(sent, arrays, strict=True)))

    def _generator(self, message: Message, context: Context) -> np.random.Generator:
        if self.seed is None:
            return np.random.default_rng()
        client = int(context.node_config.get("partition-id", context.node_id))
        # Apart for each client and round: equal noise in two messages would cancel in their difference.
        return np.random.default_rng((self.seed, _STREAM, client, _round_of(message)))


@dataclass(frozen=True)
class CheckedModel:
    """Client mod that compares the model that the server sent with what an honest server could have sent.

    Put it after ``secaggplus_mod`` and :class:`DefenceMod`. It keeps the last round in the client's state, which never
    leaves the client.

    Parameters
    ----------
    refuses
        Whether it refuses to train, or to send the result, if something is odd; otherwise it logs a warning.
    sends
        As for :class:`DefenceMod`.
    """

    refuses: bool = True
    sends: Sends = "model"

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Check what a training message holds, and what the training made of it.

        Raises
        ------
        DepartureError
            If something is odd and ``refuses`` is true.
        """
        if message.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        received = [*_arrays_of(message.content).values()]
        examine(received, context.state, refuses=self.refuses)
        reply = call_next(message, context)
        if not reply.has_error():
            returned = [*_arrays_of(reply.content).values()]
            examine_training(received, returned, _count_in(reply), context.state, self.sends, refuses=self.refuses)
        return reply


def _count_in(reply: Message) -> float:
    for numbers in reply.content.metric_records.values():
        for key in _NUMBERS:
            if key in numbers:
                return float(cast(float, numbers[key]))
    return 0.0


_LAST = "fedattack-last-model"


def examine(received: Sequence[NDArray], state: RecordDict, *, refuses: bool) -> None:
    """Check a received model, given what a client's state holds about the last one.

    Raises
    ------
    DepartureError
        If something is odd and ``refuses`` is true.
    """
    act(check_received(received, _read_last(state)), received, refuses=refuses)


def examine_training(
    received: Sequence[NDArray],
    returned: Sequence[NDArray],
    count: float,
    state: RecordDict,
    sends: Sends,
    *,
    refuses: bool,
) -> None:
    """Check how training changed a model, and keep the model in a client's state.

    Raises
    ------
    DepartureError
        If something is odd and ``refuses`` is true.
    """
    moved = returned if sends == "update" else differences(received, returned)
    # The state lies on the client's side, in its SuperNode, from round to round.
    act(check_moved(moved, count, _read_last(state)), received, refuses=refuses)
    state[_LAST] = _record_of({str(index): array for index, array in enumerate(received)})
    state[_LAST + "-went"] = ConfigRecord({"went": norm_of(moved)})


def _read_last(state: RecordDict) -> Last | None:
    """Read what a client's state holds of the last round in which it took part."""
    # The first round has nothing to compare with.
    if _LAST not in state.array_records:
        return None
    kept = [array.numpy() for array in state.array_records[_LAST].values()]
    return Last(kept, float(cast(float, state.config_records[_LAST + "-went"]["went"])))


def _round_of(message: Message) -> int:
    for config in message.content.config_records.values():
        if _ROUND in config:
            return int(str(config[_ROUND]))
    if message.metadata.group_id.isdecimal():  # where the legacy workflow has it
        return int(message.metadata.group_id)
    raise ConfigError(
        f"a seeded defence needs the number of the round, or its noise would be the same in all; send {_ROUND} with "
        "the training config"
    )


def _arrays_of(content: RecordDict) -> dict[str, NDArray]:
    records = content.array_records
    if len(records) > 1:
        raise DataError(
            f"a defence expects the model in one ArrayRecord, got {len(records)} ({', '.join(records)}), so some would "
            "go undefended; send one"
        )
    arrays = {}
    for record in records.values():
        for name, array in record.items():
            if name != _EMPTY:
                # A copy: the client may train in the message's own memory.
                arrays[name] = array.numpy().copy()
    return arrays


def _record_of(arrays: Mapping[str, NDArray]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def _silence(content: RecordDict) -> None:
    """Take out of a reply whatever a defence of its arrays does not cover."""
    for name, numbers in content.metric_records.items():
        content[name] = MetricRecord({key: value for key, value in numbers.items() if key in _NUMBERS})
    for name in [*content.config_records]:
        # Flower's legacy protocol keeps its status, without which no reply can be read.
        if name == _LEGACY_METRICS:
            content[name] = ConfigRecord()
        elif name != _STATUS:
            del content[name]


@dataclass
class _BareMessage:
    """As much of a message as Flower's mod looks at; a real one exists only within a run."""

    content: RecordDict

    def has_error(self) -> bool:
        return False


@dataclass(frozen=True)
class FlowerLocalDP:
    """Flower's own ``LocalDpMod`` as a defence: it clips the update and adds Gaussian noise.

    Flower is told ε = C · √(2 ln(1.25 / δ)) / σ for a sensitivity of C, from which it computes the deviation σ. What
    the noise guarantees is not that ε; see :mod:`fedattack.defences.guarantee`. It clips in single precision, exact
    except for rounding. This class closes three gaps of Flower's mod:

    - Integer buffers, on which the mod fails, do not reach it.
    - It defends arrays without dimensions, which the mod sends unchanged.
    - It adds the same noise to an update of zeros, by whose norm the mod would divide.

    Parameters
    ----------
    deviation
        σ, in units of the update.
    clip
        C, above 0.
    delta
        δ.
    """

    deviation: float
    clip: float
    delta: float
    name = "flower-localdp"
    needs_batch = False

    @classmethod
    def of(cls, settings: Settings) -> FlowerLocalDP:
        """Read ``defence-strength`` (σ), ``defence-clip`` and ``dp-delta``."""
        return cls(
            number(settings, "defence-strength"),
            number(settings, "defence-clip", above=True),
            number(settings, "dp-delta"),
        )

    def apply(
        self, update: Update, rng: np.random.Generator, batch: Batch | None = None
    ) -> dict[str, NDArray[np.float32]]:
        """Return what Flower makes of the update."""
        sent = as_float32(update)
        if not self.deviation:
            return sent
        # Flower computes σ from ε as σ = C √(2 ln(1.25/δ)) / ε; this solves it for the ε that gives our σ.
        epsilon = self.clip * math.sqrt(2 * math.log(1.25 / self.delta)) / self.deviation
        # The sensitivity that it is told is C, so that the deviation is the one asked for.
        mod = LocalDpMod(self.clip, self.clip, epsilon, self.delta)
        # Flower works in place, which passes over arrays without dimensions.
        flat, zeros = {}, {}
        for name, array in sent.items():
            flat[name] = array.ravel()
            zeros[name] = np.zeros_like(flat[name])
        request = _BareMessage(RecordDict({"arrays": _record_of(zeros)}))
        reply = _BareMessage(RecordDict({"arrays": _record_of(flat)}))
        context = Context(run_id=0, node_id=0, node_config={}, state=RecordDict(), run_config={})
        try:
            with global_draws(rng.integers(2**32, size=8).tolist()):
                mod(cast(Message, request), context, lambda message, context: cast(Message, reply))
        except ZeroDivisionError:
            # A zero update has no norm to divide by; the noise is the same.
            return Noise("dp-gaussian", self.deviation, self.clip).apply(update, rng)
        defended = reply.content.array_records["arrays"]
        return {name: defended[name].numpy().reshape(array.shape) for name, array in sent.items()}
