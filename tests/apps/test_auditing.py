"""From a witnessed run to scores: what applies is made, what does not is told, and only the app itself is trusted."""

import html
import os
import shutil
import signal
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fedattack.apps import auditing, choosing, inverting, running
from fedattack.apps.app import App
from fedattack.apps.auditing import explaining, list_trusted
from fedattack.apps.choosing import describe_too_few
from fedattack.apps.order import Order, importable
from fedattack.apps.questions import NOTHING_BESIDES
from fedattack.apps.targets import SOME
from fedattack.apps.witnessing import witness_of
from fedattack.attacks import Scores
from fedattack.attacks.registry import THREATS
from fedattack.audit.finding import NO_EVIDENCE
from fedattack.audit.opened import open_records
from fedattack.audit.truth import HeldRecords
from fedattack.base.errors import ConfigError, FaultError, NeedsError, RunError, TrustError
from fedattack.base.files import FolderLock
from fedattack.base.untrusted import PRIVATE
from fedattack.cli.apps import ENOUGH_CLIENTS
from fedattack.record import Exchange, RecordWriter, Reply
from fedattack.record.folder import Part, RunFolder, read_study, write_study
from fedattack.record.others import Others
from fedattack.report import read_run
from fedattack.runs.pipeline import choose_attacks, judge_folder
from fedattack.runs.watch import Watch
from fedattack.threats.source.sia import SourceInference
from fedattack.witness import write_witness
from fedattack.witness.sent import SentArray
from tests.apps.projects import MESSAGE_API
from tests.apps.test_holding import World, rows
from tests.apps.worlds import TRAINING, attack_all, pose_all, witness, write_record


@pytest.fixture
def part(tmp_path) -> Part:
    return write_witnessed(tmp_path)


def write_witnessed(folder) -> Part:
    """Write a run of three clients that was witnessed; one of them holds few examples."""
    write_record(folder / "record", ["100", "101", "102"], rounds=1)
    write_study(folder, {"commands": ["fedattack audit ."], "seeds": [0]})
    part = Part(folder, "")
    small = witness("0", rows((0, 6)), rows((300, 340)), training=replace(TRAINING, epochs=1.0, momentum=0.0))
    for each in (small, *World.witnesses(10**6)[1:]):
        write_witness(witness_of(part), each)
    return part


def choose(names):
    return choose_attacks(names, {})


@pytest.mark.slow
def test_all_that_applies_is_made_and_judged(part):
    posed = pose_all([part])
    attacked = attack_all([part], posed)
    assert attacked.scored == ("sia", "membership", "inversion", "exact", "labels", "plaintext")
    assert attacked.failed == {}
    assert read_study(part.folder)["attacks"] == ["sia", "membership", "inversion", "exact", "labels", "plaintext"]
    assert "torch.nn:Linear" in list_trusted(posed)
    findings, _ = judge_folder(part.folder, device="cpu", watch=Watch(), trusted=list_trusted(posed))
    headlines = [finding.attack for finding in findings if finding.headline]
    assert headlines[0] == "sia"
    assert {*headlines} == {"sia", "membership", "inversion", "exact", "labels", "plaintext"}
    (recognised,) = (finding for finding in findings if finding.metric == "recognised")
    assert recognised.n == 6


def test_an_app_whose_clients_all_have_many_examples_is_told_so(part):
    """Nobody who audits an app can write a truth for it."""
    (posed,) = pose_all([part])
    known = posed.knowledge
    (run,) = open_records(RunFolder(part.folder), lambda part: known, truth=True)
    assert run.truth is not None
    assert "inversion" not in choosing.list_unasked([], {}, run, [posed])
    many = replace(run.truth, records=None, counts=run.truth.counts + SOME)
    reason = choosing.list_unasked([], {}, replace(run, truth=many), [posed])["inversion"]
    assert f"a client that has at most {SOME} examples" in reason.what
    assert reason.what.endswith(f"the smallest client here has {many.counts.sum(axis=1).min():,}")
    assert reason.remedy == f"a single run, with a client of at most {SOME} examples that are all witnessed"


