"""Clients that hold the bundled digits as words, and send how a table of words moved; no Flower is run."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedattack.attacks import ATTACKS, Knowledge, ModelKnowledge, Targets, read_knowledge, write_knowledge
from fedattack.attacks.lookups import used_rows
from fedattack.audit.evidence import read_evidence
from fedattack.audit.judging import judge_attacks
from fedattack.audit.truth import note_node, write_truth
from fedattack.base.structured import pack
from fedattack.data.sources.bundled import digit_words
from fedattack.learning import LocalSGD, full_gradient, gradient_step, train_local
from fedattack.record import Exchange, Record, RecordWriter, Reply, project_record

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


def state(model):
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}


def trained(known: ModelKnowledge, common, x, y, training: LocalSGD, seed=0):
    model = known.build()
    model.load_state_dict({name: torch.from_numpy(array) for name, array in common.items()})
    train_local(model, x, y, seed=seed, **training.keywords())
    return state(model)


def write_words_run(
    folder: Path,
    *,
    known: ModelKnowledge = EMBEDDED,
    protocol="fedavg",
    rounds=1,
    each=5,
    clients=CLIENTS,
    taking_part: Sequence[Sequence[int]] | None = None,
    alter=lambda name, array, start: array,
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
    writer = RecordWriter(folder / "record", seed=seed, facts={"lr": LR}, protocol=protocol)
    for number in range(rounds):
        replies = []
        for client in range(clients) if taking_part is None else taking_part[number]:
            rows = parts[client]
            if protocol == "fedsgd":
                model = known.build()
                model.load_state_dict({name: torch.from_numpy(array) for name, array in common.items()})
                sent = full_gradient(model, x[rows], y[rows], seed=0).arrays
            else:
                sent = trained(known, common, x[rows], y[rows], training, seed)
            sent = {name: alter(name, array, common[name]) for name, array in sent.items()}
            replies.append(Reply(f"node{client}", "ok", sent, each, {}))
        writer.write(Exchange(number + 1, common, replies))
        mean = {name: np.mean([reply.arrays[name] for reply in replies], axis=0).astype(np.float32) for name in common}
        common = gradient_step(common, mean, LR) if protocol == "fedsgd" else mean
    writer.close(final=common)
    targets = Targets(x[order[-100:]], y[order[-100:]])
    knowledge = Knowledge(model=known, targets=targets, training=training)
    write_knowledge(folder / "knowledge", knowledge)
    used = used_rows(knowledge, [(str(client), x[parts[client]]) for client in range(clients)])
    write_truth(
        folder / "truth",
        clients=[str(client) for client in range(clients)],
        classes=[str(label) for label in range(10)],
        counts=np.array([np.bincount(y[rows], minlength=10) for rows in parts]),
        evaluation=None,
        targets=targets.fingerprint,
        answers={"tokens": used},
    )
    for client in range(clients):
        note_node(folder / "truth", node=f"node{client}", client=str(client))
    return folder


def write_sums_of_words(folder: Path, **options) -> Path:
    """Write the same run as a server of secure aggregation sees it."""
    each = write_words_run(folder / "each", **options)
    project_record(Record(each / "record"), folder / "record")
    for name in ("knowledge", "truth"):
        (each / name).rename(folder / name)
    return folder


def attacked(folder: Path, **options):
    attack = ATTACKS["tokens"].with_options(options)
    known = read_knowledge(folder / "knowledge", trusted=(str(EMBEDDED.spec),))
    return attack.run(Record(folder / "record"), known, device="cpu")


def judged(folder: Path, **options):
    """Attack and judge a run folder; findings by metric."""
    attacked(folder, **options).save(folder / "scores" / "tokens.npz")
    findings = judge_attacks(read_evidence(folder, trusted=(str(EMBEDDED.spec),)), setting={}, provenance={})
    return {finding.metric: finding for finding in findings}
