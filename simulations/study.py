"""What a run config means: data, partition, model. Client, server and preparation agree because they all ask here."""

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file
from torch import nn

from fedattack.data import Dataset, load_dataset, partition
from fedattack.data.columns import Column, PrivateColumn
from fedattack.data.dataset import sensitive_column
from fedattack.errors import ConfigError, DataError
from fedattack.learning import build_model

# The architecture that the SIA paper trains on such data (its Table II); user files follow their records' shape.
_MODELS = {"digits": "sia-mlp", "synthetic": "sia-mlp", "cifar10": "sia-cnn", "cifar100": "sia-cnn"}

# What clients of FedMD have, in turn, where the run config leaves it open: for images and for other records.
_IMAGE_MIX = ("fedmd-cnn-1", "fedmd-cnn-2", "fedmd-cnn-3", "mlp")
_MIX = ("fedmd-mlp-1", "fedmd-mlp-2", "fedmd-mlp-3", "sia-mlp")

# As much of the training split may be set aside as public records; the rest is the clients'.
_PUBLIC_SHARE = 0.25
# What clients minimise in each task.
_LOSSES = {"classification": "cross-entropy", "regression": "mse"}

# The value of `sensitive` that stands for the column that the data's source declares.
_DECLARED = "declared"
# How `partition` says by which column.
_BY_COLUMN = "column:"

# Streams that one seed is split into, so that what draws from one does not shift the others: a null run has the data,
# targets and model of the run that it is compared with. The data's split and the partition take the seed itself.
_MODEL_STREAM = 1
_CLIENT_STREAM = 2
TARGET_STREAM = 3
_RECORDS_STREAM = 4
_CHOICE_STREAM = 5
_POSITIVE_STREAM = 6
_AUXILIARY_STREAM = 7
_PUBLIC_STREAM = 8
_PERMUTATION_STREAM = 9
ZOO_STREAM = 10

# PROLIN's properties and SecAgg+ are about sums of FedAvg's models; an isolating server sends models back.
# A private attribute is inferred from updates of models.
_NO_SUMS: Mapping[str, Any] = {"property": "", "secagg": False, "isolate": False, "private": ""}

FRAMEWORKS: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {},
    "fedmd": _NO_SUMS,
    # one gradient over all records: there are no local steps to say anything about
    "fedsgd": {**_NO_SUMS, "local-epochs": 1, "batch-size": 0, "momentum": 0.0},
}
"""Ways to learn together, and the settings that each leaves no choice of. clients.app and simulations.server have the
clients and the server of each."""

PROPERTIES = ("membership", "inversion", "ascent")
"""What clients may have in common that others lack: they hold a target record, invert their updates, or ascend the
loss."""


def derive_seed(seed: int, *stream: int) -> int:
    """Derive a seed for one use of randomness from the run's seed."""
    return int(np.random.SeedSequence((seed, *stream)).generate_state(1)[0])


@dataclass(frozen=True)
class _Split:
    """Indices of training records; only the held targets are in two places.

    Attributes
    ----------
    parts
        Each client's.
    held, null
        Targets that positive clients hold, and as many that nobody holds.
    auxiliary
        The attacker's.
    """

    parts: list[NDArray[np.int64]]
    held: NDArray[np.int64]
    null: NDArray[np.int64]
    auxiliary: NDArray[np.int64]


@dataclass(frozen=True)
class _About:
    """What of a dataset decides the model."""

    name: str
    input_shape: tuple[int, ...]
    classes: int
    task: str

    @property
    def of_images(self) -> bool:
        return len(self.input_shape) == 3


@dataclass(frozen=True)
class _Dealt:
    """What :meth:`Study.deal` wrote: clients' records one after another, of which client i has ``sizes[i]``."""

    file: str
    about: _About
    sizes: list[int]

    def records_of(self, client: int) -> tuple[NDArray[np.float32], NDArray[Any]]:
        """Read one client's records and no others."""
        start = sum(self.sizes[:client])
        rows = slice(start, start + self.sizes[client])
        with safe_open(self.file, framework="numpy") as arrays:
            return np.array(arrays.get_slice("x")[rows]), np.array(arrays.get_slice("y")[rows])


