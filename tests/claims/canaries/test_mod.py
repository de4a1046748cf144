"""The mod for projects of other people, on messages of both generations."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, MetricRecord, RecordDict

from fedattack.base.errors import ConfigError, DataError
from fedattack.claims.canaries import Canaries, CanaryMod, measure_canaries
from fedattack.claims.canaries.directions import move_arrays
from fedattack.privacy.gaussian import epsilon_of
from tests.claims.canaries.flower import Setting, run
from tests.claims.canaries.worlds import DELTA, central_claim
from tests.worlds.local_grid import LocalGrid

MOD = CanaryMod(count=2, clip=0.5, seed=7)
MODEL = {"w": np.ones((4, 3), np.float32), "n": np.array(2), "b": np.zeros(3, np.float32)}


def context(partition, partitions=5):
    config = {"partition-id": partition}
    if partitions is not None:
        config["num-partitions"] = partitions
    return Context(run_id=1, node_id=9, node_config=config, state=RecordDict(), run_config={})


def message(kind=MessageType.TRAIN, names=None, key="arrays"):
    arrays = dict(zip(names or MODEL, map(Array, MODEL.values()), strict=True))
    return Message(RecordDict({key: ArrayRecord(arrays), "config": ConfigRecord({"lr": 0.1})}), 9, kind)


def app(message, context):
    """Add the number of the partition to the model, and note it in the state."""
    partition = context.node_config["partition-id"]
    context.state["seen"] = ConfigRecord({"partition": partition, "of": context.node_config["num-partitions"]})
    ((key, record),) = message.content.array_records.items()
    sent = {name: Array(np.asarray(array.numpy() + 1 + partition)) for name, array in record.items()}
    metrics = MetricRecord({"num-examples": 10 + partition, "loss": 0.5})
    del message.content[key]
    return Message(RecordDict({key: ArrayRecord(sent), "metrics": metrics}), reply_to=message)


def arrays_of(reply):
    (record,) = reply.content.array_records.values()
    return [array.numpy() for array in record.values()]


@pytest.fixture(autouse=True)
def _within_a_run():
    """Messages can be made within a run alone."""
    LocalGrid(None, 1)


@pytest.mark.parametrize("names", [None, ["0", "1", "2"]])
def test_clients_are_left_alone_and_told_of_fewer_partitions(names):
    here = context(2)
    reply = MOD(message(names=names), here, app)
    assert [array.flat[0] for array in arrays_of(reply)] == [4, 5, 3]
    assert dict(here.state["seen"]) == {"partition": 2, "of": 3}
    assert here.node_config == {"partition-id": 2, "num-partitions": 5}


@pytest.mark.parametrize(("names", "key"), [(None, "arrays"), (["0", "1", "2"], "fitins.parameters")])
def test_the_last_partitions_send_their_directions_and_have_a_clients_metrics(names, key):
    here = context(4)
    reply = MOD(message(names=names, key=key), here, app)
    assert dict(here.state["seen"]) == {"partition": 1, "of": 3}
    assert dict(reply.content.metric_records["metrics"]) == {"num-examples": 11, "loss": 0.5}
    for got, expected in zip(arrays_of(reply), move_arrays(MODEL, 7, 1, 0.5).values(), strict=True):
        assert np.array_equal(got, expected)
        assert got.dtype == expected.dtype
    assert not np.array_equal(arrays_of(MOD(message(names=names), context(3), app))[0], arrays_of(reply)[0])


def test_other_messages_and_errors_pass():
    assert arrays_of(MOD(message(MessageType.EVALUATE), context(4), app))[0].flat[0] == 3

    def failing(message, context):
        return Message(Error(code=1, reason="out of cheese"), reply_to=message)

    assert MOD(message(), context(4), failing).has_error()


def test_an_app_that_sends_something_else_is_refused():
    def other(message, context):
        content = RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(2))})})
        return Message(content, reply_to=message)

    with pytest.raises(DataError, match="for apps that send models"):
        MOD(message(), context(4), other)
    assert MOD(message(), context(0), other).has_content()


@pytest.mark.parametrize(
    ("here", "fault"),
    [(context(0, None), "node config"), (context(0, 2), "2 canaries of 2 nodes leave no client")],
)
def test_nodes_that_do_not_fit_are_refused(here, fault):
    with pytest.raises(ConfigError, match=fault):
        MOD(message(), here, app)


@pytest.mark.parametrize(
    "values", [{"count": 1}, {"clip": 0.0}, {"clip": float("nan")}, {"clip": float("inf")}, {"seed": -1}]
)
def test_wrong_numbers_are_refused(values):
    with pytest.raises(ConfigError, match="expected 2 canaries or more"):
        CanaryMod(**({"count": 2, "clip": 1.0, "seed": 0} | values))


def test_a_run_of_flowers_central_wrapper_is_told_by_its_canaries(tmp_path):
    """Real strategy, real mod, real record; noise as declared, and a tenth of it."""
    canaries = Canaries(count=12, seed=2, clip=1.0)
    claim = central_claim(1.5, 16, 2)
    true = epsilon_of(np.sqrt(2) / 1.5, DELTA)
    record, _ = run(tmp_path / "honest", Setting(1.5, canaries, clients=4, rounds=2))
    found = measure_canaries(record, canaries, claim)
    assert 0 <= found.bound_run < true
    assert found.cost["share"] == 0.75
    record, _ = run(tmp_path / "little", Setting(0.15, canaries, clients=4, rounds=2))
    assert measure_canaries(record, canaries, claim).bound_run > true
