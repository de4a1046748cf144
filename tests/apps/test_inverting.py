"""Examples are searched for through the app's own step as they are through a model, where there are both."""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from shutil import copytree, rmtree

import numpy as np
import pytest
import torch

from fedattack.apps import asking, inverting
from fedattack.apps.answering import Interview
from fedattack.apps.app import App
from fedattack.apps.asking import Asker, Inquiry
from fedattack.apps.auditing import control_all, invert_by_app
from fedattack.apps.inverting import AppClient, explain_no_search, invert_replies, search_step
from fedattack.apps.player import Handler, Player
from fedattack.apps.witnessing import witnesses_of
from fedattack.attacks import Knowledge, ModelKnowledge, Targets, read_knowledge, write_knowledge
from fedattack.audit.control import ALONE, Control
from fedattack.audit.finding import CANNOT_TELL, LEAK, NO_EVIDENCE
from fedattack.base.errors import DataError
from fedattack.base.files import write_npz
from fedattack.learning import LocalSGD
from fedattack.learning.soft_losses import soft_targets
from fedattack.record import Record
from fedattack.record.folder import Part
from fedattack.runs.pipeline import choose_attacks, judge_runs
from fedattack.runs.watch import Watch
from fedattack.threats.inversion.gradient_inversion import ClientModel, ReplyBatch, Search, invert_group
from fedattack.threats.inversion.inversion import GradientInversion, ReconstructedExamples
from tests.apps.projects import ASKED as PROJECT
from tests.apps.projects import TABLE
from tests.apps.worlds import attack_all, pose_all, run_here
from tests.witness.apps import load
from tests.worlds.inversion import MODEL, digits, write_inversion_run

CLIENTS = 6
TRAINING = LocalSGD(epochs=2, batch_size=0, lr=0.1)


def run(part, kind):
    client, server = (load(PROJECT, name).app for name in ("client_app", "server_app"))
    torch.manual_seed(4)
    run_here(part, server, client, {"kind": kind}, CLIENTS)
    return App(PROJECT.where, {"kind": kind}, CLIENTS)


def examples():
    module = load(PROJECT, "client_app")
    return module.X.reshape(-1, module.FEATURES).numpy(), module.Y.reshape(-1).numpy()


def player_of(part, app, x, y):
    received = dict(Record(part.record).rounds[0].observations[0].received)
    asked = vars(witnesses_of(part)[0].asked)
    handler = Handler(
        load(PROJECT, "client_app").app, app.config, {"partition-id": 0, "num-partitions": CLIENTS}, **asked
    )
    player = Player(handler, received, x, y)
    player.take(received)
    return player, received


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    part = Part(tmp_path_factory.mktemp("few"), "")
    return part, run(part, "few")


@pytest.mark.parametrize("is_together", [True, False])
@pytest.mark.parametrize("training", [TRAINING, LocalSGD(epochs=3, batch_size=3, lr=0.2, momentum=0.9)])
def test_the_apps_own_step_gives_the_movement_and_the_objective_of_a_model(training, is_together, few):
    x, y = examples()
    player, received = player_of(*few, x, y)
    by_app = AppClient.of(player, x, training)
    by_app._is_together = is_together
    by_model = ClientModel(load(PROJECT, "client_app").make("few"), "cross-entropy", training)
    rows = [3, 30, 60, 90]
    true = torch.from_numpy(x[rows])
    moved = by_model.movement(*by_model.split(received), true, soft_targets("cross-entropy", y[rows], 3))
    again = by_app.movement(*by_app.split(received), true, torch.from_numpy(y[rows]))
    assert again.keys() == moved.keys()
    for name, value in moved.items():
        torch.testing.assert_close(again[name], value, rtol=1e-5, atol=1e-6)
    movement = {name: value.detach().numpy() for name, value in moved.items()}
    batch = ReplyBatch(received, movement, len(rows), y[rows])
    how = Search("cos", iterations=5, restarts=2)
    one, other = (invert_group(client, {0: batch}, (20,), how)[0] for client in (by_app, by_model))
    np.testing.assert_allclose(one.objectives, other.objectives, rtol=1e-5)
    np.testing.assert_allclose(one.x, other.x, rtol=1e-3, atol=1e-3)


