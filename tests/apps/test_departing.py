"""An app with an active server: what clients are sent in the first round, and what the app's strategy gets back."""

import json
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow

from fedattack.apps.app import App
from fedattack.apps.departing import DepartingGrid, DepartingServerApp, Plan, _departing_from_sums
from fedattack.apps.outside import wrap_app
from fedattack.attacks import Knowledge, ModelKnowledge, Targets
from fedattack.base.errors import ConfigError, RunError
from fedattack.learning.departures import FirstLayers, Fishing, Imprint
from fedattack.observe import ObservedServerApp
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.witness import sources
from tests.apps.projects import LEGACY, SECAGG, fedattack, findings_of
from tests.witness.apps import load
from tests.worlds.local_grid import LocalGrid

INPUTS, NEURONS, CLASSES = 6, 16, 3
NAMES = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")
MLP = ModelKnowledge("mlp", (INPUTS,), CLASSES, hidden=NEURONS)
EXAMPLES = np.random.default_rng(0).random((30, INPUTS), dtype=np.float32)
IMPRINT = Plan(NAMES, Imprint(FirstLayers(*NAMES[:3]), EXAMPLES, seed=3))


def model(seed: int = 1) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    shapes = ((NEURONS, INPUTS), (NEURONS,), (CLASSES, NEURONS), (CLASSES,))
    return [draw.normal(size=shape).astype(np.float32) for shape in shapes]


def knowing(known: ModelKnowledge | None, auxiliary: np.ndarray | None) -> Knowledge:
    targets = None if auxiliary is None else Targets(auxiliary, np.zeros(len(auxiliary), np.int64))
    return Knowledge(model=known, auxiliary=targets)


def written(tmp_path, arrays: list[np.ndarray]) -> Record:
    named = {str(place): array for place, array in enumerate(arrays)}
    writer = RecordWriter(tmp_path / "record")
    writer.write(Exchange(1, named, [Reply("1", "ok", named, 5)]))
    writer.close(final=named)
    return Record(tmp_path / "record")


@pytest.mark.parametrize("server", ["imprint", "fishing"])
def test_a_plan_is_the_same_after_it_was_written(tmp_path, server):
    plan = Plan.of(server, written(tmp_path, model()), knowing(MLP, EXAMPLES), seed=4)
    plan.write(tmp_path / "plan")
    again = Plan.read(tmp_path / "plan")
    assert again.names == plan.names == NAMES
    for one, other in zip(again.depart(model(), 1, 2), plan.depart(model(), 1, 2), strict=True):
        assert one.dtype == np.float32
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("server", "known", "auxiliary", "arrays", "message"),
    [
        ("imprint", None, EXAMPLES, model(), "needs a model that can be built"),
        ("imprint", MLP, None, model(), "needs its own examples.*--hold-out 0.1"),
        ("imprint", MLP, EXAMPLES, model()[:2], "needs clients that are sent the whole model"),
        ("imprint", replace(MLP, spec="linear"), EXAMPLES, model()[2:], "needs clients that are sent the whole model"),
        ("fishing", replace(MLP, loss="mse"), EXAMPLES, model(), "needs a classifier"),
    ],
)
def test_what_the_app_does_not_allow_is_refused_by_name(tmp_path, server, known, auxiliary, arrays, message):
    with pytest.raises(ConfigError, match=f"--server {server}: it {message}"):
        Plan.of(server, written(tmp_path, arrays), knowing(known, auxiliary), seed=0)


def sending(arrays: list[np.ndarray], node: int, group: str, kind: str = "train") -> Message:
    return Message(
        RecordDict({"arrays": ArrayRecord(arrays), "config": ConfigRecord({"lr": 1.0})}), node, kind, group_id=group
    )


