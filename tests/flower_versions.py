"""Do observers, probe and defences work beside other versions of Flower? ``python -m tests.flower_versions``.

For each version, in an environment of its own that has this Flower and fedattack without any extra:

1. the tests of the observers and of the defences run, but for what needs torch;
2. a SuperLink and its SuperNodes, processes of that environment, train a project in NumPy. Its server is observed by
   the two lines of the guide, and once more by ``fedattack observe``. Both records are signed;
3. the commands that need no extra run on these records, and one that needs it refuses in a line.

Then the environment that runs this, which has ``fedattack[audit]``, checks a copy of both records and attacks it.

It takes a minute or two for each on two cores, and the network for pip. Environments are removed when they are done.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import tomli_w

from fedattack.record import Record, check_record
from fedattack.runs.runtime import free_port
from tests.apps.projects import CLIENTS, NUMPY, ROUNDS, fedattack, findings_of, write_targets, write_what_is_true

ROOT = Path(__file__).parents[1]
HOST = "127.0.0.1"
VERSIONS = ("1.23.0", "1.26.1", "1.29.0", "1.32.1", "1.35.0", "1.38.0", "1.41.0", "1.42.0")
"""The oldest that works, the newest, and some between."""

# The oldest Flower is tried beside the oldest NumPy that it takes.
OLD_NUMPY = "numpy<2"

# What runs in an environment without torch; nothing else of the tests is copied there.
TESTS = (
    "tests/__init__.py",
    "tests/refusals.py",
    "tests/fuzz/__init__.py",
    "tests/fuzz/kills.py",
    "tests/worlds/__init__.py",
    "tests/worlds/local_grid.py",
    "tests/observe",
    "tests/record/__init__.py",
    "tests/record/conftest.py",
    "tests/record/test_record.py",
    "tests/record/test_hostile_clients.py",
    "tests/defences/__init__.py",
    "tests/defences/test_mods.py",
)
MODEL = "from torch import nn\n\ndef logistic():\n    return nn.Linear(64, 10)\n"
START_SECONDS = 60
COMMAND_SECONDS = 300


@dataclass
class Row:
    """What came of one version; sizes are in MB (10⁶ bytes)."""

    version: str
    flower_mb: float = 0.0
    beyond_mb: float = 0.0
    tests: str = ""
    lines: str = ""
    probe: str = ""
    attack: str = ""
    error: str = ""


@dataclass(frozen=True)
class Environment:
    """A virtual environment."""

    folder: Path

    @property
    def programs(self) -> Path:
        return self.folder / "bin"

    def variables(self, home: Path, key: Path) -> dict[str, str]:
        """Return the variables of a process that sees this environment alone."""
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return kept | {
            "PATH": f"{self.programs}{os.pathsep}{os.defpath}",
            "HOME": str(home),
            "FLWR_HOME": str(home / "flwr"),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FEDATTACK_SIGNING_KEY": str(key),
            "NO_PROXY": f"{HOST},localhost",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }

    def install(self, *what: str) -> None:
        run([self.programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what])

    def size(self) -> float:
        return sum(file.lstat().st_size for file in self.folder.rglob("*") if not file.is_dir()) / 1e6


def run(words: list[str | Path], code: int = 0, **options) -> str:
    """Run a command, and return what it printed.

    Raises
    ------
    RuntimeError
        If its exit code is another one.
    """
    done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False, **options)
    if done.returncode != code:
        printed = " ".join((done.stdout + done.stderr).split())
        raise RuntimeError(f"{Path(words[0]).name} {words[1]} ended with {done.returncode}: {printed[-300:]}")
    return done.stdout + done.stderr


def make_environment(folder: Path, version: str, wheel: Path, row: Row) -> Environment:
    """Install Flower, then fedattack and pytest beside it."""
    run([sys.executable, "-m", "venv", folder])
    environment = Environment(folder)
    empty = environment.size()
    wanted = [f"flwr=={version}", *([OLD_NUMPY] if version == VERSIONS[0] else [])]
    environment.install(*wanted)
    row.flower_mb = environment.size() - empty
    environment.install(*wanted, str(wheel))
    row.beyond_mb = environment.size() - empty - row.flower_mb
    environment.install(*wanted, "pytest")
    return environment


def run_tests(environment: Environment, folder: Path, variables: Mapping[str, str]) -> str:
    """Run the tests on what is installed; returns pytest's last line."""
    for name in TESTS:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            # The test that attacks an older Flower's record needs torch.
            shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__", "*old_flower*", "*.zip"))
        else:
            shutil.copyfile(ROOT / name, target)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib -p no:cacheprovider -q\n")
    unsigned = {name: value for name, value in variables.items() if name != "FEDATTACK_SIGNING_KEY"}
    printed = run([environment.programs / "python", "-m", "pytest", "tests"], cwd=folder, env=unsigned)
    return printed.strip().splitlines()[-1]


