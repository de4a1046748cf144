"""What PyTorch does is seen as it is, or noted as not seen; the data itself is the oracle."""

import copy
import pickle
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.functional import cross_entropy as imported_by_name
from torch.utils.data import DataLoader, TensorDataset

from fedattack.apps.holding import find_unasked
from fedattack.attacks import Knowledge, ModelKnowledge, read_knowledge, write_knowledge
from fedattack.base.structured import fields
from fedattack.witness import sources, torch_models
from fedattack.witness.current import watching
from fedattack.witness.node import NO_TRAINING
from fedattack.witness.seen import CONDITIONAL, DISCRIMINATOR, GENERATOR
from fedattack.witness.watch import CallWatch
from tests.witness.apps import hashes_of, randomness, seed, seen, witness_of

X = torch.rand(40, 6, generator=torch.Generator().manual_seed(1))
Y = torch.arange(40) % 4
OTHER = torch.rand(20, 6, generator=torch.Generator().manual_seed(2))


class Net(nn.Module):
    def __init__(self, hidden: int = 5, *, act: str = "relu") -> None:
        super().__init__()
        self.act = getattr(torch, act)
        self.one = nn.Linear(6, hidden)
        self.two = nn.Linear(hidden, 4)

    def forward(self, x):
        return self.two(self.act(self.one(x)))


class Holding(Net):
    def __init__(self, loss=F.cross_entropy) -> None:
        super().__init__()
        self.loss = loss


def batches(size=8):
    return torch.arange(len(Y)).split(size)


def fit(model=None, loss=lambda out, y: F.cross_entropy(out, y), epochs=1, optimizer=torch.optim.SGD, **options):
    """Train, and return the model."""
    seed(5)
    model = Net() if model is None else model
    optimizer = optimizer(model.parameters(), lr=0.1, **options)
    for _ in range(epochs):
        for rows in batches():
            optimizer.zero_grad()
            loss(model(X[rows]), Y[rows]).backward()
            optimizer.step()
    return model


def state(model):
    return [value.numpy().tobytes() for value in model.state_dict().values()]


def check_all(witness):
    assert seen(witness.trained) == hashes_of(X)
    labels = {row.numpy().tobytes(): int(label) for row, label in zip(X, Y, strict=True)}
    assert [labels[row.tobytes()] for row in witness.trained.x] == witness.trained.y.tolist()


LOSSES = {
    "module": (nn.CrossEntropyLoss(), "cross-entropy"),
    "functional": (lambda out, y: F.cross_entropy(out, y), "cross-entropy"),
    "by name": (lambda out, y: imported_by_name(out, y), "cross-entropy"),
    "keywords": (lambda out, y: F.cross_entropy(target=y, input=out), "cross-entropy"),
    "one-hot": (lambda out, y: F.cross_entropy(out, F.one_hot(y, 4).float()), "cross-entropy"),
    "nll of log-softmax": (lambda out, y: F.nll_loss(out.log_softmax(1), y), "cross-entropy"),
    "nll of something else": (lambda out, y: F.nll_loss(out, y), None),
    "margin": (lambda out, y: F.multi_margin_loss(out, y), None),
}


@pytest.mark.parametrize("name", LOSSES)
def test_labels_and_loss_are_seen_through_any_loss_of_pytorch(name, tmp_path):
    loss, spec = LOSSES[name]
    witness = witness_of(lambda: fit(loss=loss), tmp_path)
    check_all(witness)
    assert witness.model.loss == spec
    assert ("has no name" in witness.model.why) is (spec is None)
    assert witness.trained.counts == dict.fromkeys(range(4), 10)


def test_a_loss_that_somebody_holds_is_seen_and_goes_into_a_pickle(tmp_path):
    held = Holding()
    plain = state(fit(loss=F.cross_entropy))
    kept, pickles = [], []

    def client():
        seed(5)
        kept.append(fit(Holding(), loss=held.loss))
        pickles.append(pickle.loads(pickle.dumps(copy.deepcopy(kept[0]))))  # noqa: S301 - it is this test's own
        return kept[0]

    check_all(witness_of(client, tmp_path))
    assert state(kept[0]) == state(pickles[0]) == plain
    assert pickles[0].loss is held.loss is F.cross_entropy


