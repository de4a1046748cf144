"""What Opacus really does becomes a claim: which batches, how many steps, how much noise; it trains for real."""

import warnings

import pytest
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from opacus.schedulers import ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, RandomSampler, TensorDataset, WeightedRandomSampler

from fedattack.claims.check import check_claim
from fedattack.claims.claim import make_claim
from fedattack.witness.private import REMARKS, remarks_of
from tests.witness.apps import hashes_of, seed, seen, witness_of

COUNT, SIZE = 40, 8
X = torch.rand(COUNT, 6, generator=torch.Generator().manual_seed(1))
Y = torch.arange(COUNT) % 4
DATA = TensorDataset(X, Y)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 5), nn.Linear(5, 4)

    def forward(self, x):
        return self.two(torch.relu(self.one(x)))


class FirstHalf(RandomSampler):
    """Draws the same half twice."""

    def __iter__(self):
        return iter([*range(COUNT // 2)] * 2)


def make(model, loader=None, *, accountant="prv", optimizer=torch.optim.SGD, lr=0.1, **options):
    """Make a model private; returns what the engine does, and the engine."""
    engine = PrivacyEngine(accountant=accountant)
    told = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, **options}
    loader = loader or DataLoader(DATA, batch_size=SIZE, shuffle=True)
    return *engine.make_private(
        module=model, optimizer=optimizer(model.parameters(), lr=lr), data_loader=loader, **told
    ), engine


def learn(net, optimizer, x, y, loss=F.cross_entropy):
    optimizer.zero_grad()
    loss(net(x), y).backward()
    optimizer.step()


def fit(*, epochs=3, stop=None, loader=None, **options):
    """Train, as most examples do; leave each epoch after so many batches."""
    torch.seed()
    model = Net()
    net, optimizer, batches, _ = make(model, loader, **options)
    for _ in range(epochs):
        for number, (x, y) in enumerate(batches):
            if number == stop:
                break
            learn(net, optimizer, x, y)
    return model


def private_of(client, folder, **options):
    return dict(witness_of(client, folder, **options).private)


def check(keys, epsilon, rounds=3):
    """Claim an ε of what was seen."""
    keys = {name: value for name, value in keys.items() if name != REMARKS}
    return check_claim(make_claim("seen", **keys, rounds=rounds, epsilon=epsilon, delta=1e-5))


POISSON = {
    "mechanism": "dp-sgd",
    "unit": "example",
    "noise_multiplier": 1.0,
    "clip": 1.0,
    "sampling": 0.2,
    "sampling_method": "poisson",
    "steps": 15,
    "learning_rate": 0.1,
    "batch_size": SIZE,
}


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ew"])
def test_poisson_batches(tmp_path, mode):
    witness = witness_of(lambda: fit(grad_sample_mode=mode), tmp_path, stated=COUNT)
    assert dict(witness.private) == POISSON
    assert witness.training.optimizer == "private SGD"
    assert (witness.model.spec, witness.model.loss) == (f"{__name__}:Net", "cross-entropy")
    assert seen(witness.trained) <= hashes_of(X)


def test_a_budget_of_the_engine_is_noise(tmp_path):
    found = []

    def client():
        torch.seed()
        model = Net()
        net, optimizer, loader = PrivacyEngine().make_private_with_epsilon(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(DATA, batch_size=SIZE),
            target_epsilon=4.0,
            target_delta=1e-5,
            epochs=3,
            max_grad_norm=1.0,
        )
        found.append(optimizer.noise_multiplier)
        for x, y in [batch for _ in range(3) for batch in loader]:
            learn(net, optimizer, x, y)
        return model

    keys = private_of(client, tmp_path)
    assert keys == POISSON | {"noise_multiplier": found[0]}
    assert check(keys, 4.0, rounds=1).verdict == "consistent"
    # The engine is made anew in each round, and knows of no other.
    assert check(keys, 4.0, rounds=3).verdict == "contradicted"


def test_shuffled_batches_are_no_poisson_batches(tmp_path):
    """What its engine counts as Poisson batches, 5.86 for three rounds, has an ε of 8.39."""
    keys = private_of(lambda: fit(epochs=1, poisson_sampling=False), tmp_path)
    assert keys == POISSON | {"sampling_method": "shuffled", "steps": 5, "epochs": 1}
    wrong, right = check(keys, 6.5), check(keys, 8.5)
    assert (wrong.verdict, right.verdict) == ("contradicted", "consistent")
    assert wrong.findings[0].value == pytest.approx(8.385, abs=1e-2)
    assert wrong.findings[0].message.high == pytest.approx(4.377, abs=1e-2)
    assert any(
        "with Poisson sampling ε of the run of 3 rounds would be 5.86" in note for note in wrong.findings[0].notes
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"loader": DataLoader(DATA, batch_size=SIZE)}, {"sampling_method": "in-order", "epochs": 3}),
        # Each pass may begin with the same example.
        ({"stop": 2}, {"sampling_method": "shuffled", "epochs": 3, "steps": 6}),
        (
            {"loader": DataLoader(DATA, batch_size=15, shuffle=True, drop_last=True)},
            {"sampling_method": "shuffled", "epochs": 3, "steps": 6, "sampling": 0.375, "batch_size": 20},
        ),
        (
            {"loader": DataLoader(DATA, batch_size=SIZE, sampler=WeightedRandomSampler([1.0] * COUNT, COUNT))},
            {"sampling_method": "unknown"},
        ),
        ({"loader": DataLoader(DATA, batch_size=SIZE, sampler=FirstHalf(DATA))}, {"sampling_method": "unknown"}),
    ],
    ids=["in order", "left early", "rest dropped", "drawn with replacement", "a sampler of its own"],
)
def test_batches_that_are_not_drawn_by_coins(tmp_path, options, expected):
    keys = private_of(lambda: fit(poisson_sampling=False, **options), tmp_path)
    if expected["sampling_method"] == "unknown":
        assert "how examples are drawn for a step is not known" in keys.pop(REMARKS)
        del keys["sampling_method"]
        assert keys == {name: POISSON[name] for name in keys}
        assert check(keys | expected, 100.0).verdict == "consistent"
        assert check(keys | expected, 6.0).verdict == "cannot be checked"
        return
    assert keys == POISSON | expected


