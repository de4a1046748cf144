"""Scores, knowledge and truth say of which record they are."""

from pathlib import Path

import pytest

from fedattack.base.errors import RecordError
from fedattack.observe._recorder import Recorder
from fedattack.record import Keep, Record, RecordWriter, project_record, rewrite_record, shrink_record
from fedattack.record.folder import RunFolder, find_parts, write_study
from fedattack.record.marks import RecordMark, explain_scores, explain_statement
from fedattack.record.project import copy_record
from tests.record.conftest import exchange

FILE = Path("scores/sia.npz")


def write(path: Path, rounds: int = 2, *, close: bool = True, **options) -> Record:
    writer = RecordWriter(path, **options)
    for number in range(1, rounds + 1):
        writer.write(exchange(number))
    if close:
        writer.close()
    else:
        writer._lock.close()
    return Record(path)


def test_scores_of_a_record_as_it_is_are_its_own(tmp_path):
    record = write(tmp_path / "record")
    mark = RecordMark.of(record)
    assert explain_scores(FILE, mark, record) == ""
    assert explain_scores(FILE, None, record) == "", "an earlier version says nothing"
    copy_record(record, tmp_path / "copy")
    assert explain_scores(FILE, mark, Record(tmp_path / "copy")) == "", "a copy, bit for bit, is the same record"


def test_scores_of_another_record_are_told_by_name(tmp_path):
    first, second = write(tmp_path / "a"), write(tmp_path / "b")
    told = explain_scores(FILE, RecordMark.of(first), second)
    assert told.startswith(f"{FILE} was made from another record ({first.id[:8]}…) than {second.path}")
    assert "run `fedattack attack sia` again" in told


def test_scores_of_a_record_that_was_gone_on_with_ask_for_another_attack(tmp_path):
    path = tmp_path / "record"
    begun = RecordMark.of(write(path, 1, close=False))
    writer = RecordWriter(path, resume=True)
    writer.write(exchange(2))
    writer.close()
    assert "has grown since" in explain_scores(FILE, begun, Record(path))
    whole = RecordMark.of(Record(path))
    assert (whole.id, whole.head) == (begun.id, Record(path).manifest["head"])
    assert "rounds that differ" in explain_scores(FILE, RecordMark(whole.id, "0" * 64), Record(path))


def test_a_damaged_line_makes_no_other_record_of_it(tmp_path):
    path = tmp_path / "record"
    mark = RecordMark.of(write(path))
    index = path / "rounds.jsonl"
    lines = index.read_bytes().splitlines(keepends=True)
    index.write_bytes(lines[0] + b"{}\n")
    assert RecordMark.of(Record(path, skip_damaged=True)) == mark


def test_copies_that_hold_less_or_other_are_of_the_same_run_and_have_scores_of_their_own(tmp_path):
    record = write(tmp_path / "record")
    sums = project_record(record, tmp_path / "sums")
    altered = rewrite_record(record, tmp_path / "altered", lambda round_, exchange: exchange)
    less = shrink_record(record, tmp_path / "less", Keep(every=2))
    twice = shrink_record(sums, tmp_path / "twice", Keep(every=2))
    for copy in (sums, altered, less, twice):
        assert copy.id != record.id
        assert copy.origin == record.origin == record.id
        assert explain_statement("truth", record.id, copy) == ""
        assert "is a copy of it with fewer or other contents" in explain_scores(FILE, RecordMark.of(record), copy)
    other = write(tmp_path / "other")
    assert "the truth belongs to another record" in explain_statement("the truth", other.id, sums)


def test_an_id_that_was_named_before_the_run_is_that_of_the_first_record_alone(tmp_path):
    recorder = Recorder(tmp_path / "%f", record_id="0123456789abcdef" * 2)
    seen = []
    for name in ("a", "b"):
        recorder._out = str(tmp_path / name)
        recorder.open()
        recorder.put(exchange(1))
        recorder.close()
        seen.append(Record(tmp_path / name).id)
    assert seen[0] == "0123456789abcdef" * 2
    assert seen[1] != seen[0]
    with pytest.raises(RecordError, match="id"):
        RecordWriter(tmp_path / "odd", record_id="mine")


@pytest.mark.parametrize("some", [False, True])
def test_records_in_the_places_of_others_are_named(tmp_path, some):
    for seed in (0, 1):
        write(tmp_path / "record" / f"seed-{seed}", seed=seed)
    write_study(tmp_path, {"seeds": [0, 1]})
    parts = find_parts(tmp_path)
    assert RunFolder(tmp_path).misplaced == {}
    places = [part.record for part in parts]
    places[0].rename(tmp_path / "x")
    places[1].rename(places[0])
    (tmp_path / "x").rename(places[1])
    told = RunFolder(tmp_path).misplaced
    assert [*told] == places
    assert "has the seed 1, and study.json names the seed 0" in told[places[0]]
    if some:
        assert RunFolder(tmp_path).parts_there == parts
    else:
        with pytest.raises(RecordError, match="is another record: it has the seed 1"):
            find_parts(tmp_path)


def test_one_record_in_two_places_is_named(tmp_path):
    record = write(tmp_path / "record" / "a")
    copy_record(record, tmp_path / "record" / "b")
    with pytest.raises(RecordError, match="are the same record"):
        find_parts(tmp_path)