@pytest.mark.slow
def test_what_does_not_apply_is_told(part):
    posed = [replace(each, few=()) for each in pose_all([part])]
    attacked = attack_all([part], posed)
    assert attacked.scored == ("sia", "membership", "exact", "labels", "plaintext")
    assert f"a client that has at most {SOME} examples" in attacked.failed["inversion"]
    judge_folder(part.folder, device="cpu", watch=Watch(), trusted=list_trusted(posed))
    entries = {entry["question"]: entry for entry in read_run(part.folder)["untried"]}
    assert all(entry["remedy"] for entry in entries.values())
    assert f"at most {SOME} examples" in entries[THREATS["inversion"].question]["remedy"]
    column = entries[THREATS["attribute"].question]
    assert column["remedy"] == "`fedattack audit APP --sensitive NUMBER`, a column of the model's input"
    # It is asked of sums that single replies make.
    holds = entries[THREATS["property"].question]
    assert holds["why"] == "the attacker does not know a property to ask about"
    assert holds["remedy"].startswith("`fedattack audit APP --property CLASS`")
    means = {each["attack"]: each["by"] for each in read_run(part.folder)["means"]}
    assert means["sia"] == "a model that the attacker builds"
    assert means["plaintext"] == "the record alone"


@pytest.mark.parametrize(("side", "is_refused"), [(28, False), (64, True)])
def test_many_large_images_are_not_compared(monkeypatch, side, is_refused):
    monkeypatch.setattr(inverting, "explain_no_search", lambda model, labels, is_bounded: "")
    held = HeldRecords(np.zeros((200, 1, side, side), np.float32), np.zeros(200, np.int64), ("a",) * 200)
    model = SimpleNamespace(input_shape=(1, side, side))
    run = SimpleNamespace(truth=SimpleNamespace(records=held), knowledge=SimpleNamespace(model=model))
    refused = choosing._refuse_search(run)
    assert (refused is not None) == is_refused
    if refused is not None:
        assert "a comparison of the 200 images" in refused.what


@pytest.mark.slow
@pytest.mark.parametrize("is_long", [False, True])
def test_the_smallest_client_is_searched_where_nobody_has_few(tmp_path, monkeypatch, is_long):
    write_record(tmp_path / "record", ["100", "101", "102"], rounds=1)
    write_study(tmp_path, {"commands": ["fedattack audit ."], "seeds": [0]})
    part = Part(tmp_path, "")
    how = replace(TRAINING, momentum=0.0)
    for name in World.trains:
        each = witness(name, World.trains[name], World.evaluates[name], training=how)
        write_witness(witness_of(part), each)
    posed = pose_all([part])
    monkeypatch.setattr(inverting, "_SECONDS_OF_MANY", 1e-9 if is_long else 60.0)
    attacked = attack_all(
        [part], posed, lambda names: choose([name for name in names if name in ("inversion", "exact")])
    )
    if is_long:
        assert attacked.scored == ("exact",)
        assert "the 60 examples of the smallest client is counted as" in attacked.failed["inversion"]
        return
    assert attacked.failed == {}
    assert read_study(tmp_path)["options"] == {"clients": "100", "imitate": "middle", "iterations": "500"}
    scores = Scores.load(part.scores("inversion"))
    assert scores.facts["imitate"] == "middle"
    assert any("stands for all of its steps" in note for note in scores.notes)
    findings, _ = judge_folder(tmp_path, device="cpu", watch=Watch(), trusted=list_trusted(posed))
    found = {finding.metric: finding for finding in findings if finding.attack == "inversion"}
    assert found["recognised"].n == 60
    assert found["recognised"].verdict == NO_EVIDENCE, "the record's replies are not what such clients send"
    assert "one gradient at the middle stands for all of them" in found["preflight"].reason