@dataclass(frozen=True)
class Study:
    """One federated run's data and model.

    With a property the training split is divided into clients' records, auxiliary records and, for membership, target
    records. The test split serves to measure accuracy alone. Targets and auxiliary records occur once in all data.

    Parameters
    ----------
    dataset, size, data_root
        Which records; see :func:`fedattack.data.load_dataset`. ``size`` 0 means all of them.
    scheme, alpha, clients
        How they are divided; see :func:`fedattack.data.partition`. By a column is ``column:NAME``, by the combinations
        of several ``column:NAME,NAME``.
    records_per_client
        If above 0, each client has that many records, drawn at random: from its own where the scheme is by a column,
        else from all.
    client_property, positive_share
        What a share of the clients has; see :data:`PROPERTIES`, or empty. A share of 0 is a null run.
    targets
        For membership, how many target records positive clients hold; as many more are held by nobody.
    auxiliary
        With a property, a sensitive column or private attributes, how many records the attacker has; 0 for all that no
        client and no target uses.
    sensitive
        The column that is to be inferred, by its name or number, or ``declared``; empty for none.
    victims
        How many clients, from the first, are asked about and isolated; 0 for all.
    isolate
        Whether the server sends each victim its own model back.
    permute_sensitive
        Whether clients train on records among which the sensitive column is shuffled, which is a null run.
    private
        Names, separated by commas, of the data's private attributes that are to be inferred; all records of a client
        have the same values of them. Empty for none.
    framework
        One of :data:`FRAMEWORKS`.
    public, public_records
        In FedMD, the dataset of the public records (empty: records of the run's own training split that no client gets)
        and how many these are, a quarter of that split at most.
    models, student
        In FedMD, names of the clients' architectures, separated by commas and dealt to them in turn, and that of the
        attacker's students; empty for those that suit the data.
    model, hidden, dropout
        Architecture; an empty name stands for the one that suits the data. See :func:`fedattack.learning.build_model`.
    dealt
        File in which :meth:`deal` may have put what clients train on; empty for none.
    seed
        Everything random in the run follows from it.

    Raises
    ------
    ConfigError
        If the property is unknown, its share leaves no client with it or none without, clients get all records, or
        settings contradict each other.
    """

    dataset: str
    size: int
    data_root: str
    scheme: str
    alpha: float
    clients: int
    model: str
    hidden: int
    dropout: float
    seed: int
    records_per_client: int
    client_property: str
    positive_share: float
    targets: int
    auxiliary: int
    framework: str
    public: str
    public_records: int
    models: str
    student: str
    sensitive: str
    victims: int
    isolate: bool
    permute_sensitive: bool
    private: str
    dealt: str

    def __post_init__(self) -> None:
        self._check_attribute()
        if not self.client_property:
            return
        if self.client_property not in PROPERTIES:
            known = ", ".join(PROPERTIES)
            raise ConfigError(f"property = {self.client_property!r}: expected one of {known}, or none")
        if not (self._positive_count or self.positive_share == 0) or self._positive_count == self.clients:
            raise ConfigError(
                f"positives = {self.positive_share} of {self.clients} clients is {self._positive_count}: expected some "
                "clients with the property and some without, or positives = 0 for a null run"
            )
        self._check_auxiliary(f"property = {self.client_property!r}")

    def _check_attribute(self) -> None:
        for wrong, what in (
            (self.sensitive and self.client_property, "sensitive and property: expected one of the two"),
            (
                self.private and (self.sensitive or self.client_property or self.isolate),
                "private beside property, sensitive or isolate: expected one of them",
            ),
            (self.isolate and self.client_property, "isolate and property: the property is looked for in sums alone"),
            (self.permute_sensitive and not self.sensitive, "permute-sensitive without sensitive: name a column"),
            (
                self.victims and not (self.sensitive or self.isolate),
                f"victims = {self.victims} without sensitive or isolate: set one of these, or victims = 0",
            ),
            (
                self.victims > self.clients,
                f"victims = {self.victims}: expected at most the {self.clients} clients that there are",
            ),
        ):
            if wrong:
                raise ConfigError(what)
        if self.sensitive:
            self._check_auxiliary(f"sensitive = {self.sensitive!r}")
        if self.private:
            self._check_auxiliary(f"private = {self.private!r}")

    def _check_auxiliary(self, why: str) -> None:
        if not self.records_per_client and not self.auxiliary:
            raise ConfigError(
                f"{why} leaves no records to the attacker, because clients get all; set records-per-client or auxiliary"
            )

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Study":
        """Read the study from a run config.

        Raises
        ------
        ConfigError
            If the framework is unknown or does not go with other settings.
        """
        framework = str(config["framework"])
        if framework not in FRAMEWORKS:
            raise ConfigError(f"framework = {framework!r}: expected one of {', '.join(FRAMEWORKS)}")
        for key, wanted in FRAMEWORKS[framework].items():
            if config[key] != wanted:
                raise ConfigError(
                    f"framework = {framework!r} needs {key} = {json.dumps(wanted)}, got {json.dumps(config[key])}; "
                    "change it, or take framework fedavg"
                )
        return cls(
            dataset=str(config["dataset"]),
            size=int(config["size"]),
            data_root=str(config["data-root"]),
            scheme=str(config["partition"]),
            alpha=float(config["alpha"]),
            clients=int(config["clients"]),
            model=str(config["model"]),
            hidden=int(config["hidden"]),
            dropout=float(config["dropout"]),
            seed=int(config["seed"]),
            records_per_client=int(config["records-per-client"]),
            client_property=str(config["property"]),
            positive_share=float(config["positives"]),
            targets=int(config["targets"]),
            auxiliary=int(config["auxiliary"]),
            framework=framework,
            public=str(config["public"]),
            public_records=int(config["public-records"]),
            models=str(config["models"]),
            student=str(config["student"]),
            sensitive=str(config["sensitive"]),
            victims=int(config["victims"]),
            isolate=bool(config["isolate"]),
            permute_sensitive=bool(config["permute-sensitive"]),
            private=str(config["private"]),
            dealt=str(config["dealt"]),
        )

    def deal(self) -> None:
        """Write what each client trains on, for processes that then need not load and divide all data.

        Flower starts many processes, and the libraries that read and divide data take each of them seconds to import.
        """
        held = [self.records_of(client) for client in range(self.clients)]
        x, y = (np.concatenate(arrays) for arrays in zip(*held, strict=True))
        told = {"about": asdict(self._about), "sizes": [len(own) for _, own in held]}
        file = Path(self.dealt)
        file.parent.mkdir(mode=0o700, exist_ok=True)
        save_file({"x": x, "y": y}, file, metadata={"study": self._words, "told": json.dumps(told)})

    @property
    def _words(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @cached_property
    def _dealt(self) -> _Dealt | None:
        """What was dealt for this very study, if anything was: on a client's own machine there is no such file."""
        if not os.access(self.dealt, os.R_OK):
            return None
        with safe_open(self.dealt, framework="numpy") as arrays:
            words = arrays.metadata()
        if words["study"] != self._words:
            return None
        told = json.loads(words["told"])
        about = _About(**told["about"] | {"input_shape": tuple(told["about"]["input_shape"])})
        return _Dealt(self.dealt, about, told["sizes"])

    @cached_property
    def _about(self) -> _About:
        if self._dealt is not None:
            return self._dealt.about
        return _About(self.data.name, self.data.input_shape, self.data.classes, self.data.task)

    @property
    def data(self) -> Dataset:
        """The records, loaded once per process."""
        return _load(self.dataset, self.size, self.data_root, self.seed)

    @property
    def parts(self) -> list[NDArray[np.int64]]:
        """Indices of each client's training records.

        Raises
        ------
        DataError
            If there are too few records.
        """
        return self._split.parts

    @property
    def target_rows(self) -> NDArray[np.int64]:
        """Indices of the target records, those that positive clients hold first; empty but for membership."""
        return np.concatenate([self._split.held, self._split.null])

    @property
    def auxiliary_rows(self) -> NDArray[np.int64]:
        """Indices of the records that the attacker has; empty unless it needs some."""
        return self._split.auxiliary

    @property
    def victim_count(self) -> int:
        """How many clients, from the first, are asked about and isolated."""
        return self.victims or self.clients

    @cached_property
    def sensitive_column(self) -> Column:
        """The column that is to be inferred.

        Raises
        ------
        DataError
            If there is no such column, or it cannot be inferred; see :func:`fedattack.data.dataset.sensitive_column`.
        """
        name = self.data.sensitive if self.sensitive == _DECLARED else self.sensitive
        if not name:
            raise DataError(
                f"{self.data.name} declares no sensitive column; set sensitive to the name or number of one of its "
                "columns"
            )
        return sensitive_column(self.data, name)

    @cached_property
    def private_columns(self) -> dict[str, PrivateColumn]:
        """The private attributes that are to be inferred, by name.

        Raises
        ------
        DataError
            If the data has no such attribute, or a client's records have several of its values.
        """
        names = [name.strip() for name in self.private.split(",") if name.strip()]
        for name in names:
            if name not in self.data.private:
                known = ", ".join(self.data.private) or "none; colour-digits has some"
                raise DataError(f"private = {name!r}: {self.data.name} has the private attributes {known}")
            mixed = [
                client for client, part in enumerate(self.parts) if len({*self.data.private[name].train[part]}) > 1
            ]
            if mixed:
                raise DataError(
                    f"private = {name!r}: records of client {mixed[0]} have several of its values; expected one; set "
                    f"partition=column:{','.join(names)}, or lower records-per-client or clients"
                )
        return {name: self.data.private[name] for name in names}

    def values_of_clients(self, name: str) -> NDArray[np.int64]:
        """Return each client's value of a private attribute, (clients,)."""
        codes = self.private_columns[name].train
        return np.array([codes[part[0]] for part in self.parts], dtype=np.int64)

    def records_of(self, client: int) -> tuple[NDArray[np.float32], NDArray[Any]]:
        """Return the records (n, …) that a client trains on, and their labels or targets (n,)."""
        if self._dealt is not None:
            return self._dealt.records_of(client)
        rows = self.parts[client]
        x = self.data.x_train[rows]
        if self.permute_sensitive:
            start = sum(len(part) for part in self.parts[:client])
            x[:, list(self.sensitive_column.inputs)] = self._permuted[start : start + len(rows)]
        return x, self.data.y_train[rows]

    @cached_property
    def _permuted(self) -> NDArray[np.float32]:
        """The sensitive inputs of all clients' records, one client after another, shuffled."""
        own = self.data.x_train[np.concatenate(self.parts)][:, list(self.sensitive_column.inputs)]
        return np.random.default_rng(derive_seed(self.seed, _PERMUTATION_STREAM)).permutation(own)

    @cached_property
    def positives(self) -> NDArray[np.bool_]:
        """Which clients have the property, one row per target or a single one.

        Rows of membership are in the order of ``target_rows``, of which nobody holds the second half.
        """
        rows = 2 * self.targets if self.client_property == "membership" else 1
        draw = np.random.default_rng(derive_seed(self.seed, _POSITIVE_STREAM))
        chosen = np.zeros((rows, self.clients), dtype=np.bool_)
        for row in chosen[: max(rows // 2, 1)]:
            row[draw.choice(self.clients, size=self._positive_count, replace=False)] = True
        return chosen

    def is_positive(self, client: int) -> bool:
        """Whether a client has the property, for membership of any target record."""
        return bool(self.client_property) and bool(self.positives[:, client].any())

    @property
    def _positive_count(self) -> int:
        return round(self.positive_share * self.clients)

    @cached_property
    def _split(self) -> _Split:
        labels, _ = self.data.labels
        rows = np.arange(len(labels))
        targets = 2 * self.targets if self.client_property == "membership" else 0
        has_attacker = bool(self.client_property or self.sensitive or self.private)
        single = singles(self.data)[0] if has_attacker else rows[:0]
        if targets > len(single):
            raise DataError(
                f"{targets} target records, held and not held, do not fit into the {len(single)} training records that "
                "occur once in the data; lower targets, or use more data"
            )
        chosen = np.random.default_rng(derive_seed(self.seed, _CHOICE_STREAM)).permutation(single)
        held, null = chosen[: targets // 2], chosen[targets // 2 : targets]
        if self.records_per_client:
            parts = self._equal_parts(np.setdiff1d(rows, [*chosen[:targets], *self._public_rows]))
        else:
            # Without a number of records of their own, clients get all but what is set aside.
            rest = np.setdiff1d(rows, [*chosen[: targets + self.auxiliary], *self._public_rows])
            parts = [rest[part] for part in self._divided(rest)]
        if targets:
            parts = self._with_targets(parts, held)
        if not has_attacker:
            return _Split(parts, held, null, rows[:0])
        free = np.setdiff1d(single, np.concatenate([*parts, held, null]))
        if len(free) < max(self.auxiliary, 1):
            raise DataError(
                f"{len(free)} records are left for the attacker, who needs {self.auxiliary or 'some'}: of "
                f"{len(rows)} training records clients hold {sum(map(len, parts))} and targets are {targets}; lower "
                "records-per-client, clients or auxiliary, or use more data"
            )
        size = self.auxiliary or len(free)
        draw = np.random.default_rng(derive_seed(self.seed, _AUXILIARY_STREAM))
        return _Split(parts, held, null, np.sort(draw.choice(free, size=size, replace=False)))

    def _divided(self, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Divide ``rows`` as the scheme says; returns places in ``rows``."""
        scheme, column = self.scheme, None
        if scheme.startswith(_BY_COLUMN):
            name = scheme.removeprefix(_BY_COLUMN)
            scheme, column = "column", self._values_of(name)[rows]
        labels, _ = self.data.labels
        return partition(
            labels[rows], scheme=scheme, clients=self.clients, alpha=self.alpha, seed=self.seed, column=column
        )

    def _values_of(self, name: str) -> NDArray[Any]:
        """Return the values of a column, input or not, or of several, by which the training records are divided."""
        if "," in name:
            several = [self._values_of(part.strip()) for part in name.split(",")]
            return np.unique(np.stack(several, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
        if name in self.data.groups:
            return self.data.groups[name]
        column = self.data.column(name)
        if column.domain is None:
            return np.asarray(self.data.x_train[:, column.inputs[0]])
        return column.codes(self.data.x_train)

    def _equal_parts(self, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Give each client ``records_per_client`` of ``rows``, at random."""
        size = self.records_per_client
        drawn = np.random.default_rng(derive_seed(self.seed, _RECORDS_STREAM)).permutation(rows)
        if self.scheme.startswith(_BY_COLUMN):
            parts = [drawn[part] for part in self._divided(drawn)]
            fewest = min(map(len, parts))
            if fewest < size:
                raise DataError(
                    f"records-per-client = {size}: by {self.scheme} a client has {fewest} training records; lower "
                    "records-per-client or clients, or use more data"
                )
            return [np.sort(part[:size]) for part in parts]
        if self.clients * size > len(rows):
            raise DataError(
                f"{self.clients} clients of {size} records do not fit into {len(rows)} training records; lower "
                "records-per-client or clients, or use more data"
            )
        return [np.sort(drawn[client * size : (client + 1) * size]) for client in range(self.clients)]

    def _with_targets(self, parts: list[NDArray[np.int64]], held: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Put each held target in the place of a record of each of its positive clients."""
        draw = np.random.default_rng(derive_seed(self.seed, _POSITIVE_STREAM, 1))
        placed = []
        for client, part in enumerate(parts):
            own = held[self.positives[: len(held), client]]
            if len(own) > len(part):
                raise DataError(
                    f"client {client} would hold {len(own)} targets but has {len(part)} records; lower targets or "
                    "positives, or raise records-per-client"
                )
            kept = draw.permutation(part)[len(own) :]
            placed.append(np.sort(np.concatenate([kept, own])))
        return placed

    @property
    def model_name(self) -> str:
        """The architecture's name, chosen by the data where the run config leaves it open."""
        if self.model:
            return self.model
        about = self._about
        usual = "linear" if about.task == "regression" else "sia-cnn" if about.of_images else "sia-mlp"
        return _MODELS.get(about.name, usual)

    @property
    def loss(self) -> str:
        """What clients minimise, a name of :data:`fedattack.learning.LOSSES`: squared errors in a regression."""
        return _LOSSES[self._about.task]

    def build_model(self) -> nn.Module:
        """Build the model in the state in which the server starts it."""
        return build_model(
            self.model_name,
            input_shape=self._about.input_shape,
            classes=self._about.classes,
            hidden=self.hidden,
            dropout=self.dropout,
            seed=derive_seed(self.seed, _MODEL_STREAM),
        )

    def initial_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the model in the state in which the server starts it, as arrays by name."""
        return {name: value.numpy() for name, value in self.build_model().state_dict().items()}

    @property
    def max_examples(self) -> int:
        """The largest number of records that a client has."""
        return max([len(part) for part in self.parts] if self._dealt is None else self._dealt.sizes)

    @property
    def attacked_model(self) -> str:
        """The architecture that the attacker evaluates: the clients' own, or in FedMD that of its students."""
        return self.model_name if self.framework != "fedmd" else self.student or "student-mlp"

    @property
    def client_models(self) -> tuple[str, ...]:
        """In FedMD, the clients' architectures by name, dealt to them in turn."""
        if self.models:
            return tuple(name.strip() for name in self.models.split(","))
        return _IMAGE_MIX if self._about.of_images else _MIX

    def build_client_model(self, client: int) -> nn.Module:
        """Build a client's own model of FedMD in the state in which the client starts it."""
        return build_model(
            self.client_models[client % len(self.client_models)],
            input_shape=self._about.input_shape,
            classes=self._about.classes,
            hidden=self.hidden,
            dropout=self.dropout,
            seed=derive_seed(self.seed, _MODEL_STREAM, client),
        )

    @cached_property
    def public_x(self) -> NDArray[np.float32]:
        """The public records (n, *shape) of FedMD, in the order in which clients send their predictions for them.

        Raises
        ------
        DataError
            If they are of another shape than the clients' records.
        """
        if not self.public:
            return self.data.x_train[self._public_rows]
        records = _load(self.public, 0, self.data_root, self.seed).x_train
        if records.shape[1:] != self.data.input_shape:
            raise DataError(
                f"public = {self.public}: its records have shape {records.shape[1:]}, expected {self.data.input_shape} "
                f"as in {self.data.name}; choose another public dataset, or leave it empty"
            )
        return records[self._draw_public(np.arange(len(records)), len(records))]

    @cached_property
    def _public_rows(self) -> NDArray[np.int64]:
        """Training records that are set aside as public ones; each occurs once in the data."""
        if self.framework != "fedmd" or self.public:
            return np.zeros(0, dtype=np.int64)
        return self._draw_public(singles(self.data)[0], int(_PUBLIC_SHARE * len(self.data.y_train)))

    def _draw_public(self, rows: NDArray[np.int64], most: int) -> NDArray[np.int64]:
        draw = np.random.default_rng(derive_seed(self.seed, _PUBLIC_STREAM))
        return draw.permutation(rows)[: min(self.public_records, most)]

    def client_seed(self, client: int, server_round: int) -> int:
        """Seed of one client's local training in one round."""
        return derive_seed(self.seed, _CLIENT_STREAM, client, server_round)


@lru_cache(maxsize=2)
def _load(dataset: str, size: int, data_root: str, seed: int) -> Dataset:
    return load_dataset(dataset, seed=seed, size=size or None, root=Path(data_root) if data_root else None)


@lru_cache(maxsize=2)
def study_of(items: tuple[tuple[str, Any], ...]) -> Study:
    """Cache a study, and with it the partition, for the many calls that one client process serves."""
    return Study.of(dict(items))


def singles(data: Dataset) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of the training and of the test records that occur once in both together."""
    keys = [record.tobytes() for record in (*data.x_train, *data.x_test)]
    count = Counter(keys)
    single = np.array([count[key] == 1 for key in keys])
    train = len(data.x_train)
    return np.flatnonzero(single[:train]), np.flatnonzero(single[train:])
