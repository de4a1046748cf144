"""Functions of an app's owner stand in for a framework that no witness knows, and what they do wrong is one line."""

import os
import sys
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.clientapp import ClientApp

from fedattack.apps import calling
from fedattack.apps.app import App
from fedattack.apps.asking import Asker, Inquiry, ask_examples
from fedattack.apps.auditing import list_trusted
from fedattack.apps.calling import FunctionPlayer, OwnFunction, _sample, write_examples
from fedattack.apps.functions import OwnFunctions, list_partitions, put_examples
from fedattack.apps.witnessing import witnesses_of
from fedattack.base.errors import ConfigError, DataError, FedAttackError
from fedattack.record.folder import Part
from fedattack.runs.pipeline import judge_folder
from fedattack.runs.reaper import processes_of
from fedattack.runs.watch import Watch
from fedattack.witness import Witness, read_witnesses
from fedattack.witness.seen import AskedToTrain
from tests.apps.projects import TWINS
from tests.apps.worlds import attack_all, pose_all, run_here
from tests.witness.apps import hashes_of, load
from tests.witness.apps import seen as hashes

CLIENTS = 6
X, Y = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32), np.arange(5) % 2
W = {"w": np.ones(3)}


def run(project, part: Part, change=lambda client: client) -> App:
    client, server = (load(project, name).app for name in ("client_app", "server_app"))
    run_here(part, server, change(client), project.config, CLIENTS)
    return App(project.where, {}, CLIENTS)


class Giving(ClientApp):
    """A client that sends an example, statistics, counts, labels and losses of its own beside its model."""

    def __init__(self, inner: ClientApp) -> None:
        super().__init__()
        self._inner = inner

    def __call__(self, message, context):
        reply = self._inner(message, context)
        task = load(TWINS[0], "task")
        (x, y), _ = task.load_data(context.node_config["partition-id"])
        arrays = {name: array.numpy() for name, array in reply.content["arrays"].items()}
        given = {
            "example": x[3],
            "means": x.mean(axis=0),
            "variances": x.var(axis=0, dtype=np.float64),
            "sizes": np.bincount(y, minlength=10),
            # As many of each client, since the server takes their mean.
            "losses": task.own_losses(arrays, x, y)[:20],
        }
        for name, numbers in given.items():
            reply.content["metrics"][name] = numbers.tolist()
        return reply


def functions_of(module: str, *names: str) -> OwnFunctions:
    return OwnFunctions(**{name: f"{module}:own_{name}" for name in names})


def player(losses=lambda arrays, x, y: x @ arrays["w"], update=None, x=X, y=Y) -> FunctionPlayer:
    """What plays these functions, which no module has."""
    own_update = update and OwnFunction("--update", "m:u", update)
    playing = FunctionPlayer(OwnFunction("--losses", "m:l", losses), own_update, x, y)
    playing.take(W)
    return playing


def stated(function, folder: Path, partitions=(0, 1), of=2, keep=100, monkeypatch=None) -> dict[str, Witness]:
    own = OwnFunction("--examples", "m:f", function)
    monkeypatch.setattr(OwnFunction, "load", lambda option, spec: own)
    request = {"functions": {"--examples": "m:f"}, "partitions": partitions, "of": of, "keep": keep}
    write_examples({**request, "stated": str(folder)}, lambda done, total: None)
    return {witness.client: witness for witness in read_witnesses(folder)}


