"""Which cells a study has."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedattack.base.errors import ConfigError
from fedattack.defences import DEFENCES, DP_SGD, defence_of
from fedattack.grids.tradeoff import grid
from fedattack.grids.tradeoff.grid import choose_strengths, load_ladders, make_cells
from fedattack.runs import presets
from fedattack.runs.app import app_folder
from fedattack.runs.presets import load_preset, preset_names
from fedattack.runs.settings import load_settings

QUICKSTART = load_preset("quickstart")


def test_every_defence_has_a_ladder_of_strengths_that_it_can_have():
    ladders = load_ladders()
    assert set(ladders) == {*DEFENCES, DP_SGD}
    for ladder in ladders.values():
        assert list(ladder.strengths) == sorted(set(ladder.strengths))
        assert 0 < ladder.strengths[0] <= ladder.strengths[-1] <= ladder.most
        assert ladder.what


@pytest.mark.parametrize("name", [name for name in DEFENCES if name not in ("recup", "soteria")])
def test_each_strength_of_a_ladder_changes_an_update_and_a_larger_one_changes_it_more(name):
    """On an update of a norm of 1 and 50,000 entries, for which the ladders are; the others have tests of their own."""
    update = {"w": np.random.default_rng(1).normal(size=50_000).astype(np.float32) / math.sqrt(50_000)}
    changes = []
    for strength in load_ladders()[name].strengths:
        defence = defence_of({"defence": name, "defence-strength": strength, "defence-clip": 1.0})
        changed = defence.apply(update, np.random.default_rng(2))["w"]
        changes.append(float(np.linalg.norm(changed - update["w"])))
    assert changes == sorted(changes)
    assert 0.05 < changes[0] < changes[-1] / 2, "from hardly any change to much of it"


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_has_a_grid(name):
    preset = load_preset(name)
    assert set(choose_strengths(preset, [])) == set(load_ladders())


def test_no_defence_comes_first_and_then_each_from_weak_to_strong():
    strengths = choose_strengths(QUICKSTART, ["sparsify=0.9,0.5", "dp-sgd=1", "sparsify=0.5,0.99"])
    assert strengths == {"sparsify": [0.5, 0.9, 0.99], "dp-sgd": [1.0]}
    cells = make_cells("quickstart", strengths)
    assert [tuple(cell.place.values()) for cell in cells] == [
        ("none", 0.0),
        ("sparsify", 0.5),
        ("sparsify", 0.9),
        ("sparsify", 0.99),
        ("dp-sgd", 1.0),
    ]
    assert cells[0].name == "quickstart_defence-none_defence-strength-0"
    known = load_settings()
    assert all(key in known for cell in cells for key in cell.settings)


def test_a_preset_s_own_strengths_go_before_the_defaults_and_the_command_line_s_before_both():
    preset = replace(QUICKSTART, tradeoff={"sparsify": [0.3]})
    assert choose_strengths(preset, ["sparsify", "soteria"]) == {
        "sparsify": [0.3],
        "soteria": list(load_ladders()["soteria"].strengths),
    }
    assert choose_strengths(preset, ["sparsify=0.7"]) == {"sparsify": [0.7]}


def test_values_of_a_setting_are_strengths_in_the_order_in_which_they_come():
    strengths = choose_strengths(
        QUICKSTART, ["batch-size=16,4", "check-model=refuse", "sparsify=0.9", "batch-size=4,8"]
    )
    assert strengths == {"batch-size": [16, 4, 8], "check-model": ["refuse"], "sparsify": [0.9]}
    cells = make_cells("quickstart", strengths)
    plain = {"defence": "none", "defence-strength": 0.0}
    assert [cell.settings for cell in cells[:2]] == [plain, plain | {"batch-size": 16}]
    assert cells[4].place == {"defence": "check-model", "strength": "refuse"}
    assert cells[4].settings == plain | {"check-model": "refuse"}
    for text, message in (
        ("batch-size", "expected its values too"),
        ("batch-size=x", "batch-size=x: expected a whole"),
    ):
        with pytest.raises(ConfigError, match=message):
            choose_strengths(QUICKSTART, [text])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("magic", "--defence magic: unknown defence 'magic': expected one of dp-gaussian"),
        ("none", "unknown defence 'none'"),
        ("sparsify=", "--defence sparsify=: expected NAME or NAME=S1,S2,… with numbers"),
        ("sparsify=0", "a finite number above 0 and at most 1, got 0"),
        ("soteria=1.5", "at most 1, got 1.5"),
        ("recup=-1", "a finite number above 0, got -1"),
        ("dp-gaussian=nan", "a finite number above 0, got nan"),
    ],
)
def test_what_is_no_defence_or_strength_is_refused_in_one_line(text, message):
    with pytest.raises(ConfigError) as caught:
        choose_strengths(QUICKSTART, [text])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_preset_s_table_is_checked(tmp_path, monkeypatch):
    folder = tmp_path / "simulations" / "presets"
    folder.mkdir(parents=True)
    (tmp_path / "simulations" / "tradeoff.toml").write_text(
        (app_folder() / "simulations" / "tradeoff.toml").read_text()
    )
    for module in (presets, grid):
        monkeypatch.setattr(module, "app_folder", lambda: tmp_path)
    text = 'help = "h"\nattack = "sia"\nseeds = [0]\n[settings]\nrounds = 2\n[tradeoff]\n'
    (folder / "mine.toml").write_text(text + "sparsify = [0.25, 1]")
    assert load_preset("mine").tradeoff == {"sparsify": (0.25, 1.0)}
    for wrong in ("sparsify = 0.5", "sparsify = []", 'sparsify = ["much"]', "sparsify = [true]"):
        (folder / "mine.toml").write_text(text + wrong)
        with pytest.raises(ConfigError, match=r"mine.toml: tradeoff.sparsify.*, got .*; compare it with the presets"):
            load_preset("mine")
    (folder / "mine.toml").write_text(text + "magic = [1.0]")
    with pytest.raises(ConfigError, match=r"preset mine, \[tradeoff\]: unknown defence 'magic'"):
        choose_strengths(load_preset("mine"), [])