def test_the_loader_that_is_used_counts_and_not_the_one_that_was_made(tmp_path):
    """The engine made Poisson batches, and its accountant counts them; the client goes on with its own loader."""

    def client():
        torch.seed()
        model, loader = Net(), DataLoader(DATA, batch_size=SIZE, shuffle=True)
        net, optimizer, _, _ = make(model, loader)
        for x, y in loader:
            learn(net, optimizer, x, y)
        return model

    assert private_of(client, tmp_path) == POISSON | {"sampling_method": "shuffled", "steps": 5, "epochs": 1}


def test_rows_that_come_from_no_loader(tmp_path):
    def client():
        torch.seed()
        model = Net()
        net, optimizer, _, _ = make(model)
        for rows in torch.arange(COUNT).split(SIZE):
            learn(net, optimizer, X[rows], Y[rows])
        return model

    keys = private_of(client, tmp_path)
    assert (keys["sampling_method"], "sampling" in keys, keys["steps"]) == ("unknown", False, 5)


def test_several_steps_of_one_batch(tmp_path):
    def client():
        torch.seed()
        model = Net()
        net, optimizer, loader, _ = make(model)
        for x, y in loader:
            learn(net, optimizer, x, y)
            learn(net, optimizer, x, y)
        return model

    keys = private_of(client, tmp_path)
    assert (keys["sampling_method"], keys["steps"]) == ("unknown", 10)


