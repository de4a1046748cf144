"""Drawings of how each attack works, in one style: `python -m tests.docs.drawings` writes them beside the guides."""

import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "fedattack"
STYLE = """<style>
svg { color: #1c1c1c; --mark: #0072b2; --soft: #d3e5f1; --ground: #f5f6f7 }
@media (prefers-color-scheme: dark) { svg { color: #e8e8e8; --mark: #6cb8ee; --soft: #1f4760; --ground: #2a303a } }
text { font: 14px sans-serif; fill: currentColor }
.small { font-size: 11px; text-anchor: middle }
.panel { fill: var(--ground) }
.box { fill: none; stroke: currentColor; stroke-width: 1.3 }
.mark { fill: var(--mark); stroke: none }
.soft { fill: var(--soft); stroke: none }
.line { fill: none; stroke: currentColor; stroke-width: 1.3 }
.found { fill: none; stroke: var(--mark); stroke-width: 2.6 }
</style>"""
WIDTH, STEP, PANEL = 400, 120, 104
LETTERS = 29


def bars(heights: Sequence[int], marked: Sequence[int] = (), line: int = 0) -> str:
    """Draw bars on a common ground, and perhaps a line that some exceed."""
    width = 84 // len(heights)
    parts = [rect(12 + i * width, 76 - high, width - 5, high, i in marked) for i, high in enumerate(heights)]
    parts.append('<path class="line" d="M6 76H102"/>')
    if line:
        parts.append(f'<path class="line" stroke-dasharray="3 3" d="M6 {76 - line}H102"/>')
    return "".join(parts)


def rect(x: int, y: int, width: int, height: int, marked: bool = False, look: str = "soft") -> str:
    """Draw a rectangle; a marked one is what the attack found."""
    kind = "mark" if marked else look
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="2"/>'


