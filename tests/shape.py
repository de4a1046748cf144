"""How the code is shaped: ``python -m tests.shape [FOLDER …]`` prints a row for each package, and figures with aims.

``--run RUN`` also counts how often `report` opens each file of a run folder, such as that of the quickstart.

Comprehensions and conditional expressions are counted for each 1,000 lines of code, without blank lines, comments and
docstrings. Complexity is McCabe's as radon counts it: one for a function, and one more for each branch, loop, handler,
comprehension, condition in a comprehension, and further operand of ``and`` or ``or``.
"""

import argparse
import ast
import io
import resource
import shutil
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

from tests.importing import PRODUCT, circles_in, imported, imports_of, modules_of_product, room_graph
from tests.opens import count_opens
from tests.references import stale_references
from tests.worlds.still import write_still_record

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


def seconds_of(*words: str, times: int = 5) -> float:
    """Return the processor time of a command: the median of some runs."""
    taken = []
    for _ in range(times):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "fedattack", *words], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return median(taken)


DECLARED = ("section.py", "options.py", "__init__.py", "tables.py", "remedies.toml")
"""Files of a threat that declare and show it."""

FRAME = ("judge.py", "case.py", *DECLARED)
"""Files of a threat that are not its attack; judges and their cases hold what is measured."""

DECIDED = {
    *("needs.find_lacks", "needs.find_unread", "untried.lacking", "untried._missing"),
    *("choosing._lacks", "choosing._why_refused", "choosing.list_unasked", "choosing.find_remedy"),
}
"""Functions of which each says in its own way why an attack cannot be made."""


def threat_folders() -> list[Path]:
    """Return the folders of the threats."""
    return sorted(file.parent for file in (ROOT / "fedattack" / "threats").glob("*/__init__.py"))


def foreign_names(threat: Path) -> set[str]:
    """Return the classes and constants of other rooms that a threat imports."""
    own, names = f"fedattack.threats.{threat.name}", set[str]()
    for file in threat.rglob("*.py"):
        for name in imported(file):
            last = name.rpartition(".")[2]
            if name.startswith("fedattack.") and not name.startswith(f"{own}.") and last.lstrip("_")[:1].isupper():
                names.add(last)
    return names


def frame_share(threats: Iterable[Path], names: Collection[str] = FRAME) -> float:
    """Return which share of the lines of threats, of code and of what is declared in files, is in files so named."""
    frame = total = 0
    for threat in threats:
        for file in threat.rglob("*"):
            if file.suffix in (".py", ".json", ".toml"):
                lines = file.read_text().count("\n")
                total += lines
                frame += lines * (file.name in names)
    return frame / total


def comment_lines(files: Iterable[Path]) -> int:
    """Count the lines that are a comment alone."""
    return sum(line.lstrip().startswith("#") for file in files for line in file.read_text().splitlines())


def deciding_places(files: Iterable[Path]) -> list[str]:
    """Return which of the functions are there that say why an attack cannot be made."""
    places = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef):
                places.add(f"{file.stem}.{node.name}")
    return sorted(places & DECIDED)


def print_threats() -> None:
    """Print what a threat's author has to know, and how much of a threat is frame."""
    threats = threat_folders()
    counts = {threat.name: len(foreign_names(threat)) for threat in threats}
    for name, count, aim in (("tokens", counts["tokens"], 14), ("labels", counts["labels"], 14)):
        print_figure(f"classes and constants of other rooms that {name} imports", count, aim)
    print_figure(f"the same, mean of {len(counts)} threats", round(fmean(counts.values()), 1), 22)
    print_figure("frame, % of the lines of threats", round(100 * frame_share(threats), 1), 25)
    print(f"  without judges and their cases: {100 * frame_share(threats, DECLARED):.1f}")


def print_report(folder: Path) -> None:
    """Print how often `report` opens a file of a copy of a run folder, and its time."""
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(shutil.copytree(folder, Path(scratch) / "run"))
        words = ("report", str(run), "--device", "cpu")
        name, opens = count_opens(run, words).most_common(1)[0]
        print_figure(f"opens by `report` of {name}", opens, 2)
        print_figure("processor seconds of this `report`", round(seconds_of(*words, times=1), 1), 8)


def print_figure(name: str, figure: float, aim: object) -> None:
    """Print a figure beside its aim."""
    print(f"{name:66s} {figure:9,} (aim {aim})")


def print_figures(whole: Shape) -> None:
    """Print what CONTRIBUTING holds the house to."""
    modules = modules_of_product(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        record = write_still_record(Path(folder) / "record", clients=10, rounds=25, entries=1_250)
        size = sum(file.stat().st_size for file in record.rglob("*")) / 1e6
        check = seconds_of("check", str(record))
    tests = sum(file.read_text().count("\n") for file in (ROOT / "tests").rglob("*.py"))
    rooms = room_graph(modules)
    worst, where = max(whole.complexities)
    comments = 100 * comment_lines(modules.values()) / whole.lines
    print(f"{whole.lines:,} lines of the product, {tests:,} of the tests; {len(rooms)} rooms")
    print_threats()
    places = deciding_places(modules.values())
    print_figure("places that decide why an attack cannot be made", len(places), 1)
    print(f"  {', '.join(places)}")
    print_figure("rooms in a circle of imports", len(circles_in(rooms)), 0)
    print_figure("circles of files", len(circles_in(imports_of(modules, around=False))), 0)
    print_figure("references in docstrings to names that are gone", len(stale_references(modules)), 0)
    print_figure("comment lines, % of all", round(comments, 1), 3)
    print_figure("comprehensions for 1,000 lines of code", round(whole.comprehensions / whole.code * 1000, 1), 25)
    print_figure(f"worst complexity, of {where}", worst, 20)
    print_figure("functions named by a bare participle", len(bare_participles(modules.values())), 50)
    print_figure("processor seconds of `fedattack list`", round(seconds_of("list"), 2), 0.6)
    print_figure(f"processor seconds of `fedattack check` on {size:.0f} MB", round(check, 2), 0.8)


def main() -> None:
    """Print a row for each package, one for all, and the figures of the whole house."""
    parser = argparse.ArgumentParser(description="How the code is shaped.")
    parser.add_argument("folders", nargs="*", help="packages; all, and the figures of the whole house, if not given")
    parser.add_argument("--run", type=Path, help="a run folder of which `report` is watched")
    given = parser.parse_args()
    whole = Shape()
    for root in given.folders or PRODUCT:
        packages: dict[str, Shape] = {}
        for file in sorted((ROOT / root).rglob("*.py")):
            packages.setdefault(str(file.parent.relative_to(ROOT)), Shape()).add(file)
            whole.add(file)
        for name, shape in packages.items():
            print(f"{name:32s} {shape.row()}")
    print(f"{'all':32s} {whole.row()}")
    if not given.folders:
        print_figures(whole)
    if given.run is not None:
        print_report(given.run)


if __name__ == "__main__":
    main()
