"""What CONTRIBUTING.md tells somebody to do who adds something: done in a copy, and used there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

DEFENCE = '''
"""Scales the update down."""

from dataclasses import dataclass

import numpy as np

from fedattack.base.settings import SettingsModel, setting
from fedattack.defences.base import DefenceKind, as_float32, number


@dataclass(frozen=True)
class Scale:
    share: float
    power: float
    name = "scale"
    needs_batch = False

    def apply(self, update, rng, batch=None):
        factor = np.float32((1 - self.share) ** self.power)
        return {name: array * factor for name, array in as_float32(update).items()}


def make(settings):
    return Scale(number(settings, "defence-strength", high=1.0), number(settings, "scale-power"))


class ScaleSettings(SettingsModel):
    scale_power: float = setting(1.0, "power", ge=0)


KIND = DefenceKind("scale", make, ScaleSettings)
'''

USE_DEFENCE = """
import numpy as np

from fedattack.defences import defence_of
from fedattack.runs.presets import load_preset, resolve_settings
from fedattack.grids.tradeoff.grid import choose_strengths
from simulations.defences import defence_notes
from simulations.study import Study

preset = load_preset("quickstart")
changes = ["defence=scale", "defence-strength=0.5", "scale-power=2", "clients=3"]
study = Study.of(resolve_settings(preset, changes) | {"seed": 0})
assert defence_notes(study) == ["defence scale: no finite guarantee"]
defence = defence_of(study.settings.defence_settings)
update = {"w": np.ones(3, np.float32)}
assert defence.apply(update, np.random.default_rng(0))["w"].tolist() == [0.25] * 3
assert choose_strengths(preset, ["scale"]) == {"scale": [0.25, 0.5]}
"""

USE_PROTOCOL = """
from pathlib import Path

import numpy as np

from fedattack.learning import build_model
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.attacks import ATTACKS, Knowledge, ModelKnowledge, Targets

model = build_model("linear", input_shape=(3,), classes=2)
arrays = {name: value.numpy() for name, value in model.state_dict().items()}
writer = RecordWriter(Path("record"), seed=0, protocol="halves")
replies = [Reply(str(node), "ok", {name: array + node for name, array in arrays.items()}, 5) for node in (1, 2)]
writer.write(Exchange(1, arrays, replies))
writer.close(final=arrays)
record = Record(Path("record"))
model = ModelKnowledge("linear", (3,), 2)
targets = Targets(np.zeros((4, 3), np.float32), np.zeros(4, np.int64))
knowledge = Knowledge(model=model, targets=targets)
assert not ATTACKS["sia"].find_obstacles(record, knowledge)
obstacles = [reason.what for reason in ATTACKS["inversion"].find_obstacles(record, knowledge)]
assert any("these clients send halves" in what for what in obstacles), obstacles
scores = ATTACKS["sia"].run(record, knowledge, seed=0, device="cpu")
assert scores.arrays["decisions"].shape[-1] == 4
"""


USE_THREAT = """
import json
import sys
from pathlib import Path

import fedattack.cli

sys.path.append(sys.argv[1])
from tests.worlds.federation import write_run

write_run(Path("run"))
for words in (["list", "--json"], ["attack", "toy", "run", "--option", "power=2"], ["report", "run"]):
    sys.argv = ["fedattack", *words]
    try:
        fedattack.cli.main()
    except SystemExit as end:
        assert not end.code
(finding,) = json.loads(Path("run/findings.json").read_text())
assert (finding["attack"], finding["metric"]) == ("toy", "named")
assert "Who was named" in Path("run/report.html").read_text()
"""


@pytest.fixture
def copy(tmp_path):
    """Copy what the recipes change."""
    for name in ("fedattack", "clients", "strategies", "simulations"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def edit(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert text.count(before) == 1, (file, before)
    file.write_text(text.replace(before, after))


def use(copy: Path, code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT)], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_a_threat_is_added_by_the_recipe_and_nothing_else_is_edited(copy):
    """The toy of another package, as a folder of this one."""
    folder = copy / "fedattack" / "threats" / "toy"
    shutil.copytree(ROOT / "tests" / "attacks" / "toy" / "toy_threat", folder)
    for file in folder.glob("*.py"):
        file.write_text(file.read_text().replace("toy_threat", "fedattack.threats.toy"))
    assert '"question": "Which client holds the most examples?"' in use(copy, USE_THREAT)


@pytest.mark.slow
def test_a_defence_is_added_by_the_recipe(copy):
    (copy / "fedattack" / "defences" / "scale.py").write_text(DEFENCE)
    kinds = copy / "fedattack" / "defences" / "kinds.py"
    edit(
        kinds,
        "import dp_sgd, flower_localdp, noise, recup, soteria",
        "import dp_sgd, flower_localdp, noise, recup, scale, soteria",
    )
    edit(kinds, "    sparsify.KIND,\n", "    sparsify.KIND,\n    scale.KIND,\n")
    edit(copy / "pyproject.toml", 'soteria-layer = ""', 'soteria-layer = ""\nscale-power = 1.0')
    with (copy / "simulations" / "tradeoff.toml").open("a") as file:
        file.write('\n[scale]\nwhat = "share"\nmost = 1.0\nstrengths = [0.25, 0.5]\n')
    use(copy, USE_DEFENCE)


@pytest.mark.slow
def test_a_protocol_is_added_by_the_recipe(copy):
    edit(
        copy / "fedattack" / "record" / "schema.py",
        'Literal["fedavg", "fedsgd", "fedmd"]',
        'Literal["fedavg", "fedsgd", "fedmd", "halves"]',
    )
    edit(
        copy / "fedattack" / "record" / "format.py",
        '    "fedsgd": Messages(',
        '    "halves": Messages("its half", "halves", sends_model=True, sends_back=True),\n    "fedsgd": Messages(',
    )
    rebuild = copy / "fedattack" / "attacks" / "local_models.py"
    edit(rebuild, '{"fedavg": _take_sent,', '{"fedavg": _take_sent, "halves": _take_sent,')
    use(copy, USE_PROTOCOL)


def test_each_file_that_is_named_is_there():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`((?:\w+/)+\w+\.(?:py|toml|md))`", text))
    assert len(named) > 20
    places = (ROOT, ROOT / "fedattack")
    assert [name for name in sorted(named) if not any((place / name).is_file() for place in places)] == []
