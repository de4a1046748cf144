"""Folders that are made to harm: does a command import, change or delete anything outside of them?

    python -m tests.fuzz.folders --count 2000 --workers 2

Each try takes a run folder, makes it hostile in a few ways, and runs a command on it as `fedattack` does, in a process
of its own, without ``--trust``. Beside the folder lies a canary: a folder with a run of its own. On the path of modules
lies a module that leaves a mark where it is imported, called or unpickled. No try may leave a mark, change the canary,
open a file of it, start a program, or open a connection; each must end with exit code 0, 2, 3 or 4, and without a fault
of the program.
"""

import hashlib
import json
import math
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedattack.base.failures import FAULT
from fedattack.runs import reaper
from tests.fuzz import mutate
from tests.fuzz.sandbox import ANSWER, in_child, make_parser, side_by_side
from tests.fuzz.worlds import STUDY, WORLDS

SECONDS = 300.0
CANARY_MODULE = "canary_module"
_MODULE = """
from pathlib import Path
Path({mark!r}).touch()
def touch(*words, **named):
    Path({mark!r}).touch()
    raise SystemExit(99)
"""
COMMANDS = (
    *("attack", "attack", "attack", "report", "report", "check", "resume", "resume", "resume", "project", "compare"),
    *("reproduce", "tradeoff", "audit", "simulate", "observe", "gather", "gather", "what-if", "what-if"),
)


class Place:
    """Where the tries are made: the canary, its module, and the run folders that are copied for each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.canary = root / "canary"
        self.mark = root / "mark"
        self.modules = root / "modules"
        self.modules.mkdir()
        (self.modules / f"{CANARY_MODULE}.py").write_text(_MODULE.format(mark=str(self.mark)))
        self.originals = {name: WORLDS[name].build(root / "worlds" / name) for name in ("source", "sums", "group")}
        self.originals["stopped"] = _stopped(self.originals["source"], root / "worlds" / "stopped")
        self.originals["cells"] = _cells(self.originals["source"], root / "worlds" / "cells")
        self.originals["witnessed"] = _witnessed(root / "worlds" / "witnessed")
        shutil.copytree(self.originals["source"], self.canary)
        (self.canary / "zoo").mkdir()
        (self.canary / "zoo" / "zoo.json").write_text("{}")
        (self.canary / "victim.txt").write_text("keep me")

    def fingerprint(self) -> str:
        """Hash all of the canary: names, contents, links, modes, times of change."""
        digest = hashlib.sha256()
        for path in sorted([self.canary, *self.canary.rglob("*")]):
            state = path.lstat()
            digest.update(f"{path} {state.st_mode} {state.st_mtime_ns} {state.st_size}".encode())
            if path.is_file():
                digest.update(path.read_bytes())
        return digest.hexdigest()


def _stopped(original: Path, folder: Path) -> Path:
    """Make a run that was killed after its first round."""
    from fedattack.runs.presets import load_preset, resolve_settings

    shutil.copytree(original, folder)
    settings = resolve_settings(load_preset("quickstart"), ["clients=4", "rounds=2", "dataset=digits"])
    (folder / "study.json").write_bytes(mutate.sealed(STUDY | {"settings": settings}))
    manifest = json.loads((folder / "record" / "manifest.json").read_text())
    manifest |= {"status": "open", "rounds": None, "head": None, "final": None, "ended": None}
    (folder / "record" / "manifest.json").write_bytes(mutate.sealed(manifest))
    index = folder / "record" / "rounds.jsonl"
    index.write_bytes(index.read_bytes().splitlines(keepends=True)[0])
    (folder / "dealt").mkdir()
    (folder / "dealt" / "run.safetensors").write_bytes(b"x")
    return folder


def _cells(original: Path, folder: Path) -> Path:
    """Make a reproduction and a trade-off, each with a cell that is done."""
    from fedattack.grids.cell import Request
    from fedattack.grids.reproduce import load_reproduction
    from fedattack.grids.reproduce.design import reproduce
    from fedattack.grids.tradeoff.design import tradeoff
    from fedattack.record.folder import write_study
    from fedattack.runs.watch import Watch

    def audit(job: Any, device: str, watch: Watch) -> None:
        job.folder.mkdir()
        (job.folder / "record").mkdir()
        write_study(job.folder, {"settings": dict(job.settings), "seeds": list(job.seeds)})
        for name in ("findings.json", "run.json"):
            shutil.copyfile(original / name, job.folder / name)

    request = Request(folder, seeds=1)
    only = ["framework=fedavg", "dataset=digits", "alpha=1", "local-epochs=1"]
    reproduce(load_reproduction("sia-table3"), request, only=only, audit=audit)
    cost = {"entries": 1, "records": 1, "training": {"seconds": 1.0}, "defences": {}}
    tradeoff("quickstart", request, wanted=["sparsify=0.9"], audit=audit, cost=lambda *_: cost)
    return folder


def _witnessed(folder: Path) -> Path:
    """Make a record, and beside it what witnesses of its clients wrote, who name the canary's module."""
    from dataclasses import replace

    from fedattack.witness import SeenExamples, write_witness
    from fedattack.witness.sample import hash_rows
    from fedattack.witness.store import write_frozen
    from tests.apps.worlds import MODEL, pool, witness, write_record

    def seen(rows: slice) -> SeenExamples:
        hashes = hash_rows(x[rows], 0)
        order = sorted(range(len(hashes)), key=hashes.__getitem__)
        keys = np.frombuffer(b"".join(sorted(hashes)), np.uint8).reshape(-1, 16)
        return SeenExamples(x[rows][order], y[rows][order], keys, len(keys), {})

    x, y = pool(60)
    write_record(folder / "record", ["100", "101", "102"])
    for client in range(3):
        own, evaluated = slice(10 * client, 10 * client + 10), slice(30 + 10 * client, 40 + 10 * client)
        frozen = write_frozen(folder / "witness", {"base": x[:1]})
        model = replace(MODEL, spec=f"{CANARY_MODULE}:touch", frozen=frozen)
        noted = replace(witness(str(client), (x, y), model=model), trained=seen(own), evaluated=seen(evaluated))
        write_witness(folder / "witness", noted)
    return folder


