"""The table of costs says what was timed, and is written where a page has its marks."""

import pytest
import torch

from tests.benchmarks import plain_loops, table
from tests.benchmarks.plain_loops import Contest


def test_operations_of_a_product_are_counted_and_its_speed_is_a_machines():
    assert table.count_operations(lambda: torch.rand(8, 16) @ torch.rand(16, 4)) == 2 * 8 * 16 * 4
    assert 1e7 < table.measure_speed() < 1e15


def test_a_row_has_both_ratios():
    row = table.Row("an attack", ours=0.5, plain=2.0, operations=10_000_000)
    assert row.write(speed=1e9) == "| an attack | 0.50 s | 2.00 s | 4.00 | 50.0 |"
    assert table.Row("a call", ours=0.002, plain=0.001).write(1e9) == "| a call | 2.00 ms | 1.00 ms | 0.50 | – |"


def test_ours_and_the_loop_take_turns(monkeypatch):
    calls = []

    def contest(name):
        return lambda: calls.append(name) or torch.rand(4, 4) @ torch.rand(4, 4)

    contests = [Contest("one", contest("ours"), contest("plain"), lambda *_: "")]
    monkeypatch.setattr(plain_loops, "contests", lambda _: contests)
    (row,) = table.time_attacks(turns=2)
    assert calls == ["ours", "plain", "ours", "plain", "plain"]
    assert row.operations == 2 * 4**3


def test_a_table_takes_the_place_of_the_one_before(tmp_path):
    page = tmp_path / "page.md"
    first, last = table.MARKS
    page.write_text(f"before\n{first}old\n{last}after\n")
    table.write_into(page, "new")
    assert page.read_text() == f"before\n{first}new\n{last}after\n"
    page.write_text("no marks\n")
    with pytest.raises(SystemExit, match="lacks the marks"):
        table.write_into(page, "new")
    assert all(mark in table.RESULTS.read_text() for mark in table.MARKS)
