"""Studies stop and go on, and say what their cells say; the pages from made-up findings."""

import json
import math
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from fedattack.audit.finding import Finding
from fedattack.base.errors import ConfigError, DataError, ModelError, RunError
from fedattack.grids.cell import Request
from fedattack.grids.tradeoff import page
from fedattack.grids.tradeoff.design import tradeoff
from fedattack.grids.tradeoff.picture import draw_results
from tests.grids.cells import begin_cell, end_cell
from tests.report import example

COST = {
    "entries": 15010,
    "records": 88,
    "training": {"seconds": 1.5},
    "defences": {
        "sparsify": {
            "strength": 0.5, "seconds": 0.002, "fastest": 0.001, "slowest": 0.003, "turns": 21, "memory": 2_000_000,
            "ratio": 1.0,
            "client_ratio": 1.0,
        },
        "soteria": {
            "strength": 0.5, "seconds": 0.5, "fastest": 0.4, "slowest": 0.6, "turns": 21, "memory": None,
            "ratio": 250.0,
            "client_ratio": 3.5,
        },
        "recup": {"strength": 0.5, "reason": "no zoo"},
    },
}  # fmt: skip


class Audits:
    """Stands for runs: losses grow with the strength, and successes fall, of soteria slowly."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.errors: dict[str, BaseException] = {}
        self.diverged: set[str] = set()
        self.metrics = ("asr", "stru-nn-adaptive")
        self.reconstructs = False
        self.silent: dict[str, str] = {}
        self.base = 0.5

    def __call__(self, job, device, watch) -> None:
        name, strength = job.cell.place["defence"], float(job.cell.place["strength"])
        begin_cell(job)
        key = f"{name} {strength:g}"
        if key in self.errors:
            raise self.errors[key]
        self.made.append(key)
        fall = {"none": 0.0, "sparsify": 0.5, "soteria": 0.3, "recup": 0.7}[name]
        template = example.findings()[0]
        findings = []
        for metric in (metric for metric in self.metrics if metric != self.silent.get(key)):
            # Who knows of the defence sees through soteria's twin, and loses less everywhere.
            slope = fall if not metric.endswith("-adaptive") else {"sparsify": 0.1, "soteria": 0.2}.get(name, 0.0)
            value = 0.8 - slope * strength
            low, high = value - 0.05, value + 0.05
            ends = {"value": value, "low": low, "high": high, "seed_mean": value, "series": {}}
            findings.append(replace(template, metric=metric, headline=metric == "asr", **ends))
        findings.append(replace(template, metric="count", headline=False, units="AUC", series={}))
        if self.reconstructs:
            findings.append(reconstruction(0.01 + strength))
        loss = None if key in self.diverged else self.base + strength
        run = example.run()
        seeds = {str(seed): [1.0, loss] for seed in job.seeds}
        run["loss"] = {"rounds": [1, 2], "seeds": seeds, "what": "w"}
        run["accuracy"] = {"rounds": [2], "seeds": {str(seed): [0.9 - strength / 2] for seed in job.seeds}, "what": "w"}
        run.pop("privacy", None)
        end_cell(job, findings, run)


def reconstruction(value: float) -> Finding:
    return Finding(
        attack="inversion",
        metric="mse",
        label="Mean squared error",
        view="individual",
        value=value,
        low=None,
        high=None,
        n=20,
        seeds=[0],
        units="",
        baselines={"a guess": 0.2},
        verdict="not applicable",
        reason="less is worse",
    )


@pytest.fixture
def audits():
    return Audits()


@pytest.fixture
def go(audits, tmp_path, monkeypatch):
    """Run a small study into one folder; returns the results. Figures, which take longest, have a test of their own."""
    monkeypatch.setattr(page, "draw_results", lambda results: "<svg/>" if results["numbers"] else "")
    monkeypatch.setattr(page, "list_plots", lambda results: [])

    def run(wanted=("sparsify=0.25,0.5", "soteria=0.25,0.5"), cost=lambda settings, strengths: COST, **words):
        request = Request(tmp_path / "out", **{"seeds": 2, "device": "cpu", **words})
        return tradeoff("quickstart", request, wanted=wanted, audit=audits, cost=cost)

    return run


def states(results) -> dict[str, str]:
    return {f"{cell['defence']} {cell['strength']:g}": cell["state"] for cell in results["cells"]}


ALL = ["none 0", "sparsify 0.25", "sparsify 0.5", "soteria 0.25", "soteria 0.5"]


def test_every_cell_is_made_once_and_the_files_say_the_same(go, audits, tmp_path):
    results = go()
    assert audits.made == ALL
    assert set(states(results).values()) == {"done"}
    kept = json.loads((tmp_path / "out" / "tradeoff-quickstart.json").read_text())
    assert kept == json.loads(json.dumps(results))
    assert results["command"] == (
        "fedattack tradeoff quickstart --out DIR --defence sparsify=0.25,0.5 --defence soteria=0.25,0.5 --seeds 2"
    )
    assert {path.suffix for path in (tmp_path / "out").glob("tradeoff-quickstart.*")} == {
        ".json", ".md", ".svg", ".html"
    }  # fmt: skip
    go()
    assert audits.made == ALL, "nothing is run again"
    go(wanted=["sparsify=0.25,0.75"])
    assert audits.made == [*ALL, "sparsify 0.75"], "and what is new alone"


def test_a_defence_that_the_preset_cannot_take_is_named_and_the_others_go_on(go, audits, tmp_path):
    audits.errors = {f"soteria {strength}": ModelError("the model has no layer") for strength in (0.25, 0.5)}
    results = go()
    assert [name for name, state in states(results).items() if state == "failed"] == ALL[3:]
    assert results["cells"][3]["reason"] == "cannot run: the model has no layer"
    text = (tmp_path / "out" / "tradeoff-quickstart.md").read_text()
    assert "- soteria 0.25, 0.5: cannot run: the model has no layer" in text
    assert "so nothing can be compared" in text


def test_a_cell_holds_quality_attacks_and_promise(go):
    results = go()
    cell = results["cells"][2]
    assert cell["loss"]["value"] == pytest.approx(1.0)
    assert cell["accuracy"]["value"] == pytest.approx(0.65)
    assert cell["epsilon"] is None
    assert list(cell["attacks"]) == ["sia.asr", "sia.stru-nn-adaptive"], "no count without a proportion"
    found = cell["attacks"]["sia.asr"]
    assert (found["value"], found["chance"], found["null"]["value"]) == (pytest.approx(0.55), 0.1, 0.099)
    assert results["guessing"] == pytest.approx(math.log(len(example.run()["holdings"]["classes"])))
    headline, adaptive = results["numbers"]
    assert (headline["headline"], headline["adaptive"]) == (True, False)
    assert (adaptive["headline"], adaptive["adaptive"]) == (False, True)


def test_static_and_adaptive_attackers_are_told_apart_at_equal_loss(go, tmp_path):
    results = go()
    shares = {name: found["shares"] for name, found in results["at_equal_loss"].items()}
    assert shares["sia.asr"] == {"sparsify": 1.0, "soteria": 0.0}
    assert shares["sia.stru-nn-adaptive"] == {"sparsify": 0.0, "soteria": 1.0}
    first, second, front, other = results["summary"]
    assert "attackers who do not know of the defence): at equal learning loss, 0.5–1, the lowest success" in first
    assert first.endswith("the lowest success is that of sparsify over 100% of what it reaches.")
    assert "attackers who know of it (adaptive)" in second
    assert "that of soteria over 100%" in second
    assert front.endswith("no defence; sparsify 0.25, 0.5.")
    assert other.startswith("On the Pareto front for sia.stru-nn-adaptive")
    assert other.endswith("no defence; soteria 0.25, 0.5.")
    assert results["fronts"]["sia.asr"] == [results["cells"][place]["cell"] for place in (0, 1, 2)]
    text = (tmp_path / "out" / "tradeoff-quickstart.md").read_text()
    assert "| sia.stru-nn-adaptive | yes | 0.5–1 | 0% | 100% |" in text
    assert (
        "| sparsify | 0.5 | 1 (1 to 1) | 65.0% (65.0–65.0%) | 55.0% (50.0–60.0%) | yes | 75.0% (70.0–80.0%) |" in text
    )


def test_without_a_defence_to_know_of_an_adaptive_attacker_is_the_other_one(go, audits):
    audits.metrics = ("asr", "asr-adaptive")
    audits.silent = {"none 0": "asr-adaptive"}
    results = go()
    none = results["cells"][0]["attacks"]
    assert none["sia.asr-adaptive"] == none["sia.asr"]
    ends = results["at_equal_loss"]["sia.asr-adaptive"]["losses"]
    assert tuple(ends) == (0.5, 1.0), "so that both reach from no defence on"


def test_models_that_never_learnt_more_than_guessing_are_compared_all_the_same(go, audits):
    audits.base = 3.0
    results = go()
    assert results["guessing"] < 3
    assert results["limit"] is None
    assert results["at_equal_loss"]["sia.asr"]["shares"] == {"sparsify": 1.0, "soteria": 0.0}


def test_a_larger_error_of_reconstruction_is_the_defender_s_gain(go, audits):
    audits.reconstructs = True
    results = go(wanted=["sparsify=0.25,0.5", "soteria=0.1,0.6"])
    (number,) = [item for item in results["numbers"] if item["name"] == "inversion.mse"]
    assert number["less_is_worse"]
    # Errors grow with the strength, and losses alike: all are on one line.
    assert results["at_equal_loss"]["inversion.mse"]["shares"] == {"sparsify": 1.0, "soteria": 1.0}


def test_a_diverged_run_has_no_place_at_a_learning_loss(go, audits, tmp_path):
    audits.diverged = {"soteria 0.5"}
    results = go()
    assert results["cells"][4]["diverged"]
    assert results["cells"][4]["loss"]["value"] is None
    assert results["cells"][4]["attacks"]["sia.asr"]["value"] is not None
    text = (tmp_path / "out" / "tradeoff-quickstart.md").read_text()
    assert "Diverged, and so without a learning loss: soteria 0.5." in text


def test_clients_without_a_common_model_have_a_table_and_no_comparison(go, audits, tmp_path):
    """As in FedMD, whose clients keep their models."""
    audits.diverged = set(ALL)
    results = go()
    assert all(cell["attacks"]["sia.asr"]["value"] is not None for cell in results["cells"])
    assert draw_results(results) == ""
    text = (tmp_path / "out" / "tradeoff-quickstart.md").read_text()
    assert "no learning loss at which to compare" in text
    assert not any(results["fronts"].values())


def test_the_cost_is_measured_once_at_the_middle_of_each_ladder(go, tmp_path):
    asked = []

    def cost(settings, strengths):
        asked.append(strengths)
        assert (settings["defence"], settings["defence-strength"], settings["seed"]) == ("none", 0.0, 0)
        return COST

    go(wanted=["sparsify=0.1,0.2,0.3", "soteria=0.4,0.5"], cost=cost)
    go(wanted=["sparsify=0.1,0.2,0.3", "soteria=0.4,0.5"], cost=cost)
    assert asked == [{"sparsify": 0.2, "soteria": 0.4}]
    text = (tmp_path / "out" / "tradeoff-quickstart.md").read_text()
    assert "| sparsify | 0.5 | 2 ms (1 ms–3 ms) | 1 | 1 | 2.0 MB | 21 |" in text
    assert "| soteria | 0.5 | 500 ms (400 ms–600 ms) | 250 | 3.5 | – | 21 |" in text
    assert "recup cannot be applied: no zoo." in text
    go(wanted=["soteria=0.4,0.5"], cost=cost)
    assert len(asked) == 2, "something else is measured anew"


def test_a_cost_that_cannot_be_measured_is_told(go, tmp_path):
    def cost(settings, strengths):
        raise DataError("no data")

    assert go(cost=cost)["cost"] == {"reason": "no data"}
    assert "Not measured: no data" in (tmp_path / "out" / "tradeoff-quickstart.md").read_text()


def test_nothing_done_is_no_page_of_nothing(go, audits, tmp_path):
    audits.errors = {name: RunError("no") for name in ALL}
    results = go()
    assert set(states(results).values()) == {"failed"}
    assert results["summary"] == []
    assert results["cost"] is None
    assert not (tmp_path / "out" / "tradeoff-quickstart.svg").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            {"changes": ["defence=none"]},
            "--set defence=none: defence belongs to the grid; choose its values with --defence NAME=S1,S2,…",
        ),
        ({"changes": ["defence-strength=1"]}, "choose its values with --defence"),
        ({"device": "abacus"}, "unknown device 'abacus'"),
    ],
)
def test_bad_arguments_are_one_line_before_any_work(go, audits, tmp_path, words, message):
    with pytest.raises(ConfigError) as caught:
        go(**words)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not audits.made
    assert not (tmp_path / "out").exists()


def texts(root) -> set[str]:
    return {element.text for element in root.iter() if element.tag.endswith("text") and element.text}


@pytest.mark.slow
def test_the_picture_and_the_page_name_what_they_show(go, tmp_path, monkeypatch):
    results = go()
    monkeypatch.undo()
    root = ElementTree.fromstring(draw_results(results))  # noqa: S314 our own
    found = texts(root)
    assert {"sia.asr", "sia.stru-nn-adaptive", "Learning loss", "Success (%)", "chance", "null"} <= found
    assert {"sparsify", "soteria", "no defence"} <= found
    assert "soteria 0.5: loss 1, success 65.0%" in "".join(root.itertext()), "the numbers in words"
    text = page.make_page(results).to_html()
    for there in ("In short", "At equal learning loss", "Pareto front", "sia.stru-nn-adaptive", "<svg", "Cost"):
        assert there in text
    assert "src=" not in text.replace("img-src", ""), "self-contained"
    assert str(tmp_path) not in text, "no path of this machine"


def test_what_costs_hardly_any_loss_is_told_first():
    """A defence without any cost reaches no loss at which others could be held against it."""

    def cell(defence, strength, loss, value):
        found = {"sia.asr": {"value": value}} if value is not None else {}
        return {"defence": defence, "strength": strength, "state": "done", "loss": {"value": loss}, "attacks": found}

    number = {"name": "sia.asr", "adaptive": False, "less_is_worse": False, "units": "proportion"}
    cells = [
        cell("none", 0.0, 1.0, 0.9),
        cell("free", 1.0, 0.99, 0.5),
        cell("free", 2.0, 1.04, 0.1),
        cell("dear", 1.0, 1.02, 0.8),
        cell("dear", 2.0, 1.5, 0.0),
        cell("lost", 1.0, 3.0, 0.0),
        cell("blind", 1.0, 1.0, None),
    ]
    (told,) = page._describe_cheapest({"numbers": [number], "cells": cells}, number)
    assert told.endswith("each defence at its best leaves free 2 10.0%, dear 1 80.0% (point values).")
    assert page._describe_cheapest({"numbers": [number], "cells": cells[:1] + cells[5:]}, number) == []
