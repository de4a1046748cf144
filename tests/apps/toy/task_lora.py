"""A tiny GPT-2, in the place of one that is downloaded, of which clients train and send a LoRA adapter."""

from functools import partial

import numpy as np
import torch
from flwr.app import ArrayRecord
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from toyapp import texts
from transformers import GPT2Config, GPT2LMHeadModel

WORDS, LONGEST, UNLABELLED = 40, 12, -100


def make_model():
    """Return the model, always with the same weights, and its adapter."""
    config = GPT2Config(
        vocab_size=WORDS, n_embd=24, n_layer=2, n_head=2, n_positions=LONGEST, bos_token_id=1, eos_token_id=2
    )
    with torch.random.fork_rng():
        torch.manual_seed(11)
        base = GPT2LMHeadModel(config)
        adapter = LoraConfig(r=4, target_modules=["c_attn", "c_fc"], task_type="CAUSAL_LM", fan_in_fan_out=True)
        return get_peft_model(base, adapter)


def arrays_of(net):
    return ArrayRecord(get_peft_model_state_dict(net))


def put(net, arrays):
    set_peft_model_state_dict(net, arrays.to_torch_state_dict())


def initial_arrays():
    torch.manual_seed(1)
    return arrays_of(make_model())


def load_data(site: int, sites: int = 0) -> tuple[list[dict], list[dict]]:
    """Return this site's texts, and those that it only evaluates on."""
    rng = np.random.default_rng(200 + site)
    drawn = []
    for _ in range(40 + 2 * site):
        drawn.append({"input_ids": rng.integers(3, WORDS, size=rng.integers(6, LONGEST + 1)).tolist()})
    return drawn[:-20], drawn[-20:]


def label(text: dict, rest: int) -> list[int]:
    """The first two words are a prompt; the loss is about what follows it."""
    return [UNLABELLED] * 2 + text["input_ids"][2:] + [UNLABELLED] * rest


collate = partial(texts.pad, labels=label)
train, test = partial(texts.train, collate=collate), partial(texts.test, collate=collate)
