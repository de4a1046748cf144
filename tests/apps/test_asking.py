"""The clients' own app says which losses examples have: as a model would, where one is known, and where none is."""

import re
import sys
from functools import wraps
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from fedattack.apps import answering
from fedattack.apps.answering import SHADOWS, Interview
from fedattack.apps.app import App
from fedattack.apps.asking import Asker, Inquiry
from fedattack.apps.holding import hold
from fedattack.apps.player import LONGEST, Handler, Player
from fedattack.apps.questions import Questions
from fedattack.apps.witnessing import witnesses_of
from fedattack.attacks import Knowledge, ModelKnowledge, Targets
from fedattack.attacks.answers import Answers
from fedattack.base.errors import DataError, FedAttackError, RunError
from fedattack.record import Record
from fedattack.record.folder import Part
from fedattack.runs.watch import Watch
from fedattack.threats.membership.fedmia import below_others, logits_of
from fedattack.threats.membership.membership import Membership
from fedattack.threats.source.sia import SourceInference
from tests.apps.projects import ASKED as PROJECT
from tests.apps.worlds import pose_all, run_here
from tests.witness.apps import load

CLIENTS = 6


def ask(app: App, part: Part, witnesses, targets: Targets, watch: Watch | None = None):
    return Asker(app, watch).losses(Inquiry(part, witnesses, targets))


def run(part: Part, kind: str, **config: int) -> App:
    """Run the project in this process, under witness and observed."""
    client, server = (load(PROJECT, name).app for name in ("client_app", "server_app"))
    torch.manual_seed(4)
    run_here(part, server, client, {"kind": kind, **config}, CLIENTS)
    return App(PROJECT.where, {"kind": kind}, CLIENTS)


def targets_of(part: Part) -> Targets:
    """All examples, the clients' own first."""
    module = load(PROJECT, "client_app")
    x, y = module.X.reshape(-1, module.FEATURES).numpy(), module.Y.reshape(-1).numpy()
    return Targets(x.astype(np.float32), y)


def own_loss(kind: str, model, x, y) -> np.ndarray:
    """The obvious way: the app's own loss of each example alone, in a model that was made by hand."""
    losses = []
    with torch.no_grad():
        for one, label in zip(torch.from_numpy(x), torch.from_numpy(np.asarray(y)), strict=True):
            losses.append(load(PROJECT, "client_app").loss_of(kind, model.eval(), one[None], label[None]).item())
    return np.array(losses)


def models_of(part: Part, kind: str):
    """The model of each reply, by round and node, put together by the app's own code."""
    module = load(PROJECT, "client_app")
    for round_ in Record(part.record):
        for reply in round_.observations:
            state = {name: torch.from_numpy(np.array(value)) for name, value in reply.arrays.items()}
            if kind == "bits":
                state = {name: value.view(torch.bfloat16) for name, value in state.items()}
            model = module.make(kind, len(state["net.0.bias"]))
            model.load_state_dict(state, strict=False)
            yield (round_.seq, reply.node), model


def test_losses_and_gradients_are_those_of_the_vectorised_way(tmp_path, here):
    part = Part(tmp_path, "")
    app, targets = run(part, "classifier"), targets_of(part)
    answers, notes = ask(app, part, witnesses_of(part), targets)
    assert notes == []
    rows = answers.rows()
    for key, model in models_of(part, "classifier"):
        expected = own_loss("classifier", model, targets.x, targets.y)
        np.testing.assert_allclose(answers.losses[rows[key]], expected, rtol=1e-5, atol=1e-6)
    sys.path.insert(0, str(app.folder))
    known = Knowledge(ModelKnowledge("asked_app.client_app:Net", (20,), 3), targets)
    asked = Knowledge(targets=targets, answers=answers)
    record = Record(part.record)
    for attack in (SourceInference(), Membership()):
        by_model = attack.run(record, known, device="cpu").arrays
        by_app = attack.run(record, asked, device="cpu").arrays
        # Losses of any scale are scaled before they are combined.
        for name in {*by_model} & {*by_app} - {"combined"}:
            if by_model[name].dtype.kind == "f":
                np.testing.assert_allclose(by_app[name], by_model[name], rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        *("without backward", "backward twice", "checks lengths", "keeps files open"),
        *("autoencoder", "micro-batches", "bits"),
    ],
)
def test_losses_are_those_of_the_apps_own_code(kind, tmp_path, here):
    """Of apps of unusual habits, and of losses that nobody knows."""
    part = Part(tmp_path, "")
    app = run(part, kind)
    examples = hold(witnesses_of(part)).examples
    assert len(examples) == CLIENTS * 24
    x = np.stack([x for x, _ in examples.values()])
    targets = Targets(x, np.array([y for _, y in examples.values()]))
    answers, notes = ask(app, part, witnesses_of(part), targets)
    assert notes == []
    assert len(answers.losses) == 2 * CLIENTS
    inputs = x["0"] if x.dtype.names else x
    for key, model in models_of(part, kind):
        expected = own_loss(kind, model, inputs, targets.y)
        np.testing.assert_allclose(answers.losses[answers.rows()[key]], expected, rtol=1e-2 if kind == "bits" else 1e-5)


