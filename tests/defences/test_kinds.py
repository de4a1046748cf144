"""What defences declare about themselves, and the tables that follow."""

import numpy as np
import pytest

from fedattack.base.errors import ConfigError
from fedattack.base.settings import SettingsModel, setting
from fedattack.defences import ARTEFACTS, DEFENCES, DP_SGD, KINDS, NONE, SETTINGS
from fedattack.defences.base import FIELDS, Defence, DefenceKind, PrivacySettings
from fedattack.defences.guarantee import GUARANTEES, NOISY
from fedattack.defences.kinds import _find_fault
from fedattack.defences.noise import NoiseSettings


def test_tables_follow_from_what_the_defences_declare():
    assert {"dp-gaussian", "dp-laplace", "flower-localdp", "recup", "soteria", "sparsify"} <= {*DEFENCES}
    assert {*GUARANTEES} == {DP_SGD, *NOISY}
    assert (SETTINGS["defence"], ARTEFACTS) == (NONE, ("recup-zoo",))
    assert {*ARTEFACTS, "defence-strength", "defence-clip", "dp-delta", "soteria-layer"} <= {*SETTINGS}
    for name, kind in KINDS.items():
        assert name in FIELDS["defence"].help
        assert f"{name}: {kind.strength}" in FIELDS["defence-strength"].help


@pytest.mark.parametrize("name", [name for name in DEFENCES if name != "recup"])
def test_strength_zero_is_no_defence_bit_for_bit(name):
    """Not even clipping: the update is far beyond the norm."""
    rng = np.random.default_rng(0)
    given = {"a": rng.normal(size=(20, 5)).astype(np.float32) * 100, "negative zero": np.array([-0.0], np.float32)}
    made = DEFENCES[name]({"defence": name, "defence-strength": 0.0})
    for key, array in made.apply(given, rng).items():
        assert (array.dtype, array.tobytes()) == (np.float32, given[key].tobytes())


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_a_declaration_is_complete(kind):
    assert {*kind.artefacts} <= {*kind.settings.list_settings()}
    words = {"name", "noise_is", "mechanism", "unit", "not_protected", "accountant", "assumes"}
    assert {*kind.guarantee} in (set(), words)
    if kind.make is None or kind.artefacts:
        return
    made: Defence = kind.make({"defence": kind.name})
    assert made.name == kind.name
    with pytest.raises(ConfigError, match="defence-strength"):
        kind.make({"defence": kind.name, "defence-strength": -1})


def test_what_leads_to_artefacts_is_a_path_for_whoever_reads_a_folder():
    """Else a folder could have files outside of it read without anybody's trust."""
    from fedattack.attacks import knowledge
    from fedattack.runs.settings import PATHS

    assert {*ARTEFACTS} <= {*PATHS}
    assert {*ARTEFACTS} <= {*knowledge.PATHS}


class OwnSettings(PrivacySettings):
    mine_power: float = setting(1.0, "power")


class RunsSettings(SettingsModel):
    mine_power: float = setting(1.0, "power")
    rounds: int = setting(3, "rounds")


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        (OwnSettings, ""),
        (NoiseSettings, ""),
        (RunsSettings, "has a setting 'rounds': expected a name that begins with mine-"),
    ],
)
def test_a_defence_of_another_package_cannot_take_a_setting_of_somebody_else(settings, fault):
    """Else `--set rounds=5` of a run would be read as the defence declares it."""
    assert _find_fault(DefenceKind("mine", None, settings), KINDS) == fault