def test_a_regression_and_a_loss_of_the_projects_own(tmp_path):
    target = X.sum(dim=1)

    def client(loss):
        model = nn.Linear(6, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        loss(model(X).squeeze(1), target).backward()
        optimizer.step()
        return model

    seen_loss = witness_of(lambda: client(F.mse_loss), tmp_path)
    assert (seen_loss.model.loss, seen_loss.training.optimizer) == ("mse", "Adam")
    assert seen_loss.trained.y.dtype == np.float32
    assert sorted(seen_loss.trained.y) == pytest.approx(sorted(target.tolist()))
    assert seen_loss.trained.counts == {}
    own = witness_of(lambda: client(lambda out, y: (out - y).square().mean()), tmp_path, node="2")
    # Only the project knows this loss: an example is all that a step takes.
    assert set(own.trained.y) == {0}
    rows = {row.tobytes() for row in np.column_stack([X, target])}
    assert {np.column_stack([one["0"][None], one["met0"]]).tobytes() for one in own.trained.x} == rows
    assert own.model.loss is None
    assert own.model.why.startswith("no loss of PyTorch with one label for each example was seen of Linear")


def twins(model, rows):
    """As SimCLR does: two views in one batch, each against all others; the targets are places."""
    views = F.normalize(model(torch.cat([X[rows], X[rows] + 0.01])), dim=1)
    alike = (views @ views.T).masked_fill(torch.eye(len(views), dtype=torch.bool), -1e9)
    return F.cross_entropy(alike, torch.arange(len(views)).roll(len(rows)))


def halves(model, rows):
    return F.cross_entropy(model(X[rows]) @ model(X[rows] + 0.01).T, torch.arange(len(rows)))


def distances(model, rows):
    out = model(X[rows])
    return F.mse_loss(torch.cdist(out, out), torch.ones(len(rows), len(rows)))


@pytest.mark.parametrize("loss", [twins, halves, distances], ids=lambda loss: loss.__name__)
def test_places_in_a_batch_are_no_labels_of_examples_that_are_compared_with_each_other(loss, tmp_path):
    def client():
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for rows in batches():
            loss(model, rows).backward()
            optimizer.step()
        return model

    witness = witness_of(client, tmp_path)
    assert witness.model.loss is None
    assert {*witness.trained.y} == {0}
    assert any(
        "compares the outputs of Net with each other, as contrastive losses do" in note for note in witness.notes
    )


def test_rows_against_the_classes_of_another_model_have_labels(tmp_path):
    def client():
        model, texts, words = Net(), Net(), torch.rand(4, 6)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for rows in batches(4):
            F.cross_entropy(model(X[rows]) @ texts(words).T, Y[rows].flip(0)).backward()
            optimizer.step()
        return model

    witness = witness_of(client, tmp_path)
    assert {*witness.trained.y} == {0, 1, 2, 3}
    assert not any("compares the outputs" in note for note in witness.notes)


def test_weights_and_random_states_are_the_same_bit_for_bit(tmp_path):
    def client():
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 4))
        return fit(model, epochs=2, momentum=0.9, weight_decay=0.01)

    seed(9)
    plain, after = state(client()), randomness()
    seed(9)
    kept = []
    witness = witness_of(lambda: kept.append(client()) or kept[0], tmp_path)
    assert (state(kept[0]), randomness()) == (plain, after)
    training = witness.training
    assert (training.lr, training.momentum, training.weight_decay) == (0.1, 0.9, 0.01)
    assert (training.steps, training.epochs, training.batch_sizes) == (10, 2.0, (8,))
    assert witness.model.spec is None  # nothing makes it but this test


@pytest.mark.parametrize(
    ("optimizer", "options", "told"),
    [
        (torch.optim.AdamW, {"betas": [0.9, 0.999], "fused": False}, "AdamW"),
        (torch.optim.Adam, {"betas": (0.8, 0.999)}, "Adam of betas=(0.8, 0.999)"),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}, "SGD of nesterov=True"),
    ],
)
def test_numbers_of_an_optimizer_that_are_not_the_usual_ones_are_told(optimizer, options, told, tmp_path):
    witness = witness_of(lambda: fit(optimizer=optimizer, **options), tmp_path)
    assert (witness.training.optimizer, witness.training.lr) == (told, 0.1)


def test_evaluation_is_kept_apart(tmp_path):
    def client():
        model = fit()
        model.eval()
        model(OTHER[:10])  # forgot no_grad
        with torch.no_grad():
            F.cross_entropy(model(OTHER[10:]), Y[:10])
            model(X)
        return model

    witness = witness_of(client, tmp_path)
    check_all(witness)
    assert seen(witness.evaluated) == hashes_of(OTHER)
    assert sorted(set(witness.evaluated.y)) == [-1, 0, 1, 2, 3]
    # What is trained on in a later round is no longer evaluated only.
    later = witness_of(lambda: fit(nn.Linear(6, 4), loss=lambda out, y: F.cross_entropy(out, y)), tmp_path)
    assert seen(later.evaluated) == hashes_of(OTHER)


def test_all_up_to_the_last_that_is_listed_are_listed(tmp_path):
    """Of the first round fewer are kept, since it is evaluated, too, in a way that might have been training."""
    others = torch.rand(200, 6, generator=torch.Generator().manual_seed(3))

    def client(x, evaluates):
        model = nn.Linear(6, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if evaluates:
            F.cross_entropy(model(others), torch.arange(len(others)) % 4)
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.arange(len(x)) % 4).backward()
        optimizer.step()
        return model

    witness_of(lambda: client(X, True), tmp_path, keep=20)
    witness = witness_of(lambda: client(OTHER[:8], False), tmp_path, keep=20)
    trained = hashes_of(X) | hashes_of(OTHER[:8])
    assert witness.trained.total == len(trained)
    assert {key for key in trained if key <= max(seen(witness.trained))} == seen(witness.trained)


def test_a_model_is_rebuilt_by_what_it_was_made_with(tmp_path):
    plain = witness_of(fit, tmp_path)
    assert plain.model.spec == f"{__name__}:Net"
    assert plain.model.arguments == {}
    wide = witness_of(lambda: fit(copy.deepcopy(Net(9, act="tanh"))), tmp_path, node="2")
    assert wide.model.spec == f"{__name__}:Net"
    assert wide.model.arguments == {"hidden": 9, "act": "tanh"}

    class Inner(Net):
        pass

    inner = witness_of(lambda: fit(Inner(11)), tmp_path, node="3")
    assert inner.model.spec is None
    assert "is known by which Inner is made" in inner.model.why
    assert "give a function without arguments that makes it" in inner.model.why
    # Two that have the same shapes, and compute other things.
    both = witness_of(lambda: (Net(13), fit(Net(13, act="tanh")))[1], tmp_path, node="4")
    assert both.model.spec is None
    assert "more than one way" in both.model.why


class Main(Net):
    """As if it stood in the script that is run."""


def test_a_model_of_the_script_that_is_run_has_no_import_path(tmp_path, monkeypatch):
    monkeypatch.setattr(Main, "__module__", "__main__")
    witness = witness_of(lambda: fit(Main(5)), tmp_path)
    assert witness.model.spec is None
    assert "is known by which Main is made" in witness.model.why


