"""Which module imports which, read from the files."""

import ast
from functools import cache
from pathlib import Path

Graph = dict[str, set[str]]

PRODUCT = ("fedattack", "clients", "strategies", "simulations")


def modules_of(folder: Path, name: str) -> dict[str, Path]:
    """Every module below a package by its full name."""
    modules = {}
    for file in sorted(folder.rglob("*.py")):
        parts = file.relative_to(folder).with_suffix("").parts
        modules[".".join([name, *parts]).removesuffix(".__init__")] = file
    return modules


def modules_of_product(root: Path) -> dict[str, Path]:
    """Every module of the package and of the reference app, by its full name.

    The package itself is left out: it leads to the library and the command.
    """
    modules: dict[str, Path] = {}
    for name in PRODUCT:
        modules |= modules_of(root / name, name)
    return {name: file for name, file in modules.items() if name not in ("fedattack", "fedattack.__main__")}


def imported(file: Path) -> frozenset[str]:
    """What a file imports: at its top, for types, in functions, and by ``import_module`` of a name that it spells."""
    return _imported_by(file.read_text())


@cache
def _imported_by(text: str) -> frozenset[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import of {node.module}"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names |= {str(argument.value) for argument in node.args[:1] if isinstance(argument, ast.Constant)}
    return frozenset(names)


def imports_of(modules: dict[str, Path], registry: str = "", *, around: bool = True) -> Graph:
    """Each module's imports of the others; the registry imports all modules of its package.

    Python imports the packages around a module before it: these count if `around`.
    """
    graph: Graph = {}
    for module, file in modules.items():
        found: set[str] = set()
        for name in imported(file):
            package = name.rpartition(".")[0]
            # An imported name is a module, whose package is imported before it, or stands in one.
            if name in modules:
                found.add(name)
            if name not in modules or not module.startswith(f"{package}."):
                found.add(package)
        if not around:
            found = {name for name in found if not module.startswith(f"{name}.")}
        graph[module] = found & modules.keys()
    if registry:
        graph[registry] |= {module for module in modules if module.startswith(f"{registry}.")}
    return graph


def circles_in(graph: Graph) -> list[set[str]]:
    """Groups of modules of which each leads to each other one of its group by imports."""
    reached = {module: _reach(graph, module) for module in graph}
    circles: list[set[str]] = []
    for module, others in reached.items():
        circle = {other for other in others if module in reached[other]}
        if circle and circle not in circles:
            circles.append(circle)
    return circles


def _reach(graph: Graph, module: str) -> set[str]:
    """Every module that one imports, by others too."""
    reached: set[str] = set()
    waiting = [module]
    while waiting:
        new = graph[waiting.pop()] - reached
        reached |= new
        waiting += new
    return reached


def room_of(module: str) -> str:
    """The folder of the house that a module, or a name in one, stands in."""
    top, _, rest = module.partition(".")
    return rest.partition(".")[0] if top == "fedattack" else top


def room_graph(modules: dict[str, Path]) -> Graph:
    """Each room's imports of others, in functions and for types too; also of rooms that import nothing."""
    tops = {module.partition(".")[0] for module in modules}
    graph: Graph = {room_of(module): set() for module in modules}
    for module, file in modules.items():
        room = room_of(module)
        graph[room] |= {room_of(name) for name in imported(file) if name.partition(".")[0] in tops} - {room}
    return graph
