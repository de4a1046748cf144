"""Pages that show runs beside each other, each as HTML and as Markdown."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fedattack.base.version import __version__
from fedattack.report.section import PageTable
from fedattack.report.template import scalar, template
from fedattack.report.words import markdown, markdown_table


@dataclass(frozen=True)
class Passage:
    """A part of a page below a heading; a passage without items is left out.

    Attributes
    ----------
    kind
        ``lines``: sentences. ``figures``: figures, and small tables beside them. ``table``: one table. ``cards``:
        tables whose captions are names. ``links``: texts by address. ``facts``: values by name. ``runs``: of each run
        ``name``, ``title``, ``settings``, ``lacking`` (what its report leaves out) and ``commands``. ``picture``: the
        file that Markdown shows where the HTML page has figures.
    heading, anchor
        Its heading, and the id of that in the page.
    items
        What it shows.
    texts
        How many of a table's first columns hold texts.
    """

    kind: Literal["lines", "figures", "table", "cards", "links", "facts", "runs", "picture"]
    heading: str
    anchor: str
    items: Any
    texts: int = 1

    def to_markdown(self) -> list[str]:
        """Write it as blocks of Markdown; figures are left out, since Markdown holds no drawings."""
        if self.kind == "picture":
            return [f"![{markdown(self.heading)}]({self.items})"]
        blocks: list[str] = []
        if self.kind == "lines":
            blocks.append(_write_list(map(_write_line, self.items)))
        elif self.kind == "links":
            blocks.append(_write_list(f"[{markdown(text)}]({address})" for address, text in self.items.items()))
        elif self.kind == "facts":
            blocks.append(_write_list(markdown(f"{name}: {scalar(value)}") for name, value in self.items.items()))
        elif self.kind == "runs":
            blocks.append(_write_list(markdown(f"{run['name']}: {run['title']}") for run in self.items))
        elif self.kind == "cards":
            for table in self.items:
                heading = f"{table.title} ({table.caption})".removesuffix(" ()")
                blocks += [f"### {markdown(heading)}", markdown_table(table.header, table.rows)]
        elif self.kind == "table":
            blocks += _write_table(self.items, self.texts)
        else:
            for table in self.items:
                if isinstance(table, PageTable):
                    blocks += [f"### {markdown(table.title)}", *_write_table(table, self.texts)]
        if blocks and self.heading:
            blocks.insert(0, f"## {markdown(self.heading)}")
        return blocks


@dataclass(frozen=True)
class Page:
    """A page about runs beside each other, as HTML and as Markdown.

    Attributes
    ----------
    kind
        What kind of comparison it is.
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
        return template("page.html.j2").render(page=self)

    def to_markdown(self) -> str:
        """Write the same as Markdown."""
        blocks = [f"# {markdown(self.title)}", markdown(self.about)]
        if self.departure:
            blocks.append(f"**{markdown(self.departure)}**")
        for passage in self.passages:
            if passage.items:
                blocks += passage.to_markdown()
        if self.commands:
            words = f"fedattack {self.version}"
            if len(self.commands) > 1:
                words += "; the second command makes the first cell alone"
            blocks.append("\n".join([f"{words}:\n", "```", *self.commands, "```"]))
        return "\n\n".join(filter(None, blocks)) + "\n"


def _write_table(table: PageTable, texts: int) -> list[str]:
    return [markdown_table(table.header, table.rows, texts=texts), markdown(table.caption)]


def _write_list(lines: Iterable[str]) -> str:
    return "\n".join([f"- {line}" for line in lines])


def _write_line(line: str) -> str:
    """Escape a sentence, which may have commands between backticks."""
    # Backticks are the one mark that sentences of ours may have.
    return markdown(line).replace("\\`", "`")
