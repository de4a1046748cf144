"""A round's file is what the safetensors library reads."""

import errno
import os

import numpy as np
import pytest
import xxhash
from safetensors.numpy import load_file

from fedattack.record.tensors import write_tensors


def arrays():
    draw = np.random.default_rng(0)
    return {name: draw.normal(size=size).astype(np.float32) for name, size in (("none", 0), ("large", 1_012_345))} | {
        "n": np.array(3),
        "flags": draw.integers(2, size=77).astype(bool),
    }


@pytest.mark.parametrize("names", [["large"], ["none", "n"], ["none", "large", "n", "flags"]])
def test_large_and_small_files_are_whole(tmp_path, names):
    written = {name: arrays()[name] for name in names}
    said = write_tensors(tmp_path / "f", written)
    data = (tmp_path / "f").read_bytes()
    assert said == {"bytes": len(data), "xxh3": xxhash.xxh3_128(data).hexdigest()}
    read = load_file(tmp_path / "f")
    assert read.keys() == written.keys()
    for name, array in written.items():
        np.testing.assert_array_equal(read[name], array)


def test_an_error_of_the_disk_leaves_no_file(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        write_tensors(tmp_path / "f", arrays())
    assert list(tmp_path.iterdir()) == []
