"""Around Flower's apps: mods, errors, several clients in one process, the server, and a real run."""

import stat
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, message_size_mod
from torch import nn
from torch.nn import functional as F  # noqa: N812

from fedattack.runs.simulator import Simulator
from fedattack.witness import (
    WITNESS_FOLDER,
    WitnessedClientApp,
    WitnessMod,
    flower,
    read_witnesses,
    watching_server,
)
from tests.apps.projects import CLIENTS, MESSAGE_API, ROOT
from tests.witness.apps import hashes_of, load, seen
from tests.worlds.local_grid import FIRST_NODE, LocalGrid

DATA = [torch.rand(12 + index, 5, generator=torch.Generator().manual_seed(index)) for index in range(3)]


def make_app(crashes=lambda call: False, mods=None):
    app, calls = ClientApp(mods=mods or []), []

    @app.train()
    def train(message: Message, context: Context) -> Message:
        calls.append(context.node_id)
        x = DATA[context.node_config["partition-id"]]
        model = nn.Linear(5, 3)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        F.cross_entropy(model(x), torch.arange(len(x)) % 3).backward()
        optimizer.step()
        if crashes(len(calls)):
            raise ValueError("the disk is full")
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
        return Message(RecordDict(content), reply_to=message)

    return app


def call_all(app, nodes=3, rounds=1, kind="train"):
    """Send a model to all nodes; returns the replies."""
    grid = LocalGrid(app, nodes)
    arrays = ArrayRecord(nn.Linear(5, 3).state_dict())
    replies = []
    for _ in range(rounds):
        for node in grid.get_node_ids():
            message = Message(RecordDict({"arrays": arrays}), node, kind)
            replies += grid.send_and_receive([message])
    return replies


def evaluating(answer):
    """An app that evaluates, and replies what ``answer`` makes of outputs and labels."""
    app = ClientApp()

    @app.evaluate()
    def evaluate(message, context):
        x = DATA[context.node_config["partition-id"]]
        labels = torch.arange(len(x)) * 2 % 3
        model = nn.Linear(5, 3)
        with torch.no_grad():
            outputs = torch.cat([model(part) for part in x.split(4)])
            for part, own in zip(x.split(4), labels.split(4), strict=True):
                F.cross_entropy(model(part), own)
        return Message(RecordDict(answer(outputs, labels)), reply_to=message)

    return app


@pytest.mark.parametrize(
    ("answer", "is_told"),
    [
        (lambda outputs, labels: {"curve": ArrayRecord({"y": labels})}, True),
        (lambda outputs, labels: {"curve": ArrayRecord({"y": labels.flip(0)})}, True),
        (lambda outputs, labels: {"m": MetricRecord({"y": labels.tolist()})}, True),
        (lambda outputs, labels: {"m": MetricRecord({"y": (labels + 1).tolist(), "n": len(labels)})}, False),
        (lambda outputs, labels: {"curve": ArrayRecord({"y": outputs[:, 0]})}, False),
    ],
)
def test_labels_in_replies_are_told(answer, is_told, tmp_path):
    call_all(WitnessedClientApp(evaluating(answer), tmp_path), nodes=1, kind="evaluate")
    (witness,) = read_witnesses(tmp_path)
    said = "replies to evaluate hold the label of each example that the client evaluates on, as y: the server receives"
    assert any(note.startswith(said) for note in witness.notes) == is_told


def test_clients_in_one_process_are_kept_apart_and_an_app_is_a_client_app(tmp_path):
    app = WitnessedClientApp(make_app(), tmp_path / "witness")
    assert isinstance(app, ClientApp)
    replies = call_all(app, rounds=2)
    assert all(reply.has_content() for reply in replies)
    witnesses = read_witnesses(tmp_path / "witness")
    assert [witness.node for witness in witnesses] == [str(FIRST_NODE + index) for index in range(3)]
    for index, witness in enumerate(witnesses):
        assert witness.client == str(index)
        assert seen(witness.trained) == hashes_of(DATA[index])
        assert witness.training.augmented is False
        assert not witness.notes
    assert stat.S_IMODE((tmp_path / "witness").stat().st_mode) == 0o700


def test_another_process_goes_on_where_one_stopped(tmp_path, monkeypatch):
    from fedattack.witness import node

    call_all(WitnessedClientApp(make_app(), tmp_path), nodes=1)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.npz")}
    call_all(WitnessedClientApp(make_app(), tmp_path), nodes=1)
    (first,) = read_witnesses(tmp_path)
    assert first.training.augmented is False
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.npz")}
    assert written != before
    node._served.clear()
    call_all(WitnessedClientApp(make_app(), tmp_path), nodes=1)
    # Nothing is new, so that nothing is written.
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.npz")} == written
    monkeypatch.setitem(globals(), "DATA", [DATA[1]])
    node._served.clear()
    call_all(WitnessedClientApp(make_app(), tmp_path), nodes=1)
    (later,) = read_witnesses(tmp_path)
    assert seen(later.trained) == seen(first.trained) | hashes_of(DATA[0])
    assert any("different examples in different rounds" in note for note in later.notes)


