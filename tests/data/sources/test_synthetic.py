import numpy as np

from fedattack.data import load_dataset


def test_synthetic_follows_the_model_of_the_paper():
    data = load_dataset("synthetic", seed=7)
    x = np.concatenate([data.x_train, data.x_test])
    assert (x.shape, len(data.y_test), data.classes) == ((100_000, 60), 20_000, 10)
    np.testing.assert_allclose(x.var(axis=0), [j**-1.2 for j in range(1, 61)], rtol=0.03)
    assert np.abs(np.corrcoef(x.T) - np.eye(60)).max() < 0.02

    rng = np.random.default_rng(7)
    weights, bias = rng.normal(size=(60, 10)), rng.normal(size=10)
    for record, label in zip(data.x_test[:200].astype(np.float64), data.y_test[:200], strict=True):
        exponentials = np.exp(weights.T @ record + bias)
        assert np.argmax(exponentials / exponentials.sum()) == label
    assert load_dataset("synthetic", seed=7).fingerprint == data.fingerprint


def test_synthetic_regression_is_linear_for_each_user_and_only_there():
    data = load_dataset("synthetic-regression", seed=4)
    user, x, y = data.groups["user"], data.x_train.astype(np.float64), data.y_train.astype(np.float64)
    assert len(np.unique(user)) == 10

    def unexplained(chosen):
        design = np.c_[x[chosen], np.ones(chosen.sum())]
        fit = np.linalg.lstsq(design, y[chosen], rcond=None)[0]
        return ((y[chosen] - design @ fit) ** 2).sum() / (len(design) - design.shape[1])

    noise = [unexplained(user == one) for one in range(10)]
    assert max(noise) < 2.5 * min(noise)
    assert max(noise) < 0.01 * unexplained(user >= 0)
    assert set(np.unique(data.x_train[:, 0])) == {0.0, 1.0}
    assert load_dataset("synthetic-regression", seed=4).fingerprint == data.fingerprint
