"""Each kind of reply is told by its numbers and by what the server makes of them; what does not show is unknown."""

import gzip

import numpy as np
import pytest

from fedattack.attacks import reply_kinds
from fedattack.attacks.reply_kinds import find_kinds, find_sparse
from fedattack.record import Exchange, Record, RecordWriter, Reply, project_record
from fedattack.record.views import ChangedEntries

NODES = ("a", "b", "c")
SHAPES = {"w": (6, 5), "b": (6,)}


def draw(seed=0):
    return np.random.default_rng(seed)


def model(seed: int) -> dict[str, np.ndarray]:
    return {name: draw(seed).normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def write(folder, commons, replies, *, counts=(4, 5, 6)) -> Record:
    """Write a record of a round for each of ``replies``, by node; ``commons`` has the model after the last, too."""
    writer = RecordWriter(folder)
    for number, of_round in enumerate(replies):
        sent = [Reply(node, "ok", arrays, count) for node, arrays, count in zip(NODES, of_round, counts, strict=True)]
        writer.write(Exchange(number + 1, commons[number], sent))
    writer.write(Exchange(len(replies) + 1, commons[-1], []))
    writer.close()
    return Record(folder)


def kinds(record: Record) -> dict[str, str]:
    found = {}
    for row in find_kinds(record):
        assert row["array"] not in found, "one array has one kind"
        found[row["array"]] = row["kind"]
        assert row["clients"] == len(NODES)
    return found


def mean(replies, shares=(4 / 15, 5 / 15, 6 / 15)):
    return {name: sum(share * reply[name] for share, reply in zip(shares, replies, strict=True)) for name in SHAPES}


def moved(common, step, by):
    return {name: common[name] + step * by[name] for name in common}


def test_a_mean_is_one_whatever_the_server_weighs_clients_by(tmp_path):
    common, replies = model(0), [model(1), model(2), model(3)]
    for shares, kind in (((0.7, 0.3, 0.0), reply_kinds.AVERAGED), ((0.7, 0.7, -0.4), reply_kinds.UNKNOWN)):
        record = write(tmp_path / kind, [common, mean(replies, shares)], [replies])
        assert kinds(record)["w"] == kind


@pytest.mark.parametrize("shares", [(4 / 15, 5 / 15, 6 / 15), (1 / 3, 1 / 3, 1 / 3)])
def test_what_the_server_makes_of_replies_tells_weights_differences_and_gradients(tmp_path, shares):
    common, replies = model(0), [model(1), model(2), model(3)]
    after = mean(replies, shares)
    assert {*kinds(write(tmp_path / "weights", [common, after], [replies])).values()} == {reply_kinds.AVERAGED}
    added = moved(common, 0.7, after)
    assert {*kinds(write(tmp_path / "added", [common, added], [replies])).values()} == {reply_kinds.ADDED}
    stepped = moved(common, -0.1, after)
    assert {*kinds(write(tmp_path / "steps", [common, stepped], [replies])).values()} == {reply_kinds.SUBTRACTED}


def test_what_the_server_makes_nothing_of_is_unknown_unless_it_is_like_what_was_sent(tmp_path):
    common, replies = model(0), [model(1), model(2), model(3)]
    strange = write(tmp_path / "strange", [common, model(9)], [replies])
    assert {*kinds(strange).values()} == {reply_kinds.UNKNOWN}
    near = [moved(common, 0.1, reply) for reply in replies]
    assert {*kinds(write(tmp_path / "near", [common, model(9)], [near])).values()} == {reply_kinds.NEAR}


def test_rounds_that_say_different_things_say_nothing(tmp_path):
    first, replies = model(0), [model(1), model(2), model(3)]
    second = mean(replies)
    record = write(tmp_path / "record", [first, second, moved(second, -0.1, mean(replies))], [replies, replies])
    assert {*kinds(record).values()} == {reply_kinds.UNKNOWN}


def test_a_last_round_of_which_nobody_knows_what_it_led_to_takes_nothing_away(tmp_path):
    """Its replies may still be like what was sent."""
    common, replies = model(0), [model(1), model(2), model(3)]
    after = mean(replies)
    writer = RecordWriter(tmp_path / "record")
    near = [moved(after, 0.1, reply) for reply in replies]
    for number, (start, sent) in enumerate(((common, replies), (after, near)), 1):
        writer.write(
            Exchange(
                number,
                start,
                [Reply(node, "ok", each, n) for node, each, n in zip(NODES, sent, (4, 5, 6), strict=True)],
            )
        )
    writer.close()
    assert {*kinds(Record(tmp_path / "record")).values()} == {reply_kinds.AVERAGED}


def test_sizes_that_the_server_adds_up_are_sizes(tmp_path):
    sizes = [np.array([3, 1, 0]), np.array([2, 2, 1]), np.array([0, 5, 1])]
    record = write(tmp_path / "r", [{"n": np.zeros(3)}, {"n": sum(sizes)}], [[{"n": each * 1.0} for each in sizes]])
    assert kinds(record) == {"n": reply_kinds.SIZES}


def test_zeros_and_what_was_received_are_told(tmp_path):
    common = model(0)
    replies = [{"w": common["w"], "b": np.zeros(6, np.float32)}] * 3
    record = write(tmp_path / "record", [common, common], [replies])
    assert kinds(record) == {"w": reply_kinds.AS_RECEIVED, "b": reply_kinds.ZEROS}


def sparse_replies(count=9):
    replies = []
    for seed in (1, 2, 3):
        indices = draw(seed).permutation(36)[:count]
        replies.append({"at": indices, "values": draw(seed + 10).normal(size=count).astype(np.float32)})
    return replies


def put(common, replies, step):
    """Add values at flat indices, entry by entry."""
    flat = np.concatenate([common["w"].reshape(-1), common["b"]]).astype(np.float64)
    for reply in replies:
        for index, value in zip(reply["at"], reply["values"], strict=True):
            flat[index] += step * value / len(replies)
    return {"w": flat[:30].reshape(6, 5).astype(np.float32), "b": flat[30:].astype(np.float32)}


@pytest.mark.parametrize("step", [1.0, -0.25])
def test_indices_and_values_are_put_back_as_the_server_does(tmp_path, step):
    common, replies = model(0), sparse_replies()
    record = write(tmp_path / "record", [common, put(common, replies, step)], [replies])
    found = find_sparse(record)
    assert found is not None
    assert (found.indices, found.values, found.into) == ("at", "values", ("w", "b"))
    assert found.step == pytest.approx(step, rel=1e-5)
    assert kinds(record) == {"at": reply_kinds.INDICES, "values": reply_kinds.CHANGES}


def test_values_that_take_the_place_of_entries_are_told_from_differences(tmp_path):
    common, replies = model(0), sparse_replies()
    flat = np.concatenate([common["w"].reshape(-1), common["b"]]).astype(np.float64)
    for index in range(36):
        sent = [float(reply["values"][reply["at"] == index][0]) for reply in replies if index in reply["at"]]
        if sent:
            flat[index] = np.mean(sent)
    after = {"w": flat[:30].reshape(6, 5).astype(np.float32), "b": flat[30:].astype(np.float32)}
    record = write(tmp_path / "record", [common, after], [replies])
    assert find_sparse(record) == ChangedEntries("at", "values", ("w", "b"), None)
    assert kinds(record)["values"] == reply_kinds.VALUES


def test_whole_numbers_that_the_server_puts_nowhere_are_no_indices(tmp_path):
    common, replies = model(0), sparse_replies()
    record = write(tmp_path / "record", [common, model(5)], [replies])
    assert find_sparse(record) is None
    assert kinds(record) == {"at": reply_kinds.COUNTS, "values": reply_kinds.UNKNOWN}
    for reply in replies:
        reply["at"][0] = 36
    beyond = write(tmp_path / "beyond", [common, model(5)], [replies])
    assert find_sparse(beyond) is None


def test_centres_sizes_and_statistics_of_groups(tmp_path):
    sizes = [np.array([3, 1, 0]), np.array([2, 2, 1]), np.array([0, 5, 1])]
    centres = [draw(seed).normal(size=(3, 4)) for seed in (1, 2, 3)]
    total = sum(count[:, None] * centre for count, centre in zip(sizes, centres, strict=True))
    after = total / sum(sizes)[:, None]
    replies = []
    for count, centre in zip(sizes, centres, strict=True):
        replies.append({"centres": centre, "sizes": count, "spread": centre**2})
    record = write(tmp_path / "record", [{"centres": np.zeros((3, 4))}, {"centres": after}], [replies])
    expected = {"centres": reply_kinds.CENTRES, "sizes": reply_kinds.SIZES, "spread": reply_kinds.OF_GROUPS}
    assert kinds(record) == expected


def test_prototypes_have_keys_that_differ(tmp_path):
    replies = [{str(key): draw(key).normal(size=4) for key in keys} for keys in ((0, 1), (1, 2), (0, 2))]
    rows = find_kinds(write(tmp_path / "record", [model(0), model(0)], [replies]))
    assert {(row["array"], row["kind"], row["clients"]) for row in rows} == {
        (str(key), reply_kinds.BY_KEY, 2) for key in range(3)
    }


def test_matrices_that_some_clients_leave_out_are_no_prototypes(tmp_path):
    replies = [{"w": model(1)["w"]}, {"b": model(2)["b"]}, model(3)]
    rows = find_kinds(write(tmp_path / "record", [model(0), model(9)], [replies]))
    assert reply_kinds.BY_KEY not in {row["kind"] for row in rows}


def softmax(logits):
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def test_predictions_show_where_they_are_probabilities_and_logits_do_not(tmp_path):
    replies = []
    for seed in (1, 2, 3):
        logits = draw(seed).normal(size=(8, 4))
        replies.append({"p": softmax(logits), "log": np.log(softmax(logits)), "logits": logits})
    found = kinds(write(tmp_path / "record", [model(0), model(0)], [replies]))
    assert found["p"] == found["log"] == reply_kinds.PROBABILITIES
    assert found["logits"] == reply_kinds.UNKNOWN


def test_one_value_for_each_example_is_told(tmp_path):
    counts = (9, 12, 20)
    replies = [{"loss": draw(count).exponential(size=count)} for count in counts]
    rows = find_kinds(write(tmp_path / "record", [model(0), model(0)], [replies], counts=counts))
    assert {row["kind"] for row in rows} == {reply_kinds.ONE_EACH}


def bytes_of(seed, size=4096):
    return np.frombuffer(draw(seed).bytes(size), np.uint8)


def quantised(seed):
    return np.clip(np.rint(draw(seed).normal(128, 30, 4096)), 0, 255).astype(np.uint8)


UNCLAIMED = {
    "random bytes": (bytes_of, reply_kinds.RANDOM_BYTES),
    "compressed": (
        lambda seed: np.frombuffer(gzip.compress(bytes_of(seed).tobytes()), np.uint8),
        reply_kinds.COMPRESSED,
    ),
    "masked modulo a power of two": (
        lambda seed: draw(seed).integers(0, 2**32, 500, dtype=np.uint64),
        reply_kinds.MASKED,
    ),
    "masked with a sign": (lambda seed: draw(seed).integers(-(2**31), 2**31, 500), reply_kinds.MASKED),
}


@pytest.mark.parametrize("name", UNCLAIMED)
def test_of_ciphertext_nothing_is_claimed(tmp_path, name):
    make, kind = UNCLAIMED[name]
    assert "nothing is claimed" in kind
    record = write(tmp_path / "record", [model(0), model(0)], [[{"x": make(seed)} for seed in (1, 2, 3)]])
    assert {row["kind"] for row in find_kinds(record)} == {kind}


PLAIN = {
    "weights as bytes": lambda seed: np.frombuffer(model(seed)["w"].tobytes() * 40, np.uint8),
    "quantised weights": quantised,
    "text": lambda seed: np.frombuffer(b"the quick brown fox " * 200, np.uint8),
    "few bytes": lambda seed: bytes_of(seed, 200),
    "quantised to 32 bits": lambda seed: np.rint(draw(seed).normal(0, 2**20, 500)).astype(np.int32),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_bytes_and_numbers_are_not_taken_for_ciphertext(tmp_path, name):
    record = write(tmp_path / "record", [model(0), model(0)], [[{"x": PLAIN[name](seed)} for seed in (1, 2, 3)]])
    assert all("nothing is claimed" not in row["kind"] for row in find_kinds(record))


def test_a_server_of_sums_is_sent_arrays_that_it_does_not_see(tmp_path):
    common, replies = model(0), [model(1), model(2), model(3)]
    record = write(tmp_path / "record", [common, mean(replies)], [replies])
    project_record(record, tmp_path / "sums")
    rows = find_kinds(Record(tmp_path / "sums"))
    assert {(row["array"], row["kind"]) for row in rows} == {(name, reply_kinds.SUMMED) for name in SHAPES}


def test_a_record_without_replies_has_no_kinds(tmp_path):
    assert find_kinds(write(tmp_path / "record", [model(0)], [])) == []
