"""Apps go by one command to a judged report, whose findings are those of a truth written by hand on the same run."""

import json
import shutil
import stat
import textwrap
from pathlib import Path

import numpy as np
import pytest

from fedattack.attacks import Targets, read_targets
from fedattack.audit.truth import NOBODY, read_truth
from fedattack.record import Record, check_record
from tests.apps.projects import (
    BATCH_NORM,
    CLIENTS,
    LEGACY,
    LIGHTNING,
    MESSAGE_API,
    NUMPY,
    OPACUS,
    SKLEARN,
    Toy,
    fedattack,
    findings_of,
    write_what_is_true,
)
from tests.apps.test_foreign import parts_of, superlink, task  # noqa: F401 - fixtures

# What judging states of a finding.
STATED = ("value", "low", "high", "n", "chance", "null", "verdict", "baselines")


def audited(project: Toy, folder: Path, *words: str) -> tuple[Path, Path, dict]:
    """Run the command; returns the app's folder, which stays as it is, the run folder, and the findings."""
    where, out = project.copy(folder), folder / "out"
    before = {path: path.read_bytes() for path in where.rglob("*") if path.is_file()}
    done = fedattack("audit", str(where), "--out", str(out), "--supernodes", str(CLIENTS), "--json", *words, cwd=folder)
    after = {path: path.read_bytes() for path in where.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert after == before
    assert check_record(out / "record").whole
    assert stat.S_IMODE((out / "witness").stat().st_mode) == 0o700
    found = {f"{item['attack']}.{item['metric']}": item for item in json.loads(done.stdout)}
    assert json.loads((out / "run.json").read_text())["untried"]
    return where, out, found


def holders(x: np.ndarray, data) -> list[str]:
    return [str(client) for client, (own, _) in enumerate(data) if any(np.array_equal(x, each) for each in own)]


def check_by_hand(where: Path, out: Path, found: dict, data, evaluated) -> Targets:
    """Write the truth by hand, from what the project's own functions load, and judge the same scores by it."""
    targets = read_targets(out / "knowledge" / "targets.npz")
    owners = [(holders(x, data) or [NOBODY])[0] for x in targets.x]
    assert all(len(holders(x, data)) < 2 for x in targets.x)
    other = out.with_name("by-hand")
    shutil.copytree(out, other, ignore=shutil.ignore_patterns("truth", "witness"))
    unheld = [x for own, _ in evaluated for x in own if not holders(x, data)]
    write_what_is_true(other, data, (unheld or [data[0][0][0]], [0] * max(len(unheld), 1)), targets, owners)
    if unheld:
        add_origins(other / "truth", targets, owners, evaluated)
    by_hand = findings_of(other, where)
    # The truth by hand says nothing of what first layers give away.
    judged = {name for name in found if not name.startswith("exact.")}
    assert judged == {name for name in by_hand if not name.startswith("exact.")}
    for name in judged:
        assert {key: found[name][key] for key in STATED} == {key: by_hand[name][key] for key in STATED}, name
    assert read_truth(out / "truth").counts.tolist() == read_truth(other / "truth").counts.tolist()
    return targets


def add_origins(truth: Path, targets: Targets, owners: list[str], evaluated) -> None:
    """Say from which one client's evaluation a target of nobody comes."""
    origins = []
    for x, owner in zip(targets.x, owners, strict=True):
        names = holders(x, evaluated)
        origins.append(names[0] if owner == NOBODY and len(names) == 1 else "")
    with np.load(truth / "owners.npz") as file:
        kept = dict(file)
    np.savez(truth / "owners.npz", **{**kept, "origins": np.array(origins)})
    holdings = json.loads((truth / "holdings.json").read_text())
    unsealed = {key: value for key, value in holdings.items() if key not in ("check", "files")}
    (truth / "holdings.json").write_text(json.dumps(unsealed))


@pytest.mark.long
@pytest.mark.flower
@pytest.mark.parametrize(
    "project", [MESSAGE_API, LEGACY, BATCH_NORM, SKLEARN, LIGHTNING, OPACUS], ids=lambda one: one.folder
)
def test_an_app_is_judged_as_by_hand(project, tmp_path, task):  # noqa: F811
    if project is LIGHTNING:
        pytest.importorskip("lightning", reason="Lightning is not installed")
    where, out, found = audited(project, tmp_path)
    parts = parts_of(project, task(project, where))
    evaluates = project is not BATCH_NORM
    data, other = [own for own, _ in parts], [other for _, other in parts if evaluates]
    targets = check_by_hand(where, out, found, data, other)
    assert found["sia.asr"]["n"] >= min(100, sum(len(y) for _, y in data))
    assert found["sia.asr"]["value"] > 1.5 / CLIENTS or project in (SKLEARN, OPACUS)
    assert found["membership.tpr-at-1pct-fpr"]["verdict"] != "not applicable"
    run = json.loads((out / "run.json").read_text())
    assert run["title"].startswith("What does the server learn?")
    assert run["provenance"]["commands"][0].startswith("fedattack audit ")
    # The machine that audited the app knows it, also from another folder.
    again = json.loads(fedattack("report", str(out), "--json", cwd=tmp_path).stdout)
    assert [item["value"] for item in again] == [item["value"] for item in found.values()]
    if project is LEGACY:
        # All evaluate on the same examples, so that these come from nobody in particular.
        assert not read_truth(out / "truth").origins.any()
    if not evaluates:
        assert len(targets) == sum(len(y) for _, y in data)
        assert found["sia.asr"]["null"] is None
        members = found["membership.tpr-at-1pct-fpr"]["setting"]["non-members"]
        assert members.startswith("other clients' examples")
    claim = out / "claim.toml"
    assert claim.exists() == (project is OPACUS)
    if project is OPACUS:
        text = claim.read_text().replace("# epsilon =", "epsilon = 1").replace("# delta =", "delta = 1e-3")
        claim.write_text(text)
        done = fedattack("claim", str(out), "--claim", str(claim), "--json", cwd=where)
        assert json.loads(done.stdout)["verdict"] == "contradicted"


@pytest.mark.long
@pytest.mark.flower
def test_an_app_whose_model_nobody_can_import(tmp_path):
    """The app itself is asked; and what was recorded is attacked with the model that is named, without another run."""
    where, out = hidden_model(MESSAGE_API.copy(tmp_path)), tmp_path / "out"
    fedattack("audit", str(where), "--out", str(out), "--supernodes", str(CLIENTS), cwd=tmp_path)
    found = findings_of(out, where)
    assert found["sia.asr"]["value"] > 1.5 / CLIENTS
    assert check_record(out / "record").whole
    gather = ("gather", str(out), str(out / "witness"), "--out")
    unnamed = fedattack(*gather, str(tmp_path / "unnamed"), cwd=where)
    assert "name it by --model package.module:function" in unnamed.stderr
    other = tmp_path / "gathered"
    fedattack(*gather, str(other), "--model", "pytorchexample.task:Net", cwd=where)
    named = findings_of(other, where)
    assert named["sia.asr"]["value"] == pytest.approx(found["sia.asr"]["value"], abs=0.02)
    assert named["membership.tpr-at-1pct-fpr"]["verdict"] != "not applicable"


def hidden_model(app: Path) -> Path:
    """Make the class of an app's model inside of a function, of an activation that has no name."""
    path = app / "pytorchexample" / "task.py"
    before, head, rest = path.read_text().partition("class Net(nn.Module):")
    body, tail, after = rest.partition("def make_model(")
    assert head
    assert tail
    inner = textwrap.indent((head + body).replace("F.relu(", "activation(").rstrip(), "    ")
    made = (
        f"def architecture(activation):\n{inner}\n\n    return Net\n\n\nNet = architecture(lambda x: F.relu(x))\n\n\n"
    )
    path.write_text(before + made + tail + after)
    return app


@pytest.mark.long
@pytest.mark.flower
def test_an_app_in_numpy_says_what_it_trains_on(tmp_path, task, monkeypatch):  # noqa: F811
    """Without that one line nothing is witnessed, which is said in one line."""
    silent = fedattack(
        *("audit", str(NUMPY.copy(tmp_path / "silent")), "--out", str(tmp_path / "silent-out")),
        *("--supernodes", str(CLIENTS)),
        cwd=tmp_path,
        code=2,
    )
    assert silent.stderr.strip().splitlines()[-1].startswith("error: no client's training was witnessed")
    assert check_record(tmp_path / "silent-out" / "record").whole
    copy = Toy.copy

    def telling(project: Toy, to: Path) -> Path:
        path = copy(project, to) / project.package / "task.py"
        line = "    x, y = data\n"
        text = path.read_text().replace(line, line + "    trained_on(x, y)\n")
        path.write_text(text.replace("import numpy", "from fedattack.witness import trained_on\nimport numpy", 1))
        return path.parents[1]

    monkeypatch.setattr(Toy, "copy", telling)
    where, out, found = audited(NUMPY, tmp_path)
    data = [own for own, _ in parts_of(NUMPY, task(NUMPY, where))]
    check_by_hand(where, out, found, data, [])
    assert found["sia.asr"]["value"] > 1.5 / CLIENTS


@pytest.mark.long
@pytest.mark.flower
def test_further_questions_of_an_app(tmp_path, task):  # noqa: F811
    """Their truth is what the project's own functions load; what cannot be asked has one reason, here and there."""
    groups = tmp_path / "groups.toml"
    groups.write_text("[region]\nnorth = [0, 3]\nsouth = [1, 2]\n")
    words = ("--groups", str(groups), "--property", "3", "--sensitive", "2", "--without", "limits")
    where, out, found = audited(MESSAGE_API, tmp_path, *words)
    module = task(MESSAGE_API, where)
    labels = [y for (_, y), _ in parts_of(MESSAGE_API, module)]
    truth = read_truth(out / "truth")
    holds = [bool((own == 3).any()) for own in labels]
    if len({*holds}) == 2:
        assert truth.positives[0].tolist() == [holds[int(name)] for name in truth.clients]
    private = truth.private["region"]
    named = {name: private.names[value] for name, value in zip(truth.clients, private.values, strict=True)}
    assert named == {"0": "north", "1": "south", "2": "south", "3": "north"}
    assert found["sia.asr"]["n"] > 100
    run = json.loads((out / "run.json").read_text())
    assert run["title"].endswith("audit of project")
    why = {entry["question"]: entry["why"] for entry in run["untried"]}
    assert any("is for tables, and the model takes examples of shape" in reason for reason in why.values())
    assert any(reason.startswith("with 4 clients with 2 values among them") for reason in why.values())
    assert any("as --without says: the least and the largest input" in note for note in run["notes"])


@pytest.mark.long
@pytest.mark.flower
def test_an_app_whose_clients_crash_ends_in_one_line(tmp_path):
    where = MESSAGE_API.copy(tmp_path)
    path = where / MESSAGE_API.package / "client_app.py"
    path.write_text(path.read_text().replace("    model = make_model()", "    raise ValueError('the disk is gone')"))
    done = fedattack("audit", str(where), "--out", str(tmp_path / "out"), "--supernodes", "2", cwd=tmp_path, code=2)
    assert " rounds: ValueError: the disk is gone" in done.stderr.splitlines()[-1]


LACKING = """
import sys


class Lacking:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "fedattack":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


if any("default_worker" in word for word in sys.orig_argv):
    sys.meta_path.insert(0, Lacking)
"""


@pytest.mark.long
@pytest.mark.flower
def test_clients_that_alone_lack_fedattack_end_in_one_line(tmp_path):
    """Ray's workers are the clients; the ServerApp has a process of its own."""
    where, python = MESSAGE_API.copy(tmp_path), tmp_path / "python"
    python.mkdir()
    (python / "sitecustomize.py").write_text(LACKING)
    words = ("audit", str(where), "--out", str(tmp_path / "out"), "--supernodes", "2")
    done = fedattack(*words, cwd=tmp_path, code=2, path=python)
    told = done.stderr.splitlines()[-1]
    assert " rounds: ModuleNotFoundError: No module named 'fedattack" in told
    assert "`pip install fedattack` where they run" in told


@pytest.mark.long
@pytest.mark.flower
def test_several_runs_of_an_app_that_observes_itself(tmp_path):
    """Its own record is written beside; clients that train nothing are told."""
    where = MESSAGE_API.observed(tmp_path, tmp_path / "%Y%m%d-%H%M%S-%f" / "record")
    path = where / MESSAGE_API.package / "client_app.py"
    line = "    metrics = train_fn("
    idle = f'    metrics = {{"num-examples": 1}}\n    if site:\n    {line}'
    path.write_text(path.read_text().replace(line, idle))
    out = tmp_path / "out"
    fedattack(
        *("audit", str(where), "--out", str(out), "--supernodes", "3", "--seeds", "2", "--set", "num-server-rounds=2"),
        cwd=tmp_path,
    )
    assert [len(Record(out / "record" / name)) for name in ("seed-0", "seed-1")] == [2, 2]
    assert len([*tmp_path.glob("*/record/manifest.json")]) == 2
    for name in ("seed-0", "seed-1"):
        truth = read_truth(out / "truth" / name)
        assert sorted(truth.clients)[:2] == ["1", "2"]
        assert any("1 of the record's nodes were not seen to train" in note for note in truth.notes)


@pytest.mark.long
@pytest.mark.flower
def test_a_whole_command_is_audited(tmp_path, superlink):  # noqa: F811
    """On the caller's own SuperLink; what Flower prints is kept apart from what is found."""
    where = LEGACY.copy(tmp_path)
    federation = "num-supernodes=4 client-resources-num-cpus=1 init-args-num-cpus=1"
    done = fedattack(
        *("audit", "--out", str(tmp_path / "out"), "--json", "--"),
        *("flwr", "run", ".", "--stream", "--federation-config", federation, "-c", "num-server-rounds=2"),
        cwd=where,
    )
    headlines = [item for item in json.loads(done.stdout) if item["headline"]]
    assert {item["attack"] for item in headlines} > {"sia", "membership"}
    assert len(Record(tmp_path / "out" / "record")) == 2
    assert "Successfully started run" in done.stderr