def test_a_client_that_crashes_does_so_as_without_and_trained_on_nothing(tmp_path):
    app = WitnessedClientApp(make_app(crashes=lambda call: call == 1), tmp_path)
    with pytest.raises(ValueError, match="the disk is full"):
        call_all(app, nodes=1)
    (witness,) = read_witnesses(tmp_path)
    assert witness.trained.total == 0
    assert witness.notes[0].startswith("a call ended early (ValueError), and what it did is left out")
    call_all(app, nodes=1)
    (witness,) = read_witnesses(tmp_path)
    assert seen(witness.trained) == hashes_of(DATA[0])


def test_a_call_that_cannot_be_watched_runs_as_without(tmp_path, monkeypatch):
    plain = call_all(make_app(), nodes=1)
    for name in ("known_rows", "mods_of"):
        with monkeypatch.context() as broken:
            broken.setattr(flower, name, lambda *_: 1 / 0)
            (reply,) = call_all(WitnessedClientApp(make_app(), tmp_path / name), nodes=1)
        assert reply.content["metrics"] == plain[0].content["metrics"]
        assert not (tmp_path / name).exists()


@pytest.mark.slow
def test_pytorch_is_watched_as_soon_as_it_is_imported(tmp_path):
    """Also where somebody asks before whether it is there."""
    script = """
        import importlib.util, sys
        from fedattack.witness import watch_imports
        watch_imports()
        assert "torch" not in sys.modules
        assert importlib.util.find_spec("torch") and importlib.util.find_spec("absent_module") is None
        import torch
        from torch.nn import functional
        assert functional.cross_entropy.__wrapped__
        assert not [finder for finder in sys.meta_path if "fedattack" in type(finder).__module__]
        assert "fedattack" not in repr((torch.__loader__, torch.__spec__.loader))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, cwd=ROOT)


def test_a_client_that_replies_an_error_or_never_trains(tmp_path):
    app = ClientApp()

    @app.train()
    def train(message, context):
        return Message(Error(code=7, reason="not today"), reply_to=message)

    @app.query()
    def query(message, context):
        return Message(RecordDict(), reply_to=message)

    wrapped = WitnessedClientApp(app, tmp_path)
    call_all(wrapped, nodes=1)
    call_all(wrapped, nodes=2, kind="query")
    failed, idle = read_witnesses(tmp_path)
    assert failed.notes[0].startswith("a call ended early (an error reply of code 7)")
    assert (failed.trained.total, idle.trained.total, idle.model, idle.notes) == (0, 0, None, ())


def test_mods_are_named_with_their_numbers_and_do_not_hide_the_model(tmp_path):
    mods = [LocalDpMod(1.0, 0.5, 10.0, 1e-5), message_size_mod]
    call_all(WitnessedClientApp(make_app(mods=mods), tmp_path), nodes=1)
    (witness,) = read_witnesses(tmp_path)
    assert witness.mods[0].startswith("LocalDpMod(clipping_norm=1.0, sensitivity=0.5, epsilon=10.0")
    assert witness.mods[1] == "message_size_mod"
    # What is sent is noisy; what was received tells the model.
    assert seen(witness.trained) == hashes_of(DATA[0])
    assert not witness.notes
    assert witness.model.spec == "torch.nn.modules.linear:Linear"
    assert witness.model.arguments["out_features"] == 3


def test_the_same_as_a_mod(tmp_path):
    call_all(make_app(mods=[WitnessMod(tmp_path), message_size_mod]))
    witnesses = read_witnesses(tmp_path / "run-7")
    assert [seen(witness.trained) for witness in witnesses] == [hashes_of(x) for x in DATA]
    assert [witness.mods for witness in witnesses] == [("message_size_mod",)] * 3
    assert [witness.run for witness in witnesses] == ["7"] * 3


def test_a_mod_writes_where_the_environment_says_or_not_at_all(tmp_path, monkeypatch, caplog):
    app = make_app(mods=[WitnessMod()])
    monkeypatch.delenv(WITNESS_FOLDER, raising=False)
    with caplog.at_level("INFO", "flwr"):
        (reply, again) = call_all(app, nodes=2)
    assert reply.has_content()
    assert again.has_content()
    assert caplog.text.count("FEDATTACK_WITNESS names no folder") == 1
    monkeypatch.setenv(WITNESS_FOLDER, str(tmp_path / "site"))
    call_all(app, nodes=2)
    assert [witness.client for witness in read_witnesses(tmp_path / "site" / "run-7")] == ["0", "1"]


def test_a_mod_leaves_an_app_that_is_witnessed_from_outside_to_that_witness(tmp_path):
    app = WitnessedClientApp(make_app(mods=[WitnessMod(tmp_path / "mod")]), tmp_path / "audit")
    call_all(app)
    assert [seen(witness.trained) for witness in read_witnesses(tmp_path / "audit")] == [hashes_of(x) for x in DATA]
    assert not (tmp_path / "mod").exists()


def test_another_run_is_not_mixed_into_the_folder_of_one(tmp_path, monkeypatch, caplog):
    app = WitnessedClientApp(make_app(), tmp_path)
    call_all(app, nodes=1)
    before = read_witnesses(tmp_path)[0]
    monkeypatch.setitem(globals(), "DATA", [DATA[1]])
    grid = LocalGrid(app, 1)
    (node,) = grid.get_node_ids()
    grid._contexts[node].run_id = 8
    (reply,) = grid.send_and_receive(
        [Message(RecordDict({"arrays": ArrayRecord(nn.Linear(5, 3).state_dict())}), node, "train")]
    )
    assert reply.has_content()
    assert "has witnesses of run 7; give run 8 a folder of its own" in caplog.text
    (after,) = read_witnesses(tmp_path)
    assert seen(after.trained) == seen(before.trained)


def test_what_the_server_evaluates_on_is_noted_beside_its_clients(tmp_path):
    held_out = torch.rand(9, 5)
    model = nn.Linear(5, 3)
    app = WitnessedClientApp(make_app(), tmp_path)

    def serve():
        with watching_server(tmp_path):
            with torch.no_grad():
                F.cross_entropy(model(held_out), torch.arange(9) % 3)
            call_all(app)
            raise KeyError("the server's own")

    with pytest.raises(KeyError):
        serve()
    *clients, server = read_witnesses(tmp_path)
    assert server.node == "server"
    assert seen(server.evaluated) == hashes_of(held_out)
    assert server.evaluated.counts == {0: 3, 1: 3, 2: 3}
    assert server.trained.total == 0
    assert [seen(client.trained) for client in clients] == [hashes_of(x) for x in DATA]


def test_a_folder_that_cannot_be_written_does_not_stop_the_run(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    (reply,) = call_all(WitnessedClientApp(make_app(), tmp_path / "file"), nodes=1)
    assert reply.has_content()
    assert "was not noted" in caplog.text


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(4, dtype=">i4"),
        np.float16(3.5),
        np.zeros((0, 2)),
        np.array([True, False]),
    ],
    ids=lambda array: f"{array.dtype}-{array.shape}",
)
def test_arrays_are_read_as_flower_reads_them(array):
    sent = Array(np.asarray(array))
    for _ in range(2):
        found, wanted = flower._array(sent), sent.numpy()
        assert (found.dtype, found.shape, found.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())
    # What is no such array is Flower's to read, or to refuse.
    sent.data = sent.data[:-1]
    if array.size:
        with pytest.raises(ValueError, match=r"."):
            flower._array(sent)


def test_it_is_imported_without_torch_and_scikit_learn():
    code = """
        import sys
        sys.modules["torch"] = sys.modules["sklearn"] = sys.modules["pandas"] = None
        from fedattack.witness import WitnessedClientApp, read_witnesses, trained_on
        trained_on([[1.0]], [0])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.flower
@pytest.mark.slow
def test_a_real_run_is_witnessed(tmp_path):
    project = MESSAGE_API.copy(tmp_path)
    path = project / "pytorchexample" / "client_app.py"
    path.write_text(
        path.read_text()
        + "\n\nfrom fedattack.witness import WitnessedClientApp\n\n"
        + f"app = WitnessedClientApp(app, {str(tmp_path / 'witness')!r})\n"
    )
    with Simulator(project, supernodes=CLIENTS, log=tmp_path / "flower.log") as simulator:
        assert simulator.run({}) is None
    task = load(MESSAGE_API, "task")
    witnesses = read_witnesses(tmp_path / "witness")
    assert sorted(witness.client for witness in witnesses) == [str(client) for client in range(CLIENTS)]
    for witness in witnesses:
        x, y = task.load_data(int(witness.client), CLIENTS)[0]
        assert seen(witness.trained) == hashes_of(x)
        assert sorted(witness.trained.y) == sorted(y.tolist())
        assert witness.model.spec == "pytorchexample.task:Net"
        assert (witness.training.lr, witness.training.epochs, witness.notes) == (0.1, 10.0, ())
