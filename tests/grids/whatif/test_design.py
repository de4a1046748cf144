"""What is left where the run cannot be asked, and where somebody stops it; real attacks are in test_what_if."""

import json

import pytest

from fedattack.base.errors import NeedsError, RunError
from fedattack.grids.cell import Request
from fedattack.grids.whatif.alteration import NOTHING, Alteration
from fedattack.grids.whatif.altered import AlteredCell
from fedattack.grids.whatif.design import Altering, what_if
from fedattack.record.folder import Part
from fedattack.report.compare import read_compared
from tests.report import example, pages


@pytest.fixture
def design(tmp_path):
    return Altering(
        request=Request(tmp_path / "out"),
        cells=[NOTHING, Alteration("noise", 1.0), Alteration("noise", 2.0)],
        folder=tmp_path / "run",
        parts=[Part(tmp_path / "run", "")],
        attacks=["sia"],
        choose=list,
    )


def add_found(design, cell):
    """Stand for the attacks on a copy."""
    folder = design.request.cells / cell.name
    folder.mkdir()
    pages.written(example.findings(), example.run(), folder)
    design.found[cell.name] = AlteredCell(cell, read_compared(folder))


def test_where_no_attack_can_be_made_again_no_folder_is_left(design, monkeypatch):
    def refuse(*words):
        raise NeedsError(f"{design.request.out} has no model")

    monkeypatch.setattr(Altering, "_write_part", refuse)
    with pytest.raises(RunError, match="run can be made again: sia: cannot run: DIR has no model"):
        what_if(design)
    assert not design.request.out.exists()


def test_a_copy_that_fails_is_named_and_the_others_go_on(design, monkeypatch):
    def make(self, cell, watch):
        if cell.amount == 1:
            raise RunError(f"{self.request.out} is full")
        add_found(self, cell)

    monkeypatch.setattr(Altering, "make", make)
    was, failed, other = what_if(design)["runs"]
    assert failed["not_asked"] == [{"attack": "sia", "why": "cannot run: DIR is full"}]
    assert was["findings"] == other["findings"] != failed["findings"] == []


def test_what_was_found_before_an_interruption_stays(design, monkeypatch):
    def make(self, cell, watch):
        if cell.amount == 2:
            raise KeyboardInterrupt
        add_found(self, cell)

    monkeypatch.setattr(Altering, "make", make)
    with pytest.raises(KeyboardInterrupt):
        what_if(design)
    kept = json.loads((design.request.out / "what-if.json").read_text())
    assert [run["label"] for run in kept["runs"]] == ["as it was", "noise, σ = 1"]
    assert all(run["findings"] for run in kept["runs"])
    assert "noise, σ = 1" in (design.request.out / "what-if.html").read_text()
