"""What a Grid does not show is noticed while a ServerApp runs: SecAgg+, and by what clients are weighted."""

import random
import re

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.client.mod import secagg_mod, secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.server import LegacyContext, ServerConfig
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow, SecAggWorkflow
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from fedattack.observe import ObservedLegacyStrategy, ObservedServerApp, ObservedStrategy
from fedattack.record import Record, check_record
from tests.observe import apps
from tests.observe.test_observers import NODES, context, run_workflow
from tests.worlds.local_grid import FIRST_NODE, LocalGrid


def secured(workflow, strategy=None, rounds=2) -> ServerApp:
    """An app in whose rounds `workflow(number)` does the training."""
    app = ServerApp()

    @app.main()
    def main(grid, ctx):
        legacy = LegacyContext(
            context=ctx, config=ServerConfig(num_rounds=rounds), strategy=strategy or apps.legacy_fedavg({})
        )
        numbers = iter(range(1, rounds + 1))
        DefaultWorkflow(fit_workflow=lambda *words: workflow(next(numbers))(*words))(grid, legacy)

    return app


def plus(number):
    return SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2)


def run(app, mod=secaggplus_mod, drop=lambda message, index: None) -> None:
    random.seed(3)
    app(LocalGrid(ClientApp(client_fn=apps.client_fn, mods=[mod]), NODES, drop), context())


@pytest.mark.parametrize(
    ("workflow", "mod"), [(plus, secaggplus_mod), (lambda number: SecAggWorkflow(0.5), secagg_mod)], ids=["plus", "all"]
)
def test_sums_are_recorded_as_from_the_strategy(workflow, mod, tmp_path):
    run(ObservedServerApp(secured(workflow), tmp_path / "outside"), mod)
    record = Record(tmp_path / "outside")
    assert check_record(tmp_path / "outside").whole
    strategy = ObservedLegacyStrategy(apps.legacy_fedavg({}), tmp_path / "inside", view="aggregate")
    run_workflow(strategy, workflow(1), ClientApp(client_fn=apps.client_fn, mods=[mod]), 2, lambda *_: None)
    strategy.close()
    same = Record(tmp_path / "inside")
    assert (record.view, record.manifest["aggregation"]) == (same.view, same.manifest["aggregation"])
    assert record.parameters == same.parameters
    for ours, theirs in zip(record, same, strict=True):
        assert ours.number == theirs.number
        assert [vars(seen)["arrays"] for seen in ours.observations] == [None] * NODES
        counts = [{seen.node: seen.num_examples for seen in each.observations} for each in (ours, theirs)]
        assert counts[0] == counts[1]
        for name, array in ours.aggregate.items():
            # SecAgg+ quantises by chance.
            np.testing.assert_allclose(array, theirs.aggregate[name], atol=1e-3)
    for name, array in record.final.items():
        np.testing.assert_allclose(array, record.rounds[-1].aggregate[name])


def test_the_run_ends_in_the_same_model_bit_for_bit(tmp_path):
    finals = []
    for observe in (lambda app: app, lambda app: ObservedServerApp(app, tmp_path / "record")):
        results: dict = {}
        np.random.seed(3)  # noqa: NPY002 - by which SecAgg+ quantises
        run(observe(secured(plus, apps.legacy_fedavg(results))))
        finals.append(results["final"].tensors)
    assert finals[0] == finals[1]


def test_who_stays_away_and_a_halted_round_are_recorded(tmp_path):
    def drop(message, index):
        told = message.content.config_records.get("secaggplus_configs", {})
        return "fail" if told.get("stage") == "setup" and message.metadata.group_id == "2" and index < 4 else None

    run(ObservedServerApp(secured(plus, rounds=3), tmp_path / "record"), drop=drop)
    record = Record(tmp_path / "record")
    assert [len(item.participants) for item in record] == [NODES, 0, NODES]
    assert [item.aggregate is None for item in record] == [False, True, False]
    assert record.status == "complete"


def test_the_project_is_as_before_when_the_run_is_over(tmp_path):
    before = SecAggPlusWorkflow.__call__, Strategy.start

    def breaks(number):
        raise KeyError("the project's own")

    with pytest.raises(KeyError):
        run(ObservedServerApp(secured(breaks), tmp_path / "record"))
    assert (SecAggPlusWorkflow.__call__, Strategy.start) == before


