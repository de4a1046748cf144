"""Clients that send predictions: a positive control trains them further, by their own training, before they predict."""

import importlib
from pathlib import Path

import numpy as np
import pytest
import torch

from fedattack.apps import control as room
from fedattack.apps.app import App
from fedattack.apps.asking import Asker, Inquiry
from fedattack.apps.auditing import control_all
from fedattack.apps.player import Handler
from fedattack.apps.predicting import PredictingClient
from fedattack.apps.witnessing import witnesses_of
from fedattack.audit.control import TRAINED, Control
from fedattack.audit.finding import NO_EVIDENCE
from fedattack.base.errors import DataError
from fedattack.record import Record
from fedattack.record.folder import Part, read_study
from fedattack.runs.pipeline import choose_attacks, judge_runs
from fedattack.runs.watch import Watch
from tests.apps.worlds import attack_all, importable_app, pose_all, run_here

CLIENTS = 6

# Each client keeps its model, learns what all predict, then its own examples, and sends what it predicts.
APP = """
import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

SIZE, WIDTH, CLASSES, PUBLIC = 12, 20, 3, 60
client, server = ClientApp(), ServerApp()
public = torch.randn(PUBLIC, WIDTH, generator=torch.Generator().manual_seed(99))


def load(site):
    rng = torch.Generator().manual_seed(site)
    return torch.randn(SIZE, WIDTH, generator=rng), torch.randint(CLASSES, (SIZE,), generator=rng)


@client.train()
def train(message, context):
    x, y = load(context.node_config["partition-id"])
    torch.manual_seed(context.node_config["partition-id"])
    model = nn.Linear(WIDTH, CLASSES)
    if "model" in context.state:
        model.load_state_dict(context.state["model"].to_torch_state_dict())
    agreed = torch.tensor(message.content["arrays"]["logits"].numpy())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if agreed.any():
        for rows in torch.arange(PUBLIC).split(20):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(public[rows]), agreed[rows]).backward()
            optimizer.step()
    optimizer = torch.optim.SGD(model.parameters(), lr=context.run_config["rate"])
    for _ in range(2):
        for rows in torch.arange(SIZE).split(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    context.state["model"] = ArrayRecord(model.state_dict())
    with torch.no_grad():
        logits = model(public).numpy()
    content = {"arrays": ArrayRecord({"logits": Array(logits)}), "metrics": MetricRecord({"num-examples": SIZE})}
    return Message(RecordDict(content), reply_to=message)


@server.main()
def main(grid, context):
    first = ArrayRecord({"logits": Array(np.zeros((PUBLIC, CLASSES), dtype=np.float32))})
    FedAvg(fraction_evaluate=0.0).start(grid=grid, initial_arrays=first, num_rounds=2)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with importable_app(tmp_path_factory.mktemp("app"), "predicting_app", APP) as where:
        yield where


def attacked(folder: Path, part: Part, rate: float):
    module, config = importlib.import_module("predicting_app"), {"rate": rate}
    run_here(part, module.server, module.client, config, CLIENTS)
    app = App(folder, config, CLIENTS)
    posed = pose_all([part], app=app)
    return app, attack_all([part], posed, lambda names: choose_attacks(["sia"], {}))


def handler_of(part: Part, site: int) -> Handler:
    module = importlib.import_module("predicting_app")
    asked = next(each.asked for each in witnesses_of(part) if each.client == str(site))
    return Handler(module.client, {"rate": 0.3}, {"partition-id": site, "num-partitions": CLIENTS}, **vars(asked))


def train_by_hand(site: int, rows: list[int], passes: int) -> tuple[np.ndarray, torch.nn.Module]:
    """The obvious way, in the first round: the client's training, and as often again on these rows of its own alone."""
    module = importlib.import_module("predicting_app")
    x, y = module.load(site)
    torch.manual_seed(site)
    model = torch.nn.Linear(module.WIDTH, module.CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for turn in range(passes + 1):
        chosen = torch.arange(module.SIZE) if turn == 0 else torch.tensor(rows)
        for _ in range(2):
            for batch in torch.arange(module.SIZE).split(4):
                taken = chosen[batch % len(chosen)]
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x[taken]), y[taken]).backward()
                optimizer.step()
    with torch.no_grad():
        return model(module.public).numpy(), model


