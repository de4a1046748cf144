"""Apps of which no model can be built: their own step shows what arrays are, and questions follow from that."""

import importlib
import zlib
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from fedattack.apps import answering
from fedattack.apps.app import App
from fedattack.attacks import ATTACKS, ModelKnowledge, Scores
from fedattack.attacks.knowledge_files import read_knowledge
from fedattack.attacks.roles import FIRST, HEAD, OTHER, TABLE, list_forms
from fedattack.audit.truth import read_truth
from fedattack.base.errors import DataError, NeedsError
from fedattack.record import Record
from fedattack.record.folder import Part
from fedattack.report import read_run
from fedattack.runs.pipeline import judge_folder
from fedattack.runs.watch import Watch
from tests.apps.worlds import pose_all, run_here
from tests.attacks.probing import kinds_of

CLIENTS, ITEMS = 6, 60

BEGINNING = """
import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn
"""

ENDING = """

server = ServerApp()


@server.main()
def main(grid, context):
    torch.manual_seed(4)
    strategy = FedAvg(fraction_evaluate=0.0)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(make().state_dict()), num_rounds=2)
"""

# Nobody can import a class of a function: the app is asked.
RECOMMENDER = f"""{BEGINNING}
ITEMS, WIDTH = {ITEMS}, 8


def make():
    MAKE
    return Own()


def examples_of(site):
    rng = np.random.default_rng(50 + site)
    items = rng.choice(ITEMS - 1, size=14, replace=False)
    items[0] = ITEMS - 1 if site == 0 else items[0]
    return torch.tensor(items), torch.tensor(rng.normal(size=14), dtype=torch.float32)


client = ClientApp()


@client.train()
def train(message, context):
    model = make()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    site = context.node_config["partition-id"]
    items, ratings = examples_of(site)
    taste = torch.tensor(np.random.default_rng(site).normal(size=WIDTH), dtype=torch.float32)
    optimizer = OPTIMIZER
    for rows in torch.arange(14).split(7):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(items[rows]) @ taste, ratings[rows]).backward()
        optimizer.step()
    content = {{"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({{"num-examples": 14}})}}
    return Message(RecordDict(content), reply_to=message)
{ENDING}"""

EMBEDDING = "class Own(nn.Embedding):\n        __init__ = lambda self: nn.Embedding.__init__(self, ITEMS, WIDTH)"
BARE = """class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.liked = nn.Parameter(torch.randn(ITEMS, WIDTH))

        def forward(self, ids):
            # Nobody sees in the examples which rows are taken.
            return self.liked[(ids * 7 + 3) % ITEMS]"""
