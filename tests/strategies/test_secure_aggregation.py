"""The real SecAgg+ protocol, run in this process: what its server sees, and what it sees when clients drop out."""

import numpy as np
import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common.secure_aggregation.quantization import dequantize, quantize

from fedattack.base.errors import ConfigError
from fedattack.observe import PassingGrid
from fedattack.record import Record, check_record
from strategies.honest_but_curious import Sampling
from strategies.secure_aggregation import CLIPPING, STEPS, SecAggPlan, plan_secure_aggregation, run_secure_aggregation
from tests.refusals import refused
from tests.strategies.rounding import rmse
from tests.worlds.local_grid import FIRST_NODE, LocalGrid

CLIENTS = 7
COUNTS = [10 + 3 * index for index in range(CLIENTS)]


def initial() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    return {
        "fc.weight": draw.normal(scale=0.2, size=(100, 200)).astype(np.float32),
        "fc.bias": np.zeros(200, dtype=np.float32),
    }


def train(arrays, partition: int, server_round: int) -> list[np.ndarray]:
    draw = np.random.default_rng((partition, server_round))
    return [(array + draw.normal(scale=0.01, size=array.shape)).astype(np.float32) for array in arrays]


class TrainingClient(NumPyClient):
    def __init__(self, partition: int) -> None:
        self.partition = partition

    def fit(self, parameters, config):
        assert all(array.dtype == np.float32 for array in parameters)
        sent = train(parameters, self.partition, config["server-round"])
        return sent, COUNTS[self.partition], {"train-loss": 0.5 + self.partition, "site": f"site {self.partition}"}


app = ClientApp(
    client_fn=lambda context: TrainingClient(context.node_config["partition-id"]).to_client(), mods=[secaggplus_mod]
)


def surviving_app(message: Message, context: Context) -> Message:
    """Answer with an error where a client raises, as Flower's runtimes do."""
    try:
        return app(message, context)
    except Exception as cause:
        return Message(Error(code=2, reason=str(cause)), reply_to=message)


def run(out, *, grid=None, rounds: int = 3, fraction: float = 1.0, clients: int = CLIENTS, drop=lambda *_: None):
    run_secure_aggregation(
        grid or LocalGrid(surviving_app, clients, drop),
        Context(run_id=7, node_id=1, node_config={}, state=RecordDict(), run_config={}),
        str(out),
        initial=initial(),
        rounds=rounds,
        sampling=Sampling(fraction, clients, 5),
        max_examples=max(COUNTS[:clients]),
        config={"lr": 0.1},
        facts={"rounds": rounds},
    )
    return Record(out)


def mean(item, partitions) -> dict[str, np.ndarray]:
    """What the clients sent, averaged by hand."""
    names = list(item.common)
    common = [item.common[name] for name in names]
    sent = [train(common, partition, item.number) for partition in partitions]
    weights = np.array([COUNTS[partition] for partition in partitions]) / sum(COUNTS[index] for index in partitions)
    return {
        name: sum(weight * arrays[place].astype(np.float64) for weight, arrays in zip(weights, sent, strict=True))
        for place, name in enumerate(names)
    }


def partitions_of(nodes) -> list[int]:
    return sorted(int(node) - FIRST_NODE for node in nodes)


def assert_is_mean(item, partitions) -> None:
    """Equal up to quantisation, and by no more and no less than the formula says."""
    plan = SecAggPlan(CLIENTS, max(COUNTS))
    expected = rmse(plan, np.array([COUNTS[index] for index in partitions]))
    exact = mean(item, partitions)
    error = np.concatenate([(item.aggregate[name] - exact[name]).ravel() for name in exact])
    assert np.sqrt(np.mean(error**2)) == pytest.approx(expected, rel=0.05)
    assert abs(error.mean()) < 5 * expected / np.sqrt(error.size)
    assert np.abs(error).max() < 7 * expected


