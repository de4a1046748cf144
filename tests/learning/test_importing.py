import sys

import pytest

from fedattack.learning.importing import Asked, import_callable


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that fails if it is imported."""
    folder = tmp_path / "careful"
    (folder / "inner").mkdir(parents=True)
    for path in (folder / "__init__.py", folder / "task.py", folder / "inner" / "__init__.py"):
        path.write_text("raise AssertionError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("careful:make", "__init__.py"),
        ("careful.task:make", "task.py"),
        ("careful.inner:make", "inner/__init__.py"),
        ("careful.absent:make", "__init__.py"),
        ("careful.task.deeper:make", "task.py"),
    ],
)
def test_the_file_is_named_from_which_code_would_come_and_nothing_is_imported(package, spec, expected):
    told = Asked("model", spec, "a folder").describe()
    assert told == f"imports {spec} (model) from {package / expected}"
    assert "careful" not in sys.modules


def test_code_of_an_app_that_this_machine_knows_is_found_there_and_imported_once_it_is_trusted(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "only_in_an_app.py").write_text("def make():\n    return 7\n")
    asked = Asked("model", "only_in_an_app:make", "a folder", str(tmp_path))
    assert asked.describe() == f"imports only_in_an_app:make (model) from {tmp_path / 'only_in_an_app.py'}"
    assert str(tmp_path) not in sys.path
    before = list(sys.path)
    assert import_callable(asked.follow(), what="model", known=())() == 7
    # An app's modules hide no others.
    assert sys.path[: len(before) + 1] == [*before, str(tmp_path)]


def test_what_is_nowhere_is_said_to_be_nowhere():
    assert (
        Asked("model", "nothing_of_the_kind.task:make", "a folder")
        .describe()
        .endswith("nowhere: there is no such module")
    )
    assert "nowhere" in Asked("model", ":make", "a folder").describe()
