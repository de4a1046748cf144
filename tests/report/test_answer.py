"""The first screen: it answers the question, says what explains the number, how sure it is, and what to do."""

import re
from dataclasses import replace

import pytest

from fedattack.attacks.registry import THREATS
from fedattack.audit.below import mark_below_guessing
from fedattack.audit.control import CONTROL
from fedattack.audit.finding import answering
from fedattack.audit.gate import parse_fail_if
from fedattack.base.errors import ConfigError
from fedattack.base.reasons import Reason
from fedattack.report.answer import answers_of, in_short, overview_of, question_of, short_of, steps_of, summary_of
from fedattack.report.section import Explained, Section, section_of
from fedattack.report.words import verdict_in_words
from tests.report import example

RUN = example.run()


def asr(**changes):
    return replace(example.findings()[0], **changes)


def beside(metric, verdict, null, *, around=0.02):
    return replace(
        asr(headline=False, metric=metric, verdict=verdict, value=0.6, high=0.62),
        null={"value": null, "low": null - around, "high": null + around, "n": 900},
    )


def read(right, certain):
    return {"what": "example", "right": right, "certain": certain, "clients": 2}


def test_what_is_certain_or_right_is_neither_denied_nor_said_to_be_by_a_test():
    certain = replace(asr(read_off=read(1, 1), low=0.0), p_adjusted=None)
    (answer,) = answers_of([certain], RUN)
    assert "It needs no test: what is certain stays certain whatever else was found." in answer.sure
    assert verdict_in_words(certain) == "leak shown"
    right = asr(read_off=read(1, 0), verdict="no evidence")
    assert verdict_in_words(replace(right, p_adjusted=0.2)) == "may be an accident"
    assert verdict_in_words(asr(read_off=read(0, 0), verdict="no evidence")) == "not shown"


def test_what_is_right_and_hardly_an_accident_is_not_said_to_be_one():
    """Guessing, or a baseline, gives as much."""
    right = asr(read_off=read(3, 0), verdict="no evidence")
    assert right.p_adjusted <= 0.05
    assert verdict_in_words(right) == "not shown"
    (answer,) = answers_of([right], RUN)
    assert answer.short == "3 examples are right, but the number is not above guessing or a baseline."
    assert any(
        words.startswith("Unlikely to be an accident, but not above guessing or a baseline") for words in answer.sure
    )


def with_parts(*points):
    """Return the headline with what its success is made of."""
    parts = [{"part": f"part {index}", "value": value} for index, value in enumerate(points)]
    return asr(series={"explained": {"value": 0.6, "n": 100, "parts": parts}})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "Yes: 5.8 times as often as guessing."),
        (
            {"verdict": "no evidence", "value": 0.11, "low": 0.1, "high": 0.12},
            "Not shown: 11.0%; guessing gives 10.0%.",
        ),
        ({"verdict": "too few to tell"}, "Too few targets or clients to tell."),
        ({"verdict": "cannot be told", "reason": "no weights"}, "Cannot be told: No weights."),
        (
            {
                "verdict": "cannot be told",
                "reason": "",
                "grounds": (Reason("it is at chance"), Reason("a plain step is not seen either", CONTROL)),
            },
            "Cannot be told: this attack would not have seen a leak here.",
        ),
        ({"chance": 0.0, "value": 1.0, "high": 1.0}, "Yes: 100%; guessing gives 0%."),
        ({"read_off": read(7, 1)}, "Yes: 1 example of 2 clients in 3 runs is certain; 5.8 times as often as guessing."),
        (
            {
                "read_off": read(7, 7),
                "attack": "exact",
                "metric": "recovered",
                "value": 0.01,
                "chance": 0.0,
                "low": 0.0,
            },
            "Yes: 7 examples of 2 clients in 3 runs are certain; 1.0% of the training examples were recovered exactly; "
            "guessing gives 0%.",
        ),
        ({"read_off": read(7, 7), "chance": None}, "Yes: 7 examples of 2 clients in 3 runs are certain; 58.1%."),
        (
            {"read_off": read(2, 0), "verdict": "no evidence", "p_adjusted": 0.2},
            "2 examples are right, but that may be an accident.",
        ),
        (
            {"read_off": read(1, 0), "verdict": "too few to tell", "p_adjusted": None},
            "1 example is right, but that may be an accident.",
        ),
        ({"read_off": read(0, 0), "verdict": "too few to tell"}, "Too few targets or clients to tell."),
        ({"verdict": "not applicable"}, "58.1%; there is nothing to compare it with."),
        ({"attack": "unheard-of"}, "Yes: 5.8 times what guessing gives."),
        ({"verdict": "not applicable", "value": None, "low": None, "high": None}, "Not judged."),
    ],
)
def test_the_answer_says_what_an_attacker_gains_over_guessing(changes, said):
    assert short_of(asr(**changes), "") == said


