"""Each observer records exactly what passed and changes nothing."""

import importlib.metadata
import random

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import Client, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import parameters_to_ndarrays
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import DifferentialPrivacyServerSideFixedClipping as LegacyDpWrapper
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.server.strategy import FedMedian as LegacyFedMedian
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg, FedMedian
from safetensors import safe_open

from fedattack.base.errors import RecordError
from fedattack.observe import ObservedLegacyStrategy, ObservedServerApp, ObservedStrategy
from fedattack.observe._recorder import NEWEST
from fedattack.observe.bridge import numpy_client_bridge
from fedattack.record import Record, check_record, project_record
from tests.observe import apps
from tests.worlds.local_grid import FIRST_NODE, LocalGrid

NODES = 5
ROUNDS = 4


def context() -> Context:
    return Context(run_id=7, node_id=1, node_config={}, state=RecordDict(), run_config={})


def bytes_of(arrays) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}


def fail_in_round_two(message: Message, index: int) -> str | None:
    """Client 3 fails in the second training round."""
    if message.metadata.message_type != "train" or index != 3:
        return None
    configs = message.content.config_records
    number = configs["config"]["server-round"] if "config" in configs else configs["fitins.config"]["round"]
    return "fail" if number == 2 else None


def dp() -> DifferentialPrivacyServerSideFixedClipping:
    return DifferentialPrivacyServerSideFixedClipping(
        FedAvg(), noise_multiplier=0.5, clipping_norm=0.2, num_sampled_clients=NODES
    )


def run_message(strategy, observer: str | None, out, rounds: int = ROUNDS, drop=fail_in_round_two) -> dict:
    results: dict = {}
    np.random.seed(3)  # noqa: NPY002 - Flower's DP wrapper draws from the global generator
    random.seed(3)  # and its strategies sample, and so order, the nodes by this one
    make = (lambda: ObservedStrategy(strategy(), out)) if observer == "strategy" else strategy
    app = apps.message_server(make, rounds, results)
    if observer == "grid":
        app = ObservedServerApp(app, out)
    app(LocalGrid(apps.message_client, NODES, drop), context())
    return results["final"]


def run_unobserved(strategy) -> dict:
    """Skip the test where Flower itself fails: old versions take no medians of, or noise on, arrays without axes."""
    try:
        return run_message(strategy, None, None)
    except TypeError as cause:
        if "Invalid arguments for Array" in str(cause):
            pytest.skip("this version of Flower fails without an observer, too")
        raise


@pytest.mark.parametrize("observer", ["grid", "strategy"])
@pytest.mark.parametrize("strategy", [FedAvg, FedMedian, dp])
def test_message_run_ends_in_the_same_model_bit_for_bit(strategy, observer, tmp_path):
    expected = run_unobserved(strategy)
    got = run_message(strategy, observer, tmp_path / "record")
    assert list(got) == list(expected)
    for name in expected:
        assert (got[name].dtype, got[name].shape) == (expected[name].dtype, expected[name].shape)
        assert got[name].tobytes() == expected[name].tobytes()
    record = Record(tmp_path / "record")
    assert [item.number for item in record] == list(range(1, ROUNDS + 1))
    assert check_record(tmp_path / "record").whole


@pytest.mark.parametrize("observer", ["grid", "strategy"])
def test_message_record_holds_what_the_clients_sent(observer, tmp_path):
    final = run_message(FedAvg, observer, tmp_path / "record")
    record = Record(tmp_path / "record")
    common = apps.initial_arrays()
    for item in record:
        assert bytes_of(item.common) == {name: array.tobytes() for name, array in common.items()}
        assert len(item.sampled) == NODES
        assert item.config["lr"] == 0.1
        for seen in item.observations:
            partition = int(seen.node) - FIRST_NODE
            if seen.status == "failed":
                assert (item.number, partition) == (2, 3)
                assert "the client raised" in seen.reason
                assert seen.arrays is None
                continue
            expected = apps.train(list(common.values()), partition, item.number)
            for array, (name, sent) in zip(expected, seen.arrays.items(), strict=True):
                assert sent.shape == np.shape(array), name
                assert sent.tobytes() == np.asarray(array).tobytes(), name
            assert seen.num_examples == 10 + 3 * partition
            assert seen.metrics == {"train-loss": 0.5 + partition}
        common = {name: np.asarray(array) for name, array in (item.after or final).items()}
    assert sum(seen.status == "failed" for item in record for seen in item.observations) == 1
    assert bytes_of(common) == {name: array.tobytes() for name, array in final.items()}
    assert [parameter.role for parameter in record.parameters] == ["parameter", "parameter", "buffer"]


