"""A positive control: where a leak is planted, an attack must show it, or its *not shown* means nothing."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from fedattack.apps import control as room
from fedattack.apps.asking import Asker, Inquiry
from fedattack.apps.auditing import control_all
from fedattack.apps.control import ALL, PASSES, control
from fedattack.apps.player import STEPPING
from fedattack.apps.witnessing import witnesses_of
from fedattack.attacks import ATTACKS
from fedattack.audit.control import PLANTED, STEPPED, TRAINED, WHOLE, Control, with_controls
from fedattack.audit.finding import CANNOT_TELL, LEAK, NO_EVIDENCE
from fedattack.audit.opened import open_runs
from fedattack.base.errors import DataError
from fedattack.record import Record
from fedattack.record.folder import Part, RunFolder, read_study
from fedattack.runs.pipeline import choose_attacks, judge_runs
from fedattack.runs.watch import Watch
from fedattack.threats.trees.booster import read_booster
from fedattack.threats.trees.boxes import find_cuts
from fedattack.threats.trees.planting import plant_trees
from tests.apps.projects import ASKED as PROJECT
from tests.apps.test_asking import CLIENTS, run, targets_of
from tests.apps.worlds import attack_all, pose_all
from tests.threats.trees.world import as_array, as_json, judged, write_trees_run
from tests.witness.apps import load


def attacked(part, kind, attack="sia", **config):
    app = run(part, kind, **config)
    posed = pose_all([part], app=app)
    return app, attack_all([part], posed, lambda names: choose_attacks([attack], {}))


def plant_what_others_hold(monkeypatch):
    inquire = room._inquire

    def turned(evidence, witnesses):
        inquiry, owned = inquire(evidence, witnesses)
        nodes = [*owned]
        return inquiry, dict(zip(nodes, [owned[node] for node in [*nodes[1:], nodes[0]]], strict=True))

    monkeypatch.setattr(room, "_inquire", turned)


def headline(done, metric="sia.asr"):
    findings, _ = judge_runs(done.folder, done.runs, device="cpu", watch=Watch())
    return next(finding for finding in findings if f"{finding.attack}.{finding.metric}" == metric)


@pytest.mark.slow
def test_of_clients_that_learn_nothing_the_plant_is_found(tmp_path, here):
    part = Part(tmp_path, "")
    app, done = attacked(part, "untrained")
    control_all(Asker(app), done, Watch(), full=True)
    noted = Control(**read_study(part.folder)["controls"]["sia"])
    assert (noted.kind, noted.amount in sum(PASSES, ()), noted.is_seen) == (TRAINED, True, True)
    found = headline(done)
    assert found.verdict == NO_EVIDENCE
    assert "positive control" in found.reason
    assert found.reason.endswith("this attack shows a leak")


@pytest.mark.slow
def test_of_clients_that_are_trained_on_others_targets_no_leak_is_found(tmp_path, here, monkeypatch):
    """The null of the control: what is planted is as much, and tells nothing of who holds an example."""
    part = Part(tmp_path, "")
    app, done = attacked(part, "untrained")
    plant_what_others_hold(monkeypatch)
    control_all(Asker(app), done, Watch(), full=True)
    assert read_study(part.folder)["controls"] == {
        "sia": vars(Control(TRAINED, PASSES[-1][-1], False, 2 * CLIENTS, 2 * CLIENTS))
    }


@pytest.mark.slow
def test_a_blind_attack_cannot_tell(tmp_path, here):
    part = Part(tmp_path, "")
    app, done = attacked(part, "blind")
    control_all(Asker(app), done, Watch(), full=True)
    assert read_study(part.folder)["controls"] == {
        # Its replies do not follow what its clients train on: nothing is planted.
        "sia": vars(Control(TRAINED, PASSES[-1][-1], False, 0, 2 * CLIENTS))
    }
    found = headline(done)
    assert found.verdict == CANNOT_TELL


@pytest.mark.slow
def test_attacks_that_read_updates_are_shown_a_plain_step(tmp_path, here):
    """Of thirty steps no example is read off; of one step on one example it is."""
    part = Part(tmp_path, "")
    app, done = attacked(part, "plain", "exact", rounds=6)
    control_all(Asker(app), done, Watch(), full=True)
    noted = Control(**read_study(part.folder)["controls"]["exact"])
    assert (noted.kind, noted.is_seen) == (STEPPED, True)
    found = headline(done, "exact.recovered")
    assert found.verdict == NO_EVIDENCE
    assert found.reason.endswith(f"step on {noted.amount} of their own targets, this attack shows a leak")
    assert not [*tmp_path.glob("planted-*")]


@pytest.mark.slow
def test_a_step_on_all_targets_is_the_mean_over_all(tmp_path, here):
    """The app's batches are smaller: the step is the mean of several."""
    part = Part(tmp_path / "run", "")
    app, targets = run(part, "classifier"), targets_of(part)
    nodes, rows = Record(part.record).nodes, list(range(48))
    inquiry = Inquiry(part, witnesses_of(part), targets)
    planted = Asker(app).plant_steps(inquiry, dict.fromkeys(nodes, rows), (ALL,), tmp_path / "planted")[0][ALL]
    module = load(PROJECT, "client_app")
    (reply, *_others) = planted.rounds[0].observations
    model = module.make("classifier", len(reply.received["net.0.bias"]))
    model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in reply.received.items()})
    module.loss_of(
        "classifier", model, torch.from_numpy(targets.x[rows]), torch.from_numpy(np.asarray(targets.y[rows]))
    ).backward()
    for name, parameter in model.named_parameters():
        expected = (parameter - STEPPING * parameter.grad).detach().numpy()
        np.testing.assert_allclose(reply.arrays[name], expected, rtol=1e-4, atol=1e-6)