class Active(nn.Module):
    def __init__(self, act=torch.relu) -> None:
        super().__init__()
        self.act = act
        self.one = nn.Linear(6, 4)

    def forward(self, x):
        return self.act(self.one(x))


def test_a_model_whose_arguments_are_not_known_is_not_taken_for_another(tmp_path):
    # Other tests make such models, too.
    torch_models._made.pop(Active, None)
    assert witness_of(lambda: fit(Active()), tmp_path).model.spec == f"{__name__}:Active"
    # Both have the same names and shapes.
    assert witness_of(lambda: fit(Active(torch.tanh)), tmp_path, node="2").model.spec is None
    torch_models._made.clear()
    assert witness_of(lambda: fit(Active(torch.tanh)), tmp_path, node="3").model.spec is None


class Sizes(nn.Module):
    def __init__(self, sizes) -> None:
        super().__init__()
        self.one = nn.Linear(6, sizes[0])
        self.sizes = sizes

    def forward(self, x):
        return self.one(x)


class Joined(Sizes):
    def __init__(self, sizes) -> None:
        # A list cannot be joined to a tuple.
        super().__init__((*sizes, 4) if isinstance(sizes, list) else sizes + (4,))  # noqa: RUF005


class Restless(Net):
    """Sets all random states when it is made, and makes no second one."""

    made = 0

    def __init__(self, hidden: int = 17) -> None:
        type(self).made += 1
        if type(self).made > 1:
            seed(77)
            raise SystemExit("one is enough")
        super().__init__(hidden)


def test_a_constructor_that_exits_or_sets_random_states_does_not_reach_the_app(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "_queued_calls", ["the project's own"])
    monkeypatch.setattr(Restless, "made", 0)
    states = []
    witness = witness_of(lambda: (fit(Restless()), states.append(randomness()))[0], tmp_path)
    assert Restless.made > 1
    assert randomness() == states[0]
    assert torch.cuda._queued_calls == ["the project's own"]
    check_all(witness)
    assert witness.model.spec is None


class Strict(Sizes):
    def __init__(self, sizes) -> None:
        super().__init__(sizes + (4,))  # noqa: RUF005


@pytest.mark.parametrize(
    ("kind", "sizes", "arguments"),
    [
        (Sizes, [4, 2], {"sizes": [4, 2]}),
        (Joined, (4, 2), {"sizes": [4, 2]}),
        # None of these could be built again from what is written down.
        (Strict, (4, 2), None),
        (Sizes, {0: 4}, None),
        (Sizes, [4, [2]], None),
        (Sizes, [4, float("inf")], None),
        (Sizes, [4, 2**60], None),
    ],
)
def test_arguments_are_those_that_knowledge_can_hold(kind, sizes, arguments, tmp_path):
    torch_models._made.clear()
    witness = witness_of(lambda: fit(kind(sizes)), tmp_path)
    assert witness.trained.total == len(X)
    assert (witness.model.spec, witness.model.arguments) == (
        (None, {}) if arguments is None else (f"{__name__}:{kind.__name__}", arguments)
    )
    if witness.model.spec is not None:
        model = ModelKnowledge(witness.model.spec, (6,), 4, arguments=witness.model.arguments)
        write_knowledge(tmp_path, Knowledge(model=model))
        assert read_knowledge(tmp_path, trusted={witness.model.spec}).model == model


def test_gradients_that_are_added_up_and_one_that_never_becomes_a_step(tmp_path):
    def client():
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number, rows in enumerate(batches()):
            F.cross_entropy(model(X[rows]), Y[rows]).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
        return model

    witness = witness_of(client, tmp_path)
    assert seen(witness.trained) == hashes_of(X[:32])
    assert (witness.training.steps, witness.training.batch_sizes) == (2, (8,))
    assert witness.training.together == 2.0
    assert "a step of the optimizer takes 2 batches" in witness.notes[0]
    assert witness.evaluated.total == 0


def test_gradients_that_are_thrown_away_train_nothing(tmp_path):
    def client():
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        F.cross_entropy(model(X[:8]), Y[:8]).backward()
        optimizer.zero_grad()
        attacked = X[8:16].clone().requires_grad_()
        F.cross_entropy(model(attacked), Y[8:16]).backward()
        model.zero_grad()
        F.cross_entropy(model(X[16:]), Y[16:]).backward()
        optimizer.step()
        return model

    witness = witness_of(client, tmp_path)
    assert seen(witness.trained) == hashes_of(X[16:])


def test_more_batches_than_are_waited_for_add_up_to_one_step(tmp_path, monkeypatch):
    monkeypatch.setattr("fedattack.witness.batches._PENDING", 2)

    def client(steps):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for rows in batches():
            F.cross_entropy(model(X[rows]), Y[rows]).backward()
        if steps:
            optimizer.step()
        else:
            optimizer.zero_grad()
            F.cross_entropy(model(X[:3]), Y[:3]).backward()
            optimizer.step()
        return model

    witness = witness_of(lambda: client(True), tmp_path)
    check_all(witness)
    assert (witness.training.steps, witness.training.epochs, witness.training.batch_sizes) == (1, 1.0, (8,))
    thrown_away = witness_of(lambda: client(False), tmp_path, node="2")
    assert seen(thrown_away.trained) == hashes_of(X[:3])


def test_what_a_loop_writes_into_its_input_afterwards_changes_nothing(tmp_path):
    def client():
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = torch.empty(8, 6), torch.empty(8, dtype=torch.int64)
        for rows in batches():
            x.copy_(X[rows])
            y.copy_(Y[rows])
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            x.zero_()
            y.zero_()
        return model

    check_all(witness_of(client, tmp_path))


