"""Nothing small takes a report down: an attack, a judge, a figure or a damaged round fails alone, and it is said."""

import importlib
import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from fedattack.attacks import ATTACKS, Scores, read_knowledge
from fedattack.attacks.registry import THREATS
from fedattack.base.errors import DataError, FaultError, TrustError
from fedattack.base.failures import FAULT, Failure, failing_alone
from fedattack.cli.steps import attack_each
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.record.folder import HOLDINGS, Part, find_parts
from fedattack.report import read_run
from fedattack.report.section import section_of
from fedattack.runs.pipeline import attack_folder, judge_folder
from fedattack.runs.watch import Watch
from tests.worlds.federation import write_run
from tests.worlds.sealed import edit

TOY = Path(__file__).parents[1] / "attacks" / "toy"


@pytest.fixture
def toy(monkeypatch):
    """The threat of another package, installed for a test; its modules by their names."""
    monkeypatch.syspath_prepend(str(TOY))
    modules = {name: importlib.import_module(f"toy_threat.{name}") for name in ("attack", "judge", "section")}
    monkeypatch.setitem(THREATS._found[0], "toy", importlib.import_module("toy_threat").THREAT)
    monkeypatch.setitem(ATTACKS._loaded, "toy", modules["attack"].LargestUpdate())
    section_of.cache_clear()
    yield modules
    section_of.cache_clear()


def attacked(folder: Path) -> Path:
    """A run folder with the scores of an attack of this package, and of the toy."""
    write_run(folder)
    for name in ("sia", "toy"):
        attack(Part(folder, ""), name)
    return folder


def attack(part: Part, name: str, *, skip_damaged: bool = False) -> None:
    record = Record(part.record, skip_damaged=skip_damaged)
    ATTACKS[name].run(record, read_knowledge(part.knowledge), device="cpu").save(part.scores(name))


def fail(*args, **kwargs):
    raise KeyError("nothing of the kind")


def found_in(folder: Path) -> dict[str, str]:
    return {entry["attack"]: entry["verdict"] for entry in json.loads((folder / "findings.json").read_text())}


@pytest.mark.parametrize("how", ["raises", "refuses", "gives no number", "gives a strange series"])
def test_a_judge_that_fails_takes_no_other_finding(toy, tmp_path, monkeypatch, call, how):
    """The page, the terminal, JUnit and the exit code say which, and why."""
    folder, junit = attacked(tmp_path / "run"), tmp_path / "junit.xml"
    judge, said = toy["judge"].ToyJudge, "nothing of the kind"
    state = judge.state
    if how == "raises":
        monkeypatch.setattr(judge, "findings", fail)
    elif how == "refuses":
        said = "expected another truth"

        def refuse(self):
            raise DataError(said)

        monkeypatch.setattr(judge, "findings", refuse)
    elif how == "gives no number":
        said = "is not a finite number"
        monkeypatch.setattr(judge, "state", lambda *args: replace(state(*args), value=float("nan")))
    else:
        said = "does not fit the series of its threat"
        monkeypatch.setattr(judge, "state", lambda *args: replace(state(*args), series={"clients": 3}))
    code, out, err = call("report", folder, "--device", "cpu", "--junit", junit)
    assert code == 4
    assert "sia.asr" in out
    assert [*found_in(folder)].count("sia") == 1
    assert "toy" not in found_in(folder)
    (entry,) = [entry for entry in read_run(folder)["untried"] if "failed" in entry]
    assert entry["question"] == "Which client holds the most examples?"
    assert entry["why"].startswith("toy could not be judged: ")
    assert (FAULT in entry["why"]) == (how == "raises")
    page = (folder / "report.html").read_text()
    for text in (said, "1 question asked but not answered"):
        assert text in page
    assert said in " ".join(err.split())
    error = ElementTree.parse(junit).find("testcase[@name='Which client holds the most examples?']/error")  # noqa: S314
    assert said in error.get("message")


def test_scores_that_cannot_be_read_take_no_other_finding(toy, tmp_path, call):
    folder = attacked(tmp_path)
    (folder / "scores" / "toy.npz").write_text("PK\x03\x04 cut")
    code, _, err = call("report", folder, "--device", "cpu")
    assert (code, "toy could not be judged" in err) == (4, True)
    assert {*found_in(folder)} == {"sia"}


