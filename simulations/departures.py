"""What an active server of a run sends in place of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fedattack.attacks import Knowledge, departures
from fedattack.base.errors import ConfigError, NeedsError
from fedattack.learning.departures import CanaryWeights, Fishing, Imprint, unlearning_model
from simulations.goals import goal_of
from simulations.seeds import DEPARTURE_STREAM, TARGET_STREAM, derive_seed, generator

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


def make_departure(study: Study) -> Imprint | Fishing | CanaryWeights:
    """Return what makes of the model and the number of a round what an active server sends.

    Raises
    ------
    ConfigError
        If the model, or what the server has, does not allow it.
    """
    settings, known = study.settings, study.models.known()
    seed = derive_seed(settings.seed, DEPARTURE_STREAM)
    own = study.data.x_train[study.division.auxiliary]
    try:
        if settings.server == "fishing":
            return departures.make_fishing(known, seed)
        if settings.server == "canary":
            posed, _ = goal_of(settings).pose(study, Knowledge(model=known), generator(settings.seed, TARGET_STREAM))
            targets = own[:0] if posed.targets is None else posed.targets.x
            return departures.make_canaries(known, targets, own, seed)
        return departures.make_imprint(known, own, seed)
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
    elif study.settings.server in ("imprint", "fishing", "canary"):
        make_departure(study)