def test_the_common_model_of_fedavg_is_not_kept_twice(tmp_path):
    run_unobserved(FedMedian)
    run_message(FedAvg, "strategy", tmp_path / "mean")
    run_message(FedMedian, "strategy", tmp_path / "median")
    sources = [[item._entry["common"]["source"] for item in Record(tmp_path / name)] for name in ("mean", "median")]
    assert sources == [["stored", "mean", "mean", "mean"], ["stored"] * ROUNDS]
    assert Record(tmp_path / "mean").manifest["final"]["source"] == "mean"
    assert Record(tmp_path / "median").manifest["final"]["source"] == "stored"


def run_legacy(strategy, observer: str | None, out, client=None) -> list[np.ndarray]:
    """Run Flower's legacy server (``server_fn``), which sends one message per thread."""
    results: dict = {}

    def make():
        inner = apps.legacy_fedavg(results, strategy)
        return ObservedLegacyStrategy(inner, out, names=["w", "b"]) if observer == "strategy" else inner

    made: list = []
    app = apps.legacy_server(lambda: made.append(make()) or made[0], ROUNDS)
    if observer == "grid":
        app = ObservedServerApp(app, out, names=["w", "b"])
    app(LocalGrid(client or ClientApp(client_fn=apps.client_fn), NODES, fail_in_round_two), context())
    if observer == "strategy":
        made[0].close()
    return parameters_to_ndarrays(results["final"])


@pytest.mark.parametrize("observer", ["grid", "strategy"])
@pytest.mark.parametrize("strategy", [LegacyFedAvg, LegacyFedMedian])
def test_legacy_run_ends_in_the_same_model(strategy, observer, tmp_path):
    expected = run_legacy(strategy, None, None)
    got = run_legacy(strategy, observer, tmp_path / "record")
    for left, right in zip(expected, got, strict=True):
        # Flower's legacy server averages replies in the order in which its threads finish: same up to rounding.
        np.testing.assert_allclose(left, right, rtol=1e-6)
    record = Record(tmp_path / "record")
    assert [item.number for item in record] == list(range(1, ROUNDS + 1))
    assert list(record.rounds[0].common) == ["w", "b"]
    failed = [
        (item.number, seen.node, seen.reason)
        for item in record
        for seen in item.observations
        if seen.status == "failed"
    ]
    assert [entry[:2] for entry in failed] == [(2, str(FIRST_NODE + 3))]
    assert "the client raised" in failed[0][2]
    last = record.rounds[-1]
    assert {seen.metrics["site"] for seen in last.observations} == {f"site {index}" for index in range(NODES)}
    assert last.after is not None
    for left, right in zip(got, last.after.values(), strict=True):
        assert left.tobytes() == right.tobytes()
    assert check_record(tmp_path / "record").whole


def run_workflow(strategy, fit_workflow=None, client=None, rounds: int = ROUNDS, drop=fail_in_round_two) -> None:
    """Run Flower's legacy DefaultWorkflow on one generation-neutral Grid."""
    random.seed(3)
    app = ServerApp()

    @app.main()
    def main(grid, ctx):
        legacy = LegacyContext(context=ctx, config=ServerConfig(num_rounds=rounds), strategy=strategy)
        DefaultWorkflow(fit_workflow=fit_workflow)(grid, legacy)

    app(LocalGrid(client or ClientApp(client_fn=apps.client_fn), NODES, drop), context())


class LegacyDp(LegacyDpWrapper):
    """Flower's legacy DP wrapper around a strategy; its noise comes from NumPy's global generator."""

    def __init__(self, results):
        super().__init__(apps.legacy_fedavg(results), 0.5, 0.2, NODES)
        self.results = results

    def aggregate_fit(self, server_round, results, failures):
        parameters, metrics = super().aggregate_fit(server_round, results, failures)
        self.results["final"] = parameters
        return parameters, metrics