@contextmanager
def federation(environment: Environment, folder: Path, variables: Mapping[str, str]) -> Iterator[str]:
    """Start a SuperLink and its SuperNodes; yields the address to which ``flwr`` connects."""
    started: list[subprocess.Popen] = []

    def start(name: str, *words: str) -> subprocess.Popen:
        home = folder / name
        home.mkdir()
        with (folder / f"{name}.log").open("ab") as log:
            started.append(
                subprocess.Popen(
                    [environment.programs / words[0], *words[1:]],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=home,
                    env={**variables, "FLWR_HOME": str(home)},
                    start_new_session=True,
                )
            )
        return started[-1]

    try:
        control, nodes, words = superlink_words(environment, variables)
        wait_for(control, start("superlink", *words))
        for index in range(CLIENTS):
            start(f"node-{index}", *supernode_words(environment, variables, nodes, index))
        yield f"{HOST}:{control}"
    finally:
        for process in started:
            # The apps' processes are of its group.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def superlink_words(environment: Environment, variables: Mapping[str, str]) -> tuple[int, int, list[str]]:
    """Return the ports for commands and for SuperNodes, and the SuperLink's words; new versions have one for all."""
    known = run([environment.programs / "flower-superlink", "--help"], env=variables)
    words = ["flower-superlink", "--insecure"]
    if "--disable-runtime-dependency-installation" in known:
        words.append("--disable-runtime-dependency-installation")
    apps, commands, nodes = free_port(), free_port(), free_port()
    if "--port" in known:
        words += ["--host", HOST, "--port", str(apps)]
    else:
        words += ["--serverappio-api-address", f"{HOST}:{apps}"]
    if has_a_port(known, "control"):
        words += ["--control-api-address", f"{HOST}:{commands}"]
    else:
        commands = apps
    if has_a_port(known, "fleet"):
        words += ["--fleet-api-address", f"{HOST}:{nodes}"]
    else:
        nodes = apps
    return commands, nodes, words


def has_a_port(known: str, name: str) -> bool:
    """Whether one of the SuperLink's interfaces still has a port of its own."""
    option = f"--{name}-api-address {name.upper()}_API_ADDRESS"
    described = " ".join(known.split())
    return option in described and f"{option} Deprecated" not in described


def supernode_words(environment: Environment, variables: Mapping[str, str], superlink: int, index: int) -> list[str]:
    known = run([environment.programs / "flower-supernode", "--help"], env=variables)
    words = ["flower-supernode", "--insecure", "--superlink", f"{HOST}:{superlink}"]
    words += ["--node-config", f"partition-id={index} num-partitions={CLIENTS}"]
    if "--port" in known:
        return [*words, "--host", HOST, "--port", str(free_port())]
    return [*words, "--clientappio-api-address", f"{HOST}:{free_port()}"]


