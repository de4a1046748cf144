import json
import math
import re

import numpy as np
import pytest

from fedattack.audit.finding import Finding, in_units, verdict
from fedattack.audit.gate import parse_fail_if
from fedattack.base.errors import ConfigError, ReportError


def finding(**changes):
    parts = {
        "attack": "sia",
        "metric": "asr",
        "label": "Source inference, all rounds combined",
        "view": "individual",
        "value": 0.58,
        "low": 0.55,
        "high": 0.61,
        "n": 1000,
        "seeds": [0, 1],
        "verdict": "leak",
        "reason": "it clears chance and the null run",
        "chance": 0.1,
        "null": {"value": 0.1, "low": 0.08, "high": 0.12, "n": 1000},
        "baselines": {"size prior": 0.14},
        "series": {"per_round": {"rounds": [1, 2], "value": [0.2, 0.5]}},
    }
    return Finding(**{**parts, **changes})


def test_a_finding_survives_json():
    before = finding(seed_mean=0.58, seed_sd=0.01, setting={"alpha": 0.1}, headline=True)
    assert Finding.from_dict(json.loads(json.dumps(before.to_dict()))) == before


def test_to_dict_gives_plain_values_and_copies():
    series = {"confidence": np.array([0.1, 0.9]), "count": (np.int64(3), 4)}
    made = finding(value=np.float64(0.58), n=np.int64(1000), series=series)
    plain = made.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["series"] == {"confidence": [0.1, 0.9], "count": [3, 4]}
    plain["baselines"]["size prior"] = 9
    assert made.baselines == {"size prior": 0.14}


def test_from_dict_names_keys_that_do_not_belong_or_are_absent():
    data = finding().to_dict() | {"colour": "red"}
    del data["n"]
    with pytest.raises(ReportError, match=r"unknown keys \['colour'\] and lacks \['n'\]"):
        Finding.from_dict(data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": "ASR"}, "'ASR' is not a name"),
        ({"metric": "asr\n"}, "is not a name"),
        ({"metric": "asr.last"}, "'asr.last' is not a name"),
        ({"metric": "asr."}, "'asr.' is not a name"),
        ({"metric": ".1pct"}, "'.1pct' is not a name"),
        ({"metric": "tpr-at-0.1.2pct"}, "is not a name"),
        ({"attack": ""}, "is not a name"),
        ({"attack": "sia-0.1"}, "'sia-0.1' is not a name"),
        ({"verdict": "maybe"}, "expected one of leak, no evidence, too few to tell, cannot be told, not applicable"),
        ({"verdict": "not applicable", "reason": " "}, "reason is empty"),
        ({"value": None, "low": None, "high": None}, "has no value but the verdict 'leak'"),
        ({"low": 0.6}, "ascending"),
        ({"high": 0.5}, "ascending"),
        ({"value": None, "low": 0.7, "verdict": "not applicable"}, "ascending"),
        ({"headline": True, "selected_after_the_fact": True}, "fixed in advance"),
        ({"value": math.nan}, "value is not a finite number"),
        ({"high": math.inf}, "high is not a finite number"),
        ({"series": {"per_round": {"value": [0.1, math.nan]}}}, "series.per_round.value.1 is not a finite number"),
        ({"series": {"x": np.array([1.0, np.inf])}}, "series.x.1 is not a finite number"),
    ],
)
def test_contradictions_are_refused(changes, message):
    with pytest.raises(ReportError, match=message):
        finding(**changes)


def test_a_metric_may_hold_a_number_with_a_point_and_be_asked_for_by_name():
    small = finding(attack="membership", metric="tpr-at-0.1pct-fpr")
    assert small.name == "membership.tpr-at-0.1pct-fpr"
    assert Finding.from_dict(json.loads(json.dumps(small.to_dict()))) == small
    assert parse_fail_if("membership.tpr-at-0.1pct-fpr > 0.3").is_crossed([small])
    assert not parse_fail_if("membership.tpr-at-0.1pct-fpr>0.6").is_crossed([small])
    assert not parse_fail_if("sia.asr < 0.001").is_crossed([small, finding()])


