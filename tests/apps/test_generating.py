"""Clients that send a generator alone: its outputs are held against examples, and the page says what is sent."""

import importlib
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedattack.apps.app import App
from fedattack.apps.asking import Asker
from fedattack.apps.control import control
from fedattack.apps.generating import BY_GENERATOR, GeneratorPlayer, _GeneratorCalls
from fedattack.apps.player import Handler
from fedattack.apps.witnessing import witnesses_of
from fedattack.audit.control import TRAINED
from fedattack.audit.finding import LEAK, NO_EVIDENCE
from fedattack.base.errors import DataError
from fedattack.record import Record, rewrite_record
from fedattack.record.folder import Part
from fedattack.report import read_run
from fedattack.runs.pipeline import judge_folder
from fedattack.runs.watch import Watch
from fedattack.witness.seen import GENERATOR
from tests.apps.test_control import plant_what_others_hold
from tests.apps.worlds import attack_all, importable_app, pose_all, run_here

CLIENTS = 6

# Each client trains a generator and a discriminator on its digits, and sends the generator.
APP = """
import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.datasets import load_digits
from torch import nn

SIZE, NOISE = 12, 4
client, server = ClientApp(), ServerApp()


def load(site):
    data = load_digits()
    rows = np.random.default_rng(0).permutation(len(data.data))[site * SIZE : (site + 1) * SIZE]
    return torch.tensor(data.data[rows] / 16, dtype=torch.float32)


def make_generator():
    return nn.Sequential(nn.Linear(NOISE, 16), nn.ReLU(), nn.Linear(16, 64), nn.Sigmoid())


@client.train()
def train(message, context):
    x = load(context.node_config["partition-id"])
    generator, discriminator = make_generator(), nn.Sequential(nn.Linear(64, 16), nn.LeakyReLU(), nn.Linear(16, 1))
    generator.load_state_dict(message.content["arrays"].to_torch_state_dict())
    if "d" in context.state:
        discriminator.load_state_dict(context.state["d"].to_torch_state_dict())
    of_d = torch.optim.Adam(discriminator.parameters(), lr=2e-3)
    of_g = torch.optim.Adam(generator.parameters(), lr=2e-3)
    loss = nn.functional.binary_cross_entropy_with_logits
    for _ in range(context.run_config["epochs"]):
        for rows in torch.randperm(len(x)).split(6):
            fake = generator(torch.randn(len(rows), NOISE))
            of_d.zero_grad()
            of_true, of_false = discriminator(x[rows]), discriminator(fake.detach())
            (loss(of_true, torch.ones_like(of_true)) + loss(of_false, torch.zeros_like(of_false))).backward()
            of_d.step()
            of_g.zero_grad()
            of_false = discriminator(fake)
            loss(of_false, torch.ones_like(of_false)).backward()
            of_g.step()
    context.state["d"] = ArrayRecord(discriminator.state_dict())
    content = {"arrays": ArrayRecord(generator.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
    return Message(RecordDict(content), reply_to=message)


@server.main()
def main(grid, context):
    torch.manual_seed(5)
    first = ArrayRecord(make_generator().state_dict())
    FedAvg(fraction_evaluate=0.0).start(grid=grid, initial_arrays=first, num_rounds=2)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with importable_app(tmp_path_factory.mktemp("app"), "generating_app", APP) as where:
        yield where


@pytest.fixture(scope="module")
def part(folder, tmp_path_factory):
    """One run, which tests read."""
    part, module = Part(tmp_path_factory.mktemp("run"), ""), importlib.import_module("generating_app")
    torch.manual_seed(0)
    run_here(part, module.server, module.client, {"epochs": 20}, CLIENTS)
    return part


def handler_of(part: Part, site: int) -> Handler:
    module = importlib.import_module("generating_app")
    asked = next(each.asked for each in witnesses_of(part) if each.client == str(site))
    return Handler(module.client, {"epochs": 20}, {"partition-id": site, "num-partitions": CLIENTS}, **vars(asked))


def test_a_witness_sees_the_examples_of_the_discriminator_that_stays(part):
    module = importlib.import_module("generating_app")
    clients = [witness for witness in witnesses_of(part) if witness.client]
    assert len(clients) == CLIENTS
    for witness in clients:
        assert witness.model.why == GENERATOR
        own = module.load(int(witness.client)).numpy()
        assert len(witness.trained) == witness.trained.total == len(own)
        assert {row.tobytes() for row in witness.trained.x} == {row.tobytes() for row in own}
        assert not any("left out" in note and "exchange" in note for note in witness.notes)


def test_losses_are_distances_to_the_nearest_output(part):
    module = importlib.import_module("generating_app")
    x = module.load(1).numpy()
    replies = [reply for reply in Record(part.record).rounds[0].observations if reply.arrays]
    player = GeneratorPlayer(handler_of(part, 1), dict(replies[1].received), x, np.zeros(len(x)))
    for reply in replies[:2]:
        player.take(dict(reply.arrays))
        generator = module.make_generator()
        generator.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in reply.arrays.items()})
        with torch.no_grad():
            made = torch.cat([generator(noise) for (noise,), _ in player._inputs]).numpy()
        # 20 epochs of two batches of six.
        assert made.shape == (240, 64)
        nearest = [min(float(np.mean((row - output) ** 2)) for output in made) for row in x]
        np.testing.assert_allclose(player.losses(), nearest, rtol=1e-5)
    (note,) = player.list_assumptions()
    assert note.startswith(f"{BY_GENERATOR}240 outputs")


def test_the_app_trains_a_generator_on_other_examples(part):
    module = importlib.import_module("generating_app")
    x = module.load(1).numpy()
    reply = next(reply for reply in Record(part.record).rounds[0].observations if reply.arrays)
    player = GeneratorPlayer(handler_of(part, 1), dict(reply.received), x, np.zeros(len(x)))
    # One bright image, and one dark: a few epochs move what is made towards what is shown.
    means = []
    for value in (0.0, 1.0):
        others = np.full((6, 64), value, np.float32)
        player.take(player.update(dict(reply.received), others, np.zeros(6), seed=0))
        means.append(player._make_outputs().mean())
    assert means[0] < means[1]


def test_what_is_no_generator_is_refused(part):
    module = importlib.import_module("generating_app")
    x = module.load(1).numpy()
    reply = next(reply for reply in Record(part.record).rounds[0].observations if reply.arrays)
    with pytest.raises(DataError, match="no step of PyTorch in the app's handler takes examples"):
        GeneratorPlayer(handler_of(part, 1), dict(reply.received), x[:, :10], np.zeros(len(x)))
    # Weights of no model that the training calls.
    calls = _GeneratorCalls({"0.weight": np.ones((16, 4), np.float32)}, 64)
    with calls.watching():
        handler_of(part, 1)(dict(reply.received))
    assert calls.model is None


def findings_of(part: Part, folder: Path):
    """Audit a run."""
    (posed,) = pose_all([part], app=App(folder, {"epochs": 20}, CLIENTS))
    attacked = attack_all([part], [posed])
    assert {"sia", "membership", "plaintext"} <= {*attacked.scored}
    findings, _ = judge_folder(part.folder, device="cpu", watch=Watch())
    return posed, {finding.name: finding for finding in findings}, attacked


@pytest.mark.slow
def test_a_generator_alone_is_attacked_for_what_it_is(part, folder, here):
    posed, found, _ = findings_of(part, folder)
    assert posed.means == "outputs of the generators that clients send"
    assert any(note.startswith("clients send a generator alone: ") for note in posed.notes)
    assert any(note.startswith(BY_GENERATOR) for note in posed.notes)
    assert len(posed.knowledge.targets) == CLIENTS * 12
    # What is made looks like a client's few digits.
    assert found["sia.asr"].verdict == LEAK
    assert found["plaintext.given-away"].value == 0
    run = read_run(part.folder)
    sent = [row for row in run["sent"]["arrays"] if row["kind"] != "not sent"]
    assert [row["array"] for row in sent] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert all(row["clients"] == CLIENTS for row in sent)


@pytest.fixture
def null(part, tmp_path):
    """A run in which what is sent was trained on digits that nobody asks about."""
    sites = {node: int(witness.client) for witness in witnesses_of(part) if (node := witness.node) and witness.client}

    def change(round_, exchange):
        replies = []
        for reply in exchange.replies:
            handler = replace(
                handler_of(part, sites[reply.node]),
                node_config={"partition-id": 50 + sites[reply.node], "num-partitions": CLIENTS},
            )
            made = handler.read_arrays(handler(dict(exchange.common), seed=round_.seq * CLIENTS + sites[reply.node]))
            replies.append(replace(reply, arrays=made))
        return replace(exchange, replies=replies)

    shutil.copytree(part.folder, tmp_path / "null", ignore=shutil.ignore_patterns("truth", "knowledge", "posed.json"))
    null = Part(tmp_path / "null", "")
    shutil.rmtree(null.record)
    rewrite_record(Record(part.record), null.record, change)
    return null


@pytest.mark.slow
def test_generators_of_others_examples_tell_nothing(null, folder, here):
    found = findings_of(null, folder)[1]
    for name in ("sia.asr", "membership.auc"):
        assert found[name].verdict != LEAK, name


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False])
def test_a_control_plants_in_generators_what_their_clients_hold(null, folder, here, monkeypatch, own):
    """They are trained further on their own targets; or, as the control's null, on others'."""
    _, found, attacked = findings_of(null, folder)
    assert found["sia.asr"].verdict == NO_EVIDENCE
    seconds = 100.0
    if not own:
        plant_what_others_hold(monkeypatch)
        # What is not seen is tried more often, which takes longer.
        seconds = 0.0
    asker = Asker(App(folder, {"epochs": 20}, CLIENTS))
    noted = control(asker, attacked.runs, [witnesses_of(null)], Watch(), [], seconds)["sia"]
    assert (noted.kind, noted.is_seen, noted.of) == (TRAINED, own, 2 * CLIENTS)
    assert noted.replies > 0
