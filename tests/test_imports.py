"""Imports go one way, as the design says."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

BASE = {"errors", "files", "untrusted"}
# Layer → what it may import of ours.
ALLOWED = {
    "errors": set(),
    "files": {"errors"},
    "untrusted": {"errors", "files"},
    "nodes": BASE,
    "record": BASE,
    "observe": BASE | {"record"},
    "bridge": {"errors"},
    "data": BASE,
    "learning": BASE,
    "defences": BASE | {"learning"},
    "threats": BASE | {"nodes", "record", "data", "learning"},
    "judges": BASE | {"threats", "audit", "record", "learning"},
    "sections": {"audit", "report"},
    "attacks": {"threats"},
    "folder": BASE | {"record"},
    "audit": BASE | {"folder", "nodes", "record", "data", "learning", "threats", "defences"},
    "report": BASE | {"audit", "threats"},
    "runtime": BASE | {"nodes", "reaper", "record"},
    "reaper": set(),
    "runs": BASE | {"audit", "folder", "learning", "nodes", "record", "report", "runtime", "threats"},
    "library": BASE | {"audit", "record", "report", "runs", "threats"},
    "reproduce": BASE | {"audit", "data", "folder", "report", "runs", "threats"},
    "tradeoff": BASE | {"audit", "defences", "learning", "report", "reproduce", "runs", "threats"},
}
FORBIDDEN_PACKAGES = {
    "record": {"flwr", "torch", "ray"},
    "threats": {"flwr"},  # a Ray cluster may be given to compute on
    "judges": {"flwr", "ray"},
    "sections": {"flwr", "ray", "torch"},
    "learning": {"flwr", "ray"},
    "audit": {"flwr", "ray"},
    "report": {"flwr", "ray", "torch"},
    "reaper": {"flwr", "ray", "torch"},
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
    """A threat's judge and section see what its attacks must not: the truth, and the report."""
    if parts[0] == "threats" and len(parts) == 3:
        return {"judge": "judges", "section": "sections"}.get(parts[2], "threats")
    # It runs as a script, without the package.
    return "reaper" if parts == ("runtime", "reaper") else parts[0]


def imports(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize(("layer", "file"), modules(), ids=lambda value: getattr(value, "stem", value))
def test_a_layer_imports_only_what_lies_below_it(layer, file):
    for name in imports(file):
        top, _, rest = name.partition(".")
        assert top not in FORBIDDEN_PACKAGES.get(layer, set()), f"{file} imports {name}"
        assert top not in ("clients", "strategies", "simulations", "tests"), f"{file} imports {name}"
        if top == "fedattack" and rest.split(".")[0] not in ("", "__version__"):
            below = rest.split(".")[0]
            assert below == layer or below in ALLOWED[layer], f"{file} imports {name}"
            if layer == "threats":
                assert not name.endswith((".judge", ".section")), f"{file} imports {name}"


def test_flower_is_imported_where_defences_meet_its_messages_alone():
    """A study of defences, in one process without Flower, should not pay a second for its import."""
    for file in (ROOT / "fedattack" / "defences").glob("*.py"):
        if file.stem not in ("mods", "wrapper"):
            assert not any(name.startswith("flwr") for name in imports(file)), file


def test_clients_and_strategies_know_nothing_of_attacks():
    for file in [*(ROOT / "clients").glob("*.py"), *(ROOT / "strategies").glob("*.py")]:
        assert not any(name.startswith("fedattack.threats") for name in imports(file)), file


def test_no_module_imports_itself_through_others():
    """Not even for types: imports inside of functions are the only ones that are left out."""
    graph = {module_name(file): top_level_imports(file) for _, file in modules()}
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " → ".join((*path[path.index(name) :], name))
        if name not in done:
            for other in sorted(graph[name] & graph.keys()):
                walk(other, (*path, name))
            done.add(name)

    for name in graph:
        walk(name, ())


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def top_level_imports(file: Path) -> set[str]:
    """Names of modules, or of what is imported from one; those of the packages around a module are left out."""
    found = set()
    nodes = list(ast.parse(file.read_text()).body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If | ast.Try):
            nodes += node.body
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    own = module_name(file)
    return {name for name in found if not own.startswith(f"{name}.")}
