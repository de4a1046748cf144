"""The page of a grid: passages with sentences, figures and tables, as Markdown and as one HTML file."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fedattack.grids.engine import DONE
from fedattack.report.html import template
from fedattack.report.words import markdown

Results = Mapping[str, Any]


@dataclass(frozen=True)
class Passage:
    """A part of a page below a heading; a passage without items is left out.

    Attributes
    ----------
    kind
        ``lines``: sentences. ``figures``: figures, and small tables beside them. ``table``: one table. ``cards``:
        tables whose captions are names. ``links``: texts by address. ``facts``: values by name.
    heading, anchor
        Its heading, and the id of that in the page.
    items
        What it shows.
    """

    kind: Literal["lines", "figures", "table", "cards", "links", "facts"]
    heading: str
    anchor: str
    items: Any


@dataclass(frozen=True)
class Page:
    """A page of a grid.

    Attributes
    ----------
    kind
        What kind of grid it is about.
    title, about
        Its title, and what to know first.
    passages
        In their order.
    commands
        Commands that do the same again.
    """

    kind: str
    title: str
    about: str = ""
    passages: Sequence[Passage] = ()
    commands: Sequence[str] = field(default_factory=list)

    def to_html(self) -> str:
        """Write one self-contained page."""
        return template("grid.html.j2").render(page=self)


def write_markdown(title: str, blocks: Iterable[str]) -> str:
    """Write blocks of Markdown below a title; empty ones are left out."""
    return "\n\n".join([f"# {markdown(title)}", *filter(None, blocks)]) + "\n"


def write_list(lines: Iterable[str]) -> str:
    """Write sentences as a list in Markdown."""
    return "\n".join(f"- {markdown(line)}" for line in lines)


def write_picture(title: str, file: str) -> str:
    """Show a picture in Markdown."""
    return f"![{markdown(title)}]({file})"


def write_commands(words: str, commands: Sequence[str]) -> str:
    """Write commands in Markdown, below what they are."""
    return "\n".join([f"{words}:\n", "```", *commands, "```"])


def list_commands(results: Results) -> list[str]:
    """Return the command that makes all, and that of the first cell."""
    return [results["command"], *(cell["command"] for cell in list_done(results)[:1])]


def list_done(results: Results) -> list[Any]:
    """Return the cells that were run and judged."""
    return [cell for cell in results["cells"] if cell["state"] == DONE]


def list_lacking(results: Results) -> list[Any]:
    """Return the others."""
    return [cell for cell in results["cells"] if cell["state"] != DONE]
