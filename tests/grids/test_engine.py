"""Reproductions stop and go on, and never mix settings."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from fedattack.base.errors import ConfigError, RunError
from fedattack.grids.cell import Job, Request
from fedattack.grids.reproduce import design
from fedattack.grids.reproduce.design import reproduce
from fedattack.grids.reproduce.spec import Reproduction
from fedattack.runs.watch import Watch
from tests.grids.cells import begin_cell, end_cell
from tests.grids.reproduce.test_spec import SPEC
from tests.report import example


class Audits:
    """Stands for the training: writes a realistic run folder at once, and remembers for which cells."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.fail_at = ""
        self.error: BaseException = RunError("no")
        self.during = lambda: None

    def __call__(self, job: Job, device: str, watch: Watch) -> None:
        self.during()
        begin_cell(job)
        if job.cell.name == self.fail_at:
            raise self.error
        self.made.append(job.cell.name)
        end_cell(job)


DIGITS = ["quickstart_digits_alpha-1_rounds-2", "quickstart_digits_alpha-0.1_rounds-2"]
SYNTHETIC = [
    "quickstart_synthetic_alpha-1_lr-0.5_rounds-2",
    "quickstart_synthetic_alpha-0.1_lr-0.5_rounds-2",
]


@pytest.fixture
def what(tmp_path):
    (tmp_path / "some.toml").write_text(SPEC)
    return Reproduction.read(tmp_path / "some.toml")


@pytest.fixture
def audits():
    return Audits()


@pytest.fixture
def go(what, audits, tmp_path, monkeypatch):
    """Reproduce into one folder; returns the results. Pictures, which take longest, have tests of their own."""
    monkeypatch.setattr(design, "draw_results", lambda spec, results: "<svg/>")

    def run(*, spec=what, only=(), data=(), **words):
        request = Request(tmp_path / "out", **{"seeds": 3, **words})
        return reproduce(spec, request, only=only, data=data, audit=audits)

    return run


def states(results) -> dict[str, str]:
    return {cell["cell"]: cell["state"] for cell in results["cells"]}


def test_every_cell_is_made_once(go, audits, tmp_path):
    results = go()
    assert audits.made == DIGITS + SYNTHETIC
    assert set(states(results).values()) == {"done"}
    assert json.loads((tmp_path / "out" / "some.json").read_text())["cells"] == results["cells"]
    assert (tmp_path / "out" / "some.md").exists()
    assert (tmp_path / "out" / "some.svg").exists()
    again = go()
    assert audits.made == DIGITS + SYNTHETIC, "nothing is run again"
    assert again["cells"] == results["cells"]


def test_a_cell_holds_ours_and_the_papers(go):
    first, second, *_ = go()["cells"]
    found, finding = first["numbers"]["asr"], example.findings()[0]
    for key in ("value", "low", "high", "chance", "seed_mean", "seed_sd", "n"):
        assert found[key] == getattr(finding, key)
    assert found["null"] == finding.null
    assert found["paper"] == {"mean": 0.125, "sd": 0.005}
    assert found["difference"] == pytest.approx(finding.seed_mean - 0.125)
    assert second["numbers"]["asr"]["paper"] is second["numbers"]["asr"]["difference"] is None
    assert first["seeds"] == [0, 1, 2]
    assert first["training_records"] == int(np.sum(example.run()["holdings"]["counts"]))
    assert first["command"] == (
        f"fedattack audit quickstart --out {DIGITS[0]} --seeds 3 --set rounds=2 --set dataset=digits --set alpha=1"
    )
    assert first["minutes"] >= 0


def test_records_are_dropped_unless_kept(go, tmp_path):
    go(only=["dataset=digits"])
    go(only=["dataset=synthetic"], keep_records=True)
    cells = tmp_path / "out" / "cells"
    assert not any((cells / name / "record").exists() for name in DIGITS)
    assert all((cells / name / "record" / "big.bin").exists() for name in SYNTHETIC)


