"""How the product's code is shaped: ``python -m tests.shape [FOLDER …]`` prints a row for each package, and the house.

Comprehensions and conditional expressions are counted for each 1,000 lines of code, without blank lines, comments and
docstrings. Complexity is McCabe's as radon counts it: one for a function, and one more for each branch, loop, handler,
comprehension, condition in a comprehension, and further operand of ``and`` or ``or``.
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from tests.importing import PRODUCT, arrows_of, modules_of_product, room_of

ROOT = Path(__file__).parents[1]
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
BRANCHES = (ast.If, ast.IfExp, ast.For, ast.While, ast.ExceptHandler, ast.Assert, ast.match_case)


@dataclass
class Shape:
    """Counts over some files."""

    lines: int = 0
    code: int = 0
    comprehensions: int = 0
    nested: int = 0
    conditionals: int = 0
    nested_conditionals: int = 0
    complexities: list[tuple[int, str]] = field(default_factory=list)

    def add(self, file: Path) -> None:
        """Count a file in."""
        text = file.read_text()
        tree = ast.parse(text)
        self.lines += text.count("\n")
        self.code += len(code_lines(text, tree))
        for node in ast.walk(tree):
            if isinstance(node, COMPREHENSIONS):
                self.comprehensions += 1
                self.nested += holds(node, COMPREHENSIONS)
            elif isinstance(node, ast.IfExp):
                self.conditionals += 1
                self.nested_conditionals += holds(node, (ast.IfExp,))
            elif isinstance(node, ast.FunctionDef):
                self.complexities.append((complexity(node), f"{file.relative_to(ROOT)}:{node.name}"))

    def row(self) -> str:
        """Return the counts as text."""
        worst = max(self.complexities, default=(0, ""))
        thousand = max(self.code, 1) / 1000
        average = fmean([each for each, _ in self.complexities] or [0])
        return (
            f"{self.lines:6d} lines, {self.code:5d} of code; {self.comprehensions / thousand:5.1f} comprehensions, "
            f"{self.nested / thousand:4.1f} nested; {self.conditionals / thousand:4.1f} conditional expressions, "
            f"{self.nested_conditionals:2d} nested; complexity {average:4.2f} on average, {worst[0]} in {worst[1]}"
        )


def code_lines(text: str, tree: ast.AST) -> set[int]:
    """Return the numbers of the lines that are neither blank, nor comments, nor docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return lines


def holds(node: ast.AST, kinds: tuple[type[ast.AST], ...]) -> bool:
    """Say whether there is another node of these kinds inside of one."""
    return any(isinstance(inner, kinds) for inner in ast.walk(node) if inner is not node)


def complexity(function: ast.FunctionDef) -> int:
    """Count the ways through a function; functions inside of it count for themselves."""
    total = 1
    nodes: list[ast.AST] = list(ast.iter_child_nodes(function))
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.FunctionDef):
            continue
        total += isinstance(node, BRANCHES)
        if isinstance(node, ast.comprehension):
            total += 1 + len(node.ifs)
        if isinstance(node, ast.BoolOp):
            total += len(node.values) - 1
        nodes += ast.iter_child_nodes(node)
    return total


def shared_class_names(files: Iterable[Path]) -> list[str]:
    """Return the names that more than one class has; an underscore before a name makes it no other one."""
    classes: Counter[str] = Counter()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                classes[node.name.lstrip("_")] += 1
    return sorted(name for name, count in classes.items() if count > 1)


def print_house() -> None:
    """Print how many rooms there are, how many imports lead from one to another, and which classes share a name."""
    modules = modules_of_product(ROOT)
    rooms = {room_of(module) for module in modules} - {"", "__main__"}
    print(f"{len(rooms)} rooms, {len(arrows_of(modules))} arrows")
    shared = shared_class_names(modules.values())
    print(f"{len(shared)} names of more than one class: {', '.join(shared)}")


def main() -> None:
    """Print a row for each package, one for all, and the house."""
    whole = Shape()
    for root in sys.argv[1:] or PRODUCT:
        packages: dict[str, Shape] = {}
        for file in sorted((ROOT / root).rglob("*.py")):
            packages.setdefault(str(file.parent.relative_to(ROOT)), Shape()).add(file)
            whole.add(file)
        for name, shape in packages.items():
            print(f"{name:32s} {shape.row()}")
    print(f"{'all':32s} {whole.row()}")
    for worst, name in sorted(whole.complexities, reverse=True)[:10]:
        print(f"{worst:6d} {name}")
    print_house()


if __name__ == "__main__":
    main()