def test_a_look_at_the_same_examples_between_steps(tmp_path):
    def client():
        torch.seed()
        model = Net()
        net, optimizer, loader, _ = make(model)
        for _ in range(3):
            for x, y in loader:
                learn(net, optimizer, x, y)
            with torch.no_grad():
                for x, _ in DataLoader(DATA, batch_size=20):
                    model(x)
        return model

    assert private_of(client, tmp_path) == POISSON


def ghost(skips=True, rate=0.05, steps=None):
    """Ghost clipping goes back twice, and throws the gradients of the first time away; many batches are empty."""
    steps = [] if steps is None else steps

    def client():
        torch.manual_seed(3)
        model = Net()
        loader = DataLoader(DATA, batch_size=int(COUNT * rate), shuffle=True)
        net, optimizer, criterion, loader, _ = make(
            model, loader, criterion=nn.CrossEntropyLoss(), grad_sample_mode="ghost"
        )
        torch.seed()
        loader.batch_sampler.generator = torch.Generator().manual_seed(6)
        for _ in range(2):
            for x, y in loader:
                if not len(x) and skips:
                    steps.append(0)
                    continue
                optimizer.zero_grad()
                criterion(net(x), y).backward()
                optimizer.step()
                steps.append(1)
        return model

    return client


def test_ghost_clipping(tmp_path):
    steps = []
    witness = witness_of(ghost(steps=steps), tmp_path, stated=COUNT)
    keys = dict(witness.private)
    assert len(steps) == 40
    assert 0 < sum(steps) < 40
    assert keys.pop(REMARKS).startswith("some batches that were drawn, such as empty ones, made no step")
    assert keys == POISSON | {
        "sampling": 0.05,
        "steps": sum(steps),
        "skipped": 40 - sum(steps),
        "batch_size": 2,
    }
    assert witness.training.optimizer == "private SGD"
    assert (witness.model.spec, witness.model.loss) == (f"{__name__}:Net", "cross-entropy")
    # Nothing is counted twice.
    assert witness.training.augmented is False
    assert seen(witness.trained) <= hashes_of(X)
    assert witness.training.steps == sum(steps)
    answer = check(keys, 100.0)
    assert answer.verdict == "cannot be checked"
    said = "an accountant that counts the steps that were made is not that of"
    assert said in answer.findings[0].reason
    wrong = check(keys, 0.5)
    assert wrong.verdict == "contradicted"
    assert any(said in note for note in wrong.findings[0].notes)


def test_ghost_clipping_of_parts(tmp_path):
    used = set()

    def client():
        torch.seed()
        model = Net()
        net, optimizer, criterion, loader, _ = make(model, criterion=nn.CrossEntropyLoss(), grad_sample_mode="ghost")
        with BatchMemoryManager(data_loader=loader, max_physical_batch_size=3, optimizer=optimizer) as parts:
            for _ in range(3):
                for x, y in parts:
                    used.update(hashes_of(x))
                    optimizer.zero_grad()
                    criterion(net(x), y).backward()
                    optimizer.step()
        return model

    witness = witness_of(client, tmp_path)
    assert dict(witness.private) == POISSON
    assert seen(witness.trained) == used


def test_ghost_clipping_with_labels_that_no_loss_shows(tmp_path):
    """Its steps are read whole, and such a step, too, has its gradients only the second time."""

    class Loss(nn.Module):
        reduction = "mean"

        def forward(self, out, y):
            return -torch.log_softmax(out, 1).gather(1, y[:, None])[:, 0]

    def client():
        torch.seed()
        model = Net()
        net, optimizer, criterion, loader, _ = make(
            model, criterion=Loss(), grad_sample_mode="ghost", poisson_sampling=False
        )
        for _ in range(3):
            for x, y in loader:
                optimizer.zero_grad()
                criterion(net(x), y).backward()
                optimizer.step()
        return model

    witness = witness_of(client, tmp_path, stated=COUNT)
    assert witness.trained.total == COUNT
    assert witness.training.steps == 15
    assert dict(witness.private) == POISSON | {"sampling_method": "shuffled", "epochs": 3}