@pytest.mark.parametrize(
    "make",
    [apps.legacy_fedavg, lambda results: apps.legacy_fedavg(results, LegacyFedMedian), LegacyDp],
    ids=["FedAvg", "FedMedian", "DP"],
)
def test_legacy_workflow_is_bit_identical(make, tmp_path):
    finals = []
    for observed in (False, True):
        results: dict = {}
        np.random.seed(3)  # noqa: NPY002
        strategy = make(results)
        if observed:
            strategy = ObservedLegacyStrategy(strategy, tmp_path / "record")
        run_workflow(strategy)
        finals.append(results["final"].tensors)
    strategy.close()
    assert finals[0] == finals[1]
    record = Record(tmp_path / "record")
    assert len(record) == ROUNDS
    assert [seen.status for seen in record.rounds[1].observations].count("failed") == 1


def test_a_legacy_fedavg_s_common_model_is_not_kept_twice(tmp_path):
    strategy = ObservedLegacyStrategy(apps.legacy_fedavg({}), tmp_path / "record")
    run_workflow(strategy)
    strategy.close()
    assert [item._entry["common"]["source"] for item in Record(tmp_path / "record")] == ["stored"] + ["mean"] * 3


def test_a_legacy_strategy_that_raises_leaves_a_record_that_says_so(tmp_path):
    class Raising(LegacyFedAvg):
        def aggregate_fit(self, server_round, results, failures):
            if server_round == 2:
                raise RuntimeError("the strategy broke")
            return super().aggregate_fit(server_round, results, failures)

    strategy = ObservedLegacyStrategy(apps.legacy_fedavg({}, Raising), tmp_path / "record")
    with pytest.raises(RuntimeError, match="the strategy broke"):
        run_workflow(strategy)
    strategy.close()
    record = Record(tmp_path / "record")
    assert record.status == "cut short"
    assert "the strategy broke" in record.manifest["error"]
    assert len(record) == 2


def test_tensors_that_are_no_arrays_are_recorded_as_bytes(tmp_path):
    """Strategies for trees exchange JSON in place of arrays."""
    from flwr.common import Parameters

    class Trees(LegacyFedAvg):
        def aggregate_fit(self, server_round, results, failures):
            return Parameters([b'{"trees": %d}' % server_round], "json"), {}

    start = Parameters([b'{"trees": 0}'], "json")
    strategy = ObservedLegacyStrategy(Trees(initial_parameters=start, min_fit_clients=2), tmp_path / "record")
    trees = ClientApp(client_fn=lambda context: TreesClient())
    run_workflow(strategy, client=trees, drop=lambda *_: None)
    strategy.close()
    record = Record(tmp_path / "record")
    assert bytes(record.rounds[1].common["0"]) == b'{"trees": 1}'
    assert record.status == "complete"


class TreesClient(Client):
    """Answers with bytes."""

    def fit(self, ins):
        from flwr.common import Code, FitRes, Parameters, Status

        return FitRes(Status(Code.OK, ""), Parameters([b'{"trees": 9}'], "json"), 3, {})


def test_secagg_is_recorded_in_the_aggregate_view_and_refused_in_the_individual_one(tmp_path):
    client = ClientApp(client_fn=apps.client_fn, mods=[secaggplus_mod])
    workflow = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2)
    strategy = ObservedLegacyStrategy(apps.legacy_fedavg({}), tmp_path / "sums", view="aggregate")

    def run(observed):
        run_workflow(observed, workflow, client, rounds=2, drop=lambda message, index: None)
        observed.close()

    run(strategy)
    record = Record(tmp_path / "sums")
    assert record.view == "aggregate"
    assert record.manifest["aggregation"]["by"] == "secagg+"
    first = record.rounds[0]
    assert all(seen.arrays is None for seen in first.observations)
    assert {seen.num_examples for seen in first.observations} == {10 + 3 * index for index in range(NODES)}
    floats = [array for array in apps.initial_arrays().values() if array.dtype.kind == "f"]
    weights = [10 + 3 * index for index in range(NODES)]
    sent = [apps.train(floats, index, 1) for index in range(NODES)]
    for position, array in enumerate(first.aggregate.values()):
        mean = sum(w * item[position] for w, item in zip(weights, sent, strict=True)) / sum(weights)
        np.testing.assert_allclose(array, mean, atol=1e-3)  # SecAgg+ quantises

    mistaken = ObservedLegacyStrategy(apps.legacy_fedavg({}), tmp_path / "wrong")
    run(mistaken)
    wrong = Record(tmp_path / "wrong")
    assert wrong.status == "cut short"
    assert len(wrong) == 0
    assert "view='aggregate'" in wrong.manifest["error"]


