"""Rules that count labels, against closed forms and the slow obvious way."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from fedattack.attacks.last_layer import Outputs, compute_outputs, find_last_layer, interpolate
from fedattack.base.errors import NeedsError
from fedattack.learning import build_model, full_gradient
from fedattack.threats.labels.rules import (
    MADE,
    apply_llg,
    correct_together,
    find_terms,
    fit_mixture,
    give_labels,
    mean_shares,
    restore_labels,
    round_counts,
    solve_shares,
    weigh_llg,
)
from fedattack.threats.labels.sums import project_to_shares, separate
from tests.worlds.attacked import state
from tests.worlds.inversion import digits

X, Y = digits()


def network():
    return build_model("mlp", input_shape=(1, 8, 8), classes=10, hidden=32, seed=1)


def gradients(model, rows):
    return [full_gradient(model, X[own], Y[own], seed=0).arrays for own in rows]


@pytest.mark.parametrize("bias", [True, False])
def test_idlg_s_rule_reads_the_label_of_every_single_record(bias):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10, bias=bias))
    for row, gradient in enumerate(gradients(model, [[row] for row in range(40)])):
        assert restore_labels(model, gradient, 1).tolist() == [Y[row]]


def test_labels_of_a_batch_are_exact_where_all_classes_are_predicted_alike():
    model = network()
    with torch.no_grad():
        model.fc2.weight.mul_(1e-3)
        model.fc2.bias.zero_()
    rows = np.array([0, 1, 10, 20, 30, 2])
    assert sorted(Y[rows])[:4] == [0, 0, 0, 0], "labels repeat"
    (gradient,) = gradients(model, [rows])
    np.testing.assert_array_equal(restore_labels(model, gradient, 6), np.sort(Y[rows]))


def test_labels_need_a_last_linear_layer():
    with pytest.raises(NeedsError, match="last linear layer, and this model has none"):
        restore_labels(nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten()), {}, 1)


def test_what_is_computed_of_examples_gives_their_gradient_of_the_last_layer():
    """(p − onehot(y)) ⊗ h by hand against autograd, with and without a bias."""
    for bias in (True, False):
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10, bias=bias))
        last = find_last_layer(model)
        seen = compute_outputs(model, last, state(model), X[:30])
        error = seen.softmax - np.eye(10)[Y[:30]]
        (gradient,) = gradients(model, [np.arange(30)])
        np.testing.assert_allclose(error.T @ seen.columns / 30, last.join(gradient), atol=1e-6)


def test_a_layer_that_is_called_for_every_position_gives_nothing():
    model = nn.Sequential(nn.Unflatten(1, (8, 8)), nn.Linear(8, 10))
    assert compute_outputs(model, find_last_layer(model), state(model), X[:3].reshape(3, 64)) is None


def test_a_model_between_two_is_their_weighted_mean_and_counters_stay():
    start = {"w": np.float32([0, 4]), "n": np.array(3)}
    end = {"w": np.float32([4, 0]), "n": np.array(9)}
    between = interpolate(start, end, 0.25)
    assert between["w"].tolist() == [1, 3]
    assert between["n"] == 3


def test_llg_by_hand():
    """Two labels are below 0; each takes m = −0.6/3 · 4/3 back, and the third goes where it is lowest then."""
    sums = np.array([-0.5, -0.1, 0.6])
    impact = -0.6 / 3 * 4 / 3
    assert apply_llg(sums, 3).tolist() == [2, 1, 0]
    assert apply_llg(sums, 3, impact, np.zeros(3)).tolist() == [2, 1, 0]
    assert apply_llg(sums, 3, impact, np.array([0.0, 0.9, 0.0])).tolist() == [1, 2, 0]
    assert apply_llg(np.array([-0.5, -0.4, -0.3]), 2).tolist() == [1, 1, 0]


def test_terms_of_llg_are_those_of_batches_of_one_label():
    """The impact is the mean over labels of what a batch of one label adds to its own sum, over the batch."""
    model = network()
    last = find_last_layer(model)
    seen = compute_outputs(model, last, state(model), X[:200])
    impact, offset = find_terms(seen, Y[:200], 40)
    own, others = [], []
    for label in range(10):
        (gradient,) = gradients(model, [np.flatnonzero(Y[:200] == label)])
        own.append(gradient["fc2.weight"].sum(axis=1)[label])
        (gradient,) = gradients(model, [np.flatnonzero(Y[:200] != label)])
        others.append(gradient["fc2.weight"].sum(axis=1)[label])
    assert impact == pytest.approx(np.mean(own) / 40 * 1.1, abs=1e-6)
    np.testing.assert_allclose(offset, others, atol=1e-6)


def test_labels_that_nobody_has_an_example_of_get_some_inputs():
    rows, given = give_labels(np.array([0, 2, 2]), 3, 4)
    assert rows.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2]
    assert given.tolist() == [0, 2, 2, 1, 1, 1, 3, 3, 3]
    rows, given = give_labels(None, 100, 2)
    assert np.bincount(given).tolist() == [MADE, MADE]


def test_a_mixture_is_fitted_as_the_best_of_a_grid():
    draw = np.random.default_rng(0)
    columns, wanted = draw.normal(size=(5, 3)), draw.normal(size=5)
    grid = [point for point in itertools.product(np.linspace(0, 1, 101), repeat=3) if abs(sum(point) - 1) < 1e-9]
    best = min(grid, key=lambda point: np.linalg.norm(columns @ point - wanted))
    np.testing.assert_allclose(fit_mixture(columns, wanted), best, atol=0.011)


def test_a_mixture_that_is_known_up_to_a_factor_is_fitted_as_the_best_of_all_factors():
    draw = np.random.default_rng(1)
    columns, true = draw.normal(size=(6, 3)), np.array([0.5, 0.0, 0.5])
    for factor in (0.01, 1.0, 100.0):
        np.testing.assert_allclose(fit_mixture(columns, factor * columns @ true, is_scaled=False), true, atol=1e-9)
    wanted = columns @ true + 0.3 * draw.normal(size=6)
    factors = np.linspace(0.01, 2, 200)
    best = min(
        (point for point in itertools.product(np.linspace(0, 1, 51), repeat=3) if abs(sum(point) - 1) < 1e-9),
        key=lambda point: min(np.linalg.norm(factor * columns @ point - wanted) for factor in factors),
    )
    np.testing.assert_allclose(fit_mixture(columns, wanted, is_scaled=False), best, atol=0.021)
    # Nothing points there: no label is likelier than the others.
    assert fit_mixture(np.ones((2, 4)), -np.ones(2), is_scaled=False).tolist() == [0.25] * 4


def test_the_length_of_a_gradient_does_not_matter_where_it_is_not_known():
    model = network()
    last = find_last_layer(model)
    seen = compute_outputs(model, last, state(model), X[:300])
    (gradient,) = gradients(model, [np.arange(300, 360)])
    whole = last.join(gradient)
    shares = [solve_shares([seen], Y[:300], factor * whole, is_scaled=False) for factor in (1.0, 7.0)]
    np.testing.assert_allclose(*shares, atol=1e-6)
    assert np.abs(shares[0] * 60 - np.bincount(Y[300:360], minlength=10)).mean() < 0.5


def test_llg_counts_the_more_clients_differ_and_the_further_they_went():
    """By hand: gradients of two labels that differ by 0.4 from the mean count half."""
    zero, moved = np.zeros(2), np.array([0.4, -0.4])
    assert weigh_llg(moved, zero, 0.0) == pytest.approx(0.5)
    assert weigh_llg(moved + 3, zero + 3, 0.0) == pytest.approx(0.5)
    assert weigh_llg(moved / 3, zero, 1.0) == pytest.approx(0.5)
    assert weigh_llg(moved / 2, zero, 0.0) == pytest.approx(1 / 65)
    assert weigh_llg(zero, zero, 9.0) == 0


def test_what_is_wrong_with_all_clients_alike_is_taken_out():
    """The same error of all clients goes; that of clients who differ as much stays, as it may be no error."""
    prior = np.full(4, 0.25)
    error = np.array([0.1, -0.1, 0.05, -0.05])
    alike = prior + error + 1e-4 * np.array([[1, -1, 0, 0], [-1, 1, 0, 0], [0, 0, 1, -1], [0, 0, -1, 1]])
    np.testing.assert_allclose(correct_together(alike, prior), alike - error, atol=1e-4)
    unlike = np.array([[0.9, 0.1, 0, 0], [0, 0.8, 0.2, 0]])
    np.testing.assert_allclose(correct_together(unlike, prior), unlike)


@pytest.mark.parametrize("labels_known", [True, False])
def test_gradients_of_a_new_model_are_counted_almost_exactly(labels_known):
    draw = np.random.default_rng(3)
    model = network()
    last = find_last_layer(model)
    seen = compute_outputs(model, last, state(model), X[:300])
    errors = []
    for _ in range(10):
        weights = draw.dirichlet(np.full(10, 0.5))[Y[300:]] + 1e-9
        rows = 300 + draw.choice(len(Y) - 300, size=50, replace=False, p=weights / weights.sum())
        (gradient,) = gradients(model, [rows])
        if labels_known:
            shares = solve_shares([seen], Y[:300], last.join(gradient))
        else:
            shares = mean_shares([seen], last.join(gradient), np.full(10, 0.1))
        errors.append(np.abs(round_counts(shares, 50) - np.bincount(Y[rows], minlength=10)).mean())
    assert np.mean(errors) < (0.05 if labels_known else 0.5)


def test_drawn_inputs_count_less_the_surer_a_model_is_of_them():
    """By hand: two labels, a bias alone that moved by (−0.25, 0.25)."""
    gradient, other = np.array([[0.0, -0.25], [0.0, 0.25]]), np.array([0.0, 1.0])
    unsure = Outputs(np.full((4, 2), 0.5), np.ones((4, 1)), has_bias=True)
    np.testing.assert_allclose(mean_shares([unsure], gradient, other), [0.75, 0.25])
    sure = Outputs(np.array([[1.0, 0.0], [0.0, 1.0]]), np.ones((2, 1)), has_bias=True)
    np.testing.assert_allclose(mean_shares([sure], gradient, other), other)
    plain = Outputs(np.full((4, 2), 0.5), np.full((4, 1), 2.0), has_bias=False)
    np.testing.assert_allclose(mean_shares([plain], np.array([[-0.5], [0.5]]), other), [0.75, 0.25])


def test_a_solution_is_that_of_all_gradients_written_out():
    """Products of gradients stand for the gradients: the same as with each written out, for one model and for two."""
    model = network()
    last = find_last_layer(model)
    other = {name: array + np.float32(0.01) for name, array in state(model).items()}
    path = [compute_outputs(model, last, which, X[:90]) for which in (state(model), other)]
    (gradient,) = gradients(model, [np.arange(100, 140)])
    wanted = last.join(gradient)
    written = 0
    for seen in path:
        error = seen.softmax - np.eye(10)[Y[:90]]
        written = written + np.einsum("nk,nd->nkd", error, seen.columns).reshape(90, -1) / 2
    _, vectors = np.linalg.eigh(written.T @ written)
    directions = vectors[:, -30:]
    # Of each gradient its part in 30 directions, and that of the bias alone.
    directions = np.column_stack([directions, np.eye(written.shape[1])[:, 32::33]])
    known = written @ directions
    means = np.stack([known[Y[:90] == label].mean(axis=0) for label in range(10)])
    around = known - means[Y[:90]]
    covariance = around.T @ around / 90
    covariance += 1e-3 * np.trace(covariance) / 40 * np.eye(40)
    root = np.linalg.cholesky(np.linalg.inv(covariance)).T
    slow = fit_mixture(root @ means.T, root @ (directions.T @ wanted.ravel()))
    assert set(Y[:90].tolist()) == set(range(10))
    np.testing.assert_allclose(solve_shares(path, Y[:90], wanted), slow, atol=1e-4)


def test_counts_are_rounded_to_the_sum():
    assert round_counts(np.array([0.5, 0.26, 0.24]), 10).tolist() == [5, 3, 2]
    assert round_counts(np.array([1 / 3] * 3), 10).sum() == 10


def test_sums_are_taken_apart_by_who_took_part():
    own = np.array([[1.0, 0, 0], [0.5, 0.5, 0], [0, 0.25, 0.75]])
    weights = np.array([[0.5, 0.5, 0], [0, 0.25, 0.75], [0.5, 0, 0.5]])
    np.testing.assert_allclose(separate(weights, weights @ own), own, atol=0.01)
    alike = separate(np.array([[0.5, 0.5]]), np.array([[0.2, 0.8]]))
    np.testing.assert_allclose(alike, [[0.2, 0.8]] * 2)


def test_shares_are_the_nearest_of_a_grid():
    grid = [point for point in itertools.product(np.linspace(0, 1, 101), repeat=3) if abs(sum(point) - 1) < 1e-9]
    for row in np.random.default_rng(1).normal(size=(5, 3)):
        best = min(grid, key=lambda point: np.linalg.norm(point - row))
        np.testing.assert_allclose(project_to_shares(row), best, atol=0.011)