IN_ONE_STEP = """
client = ClientApp()


@client.train()
def train(message, context):
    model = make()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    site = context.node_config["partition-id"]
    nn.functional.cross_entropy(model(X[site]), Y[site]).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": OWN})}
    return Message(RecordDict(content), reply_to=message)
"""
# One step on a few examples, of a network that nobody can import; what enters it may be scaled.
CLASSIFIER = f"""{BEGINNING}
FEATURES, CLASSES, OWN = 20, 4, 4
GENERATOR = torch.Generator().manual_seed(1)
X = torch.rand(6, OWN, FEATURES, generator=GENERATOR)
Y = torch.randint(CLASSES, (6, OWN), generator=GENERATOR)


def twin():
    return nn.Sequential(nn.Linear(FEATURES, 96), nn.ReLU(), nn.Linear(96, CLASSES))


def make():
    class Own(nn.Sequential):
        def forward(self, x):
            return super().forward(ENTERING)

    return Own(*twin())

{IN_ONE_STEP}{ENDING}"""
ONE_STEP = """    nn.functional.cross_entropy(model(X[site]), Y[site]).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
"""
SEVERAL_STEPS = """    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows in torch.arange(OWN).split(8):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X[site][rows]), Y[site][rows]).backward()
        optimizer.step()
"""
EVALUATION = """
@client.evaluate()
def evaluate(message, context):
    model = make()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    generator = torch.Generator().manual_seed(100 + context.node_config["partition-id"])
    x, y = torch.rand(20, FEATURES, generator=generator), torch.randint(CLASSES, (20,), generator=generator)
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(x), y).item()
    metrics = MetricRecord({"loss": loss, "num-examples": 20})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


server = ServerApp()"""
# The next item of a list, by an output that shares the table of items.
TIED = CLASSIFIER.replace("OWN = 20, 4, 4", "OWN = 4, 60, 24").replace(
    "nn.Sequential(nn.Linear(FEATURES, 96), nn.ReLU(), nn.Linear(96, CLASSES))", "Next()"
)
TIED = TIED.replace(
    "torch.rand(6, OWN, FEATURES, generator=GENERATOR)", "torch.randint(20, (6, OWN, FEATURES), generator=GENERATOR)"
)
TIED = TIED.replace("Y = torch.randint(CLASSES, (6, OWN)", "Y = 40 + torch.randint(20, (6, OWN)").replace(
    "return Own(*twin())", "return Own()"
)
TIED = TIED.replace("class Own(nn.Sequential):", "class Own(Next):").replace(
    "super().forward(ENTERING)", "super().forward(x)"
)
TIED = TIED.replace(
    "def twin():",
    """class Next(nn.Module):
    def __init__(self):
        super().__init__()
        self.items, self.out = nn.Embedding(CLASSES, 12), nn.Linear(12, CLASSES, bias=HAS_BIAS)
        self.out.weight = self.items.weight

    def forward(self, ids):
        return self.out(torch.tanh(3 * self.items(ids).mean(dim=1)))


def twin():""",
)
TIED_EVALUATION = """
@client.evaluate()
def evaluate(message, context):
    model = make()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    generator = torch.Generator().manual_seed(100 + context.node_config["partition-id"])
    x, y = torch.randint(20, (20, FEATURES), generator=generator), 40 + torch.randint(20, (20,), generator=generator)
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(x), y).item()
    metrics = MetricRecord({"loss": loss, "num-examples": 20})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


server = ServerApp()"""
OPTIMIZERS = ("torch.optim.SGD(model.parameters(), lr=0.1)", "torch.optim.Adam(model.parameters(), lr=0.01)")


def run_app(tmp_path, monkeypatch, text: str) -> tuple[Part, App, ModuleType]:
    """Write an app, and run it in this process, under witness and observed; its module is returned, too."""
    package = f"own_app_{zlib.crc32(text.encode())}"
    folder = tmp_path / "app"
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").touch()
    (folder / package / "app.py").write_text(text)
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "{package}"\nversion = "1.0.0"\n[tool.flwr.app]\npublisher = "somebody"\n'
        f'[tool.flwr.app.components]\nserverapp = "{package}.app:server"\nclientapp = "{package}.app:client"\n'
    )
    monkeypatch.syspath_prepend(folder)
    module = importlib.import_module(f"{package}.app")
    part = Part(tmp_path / "out", "")
    run_here(part, module.server, module.client, {}, CLIENTS)
    return part, App(folder, {}, CLIENTS), module


def judge(part: Part, posed, *attacks: str) -> dict:
    """Make attacks and judge them."""
    for attack in attacks:
        ATTACKS[attack].run(Record(part.record), posed.knowledge, device="cpu").save(part.scores(attack))
    findings, _ = judge_folder(part.folder, device="cpu", watch=Watch())
    return {finding.name: finding for finding in findings}


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("table", "name"), [(EMBEDDING, "weight"), (BARE, "liked")])
def test_rows_are_named_of_a_recommender_that_is_one_table(table, name, optimizer, tmp_path, here, monkeypatch):
    text = RECOMMENDER.replace("MAKE", table).replace("OPTIMIZER", optimizer)
    part, app, module = run_app(tmp_path, monkeypatch, text)
    (posed,) = pose_all([part], app=app)
    assert posed.knowledge.model is None
    assert [role.kind for role in posed.knowledge.roles] == [TABLE]
    # The folder says the same.
    assert read_knowledge(part.knowledge).roles == posed.knowledge.roles
    (said,) = [note for note in posed.notes if "single examples" in note]
    assert "is a table (" in said
    truth = read_truth(part.truth).answers["tokens"]
    for site in range(CLIENTS):
        items = module.examples_of(site)[0].numpy()
        if table is BARE:
            items = (items * 7 + 3) % ITEMS
        assert truth["rows"][truth["owners"] == str(site)].tolist() == sorted(items)
    found = judge(part, posed, "tokens")["tokens.f1"]
    assert (found.value, found.verdict) == (1.0, "leak")
    assert [each["name"] for each in Scores.load(part.scores("tokens")).facts["tables"]] == [name]