@pytest.mark.parametrize("observer", [ObservedStrategy, ObservedServerApp])
def test_the_aggregate_view_of_a_plain_server_is_projected_while_it_is_written(observer, tmp_path):
    """Exactly as an individual record is projected later, and nothing of a single client reaches the disk."""

    def run(out, **options):
        results: dict = {}
        random.seed(3)
        whole = observer is ObservedServerApp
        app = apps.message_server(lambda: FedAvg() if whole else ObservedStrategy(FedAvg(), out, **options), 3, results)
        app = ObservedServerApp(app, out, **options) if whole else app
        app(LocalGrid(apps.message_client, NODES, fail_in_round_two), context())
        return results["final"]

    final = run(tmp_path / "sums", view="aggregate")
    same = run(tmp_path / "single")
    assert bytes_of(final) == {name: array.tobytes() for name, array in same.items()}
    sums = Record(tmp_path / "sums")
    later = project_record(Record(tmp_path / "single"), tmp_path / "later")
    assert sums.view == "aggregate"
    assert check_record(tmp_path / "sums").whole
    assert sums.manifest["aggregation"] == {"kind": "mean", "weight": "num-examples", "by": "projection"}
    assert sums.manifest["aggregation"] == later.manifest["aggregation"]
    for left, right in zip(sums, later, strict=True):
        assert left.participants == right.participants
        assert len(left.participants) == NODES - (left.number == 2)
        assert {name: array.dtype for name, array in left.aggregate.items()} == dict.fromkeys(apps.SHAPES, np.float64)
        for mine, theirs in ((left.aggregate, right.aggregate), (left.common, right.common)):
            assert bytes_of(mine) == {name: array.tobytes() for name, array in theirs.items()}
        for seen, other in zip(left.observations, right.observations, strict=True):
            assert (seen.num_examples, seen.metrics, seen.reason) == (other.num_examples, other.metrics, other.reason)
            assert seen.arrays is None
    for file in (tmp_path / "sums" / "rounds").iterdir():
        with safe_open(file, framework="numpy") as tensors:
            assert {name.split("/")[0] for name in tensors.keys()} <= {"common", "aggregate"}  # noqa: SIM118


def test_a_round_that_has_no_weighted_mean_says_why(tmp_path, caplog):
    record = push_and_pull(tmp_path, 2, number=False, view="aggregate")
    assert record.status == "complete"
    assert [item.aggregate for item in record] == [None, None]
    reason = "its example count is None, and it has no part in the mean"
    assert {(seen.status, seen.reason) for item in record for seen in item.observations} == {("failed", reason)}
    assert record.silence == f"no client answered a training message in any of 2 rounds: {reason}"
    assert f"round 1: there is no mean: {reason}" in caplog.text


def test_bridge_lets_one_numpy_client_serve_both_generations(tmp_path):
    client = ClientApp(client_fn=apps.client_fn, mods=[numpy_client_bridge])
    results: dict = {}
    random.seed(3)
    app = apps.message_server(lambda: ObservedStrategy(FedAvg(), tmp_path / "record"), 2, results)
    app(LocalGrid(client, NODES), context())
    native: dict = {}
    random.seed(3)
    apps.message_server(FedAvg, 2, native)(LocalGrid(apps.message_client, NODES), context())
    assert bytes_of(results["final"]) == {name: array.tobytes() for name, array in native["final"].items()}
    for seen in Record(tmp_path / "record").rounds[0].observations:
        partition = int(seen.node) - FIRST_NODE
        assert list(seen.arrays) == list(apps.SHAPES)
        assert seen.metrics == {"train-loss": 0.5 + partition, "site": f"site {partition}"}
    run_legacy(LegacyFedAvg, None, None, client=client)


