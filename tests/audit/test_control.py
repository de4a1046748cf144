"""What a positive control adds to findings that show nothing."""

from dataclasses import asdict

import pytest
from pydantic import TypeAdapter

from fedattack.audit.control import ALONE, PLANTED, SHOWN, STEPPED, TRAINED, WHOLE, Control, control_of, with_controls
from fedattack.audit.finding import CANNOT_TELL, LEAK, NO_EVIDENCE, TOO_FEW
from fedattack.record.folder import _ControlEntry
from fedattack.report.answer import short_of
from tests.audit.test_finding import finding

BLIND = Control(TRAINED, 64, False)


@pytest.mark.parametrize("kind", [TRAINED, STEPPED, WHOLE, ALONE, PLANTED, SHOWN])
def test_a_study_takes_a_control_of_each_kind(kind):
    entry = asdict(Control(kind, 4, True))
    assert TypeAdapter(_ControlEntry).validate_python(entry) == entry


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


def test_where_training_further_changes_nothing_there_is_no_control():
    """As of clients that fit anew each time: whether the attack would see a leak is not known."""
    (found,) = with_controls([judged(NO_EVIDENCE)], {"sia": Control(TRAINED, 64, False, 0, 18)})
    assert found.verdict == CANNOT_TELL
    assert found.reason.endswith("on their own targets, 64 passes more, send the same as before")
    assert control_of(found) == ""
    assert short_of(found, "") == "Cannot be told: nothing could be planted here to try this attack."


def test_an_attack_that_needs_a_control_cannot_tell_without_one():
    (found,) = with_controls([judged(NO_EVIDENCE)], {}, ["sia"])
    assert found.verdict == CANNOT_TELL
    assert found.reason.startswith("it does not clear chance; no positive control was made")
    assert short_of(found, "") == "Cannot be told: nothing shows that this attack would have seen a leak here."
    assert with_controls([judged(NO_EVIDENCE)], {}, ["other"]) == [judged(NO_EVIDENCE)]
    assert with_controls([judged(LEAK)], {}, ["sia"]) == [judged(LEAK)]
    (seen,) = with_controls([judged(NO_EVIDENCE)], {"sia": Control(STEPPED, 1, True)}, ["sia"])
    assert seen.verdict == NO_EVIDENCE


@pytest.mark.parametrize("verdict", [LEAK, TOO_FEW])
def test_other_findings_stay_as_they_are(verdict):
    assert with_controls([judged(verdict)], {"sia": BLIND}) == [judged(verdict)]