@pytest.mark.parametrize("clear", [True, False])
def test_steps_by_hand_train_on_every_batch(clear, tmp_path, monkeypatch):
    # As many batches as are waited for are fewer than there are.
    monkeypatch.setattr("fedattack.witness.batches._PENDING", 2)

    def client():
        model = Net()
        for rows in batches():
            if clear:
                model.zero_grad()
            loss = F.cross_entropy(model(X[rows]), Y[rows])
            gradients = torch.autograd.grad(loss, [*model.parameters()])
            with torch.no_grad():
                for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                    parameter -= 0.1 * gradient
        with torch.no_grad():
            F.cross_entropy(model(X), Y)
        return model

    witness = witness_of(client, tmp_path, stated=len(X))
    check_all(witness)
    assert witness.evaluated.total == 0
    assert (witness.training, any("no optimizer of PyTorch" in note for note in witness.notes)) == (None, True)


def test_inputs_with_a_gradient_of_their_own_are_trained_on(tmp_path):
    def client():
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for rows in batches():
            x = X[rows].requires_grad_()
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), Y[rows])
            (penalty,) = torch.autograd.grad(loss, x, create_graph=True)
            (loss + penalty.square().sum()).backward()
            optimizer.step()
        return model

    witness = witness_of(client, tmp_path)
    check_all(witness)
    assert witness.evaluated.total == 0


def test_inputs_that_are_changed_against_the_model_are_not_only_evaluated_on(tmp_path):
    """What is trained on is the changed one; whoever holds it holds the unchanged one, too."""

    def client():
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for rows in batches():
            x = X[rows].requires_grad_()
            (gradient,) = torch.autograd.grad(F.cross_entropy(model(x), Y[rows]), x)
            optimizer.zero_grad()
            F.cross_entropy(model((x + 0.1 * gradient.sign()).detach()), Y[rows]).backward()
            optimizer.step()
        return model

    witness = witness_of(client, tmp_path)
    assert witness.trained.total == len(X)
    assert not seen(witness.evaluated) & hashes_of(X)