@pytest.mark.slow
def test_an_app_in_numpy_is_found_what_its_twin_in_pytorch_is(tmp_path, here):
    """The same arithmetic, once witnessed and once stated by three functions of its owner."""
    of_functions, of_witness = (Part(tmp_path / name, "") for name in ("functions", "witness"))
    findings = {}
    for part, project, names in (
        (of_functions, TWINS[0], ("examples", "losses", "update")),
        (of_witness, TWINS[1], ()),
    ):
        part.folder.mkdir()
        app = run(project, part, Giving)
        posed = pose_all([part], app=app, functions=functions_of(f"{project.package}.task", *names))
        attacked = attack_all([part], posed)
        assert {"sia", "membership", "plaintext"} <= {*attacked.scored}
        judged, _ = judge_folder(part.folder, device="cpu", watch=Watch(), trusted=list_trusted(posed))
        findings[part] = {f"{one.attack}.{one.metric}": one for one in judged}
        is_stated = any("--losses" in note for note in posed[0].notes)
        assert is_stated == bool(names)
    mine, twins = findings[of_functions], findings[of_witness]
    # Gradients of a model that the attacker builds tell labels and examples; functions give none.
    assert {*mine} == {name for name in twins if not name.startswith(("labels.", "exact.", "inversion."))}
    for name, finding in mine.items():
        # Verdicts are corrected for all findings of a page, and the twin has more.
        assert (finding.p, finding.n) == (pytest.approx(twins[name].p, abs=1e-3), twins[name].n), name
        assert finding.value == pytest.approx(twins[name].value, abs=1e-3), name
        assert finding.read_off == twins[name].read_off, name
    assert mine["membership.auc"].verdict == "leak"
    assert mine["sia.asr"].verdict == "leak"
    # What is given away in plaintext, of which all is the client's own.
    of_contents = {name: mine[f"plaintext.{name}"] for name in ("given-away", "statistics", "single-values")}
    assert {name: found.verdict for name, found in of_contents.items()} == dict.fromkeys(of_contents, "leak")
    certain = {name: found.read_off["certain"] for name, found in of_contents.items()}
    assert certain == {"given-away": CLIENTS, "statistics": 3 * CLIENTS, "single-values": 20 * CLIENTS}
    assert mine["plaintext.small-groups"].value > 0


def test_losses_and_directions_of_examples_are_those_of_a_model(tmp_path):
    """One plain step on one example is along its gradient: its cosine with any update is that of the gradient."""
    task = load(TWINS[0], "task")
    (x, y), _ = task.load_data(0)
    playing = player(task.own_losses, task.own_update, x, y)
    rng = np.random.default_rng(1)
    weights = {"weight": rng.normal(size=(10, 64)).astype(np.float32), "bias": rng.normal(size=10).astype(np.float32)}
    playing.take(weights)
    odds = np.exp(x @ weights["weight"].T + weights["bias"])
    odds /= odds.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(playing.losses(), -np.log(odds[np.arange(len(y)), y]), rtol=1e-4, atol=1e-6)
    update = {name: rng.normal(size=array.shape) for name, array in weights.items()}
    products, norms, lengths = playing.along([update])
    for row in range(len(y)):
        error = odds[row] - np.eye(10)[y[row]]
        gradient = np.concatenate([np.outer(error, x[row]).ravel(), error])
        flat = np.concatenate([update["weight"].ravel(), update["bias"]])
        cosine = -gradient @ flat / np.linalg.norm(gradient) / np.linalg.norm(flat)
        assert products[0, row] / norms[row] / lengths[0] == pytest.approx(cosine, abs=1e-3)


def test_examples_stand_in_the_place_of_what_hooks_saw(tmp_path, here):
    part = Part(tmp_path, "")
    app = run(TWINS[0], part)
    before, notes = witnesses_of(part), []
    assert not any(len(witness.trained) for witness in before)
    functions = functions_of("numpy_twin.task", "examples")
    found = ask_examples(Asker(app, functions=functions), part, before, notes)
    assert [note for note in notes if "--examples numpy_twin.task:own_examples, called with" in note]
    task = load(TWINS[0], "task")
    clients = [witness for witness in found if witness.asked]
    assert len(clients) == CLIENTS
    for witness in clients:
        x, y = task.own_examples(int(witness.client), CLIENTS)
        assert hashes(witness.trained) == hashes_of(x)
        assert sum(witness.trained.counts.values()) == len(y)
        assert not any("no training was seen" in note for note in witness.notes)
    posed = pose_all([part], app=app, functions=functions)
    assert "plaintext" in attack_all([part], posed).scored


