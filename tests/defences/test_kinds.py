"""What defences declare about themselves, and the tables that follow."""

import pytest

from fedattack.base.errors import ConfigError
from fedattack.defences import ARTEFACTS, DEFENCES, DP_SGD, KINDS, NONE, SETTINGS
from fedattack.defences.base import Defence
from fedattack.defences.guarantee import GUARANTEES, NOISY


def test_tables_follow_from_what_the_defences_declare():
    assert [*DEFENCES] == ["dp-gaussian", "dp-laplace", "flower-localdp", "recup", "soteria", "sparsify"]
    assert (DP_SGD, NOISY, ARTEFACTS) == ("dp-sgd", ("dp-gaussian", "dp-laplace", "flower-localdp"), ("recup-zoo",))
    assert {*GUARANTEES} == {DP_SGD, *NOISY}
    assert SETTINGS == {
        "defence": NONE,
        "defence-strength": 0.0,
        "defence-clip": 1.0,
        "dp-delta": 1e-5,
        "soteria-layer": "",
        "recup-zoo": "",
        "recup-attributes": "",
        "recup-weights": "",
        "recup-values": "",
        "recup-variant": "recup",
        "recup-iterations": 10,
        "recup-models": 5,
    }


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
