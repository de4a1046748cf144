"""Models, losses, local training with or without DP-SGD, and the evaluation of many clients' models at once."""

from fedattack.learning.batched import accuracy_of_models, losses_of_models, outputs_of, r2_of_models
from fedattack.learning.distillation import Distillation, distil, distil_students
from fedattack.learning.dp_sgd import check_private_model, private_gradient, train_private
from fedattack.learning.example_gradients import example_gradients
from fedattack.learning.losses import LOSSES, per_record_loss
from fedattack.learning.models import MODELS, build_model, check_parameters
from fedattack.learning.training import (
    OPTIMIZERS,
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
    "OPTIMIZERS",
    "Distillation",
    "FullGradient",
    "LocalSGD",
    "LocalTraining",
    "accuracy_of_models",
    "build_model",
    "check_gradients",
    "check_parameters",
    "check_private_model",
    "distil",
    "distil_students",
    "example_gradients",
    "full_gradient",
    "gradient_step",
    "losses_of_models",
    "outputs_of",
    "per_record_loss",
    "pick_device",
    "private_gradient",
    "r2_of_models",
    "train_local",
    "train_private",
]
