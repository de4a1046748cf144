"""Names that clients chose stand in Markdown, CSV, XML and terminals as they are, and do nothing there."""

import html
import io
import re
import time

import pytest
from markdown_it import MarkdownIt
from rich.console import Console
from tensorboard.plugin_util import markdown_to_safe_html

from fedattack.cli import console
from fedattack.report.words import markdown

HOSTILE = [
    "![x](http://evil.example/x.png) [update](http://evil.example/)",
    "<img src=http://evil.example/x.png>",
    "<http://evil.example/> &lt;b&gt; &#91;",
    "[a]: http://evil.example 'b'",
    "# **bold** _it_ `code` ~~gone~~ $x$ | cell",
    "HTTPS://evil.example and www.evil.example",
]


def text_of(page: str) -> str:
    """Return what a page shows; a fault if it is more than one paragraph of text."""
    (inside,) = re.fullmatch(r"<p>(.*)</p>\s*", page, re.DOTALL).groups()
    assert "<" not in inside
    return html.unescape(inside)


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_shows_a_text_as_it_is(text):
    escaped = markdown(text)
    assert text_of(MarkdownIt("commonmark").render(f"x {escaped}")) == f"x {text}"
    # Python's dialect, which TensorBoard shows, leaves some backslashes standing.
    assert text_of(markdown_to_safe_html(f"x {escaped}")).replace("\\", "") == f"x {text}"
    # By these GitHub makes links of what is no link in Markdown.
    assert "://" not in escaped
    assert "www." not in escaped


def test_markdown_is_one_line_without_what_drives_a_terminal():
    assert markdown("a\n\n- b\x1b[31m") == "a - b\N{REPLACEMENT CHARACTER}\\[31m"


def test_a_bar_takes_no_markup_from_the_name_of_a_step(monkeypatch):
    terminal = Console(file=io.StringIO(), force_terminal=True, width=200)
    monkeypatch.setattr(console, "err_console", terminal)
    name, end = "sia on [/red] [link=http://evil.example]x[/link]", time.monotonic() + 30
    with console.watch_bars() as watch:
        watch.step(name, 1, 2)
        # A thread of rich draws the bar now and then.
        while name not in terminal.file.getvalue() and time.monotonic() < end:
            time.sleep(0.05)
    assert name in terminal.file.getvalue()
