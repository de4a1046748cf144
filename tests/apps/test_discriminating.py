"""Clients that send a discriminator without labels beside its generator: it is asked for its score of an example."""

import importlib
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn import functional as F  # noqa: N812

from fedattack.apps.app import App
from fedattack.apps.discriminating import BY_DISCRIMINATOR, DiscriminatorPlayer
from fedattack.apps.player import Handler
from fedattack.apps.witnessing import witnesses_of
from fedattack.audit.finding import LEAK
from fedattack.base.errors import DataError
from fedattack.record import Record, rewrite_record
from fedattack.record.folder import Part
from fedattack.report import read_run
from fedattack.runs.pipeline import judge_folder
from fedattack.runs.watch import Watch
from fedattack.witness.seen import DISCRIMINATOR
from fedattack.witness.sent import OF_ANOTHER, WEIGHTS
from tests.apps.worlds import attack_all, importable_app, pose_all, run_here

CLIENTS, SIZE, NOISE = 6, 64, 4

# Both models are sent, each in a record of its own; a site from 50 on has digits that nobody asks about.
APP = """
import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from sklearn.datasets import load_digits
from torch import nn

OWN, NOISE = 12, 4
client, server = ClientApp(), ServerApp()


def load(site):
    data = load_digits()
    rows = np.random.default_rng(0).permutation(len(data.data))[site * OWN : (site + 1) * OWN]
    return torch.tensor(data.data[rows] / 16, dtype=torch.float32)


def make():
    generator = nn.Sequential(nn.Linear(NOISE, 16), nn.ReLU(), nn.Linear(16, 64), nn.Sigmoid())
    return {"generator": generator, "discriminator": nn.Sequential(nn.Linear(64, 16), nn.LeakyReLU(), nn.Linear(16, 1))}


@client.train()
def train(message, context):
    x, models = load(context.node_config["partition-id"]), make()
    for name, model in models.items():
        model.load_state_dict(message.content[name].to_torch_state_dict())
    generator, discriminator = models.values()
    of_g, of_d = (torch.optim.Adam(model.parameters(), lr=2e-3) for model in models.values())
    loss = nn.functional.binary_cross_entropy_with_logits
    for _ in range(20):
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
    content = {name: ArrayRecord(model.state_dict()) for name, model in models.items()}
    return Message(RecordDict({**content, "metrics": MetricRecord({"num-examples": len(x)})}), reply_to=message)


@server.main()
def main(grid, context):
    torch.manual_seed(5)
    sent = {name: model.state_dict() for name, model in make().items()}
    for _ in range(2):
        content = RecordDict({name: ArrayRecord(state) for name, state in sent.items()})
        replies = [*grid.send_and_receive([Message(content, node, "train") for node in grid.get_node_ids()])]
        for name, state in sent.items():
            states = [reply.content[name].to_torch_state_dict() for reply in replies]
            sent[name] = {key: sum(each[key] for each in states) / len(states) for key in state}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with importable_app(tmp_path_factory.mktemp("app"), "discriminating_app", APP) as where:
        yield where


@pytest.fixture(scope="module")
def part(folder, tmp_path_factory):
    """One run, which tests read."""
    part, module = Part(tmp_path_factory.mktemp("run"), ""), importlib.import_module("discriminating_app")
    torch.manual_seed(0)
    run_here(part, module.server, module.client, {}, CLIENTS)
    return part


def handler_of(part: Part, site: int) -> Handler:
    module = importlib.import_module("discriminating_app")
    asked = next(each.asked for each in witnesses_of(part) if each.client == str(site))
    return Handler(module.client, {}, {"partition-id": site, "num-partitions": CLIENTS}, **vars(asked))


def test_a_witness_tells_the_discriminator_from_the_generator_beside_it(part):
    module = importlib.import_module("discriminating_app")
    clients = [witness for witness in witnesses_of(part) if witness.client]
    assert len(clients) == CLIENTS
    for witness in clients:
        assert witness.model.why == DISCRIMINATOR
        own = module.load(int(witness.client)).numpy()
        assert {row.tobytes() for row in witness.trained.x} == {row.tobytes() for row in own}
        # Named as in the record, where both have a first layer.
        kinds = {array.name: array.kind for array in witness.sends}
        assert kinds == {
            f"{model}.{name}": {"generator": OF_ANOTHER, "discriminator": WEIGHTS}[model]
            for model in ("generator", "discriminator")
            for name in ("0.weight", "0.bias", "2.weight", "2.bias")
        }


def test_losses_follow_the_score_of_an_example_alone(part):
    module = importlib.import_module("discriminating_app")
    x = module.load(1).numpy()
    replies = [reply for reply in Record(part.record).rounds[0].observations if reply.arrays]
    player = DiscriminatorPlayer(handler_of(part, 1), dict(replies[1].received), x, np.ones(len(x)))
    for reply in replies[:2]:
        player.take(dict(reply.arrays))
        model = module.make()["discriminator"]
        sent = {name: reply.arrays[f"discriminator.{name}"] for name in model.state_dict()}
        model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in sent.items()})
        with torch.no_grad():
            expected = -model(torch.from_numpy(x)).sigmoid().log()[:, 0]
        np.testing.assert_allclose(player.losses(), expected, rtol=1e-5)
    (note,) = player.list_assumptions()
    assert note.startswith(BY_DISCRIMINATOR)


def test_who_is_trained_further_takes_its_own_examples_for_real_ones(part):
    """What a positive control plants."""
    module = importlib.import_module("discriminating_app")
    x = np.concatenate([module.load(site).numpy() for site in (1, 50)])
    received = dict(next(reply for reply in Record(part.record).rounds[0].observations if reply.arrays).received)
    player, own = DiscriminatorPlayer(handler_of(part, 2), received, x, np.ones(len(x))), range(12)
    player.take(received)
    before = player.losses()
    for trained in player.train([*own], [1, 2]):
        player.take(trained)
        fell = before - player.losses()
        assert fell[own].mean() > fell[12:].mean()


def train_against(kind: str, x: torch.Tensor, models: nn.ModuleDict) -> None:
    """One step of each model, in a form that apps have."""
    generator, discriminator = models["g"], models["d"]
    fake = generator(torch.randn(len(x), NOISE))
    if kind == "joined":
        of_true, of_false = discriminator(torch.cat([fake.detach(), x])).flip(0).split(len(x))
    else:
        of_true, of_false = discriminator(x), discriminator(fake.detach())
    true = 0.0 if kind == "lowered" else 1.0
    if kind == "critic":
        loss = of_false.mean() - of_true.mean()
    else:
        how = F.binary_cross_entropy if kind == "sigmoid" else F.binary_cross_entropy_with_logits
        loss = how(of_true, torch.full_like(of_true, true)) + how(of_false, torch.full_like(of_false, 1 - true))
    loss.backward()
    torch.optim.SGD(discriminator.parameters(), lr=0.1).step()


def make_toy(kind: str) -> tuple[nn.ModuleDict, torch.Tensor, Handler]:
    """Both models, a client's examples, and how it trains."""
    torch.manual_seed(1)
    score = [nn.Linear(SIZE, 1), *([nn.Sigmoid()] if kind == "sigmoid" else []), nn.Flatten(0)]
    models = nn.ModuleDict({"g": nn.Sequential(nn.Linear(NOISE, SIZE), nn.Tanh()), "d": nn.Sequential(*score)})
    x, app = torch.rand(5, SIZE), ClientApp()

    @app.train()
    def train(message, context):
        models.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=False)
        train_against(kind, x, models)
        return Message(RecordDict({"arrays": ArrayRecord(models.state_dict())}), reply_to=message)

    return models, x, Handler(app, {}, {}, "train", {"arrays": [*models.state_dict()]}, {})


