"""Models that take more than one array, or return their own loss, are seen as the data itself says."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from fedattack.base.structured import fields, leaves_of
from fedattack.learning import losses_of_models, per_record_loss
from tests.witness.apps import seed, seen, witness_of

COUNT = 24
GENERATOR = torch.Generator().manual_seed(4)
IDS = torch.randint(1, 30, (COUNT, 6), generator=GENERATOR)
MASK = (torch.arange(6)[None] < torch.randint(3, 7, (COUNT, 1), generator=GENERATOR)).long()
SIZES = torch.rand(COUNT, 2, generator=GENERATOR)
Y = torch.arange(COUNT) % 3


class Words(nn.Module):
    """Takes a dict and a tuple; returns its loss where it is given labels."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 8)
        self.out = nn.Linear(10, 3)

    def forward(self, words, sizes, targets=None):
        mask = words["attention_mask"][..., None]
        mean = (self.words(words["input_ids"]) * mask).sum(1) / mask.sum(1)
        logits = self.out(torch.cat([mean, *sizes], dim=1))
        if targets is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits, targets), "logits": logits}


class Next(nn.Module):
    """A language model that returns nothing but its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 8)
        self.out = nn.Linear(8, 30)

    def forward(self, input_ids, labels):
        logits = self.out(self.words(input_ids))[:, :-1]
        return F.cross_entropy(logits.reshape(-1, 30), labels[:, 1:].reshape(-1))


def call(model, rows, *, inside=True, width=6):
    words = {"input_ids": IDS[rows, :width] * MASK[rows, :width], "attention_mask": MASK[rows, :width]}
    sizes = (SIZES[rows, :1], SIZES[rows, 1:])
    return model(words, sizes, targets=Y[rows]) if inside else model(words, sizes)


def client(loss, model):
    def train():
        seed(5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for rows in torch.arange(COUNT).split(8):
            optimizer.zero_grad()
            loss(model, rows).backward()
            optimizer.step()
        return model

    return train


def within(model, rows):
    return call(model, rows)["loss"]


def outside(model, rows):
    return F.cross_entropy(call(model, rows, inside=False)["logits"], Y[rows])


def padded_to_the_longest(model, rows):
    return call(model, rows, width=int(MASK[rows].sum(1).max()))["loss"]


def of_tokens(model, rows):
    return model(input_ids=IDS[rows], labels=IDS[rows].masked_fill(MASK[rows] == 0, -100))


@pytest.mark.parametrize("loss", [within, outside, padded_to_the_longest])
def test_dicts_and_tuples_are_seen_with_their_labels(loss, tmp_path):
    witness = witness_of(client(loss, Words()), tmp_path)
    x = witness.trained.x
    assert fields(x) == ("0/input_ids", "0/attention_mask", "1/#0", "1/#1")
    assert witness.trained.total == len(x) == COUNT
    label_of = {sizes.numpy().tobytes(): int(label) for sizes, label in zip(SIZES, Y, strict=True)}
    found = [label_of[np.concatenate([row["1/#0"], row["1/#1"]]).tobytes()] for row in x]
    assert found == witness.trained.y.tolist()
    assert witness.trained.counts == {0: 8, 1: 8, 2: 8}
    assert (witness.model.loss, witness.model.classes, witness.model.why) == ("cross-entropy", 3, "")
    assert not witness.notes


def test_an_example_is_the_same_however_it_is_padded(tmp_path):
    first = witness_of(client(within, Words()), tmp_path / "a")
    second = witness_of(client(padded_to_the_longest, Words()), tmp_path / "b")
    assert seen(first.trained) == seen(second.trained)


def test_evaluating_on_what_was_trained_on_is_no_other_example(tmp_path):
    def both():
        model = client(within, Words())()
        with torch.no_grad():
            call(model, slice(0, 8))
            call(model, slice(0, 8), inside=False)
        return model

    assert witness_of(both, tmp_path).evaluated.total == 0


@pytest.mark.parametrize(("loss", "model"), [(within, Words), (of_tokens, Next)])
def test_nothing_changes_under_watch(loss, model, tmp_path):
    seed(1)
    plain = client(loss, model())()
    seed(1)
    watched = model()
    witness_of(client(loss, watched), tmp_path)
    for one, other in zip(plain.state_dict().values(), watched.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_the_loss_of_a_model_that_returns_nothing_else(tmp_path):
    model = Next()
    witness = witness_of(client(of_tokens, model), tmp_path)
    x = witness.trained.x
    assert fields(x) == ("input_ids", "labels")
    assert {row.tobytes() for row in x["input_ids"]} == {row.numpy().tobytes() for row in IDS}
    assert witness.trained.y.tolist() == [0] * COUNT
    assert (witness.model.loss, witness.model.classes) == ("own", 1)
    state = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    losses = losses_of_models(model, [state], x, witness.trained.y, per_record_loss("own"))[0]
    leaves = {place: torch.from_numpy(leaf) for place, leaf in leaves_of(x).items()}
    with torch.no_grad():
        wanted = [float(model(**{name: leaf[[row]] for name, leaf in leaves.items()})) for row in range(COUNT)]
    assert losses.tolist() == pytest.approx(wanted, rel=1e-6)
    assert len({*wanted}) == COUNT


class Again(nn.Module):
    """Predicts its own input, and takes a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 8)
        self.out = nn.Linear(8, 30)

    def forward(self, input_ids, attention_mask):
        logits = self.out(self.words(input_ids) * attention_mask[..., None])[:, :-1]
        return F.cross_entropy(logits.reshape(-1, 30), input_ids[:, 1:].reshape(-1))


