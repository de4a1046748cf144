"""Small files in the formats of datasets, for several tests."""

import struct
from pathlib import Path

import numpy as np


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


CSV = """age,sex,work,income
30,F,army,low
40,M,bank,high
50,M,shop,low
20,F,bank,high
60,M,army,low
25,F,shop,high
35,M,bank,low
45,F,army,high
55,M,shop,low
65,F,bank,high
"""
TOML = "file = 'people.csv'\ntarget = 'income'\n"


def table(folder, csv=CSV, toml=TOML):
    (folder / "people.csv").write_text(csv)
    (folder / "people.toml").write_text(toml)
    return str(folder / "people.toml")


def rows(data):
    return np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test])
