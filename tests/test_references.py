"""Docstrings refer to names that are there."""

from pathlib import Path

from tests.importing import modules_of, modules_of_product
from tests.references import stale_references

ROOT = Path(__file__).parents[1]


def test_docstrings_refer_to_names_that_are_there():
    assert stale_references(modules_of_product(ROOT)) == []


def test_a_reference_to_a_name_that_is_gone_is_noticed(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "tables.py").write_text("class Table:\n    def read(self): ...\n")
    good = ":func:`fedattack.data.tables.Table.read` :mod:`fedattack.data` :func:`here` :class:`torch.nn.Module`"
    gone = (":func:`fedattack.data.tables.gone`", ":func:`gone`", ":class:`tables.Table`", "``fedattack.data.gone``")
    (tmp_path / "own.py").write_text(f'def here():\n    """{good} {" ".join(gone)} :exc:`ValueError`"""\n')
    stale = stale_references(modules_of(tmp_path, "fedattack"))
    names = ("fedattack.data.tables.gone", "gone", "tables.Table", "fedattack.data.gone")
    assert stale == [f"{tmp_path / 'own.py'}: {name}" for name in names]