# --- ways to make a folder hostile -----------------------------------------------------------------------------------


def hostile_texts(place: Place, folder: Path) -> list[Any]:
    """Return what a hostile folder says where a text is expected."""
    outside = os.path.relpath(place.canary, folder)
    return [
        f"{CANARY_MODULE}:touch",
        CANARY_MODULE,
        "os:system",
        "logging.config:dictConfig",
        "builtins:exec",
        str(place.canary),
        outside,
        f"../{outside}",
        f"x/../{outside}",
        f"../../{outside}",
        f"{place.canary}/victim.txt",
        f"{place.canary}/truth/evaluation.npz",
        f"{outside}/record",
        "127.0.0.1:1",
        "file:///etc/passwd",
        "{0.__class__}",
        "%(canary)s",
        "$(touch canary)",
    ]


def change_text(draw: random.Random, place: Place, folder: Path) -> None:
    """Put a hostile text anywhere into a JSON file, and seal it."""
    files = [path for path in mutate.json_files(folder) if path.is_file()]
    if not files:
        return
    path = draw.choice(files)
    value = json.loads(path.read_text())
    if isinstance(value, dict):
        value.pop("check", None)
    here: Any = value
    while isinstance(here, dict | list) and here:
        holder = here
        key = draw.choice(list(here)) if isinstance(here, dict) else draw.randrange(len(here))
        here = here[key]
    if not value:
        return
    texts = hostile_texts(place, folder)
    if isinstance(holder, dict) and draw.random() < 0.2:
        holder[str(draw.choice(texts))] = holder.pop(key)
    else:
        holder[key] = draw.choice(texts)
    path.write_bytes(mutate.sealed(value))
    mutate.tell(path)


