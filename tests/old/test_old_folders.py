"""Records of older versions can be read and gone on with, or are refused in one line.

``individual.zip`` and ``sums.zip`` are from before version 2 of the record's format. They were made at revision 1610677
by `fedattack audit quickstart --seeds 2` and `fedattack audit prolin-inversion --seeds 1`, with few clients and small
models.
"""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedattack.files import seal
from fedattack.folder import find_parts, read_study
from fedattack.record import Record, RecordWriter, check_record, project_record
from tests.record.conftest import exchange

HERE = Path(__file__).parent
ATTACK = {"individual": "sia", "sums": "prolin"}


@pytest.fixture(params=ATTACK)
def old(request, tmp_path) -> Path:
    with zipfile.ZipFile(HERE / f"{request.param}.zip") as archive:
        archive.extractall(tmp_path / request.param)
    return tmp_path / request.param


def test_it_is_whole_and_says_what_it_lacks(old):
    for part in find_parts(old):
        report = check_record(part.record)
        assert report.whole
        assert report.rounds == int(read_study(old)["settings"]["rounds"])
        assert [remark.partition(":")[0].partition(",")[0] for remark in report.remarks] == [
            "the record is not signed",
            "the record is of format 1",
        ]


def first_record(tmp_path: Path) -> Path:
    with zipfile.ZipFile(HERE / "individual.zip") as archive:
        archive.extractall(tmp_path / "individual")
    return tmp_path / "individual" / "record" / "seed-0"


def stopped(record: Path) -> Path:
    """Turn the record of a run that ended into that of one that was killed after its first round."""
    manifest = json.loads((record / "manifest.json").read_text())
    del manifest["check"]
    sealed = seal(manifest | {"status": "open", "rounds": None, "final": None, "ended": None})
    (record / "manifest.json").write_text(json.dumps(sealed | {"check": sealed["check"][:16]}, indent=2))
    index = record / "rounds.jsonl"
    index.write_bytes(index.read_bytes().splitlines(keepends=True)[0])
    return record


def test_a_stopped_record_goes_on_as_what_it_is(tmp_path):
    record = stopped(first_record(tmp_path))
    assert "did not end" in check_record(record).notes[0]
    first = dict(Record(record).rounds[0].observations[0].arrays)
    writer = RecordWriter(record, seed=0, resume=True)
    writer.write(exchange(2))
    writer.close()
    assert check_record(record).whole
    again = Record(record)
    assert again.manifest["version"] == 1
    assert "id" not in json.loads((record / "manifest.json").read_text())
    assert [item.number for item in again] == [1, 2]
    for name, array in first.items():
        np.testing.assert_array_equal(again.rounds[0].observations[0].arrays[name], array)


@pytest.mark.parametrize("order", [(1, 0), (0, 0, 1), (0, 1, 1)])
def test_lines_in_another_place_than_they_were_written_are_damage(tmp_path, order):
    record = first_record(tmp_path)
    index = record / "rounds.jsonl"
    lines = index.read_bytes().splitlines(keepends=True)
    index.write_bytes(b"".join(lines[place] for place in order))
    assert any("repeated or put in another order" in line for line in check_record(record).problems)


def test_it_is_projected_to_the_newest_version(tmp_path):
    sums = project_record(Record(first_record(tmp_path)), tmp_path / "sums")
    assert sums.manifest["version"] == 2
    assert check_record(tmp_path / "sums").whole