@pytest.mark.slow
def test_rows_that_all_clients_use_tell_no_client_apart(tmp_path, here, monkeypatch):
    text = RECOMMENDER.replace("MAKE", EMBEDDING).replace("OPTIMIZER", OPTIMIZERS[0])
    alike = "items = np.random.default_rng(5).choice(ITEMS - 1, size=14, replace=False)"
    text = text.replace("items = rng.choice(ITEMS - 1, size=14, replace=False)", alike)
    text = text.replace("items[0] = ITEMS - 1 if site == 0 else items[0]", "pass")
    part, app, _ = run_app(tmp_path, monkeypatch, text)
    (posed,) = pose_all([part], app=app)
    assert judge(part, posed, "tokens")["tokens.f1"].verdict != "leak"


@pytest.mark.slow
def test_a_step_without_gradients_leaves_losses_and_says_that_roles_are_not_known(tmp_path, here, monkeypatch):
    def fail(*_):
        raise DataError("the app's step gives no gradients that are finite")

    monkeypatch.setattr(answering, "ask_roles", fail)
    part, app, _ = run_app(tmp_path, monkeypatch, CLASSIFIER.replace("ENTERING", "x"))
    (posed,) = pose_all([part], app=app)
    assert posed.knowledge.answers is not None
    assert posed.knowledge.roles == ()
    assert any("the roles of the arrays are not known" in note for note in posed.notes)
    for attack in ("exact", "labels"):
        with pytest.raises(NeedsError, match="does not know the clients' model"):
            ATTACKS[attack].run(Record(part.record), posed.knowledge, device="cpu")


def known(posed, module: ModuleType):
    """What the attacker would know that can build the model."""
    model = ModelKnowledge(f"{module.__name__}:twin", (module.FEATURES,), module.CLASSES, arguments={})
    return replace(posed.knowledge, model=model, answers=None, roles=())


@pytest.mark.slow
def test_examples_are_read_off_as_where_the_model_can_be_built(tmp_path, here, monkeypatch):
    part, app, module = run_app(tmp_path, monkeypatch, CLASSIFIER.replace("ENTERING", "x"))
    (posed,) = pose_all([part], app=app)
    assert posed.knowledge.model is None
    by_roles = ATTACKS["exact"].run(Record(part.record), posed.knowledge, device="cpu")
    by_layers = ATTACKS["exact"].run(Record(part.record), known(posed, module), device="cpu")
    assert len(by_layers.arrays["examples"]) > 6
    assert by_roles.arrays.keys() == by_layers.arrays.keys()
    for name, array in by_layers.arrays.items():
        np.testing.assert_array_equal(by_roles.arrays[name], array, err_msg=name)
    found = judge(part, posed, "exact")
    assert found["exact.recovered"].verdict == "leak"
    assert found["exact.precision"].value > 0.75
    # The page says what the attacker has in the place of a model.
    knows = read_run(part.folder)["threat_model"]["knows"]
    assert "what arrays are to the examples, by the gradients that the clients' own app gives" in knows
    assert not any(piece.startswith("the model's architecture") for piece in knows)


