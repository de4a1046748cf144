"""Runs in which nothing is trained, or clients reply no arrays: what they answer is held against their examples."""

import sys

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fedattack.apps.app import App
from fedattack.apps.asking import Asker
from fedattack.apps.auditing import control_all
from fedattack.apps.functions import OwnFunctions
from fedattack.attacks import ATTACKS
from fedattack.base.errors import NeedsError
from fedattack.record import Record
from fedattack.record.folder import Part
from fedattack.report import read_run
from fedattack.runs.pipeline import judge_folder
from fedattack.runs.watch import Watch
from tests.apps.worlds import attack_all, pose_all, run_here

CLIENTS = 6

# Its functions are all that an audit imports of it.
DATA = """
import numpy as np
from flwr.clientapp import ClientApp

client = ClientApp()


def examples(partition, partitions):
    rng = np.random.default_rng(partition)
    return rng.normal(size=(9, 4)), np.arange(9) % 2


def held_out(partition, partitions):
    rng = np.random.default_rng(100 + partition)
    return (*examples(partition, partitions), rng.normal(size=(9, 4)), np.arange(9) % 2)


def outcomes(partition, partitions):
    rng = np.random.default_rng(partition)
    return 1.0 + rng.choice(40, size=12, replace=False)[:, None], (rng.random(12) < 0.7).astype(int)


def fails(partition, partitions):
    raise RuntimeError("no such file")
"""


def rows_of(site: int) -> np.ndarray:
    return np.random.default_rng(site).normal(size=(9, 4))


@pytest.fixture
def app(tmp_path, here) -> App:
    """An app whose examples are stated, and that is asked in this process."""
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "stated.py").write_text(DATA)
    (folder / "pyproject.toml").write_text(
        '[tool.flwr.app.components]\nserverapp = "a:b"\nclientapp = "stated:client"\n'
    )
    return App(folder, {}, CLIENTS)


def reply(message, metrics) -> Message:
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


def sums_of(site: int) -> dict:
    """What gives a client away: sums of its columns, and one of its rows."""
    rows = rows_of(site)
    return {"sums": rows.sum(axis=0).tolist(), "first": rows[0].tolist(), "num-examples": len(rows)}


def queried(part: Part) -> None:
    """Clients answer a query."""
    client, server = ClientApp(), ServerApp()

    @client.query("sums")
    def answer(message, context):
        return reply(message, sums_of(context.node_config["partition-id"]))

    @server.main()
    def main(grid, context):
        nodes = grid.get_node_ids()
        config = ConfigRecord({"ask": 1})
        grid.send_and_receive([Message(RecordDict({"config": config}), node, "query.sums") for node in nodes])

    run_here(part, server, client, {}, CLIENTS)


def evaluated(part: Part) -> None:
    """Clients are asked to evaluate alone."""
    client = ClientApp()

    @client.evaluate()
    def answer(message, context):
        return reply(message, sums_of(context.node_config["partition-id"]))

    average(part, client, FedAvg(fraction_train=0.0))


def trained(part: Part) -> None:
    """Clients reply to training messages what is no array."""
    client = ClientApp()

    @client.train()
    def answer(message, context):
        return reply(message, sums_of(context.node_config["partition-id"]))

    server = ServerApp()

    @server.main()
    def main(grid, context):
        content = RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(3))})})
        grid.send_and_receive([Message(content, node, "train") for node in grid.get_node_ids()])

    run_here(part, server, client, {}, CLIENTS)


def average(part: Part, client: ClientApp, strategy: FedAvg) -> None:
    server = ServerApp()

    @server.main()
    def main(grid, context):
        strategy.start(grid, ArrayRecord({"w": Array(np.zeros(3))}), num_rounds=1)

    run_here(part, server, client, {}, CLIENTS)