def test_scores_of_another_record_take_no_other_finding(toy, tmp_path, call):
    folder = attacked(tmp_path)
    path = folder / "scores" / "toy.npz"
    scores = Scores.load(path)
    replace(scores, record=replace(scores.record, id="0" * len(scores.record.id))).save(path)
    code, _, err = call("report", folder, "--device", "cpu")
    assert (code, "toy could not be judged" in err) == (4, True)
    assert {*found_in(folder)} == {"sia"}
    (entry,) = [entry for entry in read_run(folder)["untried"] if "failed" in entry]
    assert "made from another record" in entry["why"]
    (folder / "scores" / "sia.npz").write_text("PK\x03\x04 cut")
    assert call("report", folder, "--device", "cpu")[0] == 2


@pytest.mark.parametrize("cause", [KeyError("odd"), DataError("no model")])
def test_of_replies_that_are_not_understood_a_fault_is_told_and_no_missing_model(toy, tmp_path, monkeypatch, cause):
    folder = attacked(tmp_path)
    edit(folder / "truth" / HOLDINGS, lambda holdings: holdings.update(unread="2 of 3 clients send bytes"))

    def fail(*args, **kwargs):
        raise cause

    monkeypatch.setattr("fedattack.audit.run.measure_quality", fail)
    judge_folder(folder, device="cpu", watch=Watch(), unmade={})
    left_out = read_run(folder).get("left_out", [])
    assert bool(left_out) == isinstance(cause, KeyError)


def test_where_no_attack_can_be_judged_the_first_reason_is_raised(toy, tmp_path, monkeypatch, call):
    folder = attacked(tmp_path)
    (folder / "scores" / "sia.npz").unlink()
    monkeypatch.setattr(toy["judge"].ToyJudge, "findings", fail)
    code, _, err = call("report", folder, "--device", "cpu")
    assert (code, err.count("\n")) == (2, 1)
    assert FAULT in err
    with pytest.raises(KeyError):
        judge_folder(folder, device="cpu", watch=Watch())
    with pytest.raises(FaultError):
        judge_folder(folder, device="cpu", watch=Watch(), unmade={})


@pytest.mark.parametrize("part", ["sentence", "explanation", "table"])
def test_a_part_of_the_page_that_fails_takes_nothing_else(toy, tmp_path, monkeypatch, call, part):
    folder, section = attacked(tmp_path), toy["section"].SECTION
    broken = {
        "sentence": {"sentences": {"named": fail}},
        "explanation": {"explained": fail},
        "table": {"tables": (("clients", fail),)},
    }
    monkeypatch.setattr(toy["section"], "SECTION", replace(section, **broken[part]))
    code, out, err = call("report", folder, "--device", "cpu")
    assert code == 4
    assert {*found_in(folder)} == {"sia", "toy"}
    page = (folder / "report.html").read_text()
    assert "What this report leaves out" in page
    assert "toy.named" in page
    assert "sia.asr" in page
    assert "Which client holds the most examples?" in out
    assert FAULT in " ".join(err.split())


def test_an_attack_that_fails_takes_no_other_one(toy, tmp_path, monkeypatch, call):
    """Of two seeds it fails in the second: what it found in the first is no result, and does not end the report."""
    for seed in (0, 1):
        write_run(tmp_path, seed=seed, part=f"seed-{seed}")
    run = toy["attack"].LargestUpdate.attack

    def sometimes(self, seen):
        if seen.record.seed:
            raise ZeroDivisionError("of hostile numbers")
        return run(self, seen)

    monkeypatch.setattr(toy["attack"].LargestUpdate, "attack", sometimes)
    attack_each([ATTACKS["toy"], ATTACKS["sia"]], tmp_path, device="cpu", trusted=())
    assert not any(part.scores("toy").exists() for part in find_parts(tmp_path))
    code, _, err = call("report", tmp_path, "--device", "cpu")
    assert (code, "toy was not made: ZeroDivisionError: of hostile numbers" in err) == (4, True)
    assert {*found_in(tmp_path)} == {"sia"}
    assert "Toy was not made" in (tmp_path / "report.html").read_text()
    monkeypatch.setattr(toy["attack"].LargestUpdate, "attack", run)
    # It may be made by itself later; then nothing is left out any more.
    attack_folder(ATTACKS["toy"], tmp_path, device="cpu", watch=Watch())
    assert call("report", tmp_path, "--device", "cpu")[0] == 0
    assert {*found_in(tmp_path)} == {"sia", "toy"}


def test_an_attack_that_fails_the_second_time_takes_no_other_finding(toy, tmp_path, monkeypatch, call):
    """The findings of the first time speak of scores that are gone."""
    folder = attacked(tmp_path)
    assert call("report", folder, "--device", "cpu")[0] == 0
    monkeypatch.setattr(toy["attack"].LargestUpdate, "attack", fail)
    attack_each([ATTACKS["toy"]], folder, device="cpu", trusted=())
    assert call("report", folder, "--device", "cpu")[0] == 4
    assert {*found_in(folder)} == {"sia"}


