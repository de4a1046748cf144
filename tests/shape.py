"""How the code is shaped: ``python -m tests.shape [FOLDER …]`` prints a row for each package, and figures with aims.

Comprehensions and conditional expressions are counted for each 1,000 lines of code, without blank lines, comments and
docstrings. Complexity is McCabe's as radon counts it: one for a function, and one more for each branch, loop, handler,
comprehension, condition in a comprehension, and further operand of ``and`` or ``or``.
"""

import ast
import io
import resource
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

from tests.benchmarks.reading import write
from tests.importing import PRODUCT, arrows_of, circles_in, modules_of_product, room_graph

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


PARTICIPLES = {
    *("bound", "dealt", "done", "drawn", "found", "given", "gone", "grown", "held", "hidden", "kept", "known", "left"),
    *("lost", "made", "meant", "paid", "put", "said", "seen", "sent", "shown", "spent", "taken", "told", "written"),
}


def bare_participles(files: Iterable[Path]) -> list[str]:
    """Return the functions whose name is one participle: it does not say whether they read, compute or write."""
    names = []
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.FunctionDef) or any("property" in ast.unparse(d) for d in node.decorator_list):
                continue
            name = node.name.strip("_")
            if name in PARTICIPLES or (name.endswith("ed") and "_" not in name):
                names.append(name)
    return sorted(names)


def seconds_of(*words: str) -> float:
    """Return the processor time of a command: the median of five."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "fedattack", *words], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return median(times)


def print_figures(whole: Shape) -> None:
    """Print what CONTRIBUTING holds the house to."""
    modules = modules_of_product(ROOT)
    shared = shared_class_names(modules.values())
    participles = bare_participles(modules.values())
    with tempfile.TemporaryDirectory() as folder:
        record = write(Path(folder) / "record", clients=10, rounds=25, entries=1_250)
        size = sum(file.stat().st_size for file in record.rglob("*")) / 1e6
        check = seconds_of("check", str(record))
    tests = sum(file.read_text().count("\n") for file in (ROOT / "tests").rglob("*.py"))
    rooms = room_graph(modules)
    thousand = whole.code / 1000
    worst, where = max(whole.complexities)
    rows = (
        ("lines of the product", whole.lines, "52,000"),
        ("lines of the tests", tests, "48,000"),
        ("rooms", len(rooms), "20"),
        ("arrows between them", len(arrows_of(modules)), "100"),
        ("rooms in a circle of imports", len(circles_in(rooms)), "0"),
        ("comprehensions for 1,000 lines of code", round(whole.comprehensions / thousand, 1), "25"),
        ("conditional expressions for 1,000 lines of code", round(whole.conditionals / thousand, 1), "12"),
        (f"worst complexity, of {where}", worst, "20"),
        ("names of more than one class", len(shared), "0"),
        ("functions named by a bare participle", len(participles), "50"),
        ("processor seconds of `fedattack list`", round(seconds_of("list"), 2), "0.6"),
        (f"processor seconds of `fedattack check` on {size:.0f} MB", round(check, 2), "0.8"),
    )
    for name, figure, aim in rows:
        print(f"{name:58s} {figure:9,} (aim {aim})")


def main() -> None:
    """Print a row for each package, one for all, and the figures of the whole house."""
    whole = Shape()
    for root in sys.argv[1:] or PRODUCT:
        packages: dict[str, Shape] = {}
        for file in sorted((ROOT / root).rglob("*.py")):
            packages.setdefault(str(file.parent.relative_to(ROOT)), Shape()).add(file)
            whole.add(file)
        for name, shape in packages.items():
            print(f"{name:32s} {shape.row()}")
    print(f"{'all':32s} {whole.row()}")
    if not sys.argv[1:]:
        print_figures(whole)


if __name__ == "__main__":
    main()
