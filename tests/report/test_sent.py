"""What clients send, in words."""

from fedattack.report.sent import sent_in_short, sent_kind

ROW = {"array": "0", "shape": [2], "dtype": "float32", "clients": 3}


def test_a_difference_is_said_with_its_factor():
    assert sent_kind(ROW | {"kind": "weights"}) == "weights"
    difference = ROW | {"kind": "difference times a factor", "least": -10.0, "most": -9.9999999}
    assert sent_kind(difference) == "difference times a factor: -10"
    assert sent_kind(difference | {"most": -2.5}) == "difference times a factor: -10 … -2.5"


def test_a_few_arrays_of_each_kind_are_named_once():
    rows = [ROW | {"array": str(place), "kind": "weights"} for place in (0, 1, 2, 3, 4, 0)]
    rows.append(ROW | {"array": "5", "kind": "not understood"})
    said = "0, 1, 2 and 2 more: weights; 5: not understood"
    assert sent_in_short({"arrays": rows, "unread": ""}) == said
    assert sent_in_short({"arrays": rows, "unread": "why"}) == f"{said}. No attack can read that"
