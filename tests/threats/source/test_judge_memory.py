"""The judge goes through losses round by round: those of many rounds stay on disk."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from fedattack.attacks import ATTACKS, base
from fedattack.grids.tradeoff.cost import measure_peak_memory
from fedattack.threats.source.judge import SourceJudge
from tests.threats.source.test_judge import K, case
from tests.worlds.cases import change_case

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory's high-water mark is Linux's")


def saved(folder, *, rounds: int, n: int):
    """Save scores of a judge's case; returns the case and the file."""
    made = case(hits=0.5, rounds=rounds, n=n, null=n)
    scores = made.scores
    arrays = dict(scores.arrays)
    arrays["decisions"] = np.nan_to_num(arrays["combined"]).argmax(axis=1)
    facts = {**scores.facts, "targets": ""}
    replace(scores, arrays=arrays, facts=facts).save(folder / "sia.npz")
    return made, folder / "sia.npz"


def judged(made, file) -> list:
    scores = ATTACKS["sia"].load_scores(file)
    return SourceJudge([change_case(made, scores=scores)], setting={}, provenance={}).findings()


@pytest.mark.slow
def test_findings_are_the_same_from_disk(tmp_path, monkeypatch):
    made, file = saved(tmp_path, rounds=4, n=200)
    in_memory = judged(made, file)
    monkeypatch.setattr(base, "IN_MEMORY", 100)
    on_disk = judged(made, file)
    assert [vars(finding) for finding in on_disk] == [vars(finding) for finding in in_memory]
    assert on_disk[0].verdict == "leak"


@LINUX
@pytest.mark.slow
def test_many_rounds_take_the_memory_of_few(tmp_path):
    rounds, n = 500, 2_000
    made, file = saved(tmp_path, rounds=rounds, n=n)
    size = rounds * 2 * n * K * 8
    made.scores.arrays.clear()

    def read():
        scores = ATTACKS["sia"].load_scores(file)
        return change_case(made, scores=scores).combined

    assert size == 80_000_000
    assert measure_peak_memory(read) < 48e6
