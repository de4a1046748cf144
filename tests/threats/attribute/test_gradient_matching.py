from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedattack.base.errors import DataError, ModelError
from fedattack.threats.attribute.gradient_matching import METHODS, Matching, Victim
from tests.threats.attribute.matched import match_gradients

CLASSES = 3
DOMAIN = np.array([[0.0], [1.0]], dtype=np.float32)


def mlp(width, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(width, 12), nn.Tanh(), nn.Linear(12, CLASSES))


def slow_gradient(model, state, x, y, weights, loss):
    """One gradient by plain autograd, record by record."""
    model.load_state_dict({name: torch.as_tensor(np.array(array)) for name, array in state.items()})
    total = 0.0
    for record, label, weight in zip(torch.as_tensor(x), torch.as_tensor(y), weights, strict=True):
        output = model(record[None])
        single = {
            "cross-entropy": lambda output=output, label=label: nn.functional.cross_entropy(output, label[None]),
            "mse": lambda output=output, label=label: (output - label).square().mean(),
        }[loss]()
        total = total + float(weight) * single
    gradients = torch.autograd.grad(total, list(model.parameters()))
    return {name: part.numpy() for (name, _), part in zip(model.named_parameters(), gradients, strict=True)}


def victim(
    width=8, count=6, rounds=2, domain=DOMAIN, seed=0, weights=None, prior=True, model=None, loss="cross-entropy"
):
    """Return a victim whose gradients are exact, and the values of its records."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(count, width)).astype(np.float32)
    x[:, 2] = 0
    s = draw.integers(len(domain), size=count)
    codes = np.zeros((len(domain), width), dtype=np.float32)
    codes[:, [2]] = domain
    y = draw.integers(CLASSES, size=count) if loss == "cross-entropy" else draw.normal(size=count).astype(np.float32)
    states, gradients = [], []
    for number in range(rounds):
        made = model() if model else mlp(width, seed=100 * seed + number)
        state = {name: value.numpy().copy() for name, value in made.state_dict().items()}
        share = np.full(count, 1 / count) if weights is None else weights[number]
        gradients.append(slow_gradient(made, state, x + codes[s], y, share, loss))
        states.append(state)
    shares = np.full(len(domain), 1 / len(domain)) if prior else None
    return Victim(x, y, codes, states, gradients, prior=shares), s


def one_output(width, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(width, 1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [0, 1, 2])
def test_one_record_of_a_linear_model_is_recovered_exactly(method, value):
    domain = np.array([[-1.0], [0.5], [2.0]], dtype=np.float32)
    seeds = (seed for seed in range(100) if victim(domain=domain, count=1, seed=seed, loss="mse",
             model=lambda: one_output(8))[1][0] == value)  # fmt: skip
    case, truth = victim(domain=domain, count=1, seed=next(seeds), loss="mse", model=lambda: one_output(8))
    match = match_gradients(one_output(8), "mse", [case], Matching(method, restarts=3))[0]
    assert match.decisions.tolist() == truth.tolist() == [value]
    assert match.objective == pytest.approx({"cos": 1, "l2": 0}[method], abs=1e-3)


@pytest.mark.parametrize("width", [8, 40], ids=["narrow", "wider-than-the-records"])
@pytest.mark.parametrize("weights", ["uniform", "shared", "round"])
@pytest.mark.parametrize("method", METHODS)
def test_the_objective_is_what_plain_autograd_gives(method, weights, width):
    cases = [victim(width=width, count=6, rounds=2, seed=1)[0], victim(width=width, count=4, rounds=3, seed=2)[0]]
    matches = match_gradients(mlp(width), "cross-entropy", cases, Matching(method, weights=weights, steps=4))
    for case, match in zip(cases, matches, strict=True):
        assert match.beliefs.shape == (len(case.x), 2)
        assert match.weights.shape == (len(case.states), len(case.x))
        np.testing.assert_allclose(match.beliefs.sum(axis=1), 1)
        np.testing.assert_allclose(match.weights.sum(axis=1), 1)
        x = case.x + match.beliefs.astype(np.float32) @ case.codes
        cosines, distance, norm = [], 0.0, 0.0
        for state, target, share in zip(case.states, case.gradients, match.weights, strict=True):
            found = slow_gradient(mlp(width), state, x, case.y, share, "cross-entropy")
            a = np.concatenate([found[name].ravel() for name in target]).astype(np.float64)
            b = np.concatenate([target[name].ravel() for name in target]).astype(np.float64)
            cosines.append(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
            distance += np.sum((a - b) ** 2)
            norm += b @ b
        expected = {"cos": np.mean(cosines), "l2": distance / norm}[method]
        assert match.objective == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.slow
def test_victims_together_give_what_each_gives_alone(method):
    """Of different sizes and rounds, wide enough for coordinates of their own span."""
    cases = [victim(width=40, count=count, rounds=rounds, seed=count)[0] for count, rounds in ((5, 1), (9, 3), (3, 2))]
    model, how = mlp(40), Matching(method, steps=60)
    together = match_gradients(model, "cross-entropy", cases, how)
    grouped = match_gradients(model, "cross-entropy", cases, how, memory=1)
    for case, match, other in zip(cases, together, grouped, strict=True):
        alone = match_gradients(model, "cross-entropy", [case], how)[0]
        np.testing.assert_array_equal(match.decisions, alone.decisions)
        np.testing.assert_allclose(other.beliefs, alone.beliefs, atol=0.02)
        np.testing.assert_allclose(match.beliefs, alone.beliefs, atol=0.02)


@pytest.mark.parametrize(
    "changes",
    [
        {"how": Matching("cos")},
        {"how": Matching("cos", relaxation="gumbel", temperature=0.5, steps=300)},
        {"how": Matching("cos", restarts=3), "prior": False},
        {"how": Matching("l2", restarts=3), "prior": False},
        {"how": Matching("cos"), "domain": np.array([[-1.0], [0.0], [2.0]], dtype=np.float32)},
        {"how": Matching("cos"), "loss": "mse", "model": lambda: mlp_of_one(8)},
    ],
    ids=["cos", "gumbel", "prior-unknown", "l2-prior-unknown", "three-values", "regression"],
)
@pytest.mark.slow
def test_all_values_are_found_where_the_updates_determine_them(changes):
    how, loss = changes.pop("how"), changes.get("loss", "cross-entropy")
    case, truth = victim(count=8, rounds=3, seed=5, **changes)
    model = changes.get("model", lambda: mlp(8))()
    match = match_gradients(model, loss, [case], how)[0]
    np.testing.assert_array_equal(match.decisions, truth)


def mlp_of_one(width, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(width, 12), nn.Tanh(), nn.Linear(12, 1))


@pytest.mark.slow
def test_one_hot_columns_are_found():
    draw = np.random.default_rng(3)
    codes = np.zeros((3, 9), dtype=np.float32)
    codes[:, 6:] = np.eye(3)
    x = np.concatenate([draw.normal(size=(7, 6)), np.zeros((7, 3))], axis=1).astype(np.float32)
    s, y = draw.integers(3, size=7), draw.integers(CLASSES, size=7)
    state = {name: value.numpy().copy() for name, value in mlp(9).state_dict().items()}
    gradient = slow_gradient(mlp(9), state, x + codes[s], y, np.full(7, 1 / 7), "cross-entropy")
    case = Victim(x, y, codes, [state], [gradient], prior=np.full(3, 1 / 3))
    match = match_gradients(mlp(9), "cross-entropy", [case], Matching())[0]
    np.testing.assert_array_equal(match.decisions, s)


@pytest.mark.parametrize("known", [True, False], ids=["label-prior-known", "label-prior-unknown"])
@pytest.mark.slow
def test_unknown_labels_are_found_too(known):
    case, truth = victim(count=4, rounds=4, seed=3)
    shares = np.bincount(case.y, minlength=CLASSES) / len(case.y) if known else None
    hidden = replace(case, y=None, label_prior=shares)
    match = match_gradients(mlp(8), "cross-entropy", [hidden], Matching(restarts=4, steps=300))[0]
    np.testing.assert_array_equal(match.labels.argmax(axis=1), case.y)
    np.testing.assert_array_equal(match.decisions, truth)


@pytest.mark.slow
def test_unlike_weights_of_records_are_found():
    """As of a short last batch: other records in each round weigh eight times as much."""
    draw = np.random.default_rng(0)
    weights = []
    for _ in range(3):
        single = np.ones(10)
        single[draw.permutation(10)[:2]] = 8
        weights.append(single / single.sum())
    case, truth = victim(count=10, rounds=3, seed=4, weights=weights)
    uniform, free = (
        match_gradients(mlp(8), "cross-entropy", [case], Matching(weights=kind, steps=steps))[0]
        for kind, steps in (("uniform", 200), ("round", 1200))
    )
    assert uniform.objective < 0.95 < 0.99 < free.objective
    np.testing.assert_array_equal(free.decisions, truth)
    np.testing.assert_allclose(free.weights, weights, atol=0.05)


@pytest.mark.slow
def test_records_that_took_no_part_get_little_weight():
    weights = [np.array([1 / 6] * 6 + [0.0] * 4)] * 4
    case, truth = victim(count=10, rounds=4, seed=6, weights=weights)
    match = match_gradients(mlp(8), "cross-entropy", [case], Matching(weights="shared", steps=600))[0]
    assert match.weights[0, :6].min() > 3 * match.weights[0, 6:].max()
    np.testing.assert_array_equal(match.decisions[:6], truth[:6])


class Blind(nn.Module):
    """A model that does not look at column 2."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.layer = nn.Linear(7, CLASSES)

    def forward(self, x):
        return self.layer(torch.cat([x[:, :2], x[:, 3:]], dim=1))


