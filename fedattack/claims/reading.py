"""Claims read off objects that a project has made: Flower's mods and strategies, Opacus' engine, defences of fedattack.

Nothing is imported for it. An object is known by the module and the name of its class, and read by its attributes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fedattack.base.errors import ConfigError
from fedattack.claims.claim import Claim, make_claim
from fedattack.claims.finding import TOLERANCE

_WORDS = Mapping[str, Any]

# What an object does not say, and no claim can do without.
_DECLARED = {"epsilon": None, "delta": None, "rounds": None}
# What a claim says for itself, whatever a mechanism does; and what a mechanism knows better.
_CLAIMED_ALONE = ("epsilon", "delta", "epsilon_of")
_NOISE = ("clip", "sensitivity", "sigma", "noise_multiplier")


def claim_of(source: object, **declared: Any) -> Claim:
    """Read what an object configures, and add what its project declares.

    Parameters
    ----------
    source
        - Flower's ``LocalDpMod``, of either generation: all but the rounds.
        - Flower's strategies ``DifferentialPrivacy…``, of either generation: clipping, noise, number of clients. They
          declare no ε. The mods ``fixedclipping_mod`` and ``adaptiveclipping_mod`` clip for them, and add no noise.
        - Flower's accountant ``RdpAccountant``: the noise that it was told of, releases, sampling, neighbours, and as
          ε what it says was spent.
        - Opacus' ``PrivacyEngine`` after its training, its optimizer ``DPOptimizer``, or an accountant of it: noise,
          sampling and steps. Its accountant has no clipping norm, the optimizer no sampling.
        - A defence of this project, such as ``Noise``, its mods ``DefenceMod`` with settings and ``FlowerLocalDP``.
    declared
        Keys of the claim with underscores, such as ``epsilon`` and ``delta``. They win over what was read.

    Returns
    -------
    Claim

    Raises
    ------
    ConfigError
        If nothing is known of such an object, or the claim lacks a key or contradicts itself.
    """
    values = {**configuration_of(source), **declared}
    lacking = [key for key, value in values.items() if value is None]
    if lacking:
        words = ", ".join(f"{key}=…" for key in lacking)
        raise ConfigError(f"{_name_source(source)} does not say {', '.join(lacking)}: call claim_of(…, {words})")
    return make_claim(_name_source(source), **values)


def configuration_of(source: object) -> Mapping[str, Any]:
    """Return the keys of a claim that an object has, without a check, and None for those that have to be declared.

    Raises
    ------
    ConfigError
        If nothing is known of such an object.
    """
    read = _find_reader(source)
    if read is None:
        raise ConfigError(
            f"claim_of: {_name_source(source)} is not something that a claim can be read from; declare it by hand in "
            "claim.toml (fedattack/claims/README.md)"
        )
    return read(source)


def readable(source: object) -> bool:
    """Whether :func:`claim_of` knows this kind of object."""
    return _find_reader(source) is not None


def replace_by_configured(claim: Claim, source: object, name: str) -> tuple[Claim, tuple[str, ...]]:
    """Put what a mechanism configures in the place of what a claim says of it.

    Returns
    -------
    Claim, tuple of str
        The claim that counts, and a note for each number of which the claim says another.

    Raises
    ------
    ConfigError
        If the claim contradicts itself with the mechanism's numbers.
    """
    try:
        configuration = configuration_of(source)
    except ConfigError as nothing:
        # Such as a mod that clips and adds no noise. It is tested all the same.
        return claim, (str(nothing),)
    read = {key: value for key, value in configuration.items() if value is not None}
    declared = {"epsilon": claim.epsilon, "delta": claim.delta, "rounds": claim.rounds}
    configured = make_claim(name, **{**declared, **read})
    notes = tuple(_list_differences(claim, configured, name))
    if claim.mechanism == configured.mechanism == "flower-localdp" and not notes:
        return claim, ()
    said = claim.model_dump(exclude_unset=True)
    # The later ones win: what the claim alone knows, then what it says, then the mechanism's own noise.
    values = {**_leave_out(read, (*_NOISE, *_CLAIMED_ALONE)), **_leave_out(said, _NOISE), **_list_noise(configured)}
    # Flower's formula has done its part: σ is known.
    values["mechanism"] = "gaussian" if configured.mechanism == "flower-localdp" else configured.mechanism
    return make_claim(name, **values), notes


def _list_differences(claim: Claim, configured: Claim, name: str) -> Iterator[str]:
    """Name the numbers of which claim and mechanism say other things; people round them."""
    for key, word in {"clip": "clip", "sensitivity": "sensitivity", "deviation": "sigma"}.items():
        said, has = getattr(claim, key), getattr(configured, key)
        if said is not None and has is not None and not math.isclose(said, has, rel_tol=TOLERANCE):
            yield f"the claim says {word} = {said:.4g}, and {name} has {has:.4g}, which counts"


def _list_noise(configured: Claim) -> dict[str, float]:
    """Return the numbers of the noise that a mechanism has; its multiplier only if they give no σ."""
    noise = {
        "clip": configured.clip,
        "sensitivity": configured.sensitivity,
        "sigma": configured.sigma or configured.deviation,
    }
    if configured.deviation is None:
        noise["noise_multiplier"] = configured.noise_multiplier
    return {key: value for key, value in noise.items() if value is not None}


def _leave_out(values: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def _name_source(source: object) -> str:
    return str(getattr(source, "__name__", type(source).__name__))


def _find_reader(source: object) -> Callable[[Any], _WORDS] | None:
    if _name_source(source).endswith("clipping_mod") and str(getattr(source, "__module__", "")).startswith("flwr."):
        return _refuse_clipping_alone
    # Base classes are looked through, so that a subclass of a known one is read, too.
    for kind in type(source).__mro__:
        reader = _READERS.get((kind.__module__.partition(".")[0], kind.__name__))
        if reader is not None:
            return reader
    return None


def _refuse_clipping_alone(source: Any) -> _WORDS:
    """Flower's clipping mods: the server gives the norm, and adds the noise."""
    raise ConfigError(
        f"{source.__name__} clips but adds no noise; read the claim from the server's strategy, "
        "DifferentialPrivacyClientSide…Clipping, instead"
    )


