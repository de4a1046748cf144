import numpy as np
import pytest

from fedattack.attacks import PartialRecords, Targets
from fedattack.threats.attribute.imputation import impute


def problem(kind, n=400, seed=0):
    """Records of which the second column is asked; it follows from another column, from the label, or from nothing."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(n, 4)).astype(np.float32)
    y = draw.integers(0, 3, size=n)
    s = {"column": x[:, 0] > 0, "label": y == 2, "nothing": draw.random(n) < 0.3}[kind].astype(int)
    x[:, 1] = s
    asked, public = np.arange(n) < n // 2, np.arange(n) >= n // 2
    blank = x[asked].copy()
    blank[:, 1] = 0
    partial = PartialRecords(blank, y[asked], np.full(asked.sum(), "0"), (1,), np.float32([[0], [1]]), ("no", "yes"))
    return partial, Targets(x[public], y[public]), s[asked]


@pytest.mark.parametrize(("kind", "least"), [("column", 0.95), ("label", 1.0)])
@pytest.mark.slow
def test_what_follows_from_columns_or_label_is_imputed(kind, least):
    partial, auxiliary, truth = problem(kind)
    beliefs, name = impute(partial, auxiliary, seed=0)
    np.testing.assert_allclose(beliefs.sum(axis=1), 1)
    assert (beliefs.argmax(axis=1) == truth).mean() >= least
    assert name != "majority"


@pytest.mark.slow
def test_what_follows_from_nothing_is_no_better_than_the_majority():
    partial, auxiliary, truth = problem("nothing")
    beliefs, _ = impute(partial, auxiliary, seed=0)
    assert (beliefs.argmax(axis=1) == truth).mean() <= (truth == 0).mean() + 0.02


@pytest.mark.slow
def test_the_blanked_inputs_are_not_looked_at_and_the_seed_decides():
    partial, auxiliary, _ = problem("column")
    first, name = impute(partial, auxiliary, seed=3)
    again, same = impute(partial, auxiliary, seed=3)
    assert name == same
    np.testing.assert_array_equal(first, again)
    filled = PartialRecords(**(vars(partial) | {"x": partial.complete(1)}))
    np.testing.assert_array_equal(impute(filled, auxiliary, seed=3)[0], first)


@pytest.mark.slow
def test_one_hot_attributes_and_a_regression_s_label_are_used():
    draw = np.random.default_rng(0)
    y = draw.normal(size=300).astype(np.float32)
    s = np.digitize(y, [-0.5, 0.5])
    x = np.c_[draw.normal(size=300), np.eye(3)[s]].astype(np.float32)
    blank = x[:100].copy()
    blank[:, 1:] = 0
    partial = PartialRecords(blank, y[:100], np.full(100, "0"), (1, 2, 3), np.eye(3, dtype=np.float32), ("a", "b", "c"))
    assert (impute(partial, Targets(x[100:], y[100:]), seed=0)[0].argmax(axis=1) == s[:100]).mean() > 0.95


def test_a_public_attribute_that_never_varies_is_that_value():
    partial, auxiliary, _ = problem("column")
    auxiliary.x[:, 1] = 1
    beliefs, name = impute(partial, auxiliary, seed=0)
    np.testing.assert_array_equal(beliefs, [[0, 1]] * len(partial))
    assert name == "the only public value"


def test_few_public_records_give_the_majority():
    partial, auxiliary, _ = problem("nothing")
    few = Targets(auxiliary.x[:9], auxiliary.y[:9])
    beliefs, name = impute(partial, few, seed=0)
    assert name == "majority"
    share = few.x[:, 1].mean()
    np.testing.assert_allclose(beliefs, [[1 - share, share]] * len(partial), rtol=1e-6)


@pytest.mark.slow
def test_without_labels_what_follows_from_them_alone_is_not_found():
    partial, auxiliary, truth = problem("label")
    beliefs, _ = impute(partial, auxiliary, labels=False, seed=0)
    assert (beliefs.argmax(axis=1) == truth).mean() <= (truth == 0).mean() + 0.05


@pytest.mark.slow
def test_public_records_outside_the_domain_are_left_out():
    partial, auxiliary, truth = problem("column")
    odd = auxiliary.x.copy()
    odd[::2, 1] = 7
    beliefs, _ = impute(partial, Targets(odd, auxiliary.y), seed=0)
    assert (beliefs.argmax(axis=1) == truth).mean() >= 0.9
