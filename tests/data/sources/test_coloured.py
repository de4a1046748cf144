from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedattack.base.errors import DataError
from fedattack.data import DATASETS, load_dataset
from tests.data.files import save, write_mnist_family


def colours_of(x: np.ndarray) -> np.ndarray:
    """The brightest channel of each image (n, 3, h, w) before standardising: its own rise over the background."""
    return (x.max(axis=(2, 3)) - x.min(axis=(2, 3))).argmax(axis=1)


@pytest.mark.parametrize("rows", [slice(0, 1437), slice(1437, 1797)])
def test_digits_in_colour_are_digits_whose_image_alone_tells_colour_and_thickness(rows):
    pool = DATASETS["colour-digits"].read(0, Path())
    (values, colour), (pens, thick) = pool.private["colour"], pool.private["thickness"]
    assert (values, pens) == (("red", "green", "blue"), ("thin", "thick"))
    assert (pool.x.shape, pool.x.dtype) == ((1797, 3, 16, 16), np.float32)
    np.testing.assert_array_equal(colours_of(pool.x)[rows], colour[rows])
    grey = load_digits().images
    ink = pool.x.max(axis=1).sum(axis=(1, 2)) / grey.sum(axis=(1, 2))
    assert ink[thick == 1].min() > ink[thick == 0].max(), "a thick pen leaves more ink than a thin one, on any digit"
    np.testing.assert_array_equal(pool.y, load_digits().target)


def test_private_attributes_are_drawn_from_the_seed_apart_from_the_digit_and_each_other():
    first, again, other = (load_dataset("colour-digits", seed=seed) for seed in (0, 0, 1))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert first.input_shape == (3, 16, 16)
    for name, count in (("colour", 3), ("thickness", 2)):
        column = first.private[name]
        assert (len(column.train), len(column.test)) == (len(first.y_train), len(first.y_test))
        assert column.train.dtype == np.int64
        np.testing.assert_allclose(np.bincount(column.train) / len(column.train), 1 / count, atol=0.05)
        shares = [np.bincount(column.train[first.y_train == digit], minlength=count) for digit in range(10)]
        np.testing.assert_allclose(np.array(shares) / np.sum(shares, axis=1, keepdims=True), 1 / count, atol=0.16)
        np.testing.assert_array_equal(first.groups[name], column.train)
        np.testing.assert_array_equal(first.test_groups[name], column.test)
        np.testing.assert_array_equal(column.train, again.private[name].train)
    together = np.corrcoef(first.private["colour"].train, first.private["thickness"].train)[0, 1]
    assert abs(together) < 0.1
    assert (first.private["colour"].train != other.private["colour"].train).any()


def test_a_subsample_keeps_each_images_own_attributes():
    data = load_dataset("colour-digits", seed=2, size=200)
    rises = np.concatenate([data.x_train, data.x_test]) * 1.0
    colour = np.concatenate([data.private["colour"].train, data.private["colour"].test])
    np.testing.assert_array_equal(colours_of(rises), colour)


def test_colour_mnist_takes_the_downloaded_files_or_an_npz_in_the_data_folder(tmp_path):
    with pytest.raises(DataError, match="fedattack download"):
        load_dataset("colour-mnist", root=tmp_path)
    _, y = write_mnist_family(tmp_path / "MNIST" / "raw", "train", "t10k")
    data = load_dataset("colour-mnist", root=tmp_path)
    assert (data.x_train.shape, data.x_test.shape) == ((20, 3, 28, 28), (10, 3, 28, 28))
    np.testing.assert_array_equal(data.y_test, y[20:])
    assert (len(data.private["colour"].train), len(data.private["colour"].test)) == (20, 10)
    save(tmp_path / "mnist.npz", x=np.arange(40 * 25).reshape(40, 5, 5).astype(np.uint8), y=np.arange(40) % 4)
    own = load_dataset("colour-mnist", root=tmp_path)
    assert (own.input_shape, own.classes, len(own.y_train) + len(own.y_test)) == ((3, 5, 5), 4, 40)
    save(tmp_path / "mnist.npz", x=np.zeros((40, 25), np.float32), y=np.arange(40) % 4)
    with pytest.raises(DataError, match="expected grey images"):
        load_dataset("colour-mnist", root=tmp_path)