def test_if_every_attack_fails_the_first_reason_is_raised(toy, tmp_path, monkeypatch):
    write_run(tmp_path)
    monkeypatch.setattr(toy["attack"].LargestUpdate, "attack", fail)
    with pytest.raises(FaultError, match=r"toy was not made: KeyError: 'nothing of the kind' .*, line"):
        attack_each([ATTACKS["toy"]], tmp_path, device="cpu", trusted=())


@pytest.fixture
def damaged(tmp_path):
    """A run folder of which a round is damaged after it was attacked."""
    folder = write_run(tmp_path / "run", rounds=3)
    attack(Part(folder, ""), "sia")
    file = folder / "record" / "rounds" / "000001.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    return folder


def test_what_a_damaged_record_leaves_out_is_said_everywhere(damaged, tmp_path, call):
    attack(Part(damaged, ""), "sia", skip_damaged=True)
    junit = tmp_path / "junit.xml"
    code, out, err = call("report", damaged, "--device", "cpu", "--junit", junit)
    assert (code, call("check", damaged)[0]) == (4, 2)
    assert "sia.asr" in out
    assert "left out as damaged" in " ".join(err.split())
    (line,) = read_run(damaged)["left_out"]
    assert "000001.safetensors does not match its checksum" in line
    page = (damaged / "report.html").read_text()
    assert page.count("left out as damaged") == 1
    suite = ElementTree.parse(junit).getroot()  # noqa: S314 - written by this test
    assert "left out as damaged" in suite.find("testcase[@classname='fedattack.left-out']/error").get("message")
    code, _, err = call("report", damaged, "--device", "cpu", "--fail-if", "sia.asr > 0.1")
    assert code == 3
    assert "left out as damaged" in " ".join(err.split())


def test_what_a_report_leaves_out_goes_with_it(damaged, tmp_path, call):
    pytest.importorskip("tensorboard")
    attack(Part(damaged, ""), "sia", skip_damaged=True)
    call("report", damaged, "--device", "cpu")
    whole = write_run(tmp_path / "whole", rounds=3)
    attack(Part(whole, ""), "sia")
    assert call("report", whole, "--device", "cpu")[0] == 0
    code, _, err = call("compare", damaged, whole, "--out", tmp_path / "compared")
    assert (code, "left out as damaged" in " ".join(err.split())) == (4, True)
    compared = json.loads((tmp_path / "compared" / "compare.json").read_text())
    assert [len(run.get("left_out", ())) for run in compared["runs"]].count(1) == 1
    assert "Its report leaves out" in (tmp_path / "compared" / "compare.html").read_text()
    code, _, err = call("export", damaged, "--tensorboard", tmp_path / "events")
    assert (code, "left out as damaged" in " ".join(err.split())) == (4, True)


def test_a_damaged_model_after_the_last_round_is_damage(tmp_path, call):
    folder = write_run(tmp_path)
    old, record = folder / "old", folder / "record"
    record.rename(old)
    writer = RecordWriter(record)
    for round_ in Record(old):
        replies = [Reply(seen.node, "ok", dict(seen.arrays), seen.num_examples) for seen in round_.observations]
        writer.write(Exchange(round_.number, dict(round_.common), replies))
    writer.close(final={name: array + 1 for name, array in round_.common.items()})
    attack(Part(folder, ""), "sia")
    file = record / "final.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert (call("check", folder)[0], call("report", folder, "--device", "cpu")[0]) == (2, 4)
    assert len(Record(folder / "record", skip_damaged=True).damage) == 1


def test_an_attack_that_skips_damaged_rounds_says_so(damaged, call):
    code, _, err = call("attack", "sia", damaged, "--skip-damaged", "--device", "cpu")
    assert (code, "left out as damaged" in " ".join(err.split())) == (0, True)


def test_only_the_caller_can_trust():
    failed: dict[str, Failure] = {}
    with failing_alone(failed, "one"):
        np.linalg.inv(np.zeros((2, 2)))
    assert failed["one"].why.startswith("LinAlgError: Singular matrix (")
    with failing_alone(failed, "two"):
        raise MemoryError
    assert failed["two"].why == "there is not enough memory for it"
    with failing_alone(failed, "two"):
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
    assert failed["two"].why == "there is not enough memory for it"
    with pytest.raises(TrustError), failing_alone(failed, "three"):
        raise TrustError("it asks for code")
    with pytest.raises(KeyError), failing_alone(None, "four"):
        fail()
    assert {*failed} == {"one", "two"}
