"""A page says the same as HTML and as Markdown."""

import re

from fedattack.report.page import Page, Passage
from fedattack.report.section import PageTable

TABLE = PageTable("Cells", "In brackets: intervals.", ["what", "value"], [["noise", "25% | 30%"]])
PAGE = Page(
    kind="Trade-off study",
    title="What defences *cost*",
    about="Each point is a run.",
    passages=[
        Passage("lines", "In short", "summary", ["first, see `fedattack tradeoff`", "<b>second</b>"]),
        Passage("picture", "All attacks", "", "all.svg"),
        Passage("figures", "At a glance", "glance", [TABLE]),
        Passage("table", "Cells", "table-1", TABLE),
        Passage("links", "Reports", "runs", {"cells/one/report.html": "as it was"}),
        Passage("facts", "The same in all", "shared", {"rounds": 3}),
        Passage("lines", "Not there", "lacking", []),
    ],
    commands=["fedattack tradeoff quickstart --out DIR", "fedattack audit one"],
    version="1.2",
    departure="Changed in the preset: rounds=3.",
)


def test_markdown_has_every_passage_that_has_items():
    assert PAGE.to_markdown() == (
        "# What defences \\*cost\\*\n\nEach point is a run.\n\n**Changed in the preset: rounds=3.**\n\n"
        "## In short\n\n- first, see `fedattack tradeoff`\n- &lt;b&gt;second&lt;/b&gt;\n\n![All attacks](all.svg)\n\n"
        "## At a glance\n\n### Cells\n\n| what | value |\n| --- | ---: |\n| noise | 25% \\| 30% |\n\n"
        "In brackets: intervals.\n\n"
        "## Cells\n\n| what | value |\n| --- | ---: |\n| noise | 25% \\| 30% |\n\nIn brackets: intervals.\n\n"
        "## Reports\n\n- [as it was](cells/one/report.html)\n\n## The same in all\n\n- rounds: 3\n\n"
        "fedattack 1.2; the second command makes the first cell alone:\n\n"
        "```\nfedattack tradeoff quickstart --out DIR\nfedattack audit one\n```\n"
    )


def test_html_has_the_same_but_for_the_picture():
    html = PAGE.to_html()
    headings = re.findall("<h2[^>]*>([^<]*)</h2>", html)
    assert headings == ["In short", "At a glance", "Cells", "Reports", "The same in all"]
    assert "<li>first, see fedattack tradeoff</li>" in html
    assert "&lt;b&gt;second" in html
    assert "<strong>Changed in the preset: rounds=3.</strong>" in html
    assert "all.svg" not in html
