"""What DP-SGD declares about itself: a defence that changes the training, and not the update."""

from fedattack.base.settings import setting
from fedattack.defences.base import DefenceKind, PrivacySettings

DP_SGD = "dp-sgd"
"""The defence that is no change of the update: the training itself is :func:`fedattack.learning.train_private`."""


class DpSgdSettings(PrivacySettings):
    """Settings of DP-SGD."""

    dp_noise: float = setting(
        0.0, "DP-SGD in local training: noise multiplier σ; 0 for none. The noise's standard deviation is σ·C", ge=0
    )
    dp_epsilon: float = setting(
        0.0,
        "DP-SGD: in place of dp-noise, the ε that no client's whole run may exceed; each gets the noise for it",
        ge=0,
    )
    dp_clip: float = setting(1.0, "DP-SGD: norm C to which the gradient of each example is clipped", gt=0)


KIND = DefenceKind(
    name=DP_SGD,
    make=None,
    settings=DpSgdSettings,
    strength="what dp-noise is",
    guarantee={
        "name": "DP-SGD",
        "noise_is": "noise multiplier σ",
        "mechanism": "DP-SGD in local training: the gradient of each example is clipped to norm C, and Gaussian noise "
        "of standard deviation σ·C is added to their sum in every step",
        "unit": "one example of one client, there or not, towards a server that sees all that the client sends; how "
        "many examples a client has counts as known",
        "not_protected": "what many examples of a client have in common, such as its mix of classes, which may also "
        "reveal an owner",
        "accountant": "privacy loss distributions (dp-accounting): an upper bound, at most 0.1 % too large",
        "assumes": "that the server learns neither which examples a step was computed on (Poisson sampling) nor the "
        "seed of the noise, which in a simulation follows from the run's own",
    },
)
