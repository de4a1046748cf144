import sys

import pytest

from fedattack.learning.importing import Asked


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


def test_what_is_nowhere_is_said_to_be_nowhere():
    assert (
        Asked("model", "nothing_of_the_kind.task:make", "a folder")
        .describe()
        .endswith("nowhere: there is no such module")
    )
    assert "nowhere" in Asked("model", ":make", "a folder").describe()
