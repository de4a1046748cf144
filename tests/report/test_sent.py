"""What clients send, in words."""

from fedattack.report.sent import list_readable, reached_kind, sent_in_short, sent_kind
from tests.report import example
from tests.report.test_terminal import printed

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
    assert sent_in_short({"arrays": rows, "unread": "why"}) == f"{said}. No attack can read this"


def test_what_reached_the_server_is_named_with_its_size():
    row = {"type": "evaluate", "name": "curve.labels", "replies": 4, "clients": 0, "holds": ""}
    assert reached_kind(row | {"kind": "array", "shape": [8, 5], "dtype": "int64"}) == "array 8 × 5 int64"
    assert reached_kind(row | {"kind": "array", "shape": [], "dtype": "int64"}) == "array int64"
    assert reached_kind(row | {"kind": "list", "shape": [1200]}) == "list of 1,200"
    assert reached_kind(row | {"kind": "number"}) == "number"


def test_what_shows_itself_is_said_in_the_terminal():
    row = {"type": "evaluate", "name": "y", "kind": "array", "replies": 4, "clients": 0, "holds": "one for each"}
    run = example.run() | {"reached": {"rows": [row | {"holds": ""}, *[row] * 7], "further": 0}}
    assert list_readable(run) == ["replies to evaluate hold y: one for each"] * 5
    assert list_readable(example.run()) == []
    assert printed(example.findings(), run).count("replies to evaluate hold y: one for each") == 5
