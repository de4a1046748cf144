"""What clients are kept from training on is not trained on, with its label, and everything else is as before."""

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from sklearn.linear_model import SGDClassifier
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

from fedattack.witness import HoldOut, trained_on
from fedattack.witness.sample import hash_rows
from tests.witness.apps import hashes_of, seed, seen, witness_of

COUNT, FEATURES, CLASSES, SIZE = 60, 6, 3, 8
X = torch.randn(COUNT, FEATURES, generator=torch.Generator().manual_seed(1))
Y = torch.arange(COUNT) % CLASSES
HOLD_OUT = HoldOut(0.25, seed=5)


class Net(nn.Module):
    """Notes what it takes in training."""

    def __init__(self, out=CLASSES):
        super().__init__()
        self.layer = nn.Linear(FEATURES, out)
        self.took = []

    def forward(self, x):
        if self.training:
            self.took += [row.numpy().tobytes() for row in x.detach()]
        return self.layer(x)


def classified(model, x, y):
    return F.cross_entropy(model(x), y)


def rebuilt(model, x, y):
    return (model(x) - x).square().mean()


def weighed(model, x, y):
    """A loss that no hook knows, of two tensors beside the output."""
    scores = model(x).log_softmax(1)
    return -(scores[torch.arange(len(x)), y] * (1 + x[:, 0].abs())).mean()


STEPS = {"a known loss": (classified, CLASSES), "an autoencoder": (rebuilt, FEATURES), "its own": (weighed, CLASSES)}


def train(step, out, size=SIZE, x=X, y=Y):
    seed(2)
    model = Net(out)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch_x, batch_y in [*DataLoader(TensorDataset(x, y), batch_size=size, shuffle=True)] * 2:
        optimizer.zero_grad()
        step(model, batch_x, batch_y).backward()
        optimizer.step()
    return model