def test_what_takes_long_is_spared_where_the_caller_does_not_ask_for_more(tmp_path):
    write_record(tmp_path / "record", ["100", "101", "102"], rounds=11)
    write_study(tmp_path, {"commands": ["fedattack audit ."], "seeds": [0]})
    part = Part(tmp_path, "")
    for each in World.witnesses(10**6):
        write_witness(witness_of(part), each)
    posed = pose_all([part])
    said: list[str] = []
    watch = Watch(say=lambda _, text: said.append(text))

    def only_membership(names, **options):
        return [attack.with_options(options) for attack in choose(names) if attack.name == "membership"]

    attack_all([part], posed, only_membership, watch)
    assert read_study(tmp_path)["options"] == {"shadow_rounds": "10"}
    assert any(line.startswith("membership: --option shadow_rounds=10, as for all apps") for line in said)
    assert Scores.load(part.scores("membership")).facts["trained"] == 8 * 10
    said.clear()
    part.scores("membership").unlink()
    attack_all([part], posed, lambda names: only_membership(names, shadow_rounds="2", shadows="3"), watch)
    assert not any("as for all apps" in line for line in said)
    assert Scores.load(part.scores("membership")).facts["trained"] == 3 * 2


def test_an_attack_that_fails_does_not_keep_the_others(part, monkeypatch):
    def refuse(*_):
        raise NeedsError("it lacks something")

    monkeypatch.setattr(SourceInference, "attack", refuse)
    posed = pose_all([part])
    assert attack_all([part], posed, lambda names: choose(names[:2])).failed["sia"] == "it lacks something"
    with pytest.raises(NeedsError, match=r"no attack on .* could be made: sia: it lacks something"):
        attack_all([part], posed, lambda names: choose(names[:1]))


BYTES = {"0": np.arange(7, dtype=np.uint8)}
VALUES = {"values": np.zeros((200, 4))}


@pytest.mark.parametrize(
    ("sent", "reply", "message"),
    [
        ({"0": np.zeros(9, np.uint8)}, {"arrays": BYTES}, "clients send bytes, such as XGBoost's trees"),
        # The first model of trees is empty.
        ({"0": np.zeros(0)}, {"arrays": BYTES}, "clients send bytes, such as XGBoost's trees"),
        (None, {"metrics": {"trees": b"..."}}, "clients send metrics and settings without arrays, and no attack reads"),
        (VALUES, {}, r"clients send empty replies to .* whether these arrays reveal"),
    ],
)
def test_what_no_attack_reads_is_told(tmp_path, sent, reply, message):
    writer = RecordWriter(tmp_path / "record")
    if sent is VALUES:
        writer.unrecorded.count("query", "reply", arrays={"out.values": np.zeros((200, 4))})
    writer.write(Exchange(1, sent, [Reply(node, "ok", **reply) for node in "ab"]))
    writer.close()
    with pytest.raises(NeedsError, match=message):
        pose_all([Part(tmp_path, "")])


