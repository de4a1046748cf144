"""What a positive control adds to findings that show nothing."""

import pytest

from fedattack.audit.control import STEPPED, TRAINED, Control, with_controls
from fedattack.audit.finding import CANNOT_TELL, LEAK, NO_EVIDENCE, TOO_FEW, parse_fail_if
from fedattack.base.errors import ConfigError
from tests.audit.test_finding import finding

BLIND = Control(TRAINED, 64, False)


def judged(verdict: str):
    return finding(verdict=verdict, reason="it does not clear chance", headline=True)


@pytest.mark.parametrize(
    ("control", "verdict", "end"),
    [
        (Control(TRAINED, 1, True), NO_EVIDENCE, "further on their own targets, once more, this attack shows a leak"),
        (Control(TRAINED, 16, True), NO_EVIDENCE, "on their own targets, 16 passes more, this attack shows a leak"),
        (Control(STEPPED, 4, True), NO_EVIDENCE, "step on 4 of their own targets, this attack shows a leak"),
        (BLIND, CANNOT_TELL, "this attack shows no leak either: it cannot tell"),
    ],
)
def test_a_finding_that_shows_nothing_says_what_its_control_shows(control, verdict, end):
    (found,) = with_controls([judged(NO_EVIDENCE)], {"sia": control})
    assert found.verdict == verdict
    assert found.reason.startswith("it does not clear chance; positive control: ")
    assert found.reason.endswith(end)


@pytest.mark.parametrize("verdict", [LEAK, TOO_FEW])
def test_other_findings_stay_as_they_are(verdict):
    assert with_controls([judged(verdict)], {"sia": BLIND}) == [judged(verdict)]


def test_so_do_those_of_an_attack_without_a_control():
    assert with_controls([judged(NO_EVIDENCE)], {"membership": BLIND}) == [judged(NO_EVIDENCE)]


def test_a_gate_is_neither_crossed_nor_passed_by_what_cannot_be_told():
    (found,) = with_controls([judged(NO_EVIDENCE)], {"sia": BLIND})
    for text in ("verdict == leak", "sia.asr.verdict == leak"):
        with pytest.raises(
            ConfigError, match=r"sia\.asr has no verdict .*positive control.* can be neither crossed nor passed"
        ):
            parse_fail_if(text).is_crossed([found])
    assert parse_fail_if("verdict != no evidence").is_crossed([found])
    assert parse_fail_if("sia.asr.verdict == cannot be told").is_crossed([found])
