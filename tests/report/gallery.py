"""Take pictures of every kind of page, to look at.

``python -m tests.report.gallery FOLDER`` makes the pages of :mod:`tests.report.pages`, and takes pictures of each,
light and dark and at three widths. Run folders after ``FOLDER`` are shown in place of these, their pages written anew.
``--only KIND`` shows one kind; it may be given several times.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

from fedattack.report import write_report
from tests.report.chromium import shoot, start_chromium
from tests.report.pages import KINDS

WIDTHS = (1400, 1000, 390)
SCHEMES = ("light", "dark")


def write_run_page(run: Path, place: Path) -> Path:
    """Write the page of a run anew from its findings, elsewhere."""
    for name in ("findings.json", "run.json"):
        shutil.copy(run / name, place)
    return write_report(place)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="new folder of the pictures")
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN", help="run folder, in place of all kinds")
    parser.add_argument("--only", action="append", choices=KINDS, help="show this kind alone; repeatable")
    given = parser.parse_args()
    makers = {name: KINDS[name] for name in given.only or KINDS}
    if given.runs:
        makers = {run.name: lambda place, run=run: write_run_page(run, place) for run in given.runs}
    with tempfile.TemporaryDirectory() as profile:
        browser = start_chromium(Path(profile))
        try:
            for name, make in makers.items():
                place = given.folder / "pages" / name
                place.mkdir(parents=True)
                page = make(place)
                for scheme in SCHEMES:
                    for width in WIDTHS:
                        shoot(browser, page, given.folder / f"{name}-{scheme}-{width}.png", width=width, scheme=scheme)
                print(page.absolute().as_uri(), flush=True)
        finally:
            browser.quit()


if __name__ == "__main__":
    main()