class Clients(LocalGrid):
    """Answers by what `reply` makes of the arrays that come; keeps these."""

    def __init__(self, reply, nodes: int = 2):
        super().__init__(self._train, nodes, first=1)
        self.came: list[list[np.ndarray]] = []
        self._reply = reply

    def _train(self, message: Message, context: Context) -> Message:
        arrays = [array.numpy() for array in message.content.array_records["arrays"].values()]
        self.came.append(arrays)
        assert message.content.config_records["config"] == {"lr": 1.0}
        return Message(RecordDict({"arrays": ArrayRecord(self._reply(arrays))}), reply_to=message)


def weights(arrays):
    return [array + np.float32(0.01) for array in arrays]


def exchanged(grid, arrays, nodes, group, kind="train"):
    replies = grid.send_and_receive([sending(arrays, node, group, kind) for node in nodes])
    return [[array.numpy() for array in reply.content.array_records["arrays"].values()] for reply in replies]


def equal(one, other) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_the_first_round_departs_and_the_strategy_gets_its_own_model_back():
    clients = Clients(weights)
    grid = DepartingGrid(clients, IMPRINT)
    for reply in exchanged(grid, model(), (1, 2), "1"):
        assert equal(reply, model())
    assert all(equal(came, IMPRINT.depart(model())) for came in clients.came)
    for group, again in (("1", model(2)), ("2", model(3))):
        for reply in exchanged(grid, again, (1, 2), group):
            assert equal(reply, weights(again))
    assert len(clients.came) == 6


def test_rounds_are_told_by_their_groups_and_evaluations_are_left_alone():
    clients = Clients(weights)
    grid = DepartingGrid(clients, IMPRINT)
    assert equal(exchanged(grid, model(), (1,), "", "evaluate")[0], weights(model()))
    assert equal(exchanged(grid, model(), (1,), "1")[0], model())
    # Of the second round, though this node was not asked yet.
    assert equal(exchanged(grid, model(), (2,), "2")[0], weights(model()))


def test_of_differences_the_strategy_gets_none():
    grid = DepartingGrid(Clients(lambda arrays: [0.01 * np.ones_like(array) for array in arrays]), IMPRINT)
    ids = list(grid.push_messages([sending(model(), 1, "1")]))
    (reply,) = grid.pull_messages(ids)
    assert not any(array.numpy().any() for array in reply.content.array_records["arrays"].values())


def test_replies_that_are_no_model_end_the_run():
    grid = DepartingGrid(Clients(lambda arrays: [*arrays, *arrays]), IMPRINT)
    with pytest.raises(RunError, match="clients reply with 8 arrays to a model of 4"):
        exchanged(grid, model(), (1,), "1")


def test_behind_sums_each_client_is_sent_neurons_of_its_own(monkeypatch):
    class Strategy(FedAvg):
        def configure_fit(self, server_round, parameters, client_manager):
            return [(name, FitIns(parameters, {})) for name in ("a", "b")]

        def aggregate_fit(self, *_):
            return ndarrays_to_parameters(model(9)), {"mean": 1.0}

    sent = []

    def call(workflow, grid, context):
        sent.append(context.strategy.configure_fit(context.number, context.parameters, None))
        context.parameters, _ = context.strategy.aggregate_fit(context.number, [], [])

    monkeypatch.setattr(SecAggPlusWorkflow, "__call__", call)
    context = type("LegacyContext", (), {})()
    context.strategy, context.parameters = Strategy(), ndarrays_to_parameters(model())
    workflow = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2)
    with _departing_from_sums(IMPRINT):
        for context.number in (1, 2):
            workflow(None, context)
            if context.number == 1:
                assert equal(parameters_to_ndarrays(context.parameters), model())
    first = [parameters_to_ndarrays(asked.parameters) for _, asked in sent[0]]
    assert [equal(one, IMPRINT.depart(model(), place, 2)) for place, one in enumerate(first)] == [True, True]
    alive = [one[0].any(axis=1) for one in first]
    assert not (alive[0] & alive[1]).any()
    assert all(equal(parameters_to_ndarrays(asked.parameters), model()) for _, asked in sent[1])
    assert equal(parameters_to_ndarrays(context.parameters), model(9))
    assert SecAggPlusWorkflow.__call__ is call