def wait_for(port: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise RuntimeError("the SuperLink did not come up")


def connect(environment: Environment, address: str, project: Path, home: Path) -> None:
    """Say where the SuperLink is: in a file of the user's, or, in the oldest versions, in the project."""
    profile = {"default": "private", "private": {"address": address, "insecure": True}}
    if any(environment.folder.rglob("flwr/cli/flower_config.py")):
        (home / "flwr").mkdir(exist_ok=True)
        (home / "flwr" / "config.toml").write_text(tomli_w.dumps({"superlink": profile}))
        return
    path = project / "pyproject.toml"
    config = tomllib.loads(path.read_text())
    config["tool"]["flwr"]["federations"] = profile
    path.write_text(tomli_w.dumps(config))


def observe(environment: Environment, folder: Path, variables: Mapping[str, str], row: Row) -> dict[str, Path]:
    """Train the project under both observers; returns the records."""
    home = Path(variables["HOME"])
    records = {"lines": folder / "lines" / "record", "probe": folder / "probe" / "record"}
    with_lines = NUMPY.observed(folder / "with-lines", records["lines"])
    plain = NUMPY.copy(folder / "plain")
    with federation(environment, folder, variables) as address:
        for project in (with_lines, plain):
            connect(environment, address, project, home)
        run([environment.programs / "flwr", "run", with_lines, "--stream"], env=variables, cwd=home)
        row.lines = described(records["lines"])
        words = ["observe", "--out", records["probe"], "--", "flwr", "run", plain, "--stream"]
        run([environment.programs / "fedattack", *words], env=variables, cwd=home)
        row.probe = described(records["probe"])
    return records


def described(record: Path) -> str:
    """Say in words what is in a record, and check it; all rounds and clients must be there."""
    found = check_record(record)
    rounds = [len(item.participants) for item in Record(record)]
    if not found.whole or not found.signer or rounds != [CLIENTS] * ROUNDS:
        raise RuntimeError(f"{record}: {found.problems}, signed by {found.signer}, clients of each round {rounds}")
    return f"{ROUNDS} rounds of {CLIENTS} clients"


def use_commands(environment: Environment, record: Path, folder: Path, variables: Mapping[str, str]) -> None:
    """Run what needs no extra, and one command that does."""
    program = environment.programs / "fedattack"
    run([program, "--help"], env=variables)
    run([program, "check", record, "--signer", f"{variables['FEDATTACK_SIGNING_KEY']}.pub"], env=variables)
    run([program, "project", record, folder / "sums"], env=variables)
    refused = run([program, "audit", "quickstart", "--out", folder / "no"], code=2, env=variables)
    if len(refused.strip().splitlines()) != 1 or "fedattack[audit]" not in refused:
        raise RuntimeError(f"fedattack audit without its extra printed {refused}")


def attack(records: Mapping[str, Path], folder: Path) -> str:
    """Attack copies of the records as their owner would, with all that this environment has."""
    sys.path.insert(0, str(NUMPY.copy(folder / "data")))
    from numpyexample.task import load_data

    data = [load_data(site)[0] for site in range(CLIENTS)]
    unheld = load_data(CLIENTS)[0]
    (folder / "logistic_model.py").write_text(MODEL)
    values = []
    for name, record in records.items():
        audit = folder / name
        shutil.copytree(record, audit / "record")
        targets, owners = write_targets(folder / "targets.npz", data, unheld)
        words = ("--targets", "targets.npz", "--classes", "10", "--model", "logistic_model:logistic")
        fedattack("attack", "sia", str(audit), *words, cwd=folder)
        write_what_is_true(audit, data, unheld, targets, owners)
        found = findings_of(audit, folder)["sia.asr"]
        values.append(found["value"])
        if found["verdict"] != "leak":
            raise RuntimeError(f"{name}: sia.asr {found['value']:.2f} is {found['verdict']}")
    return " and ".join(f"{value:.0%}" for value in values)


def measure(version: str, wheel: Path, folder: Path) -> Row:
    """Try one version; what fails is in the row."""
    row = Row(version)
    (folder / "home").mkdir(parents=True)
    key = folder / "recorder.pem"
    try:
        environment = make_environment(folder / "environment", version, wheel, row)
        variables = environment.variables(folder / "home", key)
        run([environment.programs / "fedattack", "keygen", key], env=variables)
        row.tests = run_tests(environment, folder / "tests", variables)
        records = observe(environment, folder, variables, row)
        use_commands(environment, records["lines"], folder, variables)
        row.attack = attack(records, folder / "elsewhere")
    except (RuntimeError, OSError, subprocess.TimeoutExpired, AssertionError) as cause:
        row.error = f"{type(cause).__name__}: {cause}"
    return row


def table(rows: list[Row]) -> str:
    """Write the rows in Markdown."""
    lines = [
        "| Flower | MB | fedattack beyond it, MB | tests | two lines | `fedattack observe` | owners named |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        numbers = f"| {row.version} | {row.flower_mb:.0f} | {row.beyond_mb:.0f} "
        lines.append(f"{numbers}| {row.tests} | {row.lines} | {row.probe} | {row.attack or row.error} |")
    return "\n".join(lines)


def main() -> None:
    """Read the command line, try all versions, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="*", default=VERSIONS, help="versions of Flower (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file of the results")
    parser.add_argument("--keep", type=Path, help="new folder that keeps records, logs and environments")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="fa-flower-") as temporary:
        folder = options.keep or Path(temporary)
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder / "dist", ROOT]
        run(command)
        (wheel,) = (folder / "dist").glob("*.whl")
        for version in options.versions:
            rows.append(measure(version, wheel, folder / version))
            print(rows[-1].error or f"Flower {version}: {rows[-1].tests}; owners named: {rows[-1].attack}", flush=True)
            if not options.keep:
                shutil.rmtree(folder / version)
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    sys.exit(any(row.error for row in rows))


if __name__ == "__main__":
    main()