@pytest.mark.parametrize(
    ("value", "units", "text"),
    [
        (0.581, "proportion", "58.1%"),
        (0, "proportion", "0%"),
        (1, "proportion", "100%"),
        (0.2, "proportion", "20.0%"),
        (0.0004, "proportion", "0.04%"),
        (0.99996, "proportion", "99.996%"),
        (1e-9, "proportion", "0%"),
        (-1e-9, "proportion", "0%"),
        (1 - 1e-9, "proportion", "100%"),
        (-0.02, "proportion", "-2.0%"),
        (3.14159, "nats", "3.14 nats"),
        (3.14159, "", "3.14"),
    ],
)
def test_numbers_are_shown_in_their_units(value, units, text):
    assert in_units(value, units) == text


@pytest.mark.parametrize(
    ("value", "chance", "p", "bars", "expected"),
    [
        (0.6, 0.1, 0.001, None, "leak"),
        (0.6, 0.1, 0.05, None, "leak"),
        (0.6, 0.1, 0.051, None, "no evidence"),
        (0.1, 0.1, 0.001, None, "no evidence"),
        (0.13, 0.1, 0.001, {"size prior": 0.14}, "no evidence"),
        (0.15, 0.1, 0.001, {"size prior": 0.14}, "leak"),
        (0.15, None, 0.001, {"size prior": 0.14}, "leak"),
    ],
)
def test_a_leak_must_clear_every_bar_and_be_no_accident(value, chance, p, bars, expected):
    assert verdict(value, chance, p, bars)[0] == expected


def test_too_few_targets_can_show_nothing():
    words, why = verdict(1.0, 1 / 3, 1 / 6, least=1 / 6)
    assert words == "too few to tell"
    assert "at best p = 0.17" in why


def test_the_reason_names_the_bars_and_the_test():
    assert verdict(0.6, 0.1, 0.0001, {"size prior": 0.14}, how="clients exchanged")[1] == (
        "60.0% is above chance (10.0%) and size prior (14.0%), and this is unlikely to be an accident: p = 0.0001 "
        "(clients exchanged)"
    )
    assert verdict(0.12, 0.1, 0.01, {"size prior": 0.14})[1] == "12.0% is not above size prior (14.0%)"
    assert verdict(0.12, 0.1, 0.2)[1] == "the result may well be an accident: p = 0.2"


@pytest.mark.parametrize(
    ("arguments", "lacking"),
    [
        ((None, 0.1, None), "a value and a test"),
        ((0.5, 0.1, None), "a test"),
        ((0.5, None, 0.1), "a chance level"),
    ],
)
def test_without_something_to_clear_there_is_no_verdict(arguments, lacking):
    assert verdict(*arguments) == ("not applicable", f"a verdict needs {lacking}, and there is none")


@pytest.mark.parametrize(
    ("text", "crossed"),
    [
        ("sia.asr > 0.3", True),
        ("sia.asr>0.3", True),
        ("  sia.asr  >=  0.58 ", True),
        ("sia.asr > 0.58", False),
        ("sia.asr < 0.58", False),
        ("sia.asr <= 0.58", True),
        ("sia.asr <= 5.8e-1", True),
        ("sia.asr-last-round > 0.3", False),
    ],
)
def test_conditions(text, crossed):
    last = finding(metric="asr-last-round", value=0.2, low=0.18, high=0.22, verdict="leak")
    assert parse_fail_if(text).is_crossed([finding(), last]) is crossed


NONSENSE = ["", "sia.asr", "sia.asr = 0.3", "sia.asr == 0.3", "asr > 0.3", "sia.asr > much", "sia.asr > 30%", "verdict"]
NONSENSE += ["0.3 < sia.asr", "sia.asr > nan", "SIA.asr > 0.3", "sia.asr > 0.3 or sia.asr < 0.1", "sia.asr.low > leak"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, r"expected ATTACK\.METRIC") for text in NONSENSE),
        ("sia.asr.verdict > leak", "compared by == or !="),
        ("verdict == leek", "did you mean leak"),
        ("sia.asr.lwo > 1", "did you mean low"),
    ],
)
def test_nonsense_conditions_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_fail_if(text)


def test_a_condition_on_a_finding_that_does_not_exist_lists_those_that_do():
    others = [finding(metric="asr-last-round"), finding(metric="asr-worst-client")]
    with pytest.raises(ConfigError, match=r"one of: sia\.asr-last-round, sia\.asr-worst-client$"):
        parse_fail_if("sia.asr > 0.3").is_crossed(others)
    with pytest.raises(ConfigError, match="one of: none"):
        parse_fail_if("sia.asr > 0.3").is_crossed([])


