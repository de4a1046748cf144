"""What the clients' defence guarantees, what the attacker knows of it, and what is refused before the run."""

import os

import numpy as np

from fedattack.attacks import KnownDefence
from fedattack.attacks.knowledge import BUILT_IN
from fedattack.audit.truth import Privacy
from fedattack.base.errors import ConfigError
from fedattack.defences import DP_SGD, Batch, defence_of, in_words, list_settings_of, update_privacy
from fedattack.defences.guarantee import NOISY
from fedattack.learning import check_private_model
from fedattack.privacy import privacy_spent
from simulations.privacy import changes_update, is_private, noise_of, sampling_of
from simulations.study import Study
from simulations.zoos import uses_zoos, zoos_of_run


def known_defence(study: Study) -> KnownDefence | None:
    """Say what an attacker knows who knows of the clients' defence; ``None`` without one.

    If clients spend a privacy budget, it knows the noise of the one in the middle.
    """
    settings = study.settings
    if is_private(settings):
        noise = float(np.median([noise_of(settings, size) for size in study.sizes]))
        training = {
            "defence": DP_SGD,
            "noise": noise,
            "dp-clip": settings.dp_clip,
            "loss": study.models.loss,
            "training": settings.training.keywords(),
        }
        return KnownDefence(BUILT_IN, training)
    if not changes_update(settings):
        return None
    by_key, files = settings.by_key(list_settings_of(settings.defence)), {}
    if uses_zoos(settings):
        by_key["recup-zoo"] = ""
        files["recup-zoo"] = os.path.relpath(zoos_of_run(settings), settings.knowledge)
    return KnownDefence(BUILT_IN, by_key, files)


def privacy_of(study: Study) -> Privacy | None:
    """Account for each client's DP-SGD or noise on the update; ``None`` without them.

    Raises
    ------
    ConfigError
        If noise and budget are both set, or the budget cannot be met.
    ModelError
        If the model does not allow DP-SGD.
    """
    settings = study.settings
    if settings.defence in NOISY and settings.defence_strength:
        return _privacy_of_updates(study)
    if not is_private(settings):
        return None
    for model in study.models.build_trained():
        check_private_model(model)
    rounds, delta = settings.rounds, settings.dp_delta
    rows = []
    for size in study.sizes:
        noise = noise_of(settings, size)
        spent = privacy_spent(noise, sampling_of(settings, size), rounds=rounds, delta=delta)
        rows.append((noise, spent.epsilon_round, spent.epsilon_run))
    noises, epsilons_round, epsilons_run = zip(*rows, strict=True)
    return Privacy(settings.dp_clip, delta, rounds, noises, epsilons_round, epsilons_run)


def _privacy_of_updates(study: Study) -> Privacy:
    """Account for noise on the update, which is the same for all clients."""
    settings = study.settings
    guarantee = update_privacy(settings.defence_settings, rounds=settings.rounds)
    return Privacy(
        clip=settings.defence_clip,
        delta=guarantee.delta,
        rounds=settings.rounds,
        noise=(settings.defence_strength,) * settings.clients,
        epsilon_round=(guarantee.epsilon_round,) * settings.clients,
        epsilon_run=(guarantee.epsilon_run,) * settings.clients,
        mechanism=settings.defence,
    )


def defence_notes(study: Study) -> list[str]:
    """Say in the report what its numbers do not: what a defence does not promise, and who does not know of it.

    Raises
    ------
    ConfigError, ModelError
        If the defence cannot be applied, so that clients would send errors, or changes nothing.
    """
    settings = study.settings
    _check(study)
    private, changed = is_private(settings), changes_update(settings)
    notes = []
    if changed:
        _try(study)
        guarantee = in_words(update_privacy(settings.defence_settings, rounds=settings.rounds))
        notes.append(f"defence {settings.defence}: {guarantee}")
    if settings.client_property and (private or changed):
        notes.append(
            "the attack's shadow updates do not model the clients' defence: an attacker who knows of it may find more"
        )
    return notes


def _check(study: Study) -> None:
    """Refuse a defence that is unknown or set wrongly, or that changes what is not there."""
    if study.settings.defence == DP_SGD:
        return
    defence = defence_of(study.settings.defence_settings)
    if defence is not None and defence.needs_batch and not study.framework.shares_model:
        raise ConfigError(
            f"defence = {defence.name!r} changes a layer's update, and with framework = {study.framework.name!r} "
            "clients send predictions; take another defence"
        )


def _try(study: Study) -> None:
    """Apply the defence to an update of noise: what clients would answer with errors is better refused now.

    So is a strength that changes nothing, such as a share of entries that rounds to none.
    """
    settings = study.settings
    defence = defence_of(settings.defence_settings)
    if defence is None:
        return
    if study.framework.shares_model:
        arrays = study.models.initial_arrays()
        shapes = {name: array.shape for name, array in arrays.items() if array.dtype.kind == "f"}
    else:
        shapes = dict.fromkeys(study.framework.array_names, (len(study.public_x), study.data.classes))
    rng = np.random.default_rng(settings.seed)
    update = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    x, y = study.records_of(0)
    defended = defence.apply(update, rng, Batch(x[:1], y[:1], study.models.build()))
    if all(np.array_equal(update[name], array) for name, array in defended.items()):
        raise ConfigError(
            f"defence = {defence.name!r} with defence-strength = {settings.defence_strength:g} changes nothing of an "
            "update of this model; give a larger strength"
        )