def grid(rows: Sequence[str], look: str = "soft") -> str:
    """Draw cells: ``#`` is marked, ``.`` is not, and a space is left out."""
    size = min(84 // max(map(len, rows)), 72 // len(rows))
    left, top = (108 - size * max(map(len, rows))) // 2, (88 - size * len(rows)) // 2
    parts = []
    for y, row in enumerate(rows):
        for x, cell in enumerate(row):
            if cell != " ":
                parts.append(rect(left + x * size, top + y * size, size - 2, size - 2, cell == "#", look))
    return "".join(parts)


def word(x: int, y: int, text: str) -> str:
    """Write a short word into a pictogram."""
    return f'<text class="small" x="{x}" y="{y}">{html.escape(text)}</text>'


def clients(marked: int = -1, into: str = "server") -> str:
    """Draw three clients whose messages go to a server, or into a sum."""
    parts = []
    for i in range(3):
        y = 6 + i * 28
        parts.append(rect(6, y, 30, 20, i == marked))
        parts.append(f'<path class="line" d="M38 {y + 10}L66 44"/>')
    parts.append('<rect class="box" x="66" y="28" width="40" height="32" rx="4"/>')
    parts.append(word(86, 48, into))
    return "".join(parts)


def tree(marked: Sequence[int] = ()) -> str:
    """Draw a tree of two levels; marked places are thresholds that are read."""
    places = [(54, 14), (28, 42), (80, 42), (14, 72), (42, 72), (66, 72), (94, 72)]
    parts = ['<path class="line" d="M54 14L28 42L14 72M28 42L42 72M54 14L80 42L66 72M80 42L94 72"/>']
    for i, (x, y) in enumerate(places):
        kind = "mark" if i in marked else "soft"
        parts.append(f'<circle class="{kind}" cx="{x}" cy="{y}" r="8"/>')
    return "".join(parts)


def arrow_to(left: str, right: str) -> str:
    """Draw two small drawings, one of which becomes the other."""
    scale = 'transform="translate({} 20) scale(.45)"'
    parts = (f"<g {scale.format(0)}>{left}</g>", f"<g {scale.format(60)}>{right}</g>")
    return "".join(parts) + '<path class="line" d="M48 42H60M55 37L60 42L55 47"/>'


DIGIT = ("..##..", ".#..#.", "....#.", "...#..", "..#...", ".####.")
NOISE = (".#.#..", "#..#.#", ".#..#.", "..#.#.", "#.#..#", ".#.##.")


@dataclass(frozen=True)
class Step:
    """A pictogram of 108 by 88, and what happens."""

    picture: str
    words: str


DRAWINGS = {
    "threats/membership/works": (
        Step(clients(1), "Each client sends its model. The server has an example."),
        Step(bars((24, 62, 20, 26), (1,)), "It measures how well each model knows the example."),
        Step(bars((24, 62, 20, 26), (1,), 36), "One knows it better than the others do: that client trained on it."),
    ),
    "threats/source/works": (
        Step(clients(), "Somebody trained on an example. The server asks who."),
        Step(bars((58, 50, 18, 54)), "It computes the loss of the example under each client's model."),
        Step(bars((58, 50, 18, 54), (2,)), "The client with the smallest loss is named as the owner."),
    ),
    "threats/property/works": (
        Step(clients(into="sum"), "The server sees sums alone. In each round others take part."),
        Step(bars((20, 52, 24, 50, 18), (1, 3), 38), "A detector says of each sum how much of the property is in it."),
        Step(grid(("##..", "#.#.", ".##.", "#..#")), "Each sum is an equation. Many together name the clients."),
    ),
    "threats/attribute/works": (
        Step(grid((".. .", ".. .", ".. .")) + word(65, 48, "?"), "The server knows each example but for one column."),
        Step(bars((50, 16, 46), (1,)), "It tries values. How far is the gradient of each from the client's?"),
        Step(grid(("..#.", "..#.", "..#.")), "The value with the nearest gradient is filled in."),
    ),
    "threats/group/works": (
        Step(arrow_to(grid(("..", "..")), grid(("##", "##"))), "The server trains updates of its own, of each group."),
        Step(
            grid((". . #", " . ##", ". # #")) + '<path class="found" d="M44 84L72 6"/>',
            "A classifier learns how these updates differ.",
        ),
        Step(clients(2), "It is given a client's update, and names the client's group."),
    ),
    "threats/labels/works": (
        Step(grid(("....", "....", "....")), "The last layer of a classifier has a row for each label."),
        Step(
            bars((18, 18, 18)) + '<path class="found" d="M24 50V20M18 27L24 19L30 27"/>',
            "An example pulls the row of its label up, and the others down.",
        ),
        Step(bars((52, 14, 32), (0, 1, 2)), "How far each row moved says how many examples have its label."),
    ),
    "threats/tokens/works": (
        Step(grid(("....", "....", "....", "....")), "A table has a row for each word, item or category."),
        Step(grid(("....", "####", "....", "####")), "A row moves only if an example uses its word."),
        Step(
            grid(("    ", "####", "    ", "####")) + word(54, 48, "words"),
            "The rows that moved are the client's words.",
        ),
    ),
    "threats/sequences/works": (
        Step(grid(("#.", "#.", "#.")), "The rows of a gradient lie in the span of the layer's few inputs."),
        Step(bars((48, 10, 52, 44), (1,), 22), "Each word is tried at each place. Does its input lie in that span?"),
        Step(grid(("#   ", "##  ", "### ", "####")), "The next layer tells which words follow each other."),
    ),
    "threats/exact/works": (
        Step(grid((".#.", "##.", ".#.")), "A neuron's weights move by a sum of examples, its bias by their weights."),
        Step(
            word(54, 30, "Δ weights") + '<path class="line" d="M18 42H90"/>' + word(54, 62, "Δ bias"),
            "One example alone woke the neuron? Then the quotient is that example.",
        ),
        Step(grid(DIGIT), "It is read off, number by number, without a search."),
    ),
    "threats/plaintext/works": (
        Step(clients(0), "A client sends arrays, numbers and texts. The server reads them as they are."),
        Step(grid(("......", ".####.", "......", ".##...")), "Some are means, counts or labels of its examples."),
        Step(arrow_to(grid(("######",)), grid(DIGIT)), "A row, or the mean of one, is a training example."),
    ),
    "threats/inversion/works": (
        Step(grid(NOISE), "The server has a client's gradient. It starts from noise."),
        Step(
            bars((60, 44, 28, 14, 8)) + '<path class="found" d="M16 14C40 30 60 60 98 68"/>',
            "It changes the image until the image's gradient is the client's.",
        ),
        Step(grid(DIGIT), "What it ends with may look like the client's example."),
    ),
    "threats/trees/works": (
        Step(tree(), "A client sends its trees. Nobody averages them."),
        Step(tree((0, 1, 2)), "The thresholds of splits are values of the client's table."),
        Step(grid(("#.#.", ".##.", "##.#")), "Branches of many trees are put together into rows."),
    ),
    "audit/verdict": (
        Step(bars((30, 60), (1,), 20), "More than chance: what guessing gives."),
        Step(bars((44, 60), (1,), 44), "More than the null and simple guesses: what is there without a leak."),
        Step(
            bars((6, 18, 38, 30, 12, 4, 10), (6,)),
            "More than accident: what exchanges of like things give, at most one time in twenty.",
        ),
    ),
}
"""By place in the package, the steps of a drawing."""


def draw(steps: Sequence[Step]) -> str:
    """Draw steps one below the other, so that they are legible on a phone."""
    height = STEP * len(steps) - (STEP - PANEL)
    parts = []
    for i, step in enumerate(steps):
        y = i * STEP
        lines = textwrap.wrap(step.words, LETTERS)
        first = y + 57 - 9 * (len(lines) - 1)
        parts.append(f'<rect class="panel" x="0" y="{y}" width="{WIDTH}" height="{PANEL}" rx="8"/>')
        parts.append(f'<g transform="translate(12 {y + 8})">{step.picture}</g>')
        parts += [f'<text x="140" y="{first + 18 * j}">{html.escape(line)}</text>' for j, line in enumerate(lines)]
        if i:
            parts.append(f'<path class="line" d="M66 {y - 15}V{y - 2}M61 {y - 7}L66 {y - 2}L71 {y - 7}"/>')
    words = html.escape(describe(steps))
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    start = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{words}">'
    return f"{start}{STYLE}{''.join(parts)}</svg>\n"


def describe(steps: Sequence[Step]) -> str:
    """Say the steps in words."""
    return " ".join(step.words for step in steps)


def main() -> None:
    """Write all drawings."""
    for place, steps in DRAWINGS.items():
        (PACKAGE / f"{place}.svg").write_text(draw(steps), encoding="utf-8")


if __name__ == "__main__":
    main()