def test_what_clients_answer_besides_training_messages_is_told(tmp_path):
    part = Part(tmp_path, "")
    silent = [Reply(node, "missing", reason="no reply before the round was closed") for node in "ab"]
    passed = (
        r"; 2 query replies with arrays out.values \(200, 4\) are not in this record; nobody asked whether these "
        "arrays reveal a party's columns or labels"
    )
    nothing = f"the run: nothing is trained, since the server sent no training message{passed}"
    for exchanges, message in (
        ([silent], f"no client answered a training message in any of 1 rounds: no reply .*{passed}"),
        ([[Reply("a", "failed", reason="error 1: no"), silent[1]]], "in any of 1 rounds: error 1: no$"),
    ):
        shutil.rmtree(part.record, ignore_errors=True)
        writer = RecordWriter(part.record)
        writer.unrecorded.count("query", "reply", arrays={"out.values": np.zeros((200, 4))}, messages=2)
        for number, replies in enumerate(exchanges, 1):
            writer.write(Exchange(number, {"0": np.zeros(3)}, replies))
        writer.close()
        with pytest.raises(RunError, match=message):
            running._check_answers(part, None, Watch())
    # Queries are no failure of clients: whether they can be asked about is found out later.
    shutil.rmtree(part.record)
    writer = RecordWriter(part.record)
    writer.unrecorded.count("query", "reply", arrays={"out.values": np.zeros((200, 4))}, messages=2)
    writer.close()
    running._check_answers(part, None, Watch())
    with pytest.raises(NeedsError, match=nothing):
        pose_all([part])


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_run_without_any_answer_has_a_page_that_says_what_was_tried(tmp_path, rounds):
    writer = RecordWriter(tmp_path / "record")
    writer.unrecorded.count("query.forward", "reply", arrays={"embedding": np.zeros((200, 4))}, messages=6)
    for number in range(1, rounds + 1):
        writer.write(Exchange(number, {"values": np.zeros(3)}, [Reply(node, "ok") for node in "ab"]))
    writer.close()
    write_study(tmp_path, {"app": "mine", "commands": ["fedattack audit mine"], "seeds": [0]})
    assert auditing.note_unanswered(tmp_path, "the run: clients send embeddings, and no attack reads them")
    findings, page = judge_folder(tmp_path, watch=Watch())
    run, text = read_run(tmp_path), page.read_text()
    assert not findings
    assert run["observed"]["replies to query.forward"] == 6
    assert run["observed"]["in_plaintext"] == ["embedding"]
    questions = [line["question"] for line in run["untried"]]
    assert {threat.question for threat in THREATS.values()} < {*questions}
    assert "Can the embeddings that a party sends be turned back into its columns?" in questions
    for said in ("No question was answered", "clients send embeddings, and no attack reads them", *questions):
        assert html.escape(said, quote=True) in text.replace("&#39;", "&#x27;")
    assert "There are no findings" not in text


def test_a_page_without_an_answer_says_what_is_known(tmp_path):
    """What clients send, the notes of witnesses, and what whoever reads the replies knows without an attack."""
    writer = RecordWriter(tmp_path / "record")
    values = {"deaths": [0, 1, 0, 1, 1, 0]}
    writer.close(others=[Others("query.events", "reply", (node,), values) for node in "abc"])
    write_study(tmp_path, {"app": "mine", "commands": ["fedattack audit mine"], "seeds": [0]})
    sends = (SentArray("weight", (4, 6), "float32", "not understood", "weight"),)
    seen = witness("0", rows((0, 6)), notes=("what it fits was not seen",), sends=sends)
    write_witness(witness_of(Part(tmp_path, "")), seen)
    said: list[str] = []
    order = Order(tmp_path, NOTHING_BESIDES, {}, choose)
    with pytest.raises(NeedsError), explaining(order, Watch(say=lambda _, text: said.append(text))):
        raise NeedsError("the run: nothing is trained")
    run, page = read_run(tmp_path), (tmp_path / "report.html").read_text()
    assert run["title"] == "What does the server learn? 3 clients, audit of mine"
    assert run["audited"]["clients"] == "3"
    assert run["sent"]["arrays"][0]["kind"] == "not understood"
    assert "client 0: what it fits was not seen" in run["notes"]
    (row,) = run["reached"]["rows"]
    for text in (row["holds"], "client 0: what it fits was not seen", "not understood"):
        assert text[1:] in page
    assert said[-1] == f"replies to query.events hold deaths: {row['holds']}"
    assert "9 of 9 that are not 0" in said[-1]


def test_nothing_is_said_of_a_run_that_left_no_record(tmp_path):
    assert not auditing.note_unanswered(tmp_path, "the run did not begin")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_scores_that_come_later_are_judged(part):
    assert auditing.note_unanswered(part.folder, "it was cut off")
    (posed,) = pose_all([part])
    attack_all([part], [posed])
    findings, _ = judge_folder(part.folder, watch=Watch(), trusted=list_trusted([posed]))
    assert findings
    assert "unanswered" not in read_run(part.folder)


def fail(*args, **kwargs):
    raise ZeroDivisionError("of strange numbers")


def order(part: Part) -> auditing.Order:
    return auditing.Order(part.folder, NOTHING_BESIDES, {}, choose, "cpu")


