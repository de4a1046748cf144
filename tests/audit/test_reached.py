"""What a page lists of replies follows from their names, shapes and numbers; hostile records cost little."""

import time

import numpy as np
import pytest

from fedattack.audit.reached import MOST_ROWS, reached_of
from fedattack.record import Exchange, Record, RecordWriter, Reply, project_record
from fedattack.record.others import Others

SIZES = (np.array([3.0, 1.0, 0.0]), np.array([2.0, 1.0, 1.0]))


def write(folder, replies=(), *, common=None, others=(), unrecorded=None, rounds=2):
    writer = RecordWriter(folder)
    if unrecorded is not None:
        writer.unrecorded.count("evaluate", "reply", **unrecorded, messages=4)
    for number in range(1, rounds + 1):
        writer.write(Exchange(number, common, list(replies), others=list(others)))
    writer.close()
    return Record(folder)


def rows_of(record):
    return {row["name"]: row for row in reached_of(record)["rows"]}


def test_sizes_of_groups_and_what_stands_beside_them_are_told(tmp_path):
    replies = []
    for node, sizes in zip("ab", SIZES, strict=True):
        arrays = {"middles": np.random.default_rng(0).normal(size=(3, 5)), "sizes": sizes, "bias": np.array([0.5, 2])}
        replies.append(Reply(node, "ok", arrays, 4, {"inertia": 0.5}))
    rows = rows_of(write(tmp_path / "record", replies, common={"middles": np.zeros((3, 5)), "bias": np.zeros(2)}))
    assert rows["sizes"] == {
        "type": "train",
        "name": "sizes",
        "kind": "array",
        "shape": [3],
        "dtype": "float64",
        "replies": 4,
        "clients": 2,
        "holds": "whole numbers that add up to the client's number of examples: group sizes; 6 of 10 groups in 4 "
        "replies that were looked at have a single example",
    }
    assert rows["middles"]["holds"].startswith("a row for each group of sizes: if a group has a single example")
    assert [rows[name]["holds"] for name in ("bias", "inertia", "num-examples")] == ["", "", ""]
    assert rows["inertia"]["kind"] == rows["num-examples"]["kind"] == "number"


def test_a_whole_number_that_no_float_can_hold_is_shown_and_not_counted(tmp_path):
    """One client that states it takes nobody's page."""
    others = [Others("query", "reply", ("a",), {"events": [1, 1, 10**400], "num-examples": 10**400})]
    rows = rows_of(write(tmp_path / "record", others=others, common={"w": np.zeros(2)}))
    assert rows["events"]["holds"] == rows["num-examples"]["holds"] == ""


def test_ordinary_weights_show_nothing_even_where_a_bias_is_as_long_as_the_examples_are_many(tmp_path):
    draw = np.random.default_rng(1)
    common = {"w": np.zeros((4, 3), np.float32), "b": np.zeros(4, np.float32), "batches": np.array(0)}
    replies = [
        Reply(node, "ok", {"w": draw.normal(size=(4, 3)), "b": draw.normal(size=4), "batches": np.array(7)}, 4)
        for node in "ab"
    ]
    rows = rows_of(write(tmp_path / "record", replies, common=common))
    assert {row["holds"] for row in rows.values()} == {""}


@pytest.mark.parametrize(
    ("values", "holds"),
    [
        ({"deaths": [0, 1, 0, 1, 1, 0]}, "whole numbers; 6 of 6 that are not 0 in 2 replies that were looked at are 1"),
        ({"deaths": [9, 1, 4, 7, 8, 0]}, ""),
        ({"deaths": [0.5, 1, 0, 0, 0, 0]}, ""),
        ({"deaths": [0, 0, 0, 0, 0, 0]}, ""),
        ({"num-examples": 6, "deaths": [0.1, 0.2, 0.3, 0.1, 0.7, 1]}, "as many values as the client has examples"),
        ({"num-examples": 3, "deaths": [0, 1, 0, 1, 1, 0]}, "whole numbers that add up to the client's number of ex"),
    ],
)
def test_lists_of_replies_to_queries_are_told_where_nothing_is_trained(values, holds, tmp_path):
    writer = RecordWriter(tmp_path / "record")
    writer.close(others=[Others("query.events", "reply", (node,), values) for node in "ab"])
    row = rows_of(Record(tmp_path / "record"))["deaths"]
    assert (row["type"], row["kind"], row["shape"], row["replies"], row["clients"]) == (
        "query.events",
        "list",
        [6],
        2,
        2,
    )
    assert row["holds"].startswith(holds)
    assert bool(row["holds"]) == bool(holds)