@pytest.mark.slow
@pytest.mark.parametrize("has_bias", [True, False])
def test_labels_are_counted_as_where_the_model_can_be_built(has_bias, tmp_path, here, monkeypatch):
    text = CLASSIFIER.replace("ENTERING", "x").replace("OWN = 20, 4, 4", "OWN = 20, 4, 24")
    text = text.replace("server = ServerApp()", EVALUATION).replace("fraction_evaluate=0.0", "fraction_evaluate=1.0")
    # Several steps, so that models between start and end are looked at, too.
    text = text.replace(ONE_STEP, SEVERAL_STEPS)
    if not has_bias:
        text = text.replace("nn.Linear(96, CLASSES)", "nn.Linear(96, CLASSES, bias=False)")
    part, app, module = run_app(tmp_path, monkeypatch, text)
    (posed,) = pose_all([part], app=app)
    assert posed.knowledge.model is None
    assert posed.knowledge.outputs.softmax.shape[1] == len(posed.knowledge.auxiliary)
    by_roles = ATTACKS["labels"].run(Record(part.record), posed.knowledge, device="cpu")
    by_layers = ATTACKS["labels"].run(Record(part.record), known(posed, module), device="cpu")
    assert by_layers.facts["rules"] == by_roles.facts["rules"] == ["solved", "llg-plus", "llg", "idlg"]
    assert by_roles.arrays.keys() == by_layers.arrays.keys()
    for name, array in by_layers.arrays.items():
        np.testing.assert_array_equal(by_roles.arrays[name], array, err_msg=name)
    assert judge(part, posed, "labels")["labels.right"].value > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_table_that_is_the_head_gives_words_and_by_its_bias_labels(has_bias, tmp_path, here, monkeypatch):
    text = TIED.replace("HAS_BIAS", str(has_bias)).replace("server = ServerApp()", TIED_EVALUATION)
    part, app, module = run_app(tmp_path, monkeypatch, text.replace("fraction_evaluate=0.0", "fraction_evaluate=1.0"))
    (posed,) = pose_all([part], app=app)
    assert posed.knowledge.model is None
    kinds = kinds_of(posed.knowledge.roles)
    # It is sent under two names.
    assert (kinds["items.weight"], kinds["out.weight"]) == ([TABLE, HEAD], [OTHER])
    said = {role.name: role.evidence for role in posed.knowledge.roles}
    assert said["out.weight"] == "it is items.weight under another name"
    record, built = Record(part.record), known(posed, module)
    by_roles, by_layers = (ATTACKS["tokens"].run(record, each, device="cpu") for each in (posed.knowledge, built))
    for name, array in by_layers.arrays.items():
        np.testing.assert_array_equal(by_roles.arrays[name], array, err_msg=name)
    assert [table["how"] for table in by_roles.facts["tables"]] == [["tied output"]]
    if not has_bias:
        for each in (posed.knowledge, built):
            with pytest.raises(NeedsError, match="a table shares its weights"):
                ATTACKS["labels"].run(record, each, device="cpu")
        return
    by_roles, by_layers = (ATTACKS["labels"].run(record, each, device="cpu") for each in (posed.knowledge, built))
    assert by_layers.facts["rules"] == by_roles.facts["rules"] == ["solved", "llg-plus", "llg", "idlg"]
    for name, array in by_layers.arrays.items():
        np.testing.assert_array_equal(by_roles.arrays[name], array, err_msg=name)
    assert judge(part, posed, "labels")["labels.right"].value > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("entering", ["x * 2 - 1", "x[:, [4, 2, 0, 7, 9, 3]]"])
def test_examples_are_read_off_that_enter_scaled_or_in_part(entering, tmp_path, here, monkeypatch):
    text = CLASSIFIER.replace("ENTERING", entering)
    if "[" in entering:
        text = text.replace("nn.Linear(FEATURES, 96)", "nn.Linear(6, 96)")
    part, app, module = run_app(tmp_path, monkeypatch, text)
    (posed,) = pose_all([part], app=app)
    found = judge(part, posed, "exact")
    assert found["exact.recovered"].verdict == "leak"
    assert found["exact.precision"].value > 0.75
    scores = Scores.load(part.scores("exact"))
    own = module.X.reshape(-1, module.FEATURES).numpy()
    own = own[:, [4, 2, 0, 7, 9, 3]] if "[" in entering else own
    apart = np.abs(scores.arrays["examples"][:, None] - own).max(axis=2).min(axis=1)
    assert (apart < 1e-3).mean() == pytest.approx(found["exact.precision"].value)


