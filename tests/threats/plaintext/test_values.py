"""Numbers, lists and texts are read from replies as they are."""

import tracemalloc
from dataclasses import replace

import numpy as np

from fedattack.attacks import ATTACKS, Knowledge
from fedattack.attacks.held_examples import HeldByClients
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.record.others import Others
from fedattack.threats.plaintext import plaintext, truths
from fedattack.threats.plaintext.truths import known_examples, nearest_examples
from fedattack.threats.plaintext.values import families_of, likeness, parts_of, plain_replies, vectors_of
from tests.threats.plaintext.world import CLIENTS, EACH, SIZE, write_plain_run


def test_names_that_differ_in_numbers_alone_are_a_family_in_the_order_of_these():
    values = {
        "px10": 3.0,
        "px2": 2.0,
        "px1": 1.0,
        "a_1_0": 1,
        "a_0_1": 0,
        "a_0_0": 7,
        "loss": 1.0,
        "top5": 1.0,
        "b1": "x",
    }
    assert families_of(values) == {"px#": ("px1", "px2", "px10"), "a_#_#": ("a_0_0", "a_0_1", "a_1_0")}


def test_what_is_no_finite_number_is_in_no_vector():
    assert not vectors_of({"a1": 1.0, "a2": float("nan"), "a3": True, "l": [1, "x", 2], "m": [1.0, 2.0, float("inf")]})
    assert list(vectors_of({"l": [[1, 2], [3, 4]]})["l"]) == [1, 2, 3, 4]


def test_bytes_are_read_as_numbers():
    vectors = vectors_of({"raw": np.arange(8, dtype="<f4").tobytes()})
    assert list(vectors["raw"]) == list(range(8))
    assert len(vectors_of({"raw": bytes(range(200, 232))})["raw"]) == 32


def test_scale_offset_and_rounding_do_not_matter_and_constants_are_like_nothing():
    x = np.random.default_rng(0).uniform(size=(3, 50))
    alike = likeness(np.stack([np.round(-3 * x[1] + 100, 2), np.full(50, 7.0)]), x)
    assert alike[0].argmax() == 1
    assert alike[0, 1] > 0.9999
    assert (alike[1] == 0).all()
    assert parts_of(x[0], 50).shape == (1, 50)
    assert parts_of(x[0], 25).shape == (2, 25)
    assert parts_of(x[0], 40).shape == (0, 40)


def test_all_replies_are_read_with_their_counts(tmp_path):
    record = Record(write_plain_run(tmp_path, beside="evaluate") / "record")
    replies = list(plain_replies(record))
    assert [reply.type for reply in replies[:: 3 * CLIENTS]] == ["train", "evaluate"]
    assert [(reply.count, len(reply.values)) for reply in replies[:: 3 * CLIENTS]] == [(EACH, 1), (None, SIZE + 1)]


def test_the_nearest_example_of_each_client_and_of_nobody_is_kept(tmp_path):
    record = Record(write_plain_run(tmp_path) / "record")
    x = np.random.default_rng(0).uniform(size=(6, SIZE)).astype(np.float32)
    found = nearest_examples(record, x, [("a", "b"), ("a",), (), ("b",), (), ("a",)])
    assert {*found["owners"].tolist()} == {"a", "b", ""}
    assert all((row == x).all(axis=1).any() for row in found["x"])
    assert nearest_examples(record, x[:, :7], [()] * 6) is None
    assert nearest_examples(record, x[:0], []) is None