@pytest.mark.parametrize("poisson", [True, False])
def test_batches_of_parts(tmp_path, poisson):
    """A large batch goes through in parts, which make one step together, and all of whose examples are trained on."""
    used = set()

    def client():
        torch.seed()
        model = Net()
        net, optimizer, loader, _ = make(model, poisson_sampling=poisson)
        with BatchMemoryManager(data_loader=loader, max_physical_batch_size=3, optimizer=optimizer) as parts:
            for _ in range(3):
                for x, y in parts:
                    used.update(hashes_of(x))
                    learn(net, optimizer, x, y)
        return model

    witness = witness_of(client, tmp_path)
    assert dict(witness.private) == POISSON | ({} if poisson else {"sampling_method": "shuffled", "epochs": 3})
    assert seen(witness.trained) == used


def test_gradients_of_several_batches_are_added_up(tmp_path):
    def client():
        torch.seed()
        model = Net()
        loader = DataLoader(DATA, batch_size=4, shuffle=True)
        net, optimizer, loader, _ = make(model, loader, poisson_sampling=False)
        for number, (x, y) in enumerate(loader):
            F.cross_entropy(net(x), y).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
        return model

    expected = {"sampling_method": "shuffled", "steps": 5, "epochs": 1}
    assert private_of(client, tmp_path) == POISSON | expected


def test_noise_that_falls_from_step_to_step(tmp_path):
    def client():
        torch.seed()
        model = Net()
        net, optimizer, loader, _ = make(model)
        falling = ExponentialNoise(optimizer, gamma=0.5)
        for _ in range(2):
            for x, y in loader:
                learn(net, optimizer, x, y)
            falling.step()
        return model

    keys = private_of(client, tmp_path)
    assert "noise_multiplier" not in keys
    assert "1 in 5, 0.5 in 5" in keys[REMARKS]
    assert check(keys, 100.0).verdict == "cannot be checked"


def test_clipping_by_layers_and_by_quantiles(tmp_path):
    keys = private_of(lambda: fit(clipping="per_layer", max_grad_norm=[0.1, 0.1, 0.7, 0.7]), tmp_path)
    assert keys.pop("clip") == pytest.approx(1.0)
    assert keys == {name: value for name, value in POISSON.items() if name != "clip"}
    adaptive = {
        "clipping": "adaptive",
        "target_unclipped_quantile": 0.5,
        "clipbound_learning_rate": 0.2,
        "max_clipbound": 10.0,
        "min_clipbound": 0.1,
        "unclipped_num_std": 5.0,
    }
    keys = private_of(lambda: fit(poisson_sampling=False, **adaptive), tmp_path, node="2")
    assert "noise_multiplier" not in keys
    assert "adaptive clipping" in keys[REMARKS]
    assert check(keys, 100.0).verdict == "cannot be checked"


def test_a_sum_is_not_divided(tmp_path):
    keys = private_of(lambda: fit(loss_reduction="sum"), tmp_path)
    assert keys == POISSON | {"batch_size": 1}


def test_an_engine_that_outlives_a_round_counts_its_steps_once(tmp_path):
    """Its history has those of all rounds, and each round makes as many."""
    torch.seed()
    sent = Net()
    witness_of(lambda: fit(epochs=1), tmp_path, node="other")
    net, optimizer, loader, engine = make(sent)

    def client():
        for x, y in loader:
            learn(net, optimizer, x, y)
        return sent

    for _ in range(3):
        keys = private_of(client, tmp_path)
    assert sum(count for *_, count in engine.accountant.history) == 15
    assert keys == POISSON | {"steps": 5}


