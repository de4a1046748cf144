"""The guide shows the very lines that the projects beside this file were observed with, and what runs."""

import re
import shlex

import numpy as np
import pytest
import typer

from fedattack.attacks import ATTACKS, Knowledge, ModelKnowledge, Targets, write_knowledge
from fedattack.audit.run import audit_folder
from fedattack.cli import app
from fedattack.learning import build_model
from fedattack.outside import FlwrRun
from fedattack.record import Exchange, Record, RecordWriter, Reply
from tests.foreign.projects import PROJECTS, ROOT

GUIDE = (ROOT / "fedattack" / "observe" / "YOUR-PROJECT.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.folder)
def test_the_lines_that_are_shown_are_those_that_were_added(project):
    shown = [line.partition("  #")[0] for block in blocks("python") for line in block.splitlines()]
    for _, line in project.lines:
        assert line.replace("RECORD", "/srv/audit/record") in shown


@pytest.mark.parametrize("line", [line for block in blocks("bash") for line in block.splitlines()])
def test_commands_are_understood(line):
    words = shlex.split(line)
    if words[0] == "pip":
        assert words == ["pip", "install", "fedattack"]
        return
    assert words[0] == "fedattack"
    group = typer.main.get_command(app)
    command = group.commands[words[1]]
    context = command.make_context(words[1], words[2:])
    if words[1] == "observe":
        assert FlwrRun.parse(context.params["command"]).streams


def test_the_truth_is_written_as_shown(tmp_path):
    """On a record of two nodes: the block runs, and the report then judges."""
    record = tmp_path / "audit" / "record"
    known = ModelKnowledge("mlp", (6,), 10, hidden=4)
    state = {
        name: value.numpy()
        for name, value in build_model("mlp", input_shape=(6,), classes=10, hidden=4, seed=0).state_dict().items()
    }
    writer = RecordWriter(record)
    writer.write(
        Exchange(
            1,
            state,
            [
                Reply(node, "ok", {key: array + shift for key, array in state.items()}, 20)
                for node, shift in (("7", 0.1), ("8", -0.1))
            ],
        )
    )
    writer.close()
    x = np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32)
    knowledge = Knowledge(model=known, targets=Targets(x, np.arange(60) % 10))
    write_knowledge(tmp_path / "audit" / "knowledge", knowledge)
    ATTACKS["sia"].run(Record(record), knowledge, device="cpu").save(tmp_path / "audit" / "scores" / "sia.npz")
    (code,) = (block for block in blocks("python") if "write_truth" in block)
    exec(compile(code.replace("/srv", str(tmp_path)), "YOUR-PROJECT.md", "exec"), {})  # noqa: S102
    (headline,) = (item for item in audit_folder(tmp_path / "audit", device="cpu") if item.headline)
    assert headline.n == 40
    assert headline.chance == 0.5