def test_what_was_interrupted_is_run_again_and_nothing_else(go, audits, tmp_path):
    audits.fail_at, audits.error = SYNTHETIC[0], KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        go()
    kept = json.loads((tmp_path / "out" / "some.json").read_text())
    assert states(kept) == dict.fromkeys(DIGITS, "done") | dict.fromkeys(SYNTHETIC, "not run")
    assert (tmp_path / "out" / "cells" / SYNTHETIC[0]).exists(), "halfway"
    audits.fail_at = ""
    assert set(states(go()).values()) == {"done"}
    assert audits.made == DIGITS + SYNTHETIC


@pytest.mark.parametrize(("file", "content"), [("findings.json", "[{"), ("cell.json", None), ("run.json", None)])
def test_a_damaged_or_missing_cell_is_run_again(go, audits, tmp_path, file, content):
    go(only=["dataset=digits"])
    path = tmp_path / "out" / "cells" / DIGITS[1] / file
    path.unlink()
    if content is not None:
        path.write_text(content)
    go(only=["dataset=digits"])
    assert audits.made == [*DIGITS, DIGITS[1]]


def test_a_cell_that_fails_does_not_end_the_others(go, audits, tmp_path):
    audits.fail_at, audits.error = DIGITS[0], RunError(f"see {tmp_path / 'out'}/flower.log")
    results = go()
    assert states(results) == {DIGITS[0]: "failed"} | dict.fromkeys([DIGITS[1], *SYNTHETIC], "done")
    assert results["cells"][0]["reason"] == "cannot run: see DIR/flower.log"
    assert results["cells"][0]["numbers"] == {"asr": {"paper": {"mean": 0.125, "sd": 0.005}}}


def test_only_narrows_down_and_a_second_one_adds(go, audits):
    results = go(only=["dataset=digits", "alpha=0.10"])
    assert audits.made == [DIGITS[1]]
    assert {cell["reason"] for cell in results["cells"] if cell["state"] != "done"} == {"left out by --only"}
    assert states(go(only=["alpha=1"]))[DIGITS[1]] == "done"
    assert audits.made == [DIGITS[1], DIGITS[0], SYNTHETIC[0]]
    go(only=["alpha=1", "alpha=0.1", "dataset=synthetic"])
    assert audits.made[3:] == [SYNTHETIC[1]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"changes": ["clients=5"]}, "was run with clients = 10, and now it is 5"),
        ({"seeds": 2}, r"was run with seeds = \[0, 1, 2\], and now it is \[0, 1\]"),
    ],
)
def test_other_settings_are_refused(go, audits, words, message):
    go(only=["alpha=1"])
    with pytest.raises(ConfigError, match=message):
        go(only=["alpha=0.1"], **words)
    assert len(audits.made) == 2


def test_other_settings_may_follow_where_nothing_is_finished(go, audits):
    audits.fail_at = DIGITS[0]
    go(only=["dataset=digits", "alpha=1"])
    audits.fail_at = ""
    go(only=["dataset=digits", "alpha=1"], changes=["clients=5"])
    assert audits.made == [DIGITS[0]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"only": ["speed=3"]}, "--only speed=3: unknown column 'speed' of COLUMN=VALUE: expected one of who, dataset"),
        ({"only": ["alpha"]}, "--only alpha: expected one of"),
        ({"only": ["alpha=7"]}, "--only alpha=7: expected one of 1, 0.1"),
        ({"changes": ["speed=3"]}, "--set speed=3: unknown key 'speed'"),
        ({"changes": ["alpha=3"]}, "--set alpha=3: alpha belongs to the grid; choose its values with --only"),
        ({"changes": ["clients=many"]}, "expected a whole number"),
        (
            {"data": ["cifar10=x.npz"]},
            "--data cifar10=x.npz: expected NAME=PATH.npz or .toml; as a name expected one of digits, synthetic",
        ),
        ({"data": ["digits=x.csv"]}, "--data digits=x.csv: expected NAME=PATH.npz"),
        ({"data": ["digits=x.npz"]}, "there is no such file"),
    ],
)
def test_bad_arguments_are_one_line_before_any_work(go, audits, tmp_path, words, message):
    with pytest.raises(ConfigError) as caught:
        go(**words)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not audits.made
    assert not (tmp_path / "out").exists()


