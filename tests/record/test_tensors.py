"""A round's file is what the safetensors library reads, whatever its size and the file system."""

import errno
import os

import numpy as np
import pytest
import xxhash
from safetensors.numpy import load_file

from fedattack.record import tensors
from fedattack.record.tensors import write_tensors

SIZES = {"none": 0, "small": 100, "odd": tensors._BLOCK // 4 + 12_345, "large": 3 * tensors._BLOCK // 4}


def arrays():
    draw = np.random.default_rng(0)
    return {name: draw.normal(size=size).astype(np.float32) for name, size in SIZES.items()} | {
        "n": np.array(3),
        "flags": draw.integers(2, size=77).astype(bool),
    }


def check(path, written, said):
    data = path.read_bytes()
    assert said == {"bytes": len(data), "xxh3": xxhash.xxh3_128(data).hexdigest()}
    read = load_file(path)
    assert read.keys() == written.keys()
    for name, array in written.items():
        np.testing.assert_array_equal(read[name], array)


@pytest.mark.parametrize("names", [["small"], ["odd"], ["large"], ["none", "n"], [*SIZES, "n", "flags"]])
def test_large_and_small_files_are_whole(tmp_path, names):
    written = {name: arrays()[name] for name in names}
    check(tmp_path / "f", written, write_tensors(tmp_path / "f", written))


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="every write goes the usual way here")
@pytest.mark.parametrize("after", [0, 2])
def test_a_file_system_without_direct_writes_takes_the_usual_ones(tmp_path, monkeypatch, after):
    """It refuses at once or later, and in between it writes less than it was given."""
    import fcntl

    write, asked = os.write, []

    def refusing(descriptor, data):
        direct = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT
        asked.append(bool(direct))
        if direct and asked.count(True) > after:
            raise OSError(errno.EINVAL, "no direct writes here")
        return write(descriptor, data if direct else data[: len(data) // 2 + 1])

    monkeypatch.setattr(os, "write", refusing)
    written = arrays()
    said = write_tensors(tmp_path / "f", written)
    monkeypatch.undo()
    assert asked.count(False) > 10
    check(tmp_path / "f", written, said)


def test_an_error_of_the_disk_leaves_no_file(tmp_path, monkeypatch):
    def full(descriptor, data):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="no space left"):
        write_tensors(tmp_path / "f", arrays())
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []
