"""What the run config asks for of DP-SGD. Clients and preparation agree because they both ask here."""

from collections.abc import Mapping
from typing import Any

from fedattack.errors import ConfigError
from fedattack.learning import Sampling, noise_for


def is_private(config: Mapping[str, Any]) -> bool:
    """Whether clients train by DP-SGD.

    Raises
    ------
    ConfigError
        If both the noise and the budget are set.
    """
    noise, epsilon = float(config["dp-noise"]), float(config["dp-epsilon"])
    if noise and epsilon:
        raise ConfigError(
            f"dp-noise = {noise:g} and dp-epsilon = {epsilon:g}: expected one of them, because each follows from the "
            "other; set one to 0"
        )
    return bool(noise or epsilon)


def sampling_of(config: Mapping[str, Any], records: int) -> Sampling:
    """Say how a client of so many records draws them in a round."""
    return Sampling.of(records, batch_size=int(config["batch-size"]), epochs=int(config["local-epochs"]))


def noise_of(config: Mapping[str, Any], records: int) -> float:
    """Return the noise multiplier of a client of so many records: the run's, or the one that meets the run's budget.

    Raises
    ------
    ConfigError
        If both are set, or the budget cannot be met.
    """
    if not is_private(config) or not float(config["dp-epsilon"]):
        return float(config["dp-noise"])
    return noise_for(
        float(config["dp-epsilon"]),
        sampling_of(config, records),
        rounds=int(config["rounds"]),
        delta=float(config["dp-delta"]),
    )
