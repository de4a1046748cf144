"""Models of Hugging Face's transformers, and LoRA adapters of peft, made of a description and never of a download.

A description is plain text: the name of a class that transformers itself has, its configuration, and that of an
adapter. Weights are arbitrary. Nothing of a description is imported, fetched or run: see :data:`_LEFT_OUT`. The
packages are those of the project that is audited; fedattack needs neither.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from fedattack.base.errors import ModelError, short

# What of a configuration names code, files or places, and how attention is computed, which changes no more than digits.
_LEFT_OUT = {
    "_name_or_path",
    "_attn_implementation",
    "_attn_implementation_internal",
    "_experts_implementation",
    "attn_implementation",
    "experts_implementation",
    "auto_map",
    "base_model_name_or_path",
    "custom_pipelines",
    "quantization_config",
    "transformers_version",
}

ADAPTER = {
    *("r", "lora_alpha", "target_modules", "exclude_modules", "lora_dropout", "fan_in_fan_out", "bias", "use_rslora"),
    *("modules_to_save", "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern", "use_dora"),
    "task_type",
}
"""What of an adapter says which weights there are, and how they are used."""


def from_description(name: str, config: str, adapter: str = "") -> nn.Module:
    """Make a model of transformers: of a class's name, its configuration as JSON, and that of a LoRA of peft, if any.

    Raises
    ------
    ModelError
        If a package is not installed, there is no such model, a configuration does not make one, or it names a part
        that would be looked for elsewhere.
    """
    try:
        import transformers
    except ImportError:
        raise ModelError(f"the model {short(name, 60)} is one of the package transformers; install it here") from None
    # Only a name of the package's own top, and a class of its models: no text becomes an import path.
    found = getattr(transformers, name, None)
    if not isinstance(found, type) or not issubclass(found, transformers.PreTrainedModel):
        raise ModelError(f"transformers has no model {short(name, 60)!r}")
    made: Any = found
    described = _settings(config)
    _refuse_elsewhere(name, described)
    with _offline():
        # Not ``from_pretrained``, which would look for files and fetch them.
        settings = made.config_class.from_dict(described)
        # Some have parts of others by default.
        _refuse_elsewhere(name, settings.to_dict())
        settings._attn_implementation = "eager"
        model: nn.Module = made(settings)
        return _add_adapter(model, _settings(adapter)) if adapter else model


def _refuse_elsewhere(name: str, settings: Mapping[str, Any]) -> None:
    if _leads_out(settings):
        raise ModelError(
            f"the model {short(name, 60)} takes a part, such as its backbone, from elsewhere, and nothing is fetched; "
            "name a function of your own that makes it by --model"
        )


def _leads_out(value: Any) -> bool:
    """Say whether a configuration, or one in it, names a part that its library fetches, perhaps with code."""
    if isinstance(value, list | tuple):
        return any(map(_leads_out, value))
    if not isinstance(value, Mapping):
        # As timm names models of others.
        return isinstance(value, str) and value.startswith(("hf-hub:", "hf_hub:", "local-dir:"))
    named = isinstance(value.get("backbone"), str) or value.get("use_pretrained_backbone")
    return bool(named) or any(map(_leads_out, value.values()))


@contextmanager
def _offline() -> Iterator[None]:
    """Let nothing be fetched from Hugging Face's hub."""
    try:
        from huggingface_hub import constants
    except ImportError:
        yield
        return
    before = constants.HF_HUB_OFFLINE
    # The variable of the environment is read when the package is imported, which it is already.
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _add_adapter(model: nn.Module, settings: Mapping[str, Any]) -> nn.Module:
    try:
        import peft
    except ImportError:
        raise ModelError("the model has a LoRA adapter of the package peft; install it here") from None
    kept = {name: value for name, value in settings.items() if name in ADAPTER}
    adapted: nn.Module = peft.get_peft_model(model, peft.LoraConfig(**kept))
    return adapted


def _settings(text: str) -> dict[str, Any]:
    try:
        settings = json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise ModelError(f"a configuration is not valid JSON ({short(str(cause), 80)})") from None
    if not isinstance(settings, dict):
        raise ModelError("a configuration is not a JSON object")
    kept: dict[str, Any] = _without_places(settings)
    return kept


def _without_places(value: Any) -> Any:
    """Leave out what names code, files or places, in inner configurations, too."""
    # ``auto_map`` names code that transformers would fetch and run, also within the configuration of a part.
    if isinstance(value, dict):
        return {name: _without_places(part) for name, part in value.items() if name not in _LEFT_OUT}
    if isinstance(value, list):
        return [_without_places(part) for part in value]
    return value
