"""Whatever passes a server beside training is recorded, or named as left out."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from pydantic import TypeAdapter, ValidationError

from fedattack.observe import ObservedServerApp, _recorder
from fedattack.record import Exchange, Record, RecordWriter, check_record, project_record
from fedattack.record.others import MAX_KINDS, MAX_NAMES, MAX_NUMBERS, MAX_OTHERS, Others, are_kept
from fedattack.record.schema import OthersEntry
from tests.observe import apps
from tests.observe.test_observers import NODES, context, run_message
from tests.worlds.local_grid import FIRST_NODE, LocalGrid

client = ClientApp()


def arrays(*shape) -> ArrayRecord:
    return ArrayRecord({"values": Array(np.ones(shape, np.float32))})


@client.query("forward")
def forward(message: Message, context: Context) -> Message:
    content = {"embedding": arrays(200, 4), "metrics": MetricRecord({"rows": 200, "losses": [0.5, 0.25]})}
    return Message(RecordDict(content), reply_to=message)


@client.train("backward")
def backward(message: Message, context: Context) -> Message:
    return Message(RecordDict(), reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    part = context.node_config["partition-id"]
    metrics = {"first": MetricRecord({"loss": 0.5 + part}), "second": MetricRecord({"loss": -1.0})}
    site = ConfigRecord({"site": f"hospital-{part}"})
    return Message(RecordDict({**metrics, "config": site}), reply_to=message)


def run(main, out, made=client, **options) -> Record:
    server = ServerApp()
    server.main()(main)
    ObservedServerApp(server, out, **options)(LocalGrid(made, 2), context())
    return Record(out)


def ask(grid, kind: str, content=dict, nodes=2) -> list[Message]:
    asked = [Message(RecordDict(content()), FIRST_NODE + node, kind, group_id="1") for node in range(nodes)]
    return list(grid.send_and_receive(asked))


def test_replies_to_queries_are_named_and_what_they_hold_in_plaintext_is_recorded(tmp_path):
    def main(grid, context):
        ask(grid, "query.forward", lambda: {"config": ConfigRecord({"batch": 3})})
        ask(grid, "train.backward", lambda: {"gradient": arrays(200, 4)})
        ask(grid, "query.forward")

    record = run(main, tmp_path / "record")
    report = check_record(tmp_path / "record")
    assert report.whole
    assert not report.notes
    nodes = [str(FIRST_NODE), str(FIRST_NODE + 1)]
    told = [
        (others.type, others.way, [*others.nodes], dict(others.metrics), [*others.arrays], others.line)
        for others in record.others
    ]
    plain = {"rows": 200, "losses": [0.5, 0.25]}
    assert told == [
        ("query.forward", "sent", nodes, {"batch": 3}, [], 0),
        # Arrays differ from reply to reply. The round of training goes on until the server turns to another one.
        *(("query.forward", "reply", [node], plain, ["embedding.values"], 0) for node in nodes * 2),
    ]
    for others in record.others:
        assert [array.shape for array in others.arrays.values()] == [(200, 4)] * len(others.arrays)
    assert [others.nodes for others in record.without(nodes[:1]).others] == [(nodes[1],)] * 3
    assert not [*record.without(nodes).others]


def test_an_app_of_queries_alone_says_what_passed(tmp_path):
    def main(grid, context):
        ask(grid, "query.forward", lambda: {"gradient": arrays(3)})

    record = run(main, tmp_path / "record")
    assert not len(record)
    assert not record.gaps
    assert [others.metrics["rows"] for others in record.others if others.metrics] == [200, 200]
    ways = [(others.way, name, array.shape) for others in record.others for name, array in others.arrays.items()]
    assert sorted(ways) == [("reply", "embedding.values", (200, 4))] * 2 + [("sent", "gradient.values", (3,))] * 2


def test_arrays_beside_training_are_kept_bit_for_bit_up_to_a_bound(tmp_path, monkeypatch):
    draw = np.random.default_rng(0)
    kept = {"half": draw.normal(size=(3, 2)).astype(np.float16), "big": np.arange(3, dtype=">i4"), "one": np.float64(2)}
    kept = {name: np.asarray(array) for name, array in kept.items()}
    others = [Others("query", "reply", ("a",), arrays=kept)]
    writer = RecordWriter(tmp_path / "record")
    writer.write(Exchange(1, {"w": np.zeros(2)}, [], others=others))
    writer.close()
    (read,) = Record(tmp_path / "record").others
    for name, array in kept.items():
        np.testing.assert_array_equal(read.arrays[name], array)
        assert (read.arrays[name].shape, read.arrays[name].dtype.name) == (array.shape, array.dtype.name)
    assert are_kept(kept)
    assert not are_kept({"x": np.zeros(MAX_NUMBERS + 1)})
    assert not are_kept({"x": np.array(["text"])})
    assert not are_kept({str(index): np.zeros(1) for index in range(MAX_NAMES + 1)})
    monkeypatch.setattr(_recorder, "MAX_ARRAYS", 6_000)

    def main(grid, context):
        ask(grid, "query.forward")

    # Each of both replies takes 4,400 characters and more.
    record = run(main, tmp_path / "bounded")
    assert len([others for others in record.others if others.arrays]) == 1
    assert record.gaps == ["1 query.forward reply with arrays embedding.values (200, 4) is not in this record"]


@pytest.mark.parametrize(
    "arrays",
    [
        {"text": np.array(["a", "bc"])},
        {"objects": np.array([{}, None], dtype=object)},
        {"large": np.zeros(MAX_NUMBERS + 1)},
        {str(index): np.zeros(1) for index in range(MAX_NAMES + 1)},
        dict.fromkeys(map(str, range(10**6)), np.zeros(1)),
    ],
    ids=["text", "objects", "large", "many", "a million"],
)
def test_arrays_that_are_not_kept_are_named_also_if_they_come_first(arrays, tmp_path):
    recorder = _recorder.Recorder(tmp_path / "record", view="individual")
    recorder.open()
    for of_message in (arrays, {"empty": np.zeros((0, 3), np.float32)}):
        recorder.note(Others("evaluate", "reply", ("a",), {"loss": 1.0}, arrays=of_message))
    recorder.close()
    record = Record(tmp_path / "record")
    assert record.status == "complete"
    assert [[*others.arrays] for others in record.others] == [[], ["empty"]]
    (gap,) = record.gaps
    assert gap.startswith(f"1 evaluate reply with arrays {next(iter(arrays))}")
    assert len(gap) < 1_000


@pytest.mark.parametrize("change", [{"shape": [4]}, {"base64": "AAAA"}, {"dtype": "float64"}, {"dtype": "object"}])
def test_an_array_beside_training_that_does_not_fit_its_shape_is_refused(change):
    form = TypeAdapter(OthersEntry)
    entry = Others("query", "reply", ("a",), arrays={"x": np.zeros(3, np.float32)}).to_entry()
    assert form.validate_python(entry) == entry
    entry["arrays"][0] |= change
    with pytest.raises(ValidationError):
        form.validate_python(entry)


def test_metrics_of_one_name_in_several_records_are_all_there(tmp_path):
    def main(grid, context):
        ask(grid, "evaluate")

    record = run(main, tmp_path / "record")
    first, second = (dict(others.metrics) for others in record.others)
    assert first == {"loss": 0.5, "second.loss": -1.0, "site": "hospital-0"}
    assert second["site"] == "hospital-1"
    assert not record.gaps


@pytest.mark.parametrize("observer", ["grid", "strategy"])
def test_evaluations_are_recorded_and_their_model_is_the_next_one(observer, tmp_path):
    run_message(FedAvg, observer, tmp_path / "record", rounds=2)
    record = Record(tmp_path / "record")
    assert check_record(tmp_path / "record").whole
    replies = [others for others in record.others if others.way == "reply"]
    assert [(len(others.nodes), dict(others.metrics), others.line) for others in replies] == [
        (NODES, {"num-examples": 5, "loss": 1.0}, 1),
        (NODES, {"num-examples": 5, "loss": 1.0}, 2),
    ]


class OtherModel(FedAvg):
    """Evaluates another model than the one that it trains."""

    def configure_evaluate(self, server_round, arrays, config, grid):
        other = {name: Array(np.asarray(array.numpy() + 1)) for name, array in arrays.items()}
        return super().configure_evaluate(server_round, ArrayRecord(other), config, grid)


@pytest.mark.parametrize("observer", ["grid", "strategy"])
def test_another_model_that_is_sent_for_evaluation_is_named(observer, tmp_path):
    run_message(OtherModel, observer, tmp_path / "record", rounds=2, drop=lambda message, index: None)
    gaps = Record(tmp_path / "record").gaps
    # A Grid takes the last model that is evaluated for the one that the run ended in.
    sent = {"grid": 5, "strategy": 10}[observer]
    assert [gap.partition(" with arrays arrays.layer.weight (3, 2)")[0] for gap in gaps] == [
        f"{sent} evaluate messages to clients"
    ]


def test_a_config_of_ones_own_is_recorded(tmp_path):
    def main(grid, context):
        sent = []
        for node in range(2):
            content = RecordDict({"arrays": arrays(3), "config": ConfigRecord({"server-round": 1, "site": f"s{node}"})})
            sent.append(Message(content, FIRST_NODE + node, "train.backward", group_id="1"))
        list(grid.send_and_receive(sent))

    record = run(main, tmp_path / "record")
    assert record.rounds[0].config["site"] == "s0"
    assert [dict(others.metrics)["site"] for others in record.others] == ["s1"]


def test_what_is_beyond_the_limits_is_named_alone(tmp_path):
    large = ClientApp()

    @large.query()
    def query(message: Message, context: Context) -> Message:
        return Message(RecordDict({"c": ConfigRecord({"text": "x" * (MAX_OTHERS // 8)})}), reply_to=message)

    def main(grid, context):
        for _ in range(6):
            ask(grid, "query")

    record = run(main, tmp_path / "record", large)
    # Alike replies are kept once, and their nodes are listed.
    kept = sum(len(others.nodes) for others in record.others)
    assert kept + sum(entry["messages"] for entry in record.unrecorded) == 12
    assert record.gaps == [f"{12 - kept} query replies with metrics text are not in this record"]


def test_kinds_are_bounded(tmp_path):
    writer = RecordWriter(tmp_path / "record")
    for number in range(2 * MAX_KINDS):
        writer.unrecorded.count(f"query.q{number}", "reply", arrays={"a": np.zeros(3)})
    writer.close()
    record = Record(tmp_path / "record")
    assert len(record.unrecorded) == MAX_KINDS - 1
    assert record.gaps[-1] == f"{MAX_KINDS + 2} replies of further kinds are not in this record"


def test_a_resumed_record_goes_on_counting(tmp_path):
    path, others = tmp_path / "record", Others("evaluate", "reply", ("a",), {"loss": 0.5})
    writer = RecordWriter(path)
    writer.unrecorded.count("query", "reply", arrays={"a": np.zeros(3)})
    writer.close(error="stopped", others=[others])
    writer = RecordWriter(path, resume=True)
    writer.unrecorded.count("query", "reply", arrays={"a": np.zeros(3)})
    writer.write(Exchange(1, {"w": np.zeros(2)}, [], others=[Others("query", "sent", ("a",), {"x": 1})]))
    writer.close()
    record = Record(path)
    assert record.gaps == ["2 query replies with arrays a (3) are not in this record"]
    assert [others.type for others in record.rounds[0].others] == ["evaluate", "query"]
    assert not record.others_after


def test_a_projected_record_keeps_what_a_server_of_sums_sees_too(tmp_path):
    run_message(FedAvg, "grid", tmp_path / "record", rounds=2, drop=lambda message, index: None)
    record = Record(tmp_path / "record")
    projected = project_record(record, tmp_path / "sums")
    assert [*projected.others] == [*record.others]


def test_a_legacy_clients_first_model_is_in_the_record(tmp_path):
    class First(apps.TrainingClient):
        def get_parameters(self, config):
            return [np.ones((3, 2), np.float32), np.zeros(3, np.float32)]

    def client_fn(context):
        return First(int(context.node_config["partition-id"])).to_client()

    strategy = apps.LegacyFedAvg(min_fit_clients=2, min_available_clients=2)
    app = apps.legacy_server(lambda: strategy, 2)
    ObservedServerApp(app, tmp_path / "record")(LocalGrid(ClientApp(client_fn=client_fn), 2), context())
    record = Record(tmp_path / "record")
    assert record.rounds[0].common["0"].tobytes() == np.ones((3, 2), np.float32).tobytes()
    assert check_record(tmp_path / "record").whole
    assert {others.type for others in record.others} >= {"evaluate"}
