"""What the command line says of the attacker's knowledge."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedattack.errors import ConfigError

if TYPE_CHECKING:
    from fedattack.folder import Part
    from fedattack.learning import LocalSGD
    from fedattack.threats import Knowledge


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
    public: Path | None
    partial: Path | None
    property: str | None
    training: str | None


def pairs(where: str, texts: Sequence[str]) -> dict[str, str]:
    """Read ``key=value`` texts.

    Raises
    ------
    ConfigError
        If one has no ``=``; the message begins with ``where``.
    """
    for text in texts:
        if "=" not in text:
            raise ConfigError(f"{where} {text}: expected key=value")
    return {key.strip(): value for key, _, value in (text.partition("=") for text in texts)}


def knowledge_of(part: "Part", declared: Declared | None, trusted: Collection[str]) -> "Knowledge":
    """Read what the run folder says of the attacker's knowledge, and put what the command line says on top."""
    from fedattack.learning import per_record_loss
    from fedattack.runs.asked import known_to
    from fedattack.threats import ModelKnowledge, read_partial, read_targets
    from fedattack.threats.knowledge import PRIORS, read_public

    known = known_to(part, trusted)
    if declared is None:
        return known
    if declared.model is not None:
        files = [path for path in (declared.targets, declared.auxiliary, declared.partial) if path is not None]
        there = [item for item in (known.targets, known.auxiliary, known.partial) if item is not None]
        records = [read_targets(path) for path in files] or there
        if not records:
            raise ConfigError(
                "--model needs records to know the shape of its input; add --targets, --auxiliary or --partial FILE.npz"
            )
        per_record_loss(declared.loss)
        regression = any(item.y.dtype.kind == "f" for item in records)
        most = 1 if regression else max(int(item.y.max()) for item in records) + 1
        known = replace(
            known,
            model=ModelKnowledge(
                spec=declared.model,
                input_shape=records[0].x.shape[1:],
                classes=declared.classes if declared.classes is not None else most,
                hidden=declared.hidden,
                loss=declared.loss,
            ),
        )
    if declared.targets is not None:
        known = replace(known, targets=read_targets(declared.targets, known.model))
    if declared.auxiliary is not None:
        known = replace(known, auxiliary=read_targets(declared.auxiliary, known.model))
    if declared.public is not None:
        known = replace(known, public=read_public(declared.public, known.model))
    if declared.partial is not None:
        known = replace(known, partial=read_partial(declared.partial, known.model))
    if declared.training is not None:
        known = replace(known, training=_training(declared.training))
    if declared.property is not None:
        known = replace(known, property=declared.property)
    if declared.prior is not None:
        if declared.prior not in PRIORS:
            raise ConfigError(f"--prior {declared.prior}: expected one of {', '.join(PRIORS)}")
        known = replace(known, prior=declared.prior)
    return known


def _training(text: str) -> "LocalSGD":
    from fedattack.learning import LocalSGD

    keys = {"epochs": int, "batch-size": int, "lr": float, "momentum": float, "weight-decay": float}
    given = pairs("--training", text.split(","))
    try:
        values = {key.replace("-", "_"): keys[key](value) for key, value in given.items()}
        return LocalSGD(**values)
    except (KeyError, ValueError, TypeError):
        raise ConfigError(
            f"--training {text}: expected epochs, batch-size and lr, and perhaps momentum and weight-decay, such as "
            "epochs=1,batch-size=10,lr=0.01"
        ) from None
