"""Each copy is held against the change made by hand, entry by entry."""

import numpy as np
import pytest

from fedattack.base.errors import ConfigError, RecordError
from fedattack.grids.whatif.alteration import (
    NOTHING,
    Alteration,
    alter_record,
    check_alterable,
    generator,
    read_alterations,
)
from fedattack.record import Exchange, Record, RecordWriter, Reply, check_record, project_record
from tests.worlds.federation import write_run

SHAPES = {"fc.weight": (4, 5), "fc.bias": (4,), "bn.running_var": (4,)}
COUNTER = "bn.num_batches_tracked"
CLIENTS = 3


def model(rng, scale=1.0):
    arrays = {name: (scale * rng.normal(size=shape)).astype(np.float32) for name, shape in SHAPES.items()}
    arrays["bn.running_var"] = np.abs(arrays["bn.running_var"])
    return arrays | {COUNTER: np.array(7)}


def write_record(folder, *, protocol="fedavg", odd=()):
    """Two rounds of three clients; ``odd`` are replies that come in the second one, too."""
    rng = np.random.default_rng(0)
    writer = RecordWriter(folder, protocol=protocol, seed=3, facts={"lr": 0.1})
    for number in (1, 2):
        common = model(rng)
        replies = []
        for client in range(CLIENTS):
            sent = {name: array + model(rng, 0.1)[name] for name, array in common.items()}
            sent[COUNTER] = np.array(8)
            replies.append(Reply(f"node{client}", "ok", sent, 10 + client, {"train-loss": 0.5}))
        if number == 2:
            replies += odd
        writer.write(Exchange(number, common, replies, mean="message"))
    writer.close(final=model(rng))
    return Record(folder)


def plain(arrays):
    return {name: array.copy() for name, array in arrays.items()}


def same(left, right):
    assert list(left) == list(right)
    for name, array in left.items():
        assert array.dtype == right[name].dtype
        np.testing.assert_array_equal(array, right[name])


def pairs(record, copy):
    """Replies of a record and of its copy; what else there is must be the same."""
    assert [round_.number for round_ in copy] == [round_.number for round_ in record]
    same(plain(copy.final), plain(record.final))
    for old, new in zip(record, copy, strict=True):
        same(plain(new.common), plain(old.common))
        for one, other in zip(old.observations, new.observations, strict=True):
            assert (other.node, other.num_examples) == (one.node, one.num_examples)
            yield old, one, other


@pytest.fixture
def record(tmp_path):
    return write_record(tmp_path / "record")


def test_noise_is_that_of_the_defence_applied_by_hand(record, tmp_path):
    copy = alter_record(record, tmp_path / "copy", Alteration("noise", 0.25), seed=(5, 1))
    drawn = []
    for round_, old, new in pairs(record, copy):
        rng = generator((5, 1), round_.seq, old.node)
        assert new.metrics == {}, "a mod that defends lets no other metric through"
        for name, received in round_.common.items():
            if name == COUNTER:
                assert new.arrays[name] == 8
                continue
            moved = (old.arrays[name].astype(float) - received.astype(float)).astype(np.float32)
            noise = rng.normal(0.0, 0.25, received.shape)
            defended = (moved.astype(float) + noise).astype(np.float32)
            expected = (received.astype(float) + defended).astype(np.float32)
            if name == "bn.running_var":
                expected = np.maximum(expected, 0)
            np.testing.assert_array_equal(new.arrays[name], expected)
            drawn.append(noise.ravel())
    assert np.std(np.concatenate(drawn)) == pytest.approx(0.25, rel=0.15)
    assert check_record(tmp_path / "copy").whole
    assert copy.facts == {"lr": 0.1, "what-if": "noise, σ = 0.25"}


def test_of_each_update_the_largest_entries_are_kept(record, tmp_path):
    copy = alter_record(record, tmp_path / "copy", Alteration("keep", 0.25))
    for round_, old, new in pairs(record, copy):
        sizes, kept, received = [], [], []
        for name in SHAPES:
            before = round_.common[name]
            sizes.append(np.abs(old.arrays[name] - before).ravel())
            kept.append((new.arrays[name] == old.arrays[name]).ravel())
            received.append((new.arrays[name] == before).ravel())
        sizes, kept, received = map(np.concatenate, (sizes, kept, received))
        assert len(sizes) == 28
        largest = np.isin(np.arange(28), np.argsort(sizes)[-7:])
        np.testing.assert_array_equal(kept, largest)
        np.testing.assert_array_equal(received, ~largest)


def test_secure_aggregation_leaves_the_weighted_mean_alone(record, tmp_path):
    copy = alter_record(record, tmp_path / "copy", Alteration("secagg"))
    assert copy.view == "aggregate"
    for old, new in zip(record, copy, strict=True):
        assert all(reply.arrays is None for reply in new.observations)
        for name in SHAPES:
            total = sum(reply.num_examples * reply.arrays[name].astype(float) for reply in old.observations)
            np.testing.assert_allclose(new.aggregate[name], total / (10 + 11 + 12), rtol=1e-12)
    for _ in pairs(record, copy):
        pass