def test_missing_and_late_replies_are_told_apart(tmp_path):
    def drop(message, index):
        if message.metadata.message_type != "train" or message.metadata.group_id != "1":
            return None
        return {1: "silent", 2: "late"}.get(index)

    app = ServerApp()

    @app.main()
    def main(grid, ctx):
        first: list = []
        for number in (1, 2):
            messages = [
                grid.create_message(make_content(number), "train", node, str(number)) for node in grid.get_node_ids()
            ]
            ids = list(grid.push_messages(messages))
            grid.pull_messages(ids)
            grid.pull_messages(first)
            first = ids

    def make_content(number):
        from flwr.app import Array, ArrayRecord, ConfigRecord

        arrays = ArrayRecord({name: Array(array) for name, array in apps.initial_arrays().items()})
        return RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": number})})

    ObservedServerApp(app, tmp_path / "record")(LocalGrid(apps.message_client, NODES, drop), context())
    record = Record(tmp_path / "record")
    first, second = record.rounds[:2]
    assert [seen.status for seen in first.observations] == ["ok"] * 3 + ["missing"] * 2
    late = [seen for item in (second, *record.rounds[2:]) for seen in item.observations if seen.status == "late"]
    assert [(seen.node, seen.of_round) for seen in late] == [(str(FIRST_NODE + 2), 1)]
    assert set(late[0].arrays) == set(apps.SHAPES)
    assert len(second.participants) == NODES