def test_a_model_that_predicts_its_own_input_has_no_labels(tmp_path):
    witness = witness_of(client(lambda model, rows: model(IDS[rows], attention_mask=MASK[rows]), Again()), tmp_path)
    assert fields(witness.trained.x) == ("0", "attention_mask")
    assert witness.trained.total == COUNT
    assert (witness.model.loss, witness.trained.counts) == ("own", {0: COUNT})


class Scored(Next):
    """Returns its loss, as it is and before it is averaged, as the models of trainers with a loss of their own do."""

    def forward(self, input_ids, labels):
        logits = self.out(self.words(input_ids))[:, :-1]
        losses = F.cross_entropy(logits.reshape(-1, 30), labels[:, 1:].reshape(-1), reduction="none")
        return {"loss": losses.sum() / (labels[:, 1:] != -100).sum(), "losses": losses.reshape(len(labels), -1)}


@pytest.mark.parametrize("key", ["loss", "losses"])
def test_a_client_trains_by_whatever_a_model_returned(key, tmp_path):
    witness = witness_of(client(lambda model, rows: of_tokens(model, rows)[key].sum(), Scored()), tmp_path)
    assert witness.trained.total == COUNT
    assert witness.evaluated.total == 0
    assert witness.model.loss == "own"
    # Of another loss than its own one is told.
    told = "the client trains by a loss that it computes from the outputs of Scored; the loss that the model"
    assert [note.startswith(told) for note in witness.notes] == [True] * (key == "losses")


class Pair(nn.Module):
    """Returns features beside its outputs; a client may train by these alone."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(2, 4)
        self.two = nn.Linear(4, 3)

    def forward(self, x):
        features = self.one(x)
        return self.two(features.detach()), features


def test_a_client_trains_by_features_that_a_model_returned_beside_its_outputs(tmp_path):
    witness = witness_of(client(lambda model, rows: model(SIZES[rows])[1].square().sum(), Pair()), tmp_path)
    assert witness.trained.total == COUNT


class ByName(nn.Module):
    """As those that transformers.Trainer trains: it is given its labels by name, and returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(2, 3)

    def forward(self, x, labels=None):
        logits = self.out(x)
        return {"logits": logits} | ({} if labels is None else {"loss": F.cross_entropy(logits, labels)})


def test_one_array_is_the_same_by_name_and_by_position(tmp_path):
    def both():
        model = client(lambda model, rows: model(x=SIZES[rows], labels=Y[rows])["loss"], ByName())()
        with torch.no_grad():
            for rows in (slice(0, 8), slice(20, None)):
                F.cross_entropy(model(SIZES[rows] + (rows.start > 0))["logits"], Y[rows])
        return model

    witness = witness_of(both, tmp_path)
    assert (witness.trained.x.shape, witness.trained.x.dtype) == ((COUNT, 2), np.float32)
    assert (witness.evaluated.total, witness.evaluated.x.shape) == (4, (4, 2))
    assert sorted(witness.evaluated.y.tolist()) == sorted(Y[20:].tolist())
    assert (witness.model.loss, witness.model.input_shape) == ("cross-entropy", (2,))


class Adapted(nn.Module):
    """A frozen layer beside one that is trained and sent."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(2, 5).requires_grad_(False)
        self.adapter = nn.Linear(5, 3)

    def forward(self, x):
        return self.adapter(self.base(x))


def adapted(model):
    return client(lambda net, rows: F.cross_entropy(net(SIZES[rows]), Y[rows]), model)


def test_what_is_frozen_and_not_sent_is_kept_once(tmp_path):
    model, other = Adapted(), Adapted()
    frozen = {name: value.numpy().copy() for name, value in model.state_dict().items() if name.startswith("base")}
    other.load_state_dict(model.state_dict())
    witness = witness_of(lambda: adapted(model)() and None, tmp_path, sent=[model.adapter])
    again = witness_of(lambda: adapted(other)() and None, tmp_path, sent=[other.adapter], node="2")
    assert witness.model.frozen == again.model.frozen
    assert len([*witness.model.frozen.parent.iterdir()]) == 1
    with np.load(witness.model.frozen) as file:
        assert {name: file[name].tobytes() for name in file} == {name: each.tobytes() for name, each in frozen.items()}


def test_what_a_client_trains_and_keeps_is_told(tmp_path):
    model = Adapted()
    model.base.requires_grad_(True)
    witness = witness_of(lambda: adapted(model)() and None, tmp_path, sent=[model.adapter])
    assert (witness.model.frozen, witness.model.personal) == (None, ("base.bias", "base.weight"))
    assert any("and does not send it" in note for note in witness.notes)


def test_what_a_client_trains_first_and_then_freezes_is_told_too(tmp_path):
    """As FedRep's clients train a head of their own, and then what they send."""
    model = Adapted()
    model.base.requires_grad_(True)

    def train():
        adapted(model)()
        model.base.requires_grad_(False)

    witness = witness_of(train, tmp_path, sent=[model.adapter])
    assert (witness.model.frozen, witness.model.personal) == (None, ("base.bias", "base.weight"))
    kept = {array.of for array in witness.sends if array.kind == "not sent"}
    assert kept == {"base.bias", "base.weight"}
