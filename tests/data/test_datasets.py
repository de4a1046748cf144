import dataclasses
import hashlib
import io
import struct
import tarfile
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from fedattack.data import DATASETS, data_root, datasets, download_dataset, load_dataset
from fedattack.errors import DataError

MNIST10K = Path(__file__).parents[3] / "shared" / "data" / "mnist10k.npz"


def write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def write_mnist_family(folder: Path, train_prefix: str, test_prefix: str) -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 256, (30, 28, 28)), np.arange(30) % 10
    for prefix, rows in ((train_prefix, slice(0, 20)), (test_prefix, slice(20, 30))):
        write_idx(folder / f"{prefix}-images-idx3-ubyte", x[rows])
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", y[rows])
    return x, y


def standardised(x: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Images (n, C, H, W) in 0 … 1 by mean and deviation of the training images, one channel at a time."""
    return np.stack(
        [(x[:, c] - train[:, c].mean()) / (train[:, c].std() or 1.0) for c in range(x.shape[1])], axis=1
    ).astype(np.float32)


def save(path: Path, **arrays: object) -> str:
    np.savez(path, **arrays)
    return str(path)


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


def test_same_seed_gives_the_same_records_and_fingerprint_and_another_seed_others():
    first, again, other = (load_dataset("digits", seed=seed) for seed in (0, 0, 1))
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint != other.fingerprint
    changed = dataclasses.replace(first, y_test=first.y_test[::-1].copy())
    assert changed.fingerprint != first.fingerprint


def test_size_draws_a_subsample_of_the_pool():
    data = load_dataset("digits", seed=0, size=100)
    assert (len(data.y_train), len(data.y_test)) == (80, 20)
    assert load_dataset("digits", seed=1, size=100).fingerprint != data.fingerprint


def test_test_fraction_is_the_share_of_test_records():
    assert len(load_dataset("digits", size=100, test_fraction=0.35).y_test) == 35


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
        ({"x": X[:19], "y": Y}, r"array x: expected 20 records.*got shape \(19, 3\)"),
        ({"x": Y, "y": Y}, r"array x: expected 20 records.*got shape \(20,\)"),
        ({"x": X[:, :0], "y": Y}, r"array x: .*not empty.*\(20, 0\)"),
        (
            {"x": np.where(np.arange(20)[:, None] == 4, np.nan, X), "y": Y},
            r"array x: .*NaN or infinity in 1 .*record 4",
        ),
        ({"x": np.where(np.arange(20)[:, None] >= 4, 1e300, X), "y": Y}, r"array x: .*NaN or infinity in 16 records"),
        ({"x": X.astype(object), "y": Y}, "x: it holds Python objects"),
        ({"x": X.astype(str), "y": Y}, "array x: expected numbers; got dtype"),
        ({"x": X, "y": Y.astype(float)}, "array y: expected integer labels.*float64"),
        ({"x": X, "y": Y[:, None]}, r"array y: expected integer labels.*\(20, 1\)"),
        ({"x": X, "y": Y + 1}, "array y: expected labels 0 .* got 2 labels from 1 to 2"),
        ({"x": X, "y": Y - 1}, "array y: .*from -1 to 0"),
        ({"x": X, "y": Y * 2}, "array y: .*got 2 labels from 0 to 2"),
        ({"x": X, "y": Y * 0}, "array y: .*two classes"),
        ({"x": X[:0], "y": Y[:0]}, "array y: .*got none"),
        ({"x": X[:9], "y": Y[:9]}, "too few records: expected at least 10, got 9"),
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


@pytest.mark.parametrize("size", [9, 1798])
def test_size_outside_the_pool_is_refused(size):
    with pytest.raises(DataError, match=f"between 10 and its 1797 records; got {size}"):
        load_dataset("digits", size=size)


@pytest.mark.parametrize("fraction", [0.0, 1.0, float("nan")])
def test_test_fraction_outside_its_range_is_refused(fraction):
    with pytest.raises(DataError, match="between 0 and 1"):
        load_dataset("digits", test_fraction=fraction)


def test_unknown_name_lists_the_known_ones_and_the_npz_form():
    with pytest.raises(DataError, match=r"'mnits'.*digits, synthetic, mnist.*\.npz"):
        load_dataset("mnits")


def test_data_root_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDATTACK_DATA", str(tmp_path / "data"))
    assert data_root() == tmp_path / "data"
    monkeypatch.delenv("FEDATTACK_DATA")
    assert data_root() == tmp_path / "cache" / "fedattack"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_root() == Path.home() / ".cache" / "fedattack"


@pytest.mark.parametrize(
    ("name", "folder", "prefixes"),
    [
        ("mnist", "MNIST", ("train", "t10k")),
        ("fashion-mnist", "FashionMNIST", ("train", "t10k")),
        ("emnist", "EMNIST", ("emnist-balanced-train", "emnist-balanced-test")),
    ],
)
def test_idx_files_keep_their_own_test_set_and_pickles_beside_them_are_not_read(
    tmp_path, monkeypatch, name, folder, prefixes
):
    x, y = write_mnist_family(tmp_path / folder / "raw", *prefixes)
    (tmp_path / folder / "processed").mkdir()
    for file in ("training.pt", "test.pt", "training_balanced.pt", "test_balanced.pt"):
        (tmp_path / folder / "processed" / file).write_bytes(b"left by an old torchvision")

    def unpickle(*args: object, **kwargs: object) -> None:
        raise AssertionError("unpickled")

    monkeypatch.setattr(torch, "load", unpickle)

    data = load_dataset(name, root=tmp_path)
    upright = (x.transpose(0, 2, 1) if name == "emnist" else x)[:, None] / 255
    np.testing.assert_array_equal(data.y_train, y[:20])
    np.testing.assert_array_equal(data.y_test, y[20:])
    np.testing.assert_allclose(data.x_test, standardised(upright[20:], upright[:20]), rtol=1e-4, atol=1e-5)
    assert data.classes == (47 if name == "emnist" else 10)

    options = {"split": "balanced"} if name == "emnist" else {}
    with pytest.raises(AssertionError, match="unpickled"):  # the trap works: torchvision itself falls into it
        getattr(torchvision.datasets, folder)(str(tmp_path), **options)
    assert download_dataset(name, root=tmp_path) == tmp_path


def test_size_keeps_the_proportion_of_a_datasets_own_test_set(tmp_path):
    write_mnist_family(tmp_path / "MNIST" / "raw", "train", "t10k")
    data = load_dataset("mnist", root=tmp_path, size=12)
    assert (len(data.y_train), len(data.y_test)) == (8, 4)


def test_missing_files_name_the_folder_and_the_command(tmp_path):
    for name in ("mnist", "fashion-mnist", "emnist", "cifar10", "cifar100"):
        with pytest.raises(DataError, match=f"{tmp_path}.*run `fedattack download {name}`"):
            load_dataset(name, root=tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x00\x00\x08\x03", b"\x00\x00\x07\x03" + bytes(30), bytes(3000)])
def test_damaged_idx_file_is_refused(tmp_path, content):
    folder = tmp_path / "MNIST" / "raw"
    write_mnist_family(folder, "train", "t10k")
    (folder / "t10k-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(DataError, match=f"'mnist' in {folder} is damaged"):
        load_dataset("mnist", root=tmp_path)


def write_cifar(root: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Six files of CIFAR-10 or two of CIFAR-100, 10 images each; returns pixels (n, 3, 32, 32) and labels."""
    folder, files, label_bytes = {
        "cifar10": ("cifar-10-batches-bin", [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"], 1),
        "cifar100": ("cifar-100-binary", ["train.bin", "test.bin"], 2),
    }[name]
    (root / folder).mkdir(parents=True)
    rng = np.random.default_rng(2)
    pixels = rng.integers(0, 256, (len(files) * 10, 3, 32, 32)).astype(np.uint8)
    labels = rng.integers(0, 10, (len(files) * 10, label_bytes)).astype(np.uint8)
    for i, file in enumerate(files):
        with (root / folder / file).open("wb") as out:
            for row in range(i * 10, (i + 1) * 10):
                out.write(labels[row].tobytes() + pixels[row].tobytes())
    return pixels, labels[:, -1]


@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_cifar_is_read_from_its_binary_version_with_fine_labels(tmp_path, name, classes):
    pixels, labels = write_cifar(tmp_path, name)
    data = load_dataset(name, root=tmp_path)
    assert data.classes == classes
    np.testing.assert_array_equal(np.r_[data.y_train, data.y_test], labels)
    images = pixels / 255
    np.testing.assert_allclose(data.x_test, standardised(images[-10:], images[:-10]), rtol=1e-4, atol=1e-5)


def test_damaged_cifar_file_is_refused(tmp_path):
    write_cifar(tmp_path, "cifar10")
    file = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"'cifar10' in .* is damaged"):
        load_dataset("cifar10", root=tmp_path)
    file.write_bytes(bytes([10]) + bytes(3072))
    with pytest.raises(DataError, match=r"'cifar10' in .* is damaged"):
        load_dataset("cifar10", root=tmp_path)


class Response(io.BytesIO):
    def __init__(self, content: bytes, url: str) -> None:
        super().__init__(content)
        self.url, self.length = url, len(content)


def serve(monkeypatch: pytest.MonkeyPatch, content: bytes) -> list[str]:
    """Answer every request with one content, and return the list of the addresses asked for."""
    asked: list[str] = []

    def urlopen(request: urllib.request.Request, *args: object, **kwargs: object) -> Response:
        asked.append(request.full_url)
        return Response(content, request.full_url)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return asked


def test_cifar_download_checks_and_unpacks_the_binary_archive(tmp_path, monkeypatch):
    write_cifar(tmp_path / "there", "cifar10")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(tmp_path / "there" / "cifar-10-batches-bin", "cifar-10-batches-bin")
    asked = serve(monkeypatch, buffer.getvalue())

    with pytest.raises(DataError, match=r"could not download 'cifar10'.*corrupted"):
        download_dataset("cifar10", root=tmp_path / "wrong")

    files = datasets._DOWNLOADED["cifar10"][1]
    trusting = dataclasses.replace(files, md5=hashlib.md5(buffer.getvalue(), usedforsecurity=False).hexdigest())
    trusting.download(tmp_path / "here")
    assert set(asked) == {"https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"}
    assert (
        load_dataset("cifar10", root=tmp_path / "here").fingerprint
        == load_dataset("cifar10", root=tmp_path / "there").fingerprint
    )
    before = len(asked)
    download_dataset("cifar10", root=tmp_path / "here")
    assert len(asked) == before  # nothing is fetched twice


@pytest.mark.parametrize("name", [name for name, source in DATASETS.items() if source.download])
def test_download_without_a_network_is_one_clear_line(tmp_path, monkeypatch, name):
    def offline(*args: object, **kwargs: object) -> None:
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(urllib.request, "urlopen", offline)
    monkeypatch.setattr("sklearn.datasets._openml.urlopen", offline)
    with pytest.raises(DataError, match=f"could not download '{name}' into .*no route to host.*network") as caught:
        download_dataset(name, root=tmp_path)
    assert "\n" not in str(caught.value)


def test_download_of_what_is_bundled_or_unknown_is_refused():
    with pytest.raises(DataError, match="'digits' needs no download"):
        download_dataset("digits")
    with pytest.raises(DataError, match="unknown dataset 'imagenet'"):
        download_dataset("imagenet")


@pytest.mark.parametrize("name", [name for name, source in DATASETS.items() if source.by_hand])
def test_what_a_user_has_to_fetch_is_said_by_download_and_by_reading(tmp_path, name):
    for call in (download_dataset, load_dataset):
        with pytest.raises(DataError, match=f"'{name}' is not .*fetch .* into a folder {name}") as caught:
            call(name, root=tmp_path)
        assert "\n" not in str(caught.value)


@pytest.mark.shared
@pytest.mark.skipif(not MNIST10K.exists(), reason="needs the project's shared data folder")
def test_mnist_test_images_load_from_their_npz():
    data = load_dataset(str(MNIST10K))
    assert (data.x_train.shape, data.x_test.shape, data.classes) == ((8000, 1, 28, 28), (2000, 1, 28, 28), 10)
    assert data.x_train.std(dtype=np.float64) == pytest.approx(1, abs=1e-6)


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