def test_what_no_judge_can_judge_leaves_a_page_all_the_same(part, monkeypatch):
    """It says of each question that was asked why, and why the others were not."""
    (posed,) = pose_all([part])
    monkeypatch.setattr("fedattack.threats.source.judge.SourceJudge.findings", fail)
    attacked = attack_all([part], [posed], lambda names: choose(["sia"]))
    failing = pytest.raises(FaultError, match="sia could not be judged: ZeroDivisionError")
    with failing, auditing.explaining(order(part), Watch(), auditing.list_trusted([posed])):
        auditing.judge(order(part), [posed], attacked, Watch())
    run, text = read_run(part.folder), (part.folder / "report.html").read_text()
    assert "ZeroDivisionError: of strange numbers" in run["unanswered"]
    failed = [entry for entry in run["untried"] if "failed" in entry]
    assert [entry["why"].startswith("sia could not be judged: ZeroDivisionError") for entry in failed] == [True]
    assert not any("the reason is above" in entry["why"] for entry in run["untried"])
    assert "No attack could be judged." in text
    assert "No question was answered" in text


def test_an_attack_that_fails_in_a_way_that_nobody_foresaw_is_told_apart(part, monkeypatch):
    """A need that is not met leaves nothing out; a fault does."""
    (posed,) = pose_all([part])
    monkeypatch.setattr(SourceInference, "attack", fail)
    attacked = attack_all([part], [posed], lambda names: choose(["sia", "plaintext"]))
    assert attacked.scored == ("plaintext",)
    judged = auditing.judge(order(part), [posed], attacked, Watch())
    assert judged.unmade == {}
    (line,) = read_run(part.folder)["left_out"]
    assert line.startswith("sia was not made: ZeroDivisionError: of strange numbers (test_auditing.py, line ")
    assert line in html.unescape(judged.page.read_text()).replace("Sia was", "sia was")
    monkeypatch.undo()
    attack_all([part], [posed], lambda names: choose(["sia", "plaintext"]))
    assert "left_out" not in read_study(part.folder)


def test_too_little_memory_for_an_attack_leaves_it_out(part, monkeypatch):
    def run_out(*_):
        raise MemoryError

    (posed,) = pose_all([part])
    monkeypatch.setattr(SourceInference, "attack", run_out)
    attack_all([part], [posed], lambda names: choose(["sia", "plaintext"]))
    assert read_study(part.folder)["left_out"] == ["sia was not made: there is not enough memory for it"]


def test_a_control_that_failed_is_tried_again(part, monkeypatch):
    """Whoever gives the command again has a whole report, or is told again what it leaves out."""
    (posed,) = pose_all([part])
    attacked = attack_all([part], [posed], lambda names: choose(["plaintext"]))
    monkeypatch.setattr(auditing, "control", fail)
    auditing.control_all(None, attacked, Watch())
    (line,) = read_study(part.folder)["left_out"]
    assert line.startswith("the positive controls: ZeroDivisionError")
    attacked = attack_all([part], [posed], lambda names: choose(["plaintext"]))
    auditing.control_all(None, attacked, Watch())
    assert read_study(part.folder)["left_out"] == [line]
    monkeypatch.setattr(auditing, "control", lambda *_: {})
    attacked = attack_all([part], [posed], lambda names: choose(["plaintext"]))
    auditing.control_all(None, attacked, Watch())
    assert "left_out" not in read_study(part.folder)


def test_a_page_that_asks_for_trust_does_not_hide_why_there_is_no_answer(part, monkeypatch):
    def refuse(*args, **kwargs):
        raise TrustError("the folder asks for code")

    monkeypatch.setattr(auditing, "judge_folder", refuse)
    said: list[str] = []
    watch = Watch(say=lambda _, text: said.append(text))
    with pytest.raises(NeedsError, match="it lacks something"), explaining(order(part), watch):
        raise NeedsError("it lacks something")
    assert said == ["no page was written, either: the folder asks for code"]


