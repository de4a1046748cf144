"""What runs in the copy of a folder finds what it reads, and leaves the folder as it is."""

import os

from fedattack.apps import place
from fedattack.apps.place import copy_files


def test_small_files_are_copied_and_large_ones_linked(tmp_path, monkeypatch):
    monkeypatch.setattr(place, "LARGE", 100)
    monkeypatch.setattr(place, "MANY", 5)
    own = tmp_path / "app"
    for folder in ("__pycache__", "data/sub", "images", ".git", "venv", "old-run", "runs/new"):
        (own / folder).mkdir(parents=True)
    files = {"model.pt": "weights", "data/sub/train.csv": "1,2", "data/large.csv": "9" * 200, ".git/HEAD": "ref"}
    files |= {f"images/{number}.txt": "x" for number in range(6)}
    files |= {"venv/pyvenv.cfg": "", "old-run/study.json": "{}", "runs/new/flower.log": ""}
    for name, text in files.items():
        (own / name).write_text(text)
    (own / "link").symlink_to("data/sub")
    copy = tmp_path / "copy"
    copy_files(own, copy, without=own / "runs" / "new")
    there = {str(path.relative_to(copy)): path.is_symlink() for path in copy.rglob("*")}
    copied = {"data", "data/sub", "data/sub/train.csv", "model.pt", "runs"}
    linked = {".git", "data/large.csv", "images", "link", "old-run", "venv"}
    assert there == dict.fromkeys(copied, False) | dict.fromkeys(linked, True)
    assert (copy / "link" / "train.csv").read_text() == "1,2"
    assert (copy / "images" / "3.txt").read_text() == "x"
    (copy / "model.pt").write_text("other weights")
    (copy / "data" / "sub" / "checkpoint.pt").write_text("new")
    assert (own / "model.pt").read_text() == "weights"
    assert not (own / "data" / "sub" / "checkpoint.pt").exists()


def test_what_is_copied_is_bounded_in_all(tmp_path, monkeypatch):
    monkeypatch.setattr(place, "BYTES", 10)
    monkeypatch.setattr(place, "ENTRIES", 5)
    own = tmp_path / "app"
    for folder in ("a", "b"):
        (own / folder).mkdir(parents=True)
        for number in range(3):
            (own / folder / f"{number}.txt").write_text("four")
    copy_files(own, tmp_path / "copy", without=tmp_path / "nothing")
    linked = {str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*") if path.is_symlink()}
    assert linked == {"a/2.txt", "b/0.txt", "b/1.txt", "b/2.txt"}


def test_links_that_lead_nowhere_and_pipes_cost_nothing(tmp_path):
    own = tmp_path / "app"
    own.mkdir()
    (own / "loop").symlink_to("loop")
    (own / "gone").symlink_to("nothing")
    os.mkfifo(own / "pipe")
    copy_files(own, tmp_path / "copy", without=tmp_path / "nothing")
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {"loop", "gone"}