def test_mixed_precision_with_a_step_that_is_skipped(tmp_path):
    def client():
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        for number, rows in enumerate(batches()):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(X[rows]), Y[rows])
            scaler.scale(loss * (float("inf") if number == 0 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
        return model

    witness = witness_of(client, tmp_path)
    assert seen(witness.trained) == hashes_of(X[8:])
    assert (witness.model.loss, witness.training.steps) == ("cross-entropy", 4)


def test_mixed_precision_with_a_scaler_that_is_off(tmp_path):
    def client():
        seed(7)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        for rows in batches():
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(X[rows]), Y[rows])
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return model

    plain, kept = state(client()), []
    witness = witness_of(lambda: kept.append(client()) or kept[0], tmp_path)
    assert state(kept[0]) == plain
    check_all(witness)
    assert (witness.model.loss, witness.training.steps, witness.notes) == ("cross-entropy", 5, ())


@pytest.mark.slow
def test_a_compiled_model_computes_the_same_and_is_seen(tmp_path):
    def client():
        model = Net()
        fit(torch.compile(model, backend="aot_eager"))
        return model

    seed(4)
    torch.compiler.reset()
    plain = state(client())
    seed(4)
    torch.compiler.reset()
    kept = []
    witness = witness_of(lambda: kept.append(client()) or kept[0], tmp_path)
    assert state(kept[0]) == plain
    check_all(witness)
    assert witness.model.spec == f"{__name__}:Net"


@pytest.mark.slow
def test_a_loader_with_workers_and_inputs_that_differ_each_time(tmp_path):
    class Flipped(TensorDataset):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return (x.flip(0) if torch.rand(()) < 0.5 else x), y

    def client(dataset, epochs):
        seed(6)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(epochs):
            for x, y in DataLoader(dataset, 8, shuffle=True, num_workers=2):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
        return model

    plain = state(client(TensorDataset(X, Y), 1))
    kept = []
    witness = witness_of(lambda: kept.append(client(TensorDataset(X, Y), 1)) or kept[0], tmp_path, stated=40)
    assert state(kept[0]) == plain
    check_all(witness)
    # One epoch of one round does not tell.
    assert witness.training.augmented is None
    flipped = witness_of(lambda: client(Flipped(X, Y), 4), tmp_path, stated=40, node="2")
    assert seen(flipped.trained) <= hashes_of(X) | hashes_of(X.flip(1))
    assert flipped.trained.total > 40
    assert flipped.training.augmented is True
    assert flipped.training.epochs == 4
    assert any("one input is asked about" in note for note in flipped.notes)
    # Both ways of an example are one.
    assert len(flipped.trained.places) == flipped.trained.total
    assert len({*flipped.trained.places.tolist()}) == 40
    assert sum(flipped.trained.counts.values()) == 40


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("changes", [True, False])
def test_places_in_a_loader_tell_views_from_examples_without_any_stated_number(workers, changes, tmp_path):
    class Shifted(TensorDataset):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return (x + torch.rand(()) if changes else x), y

    def client():
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(Shifted(X, Y), 8, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
        next(iter(loader))
        for _ in range(3):
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
        return model

    witness = witness_of(client, tmp_path)
    assert witness.trained.total == (120 if changes else 40)
    assert witness.training.augmented is changes
    assert witness.training.epochs == 3
    places = witness.trained.places
    assert len(places) == (120 if changes else 0)
    for place in {*places.tolist()}:
        views = witness.trained.x[places == place]
        assert np.ptp(views - views[:, :1], axis=0).max() < 1e-5
    assert sum(witness.trained.counts.values()) == 40


def test_who_draws_other_examples_in_each_round_augments_none(tmp_path):
    """As FedBN's clients do: what stands at one place of their loaders is one example now, and another then."""

    def client(rows):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in DataLoader(TensorDataset(X[rows], Y[rows]), 8):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        return model

    witness_of(lambda: client(slice(0, 16)), tmp_path, stated=16)
    witness = witness_of(lambda: client(slice(17, 33)), tmp_path, stated=16)
    assert seen(witness.trained) == hashes_of(X[:16]) | hashes_of(X[17:33])
    assert len(witness.trained.places) == 0
    assert sum(witness.trained.counts.values()) == 32
    assert any("or are others in each round" in note for note in witness.notes)


def test_augmentation_of_one_epoch_a_round_shows_in_the_next_round(tmp_path):
    def client(shift):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        F.cross_entropy(model(X + shift), Y).backward()
        optimizer.step()
        return model

    assert witness_of(lambda: client(0), tmp_path, stated=40).training.augmented is None
    assert witness_of(lambda: client(1), tmp_path, stated=40).training.augmented is True
    assert witness_of(lambda: client(0), tmp_path, stated=40, node="2").training.augmented is None
    assert witness_of(lambda: client(0), tmp_path, stated=40, node="2").training.augmented is False


@pytest.mark.parametrize(
    ("y", "width", "loss", "used"),
    [
        # Of another mix of classes in each round, since the last ones are left out.
        (Y, 4, "cross_entropy", 32),
        (torch.zeros(40, dtype=torch.int64), 4, "cross_entropy", 40),
        (torch.linspace(0, 1, 40)[:, None], 1, "mse_loss", 40),
    ],
)
@pytest.mark.parametrize("changes", [True, False])
def test_augmentation_shows_in_the_next_round_whatever_the_labels(y, width, loss, used, changes, tmp_path):
    generator = torch.Generator().manual_seed(0)

    def client():
        model = nn.Linear(6, width)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rows = torch.randperm(40, generator=generator)[:used]
        shift = 0.01 * torch.rand(used, 6, generator=generator) if changes else 0
        getattr(F, loss)(model(X[rows] + shift), y[rows]).backward()
        optimizer.step()
        return model

    assert witness_of(client, tmp_path, stated=40).training.augmented is None
    assert (witness_of(client, tmp_path, stated=40).training.augmented is True) == changes


@pytest.mark.parametrize(
    ("changes", "epochs", "stated", "augmented"),
    [
        # Batches, steps, or the size of another set, in the place of the number of examples.
        (False, 3, 5, False),
        (False, 3, 15, False),
        (False, 3, 12, False),
        # It might be 20 examples, each in two ways.
        (False, 3, 20, None),
        (False, 3, 1, False),
        (False, 3, None, False),
        (False, 1, 5, None),
        (True, 3, 5, None),
        (True, 3, 15, None),
        (True, 3, 40, True),
        (True, 30, 40, True),
    ],
)
def test_a_stated_number_is_believed_where_it_fits_what_was_seen(changes, epochs, stated, augmented, tmp_path):
    generator = torch.Generator().manual_seed(0)

    def client():
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(epochs):
            for rows in batches(10 if stated == 20 else 8):
                optimizer.zero_grad()
                shift = 0.01 * torch.rand(len(rows), 6, generator=generator) if changes else 0
                F.cross_entropy(model(X[rows] + shift), Y[rows]).backward()
                optimizer.step()
        return model

    training = witness_of(client, tmp_path, stated=stated).training
    assert training.augmented is augmented
    assert training.epochs == (epochs if augmented or not changes else 1)
    again = witness_of(client, tmp_path, stated=stated).training
    # Inputs that are all new, and as many as before, tell more than any statement.
    assert again.augmented is (True if changes else None if stated == 20 else False)
    # Of those nobody knows how many examples there are, unless the client states it.
    assert again.epochs == (epochs if stated == 40 or not changes else None)


def test_of_two_models_the_one_that_is_shared_counts(tmp_path):
    def client():
        seed(3)
        judge, maker = nn.Linear(6, 1), nn.Linear(3, 6)
        steps = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (judge, maker)]
        noise = torch.rand(8, 3)
        steps[0].zero_grad()
        F.binary_cross_entropy_with_logits(judge(X), torch.ones(40, 1)).backward()
        F.binary_cross_entropy_with_logits(judge(maker(noise).detach()), torch.zeros(8, 1)).backward()
        steps[0].step()
        steps[1].zero_grad()
        F.binary_cross_entropy_with_logits(judge(maker(noise)), torch.ones(8, 1)).backward()
        steps[1].step()
        return judge, maker, noise

    kept = []
    alone = witness_of(lambda: kept.append(client()), tmp_path)
    # What the maker takes is noise, and what it makes nobody holds.
    assert seen(alone.trained) == hashes_of(X)
    assert alone.evaluated.total == 0
    judge, maker, _ = kept[0]
    shared = witness_of(client, tmp_path, sent=[judge], node="2")
    assert seen(shared.trained) == hashes_of(X)
    assert shared.trained.counts == {1: 40}
    other = witness_of(client, tmp_path, sent=[maker], node="3")
    # Who sends the maker alone trains it on what the judge takes.
    assert seen(other.trained) == hashes_of(X)
    assert other.evaluated.total == 0
    assert (other.model.spec, other.model.why) == (None, GENERATOR)
    assert {array.name: array.kind for array in other.sends} == {
        "0": "weights of another model",
        "1": "weights of another model",
        "weight": "not sent",
        "bias": "not sent",
    }


def test_of_two_models_that_have_nothing_to_do_with_each_other_none_is_taken(tmp_path):
    def client():
        for width in (6, 3):
            model = nn.Linear(width, 4)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            F.cross_entropy(model(X[:, :width]), Y).backward()
            optimizer.step()

    alone = witness_of(client, tmp_path)
    assert alone.trained.total == alone.evaluated.total == 0
    assert alone.model is None
    assert any("several models" in note for note in alone.notes)


def test_a_teacher_of_the_same_class_and_its_soft_labels(tmp_path):
    teacher = fit(epochs=2)

    def client():
        student = Net()
        optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
        with torch.no_grad():
            soft = teacher(X).softmax(1)
        out = student(X)
        (F.kl_div(out.log_softmax(1), soft, reduction="batchmean") + F.cross_entropy(out, Y)).backward()
        optimizer.step()
        return student

    check_all(witness_of(client, tmp_path))


def test_a_teacher_that_is_trained_first_is_not_the_student_that_is_sent(tmp_path):
    def client():
        teacher, student = fit(nn.Linear(6, 4)), nn.Linear(6, 4)
        optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
        with torch.no_grad():
            soft = teacher(OTHER).softmax(1)
        F.kl_div(student(OTHER).log_softmax(1), soft, reduction="batchmean").backward()
        optimizer.step()
        return student

    witness = witness_of(client, tmp_path)
    assert seen(witness.trained) == hashes_of(OTHER)
    # Labels that are probabilities are none, and the loss is none of those that have a name.
    assert set(witness.trained.y) == {-1}
    assert witness.model.loss is None
    assert any("was trained that the client does not exchange" in note for note in witness.notes)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 4)

    def forward(self, x, z):
        return self.layer(torch.cat([x, z.expand_as(x)], dim=1))