def test_attacks_of_all_that_a_client_holds_are_shown_a_step_on_all_of_it():
    of_few, of_all = (
        [name for name in ("exact", "labels", "tokens", "dager") if room._takes(name, kind)]
        for kind in (STEPPED, WHOLE)
    )
    assert (of_few, of_all) == (["exact", "dager"], ["labels", "tokens"])
    assert Control(WHOLE, ALL, True).clients == "send one plain step on all of their own targets"


@pytest.mark.slow
def test_labels_are_counted_in_a_step_on_all_of_a_client_s_targets(tmp_path, here):
    part = Part(tmp_path, "")
    app, done = attacked(part, "plain", "labels")
    (evidence,) = done.runs

    def show(count):
        asker, seen = Asker(app), witnesses_of(part)
        planted, _ = room._step(tmp_path / str(count), (count,), asker, evidence, seen, None)
        changed = room._attack(asker, evidence, planted[count], seen, ["labels"], {})
        return room._headlines([changed], ["labels"], {}, {})["labels"]

    shown, of_few = show(ALL), show(1)
    assert (shown.verdict, shown.value > 0.9) == (LEAK, True)
    # Labels of one example hardly tell how all are shared.
    assert (of_few.verdict, of_few.value < shown.value - 0.05) == (NO_EVIDENCE, True)


@pytest.mark.parametrize("own", [True, False])
def test_attacks_on_tables_are_shown_trees_of_own_values(tmp_path, monkeypatch, own):
    """The trees were grown on other tables than the truth has; with rows of nobody's the plant is not seen, either."""
    draw = np.random.default_rng(0).normal
    folder = write_trees_run(tmp_path, clients=7, rounds=1, of_truth=lambda x: draw(size=x.shape).astype(np.float32))
    assert judged(folder)["columns"].verdict == NO_EVIDENCE
    if not own:
        monkeypatch.setattr(
            ATTACKS["trees"],
            "plant",
            lambda reply, rows, count: plant_trees(reply, draw(size=rows.shape).astype("f"), count),
        )
    found = control(None, open_runs(RunFolder(folder)), [[]], Watch(), [])
    assert found == {"trees": Control(PLANTED, 1 if own else 64, own)}
    reason = with_controls([judged(folder)["columns"]], found)[0].reason
    assert reason.endswith(
        "with clients that send trees that split by one of their own values of each column, this attack shows a leak"
        if own
        else "by 64 of their own values of each column, this attack shows no leak either: it cannot tell"
    )


@pytest.fixture
def trees(tmp_path):
    """A run of clients that send trees of other tables than the truth has."""
    draw = np.random.default_rng(0).normal
    folder = write_trees_run(tmp_path, clients=7, rounds=1, of_truth=lambda x: draw(size=x.shape).astype(np.float32))
    assert judged(folder)["columns"].verdict == NO_EVIDENCE
    return open_runs(RunFolder(folder))


