"""The claim that a run of the reference system makes by its own settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedattack.claims.accounting import configured
from fedattack.claims.claim import DP_SGD, Claim, make_claim
from fedattack.errors import ConfigError
from fedattack.folder import read_study
from fedattack.record import Record, records_in

_ASK = "give --claim claim.toml (fedattack/claims/README.md)"


def claim_of_run(folder: Path) -> Claim:
    """Make the claim of a run folder from its settings, and its ε from this project's own accounting.

    Parameters
    ----------
    folder
        A run folder of a preset whose clients add noise to their updates, or train by DP-SGD, or whose server adds it.

    Raises
    ------
    ConfigError
        If it is no such folder.
    """
    settings = read_study(folder).get("settings", {})
    defence = settings.get("defence")
    if defence is None:
        raise ConfigError(f"{folder} does not say what is claimed of it; {_ASK}")
    where = f"{folder}, its settings"
    if settings.get("central-noise"):
        return _central(where, settings)
    if defence == DP_SGD or settings["dp-noise"] or settings["dp-epsilon"]:
        return make_claim(where, **_dp_sgd(settings, folder))
    from fedattack.defences.guarantee import NOISY, update_privacy

    if defence not in NOISY or not settings["defence-strength"] or not settings["defence-clip"]:
        raise ConfigError(f"{folder}: defence = {defence!r} claims no ε; {_ASK}")
    rounds = int(settings["rounds"])
    return make_claim(
        where,
        mechanism="laplace" if defence == "dp-laplace" else "gaussian",
        clip=float(settings["defence-clip"]),
        sigma=float(settings["defence-strength"]),
        epsilon=_stated(update_privacy(settings, rounds=rounds).epsilon_run),
        delta=float(settings["dp-delta"]),
        rounds=rounds,
    )


def _stated(epsilon: float) -> float:
    """Round an ε up to three digits, as people state it."""
    digits = 2 - math.floor(math.log10(epsilon))
    return float(math.ceil(epsilon * 10.0**digits) / 10.0**digits)


def _central(where: str, settings: Mapping[str, Any]) -> Claim:
    nodes = int(settings["clients"]) + int(settings["canaries"])
    claimed = make_claim(
        where,
        mechanism="central-gaussian",
        clip=float(settings["central-clip"]),
        noise_multiplier=float(settings["central-noise"]),
        clients=max(1, round(float(settings["fraction"]) * nodes)),
        rounds=int(settings["rounds"]),
        epsilon=1.0,
        delta=float(settings["dp-delta"]),
        trusted_server=True,
    )
    run = configured(claimed).run
    if run is None:
        raise AssertionError("the noise is known")
    return claimed.model_copy(update={"epsilon": _stated(run.high)})


def _dp_sgd(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the claim for the client that spends most."""
    from fedattack.learning.accounting import Sampling, privacy_spent

    if settings["dp-epsilon"]:
        raise ConfigError(f"{folder}: by dp-epsilon each client has noise of its own, and no one claim holds; {_ASK}")
    records = list(map(Record, records_in(folder).values()))
    sizes = {size for record in records for size in _sizes(record)}
    if not sizes:
        raise ConfigError(f"{folder}: no client says on how many examples it trained; {_ASK}")
    rounds, delta, batch = int(settings["rounds"]), float(settings["dp-delta"]), int(settings["batch-size"])
    noise = float(settings["dp-noise"] or settings["defence-strength"])
    if records[0].protocol == "fedsgd":
        batch = 0
    most, sampling = 0.0, Sampling(1.0, 1)
    for size in sizes:
        each = Sampling.of(size, batch_size=batch, epochs=int(settings["local-epochs"]) if batch else 1)
        spent = privacy_spent(noise, each, rounds=rounds, delta=delta).epsilon_run
        if spent > most:
            most, sampling = spent, each
    return {
        "mechanism": DP_SGD,
        "clip": float(settings["dp-clip"]),
        "noise_multiplier": noise,
        "sampling": sampling.rate,
        "steps": sampling.steps,
        "rounds": rounds,
        "epsilon": _stated(most),
        "delta": delta,
        "learning_rate": float(settings["lr"]),
        # A client without batches divides by its own number of examples. The largest divisor leaves the least noise.
        "batch_size": max(batch if 0 < batch < size else size for size in sizes),
    }


def _sizes(record: Record) -> list[int]:
    counts = [observation.count for round_ in record for observation in round_.observations]
    return [int(count) for count in counts if count is not None]
