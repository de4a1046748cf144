"""No module of fedattack/data imports itself by way of others, for types alone neither."""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import fedattack.data

PACKAGE = Path(fedattack.data.__file__).parent


def modules_of(folder: Path, name: str) -> dict[str, Path]:
    """Every module below a package by its full name."""
    modules = {}
    for file in folder.rglob("*.py"):
        parts = file.relative_to(folder).with_suffix("").parts
        modules[".".join([name, *parts]).removesuffix(".__init__")] = file
    return modules


def imported(file: Path) -> Iterator[str]:
    """What a file imports anywhere: at its top, in functions, and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imports_of(modules: dict[str, Path], registry: str = "") -> dict[str, set[str]]:
    """Each module's imports of the others; the registry imports all modules of its package."""
    graph: dict[str, set[str]] = {}
    for module, file in modules.items():
        names = set(imported(file))
        # An imported name is a module, or stands in one.
        graph[module] = {name if name in modules else name.rpartition(".")[0] for name in names} & set(modules)
    if registry:
        graph[registry] |= {module for module in modules if module.startswith(f"{registry}.")}
    return graph


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_by_way_of_others():
    graph = imports_of(modules_of(PACKAGE, "fedattack.data"), "fedattack.data.sources")
    assert "fedattack.data.columns" in graph["fedattack.data.dataset"]
    assert "fedattack.data.sources.mnist" in graph["fedattack.data.sources"]
    assert circle_in(graph) == []


def test_a_circle_by_an_import_for_types_or_in_a_function_is_noticed(tmp_path):
    (tmp_path / "__init__.py").write_text("from p.b import B\n")
    (tmp_path / "a.py").write_text("if TYPE_CHECKING:\n    from p.b import B\n")
    (tmp_path / "b.py").write_text("import p.c\n")
    (tmp_path / "c.py").write_text("def f():\n    from p import a\n")
    assert set(circle_in(imports_of(modules_of(tmp_path, "p")))) == {"p.a", "p.b", "p.c"}
    (tmp_path / "c.py").write_text("import numpy\n")
    assert circle_in(imports_of(modules_of(tmp_path, "p"))) == []
