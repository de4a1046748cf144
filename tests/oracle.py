"""What a redesign must not change: small runs, kept before it, and worked out again after it from the same records.

``python -m tests.oracle keep DIR`` makes runs with the code that is there: presets, an app that is gathered, one that
is audited with its positive control, a threat of another package, a trade-off. From what was recorded it works out all
that the commands say, and keeps that, too. ``python -m tests.oracle compare DIR`` works it out again with the code
that is there then, and names every value, file, page and exit code that differs. It trains nothing and starts no
Flower. Versions, times and the commands' own words are left out of the comparison.

``--only NAME`` takes some of the runs, whose names begin so. ``compare --judge`` attacks no run of a preset again: it
judges the scores that were kept, in a fraction of the time.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.apps.projects import MESSAGE_API
from tests.attacks.test_registry import OTHERS, TOY, install

ROOT = Path(__file__).parents[1]
SEEDS = "2"
SITE = "FEDATTACK_ORACLE_SITE"
"""Names, in the environment, the folder in which the threat of another package is installed."""


@dataclass(frozen=True)
class Preset:
    """A small run of a preset: settings, options of its attacks, and whether its noise is claimed to be private."""

    changes: Sequence[str]
    options: Sequence[str] = ()
    preset: str = ""
    claims: bool = False
    alters: bool = False


SMALL = ("rounds=3", "clients=4")
FEW = ("clients=10", "fraction=0.5", "secagg=false", "rounds=6")
RUNS = {
    "quickstart": Preset((*SMALL, "local-epochs=2"), alters=True),
    "sia-fedavg": Preset((*SMALL, "targets=20")),
    "sia-fedsgd": Preset((*SMALL, "targets=20")),
    "sia-fedmd": Preset((*SMALL, "targets=20", "local-epochs=1", "public-records=50")),
    "membership": Preset((*SMALL, "targets=20"), ("shadows=4",)),
    "membership-aggregate": Preset((*SMALL, "targets=20"), ("references=6",)),
    "prolin-membership": Preset(FEW),
    "prolin-inversion": Preset(FEW),
    "prolin-ascent": Preset((*FEW, "positives=0")),
    "aia-model": Preset((*SMALL, "rounds=8"), ("steps=10",)),
    "ara-cos": Preset((*SMALL, "clients=2", "records-per-client=20"), ("steps=10",)),
    "inversion": Preset(
        (*SMALL, "defence=dp-gaussian", "defence-strength=0.001", "defence-clip=1"), ("iterations=20",)
    ),
    "private-attribute": Preset(
        (*SMALL, "clients=8", "defence=sparsify", "defence-strength=0.5"), ("clients=40", "epochs=3")
    ),
    "labels": Preset(SMALL),
    "tokens": Preset(("rounds=2", "clients=4")),
    "exact": Preset((*SMALL, "records-per-client=8", "hidden=100", "nulls=50")),
    "exact-sums": Preset(("rounds=4", "hidden=200", "nulls=50")),
    "sequences": Preset(("clients=3", "records-per-client=2")),
    "plaintext": Preset(SMALL),
    "trees": Preset((*SMALL, "rounds=5")),
    "imprint": Preset(("clients=2", "records-per-client=16", "hidden=256", "nulls=50")),
    "fishing": Preset(("clients=2", "records-per-client=16", "hidden=100", "nulls=50")),
    "canary": Preset(("clients=3", "rounds=3", "records-per-client=20", "hidden=256", "nulls=100")),
    "inconsistent": Preset(("clients=3", "rounds=3", "local-epochs=4", "nulls=100")),
    "sia-many": Preset(("clients=40", "fraction=0.25", "rounds=3", "local-epochs=2")),
    "dp-sgd": Preset((*SMALL, "dp-noise=1.0", "targets=20"), preset="sia-fedavg", claims=True),
    "noisy": Preset(
        (*SMALL, "defence=dp-laplace", "defence-strength=0.05", "canaries=4", "targets=20"),
        preset="sia-fedavg",
        claims=True,
    ),
    "toy": Preset(SMALL),
}
APP_MODEL = "pytorchexample.task:Net"
CONTROLLED = "controlled-app"
AUDIT_HERE = ("audit", "project", "--out", "run", "--supernodes", "4", "--device", "cpu")
TRADEOFF = ("tradeoff", "quickstart", "--defence", "sparsify=0.9", "--defence", "dp-sgd=1", "--seeds", "1")

REFUSALS = (
    ("audit", "no-such-preset", "--out", "OUT"),
    ("audit", "quickstart", "--out", "OUT", "--set", "rounds=0"),
    ("audit", "quickstart", "--out", "OUT", "--set", "defence=dp-gaussian"),
    ("audit", "quickstart", "--out", "OUT", "--fail-if", "sia.nothing > 1"),
    ("attack", "no-such-attack", "RUN"),
    ("attack", "prolin", "RUN"),
    ("attack", "sia", "RUN", "--option", "nothing=1"),
    ("report", "NOWHERE"),
    ("report", "RUN", "--fail-if", "sia.asr > 2"),
    ("report", "RUN", "--fail-if", "sia.asr > 0"),
    ("report", "RUN", "--fail-if", "sia.asr > 1"),
    ("report", "RUN", "--fail-if", "verdict == leak"),
    ("check", "NOWHERE"),
    ("check", "RUN"),
    ("claim", "RUN"),
    ("what-if", "RUN", "--out", "OUT"),
    ("compare", "RUN", "NOWHERE", "--out", "OUT"),
    ("gather", "RUN/record", "NOWHERE", "--out", "OUT"),
    ("resume", "NOWHERE"),
    ("project", "RUN/record", "RUN/record"),
    ("tradeoff", "quickstart", "--defence", "nothing", "--out", "OUT"),
    ("reproduce", "nothing", "--out", "OUT"),
)
"""Commands whose exit code, and last line, stay as they are; RUN is a run folder, NOWHERE is not there."""

LEFT_OUT = {
    *("started", "finished", "ended", "commands", "command", "fedattack", "findings_sha256", "check", "versions"),
    *("written", "minutes", "seconds", "fastest", "slowest", "ratio", "memory", "record_sha256", "made"),
    "cost",
}
"""Keys that differ from run to run."""

_VARYING = (
    (re.compile(r"<style>.*?</style>", re.DOTALL), "STYLE"),  # how pages look is looked at
    (re.compile(r"\d{4}-\d\d-\d\d(T| )?[\d:.+Z]*( UTC)?"), "DATE"),
    (re.compile(r"\b[0-9a-f]{32,64}\b"), "HASH"),
    (re.compile(r"\b[0-9a-f]{8,16}…"), "HASH"),
    (re.compile(r"\d+(\.\d+)? (s|ms|min|minutes|seconds)\b"), "TIME"),
)


def keep(folder: Path, only: str) -> None:
    """Make all runs in ``folder``, and work out from them what is compared later."""
    for name, small in RUNS.items():
        if name.startswith(only):
            simulate(folder / name / "run", name, small)
    if "app".startswith(only):
        with tempfile.TemporaryDirectory() as scratch:
            app = MESSAGE_API.copy(Path(scratch))
            run(["audit", str(app), "--out", str(folder / "app" / "run"), "--supernodes", "4", "--device", "cpu"])
    if CONTROLLED.startswith(only):
        MESSAGE_API.copy(folder / CONTROLLED)
        run(AUDIT_HERE, cwd=folder / CONTROLLED)
    if "tradeoff".startswith(only):
        out = folder / "tradeoff" / "run"
        run([*TRADEOFF, "--out", str(out), *settings((*SMALL, "targets=20")), "--device", "cpu"])
    for name in names_in(folder, only):
        work_out(folder / name / "run", folder / name / "said", name)


def compare(folder: Path, only: str, *, judge: bool = False) -> int:
    """Print what differs now; returns how many values and files do. ``judge``: the scores are those that were kept."""
    differing = 0
    for name in names_in(folder, only):
        with tempfile.TemporaryDirectory() as scratch:
            again, before = Path(scratch) / "said", folder / name / "said"
            if judge and name in RUNS:
                again.mkdir()
                shutil.copytree(before / "run", again / "run")
                judge_again(again, RUNS[name])
            else:
                work_out(folder / name / "run", again, name)
            for difference in differences(before, again):
                differing += 1
                print(f"{name}: {difference}", flush=True)
        print(f"{name}: compared", flush=True)
    print(f"{differing} differences")
    return differing


def names_in(folder: Path, only: str) -> list[str]:
    """List the runs that are kept, and what is asked of no run."""
    there = [path.parent.name for path in sorted(folder.glob("*/run"))]
    return [name for name in [*there, "commands"] if name.startswith(only)]


def simulate(out: Path, name: str, small: Preset) -> None:
    """Run a preset and record it."""
    words = ["simulate", small.preset or name, "--out", str(out), "--seeds", SEEDS]
    run([*words, *settings(small.changes)])


def settings(changes: Sequence[str]) -> list[str]:
    """Write settings as words of a command."""
    words = []
    for change in changes:
        words += ["--set", change]
    return words


def work_out(kept: Path, said: Path, name: str) -> None:
    """Write into ``said`` all that the code that is there says of a kept run."""
    said.mkdir(parents=True)
    if name == "commands":
        ask_commands(kept.parents[1], said)
    elif name == "app":
        gather_again(kept, said)
    elif name == CONTROLLED:
        control_again(kept, said)
    elif name == "tradeoff":
        shutil.copytree(kept, said / "tradeoff", ignore=shutil.ignore_patterns("*.log"))
        out = ["--out", str(said / "tradeoff")]
        run([*TRADEOFF, *out, *settings((*SMALL, "targets=20")), "--device", "cpu"])
    else:
        audit_again(kept, said, RUNS[name])


def audit_again(kept: Path, said: Path, small: Preset) -> None:
    """Prepare, attack and judge a copy of a run."""
    out = said / "run"
    shutil.copytree(kept, out)
    prepare_again(out)
    attack_again(out, small.options)
    judge_again(said, small)


def judge_again(said: Path, small: Preset) -> None:
    """Judge a run that was attacked; ask what it claims, and what defences would have changed."""
    out = said / "run"
    keep_output(said, "report", ["report", str(out), "--device", "cpu", "--json"])
    keep_output(said, "check", ["check", str(out), "--json"])
    if small.claims:
        keep_output(said, "claim", ["claim", str(out), "--json"])
        keep_output(said, "report-with-claim", ["report", str(out), "--device", "cpu", "--json"])
    if small.alters:
        words = ["what-if", str(out), "--secagg", "--noise", "0.01", "--keep", "0.5", "--out", str(said / "what-if")]
        keep_output(said, "what-if", [*words, "--device", "cpu", "--json"])
        words = ["compare", str(out), str(said / "what-if" / "cells" / "noise-0.01"), "--out", str(said / "compare")]
        keep_output(said, "compare", words)


def attack_again(folder: Path, options: Sequence[str]) -> None:
    """Make the attacks of a copy of a run folder."""
    study = json.loads((folder / "study.json").read_text())
    attacks = json.loads(output_of(["list", "--json"]).stdout)["attacks"]
    wanted = {**study["options"], **dict(option.split("=", 1) for option in options)}
    for attack in study["attacks"]:
        words = ["attack", attack, str(folder), "--device", "cpu"]
        for key, value in wanted.items():
            if key in attacks[attack]["options"]:
                words += ["--option", f"{key}={value}"]
        run(words)


def prepare_again(folder: Path) -> None:
    """Write knowledge and truth of a copy of a run folder again; what clients noted there is kept."""
    from fedattack.record.folder import new_parts
    from fedattack.runs.app import prepare

    study = json.loads((folder / "study.json").read_text())
    configs = []
    for seed, part in zip(study["seeds"], new_parts(folder, study["seeds"]), strict=True):
        places = {name: str(getattr(part, name)) for name in ("zoo", "record", "truth", "knowledge")}
        configs.append({**study["settings"], "seed": seed, "dealt": "", **places})
    prepare(configs)


def gather_again(kept: Path, said: Path) -> None:
    """Pose, attack and judge what was witnessed of an app, from its own folder, where its model can be imported."""
    with tempfile.TemporaryDirectory() as scratch:
        app = MESSAGE_API.copy(Path(scratch))
        words = ["gather", str(kept), str(kept / "witness"), "--out", str(said / "run"), "--model", APP_MODEL]
        keep_output(said, "gather", [*words, "--device", "cpu", "--json"], cwd=app)
        keep_output(said, "report", ["report", str(said / "run"), "--trust", "--device", "cpu", "--json"], cwd=app)


def control_again(kept: Path, said: Path) -> None:
    """Go on with the audit of an app after its run: pose, attack, plant what a positive control is, judge."""
    out = said / "run"
    shutil.copytree(kept.parent / "project", said / "project")
    shutil.copytree(kept, out)
    for derived in ("scores", "knowledge", "truth", "tables"):
        shutil.rmtree(out / derived, ignore_errors=True)
    for posed in out.glob("witness/**/posed.json"):
        posed.unlink()
    study = json.loads((out / "study.json").read_text())
    for derived in ("controls", "untried", "attacks"):
        study.pop(derived, None)
    (out / "study.json").write_text(json.dumps(study))
    keep_output(said, "audit", AUDIT_HERE, cwd=said)
    shutil.rmtree(said / "project")


def ask_commands(folder: Path, said: Path) -> None:
    """Keep what commands list, which options they have, and how they refuse."""
    keep_output(said, "list", ["list", "--json"])
    helped = output_of(["--help"]).stdout
    for command in re.findall(r"^│ ([a-z-]+) ", helped, re.MULTILINE):
        text = output_of([command, "--help"]).stdout
        options = sorted(set(re.findall(r"(--[a-z][a-z-]*)", text)))
        (said / f"options-{command}.json").write_text(json.dumps(options, indent=1))
    refusals = {}
    with tempfile.TemporaryDirectory() as scratch:
        run_folder = Path(scratch) / "run"
        shutil.copytree(folder / "quickstart" / "said" / "run", run_folder)
        places = {"OUT": str(Path(scratch) / "out"), "NOWHERE": str(Path(scratch) / "nowhere"), "RUN": str(run_folder)}
        for words in REFUSALS:
            done = output_of([placed(word, places) for word in words])
            last = (done.stderr.strip().splitlines() or [""])[-1].replace(scratch, "SCRATCH")
            refusals[" ".join(words)] = {"code": done.returncode, "last": last}
    (said / "refusals.json").write_text(json.dumps(refusals, indent=1))


def placed(word: str, places: dict[str, str]) -> str:
    """Put a folder in the place of the word that stands for it at the start of another."""
    for name, place in places.items():
        if word == name or word.startswith(f"{name}/"):
            return word.replace(name, place, 1)
    return word


def keep_output(said: Path, name: str, words: Sequence[str], cwd: Path | None = None) -> None:
    """Keep what a command prints, and its exit code."""
    done = output_of(words, cwd)
    (said / f"{name}.stdout").write_text(done.stdout)
    (said / f"{name}.code").write_text(f"{done.returncode}\n{'' if done.returncode == 0 else done.stderr[-1000:]}")


def differences(before: Path, after: Path) -> Iterator[str]:
    """Name what differs between two folders of what was said."""
    names: set[str] = set()
    for root in (before, after):
        names |= {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and is_compared(path)}
    for name in sorted(names):
        files = before / name, after / name
        missing = [side for side, file in zip(("before", "now"), files, strict=True) if not file.exists()]
        if missing:
            yield f"{name}: not there {missing[0]}"
        else:
            yield from (f"{name}: {difference}" for difference in unlike_files(*files, before, after))


def is_compared(path: Path) -> bool:
    """Leave out what was recorded before, and what says how long things took."""
    return "record" not in path.parts and path.suffix not in (".log", ".pdf", ".lock") and path.name != "study.json"


def unlike_files(one: Path, two: Path, before: Path, after: Path) -> Iterator[str]:
    """Name the places at which two files differ."""
    raw = one.read_bytes(), two.read_bytes()
    if raw[0] == raw[1]:
        return
    if one.suffix == ".npz":
        yield from unlike_arrays(one, two)
        return
    try:
        texts = raw[0].decode().replace(str(before), "SAID"), raw[1].decode().replace(str(after), "SAID")
    except UnicodeDecodeError:
        yield f"{len(raw[0])} and {len(raw[1])} bytes differ"
        return
    if one.suffix in (".json", ".stdout"):
        try:
            yield from unlike(*map(json.loads, texts))
        except ValueError:
            yield from unlike_lines(*texts)
    else:
        yield from unlike_lines(*texts)


def unlike_arrays(one: Path, two: Path) -> Iterator[str]:
    """Name the arrays in which two files differ, and the facts that stand in them as JSON."""
    with np.load(one) as old, np.load(two) as new:
        for name in sorted({*old, *new}):
            if name not in old or name not in new:
                yield f"{name}: in one of them alone"
            elif name == "facts":
                yield from unlike(json.loads(str(old[name])), json.loads(str(new[name])), name)
            elif old[name].dtype != new[name].dtype or old[name].tobytes() != new[name].tobytes():
                yield f"{name}: other values"


def unlike_lines(one: str, two: str) -> Iterator[str]:
    """Name the first line that differs between two texts, such as pages, but for dates, hashes and times."""
    lines = [normal(text).splitlines() for text in (one, two)]
    for number, pair in enumerate(zip(*lines, strict=False), 1):
        if pair[0] != pair[1]:
            place = next((at for at, both in enumerate(zip(*pair, strict=False)) if both[0] != both[1]), 0)
            shown = (line[max(0, place - 30) : place + 60] for line in pair)
            yield f"line {number}: {' / '.join(shown)}"
            return
    if len(lines[0]) != len(lines[1]):
        yield f"{len(lines[0])} / {len(lines[1])} lines"


def normal(text: str) -> str:
    """Put words in the place of what differs from run to run."""
    for pattern, word in _VARYING:
        text = pattern.sub(word, text)
    return text


def unlike(one: Any, two: Any, path: str = "$") -> Iterator[str]:
    """Name the places at which two JSON values differ."""
    if isinstance(one, dict) and isinstance(two, dict):
        for key in sorted({*one, *two} - LEFT_OUT):
            yield from unlike(one.get(key), two.get(key), f"{path}.{key}")
    elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        for index, pair in enumerate(zip(one, two, strict=True)):
            yield from unlike(*pair, f"{path}[{index}]")
    elif one != two and normal(str(one)) != normal(str(two)):
        yield f"{path}: {str(one)[:60]} / {str(two)[:60]}"


def run(words: Sequence[str], cwd: Path | None = None) -> None:
    """Run the command; ends in an error with its words if it does not succeed."""
    done = output_of(words, cwd)
    if done.returncode:
        raise SystemExit(f"fedattack {' '.join(words)}: exit code {done.returncode}\n{done.stderr[-2000:]}")


def output_of(words: Sequence[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    places = [os.environ[SITE], str(ROOT)]
    if cwd is not None:
        places.insert(0, str(cwd))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-m", "fedattack", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False)


def make_site(site: Path) -> Path:
    """Install the threat of another package into a folder, unless it is there; returns the folder."""
    if not site.exists():
        site.mkdir(parents=True)
        shutil.copytree(TOY, site / "toy_threat")
        install(site, "toy-threat", "toy = toy_threat:THREAT", **OTHERS)
    return site


def main() -> None:
    """Keep or compare, from the command line."""
    parser = argparse.ArgumentParser(description="Small runs, before and after a redesign.")
    parser.add_argument("do", choices=("keep", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="the runs whose names begin so")
    parser.add_argument("--judge", action="store_true", help="compare: judge the scores that were kept")
    given = parser.parse_args()
    folder = given.folder.resolve()
    if SITE not in os.environ:
        # The other package is known to who imports fedattack after it is installed.
        site = str(make_site(folder / "site"))
        places = os.pathsep.join([site, str(ROOT)])
        words = [sys.executable, "-m", "tests.oracle", *sys.argv[1:]]
        sys.exit(subprocess.run(words, env={**os.environ, SITE: site, "PYTHONPATH": places}, check=False).returncode)
    if given.do == "keep":
        keep(folder, given.only)
    else:
        sys.exit(1 if compare(folder, given.only, judge=given.judge) else 0)


if __name__ == "__main__":
    main()