@pytest.mark.parametrize(
    ("value", "verdict", "said"),
    [
        (19.8, "leak", "Yes: right more often than the best guess without updates, by 19.8 points."),
        (-0.32, "no evidence", "Not shown: right less often than the best guess without updates, by 0.32 points."),
    ],
)
def test_a_difference_is_said_without_a_sign(value, verdict, said):
    finding = asr(attack="ara", metric="excess", units="points", value=value, low=-30.0, high=30.0, verdict=verdict)
    finding = replace(finding, chance=0.0)
    assert short_of(finding, "") == said
    sentence = answers_of([finding], RUN)[0].sentence
    assert "-0.32" not in sentence.partition("(")[0]


@pytest.mark.parametrize("verdict", ["no evidence", "too few to tell", "not applicable"])
def test_the_answer_does_not_contradict_a_leak_in_the_table(verdict):
    """All findings of a report are corrected together: a leak is one, whatever the headline had power for."""
    headline = asr(verdict=verdict)
    label = "Owners named beyond labels"
    other = asr(metric="asr-beyond-labels", label=label, headline=False, value=0.525, low=0.4, high=0.6)
    unrelated = asr(attack="ara", verdict="no evidence")
    run = {**RUN, "untried": []}
    findings = [headline, other, unrelated]
    (answer, asked) = answers_of(findings, run)
    assert answer.finding.name == "sia.asr-beyond-labels"
    assert (
        answer.short == "Yes: 52.5% (Owners named beyond labels; guessing gives 10.0%). The headline does not show it."
    )
    assert f"The headline, sia.asr, says “{verdict}”;" in " ".join(answer.sure)
    assert asked.finding is unrelated
    lines = overview_of([answer, asked], run)
    assert lines[0].finding.verdict == "leak"
    assert summary_of(lines, run).startswith("1 leak shown, 1 question without a leak shown")
    assert in_short(findings)[0][2] == answer.short
    assert [finding.name for finding in answering(findings)] == ["sia.asr-beyond-labels", "ara.asr"]
    assert parse_fail_if("verdict == leak").is_crossed(findings)
    assert not parse_fail_if("sia.asr.verdict == leak").is_crossed([asr(verdict="no evidence"), other])


def test_labels_that_explain_a_leak_are_in_the_answer_and_not_in_the_sixth_row():
    (answer,) = answers_of([asr(), beside("asr-beyond-labels", "no evidence", 0.59)], RUN)
    # 0.6 − 0.59 + √(0.02² + 0.02²)
    said = "Yes: 5.8 times as often as guessing; labels alone explain all but at most 3.8 points of it."
    assert answer.short == said
    assert "hardly which one" in " ".join(answer.why)
    (answer,) = answers_of([asr(), beside("asr-beyond-labels", "leak", 0.2)], RUN)
    assert answer.short == "Yes: 5.8 times as often as guessing."
    assert "The server traces single examples, beyond what labels alone give." in answer.why
    assert "labels alone 20.0%" in answer.strip.svg
    (answer,) = answers_of([asr()], RUN)
    assert "It is not known whether labels" in " ".join(answer.why)


