"""A defence that an attacker knows of, where defences of other packages are installed."""

import pytest

from fedattack.attacks import Knowledge, KnownDefence, read_knowledge, write_knowledge
from fedattack.attacks.knowledge import BUILT_IN
from fedattack.base.errors import DataError
from fedattack.base.settings import SettingsModel, setting
from fedattack.defences import KINDS, SETTINGS, list_settings_of
from fedattack.defences.base import FIELDS

SPARSIFY = {"defence": "sparsify", "defence-strength": 0.5}


class ToySettings(SettingsModel):
    toy_power: float = setting(1.0, "a power", gt=0)


def test_settings_of_a_defence_of_another_package_are_what_it_states(tmp_path, monkeypatch):
    monkeypatch.setitem(FIELDS, "toy-power", ToySettings.list_settings()["toy-power"])
    write_knowledge(tmp_path, Knowledge(defence=KnownDefence(BUILT_IN, {**SPARSIFY, "toy-power": 2.0})))
    assert read_knowledge(tmp_path).defence.settings == {**SPARSIFY, "toy-power": 2.0}
    write_knowledge(tmp_path, Knowledge(defence=KnownDefence(BUILT_IN, {**SPARSIFY, "toy-power": -1.0})))
    with pytest.raises(DataError, match=r"the defence: toy-power = -1.0: expected more than 0.0 \(a power\)"):
        read_knowledge(tmp_path)


def test_settings_that_no_installed_defence_has_are_refused(tmp_path):
    write_knowledge(tmp_path, Knowledge(defence=KnownDefence(BUILT_IN, {**SPARSIFY, "toy-power": 2.0})))
    with pytest.raises(DataError, match="toy-power"):
        read_knowledge(tmp_path)


def test_what_is_written_of_a_defence_has_no_settings_of_other_packages(monkeypatch):
    monkeypatch.setitem(SETTINGS, "toy-power", 1.0)
    monkeypatch.setattr(KINDS, "_found", ({**KINDS, "toy": KINDS["sparsify"]}, {}))
    assert "toy-power" not in list_settings_of("sparsify")
    assert "defence-strength" in list_settings_of("sparsify")
    assert "toy-power" in list_settings_of("toy")
