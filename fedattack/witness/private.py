"""What of a privacy claim was seen in a call of a client, and in all of its rounds."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedattack.base.errors import short
from fedattack.witness.seen_model import SeenModel

Keys = Mapping[str, Any]
"""The keys of a claim, with underscores, and :data:`REMARKS`."""

REMARKS = "remarks"
"""What a reader of the claim must know beside its keys; a text."""

_SEPARATOR = " | "
_COUNTS = ("steps", "epochs", "skipped")
# By these the ε of a step follows.
_NOISE = ("noise_multiplier", "sampling", "sampling_method")
# Those that say how large the noise of a step is, as the optimizer applies it.
_STEP = ("clip", "learning_rate", "batch_size")


def private_keys(models: Iterable[SeenModel]) -> dict[str, Any]:
    """Return what a claim about one round says of models that were trained; nothing where none was so privately."""
    claims: list[dict[str, Any]] = []
    plain, mixed = [], []
    for model in models:
        read = [training.read_claim() for training in model.private.values()]
        claims += [keys for keys in read if keys]
        if not any(read):
            plain.append(model.name)
        elif any(not name.startswith("private ") for name, *_ in model.optimizers):
            mixed.append(model.name)
    if not claims:
        return {}
    keys = claims[0]
    for other in claims[1:]:
        keys = _add_steps(keys, other)
    if mixed:
        keys.pop("noise_multiplier", None)
        add_remark(keys, f"{short(', '.join(mixed), 80)} also made steps without noise, which no ε covers")
    if plain:
        add_remark(
            keys,
            f"the client also trains {short(', '.join(plain), 80)} without noise; this claim is not about that model",
        )
    return keys


def join_rounds(before: Keys, now: Keys) -> dict[str, Any]:
    """Join what was seen in rounds: of counts the largest, of noise the least, of samples the largest.

    How large a step's noise is stays if it is the same in all: else rounds would be held against that of another one.
    """
    if not before:
        return dict(now)
    keys = {**before, **now}
    for name in _COUNTS:
        if name in before and name in now:
            keys[name] = max(before[name], now[name])
    _drop_sizes(keys, before, now)
    if before.get("steps") != now.get("steps"):
        add_remark(keys, "the number of steps differs between rounds: this is the largest")
    # An upper bound of ε for all rounds: the least noise, and the largest share of examples in a step.
    if any(before.get(name) != now.get(name) for name in _NOISE):
        _drop_unequal(keys, before, now)
        keys["sampling"] = max(before.get("sampling", 1.0), now.get("sampling", 1.0))
        if "noise_multiplier" in keys:
            keys["noise_multiplier"] = min(before["noise_multiplier"], now["noise_multiplier"])
        add_remark(keys, "rounds differ: these are the least noise and the largest share of examples in a step")
    for remark in remarks_of(before):
        add_remark(keys, remark)
    return keys


def add_remark(keys: dict[str, Any], remark: str) -> None:
    """Add what a reader must know, once."""
    said = remarks_of(keys)
    if remark not in said:
        keys[REMARKS] = short(_SEPARATOR.join([*said, remark]), 1000)


def remarks_of(keys: Keys) -> Sequence[str]:
    """Return what a reader must know beside the keys."""
    return [remark for remark in str(keys.get(REMARKS, "")).split(_SEPARATOR) if remark]


def _drop_unequal(keys: dict[str, Any], one: Keys, other: Keys) -> None:
    """Leave out what only one of two knows, and a way of drawing that is not the same."""
    for name in _NOISE:
        if name not in one or name not in other:
            keys.pop(name, None)
    if one.get("sampling_method") != other.get("sampling_method"):
        keys["sampling_method"] = "unknown"
        keys.pop("epochs", None)


def _drop_sizes(keys: dict[str, Any], one: Keys, other: Keys) -> None:
    """Leave out what says how large the noise of a step is, where it is not the same: a record shows all of them."""
    for name in _STEP:
        if one.get(name) != other.get(name):
            keys.pop(name, None)


def _add_steps(one: Keys, other: Keys) -> dict[str, Any]:
    """Add up the steps of two optimizers of a round, which may follow each other or share their batches."""
    keys = {**other, **one}
    for name in _COUNTS:
        if name in one or name in other:
            keys[name] = one.get(name, 0) + other.get(name, 0)
    _drop_sizes(keys, one, other)
    for remark in remarks_of(other):
        add_remark(keys, remark)
    if any(one.get(name) != other.get(name) for name in _NOISE):
        _drop_unequal(keys, one, other)
        keys.pop("noise_multiplier", None)
        add_remark(
            keys,
            "several optimizers make steps with different noise or different batches: no single claim describes them",
        )
    return keys