def test_examples_of_clients_are_found_through_the_app_and_labels_told(few, monkeypatch, tmp_path):
    part, app = few
    x, y = examples()
    targets = Targets(x, y)
    lr = witnesses_of(part)[0].asked.configs["config"]["lr"]
    write_knowledge(part.knowledge, Knowledge(targets=targets, training=replace(TRAINING, lr=lr)))

    def run_in_this_process(request: Path, answers: Path, place: Path, say) -> None:
        monkeypatch.setattr(sys, "path", [*sys.path])
        write_npz(answers, Interview(json.loads(request.read_text())).answer(lambda line: None))

    monkeypatch.setattr(asking, "_run", run_in_this_process)
    nodes = list(Record(part.record).nodes)[:2]
    scores = Asker(app).invert(Inquiry(part, witnesses_of(part), targets), nodes)
    found = scores.as_found(ReconstructedExamples)
    module = load(PROJECT, "client_app")
    by_node = {witness.node: int(witness.client) for witness in witnesses_of(part) if witness.client.isdecimal()}
    # The work for both is counted, so a slow machine searches for as much as a fast one.
    assert len(found.batches) == len(nodes), scores.notes
    for number, reply in enumerate(found.batches):
        own, labels = module.X[by_node[reply.node], :2].numpy(), module.Y[by_node[reply.node], :2].numpy()
        rebuilt = found.images[found.of_batch == number]
        np.testing.assert_array_equal(np.sort(found.labels[found.of_batch == number]), np.sort(labels))
        errors = [np.abs(rebuilt[order] - own).mean() for order in ([0, 1], [1, 0])]
        others = np.abs(rebuilt - module.X[5, 10:12].numpy()).mean()
        assert min(errors) < 0.3 * others
    assert any("through the clients' own app" in note for note in scores.notes)
    assert any("1,000 gradients for each reply" in note for note in scores.notes)


@pytest.fixture
def searched(few, here, monkeypatch, tmp_path):
    """Search for examples, of which nothing is found."""
    part, app = few
    copy = Part(tmp_path / "run", "")
    copytree(part.folder, copy.folder)
    (posed,) = pose_all([copy], app=app)
    # As where no model can be built.
    answers, _ = Asker(app).losses(Inquiry(copy, witnesses_of(copy), posed.knowledge.targets))
    posed = [replace(posed, knowledge=replace(posed.knowledge, model=None, answers=answers))]
    rmtree(copy.knowledge)
    write_knowledge(copy.knowledge, posed[0].knowledge)
    done = attack_all([copy], posed, lambda names: choose_attacks(["sia"], {}))
    with monkeypatch.context() as short:
        short.setattr(inverting, "_ITERATIONS", 1)
        done = invert_by_app(Asker(app), posed, done)
    scores = done.runs[0].scores["inversion"]
    assert scores.as_found(ReconstructedExamples).batches, done.folder.study["untried"]
    return app, done


@pytest.mark.slow
@pytest.mark.parametrize("is_asked", [False, True])
def test_rows_of_an_apps_table_are_searched_for_by_the_columns_of_its_examples(is_asked, here, tmp_path):
    part, clients = Part(tmp_path, ""), TABLE.config["num-clients"]
    client, server = (load(TABLE, name).app for name in ("client_app", "server_app"))
    torch.manual_seed(4)
    run_here(part, server, client, TABLE.config, clients)
    app = App(TABLE.where, TABLE.config, clients)
    (posed,) = pose_all([part], app=app)
    # Age, a job, hours, a country, a degree, a sex: as the app has coded them, though few people stand for many values.
    assert [len(column) for column in posed.knowledge.coding.columns] == [1, 12, 1, 20, 5, 1]
    assert posed.knowledge.coding.is_number == (True, False, True, False, False, False)
    posed = replace(posed, few=posed.few[:3])
    attacks = ["inversion"]
    if is_asked:
        # As where no model can be built.
        answers, _ = Asker(app).losses(Inquiry(part, witnesses_of(part), posed.knowledge.targets))
        posed, attacks = replace(posed, knowledge=replace(posed.knowledge, model=None, answers=answers)), ["sia"]
        rmtree(part.knowledge)
        write_knowledge(part.knowledge, posed.knowledge)
    done = attack_all([part], [posed], lambda names: choose_attacks(attacks, {}))
    if is_asked:
        done = invert_by_app(Asker(app), [posed], done)
    scores = done.runs[0].scores["inversion"]
    assert scores.as_found(ReconstructedExamples).method == "table"
    findings, _ = judge_runs(done.folder, done.runs, device="cpu", watch=Watch())
    found = {finding.metric: finding for finding in findings if finding.attack == "inversion"}
    assert found["cells"].value > found["cells"].chance + 0.3
    assert found["cells"].verdict == found["rows"].verdict == LEAK
    assert found["sure-cells"].value > 0.9
    assert [row["column"] for row in found["cells"].series["columns"]] == ["1", "2", "3", "4", "5", "6"]