def test_with_held_out_examples_the_owners_update_trains_shadow_models(tmp_path, here, monkeypatch):
    part = Part(tmp_path, "")
    app = run(TWINS[0], part)
    task = load(TWINS[0], "task")
    monkeypatch.setattr(
        task, "own_examples", lambda one, all_: (*task.load_data(one)[0], *task.load_data(one + 100)[0])
    )
    (posed,) = pose_all([part], app=app, functions=functions_of("numpy_twin.task", "examples", "losses", "update"))
    shadows = posed.knowledge.shadow_losses
    assert shadows is not None
    assert np.isfinite(shadows.losses).all()
    assert shadows.losses.std() > 0
    (posed,) = pose_again(part, app, "examples", "losses")
    assert posed.knowledge.answers is not None
    assert posed.knowledge.shadow_losses is None
    assert any("no shadow models: nothing says how clients train: give --update" in note for note in posed.notes)


def pose_again(part: Part, app: App, *names: str):
    (part.folder / "witness" / "posed.json").unlink()
    return pose_all([part], app=app, functions=functions_of("numpy_twin.task", *names))


def test_training_again_and_again_goes_on_from_where_it_was():
    playing = player(update=lambda arrays, x, y, seed: {"w": arrays["w"] + x.sum(axis=0)})
    found = [weights["w"] for weights in playing.train([0, 2], [1, 3])]
    own = X[[0, 2]].sum(axis=0)
    np.testing.assert_allclose(found, [1 + own, 1 + 3 * own], rtol=1e-6)
    np.testing.assert_allclose(playing.losses(), X @ found[-1], rtol=1e-6)
    assert [weights["w"].tolist() for weights in player(update=lambda *_: 1).train([], [4])] == [[1, 1, 1]]


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        (lambda arrays, x, y: 1 / 0, "--losses m:l raised ZeroDivisionError"),
        (lambda arrays, x, y: sys.exit(3), r"--losses m:l ended its process: sys\.exit\(3\)"),
        (lambda arrays, x, y: x[:2] @ arrays["w"], r"expected a loss for each of 5 examples, got \(2,\)"),
        (lambda arrays, x, y: float((x @ arrays["w"]).mean()), "expected a loss for each of 5 examples"),
        (lambda arrays, x, y: np.log(-(x**2).sum(1)), "5 of 5 losses are not finite"),
        (lambda arrays, x, y: ["bad"] * len(y), "expected numbers, got list"),
        (lambda arrays, x, y: None, "expected numbers, got NoneType"),
        (lambda arrays, x, y: arrays["bias"], "raised KeyError: 'bias'"),
        (lambda arrays, x, y: np.ones(2**62), "raised (MemoryError|ValueError|_ArrayMemoryError)"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_losses_that_are_none_end_in_one_line(losses, message):
    with pytest.raises(DataError, match=message) as caught:
        player(losses).losses()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (lambda arrays, x, y, seed: [1.0], "expected a dict that maps names to arrays, got list"),
        (lambda arrays, x, y, seed: {"w": arrays["w"] * np.nan}, "w holds numbers that are not finite"),
        (lambda arrays, x, y, seed: {"w": "text"}, "w: expected numbers, got str"),
        (lambda arrays, x, y, seed: 1 / 0, "--update m:u raised ZeroDivisionError"),
        (None, "nothing says how clients train: give --update module:function"),
    ],
)
def test_updates_that_are_none_end_in_one_line(update, message):
    with pytest.raises(DataError, match=message):
        player(update=update).update(W, X, Y, 0)


@pytest.mark.parametrize(
    ("moved", "got"),
    [({"v": np.ones(3)}, "none"), ({"w": np.ones(4)}, r"\(4,\)"), ({"w": np.ones((3, 1))}, r"\(3, 1\)")],
)
def test_an_update_of_one_example_in_another_form_ends_in_one_line(moved, got):
    playing = player(update=lambda arrays, x, y, seed: moved)
    with pytest.raises(DataError, match=rf"--update m:u: expected w of shape \(3,\), as sent; got {got}$"):
        playing.along([W])


def test_what_functions_write_into_stays_with_them():
    def losses(arrays, x, y):
        x *= 0
        arrays["w"] += 1
        return x.sum(axis=1) + arrays["w"].sum()

    playing = player(losses)
    assert playing.losses().tolist() == playing.losses().tolist() == [6.0] * 5