@pytest.mark.parametrize(
    ("headline", "hardest"),
    [
        # What is left may be much: the interval of the null is wide.
        (asr(), beside("asr-beyond-site", "no evidence", 0.59, around=0.2)),
        # What is left is surely some points.
        (asr(), beside("asr-beyond-site", "no evidence", 0.54)),
        # Labels 2.1, site −7.7, examples 17.7.
        (with_parts(0.5, 0.021, -0.077, 0.177), beside("asr-beyond-site", "no evidence", 0.59)),
        # The gain over guessing itself is little.
        (asr(), replace(beside("asr-beyond-site", "no evidence", 0.59), chance=0.5)),
        # The interval of the null is not known.
        (
            asr(),
            replace(
                beside("asr-beyond-site", "no evidence", 0.5),
                null={"value": 0.59} | dict.fromkeys(["low", "high"]) | {"n": 9},
            ),
        ),
    ],
)
def test_nothing_that_is_not_shown_explains_a_leak(headline, hardest):
    (answer,) = answers_of([headline, hardest], RUN)
    assert answer.short == "Yes: 5.8 times as often as guessing."
    assert re.match(
        r"It is not decided whether single examples add to what labels and site give: |"
        r"Single examples may add \d+\.\d points to what labels and site give \(.* to .*\): not decided\.",
        answer.why[0],
    )
    assert "site explain all" not in " ".join(answer.why)


def test_where_the_null_is_above_the_success_nothing_is_left():
    (answer,) = answers_of([asr(), beside("asr-beyond-site", "no evidence", 0.7)], RUN)
    assert answer.short.endswith("; labels and site explain all but at most 0.0 points of it.")


def test_parts_that_agree_leave_the_explanation():
    (answer,) = answers_of([with_parts(0.1, 0.4, 0.09, 0.01), beside("asr-beyond-site", "no evidence", 0.59)], RUN)
    assert answer.short.endswith("; labels and site explain all but at most 3.8 points of it.")


def test_targets_on_which_the_attack_shows_nothing_do_not_explain_a_leak():
    few = replace(beside("asr-beyond-site", "no evidence", 0.5), n=40)
    (answer,) = answers_of([asr(), few], RUN)
    assert any("which counts as 40 targets: there it is 60.0%" in words for words in answer.why)
    (answer,) = answers_of([asr(), replace(few, low=0.05)], RUN)
    assert answer.short == "Yes: 5.8 times as often as guessing."
    assert "on these targets the attack itself is no better than guessing" in answer.why[0]


def test_what_is_below_guessing_is_said_in_the_answer_and_what_to_do_about_it():
    numbers = {"value": 0.02, "low": 0.01, "high": 0.03, "here_low": None, "here_high": None}
    turned_round = asr(verdict="no evidence", p=1.0, p_least=1e-4, p_below=1e-4, **numbers)
    (finding,) = mark_below_guessing([turned_round])
    (answer,) = answers_of([finding], RUN)
    assert answer.short == (
        "Cannot be told: below guessing, so the scores mean something else (2.0% where guessing gives 10.0%, "
        "corrected p = 0.0001)."
    )
    assert "Reversed" in answer.next[0].buys
    assert summary_of(overview_of([answer], RUN), RUN).startswith("1 question that cannot be told")
    # How often an accident would do as much says nothing of an attack that cannot tell.
    assert overview_of([answer], RUN)[0].sure == "3 runs"
    for condition in ("verdict == leak", "verdict == no evidence", "sia.asr > 0.9"):
        with pytest.raises(ConfigError, match="below guessing"):
            parse_fail_if(condition).is_crossed([finding])


def test_a_leak_of_one_run_whose_interval_reaches_guessing_is_one_of_its_test():
    assert verdict_in_words(asr(seeds=[4], low=0.1)) == "leak on these targets"
    assert verdict_in_words(asr(seeds=[4], low=0.11)) == "leak shown"


