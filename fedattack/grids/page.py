"""What all grids have in common when they are shown: the page, its Markdown, and the look of figures."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedattack.base.version import __version__
from fedattack.grids.engine import DONE
from fedattack.report import drawing
from fedattack.report.drawing import INK, column
from fedattack.report.section import Table
from fedattack.report.template import scalar, template
from fedattack.report.words import level, markdown, markdown_table

Results = Mapping[str, Any]


@dataclass(frozen=True)
class Passage:
    """A part of a page below a heading; a passage without items is left out.

    Attributes
    ----------
    kind
        ``lines``: sentences. ``figures``: figures, and small tables beside them. ``table``: one table. ``cards``:
        tables whose captions are names. ``links``: texts by address. ``facts``: values by name. ``picture``: the file
        that Markdown shows where the HTML page has figures.
    heading, anchor
        Its heading, and the id of that in the page.
    items
        What it shows.
    texts
        How many of a table's first columns hold texts.
    """

    kind: Literal["lines", "figures", "table", "cards", "links", "facts", "picture"]
    heading: str
    anchor: str
    items: Any
    texts: int = 1

    def to_markdown(self) -> list[str]:
        """Write it as blocks of Markdown; figures are left out, since Markdown holds no drawings."""
        blocks: list[str] = []
        if self.kind == "lines":
            blocks.append(_write_list(map(_write_line, self.items)))
        elif self.kind == "links":
            blocks.append(_write_list(f"[{markdown(text)}]({address})" for address, text in self.items.items()))
        elif self.kind == "facts":
            blocks.append(_write_list(markdown(f"{name}: {scalar(value)}") for name, value in self.items.items()))
        elif self.kind == "picture":
            blocks.append(f"![{markdown(self.heading)}]({self.items})")
            return blocks
        elif self.kind == "table":
            blocks += _write_table(self.items, self.texts)
        else:
            for table in self.items:
                if isinstance(table, Table):
                    blocks += [f"### {markdown(table.title)}", *_write_table(table, self.texts)]
        if blocks and self.heading:
            blocks.insert(0, f"## {markdown(self.heading)}")
        return blocks


@dataclass(frozen=True)
class Page:
    """A page of a grid, as HTML and as Markdown.

    Attributes
    ----------
    kind
        What kind of grid it is about.
    title, about
        Its title, and what to know first.
    passages
        In their order.
    commands
        Commands that do the same again: that of the whole grid, and that of its first cell.
    version
        That of fedattack.
    departure
        In what the runs depart from what their title says; shown in bold.
    """

    kind: str
    title: str
    about: str = ""
    passages: Sequence[Passage] = ()
    commands: Sequence[str] = field(default_factory=list)
    version: str = __version__
    departure: str = ""

    def to_html(self) -> str:
        """Write one self-contained page."""
        return template("grid.html.j2").render(page=self)

    def to_markdown(self) -> str:
        """Write the same as Markdown."""
        blocks = [f"# {markdown(self.title)}", markdown(self.about)]
        if self.departure:
            blocks.append(f"**{markdown(self.departure)}**")
        for passage in self.passages:
            if passage.items:
                blocks += passage.to_markdown()
        words = f"fedattack {self.version}"
        if len(self.commands) > 1:
            words += "; the second command makes the first cell alone"
        blocks.append("\n".join([f"{words}:\n", "```", *self.commands, "```"]))
        return "\n\n".join(filter(None, blocks)) + "\n"


def _write_table(table: Table, texts: int) -> list[str]:
    return [markdown_table(table.header, table.rows, texts=texts), markdown(table.caption)]


def _write_list(lines: Iterable[str]) -> str:
    return "\n".join([f"- {line}" for line in lines])


def _write_line(line: str) -> str:
    """Escape a sentence, which may have commands between backticks."""
    return markdown(line).replace("\\`", "`")


def list_commands(results: Results) -> list[str]:
    """Return the command that makes all, and that of the first cell."""
    commands = [results["command"]]
    for cell in list_done(results)[:1]:
        commands.append(cell["command"])
    return commands


def list_done(results: Results, *, done: bool = True) -> list[Any]:
    """Return the cells that were run and judged, or the others."""
    return [cell for cell in results["cells"] if (cell["state"] == DONE) == done]


def name_levels(measured: Iterable[Results]) -> str:
    """Name the levels of the intervals of measured numbers; empty where there is no interval."""
    levels = {level(each["level"]) for each in measured if each.get("low") is not None}
    return " and ".join(sorted(levels))


def tell_apart(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Tell more names apart than there are colours: the markers of those that have to share one are hollow."""
    looks, used = drawing.looks_of(names), set()
    for look in looks.values():
        if look["color"] in used:
            look["fillstyle"] = "none"
        used.add(look["color"])
    return looks


def finish_picture(canvas: Figure, grid: Sequence[Axes], name: str, title: str, words: str) -> str:
    """Return a picture that stands by itself: with a legend, and a ground of its own, which in a page is the page's."""
    drawing.one_legend(canvas, grid, handlelength=drawing.DASHES)
    svg = drawing.to_svg(canvas, name, title, words)
    return svg.replace("<svg ", '<svg width="760" style="background: white; color: black" ', 1)


def draw_intervals(
    axes: Axes, positions: Any, measured: Sequence[Mapping[str, Any]], scale: float, look: Mapping[str, Any]
) -> None:
    """Draw the intervals of measured numbers."""
    low, high = scale * column(measured, "low"), scale * column(measured, "high")
    axes.vlines(positions, low, high, color=look.get("color", INK), linewidth=4, alpha=0.3)
