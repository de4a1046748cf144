"""Clients that hold the bundled digits as words, and send how a table of words moved; no Flower is run."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedattack.attacks import Knowledge, ModelKnowledge, Targets
from fedattack.attacks.lookups import used_rows
from fedattack.base.structured import pack
from fedattack.data.sources.bundled import digit_words
from fedattack.learning import LocalSGD
from tests.worlds import attacked as world
from tests.worlds.attacked import as_they_are, count_labels, state, write_known, write_rounds

CLIENTS, WORDS, LR = 6, 1088, 0.1


class WordModel(nn.Module):
    """The mean of the words' embeddings, and a layer that tells a digit; or, ``tied``, which word is meant."""

    def __init__(self, tied: bool = False, padding: int | None = None, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width, padding_idx=padding)
        self.out = nn.Linear(width, 10)
        if tied:
            self.out = nn.Linear(width, WORDS, bias=False)
            self.out.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        mean = self.embed(ids).mean(dim=1)
        logits: Tensor = self.out(torch.tanh(mean) * 3)
        return logits


def words() -> nn.Module:
    return WordModel()


EMBEDDED = ModelKnowledge(spec=f"{__name__}:words", input_shape=(), classes=10, arguments={})
ONE_HOT = ModelKnowledge(spec="mlp", input_shape=(WORDS,), classes=10, hidden=16)


def texts():
    """Return the digits as words: one-hot (n, 1088), as ids, and their labels."""
    pool = digit_words(0, Path())
    ids = np.nonzero(pool.x)[1].reshape(len(pool.x), 64)
    return pool.x, pack({"0": ids}), pool.y


def write_words_run(
    folder: Path,
    *,
    known: ModelKnowledge = EMBEDDED,
    protocol="fedavg",
    rounds=1,
    each=5,
    clients=CLIENTS,
    taking_part: Sequence[Sequence[int]] | None = None,
    alter=as_they_are,
    seed=0,
    training=None,
) -> Path:
    """Write record, knowledge and truth; ``taking_part`` says by round which clients do."""
    hot, ids, y = texts()
    x = ids if known is EMBEDDED else hot
    training = training or LocalSGD(2, 2, LR)
    order = np.random.default_rng(seed).permutation(len(y))
    parts = order[: clients * each].reshape(clients, each)
    torch.manual_seed(seed)
    common = state(known.build())
    shape = {"lr": LR, "protocol": protocol, "rounds": rounds, "training": training, "taking_part": taking_part}
    write_rounds(folder, known, common, x, y, parts, alter=alter, seed=seed, **shape)
    targets = Targets(x[order[-100:]], y[order[-100:]])
    knowledge = Knowledge(model=known, targets=targets, training=training)
    used = used_rows(knowledge, [(str(client), x[parts[client]]) for client in range(clients)])
    return write_known(folder, knowledge, count_labels(y, parts, 10), answers={"tokens": used})


TRUSTED = (str(EMBEDDED.spec),)

write_sums_of_words = partial(world.write_sums, write_words_run)
attacked = partial(world.attack, "tokens", trusted=TRUSTED)
judged = partial(world.attack_and_judge, "tokens", trusted=TRUSTED)
