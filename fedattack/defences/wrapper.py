"""Defences around a NumPyClient, for projects that do not use mods."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import numpy as np
from flwr.app import RecordDict
from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar

from fedattack.base.errors import ConfigError
from fedattack.defences import defence_of
from fedattack.defences.applying import Sends, defended_arrays
from fedattack.defences.base import Settings
from fedattack.defences.hook import collecting
from fedattack.defences.mods import examine, examine_training

Wrapped = TypeVar("Wrapped", bound=NumPyClient)


class _Defended(NumPyClient):
    """Comes before a client's own class, so that all but ``fit`` is as it was."""

    _fedattack: tuple[Settings, Sends, np.random.Generator]

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        settings, sends, rng = self._fedattack
        defence = defence_of(settings)
        if defence is None:
            return super().fit(parameters, config)
        received = [array.copy() for array in parameters]  # the client may train in them
        with collecting(defence.needs_batch) as handed:
            sent, count, _ = super().fit(parameters, config)
        names = list(map(str, range(len(sent))))
        arrays = defended_arrays(
            defence, received=received, sent=sent, names=names, handed=handed, rng=rng, sends=sends
        )
        return arrays, count, {}


class _CheckedClient(NumPyClient):
    """Comes before a client's own class, so that all but ``fit`` is as it was."""

    _fedattack_checks: tuple[RecordDict, Sends, bool]

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        state, sends, refuses = self._fedattack_checks
        received = [array.copy() for array in parameters]
        examine(received, state, refuses=refuses)
        sent, count, metrics = super().fit(parameters, config)
        examine_training(received, sent, count, state, sends, refuses=refuses)
        return sent, count, metrics


def checked(client: Wrapped, state: RecordDict, *, sends: Sends = "model", refuses: bool = True) -> Wrapped:
    """Return a client that checks what its server sends, and otherwise behaves like ``client``.

    Parameters
    ----------
    client
        A NumPyClient; it is not changed.
    state
        The client's ``context.state``, which keeps the last model.
    sends, refuses
        As for :class:`fedattack.defences.mods.CheckedModel`.

    Raises
    ------
    ConfigError
        If it is not a NumPyClient.
    """
    return _put_before(client, "Checked", _CheckedClient, _fedattack_checks=(state, sends, refuses))


def defended(
    client: Wrapped, settings: Settings, *, sends: Sends = "model", rng: np.random.Generator | None = None
) -> Wrapped:
    """Return a client that sends defended updates, and otherwise behaves like ``client``.

    It drops the metrics that ``fit`` returns: they depend on the examples or the clean update, without any defence.
    Without a defence it changes nothing.

    Parameters
    ----------
    client
        A NumPyClient; it is not changed.
    settings
        ``context.run_config`` or a dict, read at each ``fit``; see :data:`fedattack.defences.SETTINGS`.
    sends
        Whether ``fit`` returns a model, or the update itself, such as a gradient.
    rng
        The defence's randomness, only for simulations: it must differ in each round. ``None`` takes it from the
        operating system.

    Returns
    -------
    NumPyClient
        Its ``fit`` raises what :func:`fedattack.defences.defence_of` and
        :func:`fedattack.defences.applying.defended_arrays` raise.

    Raises
    ------
    ConfigError
        If it is not a NumPyClient.
    """
    return _put_before(client, "Defended", _Defended, _fedattack=(settings, sends, rng or np.random.default_rng()))


def _put_before(client: Wrapped, title: str, own: type[NumPyClient], **attributes: Any) -> Wrapped:
    """Return a copy of a client with another class before its own.

    Raises
    ------
    ConfigError
        If it is not a NumPyClient.
    """
    if not isinstance(client, NumPyClient):
        raise ConfigError(
            f"{title.lower()}: expected a NumPyClient, got {client!r}; call it around yours, before to_client()"
        )
    kind = type(client)
    wrapped = copy.copy(client)
    # A class that is made for this client: methods of its own stay as they are.
    wrapped.__class__ = type(f"{title}{kind.__name__}", (own, kind), {})
    vars(wrapped).update(attributes)
    return wrapped