@pytest.mark.parametrize(("iterations", "is_seen"), [(1_000, True), (1, False)])
def test_one_planted_example_says_whether_the_search_would_find_any(searched, monkeypatch, iterations, is_seen):
    app, done = searched
    count = len(done.runs[0].scores["inversion"].as_found(ReconstructedExamples).batches)
    monkeypatch.setattr(inverting, "_ITERATIONS", iterations)
    control_all(Asker(app), done, Watch())
    assert Control(**done.folder.study["controls"]["inversion"]) == Control(ALONE, 1, is_seen, 1, count)
    findings, _ = judge_runs(done.folder, done.runs, device="cpu", watch=Watch())
    found = next(finding for finding in findings if finding.name == "inversion.recognised")
    assert found.verdict == (NO_EVIDENCE if is_seen else CANNOT_TELL)
    assert f"one plain step on a single target of their own (1 of {count} replies)" in found.reason
    assert found.reason.endswith("recognises the target" if is_seen else "does not recognise it: it cannot tell")


@pytest.mark.parametrize(("iterations", "is_seen"), [(300, True), (1, False)])
def test_a_planted_step_of_a_known_model_is_searched_for(tmp_path, iterations, is_seen):
    write_inversion_run(tmp_path, clients=2)
    x, y = digits()
    known = replace(read_knowledge(tmp_path / "knowledge"), targets=Targets(x[:5], y[:5]))
    record = Record(tmp_path / "record")
    attack = GradientInversion().with_options({"iterations": "1", "variation": "0"})
    found = attack.run(record, known, device="cpu").as_found(ReconstructedExamples)
    image = search_step(record, known, "node1", 3, replace(found, iterations=iterations))
    assert image.shape == (1, 1, 8, 8)
    assert (np.abs(image - x[3]).mean() < 0.1) == is_seen


def test_searches_of_large_models_are_counted_as_too_long():
    labels = np.zeros(40, np.int64)
    assert not explain_no_search(MODEL, labels, is_bounded=True)
    large = replace(MODEL, hidden=20_000)
    assert "the 40 examples of the smallest client" in explain_no_search(large, labels, is_bounded=True)
    assert not explain_no_search(large, labels[:2], is_bounded=False)


class Undecided(torch.nn.Linear):
    """Takes one way or another by what its examples are, which no search can follow."""

    def forward(self, x):
        return super().forward(x) if x.sum().item() > 0 else super().forward(2 * x)


def test_models_that_cannot_be_searched_through_are_refused():
    model = ModelKnowledge(f"{__name__}:Undecided", (5,), 3, arguments={"in_features": 5, "out_features": 3})
    why = explain_no_search(model, np.zeros(4, np.int64), is_bounded=False)
    assert why.startswith("no gradient of a gradient can be computed by the clients' model: ")
    assert "\n" not in why


def test_a_control_that_fails_leaves_the_search_unable_to_tell(searched, monkeypatch):
    app, done = searched

    def fail(*args, **kwargs):
        raise DataError("nothing can be planted")

    monkeypatch.setattr(Asker, "invert", fail)
    control_all(Asker(app), done, Watch())
    assert "inversion" not in done.folder.study["controls"]
    findings, _ = judge_runs(done.folder, done.runs, device="cpu", watch=Watch())
    found = next(finding for finding in findings if finding.name == "inversion.recognised")
    assert found.verdict == CANNOT_TELL
    assert "no positive control was made" in found.reason


