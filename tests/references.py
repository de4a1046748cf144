"""References in docstrings to other names: which of these are gone."""

import ast
import builtins
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from tests.importing import PRODUCT

_ROLE = re.compile(r":(?:func|class|mod|data|meth|attr|exc):`~?([\w.]+)`")
_DOTTED = re.compile(rf"``((?:{'|'.join(PRODUCT)})(?:\.\w+)+)(?:\([^`]*\))?``")


def stale_references(modules: dict[str, Path]) -> list[str]:
    """Name the references of modules that lead to nothing, each with the file that has it."""
    trees = {module: ast.parse(file.read_text()) for module, file in modules.items()}
    names = {module: set(_names_in(tree)) for module, tree in trees.items()}
    stale = []
    for module, tree in trees.items():
        for text in _texts_in(tree):
            for name in (*_ROLE.findall(text), *_DOTTED.findall(text)):
                if not _leads_somewhere(name, module, names):
                    stale.append(f"{modules[module]}: {name}")
    return stale


def _leads_somewhere(name: str, module: str, names: dict[str, set[str]]) -> bool:
    """Whether a name stands in the module that refers to it, in one of the product, or in another library."""
    first, *rest = name.split(".")
    if first not in PRODUCT:
        if first in names[module]:
            return {*rest} <= set().union(*names.values())
        return find_spec(first) is not None if rest else hasattr(builtins, first)
    home = name
    while home and home not in names:
        home = home.rpartition(".")[0]
    further = name.removeprefix(home).split(".")[1:]
    # A package is a folder, of which the modules alone are listed.
    is_package = any(other.startswith(f"{name}.") for other in names)
    return is_package or (bool(home) and {*further} <= names[home])


def _texts_in(tree: ast.AST) -> Iterator[str]:
    """Every text that stands as a statement of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def _names_in(tree: ast.AST) -> Iterator[str]:
    """Every name that a module defines or imports, and every attribute and argument that it names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
