"""MNIST, Fashion-MNIST and EMNIST, in the idx files that torchvision downloads.

Nothing here reads a pickle. Torchvision would unpickle a folder ``processed`` that its versions before 0.9 left behind,
so only the idx files in ``raw`` are read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedattack.data.source import Images, Pool, Source, read_images


@dataclass(frozen=True)
class _Idx:
    """A dataset of torchvision's MNIST family."""

    name: str
    torchvision_class: str
    train_prefix: str = "train"
    test_prefix: str = "t10k"
    classes: int = 10
    options: Mapping[str, str] = field(default_factory=dict)
    transposed: bool = False

    def read(self, seed: int, root: Path) -> Pool:
        folder = root / self.torchvision_class / "raw"
        prefixes = (self.train_prefix, self.test_prefix)
        files = [(f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte") for prefix in prefixes]
        return read_images(self.name, folder, files, self._parse, self.classes)

    def _parse(self, files: list[Path]) -> Images:
        from torchvision.datasets.mnist import read_image_file, read_label_file

        images = read_image_file(str(files[0])).numpy()
        labels = read_label_file(str(files[1])).numpy()
        if self.transposed:
            images = images.transpose(0, 2, 1)
        return images[:, np.newaxis], labels

    def download(self, root: Path) -> None:
        from torchvision import datasets

        base = getattr(datasets, self.torchvision_class)
        # The constructor downloads, but first looks for the pickles of old versions. The class keeps its name because
        # torchvision names the folder after it.
        without_pickles = type(base.__name__, (base,), {"_check_legacy_exist": lambda self: False})
        without_pickles(str(root), download=True, **self.options)


MNIST = _Idx("mnist", "MNIST")
FASHION = _Idx("fashion-mnist", "FashionMNIST")
EMNIST = _Idx(
    "emnist",
    "EMNIST",
    train_prefix="emnist-balanced-train",
    test_prefix="emnist-balanced-test",
    classes=47,
    options={"split": "balanced"},
    # EMNIST stores its images with rows and columns exchanged; upright they match MNIST's.
    transposed=True,
)

SOURCES = (
    Source("mnist", "handwritten digits, 70,000 grey images of 28 x 28", MNIST.read, MNIST.download, position=10),
    Source("fashion-mnist", "clothes, 70,000 grey images of 28 x 28", FASHION.read, FASHION.download, position=11),
    Source(
        "emnist",
        "handwritten letters and digits (balanced split), 131,600 grey images of 28 x 28, 47 classes",
        EMNIST.read,
        EMNIST.download,
        position=12,
    ),
)
