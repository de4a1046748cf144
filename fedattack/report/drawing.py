"""What the report's figures have in common: their look, their text, and their way into an HTML page.

Everything is drawn in stand-in colours, which are then replaced by ``currentColor`` and CSS variables, so that one
figure serves a light and a dark page. Series differ in marker and line style as well as in colour. Each figure carries
its numbers in words (``title`` and ``desc``) and as a table.
"""

import io
import re
import textwrap
import warnings
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any
from xml.etree import ElementTree

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedattack.audit.finding import PROPORTION

INK = "#010203"
FIRST = "#010204"
SECOND = "#010205"
THIRD = "#010206"
FOURTH = "#010207"
FIFTH = "#010208"
# The fallbacks (Okabe and Ito's colours) serve a figure that was taken out of its page.
_COLOURS = {
    INK: "currentColor",
    FIRST: "var(--series-1, #0072b2)",
    SECOND: "var(--series-2, #d55e00)",
    THIRD: "var(--series-3, #009e73)",
    FOURTH: "var(--series-4, #cc79a7)",
    FIFTH: "var(--series-5, #e69f00)",
}
SIZE = 12
"""Size of all text as it is laid out.

The page sets smaller text, so that a wider system font, or the larger text of a narrow page, still fits.
"""
STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": SIZE,
    "figure.facecolor": "none",
    "font.size": SIZE,
    "grid.alpha": 0.16,
    "grid.color": INK,
    "grid.linewidth": 0.6,
    "legend.columnspacing": 1.2,
    "legend.fontsize": SIZE,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.8,
    "lines.markersize": 4,
    # "none": text stays text in the SVG, which people can select and search.
    "svg.fonttype": "none",
    # Ids in the SVG are hashes: with a fixed salt the same findings give the same file.
    "svg.hashsalt": "fedattack",
    "text.color": INK,
    # Names from data may hold dollar signs, which are no formula here.
    "text.parse_math": False,
    "xtick.color": INK,
    "xtick.major.size": 3,
    "ytick.color": INK,
    "ytick.major.size": 3,
}
WIDTH = 380
"""Width of a figure, in points. A phone shows it a little smaller, a desktop larger."""

CHANCE: dict[str, Any] = {"color": INK, "linestyle": ":", "linewidth": 1.4, "label": "chance"}
DASHES = 3.2
"""Length of a legend's lines, in font sizes, at which the dashes of the looks below can be told apart."""
_LEGEND: dict[str, Any] = {"handletextpad": 0.5, "borderaxespad": 0.2}
_LOOKS: list[dict[str, Any]] = [
    {"color": FIRST, "linestyle": "-", "marker": "o"},
    {"color": SECOND, "linestyle": (0, (5, 2)), "marker": "s"},
    {"color": THIRD, "linestyle": (0, (5, 1.5, 1.2, 1.5)), "marker": "^", "markersize": 5},
    {"color": FOURTH, "linestyle": (0, (1.2, 1.2)), "marker": "X", "markersize": 5},
    {"color": FIFTH, "linestyle": (0, (9, 2)), "marker": "D"},
]


# Letters of a legend's entry, or of a name beside an axis, on one line.
_MOST_LETTERS = 44
_MOST_BESIDE = 22


@dataclass(frozen=True)
class Plot:
    """A figure with its words.

    Attributes
    ----------
    title
        What it shows, in a few words.
    svg
        The drawing: an ``svg`` element with an accessible name and description.
    caption
        What to know when reading it.
    header, rows
        The numbers behind it, as texts.
    """

    title: str
    svg: str
    caption: str
    header: list[str]
    rows: list[list[str]]


