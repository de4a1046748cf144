"""What is true of a run is asked of threats, also of those of other packages."""

import importlib
from pathlib import Path

import pytest

from fedattack.attacks.registry import THREATS
from fedattack.audit.truth import read_truth
from simulations.prepare import prepare_run
from tests.worlds.reference import DEFAULTS

TOY = Path(__file__).parents[1] / "attacks" / "toy"


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A run whose clients hold examples that can be read off, with a threat of another package installed."""
    monkeypatch.syspath_prepend(str(TOY))
    monkeypatch.setitem(THREATS._found[0], "toy", importlib.import_module("toy_threat").THREAT)
    folders = {name: str(tmp_path / name) for name in ("knowledge", "truth")}
    return DEFAULTS | folders | {"clients": 3, "records-per-client": 20, "model": "mlp", "device": "cpu"}


def test_each_threat_says_what_is_true_of_a_preset_s_clients(config, tmp_path):
    prepare_run(config)
    truth = read_truth(tmp_path / "truth")
    assert {"exact", "toy"} <= {*truth.answers}
    assert truth.answers["toy"]["sizes"].tolist() == truth.counts.sum(axis=1).tolist() == [20] * 3


def test_what_a_threat_cannot_say_takes_no_other_s_truth(config, tmp_path, monkeypatch):
    def fail(held):
        raise IndexError("of a strange table")

    monkeypatch.setattr(THREATS["toy"], "find_truth", fail)
    prepare_run(config)
    truth = read_truth(tmp_path / "truth")
    assert "exact" in truth.answers
    assert "toy" not in truth.answers
    assert any(note.startswith("the truth about toy cannot be found out: IndexError") for note in truth.notes)