def test_a_client_is_trained_further_by_its_own_training_on_its_own_targets(tmp_path, folder, here):
    part = Part(tmp_path, "")
    attacked(folder, part, rate=0.3)
    module = importlib.import_module("predicting_app")
    x, y = module.load(2)
    reply = next(reply for reply in Record(part.record).rounds[0].observations if reply.arrays)
    received, sent = dict(reply.received), dict(reply.arrays)
    # Of one row each batch is the same, whatever the order in which targets are drawn.
    client = PredictingClient(handler_of(part, 2), x.numpy(), y.numpy())
    made = [arrays["logits"] for arrays in client.train(received, sent, [5], (1, 3), seed=0)]
    for passes, logits in zip((1, 3), made, strict=True):
        np.testing.assert_allclose(logits, train_by_hand(2, [5], passes)[0], rtol=1e-4, atol=1e-5)
    # In the second round batches of what all predict come first, which stay as they are.
    agreed = {"logits": np.full_like(sent["logits"], 0.5)}
    once, more = client.train(agreed, sent, [5], (1, 8), seed=1)
    own = np.linalg.lstsq(np.c_[module.public.numpy(), np.ones(module.PUBLIC)], more["logits"], rcond=None)[0]
    says = np.r_[x[5].numpy(), 1] @ own
    assert says.argmax() == y[5]
    assert not np.allclose(once["logits"], more["logits"])


def test_what_is_no_example_of_the_client_is_not_planted(tmp_path, folder, here):
    part = Part(tmp_path, "")
    attacked(folder, part, rate=0.3)
    reply = next(reply for reply in Record(part.record).rounds[0].observations if reply.arrays)
    received, sent = dict(reply.received), dict(reply.arrays)
    x, y = np.zeros((4, 7), np.float32), np.zeros(4, np.int64)
    client = PredictingClient(handler_of(part, 2), x, y)
    with pytest.raises(DataError, match="no step of PyTorch in the app's handler takes examples and labels like"):
        next(client.train(received, sent, [0], (1,), seed=0))
    x, y = importlib.import_module("predicting_app").load(2)
    client = PredictingClient(handler_of(part, 2), x.numpy(), y.numpy())
    with pytest.raises(DataError, match="does not send the arrays"):
        next(client.train(received, {"logits": sent["logits"][:3]}, [0], (1,), seed=0))


def test_what_changes_no_prediction_is_not_counted_as_planted(tmp_path, folder, here):
    part = Part(tmp_path / "run", "")
    app, done = attacked(folder, part, rate=0.0)
    run = done.runs[0]
    inquiry = Inquiry(part, witnesses_of(part), run.knowledge.targets, run.knowledge.sends)
    owned = {node: [index] for index, node in enumerate(Record(part.record).nodes)}
    share = Asker(app).plant_predictions(inquiry, owned, (1,), tmp_path / "planted")[1]
    # In the second round clients learn once more what all predict, which is no example.
    assert share == (CLIENTS, 2 * CLIENTS)


@pytest.mark.slow
@pytest.mark.parametrize("turned", [0, 1])
def test_of_clients_that_learn_little_what_is_planted_in_predictions_is_found(
    tmp_path, folder, here, monkeypatch, turned
):
    """And the null: where clients are trained on others' targets, nothing tells who holds an example."""
    part = Part(tmp_path, "")
    app, done = attacked(folder, part, rate=0.002)
    inquire = room._inquire

    def turn(run, witnesses):
        inquiry, owned = inquire(run, witnesses)
        nodes = [*owned]
        return inquiry, {node: owned[nodes[at - turned]] for at, node in enumerate(nodes)}

    monkeypatch.setattr(room, "_inquire", turn)
    control_all(Asker(app), done, Watch(), full=True)
    noted = Control(**read_study(part.folder)["controls"]["sia"])
    assert (noted.kind, noted.is_seen, noted.replies, noted.of) == (TRAINED, not turned, 2 * CLIENTS, 2 * CLIENTS)
    if not turned:
        findings, _ = judge_runs(done.folder, done.runs, device="cpu", watch=Watch())
        found = next(finding for finding in findings if finding.name == "sia.asr")
        assert found.verdict == NO_EVIDENCE
        assert found.reason.endswith("this attack shows a leak")


def test_after_the_time_for_controls_further_replies_stay_as_they_are(tmp_path, folder, here):
    part = Part(tmp_path / "run", "")
    app, done = attacked(folder, part, rate=0.3)
    inquiry = Inquiry(part, witnesses_of(part), done.runs[0].knowledge.targets, done.runs[0].knowledge.sends)
    nodes = Record(part.record).nodes
    owned = {node: [index] for index, node in enumerate(nodes)}
    records, share = Asker(app).plant_predictions(inquiry, owned, (1,), tmp_path / "planted", seconds=0.0)
    assert share == (1, 2 * CLIENTS)
    changed = 0
    for before, after in zip(Record(part.record).rounds, records[1].rounds, strict=True):
        for one, other in zip(before.observations, after.observations, strict=True):
            changed += not np.array_equal(one.arrays["logits"], other.arrays["logits"])
    assert changed == 1
