"""The guide shows the very lines that the projects beside this file were observed with, and what runs."""

import json
import re
import shlex
import shutil
import stat

import numpy as np
import pytest

from fedattack.apps.outside import FlwrRun
from fedattack.attacks import ATTACKS, Knowledge, ModelKnowledge, Targets, read_knowledge, write_knowledge
from fedattack.audit.truth import note_node, read_truth, write_truth
from fedattack.base.errors import DataError
from fedattack.learning import build_model
from fedattack.record import Exchange, Record, RecordWriter, Reply
from tests.apps.projects import PROJECTS, ROOT
from tests.worlds.attacked import audit_folder
from tests.worlds.federation import write_run
from tests.worlds.sealed import edit

GUIDE_NAME = "fedattack/observe/RECORD.md"
GUIDE = (ROOT / GUIDE_NAME).read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.folder)
def test_the_lines_that_are_shown_are_those_that_were_added(project):
    shown = [line.partition("  #")[0] for block in blocks("python") for line in block.splitlines()]
    for _, line in project.lines:
        assert line.replace("RECORD", "/srv/audit/record") in shown


def test_the_command_that_is_observed_lasts_as_long_as_its_run():
    (line,) = (line for block in blocks("bash") for line in block.splitlines() if line.startswith("fedattack observe "))
    assert FlwrRun.parse(shlex.split(line.partition(" -- ")[2])).streams


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
                Reply(node, "ok", {key: array + shift for key, array in state.items()}, size)
                for node, shift, size in (("7", 0.1, 64), ("8", -0.1, 32))
            ],
        )
    )
    writer.close()
    x = np.random.default_rng(0).normal(size=(216, 6)).astype(np.float32)
    knowledge = Knowledge(model=known, targets=Targets(x, np.arange(216) % 10))
    write_knowledge(tmp_path / "audit" / "knowledge", knowledge)
    ATTACKS["sia"].run(Record(record), knowledge, device="cpu").save(tmp_path / "audit" / "scores" / "sia.npz")
    (code,) = (block for block in blocks("python") if "write_truth" in block)
    exec(compile(code.replace("/srv", str(tmp_path)), GUIDE_NAME, "exec"), {})  # noqa: S102
    truth = read_truth(tmp_path / "audit" / "truth")
    assert [(truth.origins == client).sum() for client in ("north", "south", "")] == [8, 16, 192]
    (headline,) = (item for item in audit_folder(tmp_path / "audit", device="cpu") if item.headline)
    assert headline.n == 96
    assert headline.chance == 0.5


def test_clients_that_are_mixed_up_are_noticed_and_can_be_put_right(tmp_path):
    run = write_run(tmp_path / "run", rounds=1)
    (item,) = Record(run / "record")
    replies = [Reply(seen.node, "ok", dict(seen.arrays), 20 + index) for index, seen in enumerate(item.observations)]
    exchange = Exchange(1, dict(item.common), replies)
    shutil.rmtree(run / "record")
    writer = RecordWriter(run / "record")
    writer.write(exchange)
    writer.close()
    edit(run / "truth" / "holdings.json", {"counts": [[20 + client, *[0] * 9] for client in range(4)]})
    ATTACKS["sia"].run(Record(run / "record"), read_knowledge(run / "knowledge"), device="cpu").save(
        run / "scores" / "sia.npz"
    )
    said = []
    for clients in ("1032", "0123"):
        for index, client in enumerate(clients):
            note_node(run / "truth", node=f"node{index}", client=client)
        audit_folder(run, device="cpu")
        notes = json.loads((run / "run.json").read_text())["notes"]
        said.append(any("are clients mixed up in truth/nodes?" in note for note in notes))
    assert said == [True, False]


def test_a_truth_without_records_that_nobody_holds_is_refused(tmp_path):
    nothing = np.zeros((0, 6), np.float32), np.zeros(0, np.int64)
    with pytest.raises(DataError, match="evaluation has no example; give some that no client holds"):
        write_truth(tmp_path, clients=["a"], classes=["0"], counts=np.ones((1, 1), int), evaluation=nothing, targets="")


def test_what_lies_beside_a_record_is_its_owners_alone(tmp_path):
    run = write_run(tmp_path / "run")
    ATTACKS["sia"].run(Record(run / "record"), read_knowledge(run / "knowledge"), device="cpu").save(
        run / "scores" / "sia.npz"
    )
    assert {stat.S_IMODE((run / name).stat().st_mode) for name in ("record", "knowledge", "truth", "scores")} == {0o700}
