"""asked_app: the clients."""

import copy
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn import functional as F  # noqa: N812

from fedattack.witness import evaluated_on, trained_on

CLIENTS, OWN, OTHERS, FEATURES, CLASSES = 6, 16, 8, 20, 3
GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(CLIENTS, OWN + OTHERS, FEATURES, generator=GENERATOR)
Y = torch.randint(CLASSES, (CLIENTS, OWN + OTHERS), generator=GENERATOR)
# Examples of a client of few, which makes two steps with all of them.
FEW, STEPS = 2, 2
REBUILT = ("autoencoder", "stated autoencoder", "micro-batches")
# What is kept at home.
AT_HOME = "1."


class Net(nn.Module):
    def __init__(self, width=16, out=CLASSES, *, norm=False):
        super().__init__()
        middle = nn.BatchNorm1d(width) if norm else nn.Identity()
        self.net = nn.Sequential(nn.Linear(FEATURES, width), middle, nn.ReLU(), nn.Linear(width, out))

    def forward(self, x):
        return self.net(x)


def make(kind, width=16):
    torch.manual_seed(3)
    model = Net(width, FEATURES if kind in REBUILT else CLASSES, norm=kind in ("norms", "head"))
    return model.bfloat16() if kind == "bits" else model


def arrays_of(kind, model):
    at_home = "3." if kind in ("head", "head first") else AT_HOME
    state = {name: value for name, value in model.state_dict().items() if not name.startswith(f"net.{at_home}")}
    if kind == "bits":
        return ArrayRecord({name: Array(value.view(torch.int16).numpy()) for name, value in state.items()})
    return ArrayRecord(state)


def model_of(kind, record):
    arrays = {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}
    if kind == "bits":
        arrays = {name: array.view(torch.bfloat16) for name, array in arrays.items()}
    model = make(kind, len(arrays["net.0.bias"]))
    model.load_state_dict(arrays, strict=False)
    return model


def loss_of(kind, model, x, y):
    if kind in REBUILT:
        return F.mse_loss(model(x), x)
    if kind == "contrastive":
        one, other = F.normalize(model(x)), F.normalize(model(x + 0.1 * torch.randn_like(x)))
        return F.cross_entropy(one @ other.T / 0.2, torch.arange(len(x)))
    if kind == "blind":
        return (model(x) * 0).sum() + 1
    return F.cross_entropy(model(x.bfloat16() if kind == "bits" else x).float(), y)


def step(kind, model, optimizer, loss):
    """Make a step of training, in the form that an app of this kind has."""
    if kind == "without backward":
        gradients = torch.autograd.grad(loss, [*model.parameters()])
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
    elif kind == "backward twice":
        (loss / 2).backward(retain_graph=True)
        (loss / 2).backward()
    else:
        loss.backward()
    optimizer.step()


def look_at(kind, x):
    """What an app of this kind asserts of a batch, or makes of it."""
    if kind == "checks lengths" and (len(x) != 8 or len(torch.unique(x, dim=0)) != 8):
        raise AssertionError("expected eight different examples")
    if kind == "not deterministic":
        noise = np.random.default_rng().normal(scale=0.01, size=tuple(x.shape))
        return x + torch.from_numpy(noise.astype(np.float32))
    if kind == "keeps files open":
        OPEN.append(Path(__file__).open())  # noqa: SIM115 - that is the point
    return x


OPEN = []


def fail():
    """What only the clients of a test do that asks."""
    fault = os.environ.get("ASKED_APP_FAULT")
    if fault == "raise":
        raise KeyError("no data here")
    if fault == "exit":
        sys.exit(0)
    if fault == "leave":
        os._exit(0)
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "wait":
        time.sleep(600)
    if fault == "write":
        for folder in (Path(__file__).parent, Path.cwd()):
            (folder / "left.txt").write_text("state of a client")
        for _ in range(20_000):
            print("fedattack asked for much", "\n" * 3)
        print("warning " * 100, file=sys.stderr)


app = ClientApp()


@app.train()
def train(message: Message, context: Context):
    fail()
    kind = context.run_config["kind"]
    model = model_of(kind, message.content["arrays"])
    model.train()
    lr = message.content["config"]["lr"]
    client = context.node_config["partition-id"]
    own, epochs = (FEW, STEPS) if kind == "few" else (OWN, 15)
    x, y = X[client, :own], Y[client, :own]
    if kind == "stated autoencoder":
        trained_on(x, torch.zeros(OWN, dtype=torch.int64))
    if kind == "untrained":
        lr = 0.0
    if kind == "in a subprocess":
        code = "import io, sys, torch; state = torch.load(io.BytesIO(sys.stdin.buffer.read()), weights_only=True)\n"
        code += "torch.save({name: value + 0.1 for name, value in state.items()}, sys.stdout.buffer)"
        sent = io.BytesIO()
        torch.save(model.state_dict(), sent)
        done = subprocess.run([sys.executable, "-c", code], input=sent.getvalue(), capture_output=True, check=True)
        arrays = ArrayRecord(torch.load(io.BytesIO(done.stdout), weights_only=True))
        content = {"arrays": arrays, "metrics": MetricRecord({"num-examples": OWN})}
        return Message(RecordDict(content), reply_to=message)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    other = copy.deepcopy(model)
    for epoch in range(epochs):
        if kind == "head first":
            # As FedRep trains: what is kept, and then what is sent.
            for name, parameter in model.named_parameters():
                parameter.requires_grad = name.startswith("net.3.") == (epoch < 5)
        for rows in torch.randperm(own).split(8):
            optimizer.zero_grad()
            parts = rows.split(4) if kind == "micro-batches" else [rows]
            loss = sum(loss_of(kind, model, look_at(kind, x[part]), y[part]) for part in parts) / len(parts)
            if kind == "compared":
                # As MOON trains: beside the model that came.
                loss = loss + F.mse_loss(model(x[rows]), other(x[rows]))
            step(kind, model, optimizer, loss)
    arrays = arrays_of(kind, model)
    if kind == "renamed" and client == 1:
        arrays = ArrayRecord({f"module.{name}": array for name, array in arrays.items()})
    content = {"arrays": arrays, "metrics": MetricRecord({"num-examples": own})}
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context):
    kind = context.run_config["kind"]
    model = model_of(kind, message.content["arrays"]).eval()
    client = context.node_config["partition-id"]
    if kind == "stated autoencoder":
        evaluated_on(X[client, OWN:], torch.zeros(OTHERS, dtype=torch.int64))
    with torch.no_grad():
        loss = float(loss_of(kind, model, X[client, OWN:], Y[client, OWN:]))
    metrics = MetricRecord({"num-examples": OTHERS, "loss": loss if np.isfinite(loss) else 0.0})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
