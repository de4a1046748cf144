import shutil

import pytest

from fedattack.base.errors import RecordError
from fedattack.record import RecordWriter
from fedattack.record.folder import RunFolder, find_parts, write_study
from tests.worlds.federation import write_run

COMMAND = "fedattack audit ../app --out runs/mine"


def begin(folder, **changes):
    """Write the study of an app's audit that was just begun."""
    folder.mkdir(exist_ok=True)
    study = {"app": "digits", "commands": [COMMAND], "seeds": [0], "recorded": [], "started": "now"}
    write_study(folder, study | changes)
    return folder


def test_the_audit_of_an_app_is_unfinished_until_its_attacks_are_made(tmp_path):
    folder = begin(tmp_path / "mine")
    said = f"{folder}: the audit of digits has not ended (no round is recorded). Continue it: `{COMMAND}`"
    assert RunFolder(folder).unfinished == said
    with pytest.raises(RecordError, match="has not ended"):
        find_parts(folder)
    begin(folder, attacks=["sia"])
    assert RunFolder(folder).unfinished == ""
    # Nothing could be answered, and the page says why.
    begin(folder, attacks=[], unanswered="the app failed")
    assert RunFolder(folder).unfinished == ""


def test_rounds_of_an_unfinished_audit_are_counted_over_its_seeds(tmp_path):
    folder = begin(tmp_path / "mine", seeds=[0, 1])
    shutil.copytree(write_run(tmp_path / "other") / "record", folder / "record" / "seed-0")
    (folder / "record" / "seed-1").mkdir()
    RecordWriter(folder / "record" / "seed-1")
    rounds = len((folder / "record" / "seed-0" / "rounds.jsonl").read_text().splitlines())
    assert f"({rounds} rounds recorded so far)" in RunFolder(folder).unfinished
    # Whoever attacked it by hand may report on it.
    (folder / "scores").mkdir()
    RunFolder(folder).check_ended()


def test_a_preset_is_no_unfinished_audit_of_an_app(tmp_path):
    write_study(tmp_path, {"preset": "quickstart", "commands": [COMMAND], "seeds": [0]})
    assert RunFolder(tmp_path).unfinished == ""


@pytest.mark.parametrize(
    "command",
    [
        "fedattack audit x; rm -r .",
        "fedattack audit x -- rm -r .",
        "fedattack audit $(rm -r .)",
        "rm -r .",
        "fedattack audit 'x",
        "fedattack audit " + "x" * 500,
    ],
)
def test_no_command_of_a_stranger_is_shown_that_does_anything_else(tmp_path, command):
    said = RunFolder(begin(tmp_path / "mine", commands=[command])).unfinished
    assert said.endswith("Continue it by the command that began it, which study.json there names")


def test_a_folder_of_run_folders_names_them(tmp_path):
    begin(tmp_path / "runs").joinpath("study.json").unlink()
    begin(tmp_path / "runs" / "mine")
    with pytest.raises(RecordError, match=f"mine in it is a run folder; give {tmp_path / 'runs' / 'mine'}$"):
        find_parts(tmp_path / "runs")
    for name in "abcdef":
        begin(tmp_path / "runs" / name)
    with pytest.raises(RecordError, match=r"run folders: a, b, c, d, e, …; give one of them, such as .*runs/a$"):
        find_parts(tmp_path / "runs")


@pytest.mark.parametrize(
    "words",
    [("report", "DIR"), ("attack", "sia", "DIR"), ("what-if", "DIR", "--secagg", "--out", "OUT"), ("resume", "DIR")],
)
def test_each_command_on_an_unfinished_audit_says_how_it_goes_on(call, tmp_path, words):
    folder = begin(tmp_path / "mine")
    shutil.copytree(write_run(tmp_path / "other") / "record", folder / "record")
    places = {"DIR": folder, "OUT": tmp_path / "out"}
    code, _, err = call(*[places.get(word, word) for word in words])
    assert code == 2
    assert f"Continue it: `{COMMAND}`" in err
    assert f"Continue it: `{COMMAND}`" in call("check", folder)[1]
