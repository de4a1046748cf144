"""What a run config means: data, partition, model. Client, server and preparation agree because they all ask here."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.truth import note_accuracy
from fedattack.data import Dataset
from fedattack.data.columns import Column, PrivateColumn
from fedattack.record.folder import read_runs
from fedattack.runs.settings import RunSettings, read_settings
from simulations.architectures import Architectures, Task
from simulations.attributes import find_private, find_sensitive
from simulations.dealing import Records, Shards, read_shards, write_shards
from simulations.division import Division, divide, draw_positives
from simulations.frameworks import Framework, framework_of
from simulations.records import choose_public_rows, load_public_records, load_records
from simulations.seeds import CLIENT_STREAM, PERMUTATION_STREAM, derive_secret, derive_seed, generator

if TYPE_CHECKING:
    from flwr.app import Context

    from fedattack.claims.canaries import CanaryExamples
CLIENT_PROPERTY = "client"
"""The property by which a node says which partition it holds."""


@dataclass(frozen=True)
class Study:
    """One federated run's data and models; each part is made when it is first asked for.

    Raises
    ------
    ConfigError
        If settings contradict each other.
    """

    settings: RunSettings

    def __post_init__(self) -> None:
        self.framework.check_settings(self.settings)
        self.settings.check()

    @classmethod
    def of(cls, run_config: Mapping[str, Any]) -> "Study":
        """Read the study from a run config."""
        return cls(read_settings(run_config))

    @property
    def framework(self) -> Framework[Any]:
        """How the clients learn together."""
        return framework_of(self.settings.framework)

    @property
    def data(self) -> Dataset:
        """All examples, loaded once per process."""
        settings = self.settings
        return load_records(settings.dataset, settings.size, settings.data_root, settings.seed)

    @cached_property
    def division(self) -> Division:
        """Who gets which training examples."""
        return divide(self.data, self.settings, public=self.public_rows, positives=self.positives)

    @cached_property
    def models(self) -> Architectures:
        """Which models are trained."""
        task = Task.of(self.data) if self._shards is None else self._shards.task
        return Architectures(self.settings, task, self.framework.shares_model)

    @cached_property
    def positives(self) -> NDArray[np.bool_]:
        """Which clients have the property; see :func:`simulations.division.draw_positives`."""
        return draw_positives(self.settings)

    def is_positive(self, client: int) -> bool:
        """Whether a client has the property, for membership of any target record."""
        return bool(self.settings.client_property) and bool(self.positives[:, client].any())

    @cached_property
    def sensitive_column(self) -> Column:
        """The column that is to be inferred."""
        return find_sensitive(self.data, self.settings)

    @cached_property
    def private_columns(self) -> dict[str, PrivateColumn]:
        """The private attributes that are to be inferred, by name."""
        return find_private(self.data, self.settings, self.division.parts)

    @cached_property
    def public_x(self) -> NDArray[np.float32]:
        """The public records (n, *shape), in the order in which clients send their predictions for them."""
        if self.settings.public:
            return load_public_records(self.data, self.settings)
        return self.data.x_train[self.public_rows]

    @cached_property
    def public_rows(self) -> NDArray[np.int64]:
        """Which training examples are public records; none where these come from elsewhere, or there are none."""
        if self.framework.shares_model or self.settings.public:
            return np.zeros(0, dtype=np.int64)
        return choose_public_rows(self.data, self.settings)

    def records_of(self, client: int) -> Records:
        """Return what a client trains on."""
        if self._shards is not None:
            return self._shards.records_of(client)
        x, y = self._own_records_of(client)
        return (x, y) if self.canary_examples is None else self.canary_examples.added_to(x, y, client)

    def _own_records_of(self, client: int) -> Records:
        parts = self.division.parts
        rows = parts[client]
        x = self.data.x_train[rows]
        if self.settings.permute_sensitive:
            start = sum(map(len, parts[:client]))
            x[:, list(self.sensitive_column.inputs)] = self._permuted[start : start + len(rows)]
        return x, self.data.y_train[rows]

    @cached_property
    def canary_examples(self) -> "CanaryExamples | None":
        """Canary examples that coins put among those of clients, if the run has any."""
        if not self.settings.canary_examples:
            return None
        # Most runs have none, and their clients need not pay for the import.
        from simulations.canaries import draw_examples

        return draw_examples(self.data, self.settings)

    @cached_property
    def _permuted(self) -> NDArray[np.float32]:
        """The sensitive inputs of all clients' examples, one client after another, shuffled: a null run."""
        values = self.data.x_train[self.division.everyone][:, list(self.sensitive_column.inputs)]
        return generator(self.settings.seed, PERMUTATION_STREAM).permutation(values)

    @cached_property
    def _shards(self) -> Shards | None:
        return read_shards(self.settings)

    def deal(self) -> None:
        """Write what each client trains on, for the processes of the run."""
        shards = [self.records_of(client) for client in range(self.settings.clients)]
        write_shards(self.settings, self.models.task, shards)

    @property
    def sizes(self) -> list[int]:
        """How many examples each client has."""
        if self._shards is not None:
            return self._shards.sizes
        if self.canary_examples is None:
            return list(map(len, self.division.parts))
        return [len(self.records_of(client)[1]) for client in range(self.settings.clients)]

    def note_accuracy(self, client: int, server_round: int, own: float, unheld: float) -> None:
        """Note in the truth, if the run asks for it, how good a client's model is that never leaves it."""
        if self.settings.truth:
            note_accuracy(self.settings.truth, client=str(client), server_round=server_round, own=own, unheld=unheld)

    def client_seed(self, client: int, server_round: int) -> int:
        """Seed of one client's local training in one round."""
        return derive_seed(self.settings.seed, CLIENT_STREAM, client, server_round)

    def noise_seed(self, client: int, server_round: int) -> int:
        """Seed of one client's DP-SGD in one round."""
        return derive_secret(self.settings.seed, CLIENT_STREAM, client, server_round)


def studies_of(run_config: Mapping[str, Any]) -> list[Study]:
    """Read the studies of a Flower run: one, or several that follow each other, each with nodes of its own."""
    settings = read_settings(run_config)
    if not settings.runs:
        return [Study(settings)]
    return [Study.of({**run_config, **own, "runs": ""}) for own in read_runs(Path(settings.runs))]


def find_client(context: "Context") -> tuple[Study, int]:
    """Find which study a node takes part in, and which of its clients the node is."""
    studies = _studies_of(tuple(context.run_config.items()))
    place, client = divmod(int(context.node_config["partition-id"]), studies[0].settings.nodes)
    return studies[place], client


@lru_cache(maxsize=2)
def _studies_of(run_config: tuple[tuple[str, Any], ...]) -> list[Study]:
    """Read them once for the many messages and mods that one client process serves."""
    return studies_of(dict(run_config))