def test_the_aggregate_is_the_weighted_mean_up_to_quantisation(tmp_path):
    record = run(tmp_path / "record")
    assert record.view == "aggregate"
    assert record.status == "complete"
    assert check_record(tmp_path / "record").whole
    assert [item.number for item in record] == [1, 2, 3]
    for item in record:
        assert list(item.aggregate) == list(item.common) == ["fc.weight", "fc.bias"]
        assert partitions_of(item.participants) == list(range(CLIENTS))
        assert item.config == {"lr": 0.1, "server-round": item.number}
        assert_is_mean(item, range(CLIENTS))
        for name, array in item.after.items():
            assert array.dtype == np.float32
            np.testing.assert_array_equal(array, item.aggregate[name].astype(np.float32))
    assert [parameter.name for parameter in record.parameters] == ["fc.weight", "fc.bias"]


def test_counts_and_metrics_come_in_plaintext_and_nothing_else_of_a_client(tmp_path):
    record = run(tmp_path / "record", rounds=1)
    for seen in record.rounds[0].observations:
        partition = int(seen.node) - FIRST_NODE
        assert seen.arrays is None
        assert seen.num_examples == COUNTS[partition]
        assert seen.metrics == {"train-loss": 0.5 + partition, "site": f"site {partition}"}


def test_the_manifest_says_how_the_aggregates_came_about(tmp_path):
    record = run(tmp_path / "record", rounds=1)
    said = record.manifest["aggregation"]
    assert (said["kind"], said["weight"], said["by"]) == ("mean", "num-examples", "secagg+")
    assert (said["max_weight"], said["shares"], said["threshold"]) == (28.0, 5, 3)
    assert (record.seed, record.facts["rounds"]) == (5, 1)


def test_the_seed_samples_as_the_plain_server_does(tmp_path):
    record = run(tmp_path / "record", fraction=0.5)
    nodes = [FIRST_NODE + index for index in range(CLIENTS)]
    for item in record:
        assert len(item.participants) == 4
        assert set(item.participants) == {str(node) for node in Sampling(0.5, CLIENTS, 5).draw(nodes, item.number)}
        assert_is_mean(item, partitions_of(item.participants))


def dropping(stage: str, partitions=(3,), number: int = 2, how: str = "fail"):
    """Clients that do not get through one stage of one round."""

    def drop(message: Message, index: int) -> str | None:
        configs = message.content.config_records.get("secaggplus_configs")
        hit = configs and configs["stage"] == stage and message.metadata.group_id == str(number)
        return how if hit and index in partitions else None

    return drop


@pytest.mark.parametrize("how", ["fail", "silent"])
@pytest.mark.parametrize(
    ("stage", "left"),
    [
        ("setup", []),
        ("share_keys", []),
        ("collect_masked_vectors", [0, 1, 2, 4, 5, 6]),
        ("unmask", [*range(CLIENTS)]),
    ],
)
def test_a_dropout_at_any_stage_ends_in_a_readable_record(stage, left, how, tmp_path):
    """SecAgg+ halts on the first two; one that drops out of the unmasking is in the sum already."""
    record = run(tmp_path / "record", drop=dropping(stage, how=how))
    assert check_record(tmp_path / "record").whole
    assert [item.number for item in record] == [1, 2, 3]
    for item in record:
        assert partitions_of(item.sampled) == list(range(CLIENTS))
        present = left if item.number == 2 else list(range(CLIENTS))
        assert partitions_of(item.participants) == present
        if present:
            assert_is_mean(item, present)
        else:
            assert item.aggregate is None
            assert {seen.status for seen in item.observations} == {"missing"}
            assert {seen.reason for seen in item.observations} == {"the round ended without an aggregate"}
            for name, array in item.after.items():
                np.testing.assert_array_equal(array, item.common[name])
    gone = [seen for seen in record.rounds[1].observations if seen.status != "ok"]
    if stage == "collect_masked_vectors":
        assert [seen.status for seen in gone] == ["missing"]
        assert ("the client raised" in gone[0].reason) == (how == "fail")


