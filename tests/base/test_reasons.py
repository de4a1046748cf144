"""Reasons: words for people, and kinds that code asks for."""

from fedattack.base.reasons import ABOUT, NOTHING, Reason, find_reason, join_reasons, merge_reasons


def test_reasons_are_joined_in_their_order():
    reasons = [Reason("of 7 targets", ABOUT), Reason("it is above chance"), Reason("tested", "test", "more seeds")]
    assert join_reasons(reasons) == "of 7 targets: it is above chance; tested; it would take more seeds"
    assert join_reasons(reasons[:1]) == "of 7 targets"
    assert join_reasons([]) == ""


def test_a_reason_is_found_by_its_kind():
    reasons = [Reason("a"), Reason("b", "second"), Reason("c", "second")]
    assert find_reason(reasons, "second") == "b"
    assert find_reason(reasons, "third") == ""


def test_all_that_keeps_a_question_from_being_asked_is_remedied_together_or_nothing_is():
    sgd, model = Reason("Adam", "unfit", "SGD"), Reason("no model", "unknown", "a model")
    assert merge_reasons([sgd, model, sgd]) == Reason("Adam; no model; Adam", "unfit", "SGD; and a model")
    never = Reason("trees", "unfit", f"{NOTHING}it is about trees")
    merged = merge_reasons([sgd, never])
    assert merged == Reason("Adam; trees", "unfit", f"{NOTHING}it is about trees")
    assert (str(sgd), str(merged)) == ("Adam; it would take SGD", "Adam; trees")
