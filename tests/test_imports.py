"""Imports go one way, as the design says."""

from pathlib import Path

import pytest

from tests.importing import circle_in, imported, imports_of, modules_of

ROOT = Path(__file__).parents[1]

BASE = {"errors", "extra", "files", "machine", "structured", "untrusted", "version"}
# Layer → what it may import of ours.
ALLOWED = {
    "errors": set(),
    "files": {"errors"},
    "structured": set(),
    "returned": {"errors"},
    "untrusted": {"errors", "files"},
    "extra": set(),
    "machine": {"errors"},
    "version": set(),
    "cluster": {"errors", "extra", "version"},
    "nodes": BASE,
    "record": BASE,
    "observe": BASE | {"record"},
    "witness": BASE | {"claims", "learning", "returned"},
    "bridge": {"errors"},
    "data": BASE,
    "privacy": {"errors"},
    "learning": BASE | {"privacy", "returned"},
    "defences": BASE | {"learning", "privacy"},
    "claims": BASE | {"defences", "folder", "learning", "privacy", "record"},
    "threats": BASE | {"cluster", "nodes", "record", "returned", "data", "learning"},
    "judges": BASE | {"threats", "audit", "record", "learning"},
    "sections": {"audit", "report"},
    "folder": BASE | {"record"},
    "audit": BASE | {"folder", "nodes", "record", "data", "learning", "threats", "defences"},
    "report": BASE | {"audit", "claims", "privacy", "threats"},
    "runtime": BASE | {"nodes", "reaper", "record"},
    "reaper": set(),
    "runs": BASE
    | {"audit", "cluster", "data", "folder", "learning", "nodes", "record", "report", "runtime", "threats"},
    "foreign": BASE | {"audit", "folder", "learning", "record", "runs", "runtime", "threats", "witness"},
    "library": BASE | {"audit", "record", "report", "runs", "threats"},
    "reproduce": BASE | {"audit", "cluster", "data", "folder", "report", "runs", "threats"},
    "tradeoff": BASE | {"audit", "defences", "learning", "report", "reproduce", "runs", "threats"},
    "whatif": BASE | {"audit", "defences", "folder", "nodes", "record", "report", "runs", "threats"},
}
FORBIDDEN_PACKAGES = {
    "record": {"flwr", "torch", "ray"},
    "threats": {"flwr"},  # a Ray cluster may be given to compute on
    "judges": {"flwr", "ray"},
    "sections": {"flwr", "ray", "torch"},
    "learning": {"flwr", "ray"},
    "claims": {"ray", "torch"},
    "privacy": {"flwr", "ray", "torch"},
    "audit": {"flwr", "ray"},
    "report": {"flwr", "ray", "torch"},
    "reaper": {"flwr", "ray", "torch"},
    "witness": {"ray"},
}


def modules() -> list[tuple[str, Path]]:
    files = sorted((ROOT / "fedattack").rglob("*.py"))
    found = []
    for file in files:
        parts = file.relative_to(ROOT / "fedattack").with_suffix("").parts
        if parts[0] not in ("__init__", "__main__", "cli", "_app"):
            found.append((layer_of(parts), file))
    return found


def layer_of(parts: tuple[str, ...]) -> str:
    """A threat's judge, its tests by exchange, and its section see what its attacks must not: truth, and report."""
    if parts[0] == "threats" and len(parts) == 3:
        return {"judge": "judges", "exchange": "judges", "section": "sections"}.get(parts[2], "threats")
    # It runs as a script, without the package.
    return "reaper" if parts == ("runtime", "reaper") else parts[0]


@pytest.mark.parametrize(("layer", "file"), modules(), ids=lambda value: getattr(value, "stem", value))
def test_a_layer_imports_only_what_lies_below_it(layer, file):
    for name in imported(file):
        top, _, rest = name.partition(".")
        assert top not in FORBIDDEN_PACKAGES.get(layer, set()), f"{file} imports {name}"
        assert top not in ("clients", "strategies", "simulations", "tests"), f"{file} imports {name}"
        if top == "fedattack" and rest.split(".")[0] not in ("",):
            below = rest.split(".")[0]
            assert below == layer or below in ALLOWED[layer], f"{file} imports {name}"
            if layer == "threats":
                assert not name.endswith((".judge", ".exchange", ".section")), f"{file} imports {name}"


def test_flower_is_imported_where_defences_meet_its_messages_alone():
    """A study of defences, in one process without Flower, should not pay a second for its import."""
    for file in (ROOT / "fedattack" / "defences").glob("*.py"):
        if file.stem not in ("mods", "wrapper"):
            assert not any(name.startswith("flwr") for name in imported(file)), file


def test_clients_and_strategies_know_nothing_of_attacks():
    for file in [*(ROOT / "clients").glob("*.py"), *(ROOT / "strategies").glob("*.py")]:
        assert not any(name.startswith("fedattack.threats") for name in imported(file)), file


def test_no_module_imports_itself_through_others():
    """Not even for types: imports inside of functions are the only ones that are left out."""
    ours = {file for _, file in modules()}
    all_modules = modules_of(ROOT / "fedattack", "fedattack")
    known = {name: file for name, file in all_modules.items() if file in ours}
    graph = imports_of(known, strict=False)
    assert "fedattack.threats.registry" in graph["fedattack.threats.attacks"]
    assert circle_in(graph) == []


def test_no_module_of_the_data_imports_itself_in_a_function_either():
    graph = imports_of(modules_of(ROOT / "fedattack" / "data", "fedattack.data"), "fedattack.data.sources")
    assert "fedattack.data.columns" in graph["fedattack.data.dataset"]
    assert "fedattack.data.sources.mnist" in graph["fedattack.data.sources"]
    assert circle_in(graph) == []


def test_a_circle_by_an_import_for_types_or_in_a_function_is_noticed(tmp_path):
    (tmp_path / "__init__.py").write_text("from p.b import B\n")
    (tmp_path / "a.py").write_text("if TYPE_CHECKING:\n    from p.b import B\n")
    (tmp_path / "b.py").write_text("import p.c\n")
    (tmp_path / "c.py").write_text("def f():\n    from p import a\n")
    modules = modules_of(tmp_path, "p")
    assert set(circle_in(imports_of(modules))) == {"p.a", "p.b", "p.c"}
    assert circle_in(imports_of(modules, strict=False)) == []
    (tmp_path / "c.py").write_text("from p import a\n")
    assert set(circle_in(imports_of(modules, strict=False))) == {"p.a", "p.b", "p.c"}
    (tmp_path / "c.py").write_text("import numpy\n")
    assert circle_in(imports_of(modules)) == []
