"""Examples of several arrays are searched for through the app's own step: numbers are, masks and ids are held fixed."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedattack.apps import inverting
from fedattack.apps.asking import Asker
from fedattack.apps.auditing import attack_by_app
from fedattack.apps.inverting import AppClient
from fedattack.apps.player import Handler, Player
from fedattack.apps.witnessing import witnesses_of
from fedattack.base.errors import DataError
from fedattack.base.structured import pack, searchable
from fedattack.learning import LocalSGD
from fedattack.learning.soft_losses import soft_targets
from fedattack.record import Record
from fedattack.runs.pipeline import choose_attacks
from fedattack.threats.inversion.gradient_inversion import ClientModel, ReplyBatch, Search, invert_group
from fedattack.threats.inversion.inversion import ReconstructedExamples
from tests.apps.test_roles_of_apps import BEGINNING, ENDING, judge, run_app
from tests.apps.worlds import attack_all, pose_all

CLIENTS = 6

# A network that nobody can import, of a dict of two arrays, and of a mask and ids besides.
PARTS = f"""{BEGINNING}
LEFT, RIGHT, CLASSES, OWN = 6, (2, 4), 3, 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.kinds, self.up, self.out = nn.Embedding(4, 3), nn.Linear(17, 24), nn.Linear(24, CLASSES)

    def forward(self, parts, mask, kind):
        right = (parts["right"] * mask[:, None, :]).flatten(1)
        return self.out(torch.sigmoid(self.up(torch.cat([parts["left"], right, self.kinds(kind)], dim=1))))


def make():
    class Own(Net):
        pass

    return Own()


def draw(seed, count):
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.rand(count, *shape, generator=generator) for shape in ((LEFT,), RIGHT))
    x = {{"left": left, "right": right}}
    return x, torch.ones(count, RIGHT[1], dtype=torch.int64), torch.full((count,), 2), torch.arange(count) % CLASSES


client = ClientApp()


@client.train()
def train(message, context):
    model = make()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, mask, kind, y = draw(context.node_config["partition-id"], OWN)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    nn.functional.cross_entropy(model(x, mask, kind), y).backward()
    optimizer.step()
    content = {{"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({{"num-examples": OWN}})}}
    return Message(RecordDict(content), reply_to=message)


@client.evaluate()
def evaluate(message, context):
    model = make()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, mask, kind, y = draw(100 + context.node_config["partition-id"], 20)
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(x, mask, kind), y).item()
    metrics = MetricRecord({{"loss": loss, "num-examples": 20}})
    return Message(RecordDict({{"metrics": metrics}}), reply_to=message)
{ENDING.replace("fraction_evaluate=0.0", "fraction_evaluate=1.0")}"""


class Flat(nn.Module):
    """The same network, of the numbers that are searched for in a row."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        parts = {"left": x[:, :6], "right": x[:, 6:].reshape(-1, 2, 4)}
        return self.net(parts, torch.ones((len(x), 4), dtype=torch.int64), torch.full((len(x),), 2))


def packed(module, seed: int, count: int):
    x, mask, kind, y = module.draw(seed, count)
    leaves = {"0/left": x["left"], "0/right": x["right"], "1": mask, "2": kind}
    return pack({place: leaf.numpy() for place, leaf in leaves.items()}), y.numpy()


def player_of(part, app, module, x, y):
    received = dict(Record(part.record).rounds[0].observations[0].received)
    asked = vars(witnesses_of(part)[0].asked)
    node = {"partition-id": 0, "num-partitions": CLIENTS}
    player = Player(Handler(module.client, app.config, node, **asked), received, x, y)
    player.take(received)
    return player, received


@pytest.mark.slow
def test_numbers_are_searched_for_as_through_a_model_of_a_row_of_them(tmp_path, here, monkeypatch):
    part, app, module = run_app(tmp_path, monkeypatch, PARTS)
    x, y = packed(module, 3, 30)
    player, received = player_of(part, app, module, x, y)
    training = LocalSGD(epochs=2, batch_size=0, lr=0.1)
    by_app, by_model = AppClient.of(player, x, training), ClientModel(Flat(module.make()), "cross-entropy", training)
    named = {f"net.{name}": value for name, value in received.items()}
    true = torch.from_numpy(searchable(x)[:2])
    assert true.shape == (2, 14)
    moved = by_model.movement(*by_model.split(named), true, soft_targets("cross-entropy", y[:2], 3))
    again = by_app.movement(*by_app.split(received), true, torch.from_numpy(y[:2]))
    for name, value in again.items():
        torch.testing.assert_close(value, moved[f"net.{name}"], rtol=1e-5, atol=1e-6)
    how, found = Search("cos", iterations=5, restarts=2), []
    for client, start, movement in ((by_app, received, again), (by_model, named, moved)):
        sent = {name: value.detach().numpy() for name, value in movement.items()}
        found.append(invert_group(client, {0: ReplyBatch(start, sent, 2, y[:2])}, (14,), how)[0])
    np.testing.assert_allclose(found[0].objectives, found[1].objectives, rtol=1e-5)
    assert "masks at 1" in by_app.describe_fixed()
    assert "1, 2 are held fixed" in by_app.describe_fixed()


@pytest.mark.slow
def test_examples_of_several_arrays_are_found_and_judged(tmp_path, here, monkeypatch):
    part, app, module = run_app(tmp_path, monkeypatch, PARTS)
    (posed,) = pose_all([part], app=app)
    assert posed.knowledge.model is None
    assert len(posed.few) == CLIENTS
    posed = replace(posed, few=posed.few[:3])
    monkeypatch.setattr(inverting, "_ITERATIONS", 300)
    done = attack_all([part], [posed], lambda names: choose_attacks(["sia"], {}))
    done = attack_by_app(Asker(app), [posed], done)
    assert "inversion" in done.scored, done.folder.study["untried"]
    scores = done.runs[0].scores["inversion"]
    assert any("are held fixed: masks at 1" in note for note in scores.notes)
    found = scores.as_found(ReconstructedExamples)
    assert found.images.shape[1:] == (14,)
    by_node = {witness.node: int(witness.client) for witness in witnesses_of(part) if witness.client.isdecimal()}
    errors = []
    for number, reply in enumerate(found.batches):
        own = searchable(packed(module, by_node[reply.node], 2)[0])
        rebuilt = found.images[found.of_batch == number]
        errors.append(min(np.abs(rebuilt[order] - own).mean() for order in ([0, 1], [1, 0])))
    assert np.median(errors) < 0.05
    assert judge(part, posed)["inversion.recognised"].value > 0.5


@pytest.mark.slow
def test_ids_and_masks_alone_are_refused(tmp_path, here, monkeypatch):
    part, app, module = run_app(tmp_path, monkeypatch, PARTS)
    x, y = packed(module, 3, 30)
    player, _ = player_of(part, app, module, x, y)
    whole = x.astype([(name, np.int64, x.dtype[name].shape) for name in x.dtype.names])
    with pytest.raises(DataError, match="examples of whole numbers, which no gradient moves"):
        AppClient.of(player, whole, LocalSGD(epochs=1, batch_size=0, lr=0.1))
    assert searchable(whole).shape == (30, 0)
