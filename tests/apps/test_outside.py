"""A `flwr run` is understood as Flower understands it, and its app is wrapped in a copy."""

import os
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedattack.apps.app import App
from fedattack.apps.outside import FlwrRun, observe_command, read_app, refuse_masked, wrap_app
from fedattack.base.errors import ConfigError, RunError
from fedattack.base.untrusted import MAX_TOML
from tests.apps.projects import BATCH_NORM, ROOT

# The fedattack that is tested, also where another one is installed.
HERE = {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("flwr run", "flwr run NEW"),
        ("flwr run .", "flwr run NEW"),
        ("flwr run --stream", "flwr run NEW --stream"),
        ("flwr run . lo --stream", "flwr run NEW lo --stream"),
        ("/opt/bin/flwr run --stream . lo", "/opt/bin/flwr run --stream NEW lo"),
        ("flwr run -c lo lo lo", "flwr run -c lo NEW lo"),
        ("flwr run --run-config a=1 their/app -c their/app", "flwr run --run-config a=1 NEW -c their/app"),
        ("flwr run -- .", "flwr run -- NEW"),
    ],
)
def test_the_app_alone_is_replaced(words, expected):
    assert FlwrRun.parse(words.split()).of(Path("/new/app")) == expected.replace("NEW", "/new/app").split()


def test_the_folder_of_the_app_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert FlwrRun.parse(["flwr", "run"]).app == tmp_path
    assert FlwrRun.parse(["flwr", "run", "one/two", "--stream"]).app == tmp_path / "one" / "two"
    assert FlwrRun.parse(["flwr", "run", "--stream"]).streams
    assert not FlwrRun.parse(["flwr", "run"]).streams


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["python", "server.py"], "python server.py: expected the command that runs the app, such as: flwr run"),
        (["flwr", "new"], "flwr new: expected the command"),
        ([], "no command: expected"),
        (["flwr", "run", "--nope"], "flwr run --nope: No such option '--nope'"),
        (["flwr", "run", "@flwrlabs/quickstart-pytorch"], "is an app of Flower's hub"),
        (["flwr", "run", "nowhere"], "nowhere/pyproject.toml is not there; give the folder of a Flower app"),
    ],
)
def test_what_cannot_be_observed_is_refused_in_one_line(words, message, tmp_path):
    with pytest.raises(ConfigError, match=message) as caught:
        observe_command(words, tmp_path / "record", {})
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "record").exists()


