import csv
import os

import pytest

from fedattack.audit.listing import Listing, several
from fedattack.base.errors import ReportError
from fedattack.report.tables import cell, write_tables


def listing(name="clients", rows=(("0", 1),), attack="sia"):
    return Listing(name, "one row for each client", ("client", "targets"), rows, attack)


def read(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "yes"),
        (False, "no"),
        (-3, "-3"),
        (-0.25, "-0.25"),
        (1 / 3, "0.3333333333"),
        ("client 1", "client 1"),
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@sum(a1)", "'@sum(a1)"),
        (" =1", "'=1"),
        ("\t=1", "\N{REPLACEMENT CHARACTER}=1"),
        ("＝1", "'＝1"),
        ("a\nb\x1b[31m", "a b\N{REPLACEMENT CHARACTER}[31m"),
    ],
)
def test_no_cell_is_a_formula_and_none_drives_a_terminal(value, text):
    assert cell(value) == text


def test_names_of_clients_come_back_as_they_are_but_for_that(tmp_path):
    names = ['a,b"c', "ü\u00a0x", "</script>"]
    written = write_tables(tmp_path, [listing(rows=[(name, 1) for name in names])])
    assert written == {"tables/sia-clients.csv": "one row for each client"}
    rows = read(tmp_path / "tables/sia-clients.csv")
    assert rows == [["client", "targets"], [names[0], "1"], ["ü x", "1"], [names[2], "1"]]


def test_tables_are_for_their_owner_alone(tmp_path):
    write_tables(tmp_path, [listing()])
    assert (tmp_path / "tables").stat().st_mode & 0o077 == 0
    assert (tmp_path / "tables/sia-clients.csv").stat().st_mode & 0o077 == 0


def test_tables_of_an_earlier_report_do_not_survive(tmp_path):
    write_tables(tmp_path, [listing(), listing("records")])
    for name in ("mine.csv", "notes.txt"):
        (tmp_path / "tables" / name).write_text("mine")
    write_tables(tmp_path, [listing(attack="prolin")])
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == [
        "mine.csv",
        "notes.txt",
        "prolin-clients.csv",
    ]
    assert write_tables(tmp_path, []) == {}
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == ["mine.csv", "notes.txt"]


def test_a_table_that_fails_is_not_there(tmp_path):
    def rows():
        yield "0", 1
        raise MemoryError

    write_tables(tmp_path, [listing(rows=[("old", 1)])])
    with pytest.raises(MemoryError):
        write_tables(tmp_path, [listing(rows=rows())])
    assert list((tmp_path / "tables").iterdir()) == []


@pytest.mark.parametrize("target", ["outside", "inside"])
def test_a_folder_that_is_a_link_is_refused(tmp_path, target):
    run, elsewhere = tmp_path / "run", {"outside": tmp_path / "other", "inside": tmp_path / "run/other"}[target]
    run.mkdir()
    elsewhere.mkdir()
    (elsewhere / "mine.csv").write_text("mine")
    (run / "tables").symlink_to(elsewhere)
    with pytest.raises(ReportError, match="is a link"):
        write_tables(run, [listing()])
    assert [path.name for path in elsewhere.iterdir()] == ["mine.csv"]


def test_a_file_that_is_a_link_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "mine").write_text("mine")
    for name in ("sia-clients.csv", "prolin-records.csv"):
        (tmp_path / "tables" / name).symlink_to(tmp_path / "mine")
    write_tables(tmp_path, [listing()])
    assert (tmp_path / "mine").read_text() == "mine"
    assert not (tmp_path / "tables/prolin-records.csv").is_symlink()
    assert read(tmp_path / "tables/sia-clients.csv")[1] == ["0", "1"]


def test_what_is_in_its_place_is_named(tmp_path):
    (tmp_path / "tables").write_text("a file")
    with pytest.raises(ReportError, match=r"tables cannot be written .*must be a folder"):
        write_tables(tmp_path, [listing()])


def test_a_pipe_is_refused(tmp_path):
    (tmp_path / "tables").mkdir()
    os.mkfifo(tmp_path / "tables/sia-clients.csv")
    with pytest.raises(ReportError, match="a pipe"):
        write_tables(tmp_path, [listing()])


def test_one_name_several_and_many():
    assert several(["a"]) == "a"
    assert several(["a", "b"]) == "a | b"
    assert several(list("abcdef")) == "6 alike"
    assert several([]) == ""
