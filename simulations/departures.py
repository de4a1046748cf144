"""What an active server of a run sends in place of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fedattack.attacks import departures
from fedattack.base.errors import ConfigError, NeedsError
from fedattack.learning.departures import Fishing, Imprint, unlearning_model
from simulations.seeds import DEPARTURE_STREAM, derive_seed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from simulations.study import Study


def make_unlearning(study: Study) -> Mapping[str, NDArray[Any]]:
    """Return weights with which training changes nothing, which an inconsistent server sends.

    Raises
    ------
    ConfigError
        If the model learns in any case.
    """
    task, training = study.models.task, study.settings.training
    return unlearning_model(study.models.build(), task.input_shape, task.classes, training, study.models.loss)


def make_departure(study: Study) -> Imprint | Fishing:
    """Return what makes of the model and the number of a round what an imprinting or fishing server sends.

    Raises
    ------
    ConfigError
        If the model, or what the server has, does not allow it.
    """
    settings, known = study.settings, study.models.known()
    seed = derive_seed(settings.seed, DEPARTURE_STREAM)
    try:
        if settings.server == "fishing":
            return departures.make_fishing(known, seed)
        return departures.make_imprint(known, study.data.x_train[study.division.auxiliary], seed)
    except NeedsError as cause:
        raise ConfigError(f"server = {settings.server!r}: {cause}") from None


def check_departure(study: Study) -> None:
    """Refuse what the server of a run could not send.

    Raises
    ------
    ConfigError
        If the model, or what the server has, does not allow it.
    """
    if study.settings.server == "inconsistent":
        make_unlearning(study)
    elif study.settings.server in ("imprint", "fishing"):
        make_departure(study)
