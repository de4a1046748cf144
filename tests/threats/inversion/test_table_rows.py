"""Rows of tables: the relaxation, the pool and the span, each beside a slow or closed form; and whole searches."""

import itertools

import numpy as np
import pytest
import torch

from fedattack.attacks.coding import find_coding
from fedattack.data.columns import Column
from fedattack.learning import LocalSGD, build_model
from fedattack.learning.soft_losses import soft_targets
from fedattack.threats.inversion.gradient_inversion import ONE_GRADIENT, ClientModel, ReplyBatch, Search
from fedattack.threats.inversion.table_rows import Relaxation, find_span, leave_span, pool_rows
from tests.threats.inversion.inverted import invert
from tests.worlds.inversion import table

X, Y = table()
CODING = find_coding(X)


def client_of(training, spec="mlp"):
    return ClientModel(build_model(spec, input_shape=(13,), classes=2, hidden=32, seed=1), "cross-entropy", training)


def batch_of(client, rows, *, with_span=True):
    state = {name: value.numpy() for name, value in client.model.state_dict().items()}
    moved = client.movement(*client.split(state), torch.from_numpy(X[rows]), soft_targets("cross-entropy", Y[rows], 2))
    movement = {name: value.detach().numpy() for name, value in moved.items()}
    weight = next(name for name, value in movement.items() if value.ndim == 2)
    joined = np.column_stack([movement[weight], movement[weight.replace("weight", "bias")]]).astype(np.float64)
    span = find_span(joined, len(rows)) if with_span else None
    return ReplyBatch(state, movement, len(rows), Y[rows], span=span)


def test_relaxed_rows_are_softmaxes_sigmoids_and_numbers_one_by_one():
    free = torch.randn(3, 4, 13, generator=torch.Generator().manual_seed(0))
    rows = Relaxation(CODING, torch.device("cpu")).rows(free)
    mean, deviation = torch.tensor(CODING.mean[:2]), torch.tensor(CODING.deviation[:2])
    torch.testing.assert_close(rows[..., :2], mean + deviation * free[..., :2])
    torch.testing.assert_close(rows[..., 2:6], free[..., 2:6].softmax(dim=-1))
    torch.testing.assert_close(rows[..., 6:12], free[..., 6:12].softmax(dim=-1))
    torch.testing.assert_close(rows[..., 12], free[..., 12].sigmoid())


def test_a_search_starts_near_what_people_have_and_stays_in_range():
    relaxation = Relaxation(CODING, torch.device("cpu"))
    start = relaxation.rows(relaxation.start(torch.zeros(13)))
    np.testing.assert_allclose(start.numpy(), CODING.mean, atol=2e-3)
    far = relaxation.rows(relaxation.inside(torch.full((13,), 1e6)))
    assert (far <= torch.tensor(CODING.high) + 1e-5).all()
    assert torch.isfinite(far).all()


def test_categories_that_nobody_has_get_no_share_and_a_column_of_none_stays_as_it_is():
    x = X[~X[:, [7, 9]].any(axis=1)].copy()
    x[:, 2:6] = [0, 1, 0, 0]
    columns = tuple(
        Column(str(start), tuple(range(start, end))) for start, end in ((0, 1), (1, 2), (2, 6), (6, 12), (12, 13))
    )
    coding = find_coding(x, columns)
    relaxation = Relaxation(coding, torch.device("cpu"))
    free = torch.randn(5, 13, generator=torch.Generator().manual_seed(0))
    rows = relaxation.rows(relaxation.start(free)).numpy()
    np.testing.assert_array_equal(rows[:, 2:6], x[:5, 2:6])
    np.testing.assert_array_equal(rows[:, [7, 9]], 0)
    np.testing.assert_allclose(rows[:, 6:12].sum(axis=1), 1, rtol=1e-5)
    pooled = pool_rows(coding, np.repeat(x[np.newaxis, :3], 4, axis=0), np.zeros(4))
    np.testing.assert_allclose(pooled.x, x[:3], atol=1e-6)
    np.testing.assert_allclose(pooled.unsure, 0, atol=1e-6)