def test_the_share_is_held_out_whoever_holds_it():
    hashes = [bytes([value % 256, value // 256]) for value in range(20_000)]
    chosen = HoldOut(0.1).choose(hashes)
    assert abs(chosen.mean() - 0.1) < 4 * np.sqrt(0.09 / len(hashes))
    assert (HoldOut(0.1).choose(hashes[::-1])[::-1] == chosen).all()
    assert (HoldOut(0.1, seed=1).choose(hashes) != chosen).any()
    assert not HoldOut(0.0).choose(hashes).any()
    # A witness keeps the examples of the smallest hashes, of which no more are held out than of others.
    smallest = np.argsort(hashes)[:2000]
    assert abs(chosen[smallest].mean() - 0.1) < 4 * np.sqrt(0.09 / len(smallest))


@pytest.mark.parametrize("name", STEPS)
def test_what_is_held_out_is_seen_and_never_trained_on(name, tmp_path):
    step, out = STEPS[name]
    models = []

    def client():
        models.append(train(step, out))
        return models[0]

    witness = witness_of(client, tmp_path, hold_out=HOLD_OUT)
    took, rows = {*models[0].took}, [row.numpy().tobytes() for row in X]
    never = [at for at, row in enumerate(rows) if row not in took]
    assert COUNT / 8 < len(never) < COUNT / 2
    assert witness.trained.total == COUNT - len(never)
    assert witness.evaluated.total == len(never)
    kept = witness.evaluated.x["0"] if witness.evaluated.x.dtype.names else witness.evaluated.x
    assert {row.tobytes() for row in kept} == {rows[at] for at in never}
    assert witness.training.epochs == 2
    assert any("--hold-out kept a share of 0.25 of its examples from its training" in note for note in witness.notes)


def test_labels_stay_with_their_examples(tmp_path):
    witness = witness_of(lambda: train(classified, CLASSES), tmp_path, hold_out=HOLD_OUT)
    labels = {row.numpy().tobytes(): int(label) for row, label in zip(X, Y, strict=True)}
    for role in (witness.trained, witness.evaluated):
        assert [labels[row.tobytes()] for row in role.x] == role.y.tolist()


def by_hand(step, out, chosen):
    """The slow, obvious way: the rows that are held out are copied over before the batch is used."""

    def replaced(model, x, y):
        mask = torch.from_numpy(chosen(x))
        kept = torch.arange(len(x))[~mask]
        if not len(kept):
            return step(model, x, y)
        order = torch.arange(len(x))
        order[mask] = kept.repeat(len(x))[: int(mask.sum())]
        return step(model, x[order], y[order])

    return train(replaced, out)


@pytest.mark.parametrize("name", STEPS)
def test_training_is_that_on_the_others_alone(name, tmp_path):
    step, out = STEPS[name]
    models = []

    def client():
        models.append(train(step, out))
        return models[0]

    witness_of(client, tmp_path, hold_out=HOLD_OUT)
    took = {*models[0].took}
    never = lambda x: np.array([row.numpy().tobytes() not in took for row in x])  # noqa: E731
    expected = by_hand(step, out, never)
    for one, other in zip(models[0].parameters(), expected.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_a_model_that_returns_its_loss(tmp_path):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Net()

        def forward(self, inputs, labels):
            scores = self.inner(inputs)
            return {"loss": F.cross_entropy(scores, labels), "logits": scores}

    made = []

    def client():
        seed(2)
        model = Own()
        made.append(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in DataLoader(TensorDataset(X, Y), batch_size=SIZE):
            optimizer.zero_grad()
            model(inputs=x, labels=y)["loss"].backward()
            optimizer.step()
        return model

    witness = witness_of(client, tmp_path, hold_out=HOLD_OUT)
    took = {*made[0].inner.took}
    assert witness.trained.total == len(took) < COUNT
    assert witness.evaluated.total == COUNT - len(took)


def test_evaluation_is_left_alone(tmp_path):
    def client():
        model = train(classified, CLASSES)
        model.took.clear()
        with torch.no_grad():
            model(X)
        client.took = list(model.took)
        return model

    witness_of(client, tmp_path, hold_out=HOLD_OUT)
    assert client.took == [row.numpy().tobytes() for row in X]


def test_batches_of_one_example_are_trained_on_and_said(tmp_path):
    witness = witness_of(lambda: train(classified, CLASSES, size=1), tmp_path, hold_out=HOLD_OUT)
    assert witness.trained.total == COUNT
    assert not witness.evaluated.total
    assert any("nothing is held out of batches of one example" in note for note in witness.notes)


def test_an_estimator_is_fitted_on_the_others(tmp_path):
    class Noting(SGDClassifier):
        def partial_fit(self, X, y, classes=None, sample_weight=None):
            self.took = X.copy(), y.copy(), sample_weight.copy()
            return super().partial_fit(X, y, classes=classes, sample_weight=sample_weight)

    x, y, weights = X.numpy(), Y.numpy(), np.arange(COUNT, dtype=float)
    made = Noting(loss="log_loss", random_state=0)

    def client():
        made.partial_fit(x, y, np.arange(CLASSES), sample_weight=weights)

    witness = witness_of(client, tmp_path, hold_out=HOLD_OUT)
    assert 0 < witness.evaluated.total < COUNT / 2
    assert seen(witness.trained) | seen(witness.evaluated) == hashes_of(x)
    assert not seen(witness.trained) & seen(witness.evaluated)
    # The subclass's own method is the outermost one, so that it is handed what is left.
    rows = made.took[2].astype(int)
    assert (made.took[0] == x[rows]).all()
    assert (made.took[1] == y[rows]).all()
    assert {*hash_rows(x[rows], 0)} == seen(witness.trained)


@pytest.mark.parametrize("made_before", [False, True])
def test_nothing_is_held_out_of_dp_sgd(tmp_path, made_before):
    def make():
        seed(2)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(X, Y), batch_size=SIZE)
        engine = PrivacyEngine()
        return model, *engine.make_private(
            module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
        )

    made = make() if made_before else None

    def client():
        model, private, optimizer, loader = made or make()
        for x, y in loader:
            if len(x):
                optimizer.zero_grad()
                F.cross_entropy(private(x), y).backward()
                optimizer.step()
        return model

    witness = witness_of(client, tmp_path, hold_out=HOLD_OUT)
    assert not witness.evaluated.total
    assert any("nothing is held out of DP-SGD" in note for note in witness.notes)
    assert not any("of its examples from its training" in note for note in witness.notes)


def test_what_a_client_states_is_whole(tmp_path):
    def client():
        trained_on(X.numpy(), Y.numpy())

    witness = witness_of(client, tmp_path, hold_out=HOLD_OUT)
    assert witness.trained.total == COUNT
    assert any("nothing of that is held out" in note for note in witness.notes)
