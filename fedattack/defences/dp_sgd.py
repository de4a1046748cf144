"""What DP-SGD declares about itself: a defence that changes the training, and not the update."""

from fedattack.defences.base import DefenceKind

DP_SGD = "dp-sgd"
"""The defence that is no change of the update: the training itself is :func:`fedattack.learning.train_private`."""

KIND = DefenceKind(
    name=DP_SGD,
    make=None,
    settings={"dp-noise": 0.0, "dp-epsilon": 0.0, "dp-clip": 1.0, "dp-delta": 1e-5},
    guarantee={
        "name": "DP-SGD",
        "noise_is": "noise multiplier σ",
        "mechanism": "DP-SGD in local training: the gradient of each example is clipped to norm C, and Gaussian noise "
        "of standard deviation σ·C is added to their sum in every step",
        "unit": "one example of one client, there or not, towards a server that sees all that the client sends; how "
        "many examples a client has counts as known",
        "not_protected": "what many examples of a client have in common, such as its mix of classes, from which an "
        "owner can be guessed as well",
        "accountant": "privacy loss distributions (dp-accounting): an upper bound, at most 0.1 % too large",
        "assumes": "that the server learns neither which examples a step was computed on (Poisson sampling) nor the "
        "seed of the noise, which in a simulation follows from the run's own",
    },
)
