"""The page of the release says what its rows say, and what programs print is read right."""

import re

from tests import release

FUZZED = """\
   900  refused
2000 tries in 12.5 minutes; bad: 0
{
  "kills": 300,
  "reported": 13272,
  "bad": []
}
"""


def test_the_page_is_that_of_its_rows():
    assert (release.RESULTS / "release.md").read_text(encoding="utf-8") == release.write_page(release.load_rows())


def test_each_check_is_a_target():
    makefile = (release.ROOT / "Makefile").read_text()
    assert {*release.CHECKS} <= {*re.findall(r"^([\w-]+):", makefile, re.MULTILINE)}


def test_counts_of_several_runs_of_pytest_are_added():
    printed = (
        "== 1 failed, 6000 passed, 3 skipped in 60.00s (0:01:00) ==\n212 passed, 2 skipped, 69 deselected in 30.0s\n"
    )
    assert release.summarise(printed) == "1 failed, 6,212 passed, 5 skipped"
    assert release.add_minutes(printed) == 1.5


def test_what_fuzzers_and_flowers_print_is_kept():
    assert release.summarise(FUZZED) == '2000 tries in 12.5 minutes; bad: 0; "kills": 300; "reported": 13272; "bad": []'
    assert release.add_minutes(FUZZED) == 12.5
    flower = "Flower 1.23.0: 146 passed, 16 skipped in 20.10s; owners named: 99% and 99%"
    assert release.summarise(flower) == flower
    assert release.summarise("nothing of use") == ""


def test_a_target_that_was_not_run_says_so(tmp_path):
    printed = tmp_path / "printed.txt"
    printed.write_text("5 passed in 120.00s")
    row = release.read_output("test-long", printed, "abc")
    failed = release.Row("fuzz", "2026-01-01", "def+", 2, "", None)
    release.save([row, failed], tmp_path)
    assert release.load_rows(tmp_path) == [row, failed]
    page = (tmp_path / "release.md").read_text()
    assert re.search(r"`make test-long` .*\| `abc` \| 5 passed \| 2 \|", page)
    assert "| `def+` | **exit code 2**: printed no counts | – |" in page
    assert page.count("not run") == len(release.CHECKS) - 2