def test_an_optimizer_that_is_made_by_hand(tmp_path):
    def client():
        torch.seed()
        from opacus import GradSampleModule

        model = Net()
        net = GradSampleModule(model)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = DPOptimizer(sgd, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=SIZE)
        for _ in range(3):
            for x, y in DataLoader(DATA, batch_size=SIZE, shuffle=True):
                learn(net, optimizer, x, y)
        return model

    assert private_of(client, tmp_path) == POISSON | {"sampling_method": "shuffled", "epochs": 3}


def test_steps_without_noise_beside_it(tmp_path):
    def client():
        torch.seed()
        model = Net()
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in DataLoader(DATA, batch_size=SIZE):
            learn(model, plain, x, y)
        net, optimizer, loader, _ = make(model)
        for x, y in loader:
            learn(net, optimizer, x, y)
        return model

    keys = private_of(client, tmp_path)
    assert "noise_multiplier" not in keys
    assert keys[REMARKS] == "Net also made steps without noise, which no ε covers"


def test_an_engine_for_each_epoch_of_a_round(tmp_path):
    def client(noises, **options):
        torch.seed()
        model = Net()
        for noise in noises:
            net, optimizer, batches, _ = make(model, noise_multiplier=noise, **options)
            for x, y in batches:
                learn(net, optimizer, x, y)
            net.cleanup()
        return model

    assert private_of(lambda: client([1.0, 1.0, 1.0]), tmp_path) == POISSON
    shuffled = DataLoader(DATA, batch_size=SIZE, shuffle=True)
    keys = private_of(lambda: client([1.0, 1.0], loader=shuffled, poisson_sampling=False), tmp_path, node="3")
    assert keys == POISSON | {"sampling_method": "shuffled", "steps": 10, "epochs": 2}
    keys = private_of(lambda: client([1.0, 0.5]), tmp_path, node="2")
    assert "noise_multiplier" not in keys
    assert "several optimizers make steps with different noise" in keys[REMARKS]


def test_seeds_and_accountants_that_flatter_are_remarked(tmp_path):
    def client():
        seed(7)
        model = Net()
        net, optimizer, loader, _ = make(model, accountant="gdp")
        for x, y in [batch for _ in range(3) for batch in loader]:
            learn(net, optimizer, x, y)
        return model

    keys = private_of(client, tmp_path)
    seeded, accountant = remarks_of(keys)
    assert "seeds its noise with a number below 2^32" in seeded
    assert "gdp, is an approximation, and may report less than the true ε" in accountant
    del keys[REMARKS]
    assert keys == POISSON
    generator = torch.Generator().manual_seed(5)
    keys = private_of(lambda: fit(noise_generator=generator), tmp_path, node="2")
    assert "seeds its noise" in keys[REMARKS]


def test_what_differs_from_round_to_round_counts_for_the_worst(tmp_path):
    for noise, epochs in ((1.0, 2), (2.0, 3), (1.5, 1)):
        with warnings.catch_warnings(action="ignore"):
            keys = private_of(lambda noise=noise, epochs=epochs: fit(noise_multiplier=noise, epochs=epochs), tmp_path)
    assert (keys["noise_multiplier"], keys["steps"]) == (1.0, 15)
    assert "rounds differ" in keys[REMARKS]
    keys = private_of(lambda: fit(poisson_sampling=False), tmp_path)
    assert (keys["sampling_method"], "epochs" in keys) == ("unknown", False)


def test_a_learning_rate_that_changes_from_round_to_round_is_not_that_of_all(tmp_path):
    """Where it rises, the noise of early rounds would seem less than what is claimed."""
    for lr in (0.05, 0.1, 0.1):
        with warnings.catch_warnings(action="ignore"):
            keys = private_of(lambda lr=lr: fit(lr=lr), tmp_path)
        assert ("learning_rate" in keys) == (lr == 0.05)
    assert (keys["noise_multiplier"], keys["clip"], keys["batch_size"]) == (1.0, 1.0, SIZE)
