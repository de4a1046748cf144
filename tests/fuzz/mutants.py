"""Thousands of altered folders: is each refused in one line, read as before, or said to be unsigned?

    python -m tests.fuzz.mutants --count 10000 --workers 2

Each mutant is one changed file of a small run folder: damaged, or changed and sealed again, as its owner may.
It is checked, attacked, judged and rendered in a process of its own. What must not be is counted:

silent
    Damage that gives other numbers without an error; or any change of a signed record that does.
unsaid
    A change that was sealed again, that gives other numbers, and of which nothing says that the record is not signed.
traceback, long
    An end in anything but one clear line of at most 300 characters.
hang, died
    No end within a minute; a process killed by the system.
"""

import io
import json
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from fedattack.base.errors import ReportError
from tests.fuzz import mutate
from tests.fuzz.sandbox import ANSWER, DIED, HANG, REFUSED, TRACEBACK, Outcome, in_child, make_parser, side_by_side
from tests.fuzz.worlds import WORLDS, World

SECONDS = 60.0
BAD = ("silent", "unsaid", "traceback", "long", "hang", "died")

# How often each is drawn; the attacks of some take seconds.
_WEIGHTS = {
    "source": 8,
    "signed": 3,
    "gradients": 2,
    "predictions": 1,
    "sums": 2,
    "attribute": 1,
    "group": 3,
    "pictures": 3,
}
_PARTS = (
    "record",
    "record",
    "record",
    "knowledge",
    "knowledge",
    "truth",
    "truth",
    "scores",
    "study",
    "findings",
    "toml",
    "targets",
)


def look(world: World, beside: Path, folder: Path, *, part: str) -> dict[str, Any]:
    """Do with a folder what a user does; returns the numbers, and whether it is said that nobody signed."""
    from fedattack.record import check_record
    from fedattack.record.folder import RunFolder
    from fedattack.report import read_findings, read_run, render_summary, write_report
    from fedattack.report.compare import compare_runs
    from fedattack.runs.asked import asked_of_knowledge, asked_of_study
    from tests.worlds.attacked import audit_folder

    if part == "findings":
        found = read_findings(folder)
        write_report(folder)
        Console(file=io.StringIO()).print(render_summary(found, read_run(folder)))
        # Two runs of one setting have nothing to be compared by, and are refused for that.
        with suppress(ReportError):
            compare_runs([folder, beside], folder / "compared")
        return {"numbers": _numbers(found), "said": _said(read_run(folder))}
    report = check_record(folder / "record")
    asked_of_knowledge(RunFolder(folder))
    asked_of_study(RunFolder(folder))
    if part in ("record", "knowledge"):
        world.attack(folder)
    found = audit_folder(folder, device="cpu")
    write_report(folder)
    said = _said(read_run(folder)) or bool(report.problems or report.notes)
    return {"numbers": _numbers(found), "said": said}


def _numbers(found: Any) -> list[Any]:
    return [[item.name, item.value, item.low, item.high, item.n, item.verdict] for item in found]


def _said(run: dict[str, Any]) -> bool:
    return any("is not signed" in note or "the run has not ended" in note for note in run.get("notes", ()))


def read_table(folder: Path) -> dict[str, Any]:
    """Load the data that a TOML file declares."""
    from fedattack.data import load_dataset

    data = load_dataset(str(folder / "table.toml"), seed=0, root=folder)
    return {"numbers": [data.x_train.shape[1], data.classes], "said": True}


def read_given(world: World, folder: Path) -> dict[str, Any]:
    """Attack with target records that the caller names."""
    from dataclasses import replace

    from fedattack.attacks import ATTACKS, read_knowledge, read_targets
    from fedattack.record import Record

    known = read_knowledge(folder / "knowledge")
    known = replace(known, targets=read_targets(folder / "targets.npz", known.model))
    scores = ATTACKS["sia"].run(Record(folder / "record"), known, device="cpu")
    return {"numbers": scores.arrays["decisions"].tolist(), "said": True}


def mutant(draw: random.Random, folder: Path, part: str, *, reseal: bool) -> str:
    """Change one thing in a part of the folder; returns what."""
    if part == "toml":
        (folder / "people.csv").write_text(mutate.table(draw))
        path = folder / "table.toml"
        path.write_text(mutate.TOML)
        if reseal:
            path.write_text(mutate.change_toml(draw, mutate.TOML))
            return "toml"
        return f"toml {mutate.damage(draw, path)}"
    if part == "targets":
        path = folder / "targets.npz"
        shutil.copyfile(folder / "knowledge" / "targets.npz", path)
        if reseal:
            mutate.change_npz(draw, path)
            return "targets"
        return f"targets {mutate.damage(draw, path)}"
    if part == "record" and reseal:
        return f"record {mutate.change_record(draw, folder / 'record')}"
    names = {"study": ["study.json"], "findings": ["findings.json", "run.json"]}.get(part)
    files = [folder / name for name in names] if names else sorted((folder / part).rglob("*"))
    path = draw.choice([path for path in files if path.is_file() and path.stat().st_size])
    name = str(path.relative_to(folder))
    if not reseal:
        return f"{name} {mutate.damage(draw, path)}"
    if path.suffix == ".npz":
        mutate.change_npz(draw, path)
    else:
        mutate.change_json(draw, path)
    return name