def test_one_run_is_said_to_speak_of_itself_alone():
    (answer,) = answers_of([asr(seeds=[4], here_low=None, here_high=None)], RUN)
    assert answer.sure[0] == "1 run, 3,000 targets."
    assert "this run only" in answer.sure[-1]
    (answer,) = answers_of([asr()], RUN)
    assert "3 runs tell little about how much runs differ" in answer.sure[-1]


def test_what_to_do_next_fits_the_verdict():
    (leak,) = answers_of([asr()], RUN)
    assert leak.next
    (few,) = answers_of([asr(verdict="too few to tell")], RUN)
    assert "more targets" in few.next[0].what
    (blind,) = answers_of([asr(verdict="cannot be told")], RUN)
    assert blind.next[0].buys == "This attack does not rule out a leak."
    (nothing,) = answers_of([asr(verdict="no evidence")], RUN)
    assert nothing.next == []


def test_what_helps_against_most_leaks_is_the_first_step_of_each():
    own = {**RUN, "setting": {}, "threat_model": {"server": "passive", "view": "individual"}}
    leaks = [asr(), asr(attack="exact", metric="recovered"), asr(attack="labels", metric="right")]
    answers = answers_of(leaks, own)
    tried = "fedattack what-if DIR --secagg --out what-if"
    assert [answer.next[0].command for answer in answers] == [tried] * 3
    steps = steps_of(answers)
    assert [step.what for step in steps] == [
        "Use secure aggregation",
        "Train with DP-SGD",
        "Clip each update and add Gaussian noise",
    ]
    helped = [[answer.finding.attack for answer in each] for each in steps.values()]
    assert helped == [["sia", "exact", "labels"], ["sia", "exact"], ["exact"]]
    assert "did not help" in answers[2].no_help[0].what
    assert "did not help" not in " ".join(step.what for step in steps)


def test_the_most_exposed_client_is_the_one_that_was_judged():
    findings = example.findings()
    (answer,) = answers_of([each for each in findings if each.headline or "worst" in each.metric], RUN)
    assert answer.exposed.startswith("Source inference, most exposed client")
    assert answer.exposed.endswith("without a leak).")
    other = [
        replace(each, label=each.label.replace("(", "(another ")) if "worst" in each.metric else each
        for each in findings
    ]
    (answer,) = answers_of([each for each in other if each.headline or "worst" in each.metric], RUN)
    highest = findings[0].series["per_client"][0]
    assert f"The highest rate is that of client {highest['client']}: {100 * highest['value']:.1f}%" in answer.exposed
    quiet = [replace(each, verdict="no evidence") if "worst" in each.metric else each for each in findings]
    (answer,) = answers_of([each for each in quiet if each.headline or "worst" in each.metric], RUN)
    assert answer.exposed == "No client certainly stands out."
    (answer,) = answers_of([findings[0]], RUN)
    assert answer.exposed.startswith(f"Client {findings[0].series['per_client'][0]['client']}:")


def test_a_leak_that_is_little_above_guessing_is_called_slight():
    labels = {"attack": "labels", "metric": "right", "chance": 0.891}
    slight = short_of(asr(**labels, value=0.912, low=0.437, high=0.999), "")
    assert slight == "Yes, slightly: 91.2% of a client's labels are counted right, 2.1 points more than by guessing."
    assert short_of(asr(**labels | {"chance": 0.5}, value=0.912, low=0.437, high=0.999), "").startswith("Yes: 91.2%")
    # Three times as often is not slight, however few points it is.
    assert short_of(asr(value=0.03, low=0.02, high=0.04, chance=0.01), "").startswith("Yes: 3.0 times")


