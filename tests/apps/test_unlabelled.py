"""Autoencoders where there is no app to ask: a line says so, and what the guide tells to write is enough."""

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.nn import functional as F  # noqa: N812

from fedattack.apps.witnessing import witness_of
from fedattack.base.errors import ConfigError
from fedattack.observe import ObservedServerApp
from fedattack.record.folder import Part, write_study
from fedattack.runs.pipeline import judge_folder
from fedattack.runs.watch import Watch
from fedattack.witness import WitnessedClientApp, evaluated_on, sources, trained_on
from tests.apps.worlds import attack_all, pose_all
from tests.worlds.local_grid import LocalGrid

CLIENTS, OWN, FEATURES = 6, 40, 20
X = torch.randn(CLIENTS, 60, FEATURES, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, FEATURES))

    def forward(self, x):
        return self.net(x)


class Scored(Net):
    """What the guide tells to write: the same arrays, and the loss in the place of the output."""

    def forward(self, x):
        return F.mse_loss(super().forward(x), x)


def client_app(states: bool) -> ClientApp:
    app = ClientApp()

    @app.train()
    def fit(message, context):
        model = Net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x = X[context.node_config["partition-id"], :OWN]
        if states:
            trained_on(x, torch.zeros(len(x), dtype=torch.int64))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(10):
            for rows in torch.randperm(OWN).split(10):
                optimizer.zero_grad()
                F.mse_loss(model(x[rows]), x[rows]).backward()
                optimizer.step()
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": OWN})}
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        x = X[context.node_config["partition-id"], OWN:]
        if states:
            evaluated_on(x, torch.zeros(len(x), dtype=torch.int64))
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": len(x), "loss": 0.0})}), reply_to=message)

    return app


def run(part: Part, *, states: bool) -> None:
    server = ServerApp()

    @server.main()
    def main(grid, context):
        torch.manual_seed(3)
        FedAvg().start(grid=grid, initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=2)

    grid = LocalGrid(WitnessedClientApp(client_app(states), witness_of(part)), CLIENTS)
    context = Context(run_id=7, node_id=1, node_config={}, state=RecordDict(), run_config={})
    try:
        ObservedServerApp(server, part.record)(grid, context)
    finally:
        sources.remove()
    write_study(part.folder, {"commands": ["fedattack audit ."], "seeds": [0]})


def test_without_the_app_a_line_says_what_to_do(tmp_path):
    part = Part(tmp_path, "")
    run(part, states=False)
    with pytest.raises(
        ConfigError, match=r"only the app itself knows it.*--model.*; or give the clients' app by --app PATH"
    ):
        pose_all([part])


@pytest.mark.slow
def test_with_a_label_of_zero_and_a_model_that_returns_its_loss_they_are_asked_about(tmp_path):
    part = Part(tmp_path, "")
    run(part, states=True)
    posed = pose_all([part], model=f"{__name__}:Scored", loss="own")
    attacked = attack_all([part], posed)
    assert attacked.scored == ("sia", "membership", "exact", "plaintext")
    findings, _ = judge_folder(tmp_path, device="cpu", watch=Watch(), trusted=attacked.trusted)
    found = {f"{finding.attack}.{finding.metric}": finding for finding in findings}
    assert found["sia.asr"].verdict == found["membership.auc"].verdict == "leak"
    assert found["sia.asr"].null["value"] == pytest.approx(1 / CLIENTS, abs=0.15)
