import io
import tarfile
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from fedattack.base.errors import DataError
from fedattack.data import download_dataset, load_dataset
from tests.data.files import rows, table


@pytest.mark.parametrize("quote", ['"', ""])
def test_shokris_files_are_read_as_they_are_distributed(tmp_path, quote):
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 2, size=(60, 446)), np.arange(60) % 30
    lines = [f"{quote}{label + 1}{quote},{','.join(map(str, record))}" for label, record in zip(y, x, strict=True)]
    (tmp_path / "location30").mkdir()
    (tmp_path / "location30" / "bangkok").write_text("\n".join(lines) + "\n")
    data = load_dataset("location30", root=tmp_path, test_fraction=0.5)
    assert (data.input_shape, data.classes) == ((446,), 30)
    got = {(record.tobytes(), int(label)) for record, label in zip(*rows(data), strict=True)}
    assert got == {(record.astype(np.float32).tobytes(), int(label)) for record, label in zip(x, y, strict=True)}
    # and the same file, declared
    toml = f"file = '{tmp_path}/location30/bangkok'\nheader = false\ntarget = 1\n"
    declared = load_dataset(table(tmp_path, toml=toml), test_fraction=0.5)
    assert declared.column_names[:2] == ["1", "2"]
    np.testing.assert_array_equal(declared.y_train, data.y_train)
    np.testing.assert_array_equal(declared.column("7").codes(declared.x_train), data.column("7").codes(data.x_train))


def test_shokris_archive_is_unpacked_by_its_one_file(tmp_path, monkeypatch):
    def fetch(url, file):
        assert url.endswith("/dataset_location.tgz")
        with tarfile.open(file, "w:gz") as tar:
            for name in ("../escaped", "bangkok"):
                item = tarfile.TarInfo(name)
                item.size = 3
                tar.addfile(item, io.BytesIO(b"1,0"))

    monkeypatch.setattr(urllib.request, "urlretrieve", fetch)
    download_dataset("location30", root=tmp_path)
    assert [path.name for path in (tmp_path / "location30").iterdir()] == ["bangkok"]
    assert not (tmp_path / "escaped").exists()
    with pytest.raises(DataError, match="446 zeros and ones a line; got 1 columns"):
        load_dataset("location30", root=tmp_path)


def test_a_download_that_stops_leaves_no_half_of_a_file(tmp_path, monkeypatch):
    def fetch(url, file):
        with tarfile.open(file, "w:gz") as tar:
            item = tarfile.TarInfo("bangkok")
            item.size = 3
            tar.addfile(item, io.BytesIO(b"1,0"))

    def write_half(path, data):
        with path.open("wb") as file:
            file.write(data[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(urllib.request, "urlretrieve", fetch)
    monkeypatch.setattr(Path, "write_bytes", write_half)
    with pytest.raises(DataError, match="No space left"):
        download_dataset("location30", root=tmp_path)
    assert not (tmp_path / "location30" / "bangkok").exists()