def test_nothing_is_written_into_a_folder_in_which_another_command_is_at_work(part):
    before = (part.folder / "study.json").read_bytes()
    with FolderLock(part.folder), pytest.raises(ConfigError), explaining(order(part), Watch()):
        raise ConfigError("another run is at work in it")
    assert (part.folder / "study.json").read_bytes() == before
    assert not (part.folder / "report.html").exists()


def test_too_few_clients_are_told_before_the_run():
    few = describe_too_few(4)
    assert (
        "with 4 clients the smallest possible p is 0.042, and 0.023 is needed; take 5 clients, by --supernodes" in few
    )
    assert few.startswith("hardly any outcome of sia")
    assert describe_too_few(3).startswith("no outcome of sia")
    assert describe_too_few(ENOUGH_CLIENTS) == ""


def test_the_apps_modules_are_importable_meanwhile_and_nothing_is_written_beside_them(tmp_path, monkeypatch):
    (tmp_path / "only_in_this_app.py").write_text("here = 1\n")
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    before = list(sys.path)
    with importable(App(tmp_path)):
        assert __import__("only_in_this_app").here == 1
    assert sys.path == before
    assert [path.name for path in tmp_path.iterdir()] == ["only_in_this_app.py"]
    assert sys.dont_write_bytecode is False


class Runner:
    """Stands for Flower: calls what it is given in the place of a run."""

    cwd = None

    def __init__(self, run):
        self._run = run

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        pass

    def run(self, config, on_poll):
        self._run(self, on_poll)


def order_into(out) -> Order:
    return Order(out, NOTHING_BESIDES, {}, lambda names: ())


def test_a_run_folder_may_lie_in_the_apps_and_a_run_that_is_ended_leaves_nothing(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    app = MESSAGE_API.copy(tmp_path)
    out = app / "runs" / "mine"
    seen = []

    def run(runner, on_poll):
        seen.extend(path.name for path in (out / PRIVATE).rglob("*"))
        (runner.cwd / "final_model.pt").write_text("weights")
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setitem(running.RUNTIMES, "simulation", lambda *_: Runner(run))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit):
        running.run_app(App(app), order_into(out), watch=Watch())
    assert "fedattack_witnessed.py" in seen
    assert "mine" not in seen
    assert not [*(tmp_path / "tmp").iterdir()]
    assert not (out / PRIVATE).exists()
    assert not (app / "final_model.pt").exists()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("module", "named"),
    [("digits.client_ap", "clientapp"), ("digits", "clientapp"), ("server", "serverapp"), ("torchvision", "")],
)
def test_a_module_that_is_not_there_is_named_where_the_app_states_it(tmp_path, module, named):
    components = 'serverapp = "server:app"\nclientapp = "digits.client_ap:app"'
    (tmp_path / "pyproject.toml").write_text(f"[tool.flwr.app.components]\n{components}\n")
    with pytest.raises(RunError) as failed, running._explaining_imports(App(tmp_path)):
        raise RunError(f"the run did not complete: ModuleNotFoundError: No module named '{module}'; see flower.log")
    assert ("[tool.flwr.app.components] of pyproject.toml names it" in str(failed.value)) == bool(named)
    assert f"; {named}" in str(failed.value)


def test_rounds_are_counted_while_the_app_runs(tmp_path, monkeypatch):
    def run(runner, on_poll):
        on_poll()
        (tmp_path / "out" / "flower.log").write_text("INFO :      \t├── Number of rounds: 5\n")
        write_record(record, ["100", "101"], rounds=2)
        on_poll()

    steps = []
    record = tmp_path / "out" / "record"
    monkeypatch.setitem(running.RUNTIMES, "simulation", lambda *_: Runner(run))
    monkeypatch.setattr(running, "wrap_app", lambda *_: None)
    watch = Watch(step=lambda what, done, total: steps.append((what, done, total)))
    (tmp_path / "app").mkdir()
    running.run_app(App(tmp_path / "app"), order_into(tmp_path / "out"), watch=watch)
    assert steps == [("train rounds", 0, None), *[("train rounds", 2, 5)] * 2]