def _read_local_dp(mod: Any) -> _WORDS:
    return {
        "mechanism": "flower-localdp",
        "epsilon_of": "message",
        "clip": float(mod.clipping_norm),
        "sensitivity": float(mod.sensitivity),
        "epsilon": float(mod.epsilon),
        "delta": float(mod.delta),
    }


def _read_fixed_clipping(strategy: Any) -> _WORDS:
    return _DECLARED | {
        "mechanism": "central-gaussian",
        "clip": float(strategy.clipping_norm),
        "noise_multiplier": float(strategy.noise_multiplier),
        "clients": int(strategy.num_sampled_clients),
        "weights": _read_weights(strategy),
    }


def _read_weights(strategy: Any) -> str:
    """With an accountant, Flower refuses replies of other weights than the others'; without, it takes them."""
    return "examples" if getattr(strategy, "accountant", None) is None else "equal"


def _read_adaptive_clipping(strategy: Any) -> _WORDS:
    # The norm moves before the noise is drawn, by e^(−η(b − γ)) for a share b ≤ 1 of clipped updates.
    falls = math.exp(-strategy.clip_norm_lr * (1 - strategy.target_clipped_quantile))
    values: dict[str, Any] = _DECLARED | {
        "mechanism": "central-adaptive",
        "clip": float(strategy.clipping_norm),
        "noise_multiplier": float(strategy.noise_multiplier),
        "clients": int(strategy.num_sampled_clients),
        "weights": "examples",
        "clip_falls": falls,
    }
    values["count_noise"] = float(strategy.clipped_count_stddev)
    return values


def _read_flower_accountant(accountant: Any) -> _WORDS:
    config = accountant.config
    events = accountant.state_dict()["compositions"]
    # A set: all releases must be alike.
    kinds = {(entry["event"]["noise_multiplier"], entry["event"]["sample_size"]) for entry in events}
    if len(kinds) != 1:
        raise ConfigError(
            f"Flower's accountant has {len(kinds)} kinds of releases; a claim is read from one kind: compose them by "
            "hand"
        )
    ((multiplier, clients),) = kinds
    values = {
        "mechanism": "central-gaussian",
        "epsilon": float(accountant.get_epsilon(config.target_delta)),
        "delta": float(config.target_delta),
        "noise_multiplier": float(multiplier),
        "clients": int(clients),
        # The wrappers that take an accountant refuse others.
        "weights": "equal",
        "rounds": int(accountant.num_releases),
        "neighbours": "replace" if config.neighboring_relation.value == "replace-one" else "add-remove",
    }
    methods = {"poisson": "poisson", "without-replacement": "fixed-size"}
    if config.sampling_method.value in methods:
        values["sampling"] = clients / config.population_size
        values["sampling_method"] = methods[config.sampling_method.value]
    return values