def test_a_judge_is_given_all_examples_with_their_holders_and_labels(tmp_path, monkeypatch):
    record = Record(write_plain_run(tmp_path) / "record")
    x = np.random.default_rng(0).uniform(size=(4, SIZE)).astype(np.float32)
    holders = [("a", "b"), ("a",), (), ("b",)]
    held = HeldByClients(Knowledge(), record, "", {}, ["b", "a"], x, holders, np.array([3.0, 1.0, 2.0, 0.0]))
    found = known_examples(held)
    pairs = sorted(zip(found["owners"].tolist(), found["labels"].tolist(), strict=True))
    assert pairs == [("", 2.0), ("a", 1.0), ("a", 3.0), ("b", 0.0), ("b", 3.0)]
    # A client may have an example twice.
    twice = known_examples(replace(held, holders=[("a", "b", "b"), *holders[1:]]))
    assert sorted(twice["owners"].tolist()) == ["", "a", "a", "b", "b", "b"]
    assert found["whole"].tolist() == ["a", "b"]
    assert {row.tobytes() for row in found["x"]} == {row.tobytes() for row in x}
    assert known_examples(replace(held, record=None)) is None
    # Of more numbers than are kept, those that are nearest to what was sent.
    monkeypatch.setattr(truths, "_MOST_NUMBERS", 3 * SIZE)
    assert known_examples(held).keys() == {"x", "owners"}


def write_alike(folder, nodes, values):
    """Write a record in which many nodes answer one query alike, beside a client that sends an example of its own."""
    writer = RecordWriter(folder / "record", seed=0)
    own = Reply("own", "ok", {"w": np.ones(4, np.float32)}, 5, {"mine": [1.0, 2.0, 4.0]})
    others = Others("query", "reply", tuple(f"{number:x}" for number in range(nodes)), values)
    writer.write(Exchange(1, {"w": np.zeros(4, np.float32)}, [own], others=[others]))
    writer.close()
    return Record(folder / "record")


def test_what_many_nodes_sent_alike_is_read_once(tmp_path):
    record = write_alike(tmp_path, 5_000, {"x": bytes(range(1, 4)) * 10_000, "loss": 0.5})
    tracemalloc.start()
    scores = ATTACKS["plaintext"].run(record, Knowledge())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Apart from each other they would take 1.2 GB.
    assert peak < 60e6
    rows = {row["name"]: row for row in scores.facts["keys"]}
    assert (rows["x"]["replies"], rows["x"]["values"], rows["x"]["clients"]) == (5_000, 1, 5_000)
    assert (rows["x"]["constant"], rows["x"]["apart"]) == (True, 1)
    assert any("5,000 lists and families" in note for note in scores.notes)


def test_nobody_takes_the_room_of_anothers_vectors(tmp_path, monkeypatch):
    monkeypatch.setattr(plaintext, "_MOST_NUMBERS", 12)
    record = write_alike(tmp_path, 1, {"a": [1.0] * 20, "b": [0.0, 1.0, 5.0]})
    scores = ATTACKS["plaintext"].run(record, Knowledge())
    assert sorted(entry["name"] for entry in scores.facts["vectors"]) == ["b", "mine"]
    monkeypatch.setattr(plaintext, "_MOST_VECTORS", 1)
    monkeypatch.setattr(plaintext, "_MOST_NUMBERS", 100)
    scores = ATTACKS["plaintext"].run(record, Knowledge())
    assert sorted(entry["name"] for entry in scores.facts["vectors"]) == ["a", "mine"]


def test_vectors_that_judges_need_are_spread_over_all_nodes(tmp_path, monkeypatch):
    record = write_alike(tmp_path, 4, {"a": [1.0, 2.0, 3.0], "b": [3.0, 2.0, 1.0]})
    found = truths._read_vectors(record, 3)
    assert found.tolist() == [[1, 2, 4], *[[1, 2, 3], [3, 2, 1]] * 4]
    monkeypatch.setattr(truths, "MOST", 3)
    assert truths._read_vectors(record, 3).tolist() == [found[row].tolist() for row in (0, 4, 8)]


def test_numbers_that_are_no_floating_point_numbers_are_no_vector():
    assert not vectors_of({"large": [10**400, 1, 2], "x1": 10**400, "x2": 1, "x3": 2})