@pytest.mark.slow
def test_of_an_app_that_is_not_deterministic_a_note_says_what_counts(tmp_path, here):
    part = Part(tmp_path, "")
    app = run(part, "not deterministic")
    (posed,) = pose_all([part], app=app)
    assert any("inputs are augmented, or are others in each round" in note for note in posed.notes)
    assert any("so there is no null run" in note for note in posed.notes)


@pytest.mark.slow
def test_training_in_another_process_is_refused_by_name(tmp_path, here):
    part = Part(tmp_path, "")
    app = run(part, "in a subprocess")
    with pytest.raises(FedAttackError, match="no client's training was witnessed"):
        pose_all([part], app=app)


@pytest.mark.slow
def test_each_client_may_be_sent_a_part_of_the_model(tmp_path, here):
    part = Part(tmp_path, "")
    app, targets = run(part, "parts"), targets_of(part)
    answers, notes = ask(app, part, witnesses_of(part), targets)
    assert [note.partition(";")[0] for note in notes] == ["clients send models of 2 forms"]
    rows = answers.rows()
    medians = np.median(answers.losses, axis=1)
    np.testing.assert_allclose(medians, medians[0], rtol=1e-9)
    for key, model in models_of(part, "parts"):
        expected = own_loss("parts", model, targets.x, targets.y)
        found = answers.losses[rows[key]]
        np.testing.assert_allclose(found / found[0], expected / expected[0], rtol=1e-4)


