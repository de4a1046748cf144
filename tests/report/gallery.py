"""Take pictures of every kind of page, to look at and to compare by eye.

``python -m tests.report.gallery FOLDER`` makes the pages of :mod:`tests.report.pages`. It takes pictures of each, light
and dark and at three widths, and prints it. ``FOLDER/index.html`` shows all, with the number of pages on paper.

- Run folders after ``FOLDER``, or pages, are shown in place of these. The page of a run is written anew.
- ``--only KIND`` shows one kind; it may be given several times.
- ``--before OLD`` takes another gallery, made before a change, and puts its pictures beside these.
"""

import argparse
import html
import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedattack.report import write_report
from tests.report.chromium import count_pages, print_page, shoot, start_chromium
from tests.report.pages import KINDS

WIDTHS = (1400, 1000, 390)
SCHEMES = ("light", "dark")
COUNTS = "on-paper.json"

STYLE = """
:root { color-scheme: light dark; }
body { font: 1rem/1.5 sans-serif; margin: 2rem; }
.shots { display: flex; flex-wrap: wrap; gap: 1rem; align-items: start; }
figure { margin: 0; }
img { border: 1px solid gray; max-width: min(45vw, 44rem); display: block; }
"""


def pages_of(names: Iterable[str], folder: Path) -> dict[str, Path]:
    """Make pages of these kinds."""
    pages = {}
    for name in names:
        print(f"making {name}", flush=True)
        place = folder / name
        place.mkdir()
        pages[name] = KINDS[name](place)
    return pages


def pages_from(paths: Iterable[Path], folder: Path) -> dict[str, Path]:
    """Copy pages, and write those of runs anew from their findings."""
    pages = {}
    for path in paths:
        place = folder / path.stem
        place.mkdir()
        if path.is_dir():
            for name in ("findings.json", "run.json"):
                shutil.copy(path / name, place)
            pages[path.stem] = write_report(place)
        else:
            pages[path.stem] = Path(shutil.copy(path, place))
    return pages


def take(pages: Mapping[str, Path], out: Path) -> dict[str, int]:
    """Take all pictures and print all pages; returns on how many sheets each page is."""
    counts = {}
    with tempfile.TemporaryDirectory() as profile:
        browser = start_chromium(Path(profile))
        try:
            for name, page in pages.items():
                for scheme in SCHEMES:
                    for width in WIDTHS:
                        shoot(browser, page, out / f"{name}-{scheme}-{width}.png", width=width, scheme=scheme)
                printed = print_page(browser, page)
                (out / f"{name}.pdf").write_bytes(printed)
                counts[name] = count_pages(printed)
                print(f"{name}: {counts[name]} pages on paper", flush=True)
        finally:
            browser.quit()
    return counts


def overview(pages: Mapping[str, Path], counts: Mapping[str, int], out: Path, before: Path | None) -> str:
    """Write a page that shows all pictures, beside the old ones if there are any."""
    old_counts = json.loads((before / COUNTS).read_text()) if before else {}
    parts = [f"<!DOCTYPE html><html lang='en'><meta charset='utf-8'><title>Gallery</title><style>{STYLE}</style>"]
    for name, page in pages.items():
        was = f", was {old_counts[name]}" if name in old_counts else ""
        parts.append(f"<h2><a href='{page.absolute().as_uri()}'>{html.escape(name)}</a></h2>")
        parts.append(f"<p><a href='{name}.pdf'>On paper</a>: {counts[name]} pages{was}</p><div class='shots'>")
        for scheme in SCHEMES:
            for width in WIDTHS:
                picture = out / f"{name}-{scheme}-{width}.png"
                parts += _shown(picture, f"{name}, {scheme}, {width} px", before)
        parts.append("</div>")
    return "\n".join(parts)


def _shown(picture: Path, words: str, before: Path | None) -> list[str]:
    old = before / picture.name if before else None
    if old is None or not old.exists():
        return [_figure(picture, words)]
    if old.read_bytes() == picture.read_bytes():
        return [f"<p>{html.escape(words)}: as before</p>"]
    return [_figure(old, f"{words}, before"), _figure(picture, f"{words}, now")]


def _figure(picture: Path, words: str) -> str:
    place = picture.absolute().as_uri()
    image = f"<a href='{place}'><img src='{place}' alt='{html.escape(words)}' loading='lazy'></a>"
    return f"<figure><figcaption>{html.escape(words)}</figcaption>{image}</figure>"


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="new folder of the pictures")
    parser.add_argument("shown", type=Path, nargs="*", metavar="RUN", help="run folder or page, in place of all kinds")
    parser.add_argument("--only", action="append", choices=KINDS, help="show this kind alone; repeatable")
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="gallery to put beside this one")
    given = parser.parse_args()
    made = given.folder / "pages"
    made.mkdir(parents=True)
    pages = pages_from(given.shown, made) if given.shown else pages_of(given.only or KINDS, made)
    counts = take(pages, given.folder)
    (given.folder / COUNTS).write_text(json.dumps(counts, indent=2))
    index = given.folder / "index.html"
    index.write_text(overview(pages, counts, given.folder, given.before))
    print(index.absolute().as_uri())


if __name__ == "__main__":
    main()
