"""Reasons: words for people, and kinds that code asks for."""

from fedattack.base.reasons import ABOUT, Reason, find_reason, join_reasons


def test_reasons_are_joined_in_their_order():
    reasons = [Reason("of 7 targets", ABOUT), Reason("it is above chance"), Reason("tested", "test", "take more seeds")]
    assert join_reasons(reasons) == "of 7 targets: it is above chance; tested; take more seeds"
    assert join_reasons(reasons[:1]) == "of 7 targets"
    assert join_reasons([]) == ""


def test_a_reason_is_found_by_its_kind():
    reasons = [Reason("a"), Reason("b", "second"), Reason("c", "second")]
    assert find_reason(reasons, "second") == "b"
    assert find_reason(reasons, "third") == ""