@pytest.mark.slow
def test_what_is_not_covered_becomes_a_note(tmp_path):
    lengths = witness_of(lambda: Two()(X, X[:1]), tmp_path)
    assert lengths.evaluated.total == 0
    assert lengths.notes[0].startswith("Two was called, and none of its training steps was read")

    class Asked(Net):
        def forward(self, x, how):
            return super().forward(x) if how else None

    spectra = witness_of(lambda: Net().to(torch.complex64).one(X.to(torch.complex64)), tmp_path, node="8")
    assert spectra.evaluated.total == 0
    assert spectra.notes[0].startswith("Linear was called with complex numbers")

    objects = witness_of(lambda: Asked()(X, object()), tmp_path, node="5")
    assert objects.evaluated.total == 0
    assert objects.notes[0].startswith("Asked was called, and none of its training steps was read")

    def by_hand():
        model = Net()
        F.cross_entropy(model(X), Y).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
        return model

    witness = witness_of(by_hand, tmp_path, node="2")
    check_all(witness)
    assert witness.training is None
    assert witness.notes[0].startswith("no optimizer of PyTorch made a step")
    never = witness_of(lambda: Net()(X).sum().backward(), tmp_path, trains=False, node="3")
    assert never.trained.total == 0

    class Shapeless(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(6))

        def forward(self, x):
            return (x * self.weight).sum()

    def time_first():
        model = nn.LSTM(6, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        outputs, _ = model(torch.rand(7, 5, 6))
        F.cross_entropy(outputs[-1], Y[:5]).backward()
        optimizer.step()
        return model

    sequences = witness_of(time_first, tmp_path, node="6")
    assert sequences.trained.total == 0
    assert "a step was not seen" in sequences.notes[0]
    assert "rows are not examples" in sequences.notes[0]

    def all_compiled():
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.compile(lambda x, y: F.cross_entropy(model(x), y), backend="aot_eager")(X, Y).backward()
        optimizer.step()
        return model

    compiled = witness_of(all_compiled, tmp_path, node="7")
    assert compiled.trained.total == 0
    assert "no training was seen" in compiled.notes[0]

    odd = witness_of(lambda: Shapeless()(X), tmp_path, node="4")
    assert odd.evaluated.total == 0
    assert "none of its training steps was read" in odd.notes[0]


def test_a_client_that_sends_back_what_it_got_is_not_said_to_train_unseen(tmp_path):
    model = Net()
    idle = witness_of(lambda: None, tmp_path, node="1", received=[model], sent=[model], stated=0)
    assert not any("no training was seen" in note for note in idle.notes)
    moved = witness_of(lambda: None, tmp_path, node="2", received=[model], sent=[Net()], stated=5)
    assert any("no training was seen" in note for note in moved.notes)


def test_a_source_that_fails_does_not_disturb_the_run(tmp_path, monkeypatch):
    from fedattack.witness import batches

    def broken(*arguments):
        raise RuntimeError("broken on purpose")

    plain = state(fit())
    monkeypatch.setattr(batches, "hash_rows", broken)
    kept = []
    witness = witness_of(lambda: kept.append(fit()) or kept[0], tmp_path)
    assert state(kept[0]) == plain
    assert witness.notes[0].endswith("was not seen (RuntimeError)")
    assert witness.trained.total == 0


def test_threads_that_the_client_starts_are_its_own_unless_there_are_other_clients(tmp_path):
    def client():
        kept = []
        thread = threading.Thread(target=lambda: kept.append(fit()))
        thread.start()
        thread.join()
        return kept[0]

    check_all(witness_of(client, tmp_path))
    with watching(CallWatch()) as other:
        witness = witness_of(client, tmp_path, node="2")
    assert witness.trained.total == 0
    assert "its client is not known" in witness.notes[0]
    assert not other.models


def test_clients_side_by_side_are_kept_apart(tmp_path):
    barrier = threading.Barrier(2)

    def client(part):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for rows in part.split(4):
            barrier.wait()
            F.cross_entropy(model(X[rows]), Y[rows]).backward()
            optimizer.step()
            optimizer.zero_grad()
        return model

    parts = torch.arange(40).split(20)
    threads = [
        threading.Thread(
            target=witness_of, args=(lambda part=part: client(part), tmp_path), kwargs={"node": str(index)}
        )
        for index, part in enumerate(parts)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    from fedattack.witness import read_witnesses

    for witness, part in zip(read_witnesses(tmp_path), parts, strict=True):
        assert seen(witness.trained) == hashes_of(X[part])


def scripted(outputs: torch.Tensor, y: torch.Tensor):
    return F.cross_entropy(outputs, y)


def test_what_pytorch_traces_exports_and_scripts_it_does_as_without(tmp_path):
    def client():
        model = Net()
        torch.export.export(model, (X,))
        torch.jit.trace(model, (X,))
        return fit(torch.jit.script(model), loss=torch.jit.script(scripted))

    seed(2)
    plain = state(client())
    seed(2)
    kept = []
    witness = witness_of(lambda: kept.append(client()) or kept[0], tmp_path)
    assert state(kept[0]) == plain
    # A scripted loss shows no labels.
    assert fields(witness.trained.x) == ("0",)
    assert sorted(witness.trained.x["0"].tolist()) == sorted(X.tolist())
    assert witness.evaluated.total == 0


def test_models_that_are_made_before_anybody_watches_are_known(tmp_path):
    sources.watch_imports()
    made = Net(21, act="tanh")
    witness = witness_of(lambda: fit(made), tmp_path)
    assert (witness.model.spec, witness.model.arguments) == (f"{__name__}:Net", {"hidden": 21, "act": "tanh"})


@pytest.mark.parametrize("by_hand", [False, True])
def test_gradients_that_are_thrown_away_and_come_again(tmp_path, by_hand):
    """Ghost clipping goes back twice: norms of gradients come first, and only the second time counts."""

    def client():
        seed(1)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for rows in batches():
            losses = F.cross_entropy(model(X[rows]), Y[rows], reduction="none")
            losses.mean().backward(retain_graph=True)
            model.zero_grad() if by_hand else optimizer.zero_grad()
            (losses * 0.5).sum().backward()
            if not by_hand:
                optimizer.step()
                continue
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
        return model

    witness = witness_of(client, tmp_path, stated=len(Y))
    check_all(witness)
    if not by_hand:
        assert (witness.training.epochs, witness.training.steps) == (1, len(batches()))


def test_private_training_by_opacus(tmp_path):
    from opacus import PrivacyEngine

    def client():
        seed(1)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        private, optimizer, loader = PrivacyEngine().make_private(
            module=model,
            optimizer=optimizer,
            data_loader=DataLoader(TensorDataset(X, Y), batch_size=8),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        for x, y in [batch for _ in range(8) for batch in loader]:
            optimizer.zero_grad()
            F.cross_entropy(private(x), y).backward()
            optimizer.step()
        return model

    plain = state(client())
    kept = []
    witness = witness_of(lambda: kept.append(client()) or kept[0], tmp_path, stated=40)
    assert state(kept[0]) == plain
    check_all(witness)
    assert (witness.model.spec, witness.training.augmented) == (f"{__name__}:Net", False)
    assert witness.training.optimizer == "private SGD"
    assert dict(witness.private) == {
        "mechanism": "dp-sgd",
        "unit": "example",
        "noise_multiplier": 1.0,
        "clip": 1.0,
        "sampling": 0.2,
        "sampling_method": "poisson",
        "steps": 40,
        "learning_rate": 0.1,
        "batch_size": 8,
        "remarks": "the client seeds its noise with a number below 2^32: whoever tries them all finds the noise",
    }


def test_hooks_are_put_in_once_and_taken_out_again():
    def hooked():
        return F.cross_entropy.__code__, nn.Module.__init__, nn.Module.__call__, torch.optim.Optimizer.zero_grad

    before = hooked()
    sources.install()
    during = hooked()
    sources.install()
    assert hooked() == during
    assert not {*during} & {*before}
    sources.remove()
    assert hooked() == before
    assert not [name for name in vars(F) if "fedattack" in name]


def gan(real, *, joined: bool, rounds: int = 3):
    """Train a discriminator on examples and on what a generator makes of noise; returns both."""
    generator, discriminator = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 6)), nn.Linear(6, 1)
    moves = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (generator, discriminator)]
    for _ in range(rounds):
        fakes = generator(torch.randn(len(real), 3))
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        moves[1].zero_grad()
        if joined:
            said = discriminator(torch.cat([real, fakes.detach()]))
            F.binary_cross_entropy_with_logits(said, torch.cat([ones, zeros])).backward()
        else:
            F.binary_cross_entropy_with_logits(discriminator(real), ones).backward()
            F.binary_cross_entropy_with_logits(discriminator(fakes.detach()), zeros).backward()
        moves[1].step()
        moves[0].zero_grad()
        F.binary_cross_entropy_with_logits(discriminator(fakes), ones).backward()
        moves[0].step()
    return generator, discriminator