def _read_opacus_engine(engine: Any) -> _WORDS:
    return _read_opacus_accountant(engine.accountant)


def _read_opacus_accountant(accountant: Any) -> _WORDS:
    history = accountant.history
    kinds = {(float(noise), float(rate)) for noise, rate, _ in history}
    if len(kinds) != 1:
        raise ConfigError(
            f"Opacus' accountant has {len(kinds)} kinds of steps in its history; a claim is read from one kind, "
            "after training. With none there is nothing to read yet; with several write the least noise, the largest "
            "sampling and all steps into claim.toml, for an upper bound"
        )
    ((noise, rate),) = kinds
    steps = sum(int(count) for _, _, count in history)
    # Its history is that of all rounds for which it was kept.
    run: dict[str, Any] = {"epsilon": None, "delta": None, "rounds": 1}
    if rate < 1:
        # It takes Poisson batches for granted, also where its engine was told to draw none.
        run["sampling_method"] = None
    return run | {"mechanism": "dp-sgd", "noise_multiplier": noise, "sampling": rate, "steps": steps}


def _read_opacus_optimizer(optimizer: Any) -> _WORDS:
    if hasattr(optimizer, "unclipped_num_std") or hasattr(optimizer, "_adjusted_noise_multiplier"):
        raise ConfigError(
            "Opacus' adaptive clipping counts the examples that it does not clip, and divides by the size of the "
            "batch: no claim of dp-sgd has these, and nothing bounds ε"
        )
    norm = optimizer.max_grad_norm
    if isinstance(norm, list | tuple):
        # A norm for each layer: together the root of the sum of squares.
        norm = math.hypot(*norm)
    unknown = _DECLARED | {"sampling": None, "sampling_method": None, "steps": None}
    return unknown | {
        "mechanism": "dp-sgd",
        "noise_multiplier": float(optimizer.noise_multiplier),
        "clip": float(norm),
    }


def _read_noise(defence: Any) -> _WORDS:
    mechanism = {"dp-gaussian": "gaussian", "dp-laplace": "laplace"}[defence.name]
    values: dict[str, Any] = _DECLARED | {"mechanism": mechanism, "sigma": float(defence.scale)}
    if defence.clip:
        values["clip"] = float(defence.clip)
    return values


def _read_own_local_dp(defence: Any) -> _WORDS:
    return _DECLARED | {"mechanism": "gaussian", "sigma": float(defence.deviation), "clip": float(defence.clip)}


def _read_defence_mod(mod: Any) -> _WORDS:
    from fedattack.defences import defence_of

    if mod.settings is None:
        raise ConfigError("DefenceMod without settings reads the run config; make it with settings=… to read a claim")
    defence = defence_of(mod.settings)
    reader = _find_reader(defence)
    if reader is None:
        raise ConfigError(f"the defence {mod.settings.get('defence')!r} adds no noise of a claim to the update")
    return reader(defence)


_CENTRAL_FIXED = ("DifferentialPrivacyServerSideFixedClipping", "DifferentialPrivacyClientSideFixedClipping")
_CENTRAL_ADAPTIVE = ("DifferentialPrivacyServerSideAdaptiveClipping", "DifferentialPrivacyClientSideAdaptiveClipping")

_READERS: dict[tuple[str, str], Callable[[Any], _WORDS]] = {
    ("flwr", "LocalDpMod"): _read_local_dp,
    ("flwr", "RdpAccountant"): _read_flower_accountant,
    ("opacus", "PrivacyEngine"): _read_opacus_engine,
    ("opacus", "IAccountant"): _read_opacus_accountant,
    ("opacus", "DPOptimizer"): _read_opacus_optimizer,
    ("fedattack", "Noise"): _read_noise,
    ("fedattack", "FlowerLocalDP"): _read_own_local_dp,
    ("fedattack", "DefenceMod"): _read_defence_mod,
}
_READERS.update({("flwr", name): _read_fixed_clipping for name in _CENTRAL_FIXED})
_READERS.update({("flwr", name): _read_adaptive_clipping for name in _CENTRAL_ADAPTIVE})