@pytest.mark.parametrize("run", [queried, evaluated, trained])
@pytest.mark.parametrize("name", ["examples", "held_out"])
def test_what_clients_answer_is_held_against_the_examples_that_are_stated(run, name, tmp_path, app):
    part = Part(tmp_path / "out", "")
    part.folder.mkdir()
    run(part)
    posed = pose_all([part], app=app, functions=OwnFunctions(f"stated:{name}"))
    attacked = attack_all([part], posed)
    assert "plaintext" in attacked.scored
    assert not {"sia", "membership"} & {*attacked.scored}
    findings, page = judge_folder(part.folder, device="cpu", watch=Watch())
    found = {finding.name: finding for finding in findings}
    given, statistics = found["plaintext.given-away"], found["plaintext.statistics"]
    assert (given.verdict, given.read_off["certain"]) == ("leak", CLIENTS)
    assert statistics.verdict == "leak"
    shown = read_run(part.folder)
    assert f"? {CLIENTS} clients" in shown["title"]
    contents = {row["name"]: row for row in given.series["contents"]}
    assert (contents["first"]["kind"], contents["first"]["certain"]) == ("examples", CLIENTS)
    untried = shown["untried"]
    if run is not trained:
        assert shown["audited"]["training"] == "none: the server sent no training message"
        assert {line["why"] for line in untried} == {"nothing is trained, since the server sent no training message"}
    assert page.exists()


def test_counts_by_day_are_those_of_single_patients(tmp_path, app, monkeypatch):
    """As for a survival curve; on one day patients of two sites may have other outcomes."""

    def count_by_day(site):
        rng = np.random.default_rng(site)
        days = 1 + rng.choice(40, size=12, replace=False)
        died = rng.random(12) < 0.7
        return {
            "deaths": np.bincount(days[died], minlength=41).tolist(),
            "censored": np.bincount(days[~died], minlength=41).tolist(),
        }

    monkeypatch.setattr(sys.modules[__name__], "sums_of", count_by_day)
    part = Part(tmp_path / "out", "")
    part.folder.mkdir()
    queried(part)
    attack_all([part], pose_all([part], app=app, functions=OwnFunctions("stated:outcomes")))
    findings, _ = judge_folder(part.folder, device="cpu", watch=Watch())
    statistics = {finding.name: finding for finding in findings}["plaintext.statistics"]
    assert (statistics.verdict, statistics.read_off["certain"]) == ("leak", CLIENTS)
    reached = {row["name"]: row for row in read_run(part.folder)["reached"]["rows"]}
    for name in ("deaths", "censored"):
        assert reached[name]["holds"].endswith("if these numbers count examples, each 1 is a single example")


@pytest.mark.parametrize("run", [queried, evaluated])
def test_without_examples_nothing_is_asked_and_why_they_are_not_known_is_said(run, tmp_path, app):
    part = Part(tmp_path / "out", "")
    part.folder.mkdir()
    run(part)
    with pytest.raises(
        NeedsError, match=r"nothing is trained, .*; the clients' examples are those that the witness saw: --exa"
    ):
        pose_all([part], app=app, functions=OwnFunctions("stated:fails"))
    with pytest.raises(
        NeedsError, match="nothing is trained, since the server sent no training message; the plaintext"
    ):
        pose_all([part], app=app)


def test_attacks_on_training_refuse_a_run_in_which_nothing_is_trained(tmp_path, app):
    part = Part(tmp_path / "out", "")
    part.folder.mkdir()
    queried(part)
    (posed,) = pose_all([part], app=app, functions=OwnFunctions("stated:examples"))
    for attack in ATTACKS.values():
        if "untrained" in attack.needs.takes:
            assert attack.run(Record(part.record), posed.knowledge).arrays
        else:
            with pytest.raises(NeedsError):
                attack.run(Record(part.record), posed.knowledge)


@pytest.mark.parametrize("run", [queried, trained])
def test_clients_are_shown_to_send_rows_of_their_own_where_nothing_is_found(run, tmp_path, app, monkeypatch):
    """The positive control plants in replies to whatever messages there are."""
    monkeypatch.setattr(sys.modules[__name__], "sums_of", lambda site: {"num-examples": 9, "zeros": [0.0] * 4})
    part = Part(tmp_path / "out", "")
    part.folder.mkdir()
    run(part)
    posed = pose_all([part], app=app, functions=OwnFunctions("stated:examples"))
    attacked = attack_all([part], posed)
    control_all(Asker(app), attacked, Watch(), full=True)
    findings, _ = judge_folder(part.folder, device="cpu", watch=Watch())
    given = {finding.name: finding for finding in findings}["plaintext.own-examples"]
    assert given.verdict == "no evidence"
    assert given.reason.endswith(
        "with clients that send one of their own examples as they are, the mean of all, and sizes of groups of "
        "them, this attack shows a leak"
    )
