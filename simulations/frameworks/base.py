"""What a framework is: a way in which clients learn together."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Generic, TypeVar

from fedattack.base.errors import ConfigError
from fedattack.base.settings import Value
from fedattack.defences.applying import Sends

if TYPE_CHECKING:
    from flwr.client import NumPyClient

    from fedattack.runs.settings import RunSettings
    from simulations.architectures import Architectures

R = TypeVar("R")
"""What a framework's server is given of a run: :class:`simulations.server.ServedRun`, which imports this file."""

# PROLIN's properties and SecAgg+ are about sums of FedAvg's models; active servers choose what models are sent.
# A private attribute is inferred from updates of models. Canaries and central noise are about updates of models, too.
NO_SUMS: Mapping[str, Value] = {
    "property": "",
    "secagg": False,
    "server": "passive",
    "private": "",
    "central-noise": 0.0,
    "canaries": 0,
    "canary-examples": 0,
}
"""Settings of frameworks whose clients do not send models."""


@dataclass(frozen=True)
class Framework(Generic[R]):
    """A way in which clients learn together.

    Client and server are imported when they are needed: Flower takes a second, which preparation does not pay.

    Attributes
    ----------
    name
        Value of the setting ``framework``.
    sends
        What a client's reply is to a defence.
    client
        Where the class of an honest client is, ``module:class``.
    serve
        Runs the server to the end.
    fixed
        Settings that it leaves no choice of, by key.
    shares_model
        Whether all share one model; else clients have models of their own, and send predictions on public records.
    array_names
        Names of the arrays in a reply, where they are not the model's; the server records them so, too.
    content
        What replies hold in the place of a PyTorch model's arrays, such as trees; an attacker then knows no model.
    check
        Refuses models that cannot be trained so, for their kind, their data, or what is not installed.
    """

    name: str
    sends: Sends
    client: str
    serve: Callable[[R], None]
    fixed: Mapping[str, Value] = field(default_factory=dict)
    shares_model: bool = True
    array_names: tuple[str, ...] = ()
    content: str = ""
    check: Callable[[Architectures], None] | None = None

    @property
    def trains_model(self) -> bool:
        """Whether clients train a PyTorch model."""
        return not self.content

    def load_client(self) -> Callable[..., NumPyClient]:
        """Import the class of an honest client: it is made of study, client and Flower's state."""
        client: Callable[..., NumPyClient] = resolve_name(self.client)
        return client

    def check_settings(self, settings: RunSettings) -> None:
        """Refuse settings that do not go with it.

        Raises
        ------
        ConfigError
            If one of those that it leaves no choice of has another value.
        """
        for key, value in settings.by_key(self.fixed).items():
            wanted = self.fixed[key]
            if value != wanted:
                raise ConfigError(
                    f"framework = {self.name!r} needs {key} = {json.dumps(wanted)}, got {json.dumps(value)}; "
                    "change it, or take framework fedavg"
                )