def test_too_many_dropouts_halt_the_round(tmp_path):
    record = run(tmp_path / "record", drop=dropping("collect_masked_vectors", partitions=(0, 1, 2, 3, 4)))
    assert [item.aggregate is None for item in record] == [False, True, False]


def test_a_halted_last_round_is_noted_too_and_the_model_stays(tmp_path):
    record = run(tmp_path / "record", rounds=2, drop=dropping("setup"))
    assert record.status == "complete"
    assert [item.aggregate is None for item in record] == [False, True]
    for name, array in record.final.items():
        np.testing.assert_array_equal(array, record.rounds[1].common[name])


def test_a_run_of_halted_rounds_alone_is_a_record(tmp_path):
    record = run(tmp_path / "record", rounds=1, drop=dropping("setup", number=1))
    report = check_record(tmp_path / "record")
    assert (report.problems, report.rounds) == ([], 1)
    assert report.notes == [
        "no client answered a training message in any of 1 rounds: the round ended without an aggregate"
    ]
    assert record.rounds[0].participants == ()
    for name, array in record.final.items():
        np.testing.assert_array_equal(array, initial()[name])


def test_a_run_that_fails_leaves_its_rounds_and_says_why(tmp_path):
    class Breaking(PassingGrid):
        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            if messages[0].metadata.group_id == "2":
                raise RuntimeError("the line broke")
            return super().send_and_receive(messages, timeout=timeout)

    with pytest.raises(RuntimeError, match="the line broke"):
        run(tmp_path / "record", grid=Breaking(LocalGrid(surviving_app, CLIENTS)))
    record = Record(tmp_path / "record")
    assert record.status == "cut short"
    assert "RuntimeError: the line broke" in record.manifest["error"]
    assert [item.aggregate is None for item in record] == [False, True]
    assert not check_record(tmp_path / "record").problems


@pytest.mark.parametrize("clients", [3, 4, 5, 6])
def test_the_smallest_samples_work_and_survive_a_dropout(clients, tmp_path):
    drop = dropping("collect_masked_vectors", partitions=(1,))
    record = run(tmp_path / "record", clients=clients, drop=drop, rounds=2)
    assert [len(item.participants) for item in record] == [clients, clients - 1]
    plan = SecAggPlan(clients, float(max(COUNTS[:clients])))
    assert 1 < plan.threshold < plan.shares <= clients
    for item in record:
        exact = mean(item, partitions_of(item.participants))
        for name, array in item.aggregate.items():
            np.testing.assert_allclose(array, exact[name], atol=1e-5)


@pytest.mark.parametrize(("fraction", "clients"), [(0.2, 10), (0.1, 10), (1.0, 1024)])
def test_samples_that_secagg_cannot_sum_are_refused(fraction, clients):
    with refused(ConfigError, r"SecAgg\+ needs 3 to 1023"):
        plan_secure_aggregation(initial(), sampling=Sampling(fraction, clients, 0), max_examples=10)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array(3), r"cannot sum bn\.num_batches_tracked, which holds int64"),
        (np.full(3, -4.5, dtype=np.float32), r"would clip bn\.num_batches_tracked: it starts with values up to 4\.5"),
        (np.full(3, np.nan, dtype=np.float32), "would clip"),
    ],
)
def test_models_that_secagg_would_spoil_are_refused(array, message):
    arrays = initial() | {"bn.num_batches_tracked": array}
    with pytest.raises(ConfigError, match=message):
        plan_secure_aggregation(arrays, sampling=Sampling(1.0, 5, 0), max_examples=10)


def test_weights_that_are_clipped_spoil_the_mean_and_those_within_do_not():
    """Why max_weight must be the largest count: clipping applies to w · n / max_weight."""
    weights = np.linspace(-7.9, 7.9, 1000)
    for ratio, spoilt in ((1.0, False), (2.0, True)):
        back = dequantize(quantize([weights * ratio], CLIPPING, STEPS), CLIPPING, STEPS)[0] / ratio
        assert (np.abs(back - weights).max() > 1) == spoilt