def panels(height: float, count: int = 1, columns: int = 1, *, shared: bool = False) -> tuple[Figure, list[Axes]]:
    """Make a figure of `count` axes, row by row, in `columns` columns; `shared` ones have the same limits."""
    # Figures are in inches; 72 points each.
    figure = Figure(figsize=(WIDTH / 72, height / 72), layout="constrained")
    # No pyplot: it would keep a global list of figures, and might open a window.
    FigureCanvasSVG(figure)
    # −(−a // b) rounds up.
    grid = figure.subplots(-(-count // columns), columns, squeeze=False, sharex=shared, sharey=shared)
    every = list(grid.flat)
    for axes in every[count:]:
        axes.remove()
    # Shared axes are labelled in the last row only, which may have gaps.
    for axes in every[max(count - columns, 0) : count]:
        axes.tick_params(labelbottom=True)
    return figure, every[:count]


def one_axes(height: float) -> tuple[Figure, Axes]:
    """Make a figure of one pair of axes."""
    figure, (axes,) = panels(height)
    return figure, axes


def looks_of(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Give each name its colour, line style and marker, by its position."""
    distinct = dict.fromkeys(names)
    return {name: {**look, "label": name} for name, look in zip(distinct, cycle(_LOOKS), strict=False)}


def draw_lines(
    axes: Axes,
    positions: Sequence[float],
    lines: Mapping[str, Sequence[float | None]],
    looks: Mapping[str, Mapping[str, Any]],
) -> None:
    """Draw named rates over `positions` in per cent."""
    step = max(len(positions) // 10, 1)
    for i, (name, values) in enumerate(lines.items()):
        # Lines often lie on each other: markers at different positions let all be seen.
        start = i * step // len(lines)
        axes.plot(positions, 100 * floats(values), markevery=(start, step), **looks[name])
    axes.set_ylim(-4, 104)


def one_legend(figure: Figure, grid: Iterable[Axes], **look: Any) -> None:
    """Put one legend above axes that show the same series, with as many entries in a row as there is room for."""
    entries: dict[str, Any] = {}
    for axes in grid:
        handles, labels = axes.get_legend_handles_labels()
        entries |= zip(map(wrap_name, labels), handles, strict=True)
    # Fewer columns until the legend fits into the figure.
    for columns in range(min(len(entries), 4), 0, -1):
        legend = figure.legend(
            list(entries.values()), list(entries), loc="outside upper left", ncols=columns, **(_LEGEND | look)
        )
        if columns == 1 or 72 * legend.get_window_extent().width / figure.dpi < WIDTH - 6:
            break
        legend.remove()


def wrap_name(name: str, letters: int = _MOST_LETTERS) -> str:
    """Break a long name into lines."""
    return "\n".join(textwrap.wrap(name, letters)) or name


def lines_of(name: str, letters: int = _MOST_BESIDE) -> int:
    """Count the lines into which :func:`name_rows` breaks a name."""
    return wrap_name(name, letters).count("\n") + 1


def name_rows(axes: Axes, names: Sequence[str], letters: int = _MOST_BESIDE) -> None:
    """Name rows on the vertical axis, the first one at the top; names of more letters are broken into lines."""
    axes.set_yticks(np.arange(len(names)), [wrap_name(name, letters) for name in names])
    # The first row stands at the top.
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def scale_of(units: str) -> float:
    """Return what a number in `units` is multiplied with to be drawn."""
    return {PROPORTION: 100}.get(units, 1)


def quantity(rate: str, units: str) -> str:
    """Name an axis: `rate` in per cent, or a result in its units."""
    if units == PROPORTION:
        return f"{rate} (%)"
    return f"Result ({units})".removesuffix(" ()")


def floats(values: Sequence[float | None]) -> NDArray[np.float64]:
    """Turn numbers into an array that has NaN where there is none."""
    return np.array(values, dtype=float)


def column(rows: Iterable[Mapping[str, Any]], *keys: str) -> NDArray[np.float64]:
    """Collect the number of each row to which these keys lead; NaN where a row has none."""
    values: list[Any] = list(rows)
    for key in keys:
        values = [(value or {}).get(key) for value in values]
    return floats(values)


def short(name: str, letters: int = 12) -> str:
    """Shorten a name to what fits beside an axis, or to so many letters."""
    # Node ids differ in their last digits at least as often as in their first.
    half = letters // 2
    if len(name) <= letters:
        return name
    return f"{name[: half - 1]}…{name[-half:]}"


def label_rounds(axes: Axes, label: str = "Round", ticks: int = 8) -> None:
    """Label whole rounds only."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=ticks, integer=True, min_n_ticks=1))
    axes.set_xlabel(label)


def name_ticks(axis: Axis, names: Sequence[str]) -> None:
    """Name as many positions as there is room for."""
    step = -(-len(names) // 20)
    upright = isinstance(axis, XAxis) and max(map(len, names)) > 3
    labels = list(map(short, names[::step]))
    axis.set_ticks(range(0, len(names), step), labels, rotation=90 if upright else 0)


def to_svg(figure: Figure, slug: str, title: str, words: str) -> str:
    """Drawing as text that fits into an HTML page beside others like it."""
    buffer = io.StringIO()
    with warnings.catch_warnings():
        # Text stays text, so a character that matplotlib's font lacks is drawn by the browser's.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        # savefig would draw the figure twice: once to lay it out, and this does so while it draws.
        FigureCanvasSVG(figure).print_svg(buffer, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    root = ElementTree.fromstring(buffer.getvalue())  # noqa: S314 matplotlib's own output
    # A style element inside an inline SVG would apply to the whole page.
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith(("}style", "}metadata")):
                parent.remove(child)
    # Ids that something refers to are kept, such as clip paths.
    used = set(re.findall(r"#(\w+)", " ".join(_references(root))))
    for element in root.iter():
        element.tag = _local(element.tag)
        attributes = dict(element.attrib)
        # Names lose their namespace, which inline SVG does not need.
        element.attrib.clear()
        for name, value in attributes.items():
            _set_attribute(element, _local(name), value, slug, used)
    view_box = root.get("viewBox", "")
    root.attrib.clear()
    root.attrib |= {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": view_box,
        "class": "plot",
        "role": "img",
        "aria-labelledby": f"{slug}-title",
        "aria-describedby": f"{slug}-desc",
        "font-family": "sans-serif",
        "font-size": "10.5",
        "stroke-linejoin": "round",
    }
    for index, (tag, text) in enumerate((("title", title), ("desc", words))):
        element = ElementTree.Element(tag, id=f"{slug}-{tag}")
        element.text = text
        root.insert(index, element)
    return ElementTree.tostring(root, encoding="unicode")


def _local(name: str) -> str:
    """Return an XML name without its namespace."""
    return name.rpartition("}")[2]


def _set_attribute(element: ElementTree.Element, name: str, value: str, slug: str, used: Container[str]) -> None:
    """Set an attribute as a page with other drawings needs it; an id that nothing refers to is left out."""
    if name == "id":
        if value in used:
            # Several drawings on one page must not share ids.
            element.set(name, f"{slug}-{value}")
    elif name == "style":
        element.set(name, _style(value))
    elif name in ("href", "clip-path"):
        element.set(name, value.replace("#", f"#{slug}-"))
    else:
        element.set(name, value)


def _references(root: ElementTree.Element) -> list[str]:
    """Return the values of all attributes that refer to an id."""
    references = []
    for element in root.iter():
        for name, value in element.attrib.items():
            if name.endswith("href") or (name != "id" and "url(#" in value):
                references.append(value)
    return references


def _style(style: str) -> str:
    """Style without fonts, which are the page's, and with the page's colours."""
    kept = [part for part in style.split("; ") if not part.startswith(("font-size", "font-family", "font:"))]
    text = "; ".join(kept)
    for stand_in, colour in _COLOURS.items():
        text = text.replace(stand_in, colour)
    return text
