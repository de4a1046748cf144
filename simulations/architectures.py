"""Which models a run trains, and what they minimise."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray
from torch import nn

from fedattack.data import Dataset
from fedattack.learning import build_model
from fedattack.runs.settings import StudySettings
from simulations.seeds import MODEL_STREAM, derive_seed

if TYPE_CHECKING:
    from fedattack.attacks import ModelKnowledge

# The architecture that the SIA paper trains on such data (its Table II); user files follow their records' shape.
_BY_DATASET = {"digits": "sia-mlp", "synthetic": "sia-mlp", "cifar10": "sia-cnn", "cifar100": "sia-cnn"}

# What clients with models of their own have, in turn, where the settings leave it open.
_IMAGE_MIX = ("fedmd-cnn-1", "fedmd-cnn-2", "fedmd-cnn-3", "mlp")
_MIX = ("fedmd-mlp-1", "fedmd-mlp-2", "fedmd-mlp-3", "sia-mlp")
_STUDENT = "student-mlp"

_LOSSES = {"classification": "cross-entropy", "regression": "mse"}


@dataclass(frozen=True)
class Task:
    """What of a dataset decides the model."""

    name: str
    input_shape: tuple[int, ...]
    classes: int
    task: str

    @classmethod
    def of(cls, data: Dataset) -> "Task":
        """Take it from a dataset."""
        return cls(data.name, data.input_shape, data.classes, data.task)

    @property
    def of_images(self) -> bool:
        """Whether examples are images, (channels, height, width)."""
        return len(self.input_shape) == 3


@dataclass(frozen=True)
class Architectures:
    """The models of one run."""

    settings: StudySettings
    task: Task
    shared: bool
    """Whether server and clients share one model, and do not have models of their own."""

    @property
    def name(self) -> str:
        """The shared model's architecture, chosen by the data where the settings leave it open."""
        if self.settings.model:
            return self.settings.model
        if self.task.name in _BY_DATASET:
            return _BY_DATASET[self.task.name]
        if self.task.task == "regression":
            return "linear"
        return "sia-cnn" if self.task.of_images else "sia-mlp"

    @property
    def client_names(self) -> tuple[str, ...]:
        """Architectures of clients with models of their own, dealt to them in turn."""
        if self.settings.models:
            return tuple(name.strip() for name in self.settings.models.split(","))
        return _IMAGE_MIX if self.task.of_images else _MIX

    @property
    def attacked(self) -> str:
        """The architecture that the attacker evaluates: the shared one, or that of its students."""
        if self.shared:
            return self.name
        return self.settings.student or _STUDENT

    @property
    def loss(self) -> str:
        """What clients minimise, a name of :data:`fedattack.learning.LOSSES`."""
        return _LOSSES[self.task.task]

    def known(self) -> "ModelKnowledge":
        """Return what an attacker knows of the architecture that it evaluates."""
        # Clients need not pay for the import.
        from fedattack.attacks import ModelKnowledge

        return ModelKnowledge(
            spec=self.attacked,
            input_shape=self.task.input_shape,
            classes=self.task.classes,
            hidden=self.settings.hidden,
            dropout=self.settings.dropout,
            loss=self.loss,
        )

    def build(self) -> nn.Module:
        """Build the shared model in the state in which the server starts it."""
        return self._build(self.name, derive_seed(self.settings.seed, MODEL_STREAM))

    def build_for(self, client: int) -> nn.Module:
        """Build a client's own model in the state in which the client starts it."""
        name = self.client_names[client % len(self.client_names)]
        return self._build(name, derive_seed(self.settings.seed, MODEL_STREAM, client))

    def build_trained(self) -> list[nn.Module]:
        """Build one model of each architecture that clients train."""
        if self.shared:
            return [self.build()]
        return [self.build_for(client) for client in range(len(self.client_names))]

    def initial_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the shared model in the state in which the server starts it, as arrays by name."""
        return {name: value.numpy() for name, value in self.build().state_dict().items()}

    def _build(self, name: str, seed: int) -> nn.Module:
        return build_model(
            name,
            input_shape=self.task.input_shape,
            classes=self.task.classes,
            hidden=self.settings.hidden,
            dropout=self.settings.dropout,
            seed=seed,
        )
