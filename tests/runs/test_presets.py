"""Presets: what their files may say, and that a broken one leaves the others alone."""

import json
from pathlib import Path

import pytest

from fedattack.attacks.registry import THREATS
from fedattack.base.errors import ConfigError
from fedattack.runs import presets
from fedattack.runs.presets import load_preset, load_presets, preset_names

SOUND = 'help = "Who?"\nattack = "sia"\nseeds = [0]\n[settings]\nrounds = 2\n'
BROKEN = {
    "no TOML": ("help = ", "cannot be read as TOML"),
    "no text": ("help = 'é'\n", "is not UTF-8 text"),
    "nothing": ("", "help is missing"),
    "help of another type": (SOUND.replace('"Who?"', "1"), "help: input should be a valid string, got 1"),
    "no seed": (SOUND.replace("[0]", "[]"), "seeds: list should have at least 1 item"),
    "a key too many": ("besides = []\n" + SOUND, "besides: extra inputs are not permitted"),
    "an unknown time": ('takes = "ages"\n' + SOUND, "takes: input should be '', 'a minute'"),
    "an unknown attack": (SOUND.replace("sia", "seer"), "the attack 'seer' is not installed"),
    "an unknown setting": (SOUND.replace("rounds", "round"), "unknown setting 'round': did you mean rounds?"),
    "a setting of another type": (SOUND.replace("= 2", '= "2"'), "rounds = '2': expected a whole number"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The presets of a threat of another package, beside those that are there."""
    there = tmp_path / "presets"
    there.mkdir()
    monkeypatch.setattr(presets, "_all_files", lambda: [*FILES, *sorted(there.glob("*.toml"))])
    return there


FILES = presets._all_files()


def test_all_presets_of_this_package_are_read():
    read, left_out = load_presets()
    assert list(read) == preset_names()
    assert not left_out
    assert {threat.name for threat in THREATS.values()} == {
        threat.name for preset in read.values() for threat in THREATS.values() if preset.attacks[0] in threat.attacks
    }


@pytest.mark.parametrize(("text", "why"), BROKEN.values(), ids=BROKEN)
def test_a_broken_preset_is_left_out_with_its_reason(folder, text, why):
    (folder / "broken.toml").write_bytes(text.encode("latin-1"))
    (folder / "sound.toml").write_text(SOUND)
    read, left_out = load_presets()
    assert {*read} == {path.stem for path in FILES} | {"sound"}
    ((file, said),) = left_out.items()
    assert file == str(folder / "broken.toml")
    assert why in said
    # Whoever asks for it by name is told the same.
    with pytest.raises(ConfigError) as caught:
        load_preset("broken")
    assert str(caught.value) == said
    assert "\n" not in said
    assert load_preset("sound").attacks == ("sia",)


def test_the_list_shows_what_is_left_out_and_all_others(folder, call):
    (folder / "broken.toml").write_text("help = 1\n" + SOUND.partition("\n")[2])
    code, printed, _ = call("list")
    assert code == 0
    assert "Presets that are left out" in printed
    listed = json.loads(call("list", "--json")[1])
    assert {*listed["presets"]} == {path.stem for path in FILES}
    (why,) = listed["presets_left_out"].values()
    assert "help: input should be a valid string" in why
