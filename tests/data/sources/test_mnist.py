import numpy as np
import pytest
import torch
import torchvision

from fedattack.base.errors import DataError
from fedattack.data import download_dataset, load_dataset
from tests.data.files import standardised, write_mnist_family


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


@pytest.mark.parametrize("content", [b"", b"\x00\x00\x08\x03", b"\x00\x00\x07\x03" + bytes(30), bytes(3000)])
def test_damaged_idx_file_is_refused(tmp_path, content):
    folder = tmp_path / "MNIST" / "raw"
    write_mnist_family(folder, "train", "t10k")
    (folder / "t10k-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(DataError, match=f"'mnist' in {folder} is damaged"):
        load_dataset("mnist", root=tmp_path)