@pytest.mark.parametrize("kind", ["apart", "joined", "lowered", "sigmoid", "critic"])
def test_training_says_into_which_direction_scores_of_examples_go(kind):
    models, x, handler = make_toy(kind)
    weights = {name: value.numpy().copy() for name, value in models.state_dict().items()}
    # Examples that nobody trained on are among the targets.
    targets = np.concatenate([torch.rand(3, SIZE).numpy(), x.numpy()])
    player = DiscriminatorPlayer(handler, weights, targets, np.ones(8))
    player.take(weights)
    own = targets @ weights["d.0.weight"][0] + weights["d.0.bias"][0]
    sign = -1 if kind == "lowered" else 1
    np.testing.assert_allclose(player.losses(), np.log1p(np.exp(-sign * own)), rtol=1e-4)


def test_a_discriminator_that_is_not_sent_is_refused():
    models, x, handler = make_toy("apart")
    weights = {f"g.{name}": value.numpy() for name, value in models["g"].state_dict().items()}
    with pytest.raises(DataError, match="weights of no model that gives one number for an example alone in their tr"):
        DiscriminatorPlayer(handler, weights, x.numpy(), np.ones(5))


def findings_of(part: Part, folder):
    """Audit a run."""
    (posed,) = pose_all([part], app=App(folder, {}, CLIENTS))
    assert {"sia", "membership", "plaintext"} <= {*attack_all([part], [posed]).scored}
    findings, _ = judge_folder(part.folder, device="cpu", watch=Watch())
    return posed, {finding.name: finding for finding in findings}


@pytest.mark.slow
def test_a_discriminator_is_attacked_for_what_it_is(part, folder, here):
    posed, found = findings_of(part, folder)
    assert posed.means == "scores of the discriminators that clients send"
    assert any(note.startswith("clients send a discriminator that takes no labels: ") for note in posed.notes)
    assert any(note.startswith(BY_DISCRIMINATOR) for note in posed.notes)
    assert len(posed.knowledge.targets) == CLIENTS * 12
    assert found["sia.asr"].verdict == LEAK
    assert read_run(part.folder)["sent"]["unread"] == ""


@pytest.mark.slow
def test_discriminators_of_others_examples_tell_nothing(part, folder, tmp_path, here):
    """The null: what is sent was trained on digits that nobody asks about."""
    sites = {node: int(witness.client) for witness in witnesses_of(part) if (node := witness.node) and witness.client}

    def change(round_, exchange):
        replies = []
        for reply in exchange.replies:
            of_others = {"partition-id": 50 + sites[reply.node], "num-partitions": CLIENTS}
            handler = replace(handler_of(part, sites[reply.node]), node_config=of_others)
            made = handler.read_arrays(handler(dict(exchange.common), seed=round_.seq * CLIENTS + sites[reply.node]))
            replies.append(replace(reply, arrays=made))
        return replace(exchange, replies=replies)

    shutil.copytree(part.folder, tmp_path / "null", ignore=shutil.ignore_patterns("truth", "knowledge", "posed.json"))
    null = Part(tmp_path / "null", "")
    shutil.rmtree(null.record)
    rewrite_record(Record(part.record), null.record, change)
    found = findings_of(null, folder)[1]
    for name in ("sia.asr", "membership.auc"):
        assert found[name].verdict != LEAK, name