def test_a_server_that_singles_a_client_out_is_recorded_as_it_is(tmp_path):
    class Isolating(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            from flwr.app import Array, ArrayRecord

            messages = list(super().configure_train(server_round, arrays, config, grid))
            shifted = ArrayRecord({name: Array(np.asarray(item.numpy() + 1)) for name, item in arrays.items()})
            victim = messages[0]
            victim.content = RecordDict({"arrays": shifted, "config": victim.content["config"]})
            return messages

    results: dict = {}
    app = apps.message_server(
        lambda: ObservedStrategy(Isolating(), tmp_path / "record", server="isolating"), 1, results
    )
    app(LocalGrid(apps.message_client, 3), context())
    seen = Record(tmp_path / "record").rounds[0].observations
    common = Record(tmp_path / "record").rounds[0].common
    np.testing.assert_array_equal(common["layer.bias"], apps.initial_arrays()["layer.bias"])
    np.testing.assert_array_equal(seen[0].received["layer.bias"], common["layer.bias"] + 1)
    np.testing.assert_array_equal(seen[1].received["layer.bias"], common["layer.bias"])
    for item in seen:
        partition = int(item.node) - FIRST_NODE
        np.testing.assert_allclose(item.update()["layer.bias"], 0.1 * (partition + 1), rtol=1e-6)


def test_an_occupied_folder_is_refused_before_the_run(tmp_path):
    run_message(FedAvg, "strategy", tmp_path / "record")
    before = sorted((tmp_path / "record" / "rounds").iterdir())
    with pytest.raises(RecordError, match="already holds a record"):
        run_message(FedAvg, "strategy", tmp_path / "record")
    assert sorted((tmp_path / "record" / "rounds").iterdir()) == before
    assert check_record(tmp_path / "record").whole


def test_a_crashed_run_leaves_its_rounds_and_says_why(tmp_path):
    class Crashing(FedAvg):
        def aggregate_train(self, server_round, replies):
            if server_round == 3:
                raise RuntimeError("the strategy broke")
            return super().aggregate_train(server_round, replies)

    with pytest.raises(RuntimeError, match="the strategy broke"):
        run_message(Crashing, "strategy", tmp_path / "record")
    record = Record(tmp_path / "record")
    assert [item.number for item in record] == [1, 2, 3]
    assert record.status == "cut short"
    assert "the strategy broke" in record.manifest["error"]


def test_a_strategy_with_a_start_of_its_own_keeps_its_state(tmp_path):
    class Saving(FedAvg):
        best = 0

        def start(self, *args, **kwargs):
            self.best = 42
            return super().start(*args, **kwargs)

        def aggregate_train(self, server_round, replies):
            assert self.best == 42
            return super().aggregate_train(server_round, replies)

    inner = Saving()
    run_message(lambda: inner, "strategy", tmp_path / "record")
    assert len(Record(tmp_path / "record")) == ROUNDS
    assert "configure_train" not in vars(inner)
    assert "aggregate_train" not in vars(inner)


def test_a_strategy_wrapped_by_another_still_records(tmp_path):
    run_unobserved(dp)
    inner = ObservedStrategy(FedAvg(), tmp_path / "record")
    run_message(
        lambda: DifferentialPrivacyServerSideFixedClipping(inner, 0.5, 0.2, NODES), None, None, drop=lambda *_: None
    )
    inner._tracker.close()
    assert len(Record(tmp_path / "record")) == ROUNDS


def push_and_pull(tmp_path, rounds, drop=lambda *_: None, *, number=True, between=None, chunks=1, view="individual"):
    """A server that pushes and pulls itself."""
    from flwr.app import Array, ArrayRecord, ConfigRecord

    app = ServerApp()

    @app.main()
    def main(grid, ctx):
        for server_round in range(1, rounds + 1):
            nodes = list(grid.get_node_ids())
            size = -(-len(nodes) // chunks)
            for part in range(chunks):
                arrays = ArrayRecord({name: Array(array) for name, array in apps.initial_arrays().items()})
                config = ConfigRecord({"server-round" if number else "step": server_round})
                content = RecordDict({"arrays": arrays, "config": config})
                group = str(server_round) if number else ""
                ids = list(
                    grid.push_messages(
                        [
                            grid.create_message(content, "train", node, group)
                            for node in nodes[part * size : (part + 1) * size]
                        ]
                    )
                )
                if between:
                    grid.push_messages([grid.create_message(RecordDict(), between, nodes[0], "")])
                grid.pull_messages(ids)

    client = apps.message_client if number else unnumbered_client
    ObservedServerApp(app, tmp_path / "record", view=view)(LocalGrid(client, NODES, drop), context())
    return Record(tmp_path / "record")


unnumbered_client = ClientApp()


@unnumbered_client.train()
def _train_without_number(message: Message, ctx: Context) -> Message:
    return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)


@unnumbered_client.query()
@apps.message_client.query()
def _query(message: Message, ctx: Context) -> Message:
    return Message(RecordDict(), reply_to=message)


def test_a_server_that_numbers_nothing_still_has_rounds(tmp_path):
    silent = lambda message, index: "silent" if index == 2 else None  # noqa: E731
    record = push_and_pull(tmp_path, 5, silent, number=False)
    assert [item.number for item in record] == [1, 2, 3, 4, 5]
    assert [len(item.participants) for item in record] == [NODES - 1] * 5


@pytest.mark.parametrize("options", [{"between": "query"}, {"chunks": 2}])
def test_a_query_in_between_or_a_round_in_parts_ends_no_round(options, tmp_path):
    record = push_and_pull(tmp_path, 3, **options)
    assert [(item.number, len(item.participants)) for item in record] == [(1, NODES), (2, NODES), (3, NODES)]


def test_a_client_that_cannot_evaluate_fails_over_the_bridge_as_in_the_legacy_api(tmp_path):
    class TrainOnly(apps.TrainingClient):
        evaluate = NumPyClient.evaluate

    client = ClientApp(
        client_fn=lambda context: TrainOnly(context.node_config["partition-id"]).to_client(),
        mods=[numpy_client_bridge],
    )
    results: dict = {}
    apps.message_server(FedAvg, 2, results)(LocalGrid(client, NODES), context())
    assert results["final"]


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_count_under_the_strategys_own_key_is_the_example_count(wrapped, tmp_path):
    client = ClientApp()

    @client.train()
    def train(message: Message, ctx: Context) -> Message:
        metrics = MetricRecord({"patients": 10 + ctx.node_config["partition-id"], "num-examples": 999})
        arrays = ArrayRecord(
            {name: Array(np.asarray(item.numpy() + 1)) for name, item in message.content["arrays"].items()}
        )
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    strategy = FedAvg(weighted_by_key="patients", fraction_evaluate=0.0)
    if wrapped:
        run_unobserved(dp)
        strategy = DifferentialPrivacyServerSideFixedClipping(strategy, 0.5, 0.2, NODES)
    app = apps.message_server(lambda: ObservedStrategy(strategy, tmp_path / "record"), 1, {})
    app(LocalGrid(client, NODES), context())
    (only,) = Record(tmp_path / "record")
    assert sorted(seen.num_examples for seen in only.observations) == [10, 11, 12, 13, 14]
    assert {seen.count_key for seen in only.observations} == {"patients"}
    assert all(seen.metrics == {"num-examples": 999} for seen in only.observations)


def test_a_flower_that_is_newer_than_was_measured_is_warned_of(tmp_path, monkeypatch, caplog):
    for version, warns in (("1.23.0", False), (f"{NEWEST[0]}.{NEWEST[1]}.9", False), ("1.999.0.dev1", True)):
        monkeypatch.setattr(importlib.metadata, "version", lambda name, version=version: version)
        caplog.clear()
        run_message(FedAvg, "strategy", tmp_path / version, rounds=1)
        assert ("is newer than" in caplog.text) == warns
        assert Record(tmp_path / version).manifest["versions"]["flwr"] == version