def test_each_attack_that_plants_has_records_of_its_own(trees, monkeypatch):
    """Of one no rows are known: that is its own reason, and takes no other attack's control."""
    monkeypatch.setitem(ATTACKS._loaded, "plaintext", ATTACKS["trees"])

    runs = [run.with_scores({**run.scores, "plaintext": run.scores["trees"]}) for run in trees]

    judge = room.judge_each

    def judge_another(names, evidence, **options):
        judged = judge(["trees"], evidence, **options)
        return {**judged, "plaintext": [replace(each, attack="plaintext") for each in judged["trees"]]}

    monkeypatch.setattr(room, "judge_each", judge_another)
    lines, faults = [], []
    found = control(None, runs, [[]], Watch(say=lambda kind, line: lines.append(line)), faults)
    assert found == {"trees": Control(PLANTED, 1, True)}
    assert lines == [
        "no positive control of plaintext: fedattack does not know which rows each client of the run holds"
    ]
    assert faults == []


@pytest.mark.parametrize("where", ["plant", "attack"])
def test_a_control_that_fails_in_a_way_that_nobody_foresaw_is_told_and_none(trees, monkeypatch, where):
    """It is no control that was not seen."""

    def fail(*args, **kwargs):
        raise ZeroDivisionError("of a strange reply")

    if where == "plant":
        monkeypatch.setattr(ATTACKS["trees"], "plant", fail)
    else:
        monkeypatch.setattr(type(ATTACKS["trees"]), "attack", fail)
    faults = []
    assert control(None, trees, [[]], Watch(), faults) == {}
    assert faults[0].startswith(
        "no positive control of trees: ZeroDivisionError: of a strange reply (test_control.py, line"
    )


def test_planted_trees_split_by_own_values_alone():
    table = np.array([[1, 5], [2, 5], [3, 7], [9, 7]], dtype=np.float32)
    reply = {"0": as_array(as_json([], 2, 0.0))}
    few = {(0, 2.0), (1, 7.0)}
    for count, cuts in ((1, few), (2, few | {(0, 9.0)}), (64, few | {(0, 3.0), (0, 9.0)})):
        booster = read_booster(plant_trees(reply, table, count)["0"].tobytes(), "here")
        assert set().union(*map(find_cuts, booster.trees)) == cuts
        for column, tree in enumerate(booster.trees):
            leaves = tree.left < 0
            assert tree.cover[leaves].sum() == 4
            assert tree.feature[~leaves].tolist() == [column] * int((~leaves).sum())
    with pytest.raises(DataError, match="no trees of 2 columns"):
        plant_trees({"0": as_array(as_json([], 3, 0.0))}, table, 1)


@pytest.fixture
def untrained(tmp_path, here):
    part = Part(tmp_path, "")
    return part, *attacked(part, "untrained")


def test_nothing_is_planted_where_nobody_knows_who_holds_what(untrained, monkeypatch):
    part, app, done = untrained
    asked = []
    runs = [replace(run, truth=replace(run.truth, nodes={})) for run in done.runs]
    monkeypatch.setattr(room.Asker, "plant", lambda *args: asked.append(args))
    monkeypatch.setattr(room, "judge_each", lambda *args, **options: {"sia": [headline(done)]})
    lines = []
    watch = Watch(say=lambda *line: lines.append(line))
    assert control(Asker(app), runs, [witnesses_of(part)], watch, []) == {}
    assert asked == []
    ((kind, line),) = lines
    assert (kind, "is known to be held by exactly one client" in line) == ("warning", True)


def test_an_attack_is_judged_as_in_the_report_corrected_for_all_others(untrained, monkeypatch):
    """Judged beside fewer findings, it may show a leak that the report does not, and would have no control."""
    part, app, done = untrained
    corrected = []
    runs = [run.with_scores({**run.scores, "plaintext": run.scores["sia"]}) for run in done.runs]
    judge = room.judge_each

    def judge_each(names, evidence, **options):
        return judge(["sia"], evidence, **options) | {"plaintext": [replace(headline(done), attack="plaintext")]}

    def correct(findings, evidence):
        corrected.append({finding.attack for finding in findings})
        return []

    monkeypatch.setattr(room, "judge_each", judge_each)
    monkeypatch.setattr(room, "correct_together", correct)
    assert control(Asker(app), runs, [witnesses_of(part)], Watch(), []) == {}
    assert corrected == [{"sia", "plaintext"}]