@pytest.mark.parametrize(
    ("options", "workflow", "message"),
    [
        ({"view": "individual"}, plus, "these are SecAgg\\+ messages, whose arrays are masked"),
        ({}, lambda number: plus(1) if number == 2 else DefaultWorkflow().fit_workflow, "SecAgg\\+ began after rounds"),
        ({"clients": 0.5}, plus, "has no single client's reply to leave out"),
    ],
)
def test_what_cannot_be_recorded_as_sums_ends_the_recording_by_name(options, workflow, message, tmp_path, caplog):
    """And the run goes on."""
    results: dict = {}
    app = secured(workflow, apps.legacy_fedavg(results))
    client = ClientApp(client_fn=apps.client_fn)
    masked = ClientApp(client_fn=apps.client_fn, mods=[secaggplus_mod])

    def either(received, ctx):
        secure = any(key.startswith("secaggplus") for key in received.content.config_records)
        return (masked if secure else client)(received, ctx)

    ObservedServerApp(app, tmp_path / "record", **options)(LocalGrid(either, NODES), context())
    assert results["final"] is not None
    record = Record(tmp_path / "record", thinned=True)
    assert record.status == "cut short"
    assert re.search(message, record.manifest["error"]), record.manifest["error"]


def test_an_app_that_observes_itself_under_secagg_is_observed_from_outside_too(tmp_path):
    own = ObservedLegacyStrategy(apps.legacy_fedavg({}), tmp_path / "own", view="aggregate")
    run(ObservedServerApp(secured(plus, own), tmp_path / "outside"))
    own.close()
    for name in ("own", "outside"):
        record = Record(tmp_path / name)
        assert (record.view, len(record), record.status) == ("aggregate", 2, "complete")


patients = ClientApp()


@patients.train()
def _train(message: Message, ctx) -> Message:
    metrics = MetricRecord({"patients": 7 + ctx.node_config["partition-id"], "num-examples": 1})
    return Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)


def test_counts_under_a_name_of_the_apps_own_are_read_at_the_grid_too(tmp_path):
    app = apps.message_server(lambda: FedAvg(weighted_by_key="patients", fraction_evaluate=0.0), 1, {})
    ObservedServerApp(app, tmp_path / "record")(LocalGrid(patients, NODES), context())
    (item,) = Record(tmp_path / "record")
    assert {seen.node: seen.num_examples for seen in item.observations} == {
        str(FIRST_NODE + index): 7 + index for index in range(NODES)
    }


def exchange(grid, kind, group, config) -> None:
    """Send every node a message and take its reply."""
    arrays = ArrayRecord({name: Array(array) for name, array in apps.initial_arrays().items()})
    content = RecordDict({"arrays": arrays, "config": ConfigRecord(config)})
    grid.send_and_receive([grid.create_message(content, kind, node, group) for node in grid.get_node_ids()])


def served(exchanges) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid, ctx):
        for words in exchanges:
            exchange(grid, *words)

    return app


echo = ClientApp()
for _register in (echo.train(), echo.train("warmup"), echo.query()):

    @_register
    def _echo(message: Message, ctx) -> Message:
        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)


@pytest.mark.parametrize("group", ["", "1", "autumn", "2026"])
def test_groups_that_number_no_rounds_do_not_mix_them(group, tmp_path):
    ObservedServerApp(served([("train", group, {})] * 4), tmp_path / "record")(LocalGrid(echo, NODES), context())
    record = Record(tmp_path / "record")
    assert [len(item.participants) for item in record] == [NODES] * 4
    numbers = [item.number for item in record]
    assert numbers == list(range(numbers[0], numbers[0] + 4))


def test_a_strategys_own_number_counts_where_it_sends_none(tmp_path):
    class Grouped(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            content = RecordDict({"arrays": arrays})
            return [grid.create_message(content, "train", node, "spring") for node in grid.get_node_ids()]

    app = apps.message_server(
        lambda: ObservedStrategy(Grouped(fraction_evaluate=0.0), tmp_path / "record"), 3, results := {}
    )
    app(LocalGrid(patients, NODES), context())
    assert results["final"]
    assert [item.number for item in Record(tmp_path / "record")] == [1, 2, 3]


def test_several_kinds_of_training_in_one_round_are_refused_by_name(tmp_path):
    kinds = [("train.warmup", "", {"server-round": 1}), ("train", "", {"server-round": 1})]
    ObservedServerApp(served(kinds), tmp_path / "record")(LocalGrid(echo, NODES), context())
    record = Record(tmp_path / "record")
    assert (record.status, len(record)) == ("cut short", 0)
    assert (
        "round 1: a node was sent both train.warmup and train; a record holds one exchange" in record.manifest["error"]
    )


def test_kinds_of_training_in_rounds_of_their_own_are_recorded(tmp_path):
    kinds = [("train.warmup", "", {"server-round": 1}), ("query", "", {}), ("train", "", {"server-round": 2})]
    ObservedServerApp(served(kinds), tmp_path / "record")(LocalGrid(echo, NODES), context())
    record = Record(tmp_path / "record")
    assert [(item.number, len(item.participants)) for item in record] == [(1, NODES), (2, NODES)]