@pytest.mark.parametrize("kind", ["classifier", "autoencoder", "compared", "head first", "micro-batches", "parts"])
def test_gradients_of_all_targets_at_once_are_those_of_each(kind, tmp_path, here, monkeypatch):
    part = Part(tmp_path, "")
    app = run(part, kind)
    examples = hold(witnesses_of(part)).examples.values()
    targets = Targets(np.stack([x for x, _ in examples]), np.array([y for _, y in examples]))
    together, notes = ask(app, part, witnesses_of(part), targets)
    assert not any("one by one" in note for note in notes)
    monkeypatch.setattr("fedattack.witness.tape._TOGETHER", 0)
    one_by_one, _ = ask(app, part, witnesses_of(part), targets)
    assert np.isfinite(one_by_one.products).all()
    np.testing.assert_array_equal(together.losses, one_by_one.losses)
    np.testing.assert_array_equal(together.nodes, one_by_one.nodes)
    np.testing.assert_allclose(together.norms, one_by_one.norms, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(cosines(together), cosines(one_by_one), atol=1e-6)


def cosines(answers: Answers) -> np.ndarray:
    return answers.products / (answers.norms * answers.lengths[:, None])


def test_those_who_were_sent_one_model_share_its_gradients(tmp_path, here, monkeypatch):
    part = Part(tmp_path, "")
    app, targets = run(part, "parts"), targets_of(part)
    asked = []
    along = Player.along
    monkeypatch.setattr(Player, "along", lambda player, updates: asked.append(len(updates)) or along(player, updates))
    shared, _ = ask(app, part, witnesses_of(part), targets)
    # In both rounds half of the clients are sent a narrower model.
    assert asked == [CLIENTS // 2] * 4
    asked.clear()
    monkeypatch.setattr(answering, "UPDATES_MEMORY", 0)
    by_itself, _ = ask(app, part, witnesses_of(part), targets)
    assert sorted(asked) == [1] * CLIENTS + [CLIENTS // 2] * 2
    shared_rows, rows = shared.rows(), by_itself.rows()
    for key, row in rows.items():
        np.testing.assert_allclose(shared.products[shared_rows[key]], by_itself.products[row], rtol=1e-4, atol=1e-7)
        assert shared.lengths[shared_rows[key]] == by_itself.lengths[row]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "piece"), [("parts", "_ask_group"), ("autoencoder", "_train_shadow")])
def test_what_processes_find_side_by_side_is_what_one_finds(kind, piece, tmp_path, here, monkeypatch):
    part = Part(tmp_path, "")
    app = run(part, kind)
    examples = hold(witnesses_of(part)).examples.values()
    targets = Targets(np.stack([x for x, _ in examples]), np.array([y for _, y in examples]))
    inquiry = Inquiry(part, witnesses_of(part), targets)
    done = []
    one_piece = getattr(Interview, piece)

    # It keeps its name, by which another process finds its own.
    @wraps(one_piece)
    def note(interview, item):
        done.append(item)
        return one_piece(interview, item)

    monkeypatch.setattr(Interview, piece, note)

    def find():
        done.clear()
        if piece == "_ask_group":
            return Asker(app).losses(inquiry)
        return Asker(app).shadows(inquiry, targets)

    monkeypatch.setenv("PYTHON_CPU_COUNT", "1000")
    alone, notes = find()
    assert len(done) > 2
    # The first piece is done here and timed; all others seem to take long.
    monkeypatch.setattr("fedattack.attacks._fan_out._PACE", 0.0)
    monkeypatch.setattr("fedattack.attacks._fan_out.WORTH_WORKERS", 0.0)
    monkeypatch.setenv("PYTHON_CPU_COUNT", "2")
    spread, same_notes = find()
    assert len(done) == 1
    assert notes == same_notes
    for name, values in vars(alone).items():
        np.testing.assert_array_equal(values, vars(spread)[name])


STATISTICS = "batch statistics, which no client sends, were estimated on the target records under each model"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "put"),
    [
        ("norms", [STATISTICS, "net.1.weight, net.1.bias, which clients keep, were fitted to the target records"]),
        ("head", ["net.3.weight, net.3.bias, which clients keep, were fitted to the target records under each model"]),
    ],
)
def test_what_stays_at_home_is_put_in_its_place_and_named(kind, put, tmp_path, here):
    part = Part(tmp_path, "")
    app, targets = run(part, kind), targets_of(part)
    answers, notes = ask(app, part, witnesses_of(part), targets)
    assert len(answers.losses) == 2 * CLIENTS
    assert np.isfinite(answers.losses).all()
    for note, begins in zip(notes, put, strict=True):
        assert note.startswith(begins)


@pytest.mark.slow
def test_what_is_sent_can_be_trained_further_where_the_first_step_trains_what_is_kept(tmp_path, here):
    part = Part(tmp_path, "")
    app, targets = run(part, "head first"), targets_of(part)
    inquiry = Inquiry(part, witnesses_of(part), targets)
    nodes = sorted({reply.node for reply in Record(part.record).rounds[0].observations})
    owned = {node: [*range(24 * row, 24 * row + 16)] for row, node in enumerate(nodes)}
    by_passes, share = Asker(app).plant(inquiry, owned, (1, 64))
    assert share == (2 * CLIENTS, 2 * CLIENTS)
    for row, node in enumerate(by_passes[64].nodes.tolist()):
        fell = by_passes[1].losses[row] - by_passes[64].losses[row]
        others = [other for other in range(len(targets)) if other not in owned[node]]
        assert np.mean(fell[owned[node]]) > np.mean(fell[others])
    # Gradients of what is sent are held against the update, too.
    assert np.isfinite(ask(app, part, witnesses_of(part), targets)[0].products).all()


def test_planting_ends_in_time_and_says_in_how_many_replies(tmp_path, here):
    """What the time does not allow is as it was sent, and no further round is asked about."""
    part = Part(tmp_path, "")
    app, targets = run(part, "head first"), targets_of(part)
    record = Record(part.record)
    inquiry = Inquiry(part, witnesses_of(part), targets)
    nodes = [reply.node for reply in record.rounds[0].observations]
    owned = {node: [0, 1] for node in nodes}
    asker = Asker(app)
    by_passes, share = asker.plant(inquiry, owned, (1,), seconds=0)
    assert share == (1, 2 * CLIENTS)
    assert {*by_passes[1].seqs.tolist()} == {record.rounds[0].seq}
    as_sent = asker.losses(inquiry)[0]
    np.testing.assert_array_equal(by_passes[1].losses[1:], as_sent.losses[1:CLIENTS])
    assert (by_passes[1].losses[0] != as_sent.losses[0]).any()
    records, share = asker.plant_steps(inquiry, owned, (1,), tmp_path / "planted", seconds=0)
    assert share == (1, 2 * CLIENTS)
    changed = []
    for before, after in zip(record, records[1], strict=True):
        for sent, planted in zip(before.observations, after.observations, strict=True):
            changed.append(any((sent.arrays[name] != planted.arrays[name]).any() for name in sent.arrays))
    assert changed == [True] + [False] * (2 * CLIENTS - 1)


