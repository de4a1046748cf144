"""The README's and the guides' commands and code blocks are run as they stand, in order, in one folder each."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import click
import numpy as np
import pytest
import typer
from flwr.client import NumPyClient
from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays

from fedattack.cli import app
from fedattack.data import load_dataset
from fedattack.report.validate import read_findings
from fedattack.runs.presets import load_preset, resolve_settings
from fedattack.runs.simulator import Simulator
from tests.apps.projects import MESSAGE_API
from tests.claims.apps.cases import CASES
from tests.worlds.federation import FEATURES, write_run

ROOT = Path(__file__).parents[1]
MOST_LINES = 130
FIRST_RUN = "runs/first"
PLATFORM = CASES["platform"]
A_MESSAGE = "fedattack stopped recording; "
ELSEWHERE = (
    "https://flower.ai",
    "https://opacus.ai",
    "https://www.ray.io",
    "https://docs.ray.io/",
    "https://img.shields.io/",
)

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

YOUR_DATA = """
import numpy as np
from sklearn.datasets import load_digits
from yourproject import task

def load_data(client):
    return tuple(part.numpy() for part in task.load_data(client, 2)[0])

def load_validation(client):
    return tuple(part.numpy() for part in task.load_data(client, 2)[1])

def load_test():
    digits = load_digits()
    unheld = np.random.default_rng(2024).permutation(len(digits.target))[120:216]
    return (digits.images[unheld, None] / 16).astype(np.float32), digits.target[unheld]
"""


def sums_to_come(folder: Path) -> None:
    """Give a recorded run, auxiliary records and a package of one's own."""
    write_run(folder / "audit")
    draw = np.random.default_rng(0)
    x = draw.normal(size=(2_000, FEATURES)).astype(np.float32)
    np.savez(folder / "auxiliary.npz", x=x, y=draw.integers(10, size=len(x)))
    (folder / "yourpackage").mkdir()
    (folder / "yourpackage" / "models.py").write_text(YOUR_MODEL)
    (folder / "yourpackage" / "properties.py").write_text(YOUR_PROPERTY)


def your_project(folder: Path) -> None:
    """Make it the folder of a Flower app of two clients, whose package is ``yourproject``."""
    copied = MESSAGE_API.copy(folder)
    for path in copied.iterdir():
        path.rename(folder / path.name)
    copied.rmdir()
    (folder / MESSAGE_API.package).rename(folder / "yourproject")
    for path in (*folder.glob("*.toml"), *folder.glob("yourproject/*.py")):
        path.write_text(path.read_text().replace(MESSAGE_API.package, "yourproject"))
    (folder / "yourproject" / "data.py").write_text(YOUR_DATA)


