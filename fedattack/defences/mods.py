"""Defences as a Flower client mod, for both generations of the API and for SecAgg+.

In the list of mods it stands after ``secaggplus_mod``, because what is masked must be defended already, and before
:data:`fedattack.bridge.numpy_client_bridge`::

    app = ClientApp(client_fn=client_fn, mods=[secaggplus_mod, DefenceMod(), numpy_client_bridge])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS
from numpy.typing import NDArray

from fedattack.defences import defence_of
from fedattack.defences.applying import Sends, defended_arrays
from fedattack.defences.base import Batch, Settings, Update, as_float32, number
from fedattack.defences.hook import collecting
from fedattack.defences.noise import Noise
from fedattack.errors import ConfigError, DataError

_EMPTY = "_empty"
_ROUND = "server-round"
# Keeps the noise apart from what else is drawn from the same seed.
_STREAM = 0xDEFE
# All that a defended reply tells beside its arrays. Other metrics, such as the training loss, are functions of the
# records, or of the clean update, without any defence.
_NUMBERS = ("num-examples", "num_examples")
_STATUS = "fitres.status"
_LEGACY_METRICS = "fitres.metrics"


@dataclass(frozen=True)
class DefenceMod:
    """Client mod that puts a defended update in the place of the one that the client made.

    It acts on training messages alone, those of actions such as ``train.warmup`` included. Of a defended reply the
    metrics are taken out, but for the number of examples. Without a defence, or at strength 0, messages pass untouched.
    If the update cannot be defended it raises, and Flower sends an error in place of the update.

    Parameters
    ----------
    settings
        See :data:`fedattack.defences.SETTINGS`; without, the run config of each call.
    sends
        Whether replies hold a model, or an update as it is, such as a gradient.
    seed
        The noise follows from it, the client (its ``partition-id``, or else its node id) and the round. Who knows the
        seed can take the noise away: it is for simulations. Without, it comes from the operating system.
    names
        Of the arrays that are sent, in the place of their own, if they are as many. Legacy messages have none, and
        RecUP-FL goes by the names that its zoo was trained with. Those of a model that is handed over are known anyway.
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
        sent = _arrays_of(reply.content)
        if sent:
            if received.keys() == sent.keys():
                received = {name: received[name] for name in sent}
            arrays = defended_arrays(
                defence,
                received=[*received.values()],
                sent=[*sent.values()],
                names=[*sent] if self.names is None or len(self.names) != len(sent) else self.names,
                handed=handed,
                rng=rng,
                sends=self.sends,
            )
            (key,) = reply.content.array_records
            reply.content[key] = ArrayRecord({name: Array(array) for name, array in zip(sent, arrays, strict=True)})
        _silence(reply.content)
        return reply

    def _generator(self, message: Message, context: Context) -> np.random.Generator:
        if self.seed is None:
            return np.random.default_rng()
        client = int(context.node_config.get("partition-id", context.node_id))
        return np.random.default_rng((self.seed, _STREAM, client, _round_of(message)))


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
            f"a defence expects the model in one ArrayRecord, got {len(records)} ({', '.join(records)}), of which "
            "others would go undefended; send one"
        )
    return {
        name: array.numpy().copy() for record in records.values() for name, array in record.items() if name != _EMPTY
    }


def _silence(content: RecordDict) -> None:
    for name, numbers in content.metric_records.items():
        content[name] = MetricRecord({key: value for key, value in numbers.items() if key in _NUMBERS})
    for name in [*content.config_records]:
        if name == _LEGACY_METRICS:
            content[name] = ConfigRecord()
        elif name != _STATUS:
            del content[name]


@dataclass
class _Letter:
    """As much of a message as Flower's mod looks at; a real one exists only within a run."""

    content: RecordDict

    def has_error(self) -> bool:
        return False


@dataclass(frozen=True)
class FlowerLocalDP:
    """Flower's own ``LocalDpMod`` as a defence: it clips the update and adds Gaussian noise.

    Flower is told ε = C · √(2 ln(1.25 / δ)) / σ for a sensitivity of C, from which it computes the deviation σ. What
    the noise guarantees is not that ε; see :mod:`fedattack.defences.guarantee`. Integer buffers, on which Flower's
    mod fails, never get to it here, and arrays without dimensions, which it would send as they are, are defended. It
    fails on an update of zeros, too, by whose norm it would divide: such an update gets the same noise without it.
    Its clipping is in single precision, exact but for rounding.

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
            number(settings, "dp-delta", high=1.0, above=True),
        )

    def apply(
        self, update: Update, rng: np.random.Generator, batch: Batch | None = None
    ) -> dict[str, NDArray[np.float32]]:
        """Return what Flower makes of the update."""
        sent = as_float32(update)
        if not self.deviation:
            return sent
        epsilon = self.clip * math.sqrt(2 * math.log(1.25 / self.delta)) / self.deviation
        mod = LocalDpMod(self.clip, self.clip, epsilon, self.delta)
        # Flower works in place, which passes over arrays without dimensions.
        flat = {name: array.ravel() for name, array in sent.items()}
        asked, reply = (
            _Letter(RecordDict({"arrays": ArrayRecord({name: Array(array) for name, array in arrays.items()})}))
            for arrays in ({name: np.zeros_like(array) for name, array in flat.items()}, flat)
        )
        context = Context(run_id=0, node_id=0, node_config={}, state=RecordDict(), run_config={})
        # Flower draws from numpy's global generator, which is given a state of this defence's for the moment.
        kept = np.random.get_state()  # noqa: NPY002
        try:
            np.random.seed(rng.integers(2**32))  # noqa: NPY002
            mod(cast(Message, asked), context, lambda message, context: cast(Message, reply))
        except ZeroDivisionError:
            return Noise("dp-gaussian", self.deviation, self.clip).apply(update, rng)
        finally:
            np.random.set_state(kept)  # noqa: NPY002
        done = reply.content.array_records["arrays"]
        return {name: done[name].numpy().reshape(array.shape) for name, array in sent.items()}