def test_something_is_planted_in_the_rounds_that_are_asked_for(tmp_path, here):
    part = Part(tmp_path, "")
    app, targets = run(part, "head first"), targets_of(part)
    last = Record(part.record).rounds[-1]
    owned = {reply.node: [0, 1] for reply in last.observations}
    inquiry = Inquiry(part, witnesses_of(part), targets)
    by_passes, share = Asker(app).plant(inquiry, owned, (1,), seqs=[last.seq])
    assert {*by_passes[1].seqs.tolist()} == {last.seq}
    assert share == (CLIENTS, 2 * CLIENTS)


def test_a_model_that_the_sent_one_is_compared_with_is_none_that_clients_keep(tmp_path, here):
    part = Part(tmp_path, "")
    app = run(part, "compared")
    posed = pose_all([part], app=app)[0]
    assert posed.knowledge.answers is not None
    assert np.isfinite(posed.knowledge.answers.losses).all()
    assert any("another model that starts with the weights that clients are sent" in note for note in posed.notes)
    assert not any("which clients keep" in note for note in posed.notes)


def test_replies_of_another_form_are_left_out_by_name(tmp_path, here):
    part = Part(tmp_path, "")
    app, targets = run(part, "renamed"), targets_of(part)
    answers, notes = ask(app, part, witnesses_of(part), targets)
    assert len({*answers.nodes.tolist()}) == CLIENTS - 1
    assert len(notes) == 1
    assert notes[0].startswith("2 replies left out: its reply does not hold the arrays that it was sent: module.net.0.")
    assert "appeared" in notes[0]
    assert "vanished" in notes[0]


def test_examples_of_an_autoencoder_are_asked_about(tmp_path, here):
    part = Part(tmp_path, "")
    app = run(part, "autoencoder")
    posed = pose_all([part], app=app)[0]
    assert posed.knowledge.model is None
    assert posed.knowledge.answers.losses.shape == (2 * CLIENTS, len(posed.knowledge.targets))
    assert any("the attacker is assumed to run the clients' own app" in note for note in posed.notes)
    scores = SourceInference().run(Record(part.record), posed.knowledge, device="cpu")
    assert scores.arrays["losses"].shape[1:] == (len(posed.knowledge.targets), CLIENTS)


def test_the_app_itself_trains_shadow_models(tmp_path, here):
    part = Part(tmp_path, "")
    app = run(part, "autoencoder")
    knowledge = pose_all([part], app=app)[0].knowledge
    count = len(knowledge.targets)
    assert knowledge.shadow_losses.losses.shape == (2, SHADOWS, count)
    assert {*knowledge.shadow_losses.seqs.tolist()} == {0, 1}
    scores = Membership().run(Record(part.record), knowledge, device="cpu")
    assert scores.facts["trained"] == 2 * SHADOWS
    # The slow, obvious way, round by round: how far a client's logit lies below those of the shadow models.
    expected = np.zeros((count, CLIENTS))
    answers, rows = knowledge.answers, knowledge.answers.rows()
    for seq, losses in zip(knowledge.shadow_losses.seqs.tolist(), knowledge.shadow_losses.losses, strict=True):
        nodes = scores.facts["clients"]
        own = np.stack([answers.losses[rows[seq, node]] for node in nodes], axis=1)
        expected += below_others(logits_of(own), logits_of(losses.T)) / 2
    np.testing.assert_allclose(scores.arrays["score/likelihood-ratio"], expected, rtol=1e-6)
    assert "score/rmia" not in scores.arrays


def test_who_does_not_know_how_clients_train_has_no_shadow_models(tmp_path, here):
    part = Part(tmp_path, "")
    app = run(part, "autoencoder")
    posed = pose_all([part], app=app, asked=Questions(without=frozenset({"training"})))[0]
    assert posed.knowledge.auxiliary is not None
    assert posed.knowledge.shadow_losses is None