def test_searches_that_agree_up_to_order_are_pooled_to_what_they_found_and_are_sure():
    orders = list(itertools.permutations(range(3)))[:4]
    found = np.stack([X[list(order)] for order in orders])
    pooled = pool_rows(CODING, found, np.zeros(4))
    np.testing.assert_allclose(pooled.x, X[:3], atol=1e-6)
    np.testing.assert_allclose(pooled.unsure, 0, atol=1e-6)


def test_a_cell_is_as_unsure_as_the_entropy_of_the_shares_or_the_spread_of_numbers():
    found = np.repeat(X[np.newaxis, :1], 4, axis=0).copy()
    found[:, 0, 2:6] = np.eye(4)
    found[:, 0, 12] = [0, 0, 0, 1]
    found[:, 0, 0] = [0.1, 0.2, 0.3, 0.4]
    pooled = pool_rows(CODING, found, np.zeros(4))
    wanted = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25)) / np.log(2)
    np.testing.assert_allclose(pooled.unsure[0, [2, 3, 4]], [1, 0, wanted], atol=1e-6)
    np.testing.assert_allclose(pooled.unsure[0, 0], np.std([0.1, 0.2, 0.3, 0.4]) / CODING.deviation[0], rtol=1e-4)
    np.testing.assert_allclose(pooled.x[0, [0, 12]], [0.2, 0], atol=1e-6)


def test_a_search_that_came_nearer_outvotes_several_and_one_that_diverged_does_not_count():
    found = np.stack([X[:2], X[2:4], X[2:4], np.full((2, 13), np.nan, np.float32)])
    pooled = pool_rows(CODING, found, np.array([-9.0, -1.0, -1.0, np.nan]))
    np.testing.assert_allclose(pooled.x, X[:2], atol=1e-6)
    lost = pool_rows(CODING, found[3:], np.array([np.nan]))
    assert np.isfinite(lost.x).all()


@pytest.mark.parametrize("training", [ONE_GRADIENT, LocalSGD(epochs=3, batch_size=2, lr=0.1, momentum=0.9)])
def test_rows_of_a_batch_are_in_the_span_of_what_the_first_layer_learnt_and_others_are_not(training):
    rows = np.array([3, 40, 77, 200])
    span = batch_of(client_of(training), rows).span
    assert span.basis.shape == (4, 14)
    basis = torch.from_numpy(span.basis)
    assert float(leave_span(torch.from_numpy(X[rows]), basis)) < 1e-7
    others = torch.from_numpy(X[300:304])
    joined = torch.cat([others, torch.ones(4, 1)], dim=1).double()
    # Closed form: least squares.
    fitted = torch.linalg.lstsq(basis.double().T, joined.T).solution.T @ basis.double()
    wanted = (joined - fitted).square().sum() / joined.square().sum()
    assert float(leave_span(others, basis)) == pytest.approx(float(wanted), rel=1e-4)
    assert wanted > 1e-2


def test_there_is_no_span_of_large_batches_and_beneath_noise():
    client = client_of(ONE_GRADIENT)
    assert batch_of(client, np.arange(14)).span is None
    moved = np.random.default_rng(0).normal(size=(32, 14))
    assert find_span(moved, 4) is None
    assert find_span(np.zeros((32, 14)), 4) is None


@pytest.mark.parametrize("training", [ONE_GRADIENT, LocalSGD(epochs=3, batch_size=0, lr=0.1)])
@pytest.mark.parametrize("with_span", [True, False])
def test_whole_rows_are_found_behind_gradients_and_several_epochs(training, with_span):
    client, rows = client_of(training), np.array([5, 60, 410])
    how = Search("table", 1200, 4, coding=CODING)
    (found,) = invert(client, [batch_of(client, rows, with_span=with_span)], (13,), how)
    true, cells = CODING.decode(X[rows]), CODING.decode(found.x)
    order = min(itertools.permutations(range(3)), key=lambda order: np.abs(true - cells[list(order)]).sum())
    np.testing.assert_array_equal(cells[list(order)][:, 2:], true[:, 2:])
    np.testing.assert_allclose(cells[list(order)][:, :2], true[:, :2], atol=0.1)
    assert found.objectives.shape == (4,)
    assert found.unsure.shape == (3, 5)
