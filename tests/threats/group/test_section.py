"""How private attributes are shown: two figures of small panels, whatever the number of adversaries."""

import re
from dataclasses import replace

import pytest

from fedattack.report import render_html
from fedattack.threats.group.section import by_confidence, by_round
from tests.report import example
from tests.report.test_figures import texts

ADVERSARIES = ("a network of known structure", "an SVM", "a random forest", "a network of unknown structure (adaptive)")


def findings(count=4):
    found = []
    for number in range(count):
        value = 0.4 + number / 10
        series = {
            "per_round": {"rounds": [1, 5, 9], "value": [value, None, value + 0.1]},
            "reliability": {"confidence": [0.5, 0.9], "accuracy": [0.4, value], "count": [3, 7], "ece": 0.1},
            "confusion": {"values": ["a", "b"], "counts": [[1, 2], [3, 4]]},
        }
        words = {"attack": "private-attribute", "metric": f"colour-{number}", "headline": number == 0}
        label = f"Colour named by {ADVERSARIES[number % 4]}"
        found.append(replace(example.findings()[0], series=series, label=label, **words))
    return found


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("count", [1, 2, 3, 16])
@pytest.mark.parametrize("draw", [by_round, by_confidence])
@pytest.mark.slow
def test_each_adversary_has_a_small_panel(draw, count):
    plot = draw(findings(count), "x")
    panels = [text for text in texts(plot.svg) if text.startswith("Colour: ")]
    assert len(panels) == count
    assert {row[0] for row in plot.rows} == {finding.label for finding in findings(count)}


def test_panels_have_the_same_axes():
    plot = by_round(findings(), "x")
    # Of two columns the first one alone has numbers.
    assert texts(plot.svg).count("100") == 2
    assert plot.rows[0] == ["Colour named by a network of known structure", "1", "40.0%"]


@pytest.mark.slow
def test_the_page_has_two_figures_and_one_table_instead_of_one_for_each_adversary():
    run = {key: value for key, value in example.run().items() if key not in ("holdings", "accuracy")}
    page = render_html(findings(16), run)
    details = page.partition('id="details"')[2].partition("</section>")[0]
    assert len(re.findall("<svg", details)) == 2
    assert details.count("which value was mistaken for which</h3>") == 1