# The server sends each second client a model of another form, of which neurons are columns and the head has no bias.
FORMS = f"""{BEGINNING}
FEATURES, CLASSES, OWN = 20, 4, 4
GENERATOR = torch.Generator().manual_seed(1)
X = torch.rand(6, OWN, FEATURES, generator=GENERATOR)
Y = torch.randint(CLASSES, (6, OWN), generator=GENERATOR)


def make(is_other=False):
    class First(nn.Sequential):
        pass

    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.b = nn.Parameter(torch.randn(FEATURES, 80) / 4), nn.Parameter(torch.randn(80) / 4)
            self.last = nn.Linear(80, CLASSES, bias=False)

        def forward(self, x):
            return self.last(torch.relu(x @ self.w + self.b))

    return Other() if is_other else First(nn.Linear(FEATURES, 96), nn.ReLU(), nn.Linear(96, CLASSES))


client = ClientApp()


@client.train()
def train(message, context):
    model = make("w" in message.content["arrays"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    site = context.node_config["partition-id"]
    nn.functional.cross_entropy(model(X[site]), Y[site]).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    content = {{"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({{"num-examples": OWN}})}}
    return Message(RecordDict(content), reply_to=message)


class Groups(FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        torch.manual_seed(server_round)
        other = ArrayRecord(make(is_other=True).state_dict())
        for index, message in enumerate(super().configure_train(server_round, arrays, config, grid)):
            content = RecordDict({{"arrays": other}}) if index % 2 else message.content
            yield Message(content, dst_node_id=message.metadata.dst_node_id, message_type="train")

    def aggregate_train(self, server_round, replies):
        models = [reply.content["arrays"] for reply in replies]
        return next(model for model in models if "w" not in model), MetricRecord({{}})
{ENDING.replace("FedAvg(", "Groups(")}"""


@pytest.mark.slow
def test_models_of_two_forms_have_roles_each_and_clients_are_asked_by_their_own(tmp_path, here, monkeypatch):
    part, app, module = run_app(tmp_path, monkeypatch, FORMS)
    (posed,) = pose_all([part], app=app)
    first, second = list_forms(posed.knowledge.roles)
    assert [(role.name, role.kind) for role in first if role.kind != OTHER and not role.is_bias] == [
        ("0.weight", FIRST),
        ("2.weight", HEAD),
    ]
    assert [(role.name, role.kind, role.is_transposed) for role in second if not role.is_bias] == [
        ("w", FIRST, True),
        ("last.weight", HEAD, False),
    ]
    assert sum("of models of form" in note for note in posed.notes) == 2
    record = Record(part.record)
    by_roles = ATTACKS["exact"].run(record, posed.knowledge, device="cpu")
    # Both forms give examples of their clients away.
    own = module.X.reshape(-1, module.FEATURES).numpy()
    apart = np.abs(by_roles.arrays["examples"][:, None] - own).max(axis=2)
    right = by_roles.arrays["whose"][apart.min(axis=1) < 1e-3]
    assert len(set(right.tolist())) == CLIENTS
    counted = ATTACKS["labels"].run(record, posed.knowledge, device="cpu")
    assert not [note for note in counted.notes if "left out" in note]
    assert np.isfinite(counted.arrays["counts"]).all()
    found = judge(part, posed, "exact", "labels")
    assert found["exact.recovered"].verdict == "leak"
    assert found["labels.right"].value > 0.7
    # A form of which nobody knows what arrays are is left out by name.
    alone = replace(posed.knowledge, roles=(*first, *(replace(role, kind=OTHER) for role in second)))
    left = ATTACKS["exact"].run(record, alone, device="cpu").notes
    assert sum("in models of its form, no array is a first layer" in note for note in left) == CLIENTS
