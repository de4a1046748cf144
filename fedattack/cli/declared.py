"""What the command line says of the attacker's knowledge."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedattack.base.errors import ConfigError, instead

if TYPE_CHECKING:
    from fedattack.attacks import Knowledge, ModelKnowledge
    from fedattack.learning import LocalSGD

INITIAL = "initial"
"""What ``--frozen`` may name in the place of a file: the weights with which the model is made."""

PRIORS = ("uniform", "examples")
"""What the attacker may assume of who holds an example."""

HIDDEN, LOSS = 128, "cross-entropy"
"""What is taken for the model that ``--model`` names, if nothing else is said."""

# Keys of the run config; LocalSGD has the same with underscores.
_TRAINING: dict[str, Callable[[str], Any]] = {
    "epochs": int,
    "batch-size": int,
    "lr": float,
    "momentum": float,
    "weight-decay": float,
    "optimizer": str,
}


@dataclass(frozen=True)
class Declared:
    """What the command line says of the attacker's knowledge, for a record from elsewhere."""

    targets: Path | None
    model: str | None
    classes: int | None
    hidden: int
    loss: str
    prior: str | None
    auxiliary: Path | None
    attributes: Path | None
    public: Path | None
    partial: Path | None
    property: str | None
    training: str | None
    frozen: str | None = None

    def check_words(self) -> None:
        """Check words and files without torch, which takes seconds to import.

        Raises
        ------
        ConfigError
            If a word is unknown, or a file is not there.
        """
        from fedattack.runs.settings import open_settings

        if self.prior is not None and self.prior not in PRIORS:
            raise ConfigError(f"--prior {self.prior}: {instead(self.prior, PRIORS)}")
        if self.training is not None:
            _read_training(self.training)
        settings = open_settings()
        settings["model"].check(self.model or "")
        # class-LABEL-at-PERCENT is read by the attack.
        if self.property is not None and ":" not in self.property and not self.property.startswith("class-"):
            settings["property"].check(self.property)
        if self.model is None and (self.classes, self.hidden, self.loss) != (None, HIDDEN, LOSS):
            raise ConfigError("--classes, --hidden and --loss describe the model that --model names; add --model")
        self._check_files()

    def _check_files(self) -> None:
        for name in ("targets", "auxiliary", "attributes", "public", "partial"):
            path = getattr(self, name)
            if path is not None and not path.is_file():
                raise ConfigError(f"--{name} {path}: there is no such file; expected an .npz")
        if self.frozen not in (None, INITIAL) and not Path(self.frozen or "").is_file():
            raise ConfigError(f"--frozen {self.frozen}: expected an .npz or .safetensors file, or {INITIAL}")

    def on_top_of(self, known: "Knowledge") -> "Knowledge":
        """Return what a run folder says of the attacker's knowledge, with what the command line says in its place.

        Raises
        ------
        ConfigError
            If a value cannot be taken, or the model's input is not known.
        DataError
            If a file cannot be read, or does not fit the model.
        """
        from fedattack.attacks.knowledge_files import read_attributes, read_partial, read_public, read_targets

        changes: dict[str, Any] = {}
        model = known.model if self.model is None else self._model(known)
        readers = {"targets": read_targets, "auxiliary": read_targets, "public": read_public, "partial": read_partial}
        for name, read in readers.items():
            path = getattr(self, name)
            if path is not None:
                changes[name] = read(path, model)
        if self.attributes is not None:
            # Attributes are of auxiliary examples: those that are declared, or else known.
            changes["attributes"] = read_attributes(self.attributes, changes.get("auxiliary", known.auxiliary))
        if self.training is not None:
            changes["training"] = _training(self.training)
        if self.property is not None:
            changes["property"] = self.property
        if self.prior is not None:
            changes["prior"] = self.prior
        if self.frozen is not None:
            changes["frozen"] = _frozen(self.frozen, model)
        return replace(known, model=model, **changes)

    def _model(self, known: "Knowledge") -> "ModelKnowledge":
        """Describe the model, whose input has the shape of the examples that are declared, or else known."""
        from fedattack.attacks.knowledge import ModelKnowledge
        from fedattack.attacks.knowledge_files import read_targets
        from fedattack.learning import per_record_loss

        paths = (self.targets, self.auxiliary, self.partial)
        records: list[Any] = [read_targets(path) for path in paths if path is not None]
        if not records:
            records = [part for part in (known.targets, known.auxiliary, known.partial) if part is not None]
        if not records:
            raise ConfigError(
                "--model needs examples, to find the shape of its input; add --targets, --auxiliary or --partial "
                "FILE.npz"
            )
        per_record_loss(self.loss)
        return ModelKnowledge(
            spec=self.model or "",
            input_shape=records[0].x.shape[1:],
            classes=self.classes or _classes_of(records),
            hidden=self.hidden,
            loss=self.loss,
        )


def _frozen(text: str, model: "ModelKnowledge | None") -> Mapping[str, Any]:
    from fedattack.attacks.frozen import initial_weights, read_frozen

    if text != INITIAL:
        return read_frozen(Path(text))
    if model is None:
        raise ConfigError(f"--frozen {INITIAL}: this needs the model whose weights these are; add --model")
    return initial_weights(model.build)


def _classes_of(records: Sequence[Any]) -> int:
    """Return the number of classes by the largest label; a regression has one output."""
    if any(part.y.dtype.kind == "f" for part in records):
        return 1
    return max(int(part.y.max()) for part in records) + 1


def pairs(where: str, texts: Sequence[str]) -> dict[str, str]:
    """Read ``key=value`` texts.

    Raises
    ------
    ConfigError
        If one has no ``=``; the message begins with ``where``.
    """
    values = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator:
            raise ConfigError(f"{where} {text}: expected key=value")
        values[key.strip()] = value
    return values


def _training(text: str) -> "LocalSGD":
    from fedattack.learning import LocalSGD

    try:
        return LocalSGD(**_read_training(text))
    except ValueError:
        raise _no_training(text) from None


def _read_training(text: str) -> dict[str, Any]:
    values = {}
    for key, value in pairs("--training", text.split(",")).items():
        try:
            # KeyError: no such key; ValueError: no number.
            values[key.replace("-", "_")] = _TRAINING[key](value)
        except (KeyError, ValueError):
            raise _no_training(text) from None
    if not {"epochs", "batch_size", "lr"} <= {*values}:
        raise _no_training(text)
    return values


def _no_training(text: str) -> ConfigError:
    return ConfigError(
        f"--training {text}: expected epochs, batch-size and lr, and optionally momentum, weight-decay and "
        "optimizer, such as epochs=1,batch-size=10,lr=0.01"
    )