def test_the_machine_decides_neither_which_clients_are_searched_nor_what_is_found(few, monkeypatch):
    part, _ = few
    x, y = examples()
    known = Knowledge(targets=Targets(x, y), training=TRAINING)
    record = Record(part.record)

    def search():
        return invert_replies(
            record, known, [*record.nodes][:2], (x, y), lambda weights, node: player_of(*few, x, y)[0]
        )

    monkeypatch.setattr(inverting, "_ITERATIONS", 20)
    one, _ = search()
    # A machine that is a thousand times slower.
    clocks = {name: getattr(time, name) for name in ("process_time", "monotonic", "perf_counter", "time")}
    for name, clock in clocks.items():
        monkeypatch.setattr(time, name, lambda clock=clock: 1_000 * clock())
    other, _ = search()
    assert len(one.batches) == len(other.batches) == 2
    np.testing.assert_array_equal(one.images, other.images)
    np.testing.assert_array_equal(one.objectives, other.objectives)


def test_what_is_counted_grows_with_the_search_and_bounds_it(few, monkeypatch):
    part, _ = few
    x, y = examples()
    player, received = player_of(*few, x, y)
    batch = ReplyBatch(received, received, 2, y[:2])
    once, thrice = (
        inverting._count_seconds(AppClient.of(player, x, replace(TRAINING, epochs=epochs)), batch, (20,), 1_000)
        for epochs in (1, 3)
    )
    assert 2 < thrice / once < 4
    known = Knowledge(targets=Targets(x, y), training=replace(TRAINING, epochs=1))
    monkeypatch.setattr(inverting, "_SECONDS", 1.5 * once)
    monkeypatch.setattr(
        inverting,
        "invert_group",
        lambda client, group, *args, **how: invert_group(client, group, (20,), Search("cos", iterations=1)),
    )
    record = Record(part.record)
    found, notes = invert_replies(record, known, [*record.nodes][:2], (x, y), lambda weights, node: player)
    # There is enough for one of them.
    assert len(found.batches) == 1
    assert any(" left out: its search of 1,000 gradients is counted as" in note for note in notes), notes


def test_of_clients_of_many_examples_one_gradient_stands_for_all_steps(few, monkeypatch):
    part, _ = few
    x, y = examples()
    player, _ = player_of(*few, x, y)
    searched = []

    def search(client, group, *args, **how):
        searched.append((client.training, group[0]))
        return invert_group(client, group, (20,), Search("cos", iterations=1))

    monkeypatch.setattr(inverting, "invert_group", search)
    monkeypatch.setattr(inverting, "FEW", 1)
    record, known = Record(part.record), Knowledge(targets=Targets(x, y), training=TRAINING)
    (reply, *_) = record.rounds[0].observations
    found, notes = invert_replies(record, known, [reply.node], (x, y), lambda weights, node: player)
    assert (found.imitate, found.iterations) == ("middle", 500)
    assert any("at the middle of its path" in note for note in notes)
    ((training, batch),) = searched
    assert training.steps(2) == 1
    for name, array in batch.received.items():
        np.testing.assert_allclose(array, (reply.received[name] + reply.arrays[name]) / 2, rtol=1e-6)
        moved = (reply.received[name] - reply.arrays[name]) / (TRAINING.lr * TRAINING.steps(2))
        np.testing.assert_allclose(batch.movement[name], moved, rtol=1e-3, atol=1e-6)


def test_what_cannot_be_searched_is_refused_by_name(few, tmp_path):
    part, app = few
    x, y = examples()
    known = Knowledge(targets=Targets(x, y))
    record = Record(part.record)
    with pytest.raises(DataError, match="not known how clients train"):
        invert_replies(record, known, [*record.nodes][:1], (x, y), lambda weights, node: None)
    by_adam = replace(known, training=replace(TRAINING, optimizer="Adam"))
    with pytest.raises(DataError, match="plain SGD"):
        invert_replies(record, by_adam, [*record.nodes][:1], (x, y), lambda weights, node: None)
    other = Part(tmp_path, "")
    app = run(other, "norms")
    player, _ = player_of(other, app, x, y)
    with pytest.raises(DataError, match="normalises by the batch"):
        AppClient.of(player, x, TRAINING)
    with pytest.raises(DataError, match="normalises by the batch"):
        invert_replies(
            Record(other.record),
            replace(known, training=TRAINING),
            [*Record(other.record).nodes][:1],
            (x, y),
            lambda weights, node: player,
        )
