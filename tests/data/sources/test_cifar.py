import dataclasses
import hashlib
import io
import tarfile
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from fedattack.base.errors import DataError
from fedattack.data import download_dataset, load_dataset
from fedattack.data.sources import cifar
from tests.data.files import standardised


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

    trusting = dataclasses.replace(cifar.CIFAR10, md5=hashlib.md5(buffer.getvalue(), usedforsecurity=False).hexdigest())
    trusting.download(tmp_path / "here")
    assert set(asked) == {"https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"}
    assert (
        load_dataset("cifar10", root=tmp_path / "here").fingerprint
        == load_dataset("cifar10", root=tmp_path / "there").fingerprint
    )
    before = len(asked)
    download_dataset("cifar10", root=tmp_path / "here")
    assert len(asked) == before  # nothing is fetched twice
