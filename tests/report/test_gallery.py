import json
import sys

import pytest

from fedattack.report import write_report
from tests.report import gallery

pytestmark = pytest.mark.browser


def show(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["gallery", *map(str, words)])
    gallery.main()


@pytest.mark.slow
def test_pictures_of_a_run_stand_beside_those_from_before(browser, folder, tmp_path, monkeypatch):
    write_report(folder)
    run = tmp_path / "mine"
    run.mkdir()
    for name in ("findings.json", "run.json"):
        (run / name).write_bytes((folder / name).read_bytes())
    show(monkeypatch, tmp_path / "old", run)
    looks = {f"mine-{scheme}-{width}.png" for scheme in ("light", "dark") for width in (1400, 1000, 390)}
    assert looks | {"mine.pdf", "on-paper.json", "index.html", "pages"} == {
        path.name for path in (tmp_path / "old").iterdir()
    }
    assert 0 < json.loads((tmp_path / "old" / "on-paper.json").read_text())["mine"] <= 6
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(facts | {"title": "Another title"}))
    show(monkeypatch, tmp_path / "new", run, "--before", tmp_path / "old")
    index = (tmp_path / "new" / "index.html").read_text()
    assert index.count("<img") == 2 * len(looks)
    show(monkeypatch, tmp_path / "same", run, "--before", tmp_path / "new")
    assert (tmp_path / "same" / "index.html").read_text().count(": as before") == len(looks)