@dataclass(frozen=True)
class Document:
    """A text for users; ``prepare`` gives its folder what a reader of it has."""

    path: str
    prepare: Callable[[Path], None] = lambda folder: None

    @property
    def text(self) -> str:
        return (ROOT / self.path).read_text(encoding="utf-8")

    def blocks(self) -> list[tuple[str, str]]:
        """Return language and content of each code block."""
        return re.findall(r"^```(\w*)\n(.*?)^```$", self.text, re.MULTILINE | re.DOTALL)

    def steps(self) -> list[tuple[str, str]]:
        """Return what is run: each line of ``bash`` and each block of ``python``."""
        found = []
        for language, content in self.blocks():
            if language == "bash":
                found += [(language, line) for line in content.splitlines() if line.strip()]
            elif language == "python":
                found.append((language, content))
        return found

    def mentioned(self) -> list[str]:
        """Return the commands in the text, in blocks of no language and in workflows: too many to be run."""
        plain = "\n".join(content for language, content in self.blocks() if language in ("", "yaml"))
        plain = re.sub(r"^ *- (run: )?", "", plain, flags=re.MULTILINE)
        prose = re.sub(r"^```.*?^```$", "", self.text, flags=re.MULTILINE | re.DOTALL)
        inline = [" ".join(words.split()) for words in re.findall(r"`(fedattack [^`]+)`", prose)]
        found = [line for line in [*inline, *plain.splitlines()] if line.startswith("fedattack ")]
        return [line for line in found if not line.startswith(A_MESSAGE)]

    def links(self) -> list[str]:
        return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", self.text))

    def anchors(self) -> set[str]:
        """Return what ``#…`` may name: headings as GitHub and others write them."""
        headings = re.findall(r"^#+ (.+)$", self.text, re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def claimed(folder: Path) -> None:
    """Write the guide's first claim, the code that it is about, and a record of an app with both."""
    PLATFORM.play(folder.parent / "played")
    (folder.parent / "srv").mkdir()
    (folder.parent / "played" / "run").rename(folder.parent / "srv" / "audit")
    blocks = CLAIMS.blocks()
    for name, wanted in (("claim.toml", "toml"), ("privacy.py", "python")):
        (folder / name).write_text(next(content for language, content in blocks if language == wanted))


def clinic(folder: Path) -> None:
    """Write the app of the tutorial, file by file."""
    blocks = OWN_APP.blocks()
    (folder / "clinic").mkdir()
    for name, wanted in (("pyproject.toml", "toml"), ("clinic.py", "python")):
        (folder / "clinic" / name).write_text(next(content for language, content in blocks if language == wanted))


def handmade(folder: Path) -> None:
    """Write the app of the tutorial, and stand-ins for the frameworks that are not installed."""
    blocks = ANY_FRAMEWORK.blocks()
    (folder / "handmade").mkdir()
    for name, wanted in (("pyproject.toml", "toml"), ("handmade.py", "python")):
        (folder / "handmade" / name).write_text(next(content for language, content in blocks if language == wanted))
    for name in STAND_INS:
        shutil.copytree(ROOT / "tests" / "standins" / name, folder / name)


def app_at_hand(folder: Path) -> None:
    """Put a Flower app where the README has one."""
    MESSAGE_API.copy(folder).rename(folder / "app")
    (folder / "path" / "to").mkdir(parents=True)
    (folder / "app").rename(folder / "path" / "to" / "app")


README = Document("README.md", app_at_hand)
CLAIMS = Document("fedattack/claims/README.md", claimed)
OBSERVE = Document("fedattack/observe/README.md", your_project)
RECORD = Document("fedattack/observe/RECORD.md", your_project)
OWN_APP = Document("simulations/tutorials/own-app.md", clinic)
ANY_FRAMEWORK = Document("simulations/tutorials/any-framework.md", handmade)
# Frameworks of the tutorial in whose place something in NumPy computes where they are not installed.
STAND_INS = tuple(name for name in ("jax", "keras") if find_spec(name) is None)
DATA = Document("fedattack/data/README.md")
DEFENCES = Document("fedattack/defences/README.md")
RESULTS = tuple(Document(path.relative_to(ROOT).as_posix()) for path in sorted(ROOT.glob("simulations/results/*.md")))
DOCUMENTS = (
    README,
    Document("simulations/README.md"),
    Document("simulations/tutorials/README.md"),
    OWN_APP,
    Document("simulations/tutorials/defence.md"),
    ANY_FRAMEWORK,
    Document("fedattack/audit/README.md"),
    Document("fedattack/report/README.md"),
    Document("fedattack/runs/README.md"),
    Document("fedattack/runs/CLUSTER.md"),
    Document("fedattack/threats/README.md"),
    Document("fedattack/threats/membership/README.md"),
    Document("fedattack/threats/source/README.md"),
    Document("fedattack/threats/property/README.md", sums_to_come),
    Document("fedattack/threats/attribute/README.md"),
    Document("fedattack/threats/group/README.md"),
    Document("fedattack/threats/inversion/README.md"),
    Document("fedattack/threats/plaintext/README.md"),
    Document("fedattack/threats/labels/README.md"),
    Document("fedattack/threats/tokens/README.md"),
    Document("fedattack/threats/trees/README.md"),
    Document("fedattack/threats/exact/README.md"),
    Document("fedattack/threats/sequences/README.md"),
    OBSERVE,
    Document("fedattack/observe/APPS.md"),
    RECORD,
    DEFENCES,
    CLAIMS,
    Document("fedattack/claims/CANARIES.md"),
    DATA,
    *RESULTS,
    Document("strategies/README.md"),
    Document("fedattack/record/FORMAT.md"),
    Document("docker/README.md"),
    Document("CONTRIBUTING.md"),
    Document("SECURITY.md"),
    Document("CHANGELOG.md"),
)

OF_CONTAINERS = (
    "docker build --file docker/Dockerfile --tag fedattack .",
    'docker run --rm --user "$(id -u):$(id -g)" --volume "$PWD:/docker" --workdir /docker fedattack '
    "python prepare.py --clients 4",
    "cd docker",
    "docker compose run --rm audit",
    "docker compose down",
)
"""What tests/docker does with a project and an image of its own."""


class Reader:
    """Goes through the documents, each in a folder of its own; ``/srv`` is another one beside it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._done: dict[tuple[str, str], subprocess.CompletedProcess[str]] = {}

    def folder(self, document: Document) -> Path:
        folder = self._root / document.path.replace("/", "-") / "here"
        if not folder.exists():
            folder.mkdir(parents=True)
            document.prepare(folder)
        return folder

    def here(self, document: Document, text: str) -> str:
        return text.replace("/srv", str(self.folder(document).parent / "srv"))

    def run(self, document: Document, line: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a line of ``fedattack`` once, after the run of the README that it goes on with."""
        key = (document.path, line)
        if key not in self._done:
            folder = self.folder(document)
            if FIRST_RUN in line and document is not README and not (folder / FIRST_RUN).exists():
                self._copy_first_run(folder)
            words = [sys.executable, "-m", *shlex.split(self.here(document, line), comments=True)]
            environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", **environment}
            self._done[key] = subprocess.run(
                words, cwd=folder, capture_output=True, text=True, env=environment, timeout=600
            )
        return self._done[key]

    def _copy_first_run(self, folder: Path) -> None:
        line = next(line for _, line in README.steps() if f"--out {FIRST_RUN}" in line)
        done = self.run(README, line)
        assert done.returncode == 0, done.stderr
        shutil.copytree(self.folder(README) / FIRST_RUN, folder / FIRST_RUN)


@pytest.fixture(scope="module")
def reader(tmp_path_factory) -> Reader:
    return Reader(tmp_path_factory.mktemp("reader"))


@pytest.fixture
def flower(document, code, reader, tmp_path) -> Iterator[dict[str, str]]:
    """What leads a user's own `flwr run` to a SuperLink of this test."""
    if " flwr run " not in code:
        yield {}
        return
    with Simulator(reader.folder(document), supernodes=2, log=tmp_path / "flower.log") as simulator:
        simulator.ensure_up()
        yield simulator._environment


def all_steps() -> Iterator[object]:
    """List the steps; what follows a command may need what that wrote.

    A trade-off trains its preset several times, RecUP-FL trains a zoo: minutes.
    """
    for document in DOCUMENTS:
        marks = []
        for language, code in document.steps():
            if code.startswith("fedattack "):
                marks = [pytest.mark.flower]
            slow = [pytest.mark.long] * bool(
                re.search("^fedattack (tradeoff |reproduce |audit [.] |.*defence=recup)", code)
            )
            name = code if language == "bash" else "python"
            yield pytest.param(document, language, code, marks=marks + slow, id=f"{document.path}: {name}"[:100])


@pytest.mark.parametrize(("document", "language", "code"), [*all_steps()])
@pytest.mark.slow
def test_steps_run(document, language, code, reader, flower, tmp_path, monkeypatch):
    if language == "python":
        run_block(document, code, reader, monkeypatch)
    elif code.startswith("fedattack "):
        done = reader.run(document, code, **flower)
        assert done.returncode == 0, done.stderr
    elif code.startswith("make "):
        subprocess.run([*shlex.split(code), "--dry-run"], cwd=ROOT, check=True, capture_output=True)
    elif code.startswith("python prepare.py "):
        words = [sys.executable, *shlex.split(code)[1:], "--folder", str(tmp_path)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(words, cwd=ROOT / "docker", check=True, capture_output=True, env=environment)
    else:
        assert code in (*OF_CONTAINERS, "pip install path/to/fedattack", "pip install 'path/to/fedattack[audit]'")


def run_block(document: Document, code: str, reader: Reader, monkeypatch) -> None:
    folder = reader.folder(document)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    try:
        exec(compile(reader.here(document, code), document.path, "exec"), {"__name__": "block"})  # noqa: S102
    finally:
        # SciPy asks modules of these names for what a stand-in lacks.
        for name in [name for name in sys.modules if name.partition(".")[0] in STAND_INS]:
            del sys.modules[name]


@pytest.mark.flower
def test_your_own_project_is_judged(reader):
    """What the guide's last step wrote: the report of a project that was observed, attacked and told the truth of."""
    findings = reader.folder(RECORD).parent / "srv" / "audit" / "findings.json"
    if not findings.exists():
        pytest.skip("the guide was not followed to its end")
    headlines = {finding.attack: finding for finding in read_findings(findings.parent) if finding.headline}
    assert (headlines["sia"].n, headlines["sia"].chance) == (96, 0.5)
    assert (headlines["membership"].n, headlines["membership"].chance) == (91, 0.01)


def all_mentioned() -> list[object]:
    lines = {line: document.path for document in DOCUMENTS for line in document.mentioned()}
    return [pytest.param(line, id=f"{path}: {line}"[:100]) for line, path in lines.items()]


@pytest.mark.parametrize("line", all_mentioned())
def test_commands_that_are_mentioned_are_understood(line):
    """Their options exist, and so do their presets and settings; words in capitals stand for a reader's own."""
    group = typer.main.get_command(app)
    words = shlex.split(line.split(" …")[0].replace("…", "1"))[1:]
    if words[0] in ("COMMAND", "--version") or len(words) == 1:
        assert words[0] in ("COMMAND", "--version", *group.commands)
        return
    command = group.commands[words[0]]
    missing = [option for option in command.params if option.required and isinstance(option, click.Option)]
    words += [word for option in missing if option.opts[0] not in words for word in (option.opts[0], "x")]
    context = command.make_context(words[0], words[1:])
    preset = context.params.get("preset") or context.params.get("what", ["NAME"])[0]
    if not re.search(r"\b(NAME|PRESET)\b|/|^flwr$|^\.$", preset):
        changes = [text for text in context.params["changes"] if not re.search(r"\b[A-Z]+\b", text)]
        resolve_settings(load_preset(preset), changes)


def test_blocks_are_of_known_languages():
    assert {language for document in DOCUMENTS for language, _ in document.blocks()} == {
        "",
        "bash",
        "python",
        "toml",
        "yaml",
    }


def test_a_client_is_defended_by_the_lines_that_are_shown():
    """Three lines at most: the import, and the call around the client in the user's own `client_fn`."""

    class YourNumPyClient(NumPyClient):
        def fit(self, parameters, config):
            return [parameters[0] + np.arange(1.0, 11.0, dtype=np.float32)], 5, {"train-loss": 0.1}

    (code,) = (code for _, code in DEFENCES.steps() if "defended(" in code)
    assert sum("defended" in line for line in code.splitlines()) <= 3
    scope = {"YourNumPyClient": YourNumPyClient}
    exec(compile(code, DEFENCES.path, "exec"), scope)  # noqa: S102
    received = [np.full(10, 7.0, dtype=np.float32)]
    reply = scope["client_fn"](None).fit(FitIns(ndarrays_to_parameters(received), {}))
    assert (parameters_to_ndarrays(reply.parameters)[0] - received[0]).tolist() == [0.0] * 9 + [10.0]
    assert (reply.num_examples, reply.metrics) == (5, {})


def test_a_declared_table_is_read(tmp_path):
    blocks = [
        block for document in DOCUMENTS if document.path.endswith("data/README.md") for block in document.blocks()
    ]
    (text,) = [content for language, content in blocks if language == "toml"]
    lines = [f"{20 + row},{'FM'[row % 2]},{'abc'[row % 3]},{row * 7 % 13}" for row in range(30)]
    (tmp_path / "patients.csv").write_text("\n".join(["age,sex,hospital,cost", *lines, ",F,a,5"]))
    (tmp_path / "table.toml").write_text(text)
    data = load_dataset(str(tmp_path / "table.toml"))
    assert (data.column_names, data.sensitive, data.task) == (["age", "sex"], "sex", "regression")
    assert set(data.groups) == {"hospital"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.path)
def test_links_lead_somewhere(document):
    by_path = {(ROOT / other.path).resolve(): other for other in DOCUMENTS}
    for link in document.links():
        if link.startswith(ELSEWHERE):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / document.path).parent / path if path else ROOT / document.path
        assert target.exists(), link
        assert not anchor or anchor in by_path[target.resolve()].anchors(), link


def test_every_document_is_reached_from_the_readme():
    by_path = {(ROOT / document.path).resolve(): document for document in DOCUMENTS}
    reached, waiting = set(), [README]
    while waiting:
        document = waiting.pop()
        if document.path not in reached:
            reached.add(document.path)
            targets = {((ROOT / document.path).parent / link.split("#")[0]).resolve() for link in document.links()}
            waiting += [by_path[target] for target in targets & by_path.keys()]
    written = {
        *ROOT.glob("*.md"),
        *ROOT.glob("docker/*.md"),
        *ROOT.glob("simulations/**/*.md"),
        *ROOT.glob("strategies/*.md"),
        *ROOT.glob("fedattack/**/*.md"),
    }
    assert reached == {path.relative_to(ROOT).as_posix() for path in written}


def test_the_readme_is_short():
    assert len(README.text.splitlines()) <= MOST_LINES


def test_the_citation_names_this_version_and_licence():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert {f"version: {project['version']}", f"license: {project['license']}"} <= {*citation}


@pytest.mark.slow
def test_all_frameworks_of_the_tutorial_compute_the_same(tmp_path, monkeypatch):
    """Its lines for JAX and Keras take the place of those in NumPy; where one is not installed, a stand-in computes."""
    handmade(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    spaces = []
    for language, content in ANY_FRAMEWORK.blocks():
        if language == "python":
            spaces.append({})
            exec(compile(content, ANY_FRAMEWORK.path, "exec"), spaces[-1])  # noqa: S102
    x, y, _, _ = spaces[0]["examples"](1, 8)
    x, y = x[:5], y[:5]
    rng = np.random.default_rng(0)
    arrays = {"w": rng.normal(size=(64, 10)) / 8, "b": rng.normal(size=10)}
    expected = spaces[0]["losses"](arrays, x, y)
    trained = spaces[0]["update"](arrays, x, y, 0)
    assert not np.allclose(trained["w"], arrays["w"])
    for space in spaces[1:]:
        np.testing.assert_allclose(np.asarray(space["losses"](arrays, x, y)), expected, rtol=1e-4)
        found = space["update"](arrays, x, y, 0)
        for name in ("w", "b"):
            np.testing.assert_allclose(np.asarray(found[name]), trained[name], rtol=1e-3, atol=1e-4)
