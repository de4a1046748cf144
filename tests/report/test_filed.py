"""Words of people in a report: they are kept with author, time and reason, and change no number."""

import pytest

from fedattack.base.errors import ConfigError, ReportError
from fedattack.cli.commands.report import read_words
from fedattack.report.html import FILED, add_words, read_filed, write_report


def test_words_are_added_and_earlier_ones_stay(tmp_path):
    add_words(tmp_path, " A. Person ", [("residual-risk", "low"), ("note", "seen")])
    add_words(tmp_path, "B. Other", [("residual-risk", "medium")], "a second look")
    entries = read_filed(tmp_path)
    assert [(entry["by"], entry["field"], entry["text"], entry["why"]) for entry in entries] == [
        ("A. Person", "residual-risk", "low", ""),
        ("A. Person", "note", "seen", ""),
        ("B. Other", "residual-risk", "medium", "a second look"),
    ]
    assert all(entry["time"].endswith("Z") for entry in entries)


def test_a_changed_file_is_noticed(tmp_path):
    add_words(tmp_path, "A. Person", [("note", "seen")])
    path = tmp_path / FILED
    path.write_text(path.read_text().replace("seen", "forged"))
    with pytest.raises(ReportError, match="does not match its checksum"):
        read_filed(tmp_path)
    with pytest.raises(ReportError, match="does not match its checksum"):
        add_words(tmp_path, "A. Person", [("note", "more")])


@pytest.mark.parametrize(
    ("words", "by", "message"),
    [
        (["riks=low"], "A", "--file riks=low"),
        (["note="], "A", "expected FIELD=TEXT"),
        (["note=" + "x" * 2001], "A", "at most 2000 characters, got 2001"),
        (["note=seen"], None, "say whose by --by NAME"),
        (["note=seen"], "  ", "say whose by --by NAME"),
    ],
)
def test_bad_words_are_refused_in_one_line(words, by, message):
    with pytest.raises(ConfigError, match=message):
        read_words(words, by)


def test_the_page_shows_the_latest_words_and_all_of_them_escaped(folder):
    plain = write_report(folder).read_text()
    assert "For the file" not in plain
    findings = (folder / "findings.json").read_bytes()
    add_words(folder, "A. <b>Person</b>", [("residual-risk", "low"), ("note", "one"), ("note", "two")])
    add_words(folder, "B. Other", [("residual-risk", "medium")], "a second look")
    page = write_report(folder).read_text()
    assert (folder / "findings.json").read_bytes() == findings
    assert "<b>Person</b>" not in page
    assert page.count("<dt>Risk that remains</dt>") == 1
    assert "<dd>medium" in page
    assert page.count("<dt>Note</dt>") == 2
    assert "because: a second look" in page
    assert "Risk that remains: low" in page
