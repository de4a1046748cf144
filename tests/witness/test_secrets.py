"""A witness's folder goes to the auditor: nothing is in it that neither attacks, nor judges, nor the page use."""

import functools
import zipfile
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from torch import nn
from torch.nn import functional as F  # noqa: N812

from fedattack.defences.mods import DefenceMod
from fedattack.witness import WitnessedClientApp, read_witnesses, torch_models, trained_on
from fedattack.witness.flower import name_of_mod
from tests.apps.projects import LORA
from tests.witness.apps import load, witness_of
from tests.worlds.local_grid import LocalGrid

PLANTED = "sk-live-51c0ffee"
X = torch.rand(12, 5, generator=torch.Generator().manual_seed(1))
Y = torch.arange(12) % 3
ACTS = {"smooth": nn.Softplus()}


def bytes_in(folder: Path) -> bytes:
    """All bytes of all files, those of archives as they are without compression, and the files' names."""
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        found += [str(path).encode(), path.read_bytes()]
        if path.suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                found += [archive.read(name) for name in archive.namelist()]
    return b"\n".join(found)


def check_no_secret(folder: Path) -> None:
    everything = bytes_in(folder)
    assert b"about" in everything
    assert PLANTED.encode() not in everything
    # Types as arrays have them are four bytes a character.
    assert PLANTED.encode("utf-32-le") not in everything


class Tracking:
    """As a mod that reports somewhere else."""

    def __init__(self) -> None:
        self.project = "hospital"
        self.port = 4711
        self._api_key = PLANTED
        self.__name__ = PLANTED

    def __call__(self, message, context, call_next):
        return call_next(message, context)


def keyed(key, message, context, call_next):
    return call_next(message, context)


class Net(nn.Module):
    def __init__(self, width: int = 4, act: str = "relu", token: str = "", tags=(), **rest) -> None:
        super().__init__()
        self.rest = rest
        self.act = ACTS.get(act) or (torch.sigmoid if act == "squashed" else getattr(F, act))
        self.one = nn.Linear(5, width)
        self.two = nn.Linear(width, 3)

    def forward(self, x):
        return self.two(self.act(self.one(x)))


def make_net(token):
    return Net(token=token)


def fit(model, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)
    F.cross_entropy(model(X), Y).backward()
    optimizer.step()
    return model


def run(folder, train, mods=(), **config) -> list[Message]:
    """Call a client once, as Flower does."""
    app = ClientApp(mods=[*mods])
    app.train()(train)
    grid = LocalGrid(WitnessedClientApp(app, folder), 1)
    (node,) = grid.get_node_ids()
    grid._contexts[node].node_config |= config
    grid._contexts[node].run_config |= config
    arrays = ArrayRecord(Net().state_dict())
    return [*grid.send_and_receive([Message(RecordDict({"arrays": arrays}), node, "train")])]


def test_secrets_around_a_client_stay_with_it(tmp_path):
    def train(message, context):
        model = Net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        model.path = f"/data/{PLANTED}"
        fit(model)
        metrics = MetricRecord({"num-examples": 12})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    dp = LocalDpMod(1.0, 0.5, 10.0, 1e-5)
    dp.note = PLANTED
    settings = {"defence": "none", "defence-strength": 0.0, "recup-zoo": PLANTED, "recup-attributes": PLANTED}
    mods = [Tracking(), dp, functools.partial(keyed, PLANTED), DefenceMod(settings, seed=4711), fixedclipping_mod]
    run(tmp_path, train, mods[:4], token=PLANTED, **{"data-path": PLANTED})
    check_no_secret(tmp_path)
    (witness,) = read_witnesses(tmp_path)
    assert witness.trained.total == 12
    told = "LocalDpMod(clipping_norm=1.0, sensitivity=0.5, epsilon=10.0, delta=1e-05)"
    # By the seed somebody could take the noise away.
    assert witness.mods[:3] == ("Tracking", told, "partial")
    assert witness.mods[3].startswith("DefenceMod(defence-strength=0.0")
    assert "4711" not in repr(witness)
    assert name_of_mod(mods[4]) == "fixedclipping_mod"
    noisy = DefenceMod({"defence": "dp-gaussian", "defence-strength": 0.5, "defence-clip": 2.0})
    assert name_of_mod(noisy).startswith("DefenceMod(defence=dp-gaussian, defence-strength=0.5, defence-clip=2.0")