def test_that_a_function_draws_at_random_is_told():
    playing = player(lambda arrays, x, y: np.random.random(len(y)))  # noqa: NPY002 - what an owner may do
    playing.losses()
    assert any(
        "--losses m:l returns different numbers when it is called again" in line for line in playing.list_assumptions()
    )
    still = player()
    still.losses()
    assert [*still.list_assumptions()] == ["losses are those that --losses m:l returns"]


def test_that_an_update_draws_at_random_is_told_once():
    calls = []

    def update(arrays, x, y, seed):
        calls.append(seed)
        return {"w": arrays["w"] + np.random.random(3)}  # noqa: NPY002 - what an owner may do

    playing = player(update=update)
    playing.losses()
    for seed in (5, 6):
        playing.update(W, X, Y, seed)
    # The same is asked twice at first, and not again.
    assert calls == [5, 5, 6]
    (line,) = [line for line in playing.list_assumptions() if "draws" in line or "at random" in line]
    assert line.startswith("--update m:u ")


def test_an_update_of_another_form_ends_in_the_line_of_the_losses():
    playing = player(update=lambda arrays, x, y, seed: {"v": np.ones(2)})
    playing.take(playing.update(W, X, Y, 0))
    with pytest.raises(DataError, match="--losses m:l raised KeyError: 'w'"):
        playing.losses()


def test_a_copy_of_the_process_that_a_function_leaves_behind_answers_nothing(tmp_path):
    """It ends where the function returns, and the process itself has the answer."""
    reached = tmp_path / "reached"

    def losses(arrays, x, y):
        os.fork()
        return x @ arrays["w"]

    playing, parent = player(losses), os.getpid()
    playing.losses()
    with reached.open("a") as file:
        file.write(f"{os.getpid()}\n")
    assert reached.read_text() == f"{parent}\n"


def test_examples_of_each_partition_are_written_as_a_witness_would(tmp_path, monkeypatch):
    def own(partition, partitions):
        return X + partition, Y, X + 10 + partitions, None

    found = stated(own, tmp_path, monkeypatch=monkeypatch)
    for partition in (0, 1):
        witness = found[str(partition)]
        assert hashes(witness.trained) == hashes_of(X + partition)
        assert witness.trained.counts == {0: 3, 1: 2}
        assert hashes(witness.evaluated) == hashes_of(X + 12)
        assert witness.notes == ()
    assert len(stated(own, tmp_path / "few", keep=2, monkeypatch=monkeypatch)["0"].trained) == 2


def test_examples_without_labels_have_one_for_all(tmp_path, monkeypatch):
    found = stated(lambda one, all_: (X, None), tmp_path, monkeypatch=monkeypatch)["0"]
    assert found.trained.counts == {0: 5}
    assert found.notes == (
        "--examples m:f returns no labels, or returns 0 for all examples: 0 stands for the label of each example",
    )


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (lambda one, all_: 1 / 0, "--examples m:f raised ZeroDivisionError: division by zero"),
        (lambda one, all_: X, "expected examples and labels, or these two and held-out examples.* got ndarray"),
        (lambda one, all_: (X, Y, X), "got 3 values"),
        (
            lambda one, all_: (X, Y[:3]),
            r"expected one finite number as the label of each of 5 examples, got \(3,\)",
        ),
        (lambda one, all_: (X, Y * np.nan), "expected one finite number as the label"),
        (lambda one, all_: (X[:0], Y[:0]), "has no examples; expected at least one"),
        (lambda one, all_: (X[:, 0], Y), r"expected one row for each example, got an array of shape \(5,\)"),
        (lambda one, all_: ([["a"], ["b"]], [0, 1]), "expected numbers, got list .*; give arrays of numbers"),
        (lambda one, all_: ([[1], [2, 3]], [0, 1]), "give arrays of numbers"),
        (lambda one, all_: (X, Y, X, Y[:2]), "held out: expected one finite number as the label"),
        (
            lambda one, all_: (np.random.normal(size=(5, 3)), Y),  # noqa: NPY002
            "returns different examples of partition 0 when it is called",
        ),
    ],
)
def test_examples_that_are_none_end_in_one_line(own, message, tmp_path, monkeypatch):
    (note,) = stated(own, tmp_path, [0], monkeypatch=monkeypatch)["0"].notes
    with pytest.raises(DataError, match=message):
        raise DataError(note)
    assert "\n" not in note


