import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

from fedattack.base.errors import DataError
from fedattack.data import load_dataset
from fedattack.data.dataset import TARGET_BINS, Dataset, sensitive_column
from tests.data.files import table
from tests.refusals import refused


def test_a_column_of_some_numbers_keeps_its_domain_in_the_inputs_own_scale():
    data = load_dataset("diabetes", seed=0)
    column = data.column("age")
    raw = load_diabetes(scaled=False).data[:, 0]
    train, _ = train_test_split(np.arange(442), test_size=0.2, random_state=0)
    assert column.values == tuple(f"{age:g}" for age in np.unique(raw))
    named = np.array(column.values, dtype=float)[column.codes(data.x_train)]
    np.testing.assert_array_equal(named, raw[train])


def test_classes_of_a_regression_are_fifths_of_its_targets():
    data = load_dataset("diabetes")
    labels, names = data.labels
    assert len(names) == TARGET_BINS
    assert np.ptp(np.bincount(labels)) <= 5
    order = np.argsort(data.y_train, kind="stable")
    assert (np.diff(labels[order]) >= 0).all()
    # Test examples are put into the fifths of the training examples.
    largest = [data.y_train[labels == label].max() for label in range(TARGET_BINS - 1)]
    np.testing.assert_array_equal(data.test_labels, (data.y_test[:, np.newaxis] > largest).sum(axis=1))


def test_images_have_no_columns():
    with pytest.raises(DataError, match=r"digits: its examples have shape \(1, 8, 8\) and so no columns"):
        load_dataset("digits").column("1")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("1", "more than 100 values, too many to enumerate"),
        ("2", "is 1 in all training examples, so there is nothing to infer"),
        ("3", "is the target itself under another name"),
        ("6", "no column '6'; expected a number from 1 to 5"),
        ("x", "no column 'x'"),
    ],
)
def test_a_column_that_cannot_be_sensitive_is_refused(tmp_path, name, message):
    draw = np.random.default_rng(0)
    y = np.arange(300) % 2
    x = np.c_[draw.normal(size=300), np.ones(300), 5 - 2 * y, y ^ (draw.random(300) < 0.1), draw.normal(size=300)]
    np.savez(tmp_path / "n.npz", x=x, y=y)
    data = load_dataset(str(tmp_path / "n.npz"))
    assert sensitive_column(data, "4").name == "4"
    with refused(DataError, message):
        sensitive_column(data, name)


def test_a_regressions_target_is_no_sensitive_column(tmp_path):
    y = np.arange(60) % 4 * 1.5
    np.savez(tmp_path / "n.npz", x=np.c_[y * 2, np.arange(60) % 3], y=y)
    toml = "file = 'n.npz'\ntarget = 'y'\ntask = 'regression'\n"
    data = load_dataset(table(tmp_path, toml=toml))
    with pytest.raises(DataError, match="is the target itself"):
        sensitive_column(data, "1")
    assert sensitive_column(data, "2").values == ("0", "1", "2")


def test_images_have_the_range_of_each_channel_and_tables_have_none():
    x = np.zeros((3, 2, 2, 2), dtype=np.float32)
    x[0, 0, 0, 0], x[1, 1, 1, 1] = -2.0, 3.0
    y = np.arange(3)
    assert Dataset("mine", x[:1], y[:1], x[1:], y[1:], 3).limits == ((-2.0, 0.0), (0.0, 3.0))
    rows = x.reshape(3, -1)
    assert Dataset("mine", rows[:1], y[:1], rows[1:], y[1:], 3).limits is None