@pytest.mark.slow
def test_each_client_is_trained_further_on_its_own_targets_alone(untrained, monkeypatch):
    part, app, done = untrained
    planted, ask = [], room.Asker.plant

    def noted(asker, inquiry, owned, passes, **further):
        found = ask(asker, inquiry, owned, passes, **further)
        planted.append((owned, found[0]))
        return found

    monkeypatch.setattr(room.Asker, "plant", noted)
    monkeypatch.setattr(room, "PASSES", ((1, 64),))
    control(Asker(app), done.runs, [witnesses_of(part)], Watch(), [])
    ((owned, by_passes),) = planted
    assert [*by_passes] == [1, 64]
    once, most = by_passes[1], by_passes[64]
    for row, node in enumerate(most.nodes.tolist()):
        own = owned[node]
        others = [other for other in range(most.losses.shape[1]) if other not in own]
        fell = once.losses[row] - most.losses[row]
        assert np.mean(fell[own]) > np.mean(fell[others])


# A short control: the same care in less time.


@pytest.mark.slow
def test_a_short_control_plants_in_a_reply_of_each_client_alone(untrained):
    part, app, done = untrained
    control_all(Asker(app), done, Watch())
    noted = Control(**read_study(part.folder)["controls"]["sia"])
    assert (noted.kind, noted.is_seen, noted.is_cut) == (TRAINED, True, False)
    assert (noted.replies, noted.of) == (CLIENTS, 2 * CLIENTS)
    found = headline(done)
    assert found.verdict == NO_EVIDENCE
    assert found.reason.endswith(f"({CLIENTS} of {2 * CLIENTS} replies), this attack shows a leak")


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [None, 1000.0, 0.0])
def test_a_control_that_finds_nothing_says_so_however_short_it_is(tmp_path, here, monkeypatch, seconds):
    """The null: others' targets are planted. Without time, too, nothing is taken for what was seen."""
    part = Part(tmp_path, "")
    app, done = attacked(part, "untrained")
    plant_what_others_hold(monkeypatch)
    found = control(Asker(app), done.runs, [witnesses_of(part)], Watch(), [], seconds)["sia"]
    assert (found.kind, found.is_seen, found.is_cut) == (TRAINED, False, seconds == 0)
    ((finding,), words) = with_controls([headline(done)], {"sia": found}), "it cannot tell"
    if seconds == 0:
        # Something is planted once, from the middle strength on, and no more.
        assert (found.amount, found.replies) == (4, CLIENTS)
        words = "it cannot tell; the control was cut short, and `--control full` tries all"
    else:
        assert (found.amount, found.replies) == (64, 2 * CLIENTS)
    assert finding.verdict == CANNOT_TELL
    assert finding.reason.endswith(f"this attack shows no leak either: {words}")


@pytest.mark.parametrize("least", [*range(5)])
def test_the_least_that_is_seen_is_searched_from_the_middle(trees, monkeypatch, least):
    """Held against trying all, one after the other."""
    tried = []

    def look(scene, names, planted, lost):
        tried.append(planted[0])
        return dict.fromkeys(names, planted[0] >= least)

    def plant(amount, asker, run, seen, seconds):
        return {amount: amount}, room.Share(0, 0)

    monkeypatch.setattr(room, "_look", look)
    scene = room._Scene(trees, [[]], {}, Asker(None), Watch())
    batches = [room._Batch([amount], partial(plant, amount)) for amount in range(4)]
    found = room._search(scene, "trained", ["trees"], batches, room._Clock(None), {})
    seen = [amount for amount in range(4) if amount >= least]
    assert found == {"trees": Control("trained", seen[0] if seen else 3, bool(seen))}
    assert tried[0] == 1
    assert len(tried) <= 3
    once = room._search(scene, "trained", ["trees"], batches, room._Clock(-1), {})["trees"]
    assert (once.amount, once.is_seen, once.is_cut) == (1, least <= 1, least > 1)


def test_rounds_are_few_that_hold_a_reply_of_each_client(untrained):
    """Each client replied in each round: the last one is enough, whoever holds no target."""
    part, _, _ = untrained
    record = Record(part.record)
    owned = {node: [0] for node in record.nodes}
    assert room._find_rounds(record, owned) == [record.rounds[-1].seq]
    # A client that never replied adds no round.
    assert room._find_rounds(record, {**owned, "nobody": [1]}) == [record.rounds[-1].seq]
    assert room._find_rounds(record, {}) == []