def test_an_attribute_that_the_model_does_not_see_stays_at_the_prior():
    case, _ = victim(count=20, seed=2, model=Blind)
    case = replace(case, prior=np.array([0.7, 0.3]))
    for method in METHODS:
        match = match_gradients(Blind(), "cross-entropy", [case], Matching(method))[0]
        np.testing.assert_allclose(match.beliefs, [[0.7, 0.3]] * 20, atol=1e-6)


def test_the_same_seed_gives_the_same_result_and_another_seed_another():
    case, _ = victim(prior=False)
    how = Matching(steps=3, relaxation="gumbel")
    first, again, other = (match_gradients(mlp(8), "cross-entropy", [case], how, seed=seed)[0] for seed in (1, 1, 2))
    assert first.beliefs.tobytes() == again.beliefs.tobytes()
    assert np.abs(first.beliefs - other.beliefs).max() > 0.01


def test_the_best_restart_counts():
    case, _ = victim(count=12, rounds=1, prior=False, seed=8)
    objectives = [
        match_gradients(mlp(8), "cross-entropy", [case], Matching(steps=5, restarts=restarts))[0].objective
        for restarts in (1, 8)
    ]
    assert objectives[1] > objectives[0]


def test_victims_and_globals_are_left_as_they_were():
    case, _ = victim()
    before = [case.x.copy(), *(part.copy() for state in case.states for part in state.values())]
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    model = mlp(8).train()
    match_gradients(model, "cross-entropy", [case], Matching(steps=2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert model.training
    for old, new in zip(before, [case.x, *(part for item in case.states for part in item.values())], strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.slow
def test_a_loss_of_ones_own_is_matched():
    spec = "tests.attacks.plugins:own_loss"
    case, truth = victim()
    match = match_gradients(mlp(8), spec, [case], Matching())[0]
    np.testing.assert_array_equal(match.decisions, truth)


def test_bad_input_is_refused_in_one_line():
    case, _ = victim()
    with pytest.raises(DataError, match=r"labels are 0 … 3; expected 0 … 2"):
        match_gradients(mlp(8), "cross-entropy", [replace(case, y=np.array([0, 1, 2, 3, 0, 1]))], Matching())
    with pytest.raises(ModelError, match="the model or the loss 'mse' failed"):
        match_gradients(mlp(8), "mse", [replace(case, y=np.zeros(6))], Matching())
