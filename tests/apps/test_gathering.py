"""Witnesses of several machines and one record: what belongs together is judged, what does not is refused or told."""

import json
import os
import shutil
import stat
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.nn import functional as F  # noqa: N812

from fedattack.apps import computing
from fedattack.apps.app import App
from fedattack.apps.gathering import gather
from fedattack.apps.questions import Questions
from fedattack.attacks import read_targets
from fedattack.attacks.frozen import read_frozen
from fedattack.audit.truth import read_truth
from fedattack.base.errors import ConfigError, DataError, FedAttackError, TrustError
from fedattack.observe import ObservedLegacyStrategy, ObservedServerApp, ObservedStrategy
from fedattack.record import Record, check_record, shrink_record
from fedattack.record.folder import Part
from fedattack.record.format import RUN, seal_manifest
from fedattack.record.keep import Keep
from fedattack.runs.deployment import Deployment
from fedattack.witness import WITNESS_FOLDER, SeenExamples, WitnessMod, read_witnesses, sources, write_witness
from fedattack.witness.sample import hash_rows
from fedattack.witness.store import read_witness, write_frozen
from tests.apps.projects import MESSAGE_API, fedattack
from tests.apps.worlds import CLASSES, FEATURES, pool, pose
from tests.observe import apps
from tests.witness.apps import load
from tests.worlds.local_grid import FIRST_NODE, LocalGrid

CLIENTS = 3
X, Y = pool(200)
# Clients 1 and 2 hold five examples both.
OWN = [slice(0, 40), slice(40, 85), slice(80, 130)]
HELD_OUT = [slice(130, 145), slice(145, 160), slice(160, 180)]


def trained(model, where, steps=20):
    x, y = torch.tensor(X[where]), torch.tensor(Y[where])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def client_app(mod) -> ClientApp:
    app = ClientApp(mods=[mod])

    def answer(message: Message, context: Context) -> Message:
        client = context.node_config["partition-id"]
        model = nn.Linear(FEATURES, CLASSES)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        if message.metadata.message_type == "train":
            trained(model, OWN[client])
            content = {"arrays": ArrayRecord(model.state_dict())}
        else:
            with torch.no_grad():
                F.cross_entropy(model(torch.tensor(X[HELD_OUT[client]])), torch.tensor(Y[HELD_OUT[client]]))
            content = {}
        content["metrics"] = MetricRecord({"num-examples": 40 + 5 * client})
        return Message(RecordDict(content), reply_to=message)

    app.train()(answer)
    app.evaluate()(answer)
    return app


def server_app(make=FedAvg) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid, context):
        torch.manual_seed(0)
        make().start(grid, ArrayRecord(nn.Linear(FEATURES, CLASSES).state_dict()), num_rounds=2)

    return app


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A record of a server, and the folder of each of its clients' machines."""
    folder = tmp_path_factory.mktemp("machines")
    app = client_app(WitnessMod(folder / "all"))
    server = ObservedServerApp(server_app(), folder / "record")
    server(LocalGrid(app, CLIENTS), Context(run_id=7, node_id=1, node_config={}, state=RecordDict(), run_config={}))
    sources.remove()
    for client in range(CLIENTS):
        site = folder / f"site-{client}" / "run-7"
        site.mkdir(parents=True)
        shutil.copy(folder / "all" / "run-7" / f"{FIRST_NODE + client}.npz", site)
    return folder


@pytest.fixture
def world(made, tmp_path):
    """A copy of it to spoil."""
    shutil.copytree(made, tmp_path / "machines")
    folder = tmp_path / "machines"
    return SimpleNamespace(
        record=folder / "record",
        all=folder / "all",
        sites=[folder / f"site-{client}" for client in range(CLIENTS)],
        out=tmp_path / "out",
    )


def gathered(world, sites=None, **options):
    options = {"command": "fedattack gather", "trust": True} | options
    gather(world.record, world.sites if sites is None else sites, world.out, **options)
    return read_truth(world.out / "truth")


def change(site, **facts) -> None:
    """Write the one witness of a site anew."""
    (path,) = site.glob("run-*/*.npz")
    changed = replace(read_witness(path), **facts)
    path.unlink()
    write_witness(path.parent, changed)