def test_an_update_is_the_apps_own_training_on_other_examples(tmp_path, here):
    part = Part(tmp_path, "")
    app = run(part, "classifier")
    module = load(PROJECT, "client_app")
    received = dict(Record(part.record).rounds[0].observations[0].received)
    witness = witnesses_of(part)[0]
    handler = Handler(module.app, app.config, {"partition-id": 0, "num-partitions": CLIENTS}, **vars(witness.asked))
    x, y = module.X[3].numpy(), module.Y[3].numpy()
    player = Player(handler, received, x, y)
    update = player.update(received, x, y, seed=5)
    # By hand: the batches that the seed gives, as many and as large as the client's own.
    model = module.model_of("classifier", handler_message(received)).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=witness.asked.configs["config"]["lr"])
    rng, order = np.random.default_rng(5), np.zeros(0, int)
    for _ in range(15 * module.OWN // 8):
        while len(order) < 8:
            order = np.concatenate([order, rng.permutation(len(y))])
        rows, order = order[:8], order[8:]
        optimizer.zero_grad()
        module.loss_of("classifier", model, torch.from_numpy(x[rows]), torch.from_numpy(y[rows])).backward()
        optimizer.step()
    for name, value in model.state_dict().items():
        np.testing.assert_allclose(update[name], value.numpy(), rtol=1e-5, atol=1e-6)
    again = player.update(received, x, y, seed=5)
    assert all((again[name] == update[name]).all() for name in update)
    other = player.update(received, x, y, seed=6)
    assert any((other[name] != update[name]).any() for name in update)


def handler_message(weights):
    return ArrayRecord({name: Array(np.array(value)) for name, value in weights.items()})


@pytest.mark.slow
def test_an_app_that_compares_the_examples_of_a_batch_is_refused_by_name(tmp_path, here):
    part = Part(tmp_path, "")
    app = run(part, "contrastive")
    witnesses = witnesses_of(part)
    # Of several clients in one process the first shows it.
    assert any("as contrastive losses do" in note for witness in witnesses for note in witness.notes)
    assert {label for witness in witnesses for label in witness.trained.y} == {0}
    (posed,) = pose_all([part], app=app)
    refusal = r"gives no losses: the loss of an example .* no example has a loss of its own$"
    assert any(re.search(refusal, why.what) for why in posed.reasons.values()), posed.reasons


def test_a_client_that_was_never_asked_to_train_cannot_be_asked(tmp_path, here):
    part = Part(tmp_path, "")
    with pytest.raises(DataError, match="no client was seen to be asked to train"):
        ask(App(PROJECT.where), part, [], targets_of(part))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    part = Part(tmp_path_factory.mktemp("classifier"), "")
    return run(part, "classifier"), part


def copied(app: App, tmp_path: Path) -> App:
    return App(PROJECT.copy(tmp_path), app.config, app.supernodes)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_an_app_that_writes_and_prints_leaves_nothing_behind(classifier, tmp_path, monkeypatch):
    app, part = classifier
    app = copied(app, tmp_path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    before, targets = files_of(tmp_path), targets_of(part)
    monkeypatch.setenv("ASKED_APP_FAULT", "write")
    done = []
    watch = Watch(step=lambda step, *progress: done.append(progress))
    answers, _ = ask(app, part, witnesses_of(part), targets, watch)
    assert files_of(tmp_path) == before
    assert len(answers.losses) == 2 * CLIENTS
    # A group of replies says its end, too.
    assert done == sorted(done)
    assert {*done} >= {(count, 2 * CLIENTS) for count in range(2 * CLIENTS)}
    assert {total for _, total in done} == {2 * CLIENTS}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "error", "line"),
    [
        ("raise", DataError, r"KeyError.*no data here"),
        ("exit", DataError, r"ended its process: sys.exit\(0\)"),
        ("leave", RunError, r"the process that asks the app ended with 0: no word"),
        (
            "killed",
            RunError,
            r"the process that asks the app was ended by signal 9 \(Killed\), often for lack of memory",
        ),
        ("wait", DataError, r"did not end within 2 s; if it takes longer, set FEDATTACK_ASKING_SECONDS"),
    ],
)
def test_an_app_that_fails_gives_one_line(fault, error, line, classifier, monkeypatch):
    app, part = classifier
    monkeypatch.setenv("ASKED_APP_FAULT", fault)
    monkeypatch.setenv(LONGEST, "2")
    with pytest.raises(error, match=line) as raised:
        ask(app, part, witnesses_of(part), targets_of(part))
    assert "\n" not in str(raised.value)