def test_a_partition_that_fails_leaves_the_others(tmp_path, monkeypatch):
    sites = {0: (X, Y)}
    found = stated(lambda one, all_: sites[one], tmp_path, monkeypatch=monkeypatch)
    assert len(found["0"].trained) == 5
    assert not len(found["1"].trained)
    assert found["1"].notes == ("--examples m:f raised KeyError: 1",)


@pytest.fixture
def slowly(monkeypatch):
    """Let each call take five seconds, of three for one and twelve for all, by a clock that nobody waits for."""
    monkeypatch.setenv("FEDATTACK_ASKING_SECONDS", "3")
    monkeypatch.setattr(calling, "time", SimpleNamespace(monotonic=partial(next, count(step=5))))


MOST = "took 15 s in all, and 12 s is the most for all of its calls: it was not called again; if it takes longer, set F"


def test_calls_of_a_function_take_so_long_in_all(slowly):
    playing = player()
    # Twice at first, which says whether it draws.
    first, second = playing.losses(), playing.losses()
    np.testing.assert_array_equal(first, second)
    for _ in range(2):
        with pytest.raises(DataError, match=f"^--losses m:l {MOST}"):
            playing.losses()


def test_partitions_that_there_is_no_time_for_leave_the_others(slowly, tmp_path, monkeypatch):
    found = stated(lambda one, all_: (X + one, Y), tmp_path, range(4), 4, monkeypatch=monkeypatch)
    assert [len(found[str(partition)].trained) for partition in range(4)] == [5, 5, 0, 0]
    assert found["1"].notes == ()
    (line,) = found["2"].notes
    assert line.startswith(f"--examples m:f {MOST}")
    # The same of all, so that the page says it once.
    assert found["3"].notes == (line,)


def test_replies_that_there_is_no_time_for_are_left_out_in_one_line(tmp_path, here, monkeypatch):
    part = Part(tmp_path, "")
    app = run(TWINS[0], part)
    functions = functions_of("numpy_twin.task", "examples", "losses")
    (posed,) = pose_all([part], app=app, functions=functions)
    replies = len(posed.knowledge.answers.nodes)
    monkeypatch.setenv("FEDATTACK_ASKING_SECONDS", "10")
    # Eight calls: the first reply is asked about twice.
    monkeypatch.setattr(calling, "time", SimpleNamespace(monotonic=partial(next, count(step=5))))
    inquiry = Inquiry(part, witnesses_of(part), posed.knowledge.targets)
    answers, notes = Asker(app, functions=functions).losses(inquiry)
    assert len(answers.nodes) == 7
    (line,) = [note for note in notes if "in all" in note]
    assert line.startswith(f"{replies - 7} replies left out: --losses numpy_twin.task:own_losses took 40 s in all")


def witness(node: str, client: str, *, asked=True, **facts) -> Witness:
    how = AskedToTrain("train", {}, {}) if asked else None
    return Witness(node, client, asked=how, **facts)


def test_what_is_stated_is_put_beside_what_was_seen():
    own, other = (_sample((x, Y.tolist()), 100) for x in (X, X + 1))
    clients = [
        witness("10", "0", trained=other, evaluated=own, mods=("m",)),
        witness("11", "1"),
        witness("12", ""),
        witness("13", "3", asked=False),
    ]
    given = {"0": Witness("0", "0", own), "1": Witness("1", "1", notes=("it failed",)), "3": Witness("3", "3", own)}
    first, failed, unnamed, evaluating = put_examples(clients, given)
    assert hashes(first.trained) == hashes_of(X)
    # What nobody states of it is still what was seen.
    assert (first.mods, hashes(first.evaluated)) == (("m",), hashes_of(X))
    assert first.notes == (
        "it was seen to train on 5 examples, and --examples returns none of them: return examples as the "
        "model takes them, after all scaling",
    )
    assert failed.notes == ("it failed",)
    assert unnamed.notes == ("it has no partition-id, so --examples is not called for it",)
    assert evaluating == clients[3]
    same = put_examples([witness("10", "0", trained=own)], given)
    assert same[0].notes == ()


