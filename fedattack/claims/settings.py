"""The claim that a run of the reference system makes by its own settings."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING, Context
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from fedattack.base.errors import ConfigError, in_command
from fedattack.base.untrusted import validate
from fedattack.claims.accounting import compute_epsilon
from fedattack.claims.claim import DP_SGD, MOST, Amount, Claim, Count, Size, make_claim
from fedattack.record import Record, records_in
from fedattack.record.folder import read_study

_ASK = "give --claim claim.toml (fedattack/claims/README.md)"

_Number = Annotated[int, Field(ge=0, le=MOST)]
_Delta = Annotated[float, Field(gt=0, lt=1)]


class _Settings(BaseModel):
    """Settings of a run, of which the others are not looked at."""

    model_config = ConfigDict(
        frozen=True, strict=True, allow_inf_nan=False, alias_generator=lambda field: field.replace("_", "-")
    )


class _NoiseKind(_Settings):
    """What tells who adds noise."""

    defence: str
    defence_strength: Amount
    defence_clip: Amount
    dp_noise: Amount
    dp_epsilon: Amount
    central_noise: Amount

    @property
    def by_steps(self) -> bool:
        """Whether clients train by DP-SGD."""
        return self.defence == DP_SGD or self.dp_noise > 0 or self.dp_epsilon > 0

    @property
    def by_update(self) -> bool:
        """Whether clients clip their updates, and add noise to them."""
        from fedattack.defences.guarantee import NOISY

        return self.defence in NOISY and self.defence_strength > 0 and self.defence_clip > 0


class _UpdateSettings(_Settings):
    rounds: Count
    dp_delta: _Delta


class _CentralSettings(_UpdateSettings):
    central_noise: Size
    central_clip: Size
    clients: Count
    canaries: _Number
    fraction: Annotated[float, Field(gt=0, le=1)]


class _DpTrainingSettings(_UpdateSettings):
    dp_clip: Size
    lr: Size
    batch_size: _Number
    local_epochs: Count


_Form = TypeVar("_Form", bound=_Settings)


def claim_of_run(folder: Path) -> Claim:
    """Make the claim of a run folder from its settings, and its ε from this project's own accounting.

    Parameters
    ----------
    folder
        A run folder of a preset whose clients add noise to their updates, or train by DP-SGD, or whose server adds it.

    Raises
    ------
    ConfigError
        If it is no such folder, or a setting is missing or out of its range.
    """
    kind, settings = _read_kind(folder)
    where = _name_settings(folder)
    if kind.central_noise:
        return _make_server_claim(where, _read_settings(_CentralSettings, where, settings))
    return _make_client_claim(folder, kind, settings)


def claimed_besides(folder: Path) -> str:
    """Say that the clients of a run add noise, too, where the server's is what is checked; empty if they add none.

    Raises
    ------
    ConfigError
        As :func:`claim_of_run`.
    """
    kind, _ = _read_kind(folder)
    if not kind.central_noise or not (kind.by_steps or kind.by_update):
        return ""
    noise = "noise on each client's update"
    if kind.by_steps:
        noise = "DP-SGD by the clients"
    return f"the settings claim {noise}, too, which is not checked here; to check it {_ASK}"


def _read_kind(folder: Path) -> tuple[_NoiseKind, Mapping[str, Any]]:
    settings = read_study(folder).get("settings", {})
    if settings.get("defence") is None:
        raise ConfigError(f"{folder} does not state a claim; {_advise_claim(folder)}")
    return _read_settings(_NoiseKind, _name_settings(folder), settings), settings


def _advise_claim(folder: Path) -> str:
    """Ask for a claim, by the file that lies in the folder if there is one; nobody says that it is about this run."""
    file = folder / "claim.toml"
    if file.is_file():
        return f"give --claim {in_command(file)}"
    return _ASK


def _name_settings(folder: Path) -> str:
    return f"{folder}, its settings"


def _make_client_claim(folder: Path, kind: _NoiseKind, settings: Mapping[str, Any]) -> Claim:
    where = _name_settings(folder)
    if kind.by_steps:
        return make_claim(
            where, **_read_dp_sgd(where, kind, _read_settings(_DpTrainingSettings, where, settings), folder)
        )
    if not kind.by_update:
        raise ConfigError(f"{folder}: defence = {kind.defence!r} claims no ε; {_advise_claim(folder)}")
    from fedattack.defences.guarantee import update_privacy

    run = _read_settings(_UpdateSettings, where, settings)
    mechanism = "gaussian"
    if kind.defence == "dp-laplace":
        mechanism = "laplace"
    return make_claim(
        where,
        mechanism=mechanism,
        clip=kind.defence_clip,
        sigma=kind.defence_strength,
        epsilon=_round_up(update_privacy(settings, rounds=run.rounds).epsilon_run, where),
        delta=run.dp_delta,
        rounds=run.rounds,
    )


def _read_settings(form: type[_Form], where: str, settings: Mapping[str, Any]) -> _Form:
    return validate(TypeAdapter(form), settings, where, ConfigError, _ASK)


def _round_up(epsilon: float, where: str) -> float:
    """Round an ε up to three digits, as people state it."""
    # Decimal rounds as written: binary rounding up could end below.
    rounded = float(Context(prec=3, rounding=ROUND_CEILING).create_decimal(epsilon))
    if not 0 < rounded < float("inf"):
        raise ConfigError(f"{where}: expected noise of an ε above 0 and finite, got noise of ε = {epsilon:g}; {_ASK}")
    return rounded


def _make_server_claim(where: str, settings: _CentralSettings) -> Claim:
    nodes = settings.clients + settings.canaries
    values = {
        "mechanism": "central-gaussian",
        "clip": settings.central_clip,
        "noise_multiplier": settings.central_noise,
        "clients": max(1, round(settings.fraction * nodes)),
        "weights": "equal",
        "rounds": settings.rounds,
        "delta": settings.dp_delta,
        "trusted_server": True,
    }
    # ε = 1 stands in, as a claim must have one before it is computed.
    run = compute_epsilon(make_claim(where, epsilon=1.0, **values)).run
    if run is None:
        raise AssertionError("the noise is known")
    return make_claim(where, epsilon=_round_up(run.high, where), **values)


def _read_dp_sgd(where: str, kind: _NoiseKind, settings: _DpTrainingSettings, folder: Path) -> dict[str, Any]:
    """Return the claim for the client that spends most."""
    from fedattack.privacy import ExampleSampling, privacy_spent

    if kind.dp_epsilon:
        raise ConfigError(
            f"{folder}: by dp-epsilon each client has noise of its own, and no one claim holds; {_advise_claim(folder)}"
        )
    records = list(map(Record, records_in(folder).values()))
    sizes = {size for record in records for size in _list_sizes(record)}
    if not sizes:
        raise ConfigError(f"{folder}: no client states how many examples it trained on; {_advise_claim(folder)}")
    noise = kind.dp_noise or kind.defence_strength
    batch, epochs = settings.batch_size, settings.local_epochs
    if records[0].protocol == "fedsgd":
        batch = 0
    # Without batches an epoch is one step.
    if not batch:
        epochs = 1
    most, sampling = 0.0, ExampleSampling(1.0, 1)
    for size in sizes:
        each = ExampleSampling.of(size, batch_size=batch, epochs=epochs)
        spent = privacy_spent(noise, each, rounds=settings.rounds, delta=settings.dp_delta).epsilon_run
        if spent > most:
            most, sampling = spent, each
    return {
        "mechanism": DP_SGD,
        "clip": settings.dp_clip,
        "noise_multiplier": noise,
        "sampling": sampling.rate,
        "sampling_method": "poisson",
        "steps": sampling.steps,
        "rounds": settings.rounds,
        "epsilon": _round_up(most, where),
        "delta": settings.dp_delta,
        "learning_rate": settings.lr,
        # A client without batches divides by its own number of examples. The largest divisor leaves the least noise.
        "batch_size": max(batch if 0 < batch < size else size for size in sizes),
    }


def _list_sizes(record: Record) -> list[int]:
    counts = [observation.count for round_ in record for observation in round_.observations]
    # A client has whole examples, and one at least.
    return [int(count) for count in counts if count is not None and count >= 1]
