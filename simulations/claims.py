"""What a run claims of its privacy, and what an auditor needs to hold it against: who the canaries are."""

from __future__ import annotations

from pathlib import Path

from fedattack.claims import Claim, compute_epsilon, make_claim
from fedattack.claims.canaries import CANARIES, write_canaries
from fedattack.claims.figures import in_figures
from fedattack.runs.settings import RunSettings
from simulations.canaries import canaries_of
from simulations.seeds import CANARY_STREAM, derive_secret
from simulations.study import Study


def write_canaries_of(study: Study) -> None:
    """Write who the canaries are into the truth, which neither server nor clients see."""
    settings = study.settings
    if settings.canaries:
        write_canaries(Path(settings.truth) / CANARIES, canaries_of(settings))
    if study.canary_examples is not None:
        study.canary_examples.write(Path(settings.truth), derive_secret(settings.seed, CANARY_STREAM, 1))


def central_claim(settings: RunSettings) -> Claim:
    """Return what central noise claims: the adversary knows who takes part."""
    return make_claim(
        "the run's settings",
        mechanism="central-gaussian",
        epsilon=1.0,
        delta=settings.dp_delta,
        clip=settings.central_clip,
        noise_multiplier=settings.central_noise,
        clients=max(1, round(settings.fraction * settings.nodes)),
        weights="equal",
        rounds=settings.rounds,
        trusted_server=True,
    )


def central_notes(settings: RunSettings) -> list[str]:
    """Say what central noise guarantees, and towards whom."""
    if not settings.central_noise:
        return []
    run = compute_epsilon(central_claim(settings)).run
    bound = in_figures(run.high) if run is not None else "infinity"
    return [
        f"central noise: ε = {bound} at δ = {settings.dp_delta:g} for a client in a run of {settings.rounds} rounds, "
        "towards those who see the released models; the server, whose record this is, sees each update without noise"
    ]
