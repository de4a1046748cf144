"""What a redesign must not change: small runs of the presets, kept before it and compared after it.

``python -m tests.oracle keep DIR`` runs the presets with the code that is there. ``python -m tests.oracle compare DIR``
prepares, attacks and judges them again with the code that is there then, on the records that were kept, and names every
file that differs. Versions, times and the commands' words are left out of the comparison.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SMALL = ("rounds=3", "clients=4")
RUNS = {
    "quickstart": ("local-epochs=2",),
    "sia-fedavg": ("targets=20",),
    "sia-fedsgd": ("targets=20",),
    "sia-fedmd": ("targets=20", "local-epochs=1", "public-records=50"),
    "prolin-membership": ("clients=10", "fraction=0.5", "secagg=false", "rounds=6"),
    "prolin-inversion": ("clients=10", "fraction=0.5", "secagg=false", "rounds=6"),
    "prolin-ascent": ("clients=10", "fraction=0.5", "secagg=false", "positives=0", "rounds=6"),
    "aia-model": ("rounds=8",),
    "ara-cos": ("clients=2", "records-per-client=20"),
    "inversion": ("defence=dp-gaussian", "defence-strength=0.001", "defence-clip=1"),
    "private-attribute": ("clients=8", "defence=sparsify", "defence-strength=0.5"),
}
"""Presets, and how their runs are made small."""

OPTIONS = {
    "inversion": ("iterations=20",),
    "private-attribute": ("clients=40", "epochs=3"),
    "ara-cos": ("steps=10",),
    "aia-model": ("steps=10",),
}
SEEDS = "2"
LEFT_OUT = {"started", "finished", "commands", "fedattack", "findings_sha256", "check"}
"""Keys that differ from run to run."""


def keep(folder: Path) -> None:
    """Run all presets into ``folder``."""
    for preset, changes in RUNS.items():
        words = ["audit", preset, "--out", str(folder / preset), "--seeds", SEEDS, "--device", "cpu"]
        for change in (*SMALL, *changes):
            words += ["--set", change]
        for option in OPTIONS.get(preset, ()):
            words += ["--option", option]
        run(words)


def compare(folder: Path) -> int:
    """Print what differs now; returns how many files do."""
    differing = 0
    for preset in RUNS:
        if not (folder / preset).is_dir():
            continue
        with tempfile.TemporaryDirectory() as scratch:
            again = Path(scratch) / preset
            shutil.copytree(folder / preset, again)
            judge_again(again, preset)
            prepare_again(again)
            for difference in differences(folder / preset, again):
                differing += 1
                print(f"{preset}: {difference}")
    print(f"{differing} differences")
    return differing


def judge_again(folder: Path, preset: str) -> None:
    """Attack and judge the record of a copy of a run folder."""
    study = json.loads((folder / "study.json").read_text())
    shutil.rmtree(folder / "scores")
    for attack in study["attacks"]:
        known = json.loads(captured(["list", "--json"]))["attacks"][attack]["options"]
        words = ["attack", attack, str(folder), "--device", "cpu"]
        for option in study["options"].items():
            if option[0] in known:
                words += ["--option", "=".join(option)]
        run(words)
    run(["report", str(folder), "--device", "cpu"])


def prepare_again(folder: Path) -> None:
    """Write knowledge and truth of a copy of a run folder again; what clients noted there is kept."""
    from fedattack.folder import new_parts
    from fedattack.runs.app import prepare

    study = json.loads((folder / "study.json").read_text())
    configs = []
    for seed, part in zip(study["seeds"], new_parts(folder, study["seeds"]), strict=True):
        places = {name: str(getattr(part, name)) for name in ("zoo", "record", "truth", "knowledge")}
        configs.append({**study["settings"], "seed": seed, "dealt": "", **places})
    prepare(configs)


def differences(before: Path, after: Path) -> Iterator[str]:
    """Name the files of two run folders that differ."""
    for where in ("findings.json", "run.json", "knowledge", "truth", "scores"):
        roots = before / where, after / where
        if roots[0].is_file():
            one, two = (json.loads(root.read_text()) for root in roots)
            yield from (f"{where}: {path}" for path in unlike(one, two))
            continue
        names = [{str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()} for root in roots]
        for name in sorted(names[0] | names[1]):
            files = [root / name for root in roots]
            if not all(file.exists() for file in files) or files[0].read_bytes() != files[1].read_bytes():
                yield f"{where}/{name}"


def unlike(one: Any, two: Any, path: str = "$") -> Iterator[str]:
    """Name the places at which two JSON values differ."""
    if isinstance(one, dict) and isinstance(two, dict):
        for key in sorted({*one, *two} - LEFT_OUT):
            yield from unlike(one.get(key), two.get(key), f"{path}.{key}")
    elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        for index, pair in enumerate(zip(one, two, strict=True)):
            yield from unlike(*pair, f"{path}[{index}]")
    elif one != two:
        yield f"{path}: {str(one)[:60]} / {str(two)[:60]}"


def run(words: list[str]) -> None:
    """Run the command."""
    subprocess.run([sys.executable, "-m", "fedattack", *words], check=True, stdout=subprocess.DEVNULL)


def captured(words: list[str]) -> str:
    """Run the command; returns what it prints."""
    return subprocess.run(
        [sys.executable, "-m", "fedattack", *words], check=True, capture_output=True, text=True
    ).stdout


def main() -> None:
    """Keep or compare, from the command line."""
    parser = argparse.ArgumentParser(description="Small runs of the presets, before and after a redesign.")
    parser.add_argument("what", choices=("keep", "compare"))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    if given.what == "keep":
        keep(given.folder)
    else:
        sys.exit(1 if compare(given.folder) else 0)


if __name__ == "__main__":
    main()
