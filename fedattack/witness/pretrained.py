"""How a model of Hugging Face's transformers, and a LoRA adapter of peft in it, is described as plain text.

:mod:`fedattack.learning.pretrained` makes such a model again.
"""

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import nn

_ADAPTER_NAME = "default"

# What describes a model, or its labels, in words.
_LEFT_OUT = {
    *("architectures", "finetuning_task", "label2id", "prefix", "task_specific_params", "tokenizer_class"),
    "transformers_version",
}


def description(model: nn.Module) -> dict[str, Any] | None:
    """Return class, configuration and adapter of a model; ``None`` if it is none of transformers' own.

    An adapter must be a LoRA, alone, and of the usual name.
    """
    transformers: Any = sys.modules.get("transformers")
    if transformers is None:
        return None
    adapter: dict[str, Any] = {}
    peft: Any = sys.modules.get("peft")
    if peft is not None and isinstance(model, peft.PeftModel):
        config = model.peft_config.get(_ADAPTER_NAME)
        if len(model.peft_config) != 1 or not isinstance(config, peft.LoraConfig):
            return None
        from fedattack.learning.pretrained import ADAPTER

        adapter = {"adapter": _text({name: value for name, value in config.to_dict().items() if name in ADAPTER})}
        model = model.get_base_model()
    name = type(model).__name__
    if not isinstance(model, transformers.PreTrainedModel) or type(model) is not getattr(transformers, name, None):
        return None
    return {"name": name, "config": _text(_settings(model.config)), **adapter}


def _settings(config: Any) -> dict[str, Any]:
    """Return what of a configuration its class has by itself: what somebody has added may be a secret."""
    transformers: Any = sys.modules["transformers"]
    # What these have, the library itself put there: it is nobody's secret.
    usual = transformers.PretrainedConfig().to_dict() | _usual(type(config))
    settings = {}
    for name, value in config.to_dict().items():
        inner = getattr(config, name, None)
        # Such as that of the text model in one of images and texts.
        if isinstance(inner, transformers.PretrainedConfig):
            settings[name] = _settings(inner)
        elif name == "id2label" and value:
            settings[name] = {key: f"LABEL_{key}" for key in value}
        elif name in usual and name not in _LEFT_OUT and not name.endswith("_or_path"):
            settings[name] = _choose_known(value, usual[name])
    return settings


def _usual(kind: type) -> dict[str, Any]:
    """Return the settings that each configuration of a class of transformers has; none if it is not made without."""
    of_transformers: Any = next(base for base in kind.__mro__ if base.__module__.startswith("transformers."))
    with suppress(Exception):
        usual: dict[str, Any] = of_transformers().to_dict()
        return usual
    return {}


def _choose_known(value: Any, usual: Any) -> Any:
    """Return a setting, without texts in it that stand where the usual one has none."""
    if not isinstance(value, Mapping):
        return value
    inner = usual if isinstance(usual, Mapping) else {}
    known = {}
    for name, entry in value.items():
        numbers = entry if isinstance(entry, list | tuple) else [entry]
        if name in inner or all(isinstance(number, int | float) for number in numbers):
            known[name] = _choose_known(entry, inner.get(name))
    return known


def _text(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, default=_plain, sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return str(getattr(value, "value", value))