def test_without_a_partition_nothing_is_asked():
    assert list_partitions([witness("1", "10"), witness("2", "9"), witness("3", "9")]) == [9, 10]
    # Where nobody was asked to train, whoever was called may hold examples.
    assert list_partitions([witness("1", "3", asked=False), witness("2", "4", asked=False)]) == [3, 4]
    with pytest.raises(DataError, match="no client that was called has one; set partition-id"):
        list_partitions([witness("1", ""), witness("2", "4", asked=False)])


def test_where_the_function_fails_what_hooks_saw_stays(tmp_path, here):
    part = Part(tmp_path, "")
    app = run(TWINS[1], part)
    for spec, why in (
        ("torch_twin.task:nothing", "no function 'nothing'"),
        ("torch_twin.task:put", "raised AttributeError"),
    ):
        notes = []
        found = ask_examples(Asker(app, functions=OwnFunctions(spec)), part, witnesses_of(part), notes)
        assert all(len(each.trained) for each in found if each.asked)
        (note,) = notes
        assert note.startswith("the clients' examples are those that the witness saw: ")
        assert why in note


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"examples": "own"}, "--examples own: expected module:function of the app, such as my_app.audit:examples"),
        ({"losses": "a b:c"}, "--losses a b:c: expected module:function"),
        ({"update": "m:f"}, "--update trains models whose losses are then needed; add --losses module:function"),
    ],
)
def test_words_that_name_no_function_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        OwnFunctions(**given).check()
    OwnFunctions().check()
    OwnFunctions("a.b:c", "m:f", "m:g").check()


def test_a_module_or_a_function_that_is_not_there_is_refused_before_a_run(tmp_path):
    where = TWINS[0].where
    functions_of("numpy_twin.task", "examples", "losses", "update").check_there(where)
    with pytest.raises(ConfigError, match=r"--losses numpy_twin\.tusk:own_losses: there is no module numpy_twin\.tusk"):
        functions_of("numpy_twin.tusk", "losses").check_there(where)
    with pytest.raises(ConfigError, match=r"numpy_twin\.task has no function own_loses; check the spelling"):
        OwnFunctions(losses="numpy_twin.task:own_loses").check_there(where)


@pytest.fixture
def audited(tmp_path, monkeypatch):
    """A run of the twin, and a copy of it that has these functions, each call of which may take three seconds."""
    part = Part(tmp_path / "run", "")
    part.folder.mkdir()
    run(TWINS[0], part)
    folder = TWINS[0].copy(tmp_path)
    (folder / "numpy_twin" / "audit.py").write_text(FUNCTIONS)
    monkeypatch.setenv("FEDATTACK_ASKING_SECONDS", "3")
    return part, App(folder, {}, CLIENTS)


@pytest.mark.slow
def test_functions_that_take_too_long_print_or_fork_leave_the_rest(audited):
    """In the process that an audit starts: each ends in a line, or in nothing but the answer."""
    part, app = audited
    for name, message in (
        (
            "slow",
            "--examples numpy_twin.audit:slow did not end within 3 s; if it takes longer, set FEDATTACK_ASKI",
        ),
        ("greedy", "--examples numpy_twin.audit:greedy raised .*MemoryError"),
        ("ends", "the process that asks the app ended with 9"),
    ):
        with pytest.raises(FedAttackError, match=message):
            Asker(app, functions=OwnFunctions(f"numpy_twin.audit:{name}")).examples(part, witnesses_of(part))
    for name in ("prints", "forks"):
        found = Asker(app, functions=OwnFunctions(f"numpy_twin.audit:{name}")).examples(part, witnesses_of(part))
        assert all(len(each.trained) for each in found if each.asked), name


@pytest.mark.slow
def test_losses_and_updates_that_print_and_fork_give_what_quiet_ones_give(audited):
    part, app = audited
    quiet = pose_with(app, part, losses="own_losses", update="own_update")
    noisy = pose_with(app, part, losses="noisy_losses", update="noisy_update")
    assert [*map(describe, noisy.notes)] == [*map(describe, quiet.notes)]
    for name in ("losses", "products", "norms"):
        mine, others = getattr(noisy.knowledge.answers, name), getattr(quiet.knowledge.answers, name)
        assert np.array_equal(mine, others, equal_nan=True), name
    assert np.array_equal(noisy.knowledge.shadow_losses.losses, quiet.knowledge.shadow_losses.losses)
    # Also none in a session of its own.
    assert processes_of(part.folder.resolve()) == []


