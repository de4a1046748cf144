"""`fedattack check` says at once whether a folder is whole: it imports nothing that takes seconds."""

import subprocess
import sys

import pytest

from fedattack.attacks import Knowledge, KnownDefence, read_knowledge, write_knowledge
from fedattack.learning import LOSSES, MODELS, LocalSGD
from fedattack.learning.stated import LOSS_NAMES, MODEL_NAMES
from fedattack.record import Keep, Record, shrink_record
from tests.worlds.federation import write_run

HEAVY = ("torch", "sklearn", "scipy", "matplotlib", "flwr", "ray", "pandas", "jsonschema", "torchvision")

SCRIPT = """
import sys
from fedattack.cli import main
sys.argv = ["fedattack", "check", {folder!r}]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print("imported:", *sorted(set({heavy!r}) & {{*sys.modules}}))
"""


def check(folder) -> tuple[str, str]:
    """Check a folder in a new process; returns what it says, and what of what is heavy it imported."""
    script = SCRIPT.format(folder=str(folder), heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    said, _, imported = done.stdout.rpartition("imported:")
    return said, imported.strip()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run folder with truth, and with knowledge of how clients train and what they send."""
    folder = write_run(tmp_path_factory.mktemp("run"))
    known = read_knowledge(folder / "knowledge")
    assert known.targets is not None
    settings = {"defence": "dp-sgd", "noise": 1.0, "dp-clip": 1.0, "loss": "mse", "training": {"epochs": 1}}
    settings["training"] |= {"batch_size": 8, "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}
    more = {"training": LocalSGD(1, 8, 0.1), "defence": KnownDefence("fedattack", settings)}
    more |= {"property": "mine:property", "frozen": {"base": known.targets.x[:1]}}
    write_knowledge(folder / "knowledge", Knowledge(**{**vars(known), **more}))
    return folder


def test_a_run_folder_is_checked_without_anything_heavy(whole):
    said, imported = check(whole)
    assert "whole" in said
    assert "imports mine:property" in said
    assert imported == ""


def test_a_thinned_record_names_the_attacks_that_refuse_it_without_anything_heavy(whole, tmp_path):
    shrink_record(Record(whole / "record"), tmp_path / "small", Keep(2))
    said, imported = check(tmp_path / "small")
    assert "attacks that refuse it (" in " ".join(said.split())
    assert "sia" in said
    assert imported == ""


def test_names_that_are_known_without_torch_are_those_that_there_are():
    assert {*MODEL_NAMES} == {*MODELS}
    assert tuple(LOSSES) == LOSS_NAMES
