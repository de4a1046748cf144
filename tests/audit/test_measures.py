"""What a measure gives, and what the base of judges makes of it."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedattack.attacks import Scores
from fedattack.audit.finding import LEAK, NOT_APPLICABLE
from fedattack.audit.intervals import rate_interval, these_runs
from fedattack.audit.judge import Case, Judge, entry_of_client, expose_client, rows_of_clients
from fedattack.audit.measures import UNKNOWN, Measurement, Rate, Sides, measure, no_value
from fedattack.audit.roc import area, area_value
from fedattack.audit.significance import Significance
from fedattack.audit.truth import Truth
from tests.worlds.cases import make_case

SURE = Significance(0.001, 0.0001, "how")


class Naming(Judge[Case[Any]]):
    """Three measures, of which one finds nothing and one finds several numbers."""

    @measure("others-*")
    def count_others(self):
        for name in ("a", "b"):
            yield Rate([1.0], [4]).measured("why", metric=f"others-{name}", label=name, chance=0.5, test=SURE)

    @measure("nothing", "Nothing")
    def count_nothing(self):
        return None

    @measure("named", "Named", headline=True)
    def count_named(self):
        rate = Rate([3.0, 5.0], [10, 10])
        return rate.measured("why", chance=0.1, test=SURE, bars={"bar": 0.2}, by_seed=rate.by_seed)


class More(Naming):
    """A judge that measures what another does, and one thing in another way."""

    @measure("nothing", "Something")
    def count_something(self):
        return no_value("there is none")


def cases(seeds=2):
    truth = Truth(
        clients=("0", "1"),
        classes=("0",),
        counts=np.ones((2, 1), dtype=np.int64),
        owners=np.array([], dtype=np.str_),
        evaluation=(np.zeros((1, 1), np.float32), np.zeros(1, np.int64)),
        nodes={},
        targets="",
    )
    record = SimpleNamespace(view="individual")
    return [make_case(Case, seed, Scores("sia", {}, {}), truth, record) for seed in range(seeds)]


def judge_of(kind=Naming):
    return kind(cases(), setting={"a": 1}, provenance={"b": 2})


def test_measures_are_registered_in_their_order_and_the_headline_is_shown_first():
    assert list(Naming.metrics()) == ["others-*", "nothing", "named"]
    assert Naming.headline == "named"
    found = judge_of().findings()
    assert [finding.metric for finding in found] == ["named", "others-a", "others-b"]
    assert [finding.headline for finding in found] == [True, False, False]


def test_a_judge_has_the_measures_of_the_one_that_it_is_made_of_and_may_replace_them():
    found = {finding.metric: finding for finding in judge_of(More).findings()}
    assert list(More.metrics()) == list(Naming.metrics())
    assert found.keys() == {"named", "others-a", "others-b", "nothing"}
    assert (found["nothing"].verdict, found["nothing"].reason) == (NOT_APPLICABLE, "there is none")
    assert (found["nothing"].value, found["nothing"].n, found["nothing"].p) == (None, 0, None)


def test_the_base_makes_a_finding_of_a_rate():
    (found,) = (finding for finding in judge_of().findings() if finding.headline)
    assert (found.value, found.n, found.chance, found.p, found.p_least) == (0.4, 20, 0.1, 0.001, 0.0001)
    assert (found.low, found.high) == rate_interval([3.0, 5.0], [10, 10])
    assert (found.here_low, found.here_high) == these_runs([3.0, 5.0], [10, 10])
    assert (found.seed_mean, found.seed_sd) == (pytest.approx(0.4), pytest.approx(0.1 * 2**0.5))
    assert (found.verdict, found.label, found.seeds) == (LEAK, "Named", [0, 1])
    assert found.reason.startswith("why: 40.0% is above chance (10.0%) and bar (20.0%)")
    assert (found.setting, found.provenance) == ({"a": 1}, {"b": 2})


def test_one_seed_has_no_interval_of_its_own_beside_that_of_these_runs():
    rate = Rate.of([np.array([True, False, True])])
    assert (rate.hits, rate.sizes, rate.here) == ([2.0], [3], UNKNOWN)
    assert Rate([], []).null() is None
    assert Rate([1.0, 0.0], [2, 0]).null() is None


def test_two_sides_are_pooled_over_seeds_and_their_interval_is_never_narrower_than_that_of_these_runs():
    rng = np.random.default_rng(0)
    sides = Sides([(rng.normal(1 + seed, 1, 40), rng.normal(0, 1, 50)) for seed in range(3)])
    here = area(*sides.pooled)
    found = sides.measured("why", area, area_value, chance=0.5, test=SURE)
    assert isinstance(found, Measurement)
    assert (found.value, found.n, found.here) == (here.value, 120, (here.low, here.high))
    assert found.interval[0] <= here.low <= here.high <= found.interval[1]
    assert found.by_seed == [area_value(*seed) for seed in sides.seeds]
    alone = Sides(sides.seeds[:1]).measured("why", area, area_value)
    assert alone.here == UNKNOWN


def test_the_most_exposed_client_is_named_and_its_choice_is_paid_for():
    entry = entry_of_client("1 (seed 0)", np.array([1.0, 0.5, 0.0]), comparisons=4)
    assert (entry["value"], entry["n"]) == (0.5, 3)
    assert (entry["low"], entry["high"]) == rate_interval([1.5], [3], comparisons=4)
    worst = expose_client(entry | {"null": None}, 4, "Named, most exposed client", " of all", chance=0.1, test=SURE)
    assert (worst.label, worst.chosen_among) == ("Named, most exposed client (1 (seed 0))", 4)
    none = expose_client(entry | {"null": None, "value": 0.0, "low": 0.0}, 4, "Named, most exposed client", "")
    assert none.label == "Named, most exposed client (none stands out)"
    assert worst.reason == "chosen after the fact among all clients of all"
    (row,) = rows_of_clients(judge_of(), [entry])
    assert (row["seed"], row["client"], row["n"], row["value"]) == (0, "1", 3, 0.5)