@pytest.mark.parametrize("joined", [False, True])
def test_what_a_generator_makes_and_takes_are_no_examples(joined, tmp_path):
    real = torch.randn(10, 6, generator=torch.Generator().manual_seed(4))
    models = []
    witness = witness_of(lambda: models.extend(gan(real, joined=joined)), tmp_path, sent=models)
    assert seen(witness.trained) == hashes_of(real)
    assert witness.evaluated.total == 0
    (note,) = [note for note in witness.notes if "generator" in note]
    assert note.startswith(
        "Linear takes what Sequential makes, such as a generator's output, along with examples: that is left out"
    )


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("sent", [(0,), (1,), (0, 1)])
def test_examples_of_a_critic_are_told_from_noise_and_what_is_made(sent, is_first, tmp_path):
    """As in the training of WGAN, whose loss is none of PyTorch's."""
    own, models = torch.randn(10, 6, generator=torch.Generator().manual_seed(4)), []

    def train():
        maker, judge = models[:] = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 6)), nn.Linear(6, 1)
        moves = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        for rows in [*torch.randperm(10).split(5)] * 3:
            of_true = judge(own[rows]).mean() if is_first else 0
            fakes = maker(torch.randn(5, 3))
            moves[1].zero_grad()
            (judge(fakes.detach()).mean() - (of_true if is_first else judge(own[rows]).mean())).backward()
            moves[1].step()
            moves[0].zero_grad()
            (-judge(maker(torch.randn(5, 3))).mean()).backward()
            moves[0].step()
        models[:] = [models[index] for index in sent]

    witness = witness_of(train, tmp_path, sent=models)
    assert seen(witness.trained) == hashes_of(own)
    assert witness.trained.counts == {0: 10}
    assert witness.evaluated.total == 0
    assert witness.model.why == (GENERATOR if sent == (0,) else DISCRIMINATOR)


