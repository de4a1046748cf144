import json

import pytest

from fedattack.base.errors import FedAttackError, RunError
from fedattack.runs.app import prepare, run_module
from tests.worlds.reference import DEFAULTS


def test_a_module_gets_its_job_and_answers():
    # It reads the file that the command line names, and prints what is in it.
    assert json.loads(run_module("json.tool", {"rounds": [3]})) == {"rounds": [3]}


@pytest.mark.slow
def test_preparation_refuses_in_one_line(tmp_path):
    config = {
        **DEFAULTS,
        "alpha": 0.0001,
        "clients": 40,
        "knowledge": str(tmp_path / "k"),
        "truth": str(tmp_path / "t"),
    }
    with pytest.raises(FedAttackError, match="alpha") as refused:
        prepare([config])
    assert not isinstance(refused.value, RunError)
    assert "\n" not in str(refused.value)


def test_a_module_that_crashes_is_named_with_its_last_words():
    with pytest.raises(RunError, match=r"json\.no_such_module crashed: ModuleNotFoundError"):
        run_module("json.no_such_module", [])
