"""What a run config means: data, partition, model. Client, server and preparation agree because they all ask here."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedattack.data import Dataset, load_dataset, partition
from fedattack.learning import build_model

# The architecture that the SIA paper trains on such data (its Table II); user files follow their records' shape.
_MODELS = {"digits": "sia-mlp", "synthetic": "sia-mlp", "cifar10": "sia-cnn", "cifar100": "sia-cnn"}

# Streams that one seed is split into: model, clients and targets draw from unrelated numbers. The data's split and the
# partition take the seed itself.
_MODEL_STREAM = 1
_CLIENT_STREAM = 2
TARGET_STREAM = 3


def derive_seed(seed: int, *stream: int) -> int:
    """Derive a seed for one use of randomness from the run's seed."""
    return int(np.random.SeedSequence((seed, *stream)).generate_state(1)[0])


@dataclass(frozen=True)
class Study:
    """One federated run's data and model.

    Parameters
    ----------
    dataset, size, data_root
        Which records; see :func:`fedattack.data.load_dataset`. ``size`` 0 means all of them.
    scheme, alpha, clients
        How they are divided; see :func:`fedattack.data.partition`.
    model, hidden
        Architecture; an empty name stands for the one that suits the data.
    seed
        Everything random in the run follows from it.
    """

    dataset: str
    size: int
    data_root: str
    scheme: str
    alpha: float
    clients: int
    model: str
    hidden: int
    seed: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Study":
        """Read the study from a run config."""
        return cls(
            dataset=str(config["dataset"]),
            size=int(config["size"]),
            data_root=str(config["data-root"]),
            scheme=str(config["partition"]),
            alpha=float(config["alpha"]),
            clients=int(config["clients"]),
            model=str(config["model"]),
            hidden=int(config["hidden"]),
            seed=int(config["seed"]),
        )

    @property
    def data(self) -> Dataset:
        """The records, loaded once per process."""
        return _load(self.dataset, self.size, self.data_root, self.seed)

    @cached_property
    def parts(self) -> list[NDArray[np.int64]]:
        """Indices of each client's training records."""
        return partition(self.data.y_train, scheme=self.scheme, clients=self.clients, alpha=self.alpha, seed=self.seed)

    @property
    def model_name(self) -> str:
        """The architecture's name, chosen by the data where the run config leaves it open."""
        if self.model:
            return self.model
        return _MODELS.get(self.data.name, "sia-cnn" if self.data.x_train.ndim == 4 else "sia-mlp")

    def build_model(self) -> nn.Module:
        """Build the model in the state in which the server starts it."""
        return build_model(
            self.model_name,
            input_shape=self.data.input_shape,
            classes=self.data.classes,
            hidden=self.hidden,
            seed=derive_seed(self.seed, _MODEL_STREAM),
        )

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
