"""Vertical learning by mini-batches: embeddings and gradients of rows that an order, numbers or nothing tells apart."""

import importlib
import sys

import pytest

from fedattack.apps.app import App
from fedattack.apps.functions import OwnFunctions
from fedattack.audit.finding import CANNOT_TELL, LEAK
from fedattack.record.folder import Part
from fedattack.runs.pipeline import judge_folder
from fedattack.runs.watch import Watch
from tests.apps.worlds import attack_all, pose_all, run_here

PARTIES = 3

# Three parties have other columns of the same digits, and learn with the server which one is a three.
APP = """
import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from sklearn.datasets import load_digits
from torch import nn

ROWS, SIZE, COLUMNS, WIDTH, PASSES = 160, 32, 4, 5, 2
client, server = ClientApp(), ServerApp()


def table(party):
    data = load_digits()
    first = 18 + 8 * party
    x = np.column_stack([data.data[:ROWS, column] for column in (first, first + 1, first + 2, first + 3)])
    return (x / 16).astype(np.float32), (data.target[:ROWS] == 3).astype(np.int64)


def own_examples(partition, partitions):
    return table(partition)


def bottom(context):
    torch.manual_seed(context.node_config["partition-id"])
    model = nn.Linear(COLUMNS, WIDTH)
    if "model" in context.state:
        model.load_state_dict(context.state["model"].to_torch_state_dict())
    return model


def list_batches(kind, epoch):
    order = np.arange(ROWS)
    if kind != "in order":
        order = np.random.default_rng(epoch).permutation(ROWS)
    return order.reshape(-1, SIZE)


@client.query("forward")
def forward(message, context):
    party = context.node_config["partition-id"]
    asked = message.content["config"]
    rows = list_batches(context.run_config["kind"], asked["epoch"])[asked["batch"]]
    context.state["rows"] = ArrayRecord({"rows": Array(rows)})
    with torch.no_grad():
        embedding = bottom(context)(torch.from_numpy(table(party)[0][rows])).numpy()
    content = {"embedding": ArrayRecord({"values": Array(embedding)})}
    if context.run_config["kind"] == "named":
        content["who"] = MetricRecord({"ids": rows.tolist()})
    return Message(RecordDict(content), reply_to=message)


@client.train("backward")
def backward(message, context):
    model, party = bottom(context), context.node_config["partition-id"]
    rows = context.state["rows"]["rows"].numpy()
    model(torch.from_numpy(table(party)[0][rows])).backward(
        torch.from_numpy(message.content["gradient"]["values"].numpy())
    )
    torch.optim.SGD(model.parameters(), lr=0.05).step()
    context.state["model"] = ArrayRecord(model.state_dict())
    return Message(RecordDict(), reply_to=message)


@server.main()
def main(grid, context):
    torch.manual_seed(9)
    nodes = sorted(grid.get_node_ids())
    top = nn.Sequential(nn.Linear(WIDTH * len(nodes), 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(top.parameters(), 0.02)
    y = torch.from_numpy(table(0)[1]).float()
    for epoch in range(PASSES):
        for batch, rows in enumerate(list_batches(context.run_config["kind"], epoch)):
            config = ConfigRecord({"batch": batch, "epoch": epoch})
            asked = [Message(RecordDict({"config": config}), node, "query.forward") for node in nodes]
            replies = {reply.metadata.src_node_id: reply for reply in grid.send_and_receive(asked)}
            inputs = []
            for node in nodes:
                values = replies[node].content["embedding"]["values"].numpy()
                inputs.append(torch.from_numpy(values.copy()).requires_grad_())
            optimizer.zero_grad()
            outputs = top(torch.cat(inputs, 1))[:, 0]
            nn.functional.binary_cross_entropy_with_logits(outputs, y[rows.copy()]).backward()
            optimizer.step()
            back = []
            for node, value in zip(nodes, inputs):
                gradient = ArrayRecord({"values": Array(value.grad.numpy())})
                back.append(Message(RecordDict({"gradient": gradient}), node, "train.backward"))
            list(grid.send_and_receive(back))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    where = tmp_path / "app"
    where.mkdir()
    (where / "vertical_app.py").write_text(APP)
    (where / "pyproject.toml").write_text(
        '[tool.flwr.app.components]\nserverapp = "vertical_app:server"\nclientapp = "vertical_app:client"\n'
    )
    monkeypatch.syspath_prepend(str(where))
    yield where
    sys.modules.pop("vertical_app", None)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["in order", "named", "shuffled"])
def test_columns_are_told_of_mini_batches_whose_rows_are_known(kind, tmp_path, folder, here):
    (tmp_path / "run").mkdir()
    part, module = Part(tmp_path / "run", ""), importlib.import_module("vertical_app")
    run_here(part, module.server, module.client, {"kind": kind}, PARTIES)
    app = App(folder, {"kind": kind}, PARTIES)
    (posed,) = pose_all([part], app=app, functions=OwnFunctions(examples="vertical_app:own_examples"))
    attack_all([part], [posed])
    findings, _ = judge_folder(part.folder, device="cpu", watch=Watch())
    found = {finding.name: finding for finding in findings}
    columns, labels = found["plaintext.columns"], found["plaintext.gradient-labels"]
    assert columns.n == labels.n == PARTIES
    if kind == "shuffled":
        assert (columns.verdict, labels.verdict) == (CANNOT_TELL, CANNOT_TELL)
        assert "no number names the rows of embedding.values (query.forward)" in columns.reason
        return
    assert columns.verdict == LEAK
    assert columns.value > 0.9
    assert ("are assumed to be consecutive" in columns.reason) == (kind == "in order")
    assert labels.verdict == LEAK
