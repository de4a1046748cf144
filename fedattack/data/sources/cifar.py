"""CIFAR-10 and CIFAR-100, in their binary versions.

Nothing here reads a pickle. Torchvision's reader unpickles the python version, so the binary version is downloaded
instead and parsed with numpy.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedattack.data.source import Images, Pool, Source, read_images


@dataclass(frozen=True)
class _Cifar:
    """A binary version: rows of one or two label bytes and 3 x 32 x 32 pixel bytes."""

    name: str
    archive: str
    md5: str
    folder: str
    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    label_bytes: int
    classes: int

    def read(self, seed: int, root: Path) -> Pool:
        return read_images(
            self.name, root / self.folder, (self.train_files, self.test_files), self._parse, self.classes
        )

    def _parse(self, files: list[Path]) -> Images:
        # fromfile reads raw bytes: nothing is unpickled.
        content = np.concatenate([np.fromfile(file, dtype=np.uint8) for file in files])
        rows = content.reshape(-1, self.label_bytes + 3 * 32 * 32)
        # CIFAR-100 has the coarse label first and then the fine one, which is the label of the task.
        labels = rows[:, self.label_bytes - 1].astype(np.int64)
        return rows[:, self.label_bytes :].reshape(-1, 3, 32, 32), labels

    def download(self, root: Path) -> None:
        files = self.train_files + self.test_files
        if all((root / self.folder / file).is_file() for file in files):
            return
        from torchvision.datasets.utils import download_and_extract_archive

        url = f"https://www.cs.toronto.edu/~kriz/{self.archive}"
        download_and_extract_archive(url, str(root), filename=self.archive, md5=self.md5)


CIFAR10 = _Cifar(
    "cifar10",
    archive="cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    folder="cifar-10-batches-bin",
    train_files=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test_files=("test_batch.bin",),
    label_bytes=1,
    classes=10,
)
CIFAR100 = _Cifar(
    "cifar100",
    archive="cifar-100-binary.tar.gz",
    md5="03b5dce01913d631647c71ecec9e9cb8",
    folder="cifar-100-binary",
    train_files=("train.bin",),
    test_files=("test.bin",),
    label_bytes=2,
    classes=100,
)

SOURCES = (
    Source(
        "cifar10", "10 kinds of objects, 60,000 colour images of 32 x 32", CIFAR10.read, CIFAR10.download, position=20
    ),
    Source(
        "cifar100",
        "100 kinds of objects, 60,000 colour images of 32 x 32",
        CIFAR100.read,
        CIFAR100.download,
        position=21,
    ),
)