class Labelled(nn.Module):
    """Takes rows with a label each."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.classes, self.net = nn.Embedding(3, 2), nn.Linear(width + 2, out)

    def forward(self, x, labels):
        return self.net(torch.cat([x, self.classes(labels)], 1))


@pytest.mark.parametrize("order", [lambda: torch.arange(10), lambda: torch.randperm(10)])
@pytest.mark.parametrize("sent", [(0,), (1,), (0, 1)])
def test_models_that_are_trained_against_each_other_with_labels_are_named(sent, order, tmp_path):
    own, classes = torch.randn(10, 6, generator=torch.Generator().manual_seed(4)), torch.arange(10) % 3
    models = []

    def train():
        maker, judge = models[:] = Labelled(3, 6), Labelled(6, 1)
        moves = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        for _ in range(3):
            real, y = own[rows := order()], classes[rows]
            fakes = maker(torch.randn(10, 3), y)
            moves[1].zero_grad()
            ones, zeros = torch.ones(10, 1), torch.zeros(10, 1)
            F.binary_cross_entropy_with_logits(judge(real, y), ones).backward()
            F.binary_cross_entropy_with_logits(judge(fakes.detach(), y), zeros).backward()
            moves[1].step()
            moves[0].zero_grad()
            F.binary_cross_entropy_with_logits(judge(fakes, y), ones).backward()
            moves[0].step()
        models[:] = [models[index] for index in sent]

    witness = witness_of(train, tmp_path, sent=models)
    # Neither noise nor what is made is taken for an example.
    assert witness.trained.total == 0
    (note,) = [note for note in witness.notes if "not asked about" in note]
    assert note.startswith("Labelled takes what Labelled makes together with more, such as a label: nobody can tell wh")
    assert find_unasked([witness]).startswith(note)
    assert NO_TRAINING not in witness.notes
    assert (witness.model.spec, witness.model.why) == (None, CONDITIONAL)


def test_a_head_that_takes_features_beside_more_keeps_its_examples(tmp_path):
    x, y = torch.randn(10, 6, generator=torch.Generator().manual_seed(4)), torch.arange(10) % 3
    below, head = nn.Linear(6, 4), Labelled(4, 1)
    optimizer = torch.optim.SGD([*below.parameters(), *head.parameters()], lr=0.1)

    def train():
        for _ in range(3):
            optimizer.zero_grad()
            F.mse_loss(head(below(x), y)[:, 0], x.sum(1)).backward()
            optimizer.step()
        return head

    witness = witness_of(train, tmp_path, sent=[below, head])
    assert witness.trained.total
    assert not any("not asked about" in note for note in witness.notes)


def test_features_that_one_model_makes_for_another_stay_examples(tmp_path):
    x = torch.randn(10, 6, generator=torch.Generator().manual_seed(4))
    below, head = nn.Linear(6, 4), nn.Linear(4, 3)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)

    def train():
        with torch.no_grad():
            features = below(x)
        F.cross_entropy(head(features), torch.arange(10) % 3).backward()
        optimizer.step()
        return head

    witness = witness_of(train, tmp_path)
    with torch.no_grad():
        assert seen(witness.trained) == hashes_of(below(x))


def test_a_head_that_takes_what_a_body_makes_shows_the_labels_of_the_body_s_examples(tmp_path):
    """Of two models that are trained together, as one that is sent in two parts."""
    x = torch.randn(10, 6, generator=torch.Generator().manual_seed(4))
    y = torch.arange(10) % 3
    body, head = nn.Sequential(nn.Linear(6, 4), nn.Tanh()), nn.Linear(4, 3)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)

    def train():
        for _ in range(3):
            for rows in torch.arange(10).split(5):
                optimizer.zero_grad()
                F.cross_entropy(head(body(x[rows])), y[rows]).backward()
                optimizer.step()
        return body

    witness = witness_of(train, tmp_path)
    assert witness.trained.total == 10
    rows = {bytes(row.tobytes()): label for row, label in zip(x.numpy(), y.tolist(), strict=True)}
    (field,) = [name for name in witness.trained.x.dtype.names if witness.trained.x[name].ndim == 2]
    for example, label in zip(witness.trained.x[field], witness.trained.y, strict=True):
        assert rows[np.ascontiguousarray(example).tobytes()] == label


def test_a_batch_without_labels_takes_no_labels_of_others_away(tmp_path):
    """As of a client that first learns what others predict of public examples, and then its own."""
    x, public = torch.randn(10, 6), torch.randn(8, 6)
    y = torch.arange(10) % 3
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def call(distils: bool):
        def train():
            if distils:
                optimizer.zero_grad()
                F.mse_loss(model(public), torch.zeros(8, 3)).backward()
                optimizer.step()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            return model

        return train

    labelled: set = set()
    for distils in (False, True):
        witness = witness_of(call(distils), tmp_path, labelled=labelled)
    assert witness.trained.total == 18
    assert seen(witness.trained) == hashes_of(torch.cat([x, public]))
    assert sum(witness.trained.counts.values()) == 10
    assert witness.model.loss == "cross-entropy"
    assert not any("augmented" in note for note in witness.notes)