def change_index(draw: random.Random, place: Place, folder: Path) -> None:
    """Let a line of the index name another file, or say hostile things of clients."""
    records = [path.parent for path in folder.rglob("rounds.jsonl") if path.is_file()]
    if not records:
        return
    record = draw.choice(records)
    manifest = json.loads((record / "manifest.json").read_text())
    lines = [json.loads(line) for line in (record / "rounds.jsonl").read_text().splitlines()]
    if not lines:
        return
    texts = [text for text in hostile_texts(place, folder) if isinstance(text, str)]
    line = draw.choice(lines)
    way = draw.randrange(3)
    if way == 0:
        line["file"] = draw.choice(texts)
    elif way == 1 and line["replies"]:
        draw.choice(line["replies"])["node"] = draw.choice(texts)
    elif line["replies"]:
        draw.choice(line["replies"])["metrics"] = {draw.choice(texts): draw.choice(texts)}
    mutate.seal_record(record, manifest, lines)


def _one_of(draw: random.Random, folder: Path, name: str) -> Path | None:
    paths = [path for path in folder.rglob(name) if path.is_file()]
    return draw.choice(paths) if paths else None


def private_training(loss: Any) -> dict[str, Any]:
    training = {"epochs": 1, "batch_size": 5, "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}
    return {"defence": "dp-sgd", "noise": 1.0, "dp-clip": 1.0, "loss": loss, "training": training}


def set_knowledge(draw: random.Random, place: Place, folder: Path) -> None:
    """Ask for code, or for files elsewhere, where knowledge may."""
    path = _one_of(draw, folder, "knowledge.json")
    if path is None:
        return
    value, text = json.loads(path.read_text()), draw.choice(hostile_texts(place, folder))
    call = {"()": f"{CANARY_MODULE}.touch"}
    defence = {
        "spec": draw.choice((f"{CANARY_MODULE}:touch", "logging.config:dictConfig", "fedattack", "os:system")),
        "settings": draw.choice(
            (
                {"version": 1, "handlers": {"h": call}},
                {"defence": "recup", "defence-strength": 0.1, "recup-zoo": str(place.canary)},
                {"defence": text, "defence-strength": 0.1},
                private_training(text),
            )
        ),
        "files": draw.choice(({}, {"recup-zoo": os.path.relpath(place.canary / "zoo", path.parent)}, {"x": text})),
    }
    changes: list[Mapping[str, Any]] = [
        {"defence": defence},
        {"defence": {**defence, "settings": {"defence": "none"}}},
        {"property": text},
        {"files": {str(text): "0" * 64}},
    ]
    if value.get("model"):
        changes += [{"model": value["model"] | {key: text}} for key in ("spec", "loss")]
    value |= draw.choice(changes)
    path.write_bytes(mutate.sealed(value))


def set_study(draw: random.Random, place: Place, folder: Path) -> None:
    """Ask the run that goes on for harm."""
    path = _one_of(draw, folder, "study.json")
    if path is None:
        return
    value, text = json.loads(path.read_text()), draw.choice(hostile_texts(place, folder))
    settings = value.get("settings", {})
    keys = (
        "model",
        "models",
        "student",
        "dataset",
        "public",
        "data-root",
        "recup-zoo",
        "record",
        "truth",
        "zoo",
        "dealt",
    )
    changes: list[Mapping[str, Any]] = [
        {"seeds": [text]},
        {"seeds": ["x/../../../../canary", 0]},
        {"seeds": [0, text]},
        {"seeds": [0, 1]},
        {"seeds": [-1, 10**9]},
        {"preset": text},
        {"runtime": text},
        {"runtime": "processes"},
        {"runtime": "superlink"},
        {"options": {"ray": "127.0.0.1:1"}},
        {"options": {text: text}},
        {"attacks": [text]},
        {"commands": [text]},
        *({"settings": settings | {key: text}} for key in keys),
        {"settings": settings | {text: text}},
    ]
    value |= draw.choice(changes)
    path.write_bytes(mutate.sealed(value))


def link(draw: random.Random, place: Place, folder: Path) -> None:
    """Put a link to the canary in the place of a file or folder, or where a command will write."""
    there = [path for path in folder.rglob("*") if not path.is_symlink()]
    future = [
        *(
            "report.html",
            "flower.log",
            "scores/sia.npz",
            "scores",
            "dealt",
            "resumption",
            "zoo",
            "record/final.safetensors",
        ),
        *("resumption/run.json", "knowledge/nodes", "truth/nodes/x.json", "truth/accuracy", "cells/.lock", "dealt/x"),
        *(
            "record/seed-0",
            "record/x",
            "sums/rounds",
            "truth/x",
            "scores/x",
            "compare.json",
            "sia-table3.md",
            "tradeoff-quickstart.html",
        ),
    ]
    path = draw.choice(there) if there and draw.random() < 0.6 else folder / draw.choice(future)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.is_symlink() or path.exists():
        path.unlink()
    twin = place.canary / path.relative_to(folder)
    targets = [place.canary, place.canary / "victim.txt", twin, place.canary / "nothing-yet"]
    path.symlink_to(draw.choice(targets))


def hard_link(draw: random.Random, place: Place, folder: Path) -> None:
    """Give a file of the canary a second name in the folder."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    inside = [path for path in place.canary.rglob("*") if path.is_file()]
    path = draw.choice([*files, folder / "flower.log", folder / "scores" / "sia.npz", folder / "report.html"])
    path.parent.mkdir(parents=True, exist_ok=True)
    twin = place.canary / path.relative_to(folder)
    path.unlink(missing_ok=True)
    os.link(twin if twin.is_file() else draw.choice(inside), path)


def pickled(draw: random.Random, place: Place, folder: Path) -> None:
    """Put pickled code where arrays are expected."""
    files = [path for path in folder.rglob("*.npz") if path.is_file()]
    if files:
        path = draw.choice(files)
        payload = b"c" + f"{CANARY_MODULE}\ntouch\n(tR.".encode()
        if draw.random() < 0.5:
            path.write_bytes(payload)
        else:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            arrays[draw.choice(list(arrays))] = np.array([Harm()], dtype=object)
            np.savez(path, **arrays)
        mutate.tell(path)


class Harm:
    """Does harm to whoever unpickles it."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, (f"{sys.executable} -c 'import {CANARY_MODULE}'",)


def modules(draw: random.Random, place: Place, folder: Path) -> None:
    """Put modules into the folder, from where commands are called."""
    source = (place.modules / f"{CANARY_MODULE}.py").read_text()
    for name in ("sitecustomize", "fedattack_plugin", "yourpackage", "jinja2_ext", "simulations", "clients"):
        (folder / f"{name}.py").write_text(source)


def damage(draw: random.Random, place: Place, folder: Path) -> None:
    """Damage a file, as the other fuzzer does."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and path.stat().st_size]
    if files:
        mutate.damage(draw, draw.choice(files))


WAYS = (change_text, change_text, change_index, set_knowledge, set_knowledge, set_study, set_study, link, link, link)
WAYS += (hard_link, pickled, modules, damage)


# --- a try -----------------------------------------------------------------------------------------------------------


def words_of(draw: random.Random, command: str, kind: str, folder: Path, other: Path, out: Path) -> list[str]:
    """Write a command line that takes the folder."""
    only = ["--only", "framework=fedavg", "--only", "dataset=digits", "--only", "alpha=1", "--seeds", "1"]
    fitting = {"source": "sia", "sums": "prolin", "group": "private-attribute"}.get(kind, "sia")
    attack = ["attack", draw.choice((*[fitting] * 6, "sia", "prolin", "ara", "inversion")), str(folder)]
    return {
        "attack": [*attack, "--device", "cpu", *draw.choice(([], ["--skip-damaged"]))],
        "report": ["report", str(folder), "--device", "cpu", *draw.choice(([], ["--json"]))],
        "check": ["check", str(folder), *draw.choice(([], ["--json"]))],
        "resume": ["resume", str(folder), "--device", "cpu"],
        "project": ["project", str(folder / "record"), str(draw.choice((out, folder / "sums")))],
        "compare": ["compare", str(folder), str(other), "--out", str(draw.choice((out, folder)))],
        "reproduce": ["reproduce", "sia-table3", "--out", str(folder), *only],
        "tradeoff": ["tradeoff", "quickstart", "--out", str(folder), "--defence", "sparsify=0.9", "--seeds", "1"],
        "audit": ["audit", "quickstart", "--out", str(folder)],
        "simulate": ["simulate", "quickstart", "--out", str(folder)],
        "observe": ["observe", "--out", str(folder), "--", "flwr", "run", str(folder)],
        "gather": [
            *("gather", str(folder), str(folder / "witness"), "--out", str(draw.choice((out, folder / "out")))),
            *draw.choice(([], ["--model", "tests.apps.worlds:linear"])),
        ],
        "what-if": [
            *("what-if", str(folder), "--out", str(draw.choice((out, folder / "out"))), "--device", "cpu"),
            *draw.choice((["--noise", "0.1"], ["--keep", "0.5", "--secagg"])),
        ],
    }[command]


def _no_process(module: str, job: Any) -> str:
    from fedattack.base.errors import RunError

    raise RunError(f"{module} is not started here")


class NoFlower:
    """Stands for Flower, of which a try has no time: it only looks at what it would be told."""

    def __init__(self, *words: Any, **named: Any) -> None:
        pass

    def __enter__(self) -> "NoFlower":
        return self

    def __exit__(self, *words: object) -> None:
        pass

    def declare(self, defaults: Mapping[str, Any]) -> None:
        """Take what the app is said to declare."""

    def run(self, config: Mapping[str, Any], **named: Any) -> Any:
        """Refuse the run."""
        from fedattack.base.errors import RunError

        raise RunError(f"no Flower here, which was told {sorted(config)}"[:200])


@contextmanager
def watched(place: Place) -> Iterator[list[str]]:
    """Note what this process does that a command on a folder has no business to do."""
    noted: list[str] = []
    # A module is opened where it is imported.
    guarded = (str(place.canary), str(place.modules))

    def hook(event: str, words: tuple[Any, ...]) -> None:
        if not active:
            return
        told = [os.fsdecode(word) for word in words if isinstance(word, str | bytes | os.PathLike)]
        if event == "subprocess.Popen" and words[1][:3] == [sys.executable, "-P", reaper.__file__]:
            # The program's own guard, which removes private copies if the command is killed.
            return
        if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "pickle.find_class"):
            noted.append(f"{event} {str(words)[:100]}")
        elif event == "socket.connect":
            noted.append(f"{event} {words[-1]}")
        elif event.startswith(("open", "os.", "shutil.")) and event not in ("os.listdir", "os.scandir"):
            places = [os.path.realpath(text) for text in told if "/" in text]
            noted.extend(f"{event} {path}" for path in places if path.startswith(guarded))

    active = True
    sys.addaudithook(hook)
    try:
        yield noted
    finally:
        active = False


def attempt(place: Place, words: list[str], here: Path) -> dict[str, Any]:
    """Run a command in this process as `fedattack` does; returns its exit code, what it printed, and what it did."""
    import io
    from contextlib import redirect_stderr, redirect_stdout

    from rich.console import Console

    from fedattack import cli
    from fedattack.attacks import _fan_out
    from fedattack.grids.tradeoff import cost as measuring
    from fedattack.runs import simulating
    from fedattack.runs.runtimes import RUNTIMES

    RUNTIMES.update({name: lambda *_: NoFlower() for name in RUNTIMES})
    simulating.prepare = lambda configs: None
    # Where a folder's costs are gone, a trade-off measures them anew: a process that takes nothing from the folder.
    measuring.run_module = _no_process  # type: ignore[assignment]
    # On a slow machine an attack would start workers, whose results reach it as pickles that are its own.
    _fan_out.WORTH_WORKERS = math.inf
    sys.path.append(str(place.modules))
    os.chdir(here)
    sys.argv = ["fedattack", *words]
    out, err = io.StringIO(), io.StringIO()
    cli.out_console, cli.err_console = Console(file=out), Console(file=err)
    code: Any = None
    with watched(place) as noted, redirect_stdout(out), redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code
    return {"code": code, "err": err.getvalue(), "noted": noted}


def run(count: int, seed: int, *, every: int = 1, first: int = 0) -> dict[str, Any]:
    """Make the tries ``first``, ``first + every`` … of ``count``; returns how they ended, and each that is bad."""
    import torch

    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    bad: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as root:
        place = Place(Path(root))
        for number in range(first, count, every):
            draw = random.Random(f"{seed}/{number}")
            command = draw.choice(COMMANDS)
            kinds = {"resume": "stopped", "reproduce": "cells", "tradeoff": "cells", "gather": "witnessed"}
            # The attacks of other worlds take minutes, and here they are made several times.
            kinds["what-if"] = "source"
            kind = kinds.get(command) or draw.choice(("source", "sums", "group"))
            folder, out = Path(root) / "tries" / "run", Path(root) / "tries" / "out"
            shutil.copytree(place.originals[kind], folder)
            # Links come last: what else is done to a folder must not go through them.
            ways = sorted((draw.choice(WAYS) for _ in range(draw.choice((1, 1, 2, 3)))), key=_is_link)
            for way in ways:
                with suppress(Exception):  # what one has done may stand in the way of the next, however
                    way(draw, place, folder)
            before = place.fingerprint()
            words = words_of(draw, command, kind, folder, place.originals[kind], out)
            here = draw.choice((folder, Path(root) / "tries"))
            outcome = in_child(partial(attempt, place, words, here), seconds=SECONDS)
            trouble = _trouble(outcome.kind, outcome.told)
            if place.mark.exists():
                trouble.append("the canary's module was run")
                place.mark.unlink()
            if place.fingerprint() != before:
                trouble.append("the canary was changed")
            counts[f"{command}: {outcome.told['code'] if outcome.kind == ANSWER else outcome.kind}"] += 1
            if trouble:
                names = [way.__name__ for way in ways]
                bad.append({"number": number, "words": words, "ways": names, "trouble": trouble})
                print(json.dumps(bad[-1])[:1500], file=sys.stderr, flush=True)
            shutil.rmtree(Path(root) / "tries")
            if sum(counts.values()) % 100 == 0:
                print(f"{sum(counts.values())} tries, the last {number}; bad: {len(bad)}", file=sys.stderr, flush=True)
    return {"counts": dict(counts), "bad": bad}


def _is_link(way: Callable[..., None]) -> bool:
    return way in (link, hard_link)


def _trouble(kind: str, told: Any) -> list[str]:
    if kind != ANSWER:
        return [f"{kind}: {str(told)[-700:]}"]
    trouble = [str(item) for item in told["noted"]]
    if told["code"] not in (0, 2, 3, 4):
        trouble.append(f"exit code {told['code']}")
    if "Traceback" in told["err"] or FAULT in told["err"]:
        trouble.append(told["err"][-500:])
    trouble += [f"{len(line)} characters: {line[:80]}" for line in told["err"].splitlines() if len(line) > 320]
    return trouble


def main() -> None:
    """Make the tries from the command line, in several processes; exits with 1 if one is bad."""
    parser = make_parser("Hostile run folders: nothing imported, nothing changed outside.", 2_000)
    given = parser.parse_args()
    if given.every:
        print(json.dumps(run(given.count, given.seed, every=given.every, first=given.first)))
        return
    started = time.monotonic()
    results, counts = side_by_side("tests.fuzz.folders", given)
    bad = sum(len(result["bad"]) for result in results)
    for ended, times in sorted(counts.items()):
        print(f"{times:6d}  {ended}")
    print(f"{sum(counts.values())} tries in {(time.monotonic() - started) / 60:.1f} minutes; bad: {bad}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
