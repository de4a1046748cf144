"""How a model of Hugging Face's transformers, and a LoRA adapter of peft in it, is described as plain text.

:mod:`fedattack.learning.pretrained` makes such a model again.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

_ADAPTER_NAME = "default"


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
        adapter = {"adapter": _text(config.to_dict())}
        model = model.get_base_model()
    name = type(model).__name__
    if not isinstance(model, transformers.PreTrainedModel) or type(model) is not getattr(transformers, name, None):
        return None
    return {"name": name, "config": _text(model.config.to_dict()), **adapter}


def _text(settings: Mapping[str, Any]) -> str:
    """Write a configuration, without the places where it was found."""
    kept = {name: value for name, value in settings.items() if not name.endswith("_or_path")}
    return json.dumps(kept, default=_plain, sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return str(getattr(value, "value", value))
