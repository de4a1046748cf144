"""Clients that train transformers on random texts, and send gradients or models; no Flower is run."""

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedattack.attacks import Knowledge, ModelKnowledge, Targets
from fedattack.attacks.lookups import trained_sequences
from fedattack.base.structured import pack
from fedattack.learning import LocalSGD
from fedattack.learning.inputs import examples_of, returned_for
from fedattack.learning.models import DECODER_WORDS
from fedattack.learning.returned import output_in
from tests.worlds import attacked as world
from tests.worlds.attacked import as_they_are, count_labels, state, write_known, write_rounds

WORDS, LONGEST, WIDTH, LR = 1000, 12, 128, 0.01


def _configured(config, width, layers, **others):
    return config(vocab_size=WORDS, num_labels=2, pad_token_id=0, bos_token_id=1, eos_token_id=2, **others)


def gpt2(width: int = WIDTH, layers: int = 3, dropout: float = 0.0) -> nn.Module:
    """Return a tiny GPT-2 that tells two labels."""
    from transformers import GPT2Config, GPT2ForSequenceClassification

    dropouts = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), dropout)
    config = _configured(
        GPT2Config, width, layers, n_embd=width, n_layer=layers, n_head=4, n_positions=LONGEST, **dropouts
    )
    return GPT2ForSequenceClassification(config)


def bert(width: int = WIDTH, layers: int = 3, dropout: float = 0.0) -> nn.Module:
    """Return a tiny BERT that tells two labels."""
    from transformers import BertConfig, BertForSequenceClassification

    config = _configured(
        BertConfig,
        width,
        layers,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=4 * width,
        max_position_embeddings=LONGEST,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return BertForSequenceClassification(config)


def llama(width: int = WIDTH, layers: int = 3) -> nn.Module:
    """Return a tiny Llama that tells two labels: places turn queries and keys, and are added to no word."""
    from transformers import LlamaConfig, LlamaForSequenceClassification

    config = _configured(
        LlamaConfig,
        width,
        layers,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=2 * width,
        max_position_embeddings=LONGEST,
    )
    return LlamaForSequenceClassification(config)


def known(kind: str, **arguments) -> ModelKnowledge:
    if kind == "decoder":
        return ModelKnowledge(spec=kind, input_shape=(LONGEST,), classes=2, **arguments)
    return ModelKnowledge(spec=f"{__name__}:{kind}", input_shape=(), classes=2, arguments=arguments)


def texts(count: int, rng: np.random.Generator, shortest: int = LONGEST):
    """Draw texts of random words, and their labels."""
    ids = rng.integers(3, WORDS, size=(count, LONGEST))
    lengths = rng.integers(shortest, LONGEST + 1, size=count)
    mask = (np.arange(LONGEST) < lengths[:, None]).astype(np.int64)
    return pack({"input_ids": ids * mask, "attention_mask": mask}), rng.integers(2, size=count)


def gradient(model, x, y, seed=0):
    """Return the gradient of the mean loss, as a client that trains computes it."""
    torch.manual_seed(seed)
    outputs = output_in(returned_for(model.train(), examples_of(x)))
    nn.functional.cross_entropy(outputs, torch.from_numpy(y)).backward()
    return {name: value.grad.numpy().copy() for name, value in model.named_parameters()}


def write_texts_run(
    folder: Path,
    kind: str = "gpt2",
    *,
    clients=4,
    each=2,
    protocol="fedsgd",
    rounds=1,
    shortest=LONGEST,
    training=None,
    alter=as_they_are,
    seed=0,
    **arguments,
) -> Path:
    """Write record, knowledge and truth."""
    model_known, rng = known(kind, **arguments), np.random.default_rng(seed)
    x, y = texts(clients * each + 50, rng, shortest)
    if kind == "decoder":
        x = (x["input_ids"] % DECODER_WORDS).astype(np.float32)
    parts = np.arange(clients * each).reshape(clients, each)
    training = training or LocalSGD(1, each, LR)
    torch.manual_seed(seed)
    common = state(model_known.build())
    shape = {"lr": LR, "protocol": protocol, "rounds": rounds, "training": training}
    write_rounds(folder, model_known, common, x, y, parts, alter=alter, gradient=gradient, seed=seed, **shape)
    targets = Targets(x[clients * each :], y[clients * each :])
    knowledge = Knowledge(model=model_known, targets=targets, training=training)
    trained = trained_sequences(knowledge, [(str(client), x[parts[client]]) for client in range(clients)])
    return write_known(folder, knowledge, count_labels(y, parts, 2), answers={"sequences": trained})


TRUSTED = tuple(str(known(kind).spec) for kind in ("gpt2", "bert", "llama"))

attacked = partial(world.attack, "dager", trusted=TRUSTED)
judged = partial(world.attack_and_judge, "dager", trusted=TRUSTED)
