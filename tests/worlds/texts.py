"""Models of texts, and texts: ids of words with a mask, as one array of structured type."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedattack.base.structured import pack

WORDS, LONGEST, CLASSES = 30, 6, 4


class Classifier(nn.Module):
    """The mean of the words' embeddings, and two layers."""

    def __init__(self, dropout: float = 0.0, *, sparse: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 8, sparse=sparse)
        self.inner = nn.Linear(8, 10)
        self.drop = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(10)
        self.out = nn.Linear(10, CLASSES)

    def pooled(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask[..., None].float()
        mean = (self.embed(input_ids) * mask).sum(dim=1) / mask.sum(dim=1)
        return self.norm(self.drop(torch.tanh(self.inner(mean))))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        return {"logits": self.out(self.pooled(input_ids, attention_mask))}


class Looking(Classifier):
    """Looks into the mask to save work, as models of transformers do; ``torch.func`` cannot trace that."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        if attention_mask.all():
            attention_mask = torch.ones_like(attention_mask)
        return super().forward(input_ids, attention_mask)


class OwnLoss(Looking):
    """Is given its labels, and returns its loss."""

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        outputs = super().forward(input_ids, attention_mask)
        return {"loss": nn.functional.cross_entropy(outputs["logits"], labels), **outputs}


class Tied(Looking):
    """Predicts a class from the embeddings of the first words, a weight that it uses twice."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        words = self.head(self.embed(input_ids[:, 0]))
        return {"logits": super().forward(input_ids, attention_mask)["logits"] + words[:, :CLASSES]}


def classifier() -> nn.Module:
    """Return the model of made-up federations, as its owner would name it."""
    return Looking()


def texts(labels: NDArray[np.int64], rng: np.random.Generator, *, words: int = WORDS, first: int = 1) -> NDArray[Any]:
    """Write texts whose second word tells the label; words are from ``first`` to before ``words``."""
    count = len(labels)
    ids = rng.integers(first + CLASSES, words, size=(count, LONGEST))
    ids[:, 1] = 1 + labels
    lengths = rng.integers(3, LONGEST + 1, size=count)
    mask = (np.arange(LONGEST) < lengths[:, None]).astype(np.int64)
    return pack({"input_ids": ids * mask, "attention_mask": mask})


class NextWord(nn.Module):
    """A language model that trains an adapter alone, and returns its loss of the words that have a label."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Embedding(WORDS, 12).requires_grad_(False)
        self.adapter = nn.Linear(12, WORDS)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        # Each word is told what came before it.
        logits = self.adapter(torch.tanh(self.base(input_ids).cumsum(dim=1)))
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        return {"loss": loss, "logits": logits}


def next_word() -> nn.Module:
    """Return the language model of made-up federations, as its owner would name it."""
    return NextWord()


def continued(count: int, rng: np.random.Generator) -> NDArray[Any]:
    """Write texts of which all but the first two words are to be predicted."""
    ids = rng.integers(1, WORDS, size=(count, LONGEST))
    mask = (np.arange(LONGEST) < rng.integers(4, LONGEST + 1, size=count)[:, None]).astype(np.int64)
    labels = np.where((mask == 1) & (np.arange(LONGEST) >= 2), ids, -100)
    return pack({"input_ids": ids * mask, "attention_mask": mask, "labels": labels})
