"""What Opacus' privacy engine was told: noise, clipping and sampling, by which a privacy claim is checked."""

import functools
from collections.abc import Callable
from typing import Any

from opacus import PrivacyEngine

from fedattack.base.errors import ConfigError
from fedattack.claims.reading import configuration_of
from fedattack.witness.watch import CallWatch, current

_undo: list[Callable[[], Any]] = []


def install() -> None:
    """Put the hook in, unless it is in."""
    if not _undo:
        original = PrivacyEngine.make_private
        PrivacyEngine.make_private = _watch_call(original)
        _undo.append(functools.partial(setattr, PrivacyEngine, "make_private", original))


def remove() -> None:
    """Take the hook out again."""
    while _undo:
        _undo.pop()()


def _watch_call(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make_private(self: PrivacyEngine, *args: Any, **kwargs: Any) -> Any:
        made = original(self, *args, **kwargs)
        watch = current()
        if watch is not None:
            watch.guard("what Opacus was told", _note, self, made[1])
        return made

    return make_private


def _note(watch: CallWatch, engine: PrivacyEngine, optimizer: Any) -> None:
    watch.private_by[id(optimizer.original_optimizer)] = functools.partial(_configuration, engine, optimizer)


def _configuration(engine: PrivacyEngine, optimizer: Any) -> dict[str, Any]:
    """Return the keys of a claim about one round; none where the engine made no step."""
    try:
        of_engine = configuration_of(engine)
    except ConfigError:
        return {}
    found = {**configuration_of(optimizer), **of_engine, "unit": "example"}
    rates = {group["lr"] for group in optimizer.param_groups}
    if len(rates) == 1 and optimizer.expected_batch_size:
        found |= {"learning_rate": float(min(rates)), "batch_size": int(optimizer.expected_batch_size)}
    return {key: value for key, value in found.items() if value is not None and key != "rounds"}