def test_two_never_work_in_one_folder(go, audits, tmp_path):
    def second():
        with pytest.raises(ConfigError, match="another reproduction is at work in"):
            go(only=["dataset=synthetic"])
        second.tried += 1

    second.tried, audits.during = 0, second
    go(only=["dataset=digits"])
    assert second.tried == 2
    assert not any((tmp_path / "out" / "cells" / name).exists() for name in SYNTHETIC)


def test_somebody_elses_folder_is_left_alone(go, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("precious")
    with pytest.raises(ConfigError, match="holds something else"):
        go()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def of(what: Reproduction, **settings) -> Reproduction:
    """The reproduction with other settings in all cells."""
    cells = [replace(cell, settings={**cell.settings, **settings}) for cell in what.cells]
    return replace(what, cells=[cells[0]])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("purchase", "needs --data purchase=PATH.npz"),
        ("cifar10", "needs `fedattack download cifar10`, or --data cifar10=PATH.npz"),
    ],
)
def test_missing_data_are_named(go, audits, what, monkeypatch, tmp_path, name, reason):
    monkeypatch.setenv("FEDATTACK_DATA", str(tmp_path / "nothing"))
    results = go(spec=of(what, dataset=name))
    assert [(cell["state"], cell["reason"]) for cell in results["cells"]] == [("not run", reason)]
    assert not audits.made


def test_a_file_stands_for_data(go, audits, what, tmp_path):
    np.savez(tmp_path / "shop.npz", x=np.zeros((20, 3)), y=np.arange(20) % 2)
    spec = of(what, dataset="purchase")
    results = go(spec=spec, data=[f"purchase={tmp_path / 'shop.npz'}"])
    (cell,) = results["cells"]
    assert cell["state"] == "done"
    assert cell["data"] == "shop.npz"
    assert "--set dataset=shop.npz" in cell["command"]
    assert results["command"] == "fedattack reproduce some --out DIR --seeds 3 --data purchase=shop.npz"
    assert str(tmp_path) not in (tmp_path / "out" / "some.json").read_text(), "no path of this machine"
    study = json.loads((tmp_path / "out" / "cells" / cell["cell"] / "study.json").read_text())
    assert study["settings"]["dataset"] == str(tmp_path / "shop.npz")
    with pytest.raises(ConfigError, match="was run with dataset"):
        go(spec=spec)


def test_an_unknown_preset_or_key_is_told_and_the_rest_runs(go, audits, what):
    cells = [replace(what.cells[0], preset="sia-fedxyz"), replace(what.cells[1], settings={"magic": 1}), what.cells[2]]
    results = go(spec=replace(what, cells=cells))
    told = [(cell["state"], cell.get("reason", "")[:40]) for cell in results["cells"]]
    assert told[0] == ("failed", "cannot run: unknown preset 'sia-fedxyz':")
    assert told[1] == ("failed", "cannot run: --set magic=1: unknown key '")
    assert told[2] == ("done", "")


def test_progress_counts_cells(go):
    lines: list[str] = []
    go(only=["dataset=digits"], tell=lines.append)
    assert lines[0] == "4 runs: 0 done before, 2 to do now"
    assert lines[1] == "run 1 of 2: us · digits · 1"
    assert re.search(r", paper 12\.5, \d+\.\d min$", lines[2])
    assert lines[3] == "run 2 of 2: us · digits · 0.1"