@pytest.mark.parametrize(
    ("text", "crossed"),
    [
        ("sia.asr.low > 0.5", True),
        ("sia.asr.low > 0.57", False),
        ("sia.asr.high >= 0.61", True),
        ("sia.asr.verdict == leak", True),
        ("sia.asr.verdict == 'leak'", True),
        ("sia.asr.verdict != leak", False),
        ("sia.asr-last-round.verdict == too few to tell", True),
        ("membership.tpr-at-0.1pct-fpr.low < 0.1", False),
        ("verdict == leak", True),
        ("verdict == no evidence", False),
        ("verdict != no evidence", True),
    ],
)
def test_conditions_on_verdicts_and_ends(text, crossed):
    """Of a bare verdict the headlines alone count."""
    there = [
        finding(headline=True),
        finding(metric="asr-last-round", verdict="too few to tell"),
        finding(attack="membership", metric="tpr-at-0.1pct-fpr"),
        finding(metric="asr-best-round", verdict="no evidence"),
    ]
    assert parse_fail_if(text).is_crossed(there) is crossed


def test_what_was_not_measured_passes_no_gate():
    absent = finding(value=None, low=None, high=None, verdict="not applicable", reason="no targets", headline=True)
    open_ended = finding(low=None, high=None, reason="one target", headline=True)
    for text, there in (
        ("verdict == leak", [absent]),
        ("verdict == leak", [finding(attack="aia", verdict="no evidence", headline=True), absent]),
        ("sia.asr.verdict == leak", [absent]),
        ("sia.asr.low > 0.3", [absent]),
        ("sia.asr.low > 0.3", [open_ended]),
        ("verdict == leak", [finding()]),
        ("verdict == leak", []),
    ):
        with pytest.raises(ConfigError, match="--fail-if"):
            parse_fail_if(text).is_crossed(there)
    assert parse_fail_if("verdict == leak").is_crossed([absent, finding(attack="aia", headline=True)])
    assert parse_fail_if("verdict != no evidence").is_crossed([absent])
    assert not parse_fail_if("verdict != not applicable").is_crossed([absent])


@pytest.mark.parametrize(
    ("text", "example"),
    [
        ("sia.asr > 30", "write 0.3 for 30%"),
        ("sia.asr.low >= 2.5", "write 0.025 for 2.5%"),
        ("sia.asr < -1", "write 0.3 for 30%"),
        ("sia.asr > 300", "write 0.3 for 30%"),
    ],
)
def test_a_share_is_not_held_against_what_no_share_can_be(text, example):
    message = f"--fail-if {text}: sia.asr is a share from 0 to 1 that is shown in per cent; {example}"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        parse_fail_if(text).is_crossed([finding()])
    points = finding(units="points", value=31.0, low=30.5, high=32.0, chance=0.0)
    assert parse_fail_if("sia.asr > 30").is_crossed([points])
    assert not parse_fail_if("sia.asr > 1").is_crossed([finding()])


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("verdict == leak", "verdict != no evidence"),
        ("sia.asr.verdict == leak", "sia.asr.verdict != no evidence"),
        ("verdict == no evidence", "verdict != no evidence"),
    ],
)
def test_too_few_to_tell_passes_no_gate_on_a_leak(text, instead):
    few = finding(verdict="too few to tell", reason="three clients", headline=True)
    message = rf"sia\.asr is too few to tell: the gate can neither fail nor pass; .* \"{instead}\""
    with pytest.raises(ConfigError, match=message):
        parse_fail_if(text).is_crossed([few])
    assert parse_fail_if(instead).is_crossed([few])


def test_too_few_to_tell_is_an_answer_to_other_gates():
    few = finding(verdict="too few to tell", reason="three clients", headline=True)
    assert parse_fail_if("verdict == leak").is_crossed([few, finding(attack="aia", headline=True)])
    assert parse_fail_if("verdict == too few to tell").is_crossed([few])
    assert not parse_fail_if("verdict != too few to tell").is_crossed([few])
    assert not parse_fail_if("verdict == not applicable").is_crossed([few])
    assert not parse_fail_if("sia.asr > 0.7").is_crossed([few])


def test_a_gate_is_not_passed_by_what_cannot_be_told():
    unread = finding(verdict="cannot be told", reason="clients send bytes", headline=True)
    for condition in ("verdict == leak", "verdict == no evidence", "sia.asr > 0.9"):
        with pytest.raises(ConfigError, match="clients send bytes"):
            parse_fail_if(condition).is_crossed([unread])
    assert parse_fail_if("verdict == cannot be told").is_crossed([unread])
    assert parse_fail_if("verdict != no evidence").is_crossed([unread])
