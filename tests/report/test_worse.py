"""Gates on an audit beside an earlier one."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from fedattack.audit.finding import CANNOT_TELL
from fedattack.audit.intervals import rate_interval
from fedattack.base.errors import ConfigError
from fedattack.report.worse import find_changes
from tests.report import example
from tests.report.test_compare import write


def change(by, only=""):
    """Give all findings, or one of them, another value; the interval goes with it."""
    moved = []
    for finding in example.findings():
        if None not in (finding.value, finding.low, finding.high) and only in ("", finding.name):
            ends = {key: getattr(finding, key) + by for key in ("low", "value", "high")}
            finding = replace(finding, **ends)
        moved.append(finding)
    return moved


def names_of_worse(before, after):
    return [change.after.name for change in find_changes(before, after) if change.is_worse]


def test_only_what_rose_by_far_is_worse():
    assert names_of_worse(example.findings(), example.findings()) == []
    assert names_of_worse(example.findings(), change(-0.2)) == []
    assert names_of_worse(example.findings(), change(0.3, "sia.asr-last-round")) == ["sia.asr-last-round"]
    assert "sia.asr" in names_of_worse(example.findings(), change(0.3))


def test_a_rise_is_held_against_both_intervals_and_corrected():
    before, after = example.findings(), change(0.05)
    changes = find_changes(before, after)
    first = changes[0]
    old, new = first.before, first.after
    errors = [max(one.value - one.low, one.high - one.value) / norm.isf(0.025) for one in (old, new)]
    assert first.p == pytest.approx(norm.sf(0.05 / np.hypot(*errors)))
    assert all(one.p_adjusted >= one.p for one in changes)
    assert {one.before.name for one in changes} == {one.name for one in before if one.p is not None}


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 3])
def test_audits_of_nothing_new_are_rarely_worse(seeds):
    """Different examples, and with several seeds also models that differ, of the same mean rate."""
    draw = np.random.default_rng(seeds)
    (headline, *_) = example.findings()
    alarms, repeats = 0, 400

    def audit():
        rates = np.clip(draw.normal(0.3, 0.03 * (seeds > 1), seeds), 0, 1)
        hits, sizes = draw.binomial(500, rates), [500] * seeds
        low, high = rate_interval(hits.tolist(), sizes)
        return replace(headline, value=float(hits.sum()) / sum(sizes), low=low, high=high)

    for _ in range(repeats):
        alarms += bool(names_of_worse([audit()], [audit()]))
    assert alarms / repeats < 0.08


def test_what_cannot_be_judged_is_no_pass():
    before = example.findings()
    with pytest.raises(ConfigError, match="no tested finding in common"):
        find_changes(before, example.prolin_findings())
    for lost in ([], [replace(before[0], verdict=CANNOT_TELL)], [replace(before[0], view="aggregate")]):
        with pytest.raises(ConfigError, match=r"the baseline has sia\.asr, which the new audit does not measure"):
            find_changes(before, [*lost, *before[1:]])
    gone = change(0.3, "sia.asr-last-round")[1:]
    assert names_of_worse(before, gone) == ["sia.asr-last-round"]


def test_the_command_ends_with_the_code_of_a_gate_and_names_what_is_worse(call, tmp_path):
    baseline = write(tmp_path / "released", example.findings(), example.run())
    same = write(tmp_path / "same", example.findings(), example.run())
    worse = write(tmp_path / "nightly", change(0.3, "sia.asr"), example.run())
    words = ("--fail-if", "worse", "--out", tmp_path / "out")
    code, out, _ = call("compare", baseline, same, *words)
    assert (code, "Nothing is surely worse, in " in out) == (0, True)
    code, _, err = call("compare", baseline, worse, *words)
    assert code == 3
    assert err.startswith("threshold crossed: worse: sia.asr: ")
    assert len(err.splitlines()) == 1
    compared = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert [one["finding"] for one in compared["changes"] if one["worse"]] == ["sia.asr"]
    assert "From released to nightly" in (tmp_path / "out" / "compare.html").read_text()
    code, out, _ = call("compare", baseline, worse, *words, "--json")
    assert (code, [one["finding"] for one in json.loads(out)["worse"]]) == (3, ["sia.asr"])


def test_without_the_gate_nothing_is_said_of_it(call, tmp_path):
    folders = [
        write(tmp_path / name, example.findings(), example.run() | {"setting": {"alpha": alpha}})
        for name, alpha in (("a", 1), ("b", 2))
    ]
    code, out, _ = call("compare", *folders, "--out", tmp_path / "out", "--json")
    assert (code, [*json.loads(out)]) == (0, ["page"])
    assert [*json.loads((tmp_path / "out" / "compare.json").read_text())] == ["by", "headline", "runs"]