def test_arrays_that_the_record_only_names_are_listed(tmp_path):
    others = [Others("evaluate", "reply", (node,), {"num-examples": 19, "words": ["a", "b"]}) for node in "ab"]
    arrays = {"curve.labels": np.zeros(19, np.int64), "other": np.zeros((3, 2))}
    rows = rows_of(write(tmp_path / "record", others=others, unrecorded={"arrays": arrays}))
    assert rows["curve.labels"]["holds"].startswith("as many values as the client has examples: one for each")
    assert (rows["curve.labels"]["replies"], rows["curve.labels"]["dtype"]) == (4, "int64")
    assert (rows["other"]["shape"], rows["other"]["holds"]) == ([3, 2], "")
    assert (rows["words"]["kind"], rows["words"]["shape"]) == ("list of texts", [2])


def test_an_example_count_is_called_as_the_app_calls_it(tmp_path):
    """Beside training, and where the same name stands in replies to evaluations."""
    replies = [Reply("a", "ok", {"w": np.ones(2)}, 6, count_key="patients")]
    others = [Others("evaluate", "reply", ("a",), {"patients": 3, "scores": [0.1, 0.7, 0.2]})]
    rows = rows_of(write(tmp_path / "record", replies, common={"w": np.zeros(2)}, others=others))
    assert "patients" in rows
    assert "num-examples" not in rows
    assert rows["scores"]["holds"].startswith("as many values as the client has examples")


def test_of_sums_their_arrays_are_listed(tmp_path):
    record = write(tmp_path / "record", [Reply("a", "ok", {"w": np.ones(3)}, 3)], common={"w": np.zeros(3)})
    (row,) = [row for row in reached_of(project_record(record, tmp_path / "sums"))["rows"] if row["name"] == "w"]
    assert (row["kind"], row["shape"], row["holds"]) == ("array of sums", [3], "")


def test_what_is_listed_and_looked_at_is_bounded(tmp_path):
    values = {f"name {place}": [1] * 500 for place in range(MOST_ROWS + 50)}
    replies = [Reply(f"n{place}", "ok", {"big": np.ones(2**15)}, 2**15, values) for place in range(3)]
    record = write(tmp_path / "record", replies, common={"other": np.zeros(1)}, rounds=1)
    begun = time.process_time()
    reached = reached_of(record)
    assert time.process_time() - begun < 5
    assert (len(reached["rows"]), reached["further"]) == (MOST_ROWS, 52)
    assert reached["rows"][0]["name"] == "big"
    assert reached["rows"][0]["holds"] == ""


def test_arrays_of_evaluations_are_told_by_the_count_beside_them(tmp_path):
    """As the labels and scores of each example, of which a server makes one curve."""
    others = []
    for node, count in (("a", 9), ("b", 12)):
        arrays = {"curve.labels": np.arange(count) % 2, "curve.bias": np.zeros(4)}
        others.append(Others("evaluate", "reply", (node,), {"num-examples": count}, arrays=arrays))
    rows = rows_of(write(tmp_path / "record", others=others, common={"w": np.zeros(2)}, rounds=1))
    assert rows["curve.labels"]["holds"].startswith("as many values as the client ")
    assert (rows["curve.labels"]["clients"], rows["curve.bias"]["holds"]) == (2, "")
