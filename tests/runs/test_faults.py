"""What goes wrong on real processes: a node dies, a client is slow. The record stays whole, and attacks run on it."""

import json
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fedattack.attacks import Scores
from fedattack.audit.truth import read_truth
from fedattack.record import Record, check_record
from fedattack.runs.deployment import Deployment
from fedattack.runs.pipeline import attack_folder, choose_attacks, judge_folder
from fedattack.runs.presets import load_preset, resolve_settings
from fedattack.runs.runtimes import RUNTIMES
from fedattack.runs.simulating import simulate
from fedattack.runs.watch import Watch

pytestmark = pytest.mark.deploy
NODES, ROUNDS = 2, 6
SMALL = [f"clients={NODES}", f"rounds={ROUNDS}", "targets=20"]


class Faulty(Deployment):
    """A deployment whose SuperNodes can be hurt."""

    def tree(self, index: int) -> list[psutil.Process]:
        """The SuperNode and what it started, such as the client that trains."""
        node = psutil.Process(self._nodes[index].pid)
        return [node, *node.children(recursive=True)]

    def signal(self, index: int, what: signal.Signals) -> None:
        for process in self.tree(index):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(what)

    def restart(self, index: int) -> None:
        """Start a dead SuperNode again, with its key and all, as whoever looks after it would."""
        dead = self._nodes[index]
        dead.wait(30)
        home = self._private(f"node-{index}")
        self._nodes[index] = self._start(*dead.args, environment={"FLWR_HOME": str(home), "OMP_NUM_THREADS": "1"})


def audit(out: Path, monkeypatch, at: Callable[[Faulty, int], None], *changes: str) -> dict[str, list[str]]:
    """Run and attack; ``at`` is called again and again with the number of rounds recorded so far.

    Returns
    -------
    By client, the statuses of its replies in all rounds.
    """
    with_faults: list[Faulty] = []

    def make(app: Path, clients: int, device: str, log: Path) -> Faulty:
        with_faults.append(Faulty(app, supernodes=clients, log=log))
        return with_faults[0]

    def step(what: str, done: int, total: int | None) -> None:
        if what.startswith("train"):
            at(with_faults[0], done)

    monkeypatch.setitem(RUNTIMES, "processes", make)
    preset, watch = load_preset("quickstart"), Watch(step=step)
    settings = resolve_settings(preset, [*SMALL, *changes])
    simulate(preset, settings, [0], out, command="", watch=watch, runtime="processes")
    report = check_record(out / "record")
    assert (report.problems, report.rounds) == ([], ROUNDS)
    for attack in choose_attacks(preset.attacks, preset.options):
        attack_folder(attack, out, watch=Watch())
    found, page = judge_folder(out, watch=Watch())
    assert page.exists()
    assert any(item.metric == "asr" for item in found)
    truth, seen = read_truth(out / "truth"), {}
    for item in Record(out / "record"):
        for reply in item.observations:
            seen.setdefault(truth.nodes[reply.node], []).append(reply.status)
    # Scores are about the clients that there are, not one more for a node that came back.
    assert len(Scores.load(out / "scores" / "sia.npz").facts["clients"]) == NODES
    return seen


def test_a_node_that_dies_in_a_round_and_comes_back(tmp_path, monkeypatch):
    """Its reply of that round fails; the others go on; back again it is the same node, because of its key."""
    done_to = []

    def at(deployment: Faulty, recorded: int) -> None:
        if recorded == 1 and not done_to:
            deployment.signal(0, signal.SIGKILL)
            done_to.append("killed")
        elif recorded == 2 and done_to == ["killed"]:
            deployment.restart(0)
            done_to.append("restarted")

    seen = audit(tmp_path / "run", monkeypatch, at)
    print(json.dumps(seen))
    assert done_to == ["killed", "restarted"]
    assert seen["1"] == ["ok"] * ROUNDS
    assert seen["0"][0] == "ok"
    assert "failed" in seen["0"] or "missing" in seen["0"]
    assert seen["0"][-1] == "ok"


def test_a_client_that_is_slower_than_the_rounds_timeout(tmp_path, monkeypatch):
    """Rounds go on without it, and say so; when it is quick again, it takes part again."""
    done_to = []

    def at(deployment: Faulty, recorded: int) -> None:
        if recorded == 1 and not done_to:
            deployment.signal(1, signal.SIGSTOP)
            done_to.append("stopped")
        elif recorded == 3 and done_to == ["stopped"]:
            deployment.signal(1, signal.SIGCONT)
            done_to.append("on")

    seen = audit(tmp_path / "run", monkeypatch, at, "round-timeout=25")
    print(json.dumps(seen))
    assert done_to == ["stopped", "on"]
    assert seen["0"] == ["ok"] * ROUNDS
    assert seen["1"][0] == seen["1"][-1] == "ok"
    assert "missing" in seen["1"]
