"""Run the app of this folder in all ways by ``flwr run``, and ask of each whether its claim is true.

``python -m tests.claims.apps OUT [NAME…]`` writes ``OUT/NAME/run`` for each: record, claim, answer and page.
"""

import argparse
import re
from pathlib import Path

from tests.apps.projects import fedattack
from tests.claims.apps.cases import CASES, Case


def check(case: Case, folder: Path, where: Path, *options: str) -> str:
    """Ask the command, as an owner would in the app's folder; returns what it prints."""
    run = folder / "run"
    words = ("claim", str(run), "--claim", str(run / "claim.toml"), "--mechanism", f"clinics.privacy:{case.mechanism}")
    return fedattack(*words, *case.options, *options, cwd=where).stdout


def said(folder: Path) -> list[str]:
    """Return what the app prints about itself: how good its model is, and what it says was spent."""
    lines = (folder / "flower.log").read_text().splitlines()
    found = [re.search(r"(Final accuracy|Spent): [\d.]+", line) for line in lines]
    return [match.group() for match in found if match is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="a new folder")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CASES)}; all if there is none", metavar="NAME")
    chosen = parser.parse_args()
    for name in chosen.names or CASES:
        case, folder = CASES[name], chosen.out.absolute() / name
        folder.mkdir(parents=True)
        where = case.observe(folder)
        print(f"## {name}: {case.about}", *said(folder), check(case, folder, where), sep="\n", flush=True)


if __name__ == "__main__":
    main()
