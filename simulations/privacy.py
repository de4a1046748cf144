"""What the run config asks for of DP-SGD and other defences. Clients and preparation agree because both ask here."""

from collections.abc import Mapping
from typing import Any

from fedattack.defences import DP_SGD, NONE, defence_of
from fedattack.defences.applying import Sends
from fedattack.errors import ConfigError
from fedattack.learning import Sampling, noise_for

SENDS: Mapping[str, Sends] = {"fedavg": "model", "fedmd": "update", "fedsgd": "update"}
"""What a client's reply is to a defence, in each framework of :data:`simulations.study.FRAMEWORKS`."""

NAMES: Mapping[str, tuple[str, ...]] = {"fedmd": ("predictions",)}
"""Names of the arrays that a client sends where they are not those of the model; its server records them so, too."""


def defence_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of the clients' defence: without model zoos of one's own it uses those of the preparation."""
    return config if config["recup-zoo"] else {**config, "recup-zoo": config["zoo"]}


def changes_update(config: Mapping[str, Any]) -> bool:
    """Whether clients change their update once it is trained."""
    return config["defence"] not in (NONE, DP_SGD) and float(config["defence-strength"]) > 0


def is_private(config: Mapping[str, Any]) -> bool:
    """Whether clients train by DP-SGD.

    Raises
    ------
    ConfigError
        If more than one of noise, budget and another defence is set.
    """
    noise, epsilon = _noise(config), float(config["dp-epsilon"])
    if (noise or epsilon) and config["defence"] not in (NONE, DP_SGD):
        raise ConfigError(
            f"dp-noise or dp-epsilon beside defence = {config['defence']!r}: expected one defence; set one of them off"
        )
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
        return _noise(config)
    return noise_for(
        float(config["dp-epsilon"]),
        sampling_of(config, records),
        rounds=int(config["rounds"]),
        delta=float(config["dp-delta"]),
    )


def check_defence(config: Mapping[str, Any]) -> None:
    """Refuse a defence that cannot be applied, before the run: its clients would send errors.

    Raises
    ------
    ConfigError
        If it is unknown, one of its settings is out of its range, or what it changes is not there.
    """
    if config["defence"] == DP_SGD:
        return
    defence = defence_of(defence_settings(config))
    if defence is not None and defence.needs_batch and config["framework"] == "fedmd":
        raise ConfigError(
            f"defence = {defence.name!r} changes a layer's update, and with framework = 'fedmd' clients send "
            "predictions; take another defence"
        )


def _noise(config: Mapping[str, Any]) -> float:
    """Return the noise multiplier, by either of its names."""
    noise, strength = float(config["dp-noise"]), float(config["defence-strength"])
    if config["defence"] != DP_SGD or not strength:
        return noise
    if noise and noise != strength:
        raise ConfigError(
            f"dp-noise = {noise:g} and defence-strength = {strength:g} of defence = 'dp-sgd': expected one of them, "
            "because both are the noise multiplier; set one to 0"
        )
    return strength
