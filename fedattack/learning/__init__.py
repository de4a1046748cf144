"""Models, losses, local training with or without DP-SGD, and the evaluation of many clients' models at once.

Names below are imported when they are first used: most of them need torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedattack.learning.batched import accuracy_of_models, losses_of_models, outputs_of, r2_of_models
    from fedattack.learning.distillation import Distillation, distil, distil_students
    from fedattack.learning.dp_sgd import check_private_model, private_gradient, train_private
    from fedattack.learning.losses import LOSSES, per_record_loss
    from fedattack.learning.models import MODELS, build_model, check_parameters
    from fedattack.learning.stated import OPTIMIZERS, LocalSGD
    from fedattack.learning.training import (
        FullGradient,
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

_HOMES: dict[str, tuple[str, ...]] = {
    "batched": ("accuracy_of_models", "losses_of_models", "outputs_of", "r2_of_models"),
    "distillation": ("Distillation", "distil", "distil_students"),
    "dp_sgd": ("check_private_model", "private_gradient", "train_private"),
    "losses": ("LOSSES", "per_record_loss"),
    "models": ("MODELS", "build_model", "check_parameters"),
    "stated": ("OPTIMIZERS", "LocalSGD"),
    "training": (
        "FullGradient",
        "LocalTraining",
        "check_gradients",
        "full_gradient",
        "gradient_step",
        "pick_device",
        "train_local",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    module = importlib.import_module(f"{__name__}.{_HOME_OF[name]}")
    return getattr(module, name)
