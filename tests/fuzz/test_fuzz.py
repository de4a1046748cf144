"""A short version of the fuzzers; `make fuzz` has the long one. And: what they look for, they find."""

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fedattack.base.errors import ReportError
from fedattack.report import read_claim
from fedattack.report.claim import render_claim
from tests.fuzz import costs, folders, kills, mutants, mutate
from tests.fuzz.sandbox import ANSWER, DIED, GREEDY, HANG, REFUSED, TRACEBACK, Outcome, in_child
from tests.report import claims

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_altered_folders_are_refused_or_read_as_before_or_said_to_be_unsigned():
    result = mutants.run(40, seed=101, worlds=("source", "signed", "sums"))
    assert result["bad"] == []
    assert sum(result["counts"].values()) == 40
    assert result["memory"] < 500e6


def test_hostile_folders_do_no_harm():
    result = folders.run(20, seed=101)
    assert result["bad"] == []


def test_small_folders_cost_little_to_attack_and_to_report_on():
    # In an interpreter of its own: a try is a fork, which begins with all the memory that earlier tests left behind.
    tries = "costs.run(8, seed=101, only=('trees', 'plaintext', 'sia', 'labels'))"
    script = f"import json; from tests.fuzz import costs; print(json.dumps({tries}))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["bad"] == []
    assert sum(result["counts"].values()) == 24


@pytest.mark.parametrize("way", [*dict.fromkeys((*costs.WAYS, costs.send_trees))], ids=lambda way: way.__name__)
def test_each_way_makes_another_folder_that_is_small(way, tmp_path):
    folder = costs.build(("trees", "fedavg"), costs.list_worlds()["trees", "fedavg"], tmp_path / "run")

    def content() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    before = content()
    way(random.Random(3), folder)
    after = content()
    assert after != before
    assert sum(map(len, after.values())) < sum(map(len, before.values())) + 3 * costs.ADDED


def test_killed_writers_leave_every_round_that_they_reported():
    result = kills.run(5, seed=101)
    assert result["bad"] == []
    assert result["reported"] > 0


def test_altered_claims_are_refused_in_one_line_or_rendered(tmp_path):
    """What is claimed, and what was found about it, with up to three things changed."""
    shown = {
        **claims.recorded(),
        "server": {"noise_at_most": 0.4, "rounds": [], "faults": ["x"]},
    }
    answer = replace(claims.platform(), recorded=shown, canaries=claims.canaries())
    sheet = json.loads(json.dumps(claims.sheet(answer, tmp_path)))
    draw = random.Random(131)
    pages, refusals = [], []
    for _ in range(60):
        changed = sheet
        for _ in range(draw.randint(1, 3)):
            changed = mutate.change(draw, changed)
        (tmp_path / "claim.json").write_bytes(mutate.sealed(changed))
        try:
            pages.append(render_claim(read_claim(tmp_path)))
        except ReportError as refused:
            refusals.append(str(refused))
    assert len(pages) > 5
    assert len(refusals) > 5
    assert not any("<script>alert" in page for page in pages)
    assert not any("\n" in line for line in refusals)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> folders.Place:
    return folders.Place(tmp_path_factory.mktemp("fuzz"))


def test_a_command_that_follows_what_a_folder_names_is_noticed(place, tmp_path):
    """With --trust, which the tries never give, the canary's module is imported, and a file of the canary read."""
    import shutil

    from tests.worlds.sealed import edit

    run = Path(shutil.copytree(place.originals["group"], tmp_path / "run"))
    defence = {"spec": f"{folders.CANARY_MODULE}:touch", "settings": {}, "files": {}}
    edit(run / "knowledge" / "knowledge.json", {"defence": defence})
    words = ["attack", "private-attribute", str(run), "--device", "cpu"]
    told = in_child(lambda: folders.attempt(place, words, tmp_path), seconds=60).told
    assert (told["code"], told["noted"], place.mark.exists()) == (2, [], False)
    told = in_child(lambda: folders.attempt(place, [*words, "--trust"], tmp_path), seconds=60).told
    assert told["code"] == 99
    assert f"open {place.modules / folders.CANARY_MODULE}.py" in told["noted"]
    assert place.mark.exists()
    place.mark.unlink()


def test_a_changed_canary_is_noticed(place):
    before = place.fingerprint()
    (place.canary / "victim.txt").write_text("harmed!")
    assert place.fingerprint() != before


def test_the_sandbox_tells_how_a_child_ended():
    from fedattack.base.errors import DataError

    def refuse() -> None:
        raise DataError("no")

    def hang(_: object = None) -> None:
        while True:
            pass

    assert in_child(lambda: [1, "x"], seconds=20).told == [1, "x"]
    assert in_child(refuse, seconds=20).kind == REFUSED
    assert in_child(lambda: 1 / 0, seconds=20).kind == TRACEBACK
    assert in_child(hang, seconds=0.2).kind == HANG
    assert in_child(lambda: __import__("os").kill(__import__("os").getpid(), 9), seconds=20).kind == DIED
    greedy = in_child(lambda: hang(bytearray(b"x" * 2_000_000_000)), seconds=60, memory=1.5e9)
    assert (greedy.kind, greedy.computed > 0) == (GREEDY, True)
    large = in_child(lambda: len(bytearray(b"x" * 200_000_000)), seconds=20)
    assert large.memory - in_child(lambda: None, seconds=20).memory > 150e6


NUMBERS = [["sia.asr", 0.5, 0.4, 0.6, 10, "leak"]]
OTHERS = [["sia.asr", 0.7, 0.6, 0.8, 10, "leak"]]


@pytest.mark.parametrize(
    ("kind", "told", "words", "ended"),
    [
        (ANSWER, {"numbers": NUMBERS, "said": False}, {}, "same"),
        (ANSWER, {"numbers": OTHERS, "said": True}, {}, "silent"),
        (ANSWER, {"numbers": OTHERS, "said": True}, {"reseal": True}, "told"),
        (ANSWER, {"numbers": OTHERS, "said": False}, {"reseal": True}, "unsaid"),
        (ANSWER, {"numbers": OTHERS, "said": True}, {"reseal": True, "signed": True}, "silent"),
        (ANSWER, {"numbers": OTHERS, "said": True}, {"free": True}, "another input"),
        (REFUSED, "one line", {}, "refused"),
        (REFUSED, "two\nlines", {}, "long"),
        (TRACEBACK, "…", {}, "traceback"),
        (HANG, "…", {}, "hang"),
    ],
)
def test_what_became_of_a_mutant_is_judged(kind, told, words, ended):
    outcome = Outcome(kind, json.loads(json.dumps(told)), 0.0, 0)
    assert mutants.judge(outcome, NUMBERS, **{"reseal": False, "signed": False, "free": False, **words}) == ended
    assert sys.platform == "linux"