def raising(message, context):
    raise ValueError(f"cannot log in with {PLANTED}")


def refusing(message, context):
    return Message(Error(code=7, reason=f"cannot log in with {PLANTED}"), reply_to=message)


@pytest.mark.parametrize(("train", "told"), [(raising, "(ValueError)"), (refusing, "(an error reply of code 7)")])
def test_texts_of_errors_stay_with_the_client(train, told, tmp_path):
    with pytest.raises(ValueError, match=PLANTED) if train is raising else nullcontext():
        run(tmp_path, train)
    check_no_secret(tmp_path)
    (witness,) = read_witnesses(tmp_path)
    assert witness.notes == (f"a call ended early {told}, and what it did is left out; the client's log shows why",)


def test_what_was_not_seen_is_told_by_the_kind_of_the_error(tmp_path, caplog):
    def client():
        model = Net()
        model.forward = lambda rows: model.two(model.one(rows[f"{PLANTED}/x"]))
        model({f"{PLANTED}/x": X})
        trained_on(X[0])

    with caplog.at_level("INFO", "fedattack"):
        witness = witness_of(client, tmp_path)
    check_no_secret(tmp_path)
    assert "what a model was called with was not seen (TypeError)" in witness.notes
    assert any(
        "DataError: expected one row for each example, got an array of shape (5,)" in note for note in witness.notes
    )
    # The client itself may read why.
    assert PLANTED in caplog.text


@pytest.mark.parametrize(
    "make",
    [
        lambda: Net(token=PLANTED),
        lambda: Net(4, "relu", PLANTED),
        lambda: Net(tags=["a", PLANTED]),
        lambda: Net(key=PLANTED),
        lambda: make_net(PLANTED),
    ],
)
def test_texts_that_a_model_was_made_with_are_noted_only_if_its_code_names_them(make, tmp_path):
    torch_models._made.clear()
    torch_models._rebuilding.clear()
    witness = witness_of(lambda: fit(make()), tmp_path)
    check_no_secret(tmp_path)
    assert witness.trained.total == 12
    assert witness.model.spec is None


@pytest.mark.parametrize("act", ["relu", "softplus", "smooth", "squashed"])
def test_texts_that_choose_among_what_the_code_names_are_noted(act, tmp_path):
    """A default, a function of a module, a key of a table, and a text that it compares with."""
    torch_models._made.clear()
    # A text that was read from somewhere is another object than the one in the code.
    witness = witness_of(lambda: fit(Net(act="".join([*act]), width=6)), tmp_path)
    assert (witness.model.spec, witness.model.arguments) == (f"{__name__}:Net", {"act": act, "width": 6})


def test_settings_of_an_optimizer_are_noted_as_numbers(tmp_path):
    class Named(torch.optim.SGD):
        def __init__(self, parameters, lr, **rest) -> None:
            super().__init__(parameters, lr)
            for group in self.param_groups:
                group |= rest

    def client():
        model = Net()
        optimizer = Named(model.parameters(), 0.1, eps=PLANTED, betas=(0.5, 0.9), owner=PLANTED)
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()
        return model

    witness = witness_of(client, tmp_path)
    check_no_secret(tmp_path)
    assert witness.training.optimizer == "Named of betas=(0.5, 0.9), eps=another"


def test_of_a_configuration_only_what_its_class_has_is_noted(tmp_path):
    pytest.importorskip("peft", reason="peft is not installed")
    task = load(LORA, "task")

    def client():
        model = task.make_model()
        config = model.get_base_model().config
        config.auth_token = PLANTED
        config.id2label = {0: PLANTED, 1: "healthy"}
        config.label2id = {PLANTED: 0, "healthy": 1}
        config.task_specific_params = {"login": PLANTED}
        model.peft_config["default"].revision = PLANTED
        batch = task.collate(task.load_data(0)[0][:8])
        model(**batch).loss.backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        return model

    witness = witness_of(client, tmp_path)
    check_no_secret(tmp_path)
    assert witness.model.spec == "fedattack.learning.pretrained:from_description"
