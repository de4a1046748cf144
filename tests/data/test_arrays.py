from pathlib import Path

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from fedattack.base.errors import DataError
from fedattack.data import load_dataset
from tests.data.files import save, standardised

MNIST10K = Path(__file__).parents[3] / "shared" / "data" / "mnist10k.npz"


@pytest.mark.parametrize(("shape", "expected"), [((40, 6, 5), (1, 6, 5)), ((40, 6, 5, 3), (3, 6, 5))])
def test_npz_of_bytes_holds_images(tmp_path, shape, expected):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, shape).astype(np.uint8)
    x[..., 0, 0] = np.arange(40).reshape(40, *[1] * (len(shape) - 3))  # makes each image known by its first pixel
    data = load_dataset(save(tmp_path / "mine.npz", x=x, y=np.arange(40) % 4))
    assert (data.name, data.input_shape, data.classes) == ("mine", expected, 4)

    images = (x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)) / 255
    labels = np.arange(40) % 4
    train, test = train_test_split(np.arange(40), test_size=0.2, random_state=0, stratify=labels)
    np.testing.assert_allclose(data.x_train, standardised(images[train], images[train]), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(data.x_test, standardised(images[test], images[train]), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(data.y_test, labels[test])


def test_npz_channel_of_one_value_stays_finite(tmp_path):
    data = load_dataset(save(tmp_path / "flat.npz", x=np.full((20, 4, 4), 9, np.uint8), y=np.arange(20) % 2))
    np.testing.assert_allclose(data.x_train, 0, atol=1e-7)


@pytest.mark.parametrize("dtype", [np.uint8, np.float64, bool])
def test_npz_of_rows_is_kept_as_it_is(tmp_path, dtype):
    x = (np.arange(120).reshape(40, 3) % 7).astype(dtype)
    data = load_dataset(save(tmp_path / "rows.npz", x=x, y=np.arange(40) % 2))
    assert data.x_train.dtype == np.float32
    joined = np.concatenate([data.x_train, data.x_test])
    assert sorted(map(tuple, joined.tolist())) == sorted(map(tuple, x.astype(float).tolist()))


def test_npz_with_a_class_too_rare_to_split_is_split_all_the_same(tmp_path):
    y = np.r_[np.zeros(20, int), 1]
    data = load_dataset(save(tmp_path / "rare.npz", x=np.eye(21), y=y))
    assert (len(data.y_train), len(data.y_test), data.classes) == (16, 5, 2)


X, Y = np.zeros((20, 3)), np.arange(20) % 2


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "no array y"),
        ({"images": X, "labels": Y}, r"no array x and y.*got images, labels"),
        ({"x": X[:19], "y": Y}, r"array x: expected 20 examples.*got shape \(19, 3\)"),
        ({"x": Y, "y": Y}, r"array x: expected 20 examples.*got shape \(20,\)"),
        ({"x": X[:, :0], "y": Y}, r"array x: .*not empty.*\(20, 0\)"),
        (
            {"x": np.where(np.arange(20)[:, None] == 4, np.nan, X), "y": Y},
            r"array x: .*NaN or infinity in 1 .*example 4",
        ),
        ({"x": np.where(np.arange(20)[:, None] >= 4, 1e300, X), "y": Y}, r"array x: .*NaN or infinity in 16 examples"),
        ({"x": X.astype(object), "y": Y}, "x: it holds Python objects"),
        ({"x": X.astype(str), "y": Y}, "array x: expected numbers; got dtype"),
        ({"x": X, "y": Y.astype(float)}, "array y: expected integer labels.*float64"),
        ({"x": X, "y": Y[:, None]}, r"array y: expected integer labels.*\(20, 1\)"),
        ({"x": X, "y": Y + 1}, "array y: expected labels 0 .* got 2 labels from 1 to 2"),
        ({"x": X, "y": Y - 1}, "array y: .*from -1 to 0"),
        ({"x": X, "y": Y * 2}, "array y: .*got 2 labels from 0 to 2"),
        ({"x": X, "y": Y * 0}, "array y: .*two classes"),
        ({"x": X[:0], "y": Y[:0]}, "array y: .*got none"),
        ({"x": X[:9], "y": Y[:9]}, "too few examples: expected at least 10, got 9"),
        ({"x": np.zeros((20, 3, 8, 8), np.uint8), "y": Y}, r"array x: expected uint8 images.*\(20, 3, 8, 8\)"),
        ({"x": np.zeros((20, 2, 2, 2, 1), np.uint8), "y": Y}, "array x: expected uint8 images"),
    ],
)
def test_npz_that_does_not_fit_is_refused_by_file_array_expected_and_got(tmp_path, arrays, message):
    path = save(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError, match=message) as caught:
        load_dataset(path)
    assert str(caught.value).startswith(path)
    assert "\n" not in str(caught.value)


def test_npz_that_is_missing_or_damaged_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"nowhere.npz: no such file"):
        load_dataset(str(tmp_path / "nowhere.npz"))
    text = tmp_path / "text.npz"
    text.write_text("not an archive")
    with pytest.raises(DataError, match=r"text.npz cannot be read as an .npz"):
        load_dataset(str(text))
    whole = Path(save(tmp_path / "cut.npz", x=np.arange(6000.0).reshape(20, 300), y=Y))
    content = bytearray(whole.read_bytes())
    content[20_000] ^= 255
    whole.write_bytes(content)
    with pytest.raises(DataError, match=r"cut.npz cannot be read as an .npz"):
        load_dataset(str(whole))


@pytest.mark.shared
@pytest.mark.skipif(not MNIST10K.exists(), reason="needs the project's shared data folder")
def test_mnist_test_images_load_from_their_npz():
    data = load_dataset(str(MNIST10K))
    assert (data.x_train.shape, data.x_test.shape, data.classes) == ((8000, 1, 28, 28), (2000, 1, 28, 28), 10)
    assert data.x_train.std(dtype=np.float64) == pytest.approx(1, abs=1e-6)


def test_columns_of_a_plain_npz_have_numbers_from_1(tmp_path):
    x = np.random.default_rng(0).integers(0, 2, size=(40, 5))
    np.savez(tmp_path / "plain.npz", x=x, y=np.arange(40) % 2)
    data = load_dataset(str(tmp_path / "plain.npz"))
    column = data.column("3")
    assert (column.inputs, column.values) == ((2,), ("0", "1"))
    np.testing.assert_array_equal(column.codes(data.x_train), data.x_train[:, 2])
