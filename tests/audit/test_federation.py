"""Several runs in which the same clients hold the same: their accidents are one accident."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fedattack.attacks import Knowledge, Targets
from fedattack.audit.federation import dealt_anew
from fedattack.audit.judging import judge_attacks
from fedattack.audit.opened import open_runs
from fedattack.audit.truth import NOBODY, ClientAttribute, Truth
from fedattack.record.folder import RunFolder
from tests.audit.test_run import attack_all
from tests.worlds.federation import write_run

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)


def one(owners=None, **parts):
    owners = np.array([NOBODY] * len(X) if owners is None else owners)
    nothing = (np.zeros((1, 3), dtype=np.float32), np.zeros(1, dtype=np.int64))
    truth = Truth(("a", "b", "c"), ("0",), np.ones((3, 1), dtype=int), owners, nothing, {}, "", **parts)
    targets = Targets(X, np.zeros(len(X), dtype=np.int64))
    return SimpleNamespace(truth=truth, knowledge=Knowledge(targets=targets))


def drawn(seed, clients="abcdefgh"):
    return np.random.default_rng(seed).choice([*clients], size=len(X))


def test_runs_that_deal_anew_are_told_from_those_that_do_not():
    first, second = drawn(0), drawn(1)
    assert dealt_anew([one(first), one(second)]) == [0, 1]
    assert dealt_anew([one(first), one(second), one(first), one(second)]) == [0, 1]
    assert dealt_anew([one(first), SimpleNamespace(truth=None)]) == [0, 1]
    assert dealt_anew([one(), one()]) == [0, 1], "nobody holds anything"


def test_targets_in_another_order_are_the_same():
    owners, order = drawn(0), np.random.default_rng(1).permutation(len(X))
    other = one(owners[order])
    other.knowledge = Knowledge(targets=Targets(X[order], np.zeros(len(X), dtype=np.int64)))
    assert dealt_anew([one(owners), other]) == [0]


def test_a_few_targets_of_other_owners_do_not_make_another_federation():
    owners = drawn(0)
    moved = owners.copy()
    moved[:8] = "z"
    assert dealt_anew([one(owners), one(moved)]) == [0]
    moved[:12] = "z"
    assert dealt_anew([one(owners), one(moved)]) == [0, 1]


@pytest.mark.parametrize(
    ("kind", "values", "others"),
    [
        ("positives", np.eye(3, dtype=bool), ~np.eye(3, dtype=bool)),
        (
            "private",
            {"p": ClientAttribute((0, 1, 2), ("x", "y", "z"))},
            {"p": ClientAttribute((1, 2, 0), ("x", "y", "z"))},
        ),
        ("answers", {"toy": {"a": np.arange(3)}}, {"toy": {"a": np.arange(1, 4)}}),
    ],
)
def test_every_kind_of_truth_counts(kind, values, others):
    assert dealt_anew([one(**{kind: values}), one(**{kind: values})]) == [0]
    assert dealt_anew([one(**{kind: values}), one(**{kind: others})]) == [0, 1]


def test_a_copied_run_makes_no_finding_surer(tmp_path):
    write_run(tmp_path)
    attack_all(tmp_path)
    (evidence,) = open_runs(RunFolder(tmp_path))
    alone = judge_attacks([evidence], setting={}, provenance={})
    twice = judge_attacks([evidence, replace(evidence, index=1)], setting={}, provenance={})
    assert [finding.metric for finding in twice] == [finding.metric for finding in alone]
    for once, again in zip(alone, twice, strict=True):
        assert again.n == 2 * once.n or again.n == once.n
        assert again.p >= once.p
        assert f"so only seed {evidence.seed} is tested" in again.reason
    assert [finding.verdict for finding in alone] == [finding.verdict for finding in twice]
