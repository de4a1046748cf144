"""What lies beside another record than it was made of is refused, whatever command looks at it."""

import json
import shutil
from dataclasses import replace

import pytest

from fedattack.attacks import ATTACKS, Scores, read_knowledge, write_knowledge
from fedattack.attacks.knowledge_files import KNOWLEDGE
from fedattack.audit.truth import read_truth
from fedattack.base.errors import NeedsError
from fedattack.record import Record
from fedattack.record.folder import HOLDINGS, Part, find_parts
from fedattack.runs.pipeline import attack_folder, judge_folder
from fedattack.runs.watch import Watch
from tests.worlds.federation import write_run
from tests.worlds.sealed import edit

SEEDS = ("seed-0", "seed-1")


def bind(part: Part) -> None:
    """Let knowledge and truth name the record, as a run of this version does."""
    record = Record(part.record)
    write_knowledge(part.knowledge, replace(read_knowledge(part.knowledge), record=record.id))
    edit(part.truth / HOLDINGS, lambda holdings: holdings.update(record=record.id))
    assert read_truth(part.truth).record == record.id


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two seeds, attacked and reported."""
    folder = tmp_path_factory.mktemp("made") / "run"
    for seed, part in enumerate(SEEDS):
        write_run(folder, seed=seed, part=part, rounds=1, epochs=10)
    for part in find_parts(folder):
        bind(part)
    attack_folder(ATTACKS["sia"], folder, device="cpu", watch=Watch())
    judge_folder(folder, device="cpu", watch=Watch())
    return folder


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def exchange(folder, *kinds: str) -> None:
    for kind in kinds:
        first, second = (folder / kind / part for part in SEEDS)
        first.rename(folder / "x")
        second.rename(first)
        (folder / "x").rename(second)


def test_a_run_that_is_bound_has_no_note_of_it(run, call):
    assert call("check", run)[0] == 0
    facts = json.loads((run / "run.json").read_text())
    assert not [note for note in facts["notes"] if "nothing ties" in note]
    assert {*facts["records"]} == {"record/seed-0", "record/seed-1"}
    scores = Scores.load(run / "scores" / "seed-0" / "sia.npz")
    assert vars(scores.record) == facts["records"]["record/seed-0"]


@pytest.mark.parametrize(
    ("kinds", "file"),
    [
        (("record",), KNOWLEDGE),
        (("truth",), HOLDINGS),
        (("knowledge",), KNOWLEDGE),
        (("scores",), "sia.npz"),
        (("record", "knowledge", "truth"), "sia.npz"),
        (("record", "knowledge", "scores"), HOLDINGS),
    ],
)
def test_what_is_of_another_record_is_refused_by_name(run, call, kinds, file):
    exchange(run, *kinds)
    code, _, err = call("report", run, "--device", "cpu")
    assert code == 2
    assert "another record" in err
    assert file in err
    code, out, _ = call("check", run, "--json")
    assert code == 2
    problems = [line for check in json.loads(out).values() for line in check["problems"]]
    assert [line for line in problems if "another record" in line and file in line]


def test_neither_attacks_nor_exports_nor_comparisons_mix_records(run, call, tmp_path):
    whole = shutil.copytree(run, tmp_path / "whole")
    assert call("compare", whole, run, "--fail-if", "worse", "--out", tmp_path / "same")[0] == 0
    exchange(run, "record")
    for words in (
        ("attack", "sia", run, "--device", "cpu"),
        ("compare", whole, run, "--fail-if", "worse", "--out", tmp_path / "compared"),
        ("export", run, "--mlflow", tmp_path / "mlflow"),
    ):
        code, _, err = call(*words)
        assert code == 2, words
        assert "another record" in err
    assert not (tmp_path / "compared").exists()
    # Records may be deleted; findings stay what they were.
    shutil.rmtree(run / "record")
    assert call("compare", whole, run, "--fail-if", "worse", "--out", tmp_path / "without")[0] == 0


def test_one_record_in_two_places_is_refused_by_all(run, call, tmp_path):
    shutil.rmtree(run / "record" / "seed-1")
    shutil.copytree(run / "record" / "seed-0", run / "record" / "seed-1")
    for words in (
        ("report", run),
        ("attack", "sia", run),
        ("check", run),
        ("export", run, "--mlflow", tmp_path / "mlflow"),
    ):
        code, out, err = call(*words)
        assert code == 2, words
        assert "are the same record" in " ".join((out + err).split())


def test_an_earlier_version_s_folder_is_read_with_a_note(run, call):
    for part in find_parts(run):
        for file in (part.knowledge / KNOWLEDGE, part.truth / HOLDINGS):
            edit(file, lambda value: value.pop("record"))
        scores = part.scores("sia")
        replace(Scores.load(scores), record=None).save(scores)
    assert call("check", run)[0] == 0
    assert call("report", run, "--device", "cpu")[0] == 0
    notes = json.loads((run / "run.json").read_text())["notes"]
    (note,) = [note for note in notes if "nothing ties" in note]
    assert "the scores of sia, the knowledge and the truth to this record" in note


def test_an_attack_takes_no_knowledge_of_another_record(run):
    first, second = find_parts(run)
    known = read_knowledge(first.knowledge)
    with pytest.raises(NeedsError, match="attack sia: the knowledge belongs to another record"):
        ATTACKS["sia"].run(Record(second.record), known, device="cpu")
