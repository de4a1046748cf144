"""Models, losses, local training, and the evaluation of many clients' models at once."""

from fedattack.learning.batched import accuracy_of_models, losses_of_models, outputs_of
from fedattack.learning.distillation import Distillation, distil, distil_students
from fedattack.learning.losses import LOSSES, per_record_loss
from fedattack.learning.models import MODELS, build_model, check_parameters
from fedattack.learning.training import (
    FullGradient,
    LocalSGD,
    LocalTraining,
    check_gradients,
    full_gradient,
    gradient_step,
    pick_device,
    train_local,
)

__all__ = [
    "LOSSES",
    "MODELS",
    "Distillation",
    "FullGradient",
    "LocalSGD",
    "LocalTraining",
    "accuracy_of_models",
    "build_model",
    "check_gradients",
    "check_parameters",
    "distil",
    "distil_students",
    "full_gradient",
    "gradient_step",
    "losses_of_models",
    "outputs_of",
    "per_record_loss",
    "pick_device",
    "train_local",
]
