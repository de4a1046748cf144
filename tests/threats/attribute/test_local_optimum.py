import numpy as np
import pytest

from fedattack.threats.attribute.local_optimum import (
    BinaryAttribute,
    best_attribute,
    decode_least_squares,
    decode_with_public,
    extrapolate,
    fit_update_maps,
)

FLOAT32 = float(np.finfo(np.float32).eps)
FLOAT64 = float(np.finfo(np.float64).eps)
LR = 0.02


def problem(records, features, seed=0, bias=True):
    """Records whose last feature is 0 or 1, and a column of ones for the bias."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(records, features))
    x[:, -1] = draw.random(records) < 0.3
    y = x @ draw.normal(size=features) + draw.normal(size=records)
    return (np.c_[x, np.ones(records)] if bias else x), y


def closed_form(x, y):
    H, c = 2 / len(x) * x.T @ x, 2 / len(x) * x.T @ y
    return H, c, np.linalg.lstsq(x, y, rcond=None)[0]


def train(model, x, y, steps=1, lr=LR, weight_decay=0.0, batches=None, dtype=np.float64):
    """Train as a client does; ``batches`` draws the order of its mini-batches of eight."""
    for _ in range(steps):
        parts = [np.arange(len(x))] if batches is None else np.array_split(batches.permutation(len(x)), len(x) // 8)
        for rows in parts:
            gradient = 2 / len(rows) * x[rows].T @ (x[rows] @ model - y[rows])
            model = model - lr * (gradient + weight_decay * model)
    return model.astype(dtype).astype(np.float64)


def messages(x, y, rounds, seed=0, dtype=np.float64, **how):
    received = np.random.default_rng(seed).normal(size=(rounds, x.shape[1])).astype(dtype).astype(np.float64)
    return received, received - np.stack([train(model, x, y, dtype=dtype, **how) for model in received])


def federation(clients, rounds, share, seed=0, dtype=np.float64):
    """Return what the first of ``clients`` [(x, y), …] received, and how far it moved that; others join at random."""
    draw = np.random.default_rng(seed)
    model = np.zeros(clients[0][0].shape[1])
    received, moves = [], []
    for _ in range(rounds):
        there = [client for client in clients if draw.random() < share] or clients[:1]
        sent = {id(client): train(model, *client, lr=0.1, dtype=dtype) for client in there}
        if id(clients[0]) in sent:
            received.append(model)
            moves.append(model - sent[id(clients[0])])
        model = np.mean(list(sent.values()), axis=0).astype(dtype).astype(np.float64)
    return np.stack(received), np.stack(moves)


def apart(got, expected):
    return np.linalg.norm(got - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("features", [2, 10, 99])
@pytest.mark.parametrize(("dtype", "limit"), [(np.float64, 1e-9), (np.float32, 2e-5)])
def test_one_message_more_than_unknowns_gives_the_closed_form(features, dtype, limit):
    x, y = problem(400, features)
    received, moves = messages(x, y, x.shape[1] + 1, dtype=dtype)
    (fit,) = fit_update_maps(received, moves[None], float(np.finfo(dtype).eps))
    found = decode_least_squares(fit, lr=LR)
    H, c, optimum = closed_form(x, y)
    assert fit.rank == x.shape[1]
    assert apart(found.H, H) < limit
    assert apart(found.c, c) < limit
    assert apart(found.optimum, optimum) < 10 * limit
    assert found.H[-2, -2] / 2 == pytest.approx(x[:, -2].mean(), rel=limit)
    assert found.determined.all()


@pytest.mark.parametrize(("dtype", "limit"), [(np.float64, 1e-6), (np.float32, 1e-3)])
def test_random_participation_alone_spreads_the_models_enough(dtype, limit):
    clients = [problem(100, 20, seed) for seed in range(6)]
    received, moves = federation(clients, 80, share=0.5, dtype=dtype)
    (fit,) = fit_update_maps(received, moves[None], float(np.finfo(dtype).eps))
    found = decode_least_squares(fit, lr=0.1)
    H, _, optimum = closed_form(*clients[0])
    assert apart(found.H, H) < limit
    assert apart(found.optimum, optimum) < limit


@pytest.mark.parametrize(("steps", "weight_decay"), [(1, 0.3), (4, 0.0), (5, 0.3)])
def test_several_steps_and_weight_decay_are_undone(steps, weight_decay):
    x, y = problem(60, 6)
    received, moves = messages(x, y, 12, steps=steps, weight_decay=weight_decay)
    (fit,) = fit_update_maps(received, moves[None], FLOAT64)
    found = decode_least_squares(fit, lr=LR, steps=steps, weight_decay=weight_decay)
    H, c, optimum = closed_form(x, y)
    assert apart(found.H, H) < 1e-6
    assert apart(found.c, c) < 1e-6
    assert apart(found.optimum, optimum) < 1e-6


def test_clients_decoded_together_are_decoded_as_alone():
    data = [problem(50, 5, seed) for seed in range(3)]
    received = np.random.default_rng(1).normal(size=(9, 6))
    moves = np.stack([received - np.stack([train(model, *item) for model in received]) for item in data])
    for (x, y), move, together in zip(data, moves, fit_update_maps(received, moves, FLOAT64), strict=True):
        (alone,) = fit_update_maps(received, move[None], FLOAT64)
        np.testing.assert_allclose(together.inside, alone.inside, atol=1e-12)
        assert apart(decode_least_squares(together, lr=LR).optimum, closed_form(x, y)[2]) < 1e-9


def test_symmetry_halves_the_noise_of_what_two_directions_share():
    """Against the plain least-squares solution of the same equations, whose matrix is not symmetric."""
    x, y = problem(60, 8)
    received, _ = messages(x, y, 12)
    received[:, :4] *= 30
    draw = np.random.default_rng(3)
    errors = []
    for _ in range(20):
        exact = np.stack([model - train(model, x, y) for model in received])
        noisy = exact + 1e-5 * draw.normal(size=exact.shape)
        (fit,) = fit_update_maps(received, noisy[None], FLOAT64)
        centred = received - received.mean(axis=0)
        plain = np.linalg.lstsq(centred, noisy - noisy.mean(axis=0), rcond=None)[0] / LR
        H = closed_form(x, y)[0]
        errors.append((apart(decode_least_squares(fit, lr=LR).H, H), apart(plain, H)))
    ours, theirs = np.mean(errors, axis=0)
    assert ours < 0.8 * theirs


def test_too_few_messages_determine_nothing():
    x, y = problem(50, 6)
    received, moves = messages(x, y, 5)
    (fit,) = fit_update_maps(received, moves[None], FLOAT64)
    assert fit.rank == 4
    assert decode_least_squares(fit, lr=LR) is None
    (fit,) = fit_update_maps(received[:1], moves[None, :1], FLOAT64)
    assert fit.rank == 0
    assert decode_least_squares(fit, lr=LR) is None


def test_a_client_that_does_not_move_shows_nothing():
    received = np.random.default_rng(0).normal(size=(9, 4))
    (fit,) = fit_update_maps(received, np.zeros((1, 9, 4)), FLOAT64)
    assert fit.rank == 0
    assert decode_least_squares(fit, lr=LR) is None


def test_directions_that_rounding_hides_do_not_count():
    """With all clients in every round the models soon lie along few directions, and float32 hides the others."""
    clients = [problem(100, 20, seed) for seed in range(6)]
    received, moves = federation(clients, 60, share=1.0, dtype=np.float32)
    (fit,) = fit_update_maps(received, moves[None], FLOAT32)
    assert 2 <= fit.rank < 15
    assert decode_least_squares(fit, lr=0.1) is None
    H = closed_form(*clients[0])[0]
    assert apart(fit.inside, 0.1 * fit.basis.T @ H @ fit.basis) < 0.2


def test_fewer_records_than_parameters_need_fewer_messages():
    x, y = problem(5, 12)
    received, moves = messages(x, y, 8)
    (fit,) = fit_update_maps(received, moves[None], FLOAT64)
    found = decode_least_squares(fit, lr=LR)
    H, c, _ = closed_form(x, y)
    assert apart(found.H, H) < 1e-6
    assert apart(found.c, c) < 1e-6
    np.testing.assert_allclose(x @ found.optimum, y, atol=1e-6)
    assert not found.determined.all()


def test_a_direction_that_no_message_shows_is_not_taken_for_flat():
    curvature = np.diag([1.0, 0.0, 1.0])
    received = np.random.default_rng(0).normal(size=(5, 3)) * [1, 1, 0]
    moves = 0.1 * (received @ curvature - np.array([0.3, 0.0, 0.7]))
    (fit,) = fit_update_maps(received, moves[None], FLOAT64)
    assert fit.rank == 2
    assert decode_least_squares(fit, lr=0.1) is None


def test_singular_problems_say_which_parameters_are_open():
    x, y = problem(40, 4)
    x[:, 1] = 0.0
    received, moves = messages(x, y, 7)
    (fit,) = fit_update_maps(received, moves[None], FLOAT64)
    found = decode_least_squares(fit, lr=LR)
    assert found.determined.tolist() == [True, False, True, True, True]
    seen = found.determined
    np.testing.assert_allclose(found.optimum[seen], np.linalg.lstsq(x[:, seen], y, rcond=None)[0], atol=1e-8)
    assert found.optimum[1] == pytest.approx(received[-1, 1])


def attribute(x, y, at=-2, zero=0.0, one=1.0):
    base, change = x.copy(), np.zeros(x.shape[1])
    base[:, at], change[at] = zero, one - zero
    return BinaryAttribute(base, change, y)


@pytest.mark.parametrize(("zero", "one"), [(0.0, 1.0), (-1.0, 1.0), (0.3, 2.0)])
def test_public_attributes_decode_from_three_messages(zero, one):
    x, y = problem(60, 10)
    s = x[:, -2].copy()
    x[:, -2] = zero + (one - zero) * s
    received, moves = messages(x, y, 3)
    known = attribute(x, y, zero=zero, one=one)
    found = decode_with_public(received, moves, known, lr=LR)
    H, c, optimum = closed_form(x, y)
    assert found.exact
    assert apart(found.problem.H, H) < 1e-6
    assert apart(found.problem.c, c) < 1e-6
    assert apart(found.problem.optimum, optimum) < 1e-6


def test_public_attributes_decode_where_all_clients_take_part_in_float32():
    clients = [problem(100, 20, seed) for seed in range(6)]
    received, moves = federation(clients, 20, share=1.0, dtype=np.float32)
    found = decode_with_public(received, moves, attribute(*clients[0]), lr=0.1)
    assert found.exact
    assert apart(found.problem.optimum, closed_form(*clients[0])[2]) < 1e-3


def test_public_attributes_of_others_are_not_exact():
    x, y = problem(60, 10)
    received, moves = messages(x, y, 8)
    assert not decode_with_public(received, moves, attribute(*problem(60, 10, seed=1)), lr=LR).exact


@pytest.mark.parametrize(("bias", "at", "needed"), [(True, -2, 1), (False, -1, 2)])
def test_one_message_is_enough_with_a_bias_and_two_are_without(bias, at, needed):
    x, y = problem(60, 10, bias=bias)
    received, moves = messages(x, y, needed)
    known = attribute(x, y, at)
    H, c, optimum = closed_form(x, y)
    found = decode_with_public(received, moves, known, lr=LR)
    assert found.exact
    for got, expected in ((found.problem.H, H), (found.problem.c, c), (found.problem.optimum, optimum)):
        assert apart(got, expected) < 1e-6
    assert needed == 1 or decode_with_public(received[:1], moves[:1], known, lr=LR) is None


def test_an_attribute_that_no_model_weighs_is_not_determined():
    x, y = problem(60, 10)
    received = np.random.default_rng(0).normal(size=(3, x.shape[1]))
    received[:, -2] = 0
    moves = received - np.stack([train(model, x, y) for model in received])
    assert decode_with_public(received, moves, attribute(x, y), lr=LR) is None


def test_one_message_after_mini_batches_agrees_with_itself_but_is_not_exact():
    x, y = problem(40, 10)
    received, moves = messages(x, y, 1, steps=3, batches=np.random.default_rng(0))
    assert not decode_with_public(received, moves, attribute(x, y), lr=LR, steps=15).exact


def test_a_direction_that_is_curved_hardly_more_than_noise_is_not_divided_by():
    curvature = np.diag([1.0, 0.5, 1e-3])
    received = np.random.default_rng(0).normal(size=(40, 3))
    moves = received @ curvature
    noise = np.random.default_rng(1).normal(size=moves.shape)
    for size, decoded in ((1e-6, True), (1e-3, False)):
        (fit,) = fit_update_maps(received, (moves + size * noise)[None], FLOAT64)
        assert fit.rank == 3
        found = decode_least_squares(fit, lr=1.0)
        assert (found is not None) == decoded
        assert found is None or np.abs(found.optimum).max() < 1e-2


@pytest.mark.parametrize(("weight", "tells"), [(2.0, True), (-2.0, True), (1e-6, False), (-1e-6, False), (0.0, False)])
def test_an_attribute_as_good_as_without_weight_gets_no_sign_from_rounding(weight, tells):
    s, errors = np.array([0.0, 1.0, 1.0, 0.0]), np.array([0.3, -0.2, 0.1, -0.1])
    found = best_attribute(weight * s + errors, weight)
    np.testing.assert_allclose(found, s + errors / weight if tells else 0.5)


def test_mini_batches_and_epochs_blur_the_public_decoding_little():
    x, y = problem(40, 10)
    batches = np.random.default_rng(0)
    received, moves = messages(x, y, 40, steps=3, batches=batches)
    found = decode_with_public(received, moves, attribute(x, y), lr=LR, steps=15)
    assert not found.exact
    optimum = closed_form(x, y)[2]
    last = received[-1] - moves[-1]
    assert apart(found.problem.optimum, optimum) < 0.1 < apart(last, optimum)


@pytest.mark.parametrize("records", [6, 11])
def test_moments_of_few_records_are_the_attribute_itself(records):
    x, y = problem(records, 10, seed=2)
    received, moves = messages(x, y, 3)
    known = attribute(x, y)
    found = decode_with_public(received, moves, known, lr=LR)
    np.testing.assert_allclose(known.estimates(found.problem), x[:, -2], atol=0.05)


def test_estimates_lie_between_the_values_and_have_the_moments_of_the_truth():
    x, y = problem(60, 10)
    known = attribute(x, y)
    found = decode_with_public(*messages(x, y, 3), known, lr=LR)
    estimates = known.estimates(found.problem)
    assert estimates.min() >= 0
    assert estimates.max() <= 1
    np.testing.assert_allclose(known.base.T @ estimates, known.base.T @ x[:, -2], atol=0.02)
    np.testing.assert_allclose(y @ estimates, y @ x[:, -2], atol=0.02)


def test_extrapolation_from_a_client_left_alone_comes_near_its_optimum():
    x, y = problem(60, 6)
    model, received, moves = np.zeros(7), [], []
    for _ in range(25):
        received.append(model)
        model = train(model, x, y, lr=0.1)
        moves.append(received[-1] - model)
    optimum = closed_form(x, y)[2]
    returned, *others = extrapolate(np.stack(received), np.stack(moves), FLOAT64)
    np.testing.assert_allclose(returned, model)
    assert min(apart(item, optimum) for item in others) < 0.01 * apart(returned, optimum)
