import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.model_selection import train_test_split

from fedattack.data import load_dataset
from fedattack.data.dataset import sensitive_column
from tests.data.files import rows, standardised


def test_digits_are_all_of_scikit_learns_split_by_class_and_standardised_by_the_training_split():
    data = load_dataset("digits", seed=3)
    assert (data.x_train.shape, data.x_test.shape, data.classes) == ((1437, 1, 8, 8), (360, 1, 8, 8), 10)
    assert data.input_shape == (1, 8, 8)
    assert (data.x_train.dtype, data.y_train.dtype) == (np.float32, np.int64)
    assert data.x_train.mean(dtype=np.float64) == pytest.approx(0, abs=1e-6)
    assert data.x_train.std(dtype=np.float64) == pytest.approx(1, abs=1e-6)

    original = load_digits()
    train, test = train_test_split(np.arange(1797), test_size=0.2, random_state=3, stratify=original.target)
    images = original.images[:, None] / 16
    np.testing.assert_array_equal(data.y_train, original.target[train])
    np.testing.assert_array_equal(data.y_test, original.target[test])
    np.testing.assert_allclose(data.x_test, standardised(images[test], images[train]), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.bincount(data.y_test) / np.bincount(original.target), 0.2, atol=0.01)


def test_diabetes_is_scikit_learns_standardised_by_the_training_split_with_sex_as_0_and_1():
    data = load_dataset("diabetes", seed=3)
    raw = load_diabetes(scaled=False)
    train, test = train_test_split(np.arange(442), test_size=0.2, random_state=3)
    expected = (raw.data - raw.data[train].mean(axis=0)) / raw.data[train].std(axis=0)
    expected[:, 1] = raw.data[:, 1] - 1
    np.testing.assert_allclose(data.x_train, expected[train], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(data.x_test, expected[test], rtol=1e-5, atol=1e-5)
    target = (raw.target - raw.target[train].mean()) / raw.target[train].std()
    np.testing.assert_allclose(data.y_test, target[test], rtol=1e-5, atol=1e-5)
    assert (data.task, data.classes, data.sensitive) == ("regression", 1, "sex")
    assert (data.x_train.dtype, data.y_train.dtype, data.y_test.dtype) == (np.float32,) * 3
    assert data.column_names == raw.feature_names
    column = sensitive_column(data, "sex")
    assert (column.inputs, column.values, column.domain.tolist()) == ((1,), ("1", "2"), [[0.0], [1.0]])
    np.testing.assert_array_equal(column.codes(data.x_train), raw.data[train, 1] - 1)
    assert data.column("2") is data.column("sex")


def test_breast_cancer_has_a_binary_column():
    data = load_dataset("breast-cancer", seed=0)
    x, y = rows(data)
    assert (x.shape, np.bincount(y).tolist(), data.task) == ((569, 30), [212, 357], "classification")
    numbers = load_breast_cancer(as_frame=True).frame["symmetry error"]
    codes = sensitive_column(data, data.sensitive).codes(x)
    assert codes.sum() == (numbers > numbers.median()).sum()


def test_digits_as_words_have_one_word_for_each_pixel():
    """Written out slowly: which value each pixel has."""
    data, images = load_dataset("digit-words", seed=0), load_digits().data.astype(int)
    x = np.concatenate([data.x_train, data.x_test])
    assert x.shape == (len(images), 1088)
    assert ((x == 0) | (x == 1)).all()
    assert (x.sum(axis=1) == 64).all()
    expected = {tuple(17 * pixel + value for pixel, value in enumerate(image)) for image in images}
    assert {tuple(np.flatnonzero(row)) for row in x} == expected


def test_digits_as_texts_have_one_word_for_four_pixels():
    """Written out slowly: four greys of each pixel, read as digits of a number."""
    data, images = load_dataset("digit-texts", seed=0), load_digits().images.astype(int)
    x = np.concatenate([data.x_train, data.x_test])
    expected = []
    for image in images:
        words = []
        for row in image:
            for four in (row[:4], row[4:]):
                words.append(int("".join(str(pixel // 5) for pixel in four), base=4))
        expected.append(words)
    assert x.shape == (len(images), 16)
    assert sorted(x.tolist()) == sorted(expected)
