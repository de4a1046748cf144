"""Other people's projects: observed by three lines at most, run by `flwr run`, attacked as their owner would."""

import importlib
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedattack.attacks import Scores
from fedattack.attacks.matching import NAMELESS
from fedattack.record import Record, check_record
from fedattack.runs.simulator import Simulator
from tests.apps.projects import (
    BATCH_NORM,
    CLIENTS,
    LEGACY,
    MESSAGE_API,
    PROJECTS,
    ROUNDS,
    SKLEARN,
    Toy,
    fedattack,
    findings_of,
    write_targets,
    write_what_is_true,
)

# What scikit-learn calls coef_ and intercept_, as a model of PyTorch; its owner writes it beside the project.
LOGISTIC = "from torch import nn\n\ndef logistic():\n    return nn.Linear(64, 10)\n"

DIGITS = load_digits()
FLAT = (DIGITS.data[1600:] / 16).astype(np.float32), DIGITS.target[1600:]
IMAGES = FLAT[0].reshape(-1, 1, 8, 8), FLAT[1]
PRIORS = {BATCH_NORM: ("--prior", "examples")}


@pytest.fixture
def task(monkeypatch):
    """Imports the module of a project that holds its data."""

    def of(project: Toy, folder: Path):
        monkeypatch.syspath_prepend(folder)
        return importlib.import_module(f"{project.package}.task")

    return of


def parts_of(project: Toy, module) -> list[tuple]:
    """What each site of a project trains and evaluates on, by its own function."""
    sites = (CLIENTS,) * (project is not LEGACY)
    return [tuple(map(arrays, module.load_data(site, *sites))) for site in range(CLIENTS)]


def arrays(data) -> tuple:
    if not data:
        return ()
    return np.asarray(data[0], np.float32), np.asarray(data[1])


def observe(project: Toy, folder: Path) -> tuple[Path, Path]:
    """Add the lines and run the project; returns its folder and that of the audit."""
    audit = folder / "audit"
    where = project.observed(folder, audit / "record")
    with Simulator(where, supernodes=CLIENTS, log=folder / "flower.log") as simulator:
        assert simulator.run({}) is None
    found = check_record(audit / "record")
    assert found.whole, found.problems
    record = Record(audit / "record")
    assert [item.number for item in record] == list(range(1, ROUNDS + 1))
    assert record.manifest["status"] == "complete"
    return where, audit


def audit_sources(project: Toy, folder: Path, model: str, data, unheld, *options: str):
    """Attack by source inference, judge, and return findings and scores; first a model that is not the project's."""
    where, audit = observe(project, folder)
    targets, owners = write_targets(folder / "targets.npz", data, unheld)
    attack = ("attack", "sia", str(audit), "--targets", str(folder / "targets.npz"), "--classes", "10")
    refused = fedattack(*attack, "--model", "mlp", "--hidden", "7", cwd=where, code=2)
    progress, error = refused.stderr.strip().splitlines()
    assert progress == "sia on the record"
    assert error.startswith("error: ")
    assert "fc1.weight" in refused.stderr
    assert "give the model that was trained" in refused.stderr
    (where / "logistic_model.py").write_text(LOGISTIC)
    fedattack(*attack, "--model", model, "--loss", "cross-entropy", *options, cwd=where)
    write_what_is_true(audit, data, unheld, targets, owners)
    return findings_of(audit, where), Scores.load(audit / "scores" / "sia.npz"), Record(audit / "record")


@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.folder)
def test_observing_takes_at_most_three_lines(project, tmp_path):
    where = project.observed(tmp_path, tmp_path / "record")
    name = Path(project.package) / "server_app.py"
    before = (project.where / name).read_text().splitlines()
    after = (where / name).read_text().splitlines()
    assert 1 <= len(after) - len(before) <= 3
    rest = iter(after)
    assert all(line in rest for line in before), "a line was changed"


