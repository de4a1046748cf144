"""Messages that cannot be examined, or not wholly: nobody may take them for messages with noise."""

import numpy as np
import pytest

from fedattack.claims.check import check_claim
from fedattack.claims.finding import CONSISTENT, CONTRADICTED, UNCHECKED
from fedattack.record import Exchange, RecordWriter, Reply
from tests.claims.recorded.runs import seen
from tests.claims.recorded.test_recorded import GAUSSIAN, claim

SIZE = 500


def noise(seed, shape=(SIZE,)):
    return np.random.default_rng(seed).normal(0, 0.1, shape).astype(np.float32)


def with_value(value):
    array = noise(9)
    array[7] = value
    return {"a": array}


def answer_of(tmp_path, replies, *, common=None, protocol="fedavg", rounds=1):
    common = {"a": np.zeros(SIZE, np.float32)} if common is None else common
    writer = RecordWriter(tmp_path / "r", protocol=protocol)
    for number in range(1, rounds + 1):
        honest = [Reply(str(n), "ok", {"a": noise(100 * number + n)}, 10) for n in range(3)]
        writer.write(Exchange(number, common, [*honest, *(replies if number == rounds else [])]))
    writer.close()
    return check_claim(claim(**GAUSSIAN), record=tmp_path / "r")


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (with_value(np.nan), "a has numbers that are not finite"),
        (with_value(np.inf), "a has numbers that are not finite"),
        ({"b": noise(9)}, "b is not an array of the model"),
        ({"a": noise(9, (SIZE, 1))}, "a has shape (500, 1), and (500,) is expected"),
        ({"a": np.arange(SIZE)}, "a has int64, and float32 is expected"),
        ({"a": noise(9), "more": noise(8)}, "more is not an array of the model"),
        ({}, "it has no arrays"),
    ],
    ids=["nan", "inf", "other name", "other shape", "integers", "one more", "nothing"],
)
@pytest.mark.parametrize("protocol", ["fedavg", "fedsgd"])
def test_who_cannot_be_examined_is_not_taken_for_honest(tmp_path, sent, why, protocol):
    _, missing = seen(answer_of(tmp_path, [Reply("9", "ok", sent, 10)], protocol=protocol))
    assert missing.verdict == UNCHECKED
    assert "client 9 cannot be examined" in missing.reason
    assert why in missing.reason
    assert "client 1" not in missing.reason


def test_one_message_of_several(tmp_path):
    answer = answer_of(tmp_path, [Reply("2", "late", {"a": noise(3)}, 10, of_round=1)], rounds=2)
    _, missing = seen(answer)
    assert missing.verdict == UNCHECKED
    assert "client 2 cannot be examined: it came late" in missing.reason
    assert [client["updates"] for client in answer.recorded["clients"]] == [2, 2, 2]


def test_who_is_found_without_noise_is_named_all_the_same(tmp_path):
    silent = Reply("8", "ok", {"a": np.zeros(SIZE, np.float32)}, 10)
    _, missing = seen(answer_of(tmp_path, [silent, Reply("9", "ok", with_value(np.nan), 10)]))
    assert missing.verdict == CONTRADICTED
    assert missing.clients == ("8",)
    assert "client 9 cannot be examined" in missing.reason


def test_many_are_counted(tmp_path):
    _, missing = seen(answer_of(tmp_path, [Reply(str(n), "ok", with_value(np.nan), 10) for n in range(10, 20)]))
    assert "client 14" in missing.reason
    assert "client 15" not in missing.reason
    assert "and 5 more" in missing.reason


def test_a_model_that_is_not_known(tmp_path):
    other = {"b": np.zeros(SIZE, np.float32)}
    _, missing = seen(answer_of(tmp_path, [Reply("9", "ok", {"a": noise(9)}, 10, received=other)]))
    assert missing.verdict == UNCHECKED
    assert "it is not known what a was before" in missing.reason


def test_nobody_can_be_examined(tmp_path):
    writer = RecordWriter(tmp_path / "r")
    replies = [Reply(str(n), "ok", with_value(np.nan), 10) for n in range(3)]
    writer.write(Exchange(1, {"a": np.zeros(SIZE, np.float32)}, replies))
    writer.close()
    recorded, missing = seen(check_claim(claim(**GAUSSIAN), record=tmp_path / "r"))
    assert missing.verdict == recorded.verdict == UNCHECKED
    assert "client 0 cannot be examined" in missing.reason


def test_an_array_that_is_left_out_is_not_sent(tmp_path):
    """Who trains the head alone and sends it alone shows all that it sends."""
    common = {"a": np.zeros(SIZE, np.float32), "frozen": np.ones(SIZE, np.float32)}
    _, missing = seen(answer_of(tmp_path, [], common=common))
    assert missing.verdict == CONSISTENT


def test_a_gradient_of_another_shape_ends_in_no_error(tmp_path):
    """Its noise is not compared with that of the others, which has another length."""
    replies = [Reply("9", "ok", {"a": noise(9, (SIZE // 2,))}, 10)]
    _, missing = seen(answer_of(tmp_path, replies, protocol="fedsgd"))
    assert missing.verdict == UNCHECKED
