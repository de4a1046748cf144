"""What an attacker is assumed to know besides the record: declared, kept in files of its own, printed in the report."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedattack.errors import DataError
from fedattack.files import read_json, read_npz, write_json
from fedattack.learning import LOSSES, LocalSGD, build_model

KNOWLEDGE = "knowledge.json"
TARGETS = "targets.npz"
AUXILIARY = "auxiliary.npz"
PUBLIC = "public.npz"


@dataclass(frozen=True)
class ModelKnowledge:
    """The clients' architecture and loss, without any trained parameter.

    Attributes
    ----------
    spec
        A model of :data:`fedattack.learning.MODELS` or an import path ``module:function``.
    input_shape, classes, hidden, dropout
        As for :func:`fedattack.learning.build_model`.
    loss
        A loss of :data:`fedattack.learning.LOSSES` or an import path.
    """

    spec: str
    input_shape: tuple[int, ...]
    classes: int
    hidden: int = 128
    loss: str = "cross-entropy"
    dropout: float = 0.0

    def build(self) -> nn.Module:
        """Build the architecture; its parameters are arbitrary."""
        return build_model(
            self.spec, input_shape=self.input_shape, classes=self.classes, hidden=self.hidden, dropout=self.dropout
        )


@dataclass(frozen=True)
class Targets:
    """Labelled records ``x`` (n, *shape), ``y`` (n,); target records in an order that says nothing of their owners."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.y)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the records and labels, by which the truth and an attack's scores say what they speak of."""
        digest = hashlib.sha256(f"{self.x.shape}{self.y.dtype}".encode())
        digest.update(np.ascontiguousarray(self.x).tobytes())
        digest.update(np.ascontiguousarray(self.y).tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Knowledge:
    """Everything that an attack may use besides the record.

    Attributes
    ----------
    model, targets
        ``None`` where this attacker knows none; an attack that needs it refuses by name.
    prior
        What the attacker believes before it looks: ``uniform`` over clients, or ``examples``, in proportion to the
        example counts that clients send in plaintext.
    auxiliary
        Records of about the clients' distribution that no client holds.
    training
        How the clients train.
    property
        What is asked of each client: a name of :data:`fedattack.attacks.properties.PROPERTIES` or an import path
        ``module:function``.
    positive_share
        The share of clients that the attacker expects to have the property.
    public
        (n, *shape): in FedMD the public records, in the order in which clients send their predictions for them. The
        model is then the architecture of the attacker's own students: clients' architectures are not known to it.
    """

    model: ModelKnowledge | None = None
    targets: Targets | None = None
    prior: str = "uniform"
    auxiliary: Targets | None = None
    training: LocalSGD | None = None
    property: str | None = None
    positive_share: float = 0.1
    public: NDArray[np.float32] | None = None

    def has(self, need: str) -> bool:
        """Whether a piece of knowledge is there."""
        return getattr(self, need) is not None


PRIORS = ("uniform", "examples")


def write_knowledge(folder: Path, knowledge: Knowledge) -> None:
    """Write ``knowledge`` to ``folder``: a JSON file, and the targets as an ``.npz`` beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    if knowledge.targets is not None:
        np.savez(folder / TARGETS, x=knowledge.targets.x, y=knowledge.targets.y)
    if knowledge.auxiliary is not None:
        np.savez(folder / AUXILIARY, x=knowledge.auxiliary.x, y=knowledge.auxiliary.y)
    if knowledge.public is not None:
        np.savez(folder / PUBLIC, x=knowledge.public)
    model = None if knowledge.model is None else vars(knowledge.model) | {"input_shape": [*knowledge.model.input_shape]}
    value: dict[str, Any] = {"model": model, "prior": knowledge.prior}
    if knowledge.training is not None:
        value["training"] = vars(knowledge.training)
    if knowledge.property is not None:
        value |= {"property": knowledge.property, "positive_share": knowledge.positive_share}
    write_json(folder / KNOWLEDGE, value)


def read_knowledge(folder: Path) -> Knowledge:
    """Read what :func:`write_knowledge` wrote.

    Raises
    ------
    DataError
        If a file is missing, damaged, or does not fit the model: targets of another shape, labels out of range.
    """
    hint = "expected what `fedattack simulate` or fedattack.attacks.write_knowledge leaves there"
    value = read_json(folder / KNOWLEDGE, DataError, hint)
    try:
        model = None if value["model"] is None else _read_model(value["model"])
        prior = str(value["prior"])
        training = None if value.get("training") is None else LocalSGD(**value["training"])
        wanted = None if value.get("property") is None else str(value["property"])
        share = float(value.get("positive_share", Knowledge.positive_share))
    except (KeyError, TypeError, ValueError) as cause:
        raise DataError(f"{folder / KNOWLEDGE} lacks or misstates {cause}; {hint}") from None
    if prior not in PRIORS:
        raise DataError(f"{folder / KNOWLEDGE}: prior is {prior!r}; expected one of {', '.join(PRIORS)}")
    if model is not None and ":" not in model.loss and model.loss not in LOSSES:
        raise DataError(
            f"{folder / KNOWLEDGE}: loss is {model.loss!r}; expected one of {', '.join(LOSSES)} or module:function"
        )
    if not 0 < share < 1:
        raise DataError(f"{folder / KNOWLEDGE}: positive_share is {share}; expected a number between 0 and 1")
    targets = read_targets(folder / TARGETS, model) if (folder / TARGETS).exists() else None
    auxiliary = read_targets(folder / AUXILIARY, model) if (folder / AUXILIARY).exists() else None
    public = read_public(folder / PUBLIC, model) if (folder / PUBLIC).exists() else None
    return Knowledge(model, targets, prior, auxiliary, training, wanted, share, public)


def _read_model(value: Mapping[str, Any]) -> ModelKnowledge:
    return ModelKnowledge(
        spec=str(value["spec"]),
        input_shape=tuple(int(size) for size in value["input_shape"]),
        classes=int(value["classes"]),
        hidden=int(value["hidden"]),
        loss=str(value["loss"]),
        dropout=float(value.get("dropout", ModelKnowledge.dropout)),
    )


def read_targets(path: Path, model: ModelKnowledge | None = None) -> Targets:
    """Read target records from an ``.npz`` with ``x`` (n, *shape) and ``y`` (n,).

    Raises
    ------
    DataError
        If the file cannot be read without pickle, arrays are missing or not finite, or they do not fit the model.
    """
    arrays = read_npz(path, DataError, "target records go into x, their labels into y", "x", "y")
    x, y = arrays["x"], arrays["y"]
    if x.ndim < 1 or y.ndim < 1 or len(x) != len(y) or len(y) == 0:
        raise DataError(f"{path}: expected as many labels as records and at least one, got x {x.shape} and y {y.shape}")
    if not np.issubdtype(y.dtype, np.number) or not np.isfinite(y).all():
        raise DataError(f"{path}: y holds values that are not finite numbers (dtype {y.dtype})")
    _check_records(path, x, model, "target")
    if (
        model is not None
        and model.loss == "cross-entropy"
        and (not np.issubdtype(y.dtype, np.integer) or y.min() < 0 or y.max() >= model.classes)
    ):
        raise DataError(
            f"{path}: expected integer labels in 0 … {model.classes - 1}, got {y.dtype} in {y.min()} … {y.max()}"
        )
    labels = y.astype(np.int64) if np.issubdtype(y.dtype, np.integer) else y
    return Targets(x=np.ascontiguousarray(x, dtype=np.float32), y=labels)


def read_public(path: Path, model: ModelKnowledge | None = None) -> NDArray[np.float32]:
    """Read FedMD's public records from an ``.npz`` with ``x`` (n, *shape), in the order of the clients' predictions.

    Raises
    ------
    DataError
        If the file cannot be read without pickle, records are missing or not finite, or they do not fit the model.
    """
    x = read_npz(path, DataError, "public records go into x", "x")["x"]
    if x.ndim < 2 or not len(x):
        raise DataError(f"{path}: expected at least one public record, with one feature or more, got x {x.shape}")
    _check_records(path, x, model, "public")
    return np.ascontiguousarray(x, dtype=np.float32)


def _check_records(path: Path, x: NDArray[Any], model: ModelKnowledge | None, what: str) -> None:
    if not np.issubdtype(x.dtype, np.number) or not np.isfinite(x).all():
        raise DataError(f"{path}: x holds values that are not finite numbers (dtype {x.dtype})")
    if model is not None and x.shape[1:] != model.input_shape:
        raise DataError(f"{path}: {what} records have shape {x.shape[1:]}, but the model takes {model.input_shape}")
