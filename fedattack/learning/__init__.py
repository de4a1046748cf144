"""Models, losses, local training, and the evaluation of many clients' models at once."""

from fedattack.learning.batched import accuracy_of_models, losses_of_models, r2_of_models
from fedattack.learning.losses import LOSSES, per_record_loss
from fedattack.learning.models import MODELS, build_model, check_parameters
from fedattack.learning.training import LocalSGD, LocalTraining, pick_device, train_local

__all__ = [
    "LOSSES",
    "MODELS",
    "LocalSGD",
    "LocalTraining",
    "accuracy_of_models",
    "build_model",
    "check_parameters",
    "losses_of_models",
    "per_record_loss",
    "pick_device",
    "r2_of_models",
    "train_local",
]
