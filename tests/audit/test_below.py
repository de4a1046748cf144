"""What is far below guessing cannot be told; what is at chance is hardly ever taken for it."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedattack.audit.below import BELOW, mark_below_guessing
from fedattack.audit.control import TRAINED, Control, with_controls
from fedattack.audit.exchanges import Exchanges
from fedattack.audit.finding import CANNOT_TELL, LEAK, NO_EVIDENCE, NOT_APPLICABLE, TOO_FEW
from fedattack.audit.significance import correct_findings, significance_of
from fedattack.base.reasons import find_reason
from fedattack.threats.source.judge import SourceJudge
from tests.audit.test_significance import finding
from tests.benchmarks.calibration.membership import World, judged, quick
from tests.benchmarks.calibration.source import NULLS, Drawn, findings_of
from tests.threats.source.test_judge import case, with_losses

NOTHING = {"setting": {}, "provenance": {}}


def low(metric="asr", p_below=1e-4, **changes):
    parts = {"value": 0.02, "low": 0.01, "high": 0.05, "p": 1.0, "p_least": 1e-4, "p_below": p_below}
    return finding(metric, **(parts | {"verdict": NO_EVIDENCE} | changes))


def test_so_little_that_it_is_no_accident_cannot_be_told():
    (found,) = mark_below_guessing([low()])
    assert found.verdict == CANNOT_TELL
    said = "below guessing, so the scores mean something else (2.0% where guessing gives 10.0%, corrected p = 0.0001)"
    assert found.reason == f"said; {said}"
    assert find_reason(found.grounds, BELOW) == said
    assert find_reason(low().grounds, BELOW) == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"p_below": 0.03},
        {"value": 0.1, "high": 0.2},
        # A test may be of another number than the value.
        {"value": 0.09, "high": 0.12},
        {"high": None},
        {"high": 0.3, "here_low": 0.01, "here_high": 0.2},
        {"units": "dB"},
        {"p": None, "p_least": None, "p_below": None, "verdict": NOT_APPLICABLE},
        {"chance": None},
        {"verdict": LEAK},
    ],
)
def test_others_stay_as_they_are(changes):
    assert mark_below_guessing([low(**changes)]) == [low(**changes)]


def test_of_several_runs_the_interval_about_these_very_runs_counts():
    (found,) = mark_below_guessing([low(high=0.3, here_low=0.01, here_high=0.05)])
    assert found.verdict == CANNOT_TELL


def test_all_findings_of_a_page_are_corrected_together():
    findings = [low(p_below=0.0015), *(low(f"m{index}", p_below=0.5) for index in range(20))]
    assert mark_below_guessing(findings) == findings
    assert mark_below_guessing(findings[:10])[0].verdict == CANNOT_TELL


def test_a_headline_that_shows_nothing_is_taken_back_with_another_measure_of_its_attack():
    """Scores that are turned round have an area of 0.2, and at 1% false positives there is nothing below 1%."""
    headline = low("tpr", value=0.01, high=0.03, p_below=0.4, headline=True)
    area = low("auc", label="Area", units="AUC", value=0.2, low=0.1, high=0.3, chance=0.5)
    other, unrelated = low("accuracy", p_below=0.4), low("asr", attack="membership", p_below=0.4, headline=True)
    first, second, *rest = mark_below_guessing([headline, area, other, unrelated])
    assert (first.verdict, second.verdict) == (CANNOT_TELL, CANNOT_TELL)
    assert "(Area: 0.2 AUC where guessing gives 0.5 AUC, corrected p = 0.0004)" in find_reason(first.grounds, BELOW)
    assert rest == [other, unrelated]
    leak = finding("tpr", headline=True, p_below=1.0)
    assert mark_below_guessing([leak, area])[0] == leak


def test_a_positive_control_does_not_turn_it_round():
    (found,) = mark_below_guessing([low()])
    for is_seen in (True, False):
        assert with_controls([found], {"sia": Control(TRAINED, 1, is_seen)}) == [found]


def normal(rng, count):
    return rng.normal(size=count)


def test_the_other_side_changes_neither_p_nor_what_is_drawn_later():
    for observed in (-3.5, -1.0, 0.0, 1.0, 3.5):
        rng, same = np.random.default_rng(1), np.random.default_rng(1)
        test = significance_of(observed, normal, rng, "")
        drawn = normal(same, 199)
        if (drawn >= observed).mean() <= 0.25:
            drawn = np.concatenate([drawn, *(normal(same, size) for size in [1_000] * 9 + [800])])
        assert test.p == (1 + (drawn >= observed).sum()) / (1 + len(drawn))
        assert rng.random() == same.random()


def test_the_p_of_the_other_side_is_that_of_the_statistic_turned_round():
    for observed in (-4.0, -3.0, -2.2):
        expected = stats.norm.cdf(observed)
        below = significance_of(observed, normal, np.random.default_rng(2), "").below
        assert below == pytest.approx(expected, abs=5 * np.sqrt(expected / 9_999) + 1e-4)
    assert significance_of(3.0, normal, np.random.default_rng(2), "").below > 0.9
    everything = np.arange(100.0)
    few = significance_of(
        0.0, lambda rng, count: rng.choice(everything, count), np.random.default_rng(3), "", arrangements=100
    )
    assert few.below == pytest.approx(1 / 100)


def test_what_is_no_number_is_not_small():
    def draw(rng, count):
        return np.full(count, np.nan)

    assert significance_of(1.0, draw, np.random.default_rng(0), "all").below == 1


def test_statistics_that_share_exchanges_draw_the_same_ones_whoever_goes_on():
    """The area goes on for its other side; the rate then takes the same exchanges as without it."""
    rng = np.random.default_rng(0)
    members, others = rng.normal(size=60), rng.normal(size=60) + 1.0
    cells = np.zeros(60, dtype=np.int64)

    def exchanges():
        return Exchanges(members, others, cells, cells, (5,))

    alone, after = exchanges(), exchanges()
    assert after.significance(after.area, "").below <= 1e-3
    rate, rate_after = alone.tpr_at(0.1), after.tpr_at(0.1)
    assert alone.significance(alone.best_balanced_accuracy, "") == after.significance(after.best_balanced_accuracy, "")
    assert alone.significance(rate, "") == after.significance(rate_after, "")


@pytest.mark.slow
def test_losses_that_are_turned_round_name_nobody_and_find_no_member():
    """Whoever trained on an example has the highest loss of it: by the judges of both threats."""
    single = case(hits=1.0, n=100, null=100)
    (found, *_) = mark_below_guessing(
        correct_findings(SourceJudge([with_losses(single, 2 - single.scores.arrays["losses"])], **NOTHING).findings())
    )
    assert (found.name, found.verdict) == ("sia.asr", CANNOT_TELL)
    with quick():
        findings = judged(World(learned=-1.5), np.random.default_rng(0))
    by_metric = {one.metric: one for one in mark_below_guessing(correct_findings(findings))}
    assert by_metric["auc"].verdict == by_metric["tpr-at-1pct-fpr"].verdict == CANNOT_TELL
    assert "(Area under the ROC curve: 0." in find_reason(by_metric["tpr-at-1pct-fpr"].grounds, BELOW)


@pytest.mark.slow
def test_members_that_nobody_learned_are_not_below_guessing():
    said = 0
    with quick():
        for number in range(10):
            for world in (World(), World(by_label=2.0), World(relative=True)):
                findings = correct_findings(judged(world, np.random.default_rng(number)))
                said += any(one.verdict == CANNOT_TELL for one in mark_below_guessing(findings))
    assert said <= stats.binom.isf(0.001, 30, 0.02)


def smaller(drawn: Drawn) -> Drawn:
    return replace(drawn, targets=min(drawn.targets, 20), held_out=min(drawn.held_out, 10))


@pytest.mark.slow
def test_pages_on_nothing_say_it_in_at_most_one_of_fifty():
    nulls, said, pages = [null.drawn for null in NULLS if null.name not in ("3 clients",)], 0, 0
    for index, drawn in enumerate(nulls):
        for number in range(15):
            found = mark_below_guessing(findings_of(smaller(drawn), np.random.default_rng((9, index, number))))
            said += any(one.verdict == CANNOT_TELL for one in found)
            pages += 1
    assert pages >= 200
    assert said <= stats.binom.isf(0.001, pages, 0.02)


def test_drawn_pages_on_nothing_say_it_in_at_most_one_of_fifty():
    """Twelve rates of clients that are at chance, by the test of a report."""
    rng, said = np.random.default_rng(0), 0
    for page in range(300):
        findings = []
        for index, observed in enumerate(rng.normal(size=12)):
            test = significance_of(float(observed), normal, np.random.default_rng((page, index)), "")
            value = float(np.clip(0.1 + 0.01 * observed, 0, 1))
            ends = {"low": value - 0.02, "high": value + 0.001, "value": value}
            parts = ends | {"p": test.p, "p_least": test.least, "p_below": test.below, "headline": not index}
            findings.append(low(f"m{index}", **parts))
        found = mark_below_guessing(correct_findings(findings))
        said += any(one.verdict == CANNOT_TELL for one in found)
    assert said <= stats.binom.isf(0.001, 300, 0.02)
    assert TOO_FEW not in {one.verdict for one in found}
