"""A tiny BERT with a head for three labels."""

from functools import partial

import numpy as np
import torch
from toyapp import texts
from toyapp.states import arrays_of, put  # noqa: F401
from transformers import BertConfig, BertForSequenceClassification

WORDS, LONGEST, LABELS = 60, 14, 3


def make_model():
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=LONGEST,
        num_labels=LABELS,
    )
    return BertForSequenceClassification(config)


def initial_arrays():
    torch.manual_seed(1)
    return arrays_of(make_model())


def load_data(site: int, sites: int = 0) -> tuple[list[dict], list[dict]]:
    """Return this site's texts, as ids of words, and those that it only evaluates on."""
    rng = np.random.default_rng(100 + site)
    drawn = []
    for _ in range(40 + 2 * site):
        ids = rng.integers(1, WORDS, size=rng.integers(5, LONGEST + 1))
        drawn.append({"input_ids": ids.tolist(), "label": int(rng.integers(LABELS))})
    return drawn[:-20], drawn[-20:]


collate = partial(texts.pad, labels=lambda text, rest: text["label"])
train, test = partial(texts.train, collate=collate), partial(texts.test, collate=collate)