@pytest.mark.flower
@pytest.mark.parametrize(
    ("project", "model", "names"),
    [
        pytest.param(MESSAGE_API, "pytorchexample.task:Net", None, marks=pytest.mark.slow),
        pytest.param(LEGACY, "digitsfl.task:Net", "0123", marks=pytest.mark.long),
        pytest.param(SKLEARN, "logistic_model:logistic", "01", marks=pytest.mark.long),
        pytest.param(BATCH_NORM, "hospitals.task:make_model", None, marks=pytest.mark.long),
    ],
    ids=lambda value: getattr(value, "folder", ""),
)
def test_a_project_is_attacked_as_its_owner_would(project, model, names, tmp_path, task):
    """By names of arrays, and by their order where they have none."""
    module = task(project, project.copy(tmp_path / "data"))
    data = [own for own, _ in parts_of(project, module)]
    unheld = FLAT
    if data[0][0].ndim == 4:
        unheld = IMAGES
    findings, scores, record = audit_sources(project, tmp_path, model, data, unheld, *PRIORS.get(project, ()))
    found = findings["sia.asr"]
    assert found["verdict"] == "leak", found
    # Not all of these projects seed their clients, so that a run may end somewhat lower.
    assert found["value"] > 1.5 * found["chance"] == 1.5 / CLIENTS
    sent = [parameter.name for parameter in record.parameters]
    if names:
        assert sent == [*names]
        assert scores.notes == (NAMELESS,)
    else:
        assert sent == [*module.make_model().state_dict()]
        # Flower averages the counter of batches as well, by weight.
        assert not scores.notes
    if project is BATCH_NORM:
        assert sorted(item.num_examples for item in record.rounds[-1].observations) == [30, 40, 50, 60]
        assert {parameter.role for parameter in record.parameters} == {"parameter", "buffer"}


@pytest.fixture
def superlink(tmp_path, monkeypatch):
    """A SuperLink of the test's own, to which `flwr run` connects by default."""
    with Simulator(MESSAGE_API.copy(tmp_path / "unused"), supernodes=CLIENTS, log=tmp_path / "flower.log") as simulator:
        simulator.ensure_up()
        for name, value in simulator._environment.items():
            monkeypatch.setenv(name, value)
        yield


@pytest.mark.long
@pytest.mark.flower
def test_projects_are_observed_from_outside_and_stay_as_they_are(tmp_path, superlink):
    """Both generations, one after the other on the SuperLink that the first `flwr run` starts."""
    federation = "num-supernodes=4 client-resources-num-cpus=1 init-args-num-cpus=1"
    for project, names in (
        (MESSAGE_API, ["conv1.weight", "conv1.bias", "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]),
        (LEGACY, ["0", "1", "2", "3"]),
    ):
        folder = tmp_path / project.folder
        where = project.copy(folder)
        before = {path: path.read_bytes() for path in where.rglob("*") if path.is_file()}
        done = fedattack(
            *("observe", "--out", str(folder / "audit" / "record"), "--json", "--"),
            *("flwr", "run", ".", "--stream", "--federation-config", federation, "-c", "num-server-rounds=2"),
            cwd=where,
        )
        assert done.stdout.splitlines()[-1].endswith('"rounds": 2}'), done.stdout
        assert {path: path.read_bytes() for path in where.rglob("*") if path.is_file()} == before
        assert check_record(folder / "audit" / "record").whole
        record = Record(folder / "audit" / "record")
        assert [parameter.name for parameter in record.parameters] == names
        for item in record:
            assert [seen.status for seen in item.observations] == ["ok"] * CLIENTS
        x, y = FLAT if project is LEGACY else IMAGES
        np.savez(folder / "targets.npz", x=x, y=y)
        fedattack(
            *("attack", "sia", str(folder / "audit"), "--targets", str(folder / "targets.npz")),
            *("--model", f"{project.package}.task:Net"),
            cwd=where,
        )
        losses = Scores.load(folder / "audit" / "scores" / "sia.npz").arrays["losses"]
        assert losses.shape == (2, len(FLAT[1]), CLIENTS)