def test_every_observer_says_of_which_run_a_record_is(made, tmp_path):
    assert Record(made / "record").facts[RUN] == "7"
    app = server_app(lambda: ObservedStrategy(FedAvg(), tmp_path / "record"))
    app(LocalGrid(client_app(WitnessMod()), CLIENTS), Context(7, 1, {}, RecordDict(), {}))
    legacy = ObservedLegacyStrategy(apps.legacy_fedavg({}), tmp_path / "legacy", facts={"site": "A"})
    server = apps.legacy_server(lambda: legacy, 1)
    server(LocalGrid(ClientApp(client_fn=apps.client_fn), 2), Context(7, 1, {}, RecordDict(), {}))
    legacy.close()
    assert Record(tmp_path / "record").facts[RUN] == "7"
    assert Record(tmp_path / "legacy").facts == {"site": "A", RUN: "7"}


def test_what_is_gathered_is_what_one_folder_would_have_given(world, tmp_path):
    truth = gathered(world)
    part = Part(tmp_path / "whole", "")
    shutil.copytree(world.record, part.record)
    pose(part, read_witnesses(world.all / "run-7"))
    whole = read_truth(part.truth)
    assert truth.nodes == whole.nodes == {str(FIRST_NODE + index): str(index) for index in range(CLIENTS)}
    for name in ("owners", "origins", "counts"):
        assert getattr(truth, name).tolist() == getattr(whole, name).tolist()
    assert (truth.targets, truth.shared) == (whole.targets, whole.shared)
    # It is true, too.
    targets = read_targets(world.out / "knowledge" / "targets.npz")
    for row, x in enumerate(targets.x):
        (index,) = np.flatnonzero((x == X).all(axis=1))
        owners = [str(client) for client, own in enumerate(OWN) if index in range(200)[own]]
        assert (sorted(truth.shared[row]) if row in truth.shared else [truth.owners[row]]) == (owners or [""])
    assert not truth.notes or "own evaluation examples" in truth.notes[-1]
    assert check_record(world.out / "record").whole
    for folder in (world.out, world.out / "record", world.out / "knowledge", world.out / "truth"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.slow
def test_one_command_leads_to_a_judged_report(world, call):
    words = ("gather", world.record, *world.sites, "--out", world.out)
    code, _, err = call(*words)
    assert code == 2
    assert "the witnesses name the model torch.nn.modules.linear:Linear" in err
    assert "add --trust" in err
    assert not world.out.exists()
    code, out, err = call(*words, "--trust", "--json")
    assert code == 0, err
    assert "imports torch.nn.modules.linear:Linear" in err
    found = {f"{item['attack']}.{item['metric']}": item for item in json.loads(out)}
    assert found["sia.asr"]["value"] > 1.5 * found["sia.asr"]["chance"] == 1.5 / CLIENTS
    assert found["sia.asr"]["null"] is not None
    assert found["membership.tpr-at-1pct-fpr"]["verdict"] != "not applicable"
    assert (world.out / "report.html").exists()
    assert json.loads((world.out / "run.json").read_text())["untried"]
    code, _, err = call(*words, "--trust")
    assert code == 2
    assert "already exists" in err


@pytest.mark.slow
def test_a_model_of_the_callers_own_needs_no_trust(world, call):
    code, _, err = call(
        *("gather", world.record, *world.sites, "--out", world.out, "--model", "logistic", "--fail-if", "sia.asr > 0.9")
    )
    assert code == 2
    assert "unknown model 'logistic'" in err
    code, _, err = call(
        *("gather", world.record, *world.sites, "--out", world.out, "--model", "tests.apps.worlds:linear"),
        *("--fail-if", "sia.asr > 0.2"),
    )
    assert code == 3, err


def test_what_no_client_sends_is_known_from_every_machine(world):
    weights = {"base.weight": np.ones((3, 2), np.float32)}
    for site in world.sites:
        (path,) = site.glob("run-*/*.npz")
        change(site, model=replace(read_witness(path).model, frozen=write_frozen(path.parent, weights)))
    truth = gathered(world)
    assert read_frozen(world.out / "knowledge" / "frozen.npz")["base.weight"].tolist() == [[1, 1]] * 3
    assert any("weights that no client sends" in note for note in truth.notes)
    told = [note for note in truth.notes if "differ" in note and "ways to train" not in note]
    assert told == []


def test_weights_that_differ_from_machine_to_machine_are_told(world):
    for number, site in enumerate(world.sites):
        (path,) = site.glob("run-*/*.npz")
        frozen = write_frozen(path.parent, {"base.weight": np.full(3, number, np.float32)})
        change(site, model=replace(read_witness(path).model, frozen=frozen))
    truth = gathered(world)
    assert not (world.out / "knowledge" / "frozen.npz").exists()
    assert any("differ from client to client" in note for note in truth.notes)


def forget_the_model(site) -> None:
    """Write the one witness of a site as if no import path made the model."""
    (path,) = site.glob("run-*/*.npz")
    change(site, model=replace(read_witness(path).model, spec=None, arguments={}, why="it is made in a function"))


def test_a_model_that_no_witness_names_is_taken_for_what_the_record_shows(world):
    """Two arrays of a linear layer need no name."""
    for site in world.sites:
        forget_the_model(site)
    truth = gathered(world)
    (note,) = (note for note in truth.notes if "linear layer" in note)
    assert "it is made in a function" in note


@pytest.mark.slow
def test_a_model_that_no_witness_names_is_asked_for(world, call, monkeypatch):
    monkeypatch.setattr(computing, "_outputs_of_linear", lambda *_: None)
    for site in world.sites:
        forget_the_model(site)
    words = ("gather", world.record, *world.sites, "--out", world.out)
    code, said, err = call(*words, "--all")
    assert code == 0, err
    # What needs no model is answered, and for the rest a line says what to do.
    assert "made in a function): name it by --model package.module" in " ".join(said.split())
    words = (*words[:-1], world.out.with_name("named"))
    code, _, err = call(*words, "--model", "tests.apps.worlds:linear")
    assert code == 0, err


def test_a_client_without_a_witness_is_told(world):
    truth = gathered(world, world.sites[:2])
    assert truth.clients == ("0", "1", f"node {FIRST_NODE + 2}")
    assert any("1 of the record's nodes were not seen to train" in note for note in truth.notes)


def test_a_witness_of_a_client_that_the_record_never_saw_is_left_out_and_told(world):
    change(world.sites[2], node="12345")
    truth = gathered(world)
    assert truth.clients == ("0", "1", f"node {FIRST_NODE + 2}")
    assert any("witnesses of clients that the record never saw are left out (1): 2" in note for note in truth.notes)
    assert not {*map(str, range(3, 10))} & {*truth.owners.tolist()}


def test_machines_that_are_all_called_alike_are_told_apart_by_their_nodes(world):
    for site in world.sites:
        change(site, client="0")
    truth = gathered(world)
    assert truth.clients == tuple(str(FIRST_NODE + index) for index in range(CLIENTS))
    assert {*truth.owners.tolist()} >= {*truth.clients}
    assert any("several clients call themselves 0: each is named by its node instead" in note for note in truth.notes)


def test_a_client_that_is_called_as_anothers_node_is_told_apart(world):
    change(world.sites[0], client=str(FIRST_NODE + 1))
    change(world.sites[1], client="")
    assert gathered(world).counts.sum(axis=1).tolist() == [50, 40, 45]


def test_a_client_that_was_started_again_is_one_client(world):
    """Its nodes lie in one folder, and never took part in the same round."""
    record = Record(world.record)
    alone = world.record.with_name("alone")
    from fedattack.record import Exchange, RecordWriter, Reply

    writer = RecordWriter(alone, facts={RUN: "7"})
    for round_, nodes in zip(record, ((0, 2), (1, 2)), strict=True):
        seen = {each.node: each for each in round_.observations}
        replies = [Reply(str(FIRST_NODE + node), "ok", dict(seen[str(FIRST_NODE + node)].arrays), 9) for node in nodes]
        writer.write(Exchange(round_.number, dict(round_.common), replies))
    writer.close()
    (path,) = world.sites[1].glob("run-7/*.npz")
    shutil.copy(path, world.sites[0] / "run-7")
    change_one = replace(read_witness(path), client="0")
    write_witness(world.sites[0] / "run-7", change_one)
    world.record = alone
    truth = gathered(world, [world.sites[0], world.sites[2]])
    assert truth.clients == ("0", "2")


def test_a_record_that_does_not_say_its_run(world):
    manifest = world.record / "manifest.json"
    value = json.loads(manifest.read_text())
    del value["facts"][RUN], value["check"]
    manifest.write_bytes(seal_manifest(value))
    shutil.copytree(world.sites[0] / "run-7", world.sites[0] / "run-9")
    with pytest.raises(
        ConfigError, match=r"does not say to which run it belongs; name the folder of one run, such as .*run-7"
    ):
        gathered(world)
    truth = gathered(world, [world.sites[0] / "run-7", *world.sites[1:]])
    assert any("only their nodes show" in note for note in truth.notes)


def test_a_record_of_some_rounds_is_taken(world):
    shrink_record(Record(world.record), world.record.with_name("small"), Keep(2))
    world.record = world.record.with_name("small")
    assert len(gathered(world).clients) == CLIENTS


def trained_in(world):
    return read_witnesses(world.sites[0] / "run-7")[0].trained


def change_trained(world, **facts) -> None:
    change(world.sites[0], trained=replace(trained_in(world), **facts))


def change_all(world, make) -> None:
    for index, site in enumerate(world.sites):
        change(site, **make(index))


def file_of(world):
    return world.sites[0] / "run-7" / "1.npz"


def reverse(world) -> None:
    seen = trained_in(world)
    change_trained(world, x=seen.x[::-1], y=seen.y[::-1], hashes=seen.hashes[::-1])


def seen(x, y) -> SeenExamples:
    """Return what a witness notes of examples."""
    order = np.argsort([key.hex() for key in hash_rows(x, 0)])
    hashes = np.array([list(key) for key in hash_rows(x[order], 0)], np.uint8)
    return SeenExamples(x[order], y[order], hashes, len(x), {})


def words_of(count: int):
    tokens = np.zeros(count, np.dtype([("input_ids", "<i8", (5,)), ("attention_mask", "<i8", (5,))]))
    tokens["input_ids"] = np.arange(5 * count).reshape(count, 5)
    return tokens


# Examples of one client, and what is said of it.
MISFITS = {
    "numbers alone": (np.arange(40, dtype=np.float32), "float32 of shape ()"),
    "one column more": (X[:40].repeat(2, axis=1)[:, : FEATURES + 1], f"float32 of shape ({FEATURES + 1},)"),
    "images": (np.arange(40 * 192, dtype=np.float32).reshape(40, 3, 8, 8), "float32 of shape (3, 8, 8)"),
    "integers": (np.arange(40 * FEATURES).reshape(40, FEATURES), f"int64 of shape ({FEATURES},)"),
    "text": (words_of(40), "the arrays input_ids, attention_mask"),
}


@pytest.mark.parametrize(("x", "form"), MISFITS.values(), ids=MISFITS)
def test_a_client_whose_examples_have_another_form_takes_nobodys_place(world, x, form):
    before = gathered(world)
    shutil.rmtree(world.out)
    change(world.sites[1], trained=seen(x, np.arange(len(x)) % CLASSES))
    truth = gathered(world)
    assert any(f"client 1 trains on examples of {form}, and most clients on" in note for note in truth.notes)
    assert truth.clients == before.clients
    assert {*truth.owners.tolist()} == {"", "0", "2"}
    assert {*truth.answers["exact"]["owners"].tolist()} == {"0", "2"}


SPOILS = {
    "has witnesses of run-8, but .*record is of run 7": lambda world: [
        (site / "run-7").rename(site / "run-8") for site in world.sites
    ],
    r"belong to several runs \(7, 8\)": lambda world: change(world.sites[1], run="8"),
    "has none of the 3 nodes of the witnesses, such as 0: they belong to another run": lambda world: change_all(
        world, lambda index: {"node": str(index)}
    ),
    "is in both .*site-0 and .*site-1; give only one of them": lambda world: shutil.copytree(
        world.sites[0], world.sites[1], dirs_exist_ok=True
    ),
    "its hashes do not match its examples;?": lambda world: change_trained(world, x=trained_in(world).x + 1),
    "its hashes do not match its examples": reverse,
    "its counts of classes add up to more than its number of examples": lambda world: change_trained(
        world, counts={0: 2**50}
    ),
    "a client cannot be called 'node ": lambda world: change(world.sites[0], client=f"node {FIRST_NODE}"),
    "'\\*' cannot be a client's name in the truth": lambda world: change(world.sites[0], client="*"),
    "is a link that leaves": lambda world: file_of(world).symlink_to("/etc/hostname"),
    "it is a pipe|is a pipe": lambda world: os.mkfifo(file_of(world)),
    "1.npz": lambda world: file_of(world).write_bytes(b"PK\x03\x04 nothing"),
    "holds no witness": lambda world: shutil.rmtree(world.sites[0] / "run-7"),
    "is not a folder": lambda world: shutil.rmtree(world.sites[0]),
    "is not there|No such file": lambda world: shutil.rmtree(world.record / "rounds"),
    "is a link that leaves ": lambda world: (world.record / "manifest.sig").symlink_to("/etc/hostname"),
    "no client's training was witnessed": lambda world: change_all(world, lambda _: {"trained": SeenExamples.none()}),
}


@pytest.mark.parametrize(("message", "spoil"), SPOILS.items(), ids=range(len(SPOILS)))
def test_what_does_not_belong_there_ends_in_one_line_and_leaves_nothing(world, spoil, message):
    spoil(world)
    with pytest.raises((FedAttackError, OSError), match=message.strip()) as caught:
        gathered(world)
    assert "\n" not in str(caught.value)
    assert not world.out.exists()
    assert not [path for path in world.out.parent.iterdir() if path.name.startswith(".")]


def test_code_that_witnesses_name_is_not_imported_without_trust(world, tmp_path, monkeypatch):
    (tmp_path / "fa_evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    for site in world.sites:
        (witness,) = read_witnesses(site / "run-7")
        change(site, model=replace(witness.model, spec="fa_evil:Net", loss="fa_evil:loss"))
    with pytest.raises(TrustError, match="name the model fa_evil:Net"):
        gathered(world, trust=False)
    with pytest.raises(TrustError, match="name the model fa_evil:Net"):
        gathered(world, trust=False, app=App(MESSAGE_API.copy(tmp_path)))
    with pytest.raises(TrustError, match="name the loss fa_evil:loss"):
        gathered(world, trust=False, asked=Questions(model="fa_evil:Net"))
    assert not world.out.exists()


def test_nothing_that_can_be_asked_about_ends_in_one_line(world):
    for site in world.sites:
        (witness,) = read_witnesses(site / "run-7")
        change(site, trained=replace(witness.trained, y=np.full(len(witness.trained), -1), counts={}))
    with pytest.raises(DataError, match="no training example was seen with a label"):
        gathered(world)


class Sites(Deployment):
    """Processes, each SuperNode of which has a folder of its own for its witness."""

    def _start_node(self, index, *words):
        self._environment[WITNESS_FOLDER] = str(self.log.parent / f"site-{index}" / "witness")
        return super()._start_node(index, *words)


def check_gathered(where, folder, folders) -> None:
    """Gather by the command, and hold the truth against what the project's own functions load."""
    done = fedattack(
        *("gather", str(folder / "record"), *map(str, folders)),
        *("--out", str(folder / "out"), "--trust", "--json"),
        cwd=where,
    )
    found = {f"{item['attack']}.{item['metric']}": item for item in json.loads(done.stdout)}
    assert found["sia.asr"]["value"] > 1.2 * found["sia.asr"]["chance"] == 1.2 / CLIENTS
    truth, targets = read_truth(folder / "out" / "truth"), read_targets(folder / "out" / "knowledge" / "targets.npz")
    parts = [load(MESSAGE_API, "task").load_data(client, CLIENTS) for client in range(CLIENTS)]
    own = [x.numpy() for (x, _), _ in parts]
    assert truth.counts.sum(axis=1).tolist() == [len(examples) for examples in own]
    for x, owner in zip(targets.x, truth.owners, strict=True):
        assert [str(client) for client in range(CLIENTS) if any((x == each).all() for each in own[client])] == (
            [owner] if owner else []
        )
    assert {*truth.owners} == {"", "0", "1", "2"}


def project(folder):
    where = MESSAGE_API.observed(folder, folder / "record")
    path = where / MESSAGE_API.package / "client_app.py"
    text = path.read_text().replace("app = ClientApp()", "app = ClientApp(mods=[WitnessMod()])")
    path.write_text(f"from fedattack.witness import WitnessMod\n{text}")
    return where


@pytest.mark.long
@pytest.mark.flower
def test_real_processes_witness_themselves(tmp_path):
    where = project(tmp_path)
    with Sites(where, supernodes=CLIENTS, log=tmp_path / "flower.log") as sites:
        for _ in range(2):
            assert sites.run({"num-server-rounds": 2}) is None
            # The SuperNodes are the same ones in the second run, and so are their folders.
            (tmp_path / "record").rename(tmp_path / f"record-{Record(tmp_path / 'record').facts[RUN]}")
    records = sorted(tmp_path.glob("record-*"))
    folders = sorted(tmp_path.glob("site-*/witness"))
    assert len(folders) == CLIENTS
    for folder in folders:
        assert sorted(path.name for path in folder.iterdir()) == [
            path.name.replace("record", "run") for path in records
        ]
    records[1].rename(tmp_path / "record")
    check_gathered(where, tmp_path, folders)
