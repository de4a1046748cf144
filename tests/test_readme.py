"""The README's commands and code blocks are run as they stand, in order, in one empty folder."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flwr.client import NumPyClient
from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays

from fedattack.data import load_dataset
from fedattack.runtime.simulator import Simulator
from tests.federation import FEATURES, write_run
from tests.foreign.projects import MESSAGE_API

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")

YOUR_MODEL = f"""
from torch import nn

def build():
    return nn.Sequential(__import__("collections").OrderedDict(
        flatten=nn.Flatten(), fc1=nn.Linear({FEATURES}, 64), relu1=nn.ReLU(), fc2=nn.Linear(64, 10)))
"""

YOUR_PROPERTY = """
from fedattack.threats.property.properties import containing

def questions(auxiliary, targets):
    return [containing(auxiliary, auxiliary.y == 7, share=0.5, name="sevens")]
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    return [line for block in blocks("bash") for line in block.splitlines() if line.strip()]


@pytest.mark.parametrize("line", [line for line in commands() if line.startswith("make ")])
def test_make_targets_exist(line):
    subprocess.run([*shlex.split(line), "--dry-run"], cwd=ROOT, check=True, capture_output=True)


@pytest.fixture(scope="module")
def somewhere(tmp_path_factory) -> Path:
    """A user's folder: a recorded run of their own in ``audit``, their targets, their package."""
    folder = tmp_path_factory.mktemp("somewhere")
    write_run(folder / "audit")
    targets = folder / "audit" / "knowledge" / "targets.npz"
    targets.rename(folder / "targets.npz")
    draw = np.random.default_rng(0)
    x = draw.normal(size=(2_000, FEATURES)).astype(np.float32)
    np.savez(folder / "auxiliary.npz", x=x, y=draw.integers(10, size=len(x)))
    (folder / "audit" / "knowledge" / "knowledge.json").unlink()
    MESSAGE_API.copy(folder / "theirs").rename(folder / "yourproject")
    (folder / "yourpackage").mkdir()
    (folder / "yourpackage" / "models.py").write_text(YOUR_MODEL)
    (folder / "yourpackage" / "properties.py").write_text(YOUR_PROPERTY)
    return folder


@pytest.fixture
def flower(line, somewhere, tmp_path) -> Iterator[dict[str, str]]:
    """What leads a user's own `flwr run` to a SuperLink of this test."""
    if " flwr run " not in line:
        yield {}
        return
    with Simulator(somewhere / "yourproject", supernodes=2, log=tmp_path / "flower.log") as simulator:
        simulator.ensure_up()
        yield simulator._environment


def marked(line: str) -> object:
    """A trade-off trains its preset several times and then measures each defence, RecUP-FL trains a zoo: minutes."""
    return pytest.param(line, marks=pytest.mark.long) if re.search("tradeoff |defence=recup", line) else line


@pytest.mark.flower
@pytest.mark.parametrize("line", [marked(line) for line in commands() if line.startswith("fedattack ")])
def test_commands_run(line, somewhere, flower):
    words = [sys.executable, "-m", *shlex.split(line)]
    environment = {**os.environ, "PYTHONPATH": str(somewhere), **flower}
    done = subprocess.run(words, cwd=somewhere, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr


def test_no_other_kind_of_command_hides_in_a_block():
    assert all(line.startswith(("make ", "fedattack ")) for line in commands())


@pytest.mark.parametrize("code", blocks("python"))
def test_code_blocks_run(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102


def test_a_client_is_defended_by_the_lines_that_are_shown():
    """Three lines at most: the import, and the call around the client in the user's own `client_fn`."""

    class YourNumPyClient(NumPyClient):
        def fit(self, parameters, config):
            return [parameters[0] + np.arange(1.0, 11.0, dtype=np.float32)], 5, {"train-loss": 0.1}

    (code,) = (block for block in blocks("python") if "defended(" in block)
    assert sum("defended" in line for line in code.splitlines()) <= 3
    scope = {"YourNumPyClient": YourNumPyClient}
    exec(compile(code, "README.md", "exec"), scope)  # noqa: S102
    received = [np.full(10, 7.0, dtype=np.float32)]
    reply = scope["client_fn"](None).fit(FitIns(ndarrays_to_parameters(received), {}))
    assert (parameters_to_ndarrays(reply.parameters)[0] - received[0]).tolist() == [0.0] * 9 + [10.0]
    assert (reply.num_examples, reply.metrics) == (5, {})


@pytest.mark.parametrize("text", blocks("toml"))
def test_a_declared_table_is_read(text, tmp_path):
    lines = [f"{20 + row},{'FM'[row % 2]},{'abc'[row % 3]},{row * 7 % 13}" for row in range(30)]
    (tmp_path / "patients.csv").write_text("\n".join(["age,sex,hospital,cost", *lines, ",F,a,5"]))
    (tmp_path / "table.toml").write_text(text)
    data = load_dataset(str(tmp_path / "table.toml"))
    assert (data.column_names, data.sensitive, data.task) == (["age", "sex"], "sex", "regression")
    assert set(data.groups) == {"hospital"}


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith(("https://flower.ai", "https://opacus.ai")) or (ROOT / target).exists(), target