def test_what_was_never_sent_is_not_shown_and_has_no_number():
    nothing = Reason("there is nothing to ask: clients send no vector")
    control = Reason("positive control: this attack shows a leak", CONTROL)
    parts = {"attack": "plaintext", "metric": "own-examples", "value": None, "low": None, "high": None, "n": 0}
    finding = asr(**parts, verdict="no evidence", p=None, p_adjusted=None, grounds=(nothing, control), reason="")
    (answer,) = answers_of([finding], RUN)
    assert answer.short == "Not shown: there is nothing to ask: clients send no vector."
    assert answer.sentence == "There is nothing to ask: clients send no vector."
    assert (answer.strip, answer.sure) == (None, ["Positive control: this attack shows a leak."])
    for gate in ("plaintext.own-examples > 0", "plaintext.own-examples.high > 0", "verdict == leak"):
        assert not parse_fail_if(gate).is_crossed([finding])
    with pytest.raises(ConfigError, match="can neither fail nor pass"):
        parse_fail_if("verdict == leak").is_crossed([replace(finding, verdict="cannot be told")])


def test_in_short_each_attack_that_asks_the_same_is_named():
    one, *others = [asr(), *(asr(attack=name, metric="excess", units="points", chance=0.0) for name in ("aia", "ara"))]
    questions = [question for _, question, _ in in_short([one, *others])]
    assert questions[0] == question_of("sia")
    assert questions[1:] == [f"{question_of('aia')} (aia)", f"{question_of('aia')} (ara)"]
    assert [question for _, question, _ in in_short(others[:1])] == [question_of("aia")]


@pytest.mark.parametrize(
    ("observed", "reached", "said"),
    [
        ({"rounds": 0}, [], "not known"),
        ({"rounds": 3}, [], "nothing visible"),
        ({"rounds": 0}, [{"name": "age"}], "nothing visible"),
    ],
)
def test_a_run_without_a_reply_does_not_tell_what_reaches_the_server(observed, reached, said):
    run = {**RUN, "observed": {**observed, "in_plaintext": []}, "reached": {"rows": reached}, "unanswered": "it failed"}
    assert overview_of([], run)[-1].said == said


def test_the_overview_names_a_few_of_many_numbers_in_plaintext():
    run = {**RUN, "observed": {"in_plaintext": [f"pixel-{index}" for index in range(64)]}}
    line = overview_of(answers_of([asr()], run), run)[-1]
    assert line.answer == f"Yes: {', '.join(f'pixel-{index}' for index in range(8))} and 56 more."


def test_the_overview_has_a_line_for_each_question_asked_or_not():
    findings = [
        asr(),
        asr(attack="aia", metric="excess", units="points", chance=0.0, verdict="no evidence", value=0.0, low=0.0),
        asr(attack="ara", metric="excess", units="points", chance=0.0),
    ]
    run = {**RUN, "untried": [{"question": "What do they look like?", "why": "`fedattack attack x DIR` asks it"}]}
    run["privacy"] = example.privacy()
    lines = overview_of(answers_of(findings, run), run)
    # Two attacks ask for a column: the one that shows a leak counts.
    assert [(line.finding.verdict if line.finding else line.said, line.card) for line in lines] == [
        ("leak", 1),
        ("leak", 3),
        ("declared", 0),
        ("visible", 0),
    ]
    assert lines[0].sure.startswith("3 runs, p ")
    assert lines[0].step == "Use secure aggregation."
    assert "computed, not measured" in lines[2].answer
    assert "num-examples" in lines[3].answer
    assert summary_of(lines, run) == "2 leaks shown, 1 question not asked."


def test_a_leak_whose_runs_may_not_be_like_others_says_so():
    reaching = asr(low=0.05)
    assert verdict_in_words(reaching) == "leak in these runs"
    assert "Other runs may show none." in answers_of([reaching], RUN)[0].sure[-1]
    assert verdict_in_words(asr()) == "leak shown"


def test_a_section_of_another_package_may_say_nothing_of_all_this():
    assert Section().explained([asr(baselines={"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4})]) == Explained(
        rows=[("a", 0.1), ("b", 0.2), ("c", 0.3)]
    )


@pytest.mark.parametrize("name", sorted(THREATS))
def test_every_threat_of_ours_asks_a_question_and_has_remedies(name):
    section = section_of(next(iter(THREATS[name].attacks)))
    assert section.question.endswith("?")
    assert section.remedies