def test_a_folder_without_a_serverapp_and_a_taken_record_are_refused(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    with pytest.raises(ConfigError, match=r"names no serverapp in \[tool.flwr.app.components\]"):
        observe_command(["flwr", "run", str(tmp_path)], tmp_path / "record", {})
    with pytest.raises(ConfigError, match="already exists; record into a folder of its own"):
        observe_command(["flwr", "run", str(tmp_path)], tmp_path, {})


def test_the_copy_wraps_the_projects_own_serverapp_and_the_project_stays(tmp_path, monkeypatch):
    project = BATCH_NORM.copy(tmp_path)
    pyproject = (project / "pyproject.toml").read_text()
    text = pyproject.replace("server_app:app", "server_app:app.wrapped").replace(
        'publisher = "somebody"', 'publisher = "somebody"\nfab-include = ["hospitals/*.py"]'
    )
    (project / "pyproject.toml").write_text(text)
    (project / "hospitals" / "server_app.py").write_text("class app:\n    wrapped = None\n")
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    wrap_app(project, tmp_path / "copy", tmp_path / "a 'quoted' record", {"view": "aggregate", "facts": {"lr": 0.1}})
    assert {path: path.read_bytes() for path in project.rglob("*") if path.is_file()} == before
    config = tomllib.loads((tmp_path / "copy" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert config["components"] == {
        "serverapp": "fedattack_observed:app",
        "clientapp": "hospitals.client_app:app",
    }
    assert config["fab-include"] == ["hospitals/*.py", "fedattack_observed.py"]
    script = "from fedattack_observed import app; print(app._inner, app._out, app._options, sep='; ')"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path / "copy", capture_output=True, text=True, check=True
    )
    assert done.stdout == f"None; {tmp_path}/a 'quoted' record; {{'view': 'aggregate', 'facts': {{'lr': 0.1}}}}\n"


@pytest.mark.slow
def test_the_copy_wraps_the_clientapp_too_where_clients_are_witnessed(tmp_path):
    project = BATCH_NORM.copy(tmp_path)
    for kind, name in (("Client", "client_app"), ("Server", "server_app")):
        code = f"from flwr.{kind.lower()}app import {kind}App\nclass own:\n    app = {kind}App()\napp = own.app\n"
        (project / "hospitals" / f"{name}.py").write_text(code)
    text = (project / "pyproject.toml").read_text().replace("client_app:app", "client_app:own.app")
    (project / "pyproject.toml").write_text(text)
    wrap_app(project, tmp_path / "copy", tmp_path / "record", {}, tmp_path / "seen", keep=7)
    config = tomllib.loads((tmp_path / "copy" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert config["components"] == {"serverapp": "fedattack_observed:app", "clientapp": "fedattack_witnessed:app"}
    script = (tmp_path / "copy" / "fedattack_witnessed.py").read_text()
    assert f"_FOLDER = {str(tmp_path / 'seen')!r}\n" in script
    assert script.endswith("app = WitnessedClientApp(own.app, _FOLDER, keep=7) if _HERE else own.app\n")
    script = (tmp_path / "copy" / "fedattack_observed.py").read_text()
    assert f"ObservedServerApp(WitnessedServerApp(app, {str(tmp_path / 'seen')!r})" in script
    for name in ("fedattack_witnessed", "fedattack_observed"):
        subprocess.run([sys.executable, "-c", f"import {name}"], cwd=tmp_path / "copy", check=True, env=HERE)
    # A client on another machine runs as it is, and needs no fedattack there.
    said = "from fedattack_witnessed import app; import sys; print(type(app).__name__, 'fedattack' in sys.modules)"
    for expected in ("WitnessedClientApp True", "ClientApp False"):
        done = subprocess.run(
            [sys.executable, "-c", said], cwd=tmp_path / "copy", check=True, env=HERE, capture_output=True, text=True
        )
        assert done.stdout == f"{expected}\n"
        shutil.rmtree(tmp_path / "seen", ignore_errors=True)
    text = (project / "pyproject.toml").read_text().replace("clientapp", "nothing")
    (project / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError, match="names no clientapp"):
        wrap_app(project, tmp_path / "again", tmp_path / "record", {}, tmp_path / "seen")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 3", "ended with exit code 3"),
        ("exit 0", "the run left no record in .*--disable-runtime-dependency-installation"),
    ],
)
def test_a_run_that_fails_or_leaves_no_record_is_an_error(script, message, tmp_path):
    project = BATCH_NORM.copy(tmp_path)
    flwr = tmp_path / "flwr"
    flwr.write_text(f"#!/bin/sh\ntest -f $2/fedattack_observed.py || exit 9\n{script}\n")
    flwr.chmod(0o755)
    with pytest.raises(RunError, match=message):
        observe_command([str(flwr), "run", str(project), "--stream"], tmp_path / "record", {})


@pytest.fixture
def impatient():
    """End a test that waits for what never comes."""

    def end(*_):
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", ["pyproject.toml", "batch_norm/extra.py", "notes.md"])
def test_a_pipe_in_the_place_of_a_file_of_the_app_is_refused(tmp_path, impatient, name):
    project = BATCH_NORM.copy(tmp_path)
    path = project / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    message = f"{path.name} is a pipe; expected a regular file: delete it, or move it to another folder"
    with pytest.raises(ConfigError, match=message):
        wrap_app(project, tmp_path / "copy", tmp_path / "record", {})
    if path.suffix == ".py":
        with pytest.raises(ConfigError, match=message):
            refuse_masked(project)
        with pytest.raises(ConfigError, match=message):
            App(project).code  # noqa: B018


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("/dev/zero", "pyproject.toml is a link that leaves .*; put what it leads to in its place"),
        ("/etc/hostname", "pyproject.toml is a link that leaves"),
        ("pyproject.toml", "pyproject.toml is a link that leads back to itself"),
    ],
)
def test_a_pyproject_that_lies_elsewhere_is_not_read(tmp_path, impatient, target, message):
    project = BATCH_NORM.copy(tmp_path)
    (project / "pyproject.toml").unlink()
    (project / "pyproject.toml").symlink_to(target)
    with pytest.raises(ConfigError, match=message):
        read_app(project)


def test_a_pyproject_is_read_by_a_link_within_the_app_and_is_bounded(tmp_path):
    project = BATCH_NORM.copy(tmp_path)
    (project / "pyproject.toml").rename(project / "own.toml")
    (project / "pyproject.toml").symlink_to("own.toml")
    assert read_app(project)["tool"]["flwr"]["app"]["components"]
    with (project / "own.toml").open("ab") as file:
        file.write(b"#" * MAX_TOML)
    with pytest.raises(ConfigError, match=r"has 4,.* bytes; expected at most 4,194,304; give the folder"):
        read_app(project)


def test_code_that_python_cannot_take_apart_calls_nothing_that_masks(tmp_path):
    project = BATCH_NORM.copy(tmp_path)
    deep = "x = " + "-" * 100_000 + "1  # SecAggPlusWorkflow\n"
    for name in (path.name for path in project.rglob("*.py")):
        (project / f"deep_{name}").write_text(deep)
    refuse_masked(project)
    (project / "own.py").write_text("from flwr.server.workflow import SecAggPlusWorkflow\nSecAggPlusWorkflow(3, 2)\n")
    with pytest.raises(ConfigError, match=r"own.py makes a SecAggPlusWorkflow"):
        refuse_masked(project)