@pytest.mark.parametrize("alteration", [Alteration("noise", 0.0), Alteration("keep", 1.0), NOTHING])
def test_no_noise_and_all_entries_change_nothing(record, tmp_path, alteration):
    copy = alter_record(record, tmp_path / "copy", alteration)
    for _, old, new in pairs(record, copy):
        same(plain(new.arrays), plain(old.arrays))
        assert new.metrics == old.metrics


def test_a_gradient_is_the_update_itself(tmp_path):
    record = write_record(tmp_path / "record", protocol="fedsgd")
    copy = alter_record(record, tmp_path / "copy", Alteration("keep", 0.5))
    for _, old, new in pairs(record, copy):
        sizes = np.concatenate([np.abs(old.arrays[name]).ravel() for name in SHAPES])
        zeros = np.concatenate([(new.arrays[name] == 0).ravel() for name in SHAPES])
        np.testing.assert_array_equal(zeros, sizes < np.sort(sizes)[14])


def test_replies_of_rounds_that_are_larger_than_the_memory_wait_on_disk(tmp_path):
    write_run(tmp_path, rounds=1, epochs=1)
    record = Record(tmp_path / "record")
    ample, tight = (
        alter_record(record, tmp_path / str(memory), Alteration("noise", 0.1), memory=memory) for memory in (2**30, 0)
    )
    for _, one, other in pairs(ample, tight):
        same(plain(one.arrays), plain(other.arrays))
    assert {path.name for path in tmp_path.iterdir()} == {"record", "knowledge", "truth", str(2**30), "0"}


def test_noise_is_another_one_for_each_seed_client_and_round_and_the_same_again(record, tmp_path):
    def noise(name, *seed):
        copy = alter_record(record, tmp_path / name, Alteration("noise", 1.0), seed=seed)
        return [new.arrays["fc.weight"] - old.arrays["fc.weight"] for _, old, new in pairs(record, copy)]

    first = noise("a", 0, 0)
    for one, again in zip(first, noise("b", 0, 0), strict=True):
        np.testing.assert_array_equal(one, again)
    drawn = [*first, *noise("c", 1, 0), *noise("d", 0, 1)]
    assert len({each.tobytes() for each in drawn}) == len(drawn)


def test_what_no_defence_can_change_fails_and_late_replies_lose_their_arrays(tmp_path):
    rng = np.random.default_rng(1)
    infinite = model(rng) | {"fc.bias": np.full(4, np.inf, dtype=np.float32)}
    other = {"another": np.zeros(3, dtype=np.float32)}
    odd = [
        Reply("a", "ok", infinite, 5),
        Reply("b", "ok", other, 5),
        Reply("c", "late", model(rng), 5, of_round=1),
        Reply("d", "missing", reason="nothing came"),
    ]
    record = write_record(tmp_path / "record", odd=odd)
    copy = alter_record(record, tmp_path / "copy", Alteration("noise", 0.1))
    replies = copy.rounds[1].observations[CLIENTS:]
    assert [(reply.node, reply.status, reply.arrays) for reply in replies] == [
        ("a", "failed", None),
        ("b", "failed", None),
        ("c", "late", None),
        ("d", "missing", None),
    ]
    assert "not finite" in replies[0].reason
    assert "did not send the arrays" in replies[1].reason
    assert (replies[2].of_round, replies[3].reason) == (1, "nothing came")


def test_a_copy_of_a_copy_says_both(record, tmp_path):
    once = alter_record(record, tmp_path / "once", Alteration("noise", 0.1))
    twice = alter_record(once, tmp_path / "twice", Alteration("secagg"))
    assert twice.facts["what-if"] == "noise, σ = 0.1, then secure aggregation"


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "1e7", "much", ""])
def test_noise_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match=f"--noise {text}: expected a standard deviation from 0 to 1e"):
        read_alterations(False, ["0.1", text], [])


@pytest.mark.parametrize("text", ["0", "-0.1", "1.01", "nan", "10%"])
def test_a_share_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match=f"--keep {text}: expected a share above 0 and up to 1"):
        read_alterations(True, [], [text])


def test_alterations_have_names_of_their_own():
    asked = read_alterations(True, ["0.01", "1e-2", "0"], ["0.1", "1"])
    assert [each.name for each in asked] == ["secagg", "noise-0.01", "noise-0.0", "keep-0.1", "keep-1.0"]
    assert [each.label for each in asked] == [
        "secure aggregation",
        "noise, σ = 0.01",
        "noise, σ = 0",
        "10% of entries kept",
        "100% of entries kept",
    ]
    with pytest.raises(ConfigError, match="no change is given"):
        read_alterations(False, [], [])


def test_records_that_cannot_be_altered_are_refused(record, tmp_path):
    keep = [Alteration("keep", 0.1)]
    check_alterable(record, [Alteration("secagg"), *keep])
    with pytest.raises(RecordError, match="holds sums alone"):
        check_alterable(project_record(record, tmp_path / "sums"), keep)
    write_run(tmp_path / "open", rounds=1, epochs=0, close=False)
    with pytest.raises(RecordError, match="has not ended"):
        check_alterable(Record(tmp_path / "open" / "record"), keep)