def test_the_copy_has_the_plan(tmp_path):
    project = LEGACY.copy(tmp_path)
    wrap_app(project, tmp_path / "copy", tmp_path / "record", {"server": "imprint"}, plan=tmp_path / "plan")
    script = (tmp_path / "copy" / "fedattack_observed.py").read_text()
    wrapped = f"DepartingServerApp(app, {str(tmp_path / 'plan')!r})"
    assert f"app = ObservedServerApp({wrapped}, {str(tmp_path / 'record')!r}, server='imprint')" in script


def test_only_servers_of_apps_are_taken(tmp_path):
    with pytest.raises(ConfigError, match="--server isolating: expected imprint or fishing"):
        App(tmp_path, server="isolating")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("quickstart", "--server", "imprint"), "for a preset say --set server=imprint"),
        (("APP", "--server", "imprint", "--on", "superlink"), "--server needs an app's folder and --on simulation"),
        (("--server", "imprint", "--", "flwr", "run", "APP", "--stream"), "--server needs an app's folder and --on"),
        (("APP", "--server", "passive"), "expected imprint or fishing"),
    ],
)
def test_nobody_elses_clients_are_attacked(call, tmp_path, words, message):
    app = str(LEGACY.copy(tmp_path))
    words = ["--out", str(tmp_path / "out"), *(app if word == "APP" else word for word in words)]
    code, _, err = call("audit", *words)
    assert code == 2
    assert message in " ".join(err.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_sums_of_a_real_run_have_what_each_client_was_sent(tmp_path):
    plan = Plan(("fc.weight", "fc.bias"), Fishing("fc.weight", "fc.bias", first=3))
    plan.write(tmp_path / "plan")
    grid = LocalGrid(load(SECAGG, "client_app").app, 4)
    grid.configure(SECAGG.config)
    context = Context(run_id=7, node_id=1, node_config={}, state=RecordDict(), run_config=dict(SECAGG.config))
    server = DepartingServerApp(load(SECAGG, "server_app").app, tmp_path / "plan")
    ObservedServerApp(server, tmp_path / "record", server="fishing")(grid, context)
    sources.remove()
    record = Record(tmp_path / "record")
    assert (record.view, record.server, record.status, len(record)) == ("aggregate", "fishing", "complete", 3)
    first, second, _ = record
    large = [name for name, array in first.common.items() if array.ndim == 1]
    assert sorted(first.common[large[0]].tolist()) == [0.0, *[1000.0] * 9]
    # The strategy goes on with its own model, which was in no message of the first round.
    assert np.abs(second.common[large[0]]).max() < 1


# One step of plain gradient descent an epoch.
PLAIN = ("--set", "batch-size=1000", "--set", "momentum=0")


@pytest.mark.long
def test_an_app_is_audited_with_an_imprinting_server(tmp_path):
    project = LEGACY.copy(tmp_path)
    task = project / LEGACY.package / "task.py"
    task.write_text(task.read_text().replace("48", "256"))
    found = {}
    for words in ([], ["--server", "imprint"]):
        out = tmp_path / f"out{len(words)}"
        fedattack("audit", str(project), "--out", str(out), "--supernodes", "4", *PLAIN, *words, cwd=tmp_path)
        found[len(words)] = findings_of(out, project)["exact.recovered"]
    page = json.loads((tmp_path / "out2" / "run.json").read_text())
    assert page["threat_model"]["server"].startswith("active")
    assert page["setting"]["departures"] == 1
    assert found[2]["verdict"] == "leak"
    assert found[2]["value"] > found[0]["value"] + 0.3
    assert len(Record(tmp_path / "out2" / "record")) == 3