def judge(outcome: Outcome, before: Any, *, reseal: bool, signed: bool, free: bool) -> str:
    """Name what became of a mutant; ``free`` are inputs that nobody seals: other contents are another input."""
    if outcome.kind in (TRACEBACK, HANG, DIED):
        return outcome.kind
    if outcome.kind == REFUSED:
        return "long" if "\n" in outcome.told else "refused"
    if outcome.kind == ANSWER and outcome.told["numbers"] == before:
        return "same"
    if free:
        return "another input"
    numbers = outcome.told["numbers"]
    if numbers and all(item[-1] == "not applicable" for item in numbers if isinstance(item, list)):
        return "not judged"
    if signed or not reseal:
        return "silent"
    return "told" if outcome.told["said"] else "unsaid"


def run(
    count: int,
    seed: int,
    *,
    every: int = 1,
    first: int = 0,
    show: bool = False,
    worlds: Sequence[str] = tuple(_WEIGHTS),
) -> dict[str, Any]:
    """Try the mutants ``first``, ``first + every`` … of ``count``; returns how many ended how, and each that is bad."""
    import torch

    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    bad: list[dict[str, Any]] = []
    memory, slowest = 0, 0.0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        originals, before = {}, {}
        for name in worlds:
            world = WORLDS[name]
            originals[name] = world.build(Path(place) / name)
            before[name] = look(world, originals[name], originals[name], part="record")["numbers"]
        given = read_given_before(originals["source"])
        base = in_child(lambda: None, seconds=SECONDS).memory
        for number in range(first, count, every):
            draw = random.Random(f"{seed}/{number}")
            part, reseal = draw.choice(_PARTS), draw.random() < 0.5
            (name,) = draw.choices(worlds, [_WEIGHTS[world] for world in worlds])
            name = "source" if part in ("toml", "targets") else name
            folder = Path(place) / "mutant"
            shutil.copytree(originals[name], folder)
            what = mutant(draw, folder, part, reseal=reseal)
            world, expected = WORLDS[name], before[name]
            action = {"toml": read_table, "targets": partial(read_given, world)}.get(
                part, partial(look, world, originals[name], part=part)
            )
            expected = given if part == "targets" else expected
            outcome = in_child(partial(action, folder), seconds=SECONDS)
            free = part == "toml" or (part == "targets" and reseal)
            signed = name == "signed" and part == "record"
            ended = judge(outcome, expected, reseal=reseal, signed=signed, free=free)
            counts[f"{'sealed again' if reseal else 'damaged'}: {ended}"] += 1
            memory, slowest = max(memory, outcome.memory - base), max(slowest, outcome.seconds)
            reasons[_reason(outcome.told)] += ended == "refused" and reseal
            if ended in BAD:
                told = outcome.told if isinstance(outcome.told, str) else json.dumps(outcome.told)[:400]
                bad.append(
                    {"number": number, "world": name, "what": what, "reseal": reseal, "ended": ended, "told": told}
                )
                if show:
                    print(json.dumps({**bad[-1], "told": told[-600:]}), file=sys.stderr, flush=True)
            shutil.rmtree(folder)
            for link in Path(place).glob("elsewhere-*"):
                link.unlink()
    return {"counts": dict(counts), "bad": bad, "memory": memory, "slowest": slowest, "reasons": dict(reasons)}


def _reason(told: Any) -> str:
    """Shorten a refusal to what kind it is."""
    words = re.sub(r"/\S+|'[^']*'|\d+", "…", str(told))
    return words[:90]


def read_given_before(folder: Path) -> Any:
    """Give what the attack says of the targets as they are."""
    shutil.copyfile(folder / "knowledge" / "targets.npz", folder / "targets.npz")
    found = read_given(WORLDS["source"], folder)["numbers"]
    (folder / "targets.npz").unlink()
    return found


def main() -> None:
    """Try mutants from the command line, in several processes; exits with 1 if one is bad."""
    parser = make_parser("Altered run folders: refused, read as before, or said to be unsigned.", 10_000)
    parser.add_argument("--reasons", type=int, default=0, help="how many reasons of refusals to list")
    given = parser.parse_args()
    if given.every:
        print(json.dumps(run(given.count, given.seed, every=given.every, first=given.first, show=True)))
        return
    started = time.monotonic()
    results, counts = side_by_side("tests.fuzz.mutants", given)
    bad = [item for result in results for item in result["bad"]]
    for ended, times in sorted(counts.items()):
        print(f"{times:6d}  {ended}")
    for reason, times in sum((Counter(result["reasons"]) for result in results), Counter()).most_common(given.reasons):
        print(f"{times:6d}  refused: {reason}")
    print(
        f"{sum(counts.values())} mutants in {(time.monotonic() - started) / 60:.1f} minutes; the slowest took "
        f"{max(result['slowest'] for result in results):.1f} s; the most memory that one took beyond what its process "
        f"began with: {max(result['memory'] for result in results) / 1e6:.0f} MB; bad: {len(bad)}"
    )
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
