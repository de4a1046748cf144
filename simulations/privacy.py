"""What the run config asks for of DP-SGD. Clients and preparation agree because both ask here."""

from fedattack.base.errors import ConfigError
from fedattack.defences import DP_SGD, NONE
from fedattack.privacy import ExampleSampling, noise_for
from fedattack.runs.settings import RunSettings


def changes_update(settings: RunSettings) -> bool:
    """Whether clients change their update once it is trained."""
    return settings.defence not in (NONE, DP_SGD) and settings.defence_strength > 0


def is_private(settings: RunSettings) -> bool:
    """Whether clients train by DP-SGD.

    Raises
    ------
    ConfigError
        If more than one of noise, budget and another defence is set, or DP-SGD is named without noise.
    """
    noise, epsilon = _noise(settings), settings.dp_epsilon
    if (noise or epsilon) and settings.defence not in (NONE, DP_SGD):
        raise ConfigError(
            f"dp-noise or dp-epsilon together with defence = {settings.defence!r}: expected one defence; set one of "
            "them off"
        )
    if settings.defence == DP_SGD and not (noise or epsilon):
        raise ConfigError(
            f"defence = {DP_SGD!r} without noise would change nothing; set dp-noise, dp-epsilon or defence-strength, "
            f"or defence to {NONE!r}"
        )
    if noise and epsilon:
        raise ConfigError(
            f"dp-noise = {noise:g} and dp-epsilon = {epsilon:g}: expected one of them, because each follows from the "
            "other; set one to 0"
        )
    return bool(noise or epsilon)


def sampling_of(settings: RunSettings, records: int) -> ExampleSampling:
    """Say how a client of so many examples draws them in a round."""
    return ExampleSampling.of(records, batch_size=settings.batch_size, epochs=settings.local_epochs)


def noise_of(settings: RunSettings, records: int) -> float:
    """Return the noise multiplier of a client of so many examples: the run's, or the one that meets the run's budget.

    Raises
    ------
    ConfigError
        If both are set, or the budget cannot be met.
    """
    if not is_private(settings) or not settings.dp_epsilon:
        return _noise(settings)
    sampling = sampling_of(settings, records)
    return noise_for(settings.dp_epsilon, sampling, rounds=settings.rounds, delta=settings.dp_delta)


def _noise(settings: RunSettings) -> float:
    """Return the noise multiplier, by either of its names."""
    noise, strength = settings.dp_noise, settings.defence_strength
    if settings.defence != DP_SGD or not strength:
        return noise
    if noise and noise != strength:
        raise ConfigError(
            f"dp-noise = {noise:g} and defence-strength = {strength:g} of defence = 'dp-sgd': expected one of them, "
            "because both are the noise multiplier; set one to 0"
        )
    return strength