def describe(note: str) -> str:
    return note.replace("noisy_", "own_")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "line"),
    [
        (
            {"losses": "slow_losses"},
            "the app itself gives no losses: --losses numpy_twin.audit:slow_losses did not end within 3 s; if it "
            "takes longer, set FEDATTACK_ASKING_SECONDS",
        ),
        (
            {"losses": "stuck_losses"},
            "the app itself gives no losses: the app's code took too long and could not be stopped; if it takes "
            "longer, set FEDATTACK_ASKING_SECONDS",
        ),
        (
            {"losses": "own_losses", "update": "slow_update"},
            "only losses are used: --update numpy_twin.audit:slow_update did not end within 3 s; if it takes longer, "
            "set FEDATTACK_ASKING_SECONDS",
        ),
    ],
)
def test_losses_and_updates_that_hang_end_in_a_line_and_the_rest_is_asked(audited, names, line):
    part, app = audited
    posed = pose_with(app, part, **names)
    said = [*posed.notes, *(reason.why for reason in posed.reasons.values())]
    assert [one for one in {*said} if line in one], said
    assert all("\n" not in one for one in said)
    assert (posed.knowledge.answers is None) == ("update" not in names)
    assert posed.knowledge.shadow_losses is None
    assert {"plaintext", "membership"} <= {*attack_all([part], [posed]).scored}
    # Also none in a session of its own.
    assert processes_of(part.folder.resolve()) == []


def pose_with(app: App, part: Part, **names: str):
    functions = OwnFunctions(examples="numpy_twin.audit:two_parts")
    functions = replace(functions, **{name: f"numpy_twin.audit:{function}" for name, function in names.items()})
    (part.folder / "witness" / "posed.json").unlink(missing_ok=True)
    (posed,) = pose_all([part], app=app, functions=functions)
    return posed


FUNCTIONS = """
import os, re, subprocess, sys, time
import numpy as np
from numpy_twin.task import load_data, own_examples, own_losses, own_update

def two_parts(partition, partitions):
    return *own_examples(partition, partitions), *load_data(partition + 100)[0]

heard = []

def make_noise(function):
    # Once for each function: updates are called hundreds of times.
    if function in heard:
        return
    heard.append(function)
    print("fedattack asked 1 2\\n" * 5, "x" * 10**6, end="")
    print("x" * 10**6, "without an end", file=sys.stderr, end="")
    # One in a session of its own would hold the pipe open for long, and a copy comes back.
    subprocess.Popen(["sleep", "3141"], start_new_session=True)
    os.fork()

def noisy_losses(arrays, examples, labels):
    make_noise("losses")
    return own_losses(arrays, examples, labels)

def noisy_update(arrays, examples, labels, seed):
    make_noise("update")
    return own_update(arrays, examples, labels, seed)

def slow_losses(arrays, examples, labels):
    subprocess.Popen(["sleep", "3141"], start_new_session=True)
    time.sleep(60)

def stuck_losses(arrays, examples, labels):
    # It holds the lock of Python, so that no thread of it runs.
    re.match("(a+)+$", "a" * 60 + "b")

def slow_update(arrays, examples, labels, seed):
    subprocess.Popen(["sleep", "3141"], start_new_session=True)
    time.sleep(60)

def slow(partition, partitions):
    time.sleep(60)

def greedy(partition, partitions):
    return np.ones(2**36), None

def ends(partition, partitions):
    os._exit(9)

def prints(partition, partitions):
    print("fedattack asked 1 2\\n" * 5, "x" * 10000)
    print("words", file=sys.stderr)
    return own_examples(partition, partitions)

def forks(partition, partitions):
    # One that would hold the pipe open for long, and one that comes back.
    subprocess.Popen(["sleep", "300"])
    os.fork()
    return own_examples(partition, partitions)
"""
