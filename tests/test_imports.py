"""Imports go one way: each room imports rooms before it alone, also in functions and for types."""

from pathlib import Path

import pytest

from tests.importing import circles_in, imported, imports_of, modules_of, modules_of_product, room_of

ROOT = Path(__file__).parents[1]
MODULES = modules_of_product(ROOT)

# A room may import those before it. Nothing of fedattack imports the reference app, which stands last.
ROOMS = (
    *("base", "record", "privacy", "data", "learning", "observe", "defences", "attacks", "audit", "claims", "report"),
    *("threats", "runs", "witness", "apps", "grids", "cli", "strategies", "simulations", "clients"),
)
APP = ("strategies", "simulations", "clients")

FORBIDDEN_PACKAGES = {
    "record": {"flwr", "torch", "ray"},
    "privacy": {"flwr", "ray", "torch"},
    "data": {"flwr", "ray"},
    "learning": {"flwr", "ray"},
    "attacks": {"flwr"},  # a Ray cluster may be given to compute on
    "audit": {"flwr", "ray"},
    "claims": {"ray", "torch"},
    "report": {"flwr", "ray", "torch"},
    "threats": {"flwr", "ray"},
    "witness": {"ray"},
}


@pytest.mark.parametrize(("module", "file"), MODULES.items(), ids=MODULES)
def test_a_room_imports_those_before_it(module, file):
    room = room_of(module)
    for name in imported(file):
        top = name.partition(".")[0]
        assert top != "tests", f"{file} imports {name}"
        assert top not in FORBIDDEN_PACKAGES.get(room, set()), f"{file} imports {name}"
        if top == "fedattack" or top in APP:
            assert ROOMS.index(room_of(name)) <= ROOMS.index(room), f"{file} imports {name}"


def test_attacks_see_neither_truth_nor_pages():
    """A threat's judge with what belongs to it, and its section, do; what declares the threat imports both."""
    seeing = {"judge", "case", "cells", "exchange", "blind", "confidence", "counterparts", "section", "tables"}
    # What stands in what clients send is found by whoever knows their examples.
    seeing |= {"contents", "counting", "groups", "items", "judged_values", "matching", "numbers_judge", "row_links"}
    seeing |= {"value_rows"}
    for module, file in MODULES.items():
        is_declaration = file.name == "__init__.py"
        if room_of(module) == "threats" and not is_declaration and module.rpartition(".")[2] not in seeing:
            for name in imported(file):
                assert not name.startswith(("fedattack.audit", "fedattack.report")), f"{file} imports {name}"
                if name.startswith("fedattack.threats."):
                    assert not seeing & {*name.split(".")}, f"{file} imports {name}"
        if module.endswith(".section"):
            assert not any(name.startswith("torch") for name in imported(file)), file


def test_the_reaper_runs_as_a_script_without_the_package():
    names = imported(ROOT / "fedattack" / "runs" / "reaper.py")
    assert not any(name.partition(".")[0] in ("fedattack", "flwr", "ray", "torch") for name in names)


def test_flower_is_imported_where_defences_meet_its_messages_alone():
    """A study of defences, in one process without Flower, should not pay a second for its import."""
    for file in (ROOT / "fedattack" / "defences").glob("*.py"):
        if file.stem not in ("mods", "wrapper"):
            assert not any(name.startswith("flwr") for name in imported(file)), file


def test_clients_and_strategies_know_nothing_of_attacks():
    for file in [*(ROOT / "clients").glob("*.py"), *(ROOT / "strategies").glob("*.py")]:
        assert not any(name.startswith(("fedattack.attacks", "fedattack.threats")) for name in imported(file)), file


def test_no_module_imports_itself_through_others():
    """Not even for types, or in a function."""
    graph = imports_of(MODULES, around=False)
    assert "fedattack.threats.tokens.tokens" in graph["fedattack.threats.tokens"]
    assert circles_in(graph) == []


def test_no_module_of_the_data_is_imported_by_a_package_around_it_that_it_imports():
    graph = imports_of(modules_of(ROOT / "fedattack" / "data", "fedattack.data"), "fedattack.data.sources")
    assert "fedattack.data.columns" in graph["fedattack.data.dataset"]
    assert "fedattack.data.sources.mnist" in graph["fedattack.data.sources"]
    assert circles_in(graph) == []


@pytest.mark.parametrize(
    "text",
    [
        "from p import a\n",
        "def f():\n    from p import a\n",
        "if TYPE_CHECKING:\n    from p import a\n",
        "importlib.import_module('p.a')\n",
    ],
)
def test_a_circle_is_noticed(tmp_path, text):
    (tmp_path / "__init__.py").write_text("from p.b import B\n")
    (tmp_path / "a.py").write_text("if TYPE_CHECKING:\n    from p.b import B\n")
    (tmp_path / "b.py").write_text("import p.c\n")
    (tmp_path / "c.py").write_text(text)
    modules = modules_of(tmp_path, "p")
    assert circles_in(imports_of(modules, around=False)) == [{"p.a", "p.b", "p.c"}]
    (tmp_path / "c.py").write_text("import numpy\n")
    assert circles_in(imports_of(modules)) == []
