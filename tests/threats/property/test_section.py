import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from fedattack.threats.property import section as property_figures
from tests.report import example
from tests.report.test_figures import parsed, texts

SVG = "{http://www.w3.org/2000/svg}"


def with_series(**series):
    return replace(example.prolin_findings()[0], series=series)


def lines(svg, colour):
    """Points of the drawn lines of a colour, in the figure's units; legend entries are horizontal and left out."""
    found = []
    for element in parsed(svg).iter(f"{SVG}path"):
        style = element.get("style", "")
        if f"stroke: var(--series-{colour}," in style and "fill: none" in style:
            points = np.array(re.findall(r"(-?[\d.]+) (-?[\d.]+)", element.get("d")), dtype=float)
            if len(points) > 1 and np.ptp(points[:, 1]) > 0 and "Q" not in element.get("d"):
                found.append(points)
    return found


def dashes(svg):
    return {
        colour: re.findall(rf"stroke-dasharray: ([\d.,]+); [^\"]*stroke: var\(--series-{colour},", svg)
        for colour in range(1, 6)
    }


METHODS = {
    "rounds": [10, 20, 30],
    "methods": {
        "PROLIN": {"f1": [0.2, 0.6, 1.0], "precision": [None, 0.5, 1.0], "recall": [0.0, 0.75, 1.0]},
        "OLS": {"f1": [0.0, 0.25, 0.5], "precision": [0.1, 0.2, 0.5], "recall": [0.1, 0.3, 0.5]},
    },
    "chance": 0.25,
}


def test_f1_is_drawn_where_it_belongs():
    plot = property_figures.f1(with_series(methods=METHODS), "x")
    (prolin,), (ols,) = lines(plot.svg, 1), lines(plot.svg, 2)
    assert np.allclose(np.diff(prolin[:, 0]), np.diff(ols[:, 0]))
    # 0.5 apart at the end, as far as between 0.0 and 0.5 of OLS; the SVG's y grows downwards.
    assert ols[2, 1] - prolin[2, 1] == pytest.approx(ols[0, 1] - ols[2, 1], abs=1e-3)
    assert prolin[0, 1] - prolin[2, 1] == pytest.approx(0.8 / 0.5 * (ols[0, 1] - ols[2, 1]), abs=1e-3)
    assert "After 30 rounds: PROLIN 100%; OLS 50.0%. Chance is 25.0%." in plot.svg
    assert plot.header == ["rounds seen", "PROLIN", "OLS"]
    assert plot.rows == [["10", "20.0%", "0%"], ["20", "60.0%", "25.0%"], ["30", "100%", "50.0%"]]


def test_methods_differ_in_dashes_and_markers_and_look_the_same_in_all_figures():
    finding = example.prolin_findings()[0]
    first, second, third = (
        dashes(getattr(property_figures, name)(finding, "x").svg)
        for name in ("f1", "precision_and_recall", "stability")
    )
    patterns = [tuple(dict.fromkeys(first[colour])) for colour in range(1, 6)]
    assert len(set(patterns)) == 5
    assert patterns == [tuple(dict.fromkeys(second[colour])) for colour in range(1, 6)]
    assert patterns == [tuple(dict.fromkeys(third[colour])) for colour in range(1, 6)]
    # A method that one series lacks does not pass its looks on to the next.
    some = {"rounds": [10, 20], "methods": {"OLS": [0.5, 1.0]}}
    alone = property_figures.stability(with_series(methods=METHODS, stability=some), "x").svg
    assert not lines(alone, 1)
    assert lines(alone, 2)


def test_precision_and_recall_are_side_by_side_and_in_the_table():
    plot = property_figures.precision_and_recall(with_series(methods=METHODS), "x")
    left, right = lines(plot.svg, 2)
    assert left[:, 0].max() < right[:, 0].min()
    assert len(lines(plot.svg, 1)[0]) == 2  # nobody was named after 10 rounds: no precision
    assert plot.header == ["rounds seen", "PROLIN precision", "OLS precision", "PROLIN recall", "OLS recall"]
    assert plot.rows[0] == ["10", "–", "10.0%", "0%", "10.0%"]
    bare = {**METHODS, "methods": {"PROLIN": {"f1": [0.2, 0.6, 1.0]}}}
    assert property_figures.precision_and_recall(with_series(methods=bare), "x") is None


def test_overlap_table_holds_what_was_checked_of_each_round():
    series = {"rounds": [1, 3], "overlap": [0.1, 0.8], "low": [0.0, 0.7], "high": [0.2, 0.9], "accuracy": [0.95, 0.6]}
    series |= {"checked_rounds": [3], "checked_accuracy": [0.55]}
    plot = property_figures.overlap(with_series(overlap=series), "x")
    assert plot.rows == [
        ["1", "10.0%", "0–20.0%", "95.0%", "–"],
        ["3", "80.0%", "70.0–90.0%", "60.0%", "55.0%"],
    ]
    assert "Overlap: 10.0% in round 1, 80.0% in round 3." in plot.svg
    (drawn,) = lines(plot.svg, 1)
    assert drawn[0, 1] > drawn[1, 1]


def test_distributions_are_normal_densities_over_their_samples():
    shot = {"round": 7, "plus": {"mean": 2.0, "sd": 1.0}, "minus": {"mean": -2.0, "sd": 2.0}, "overlap": 0.2}
    plot = property_figures.distributions(
        with_series(distributions=[shot | {"plus_sample": [1.0, 2.5, 3.0], "minus_sample": []}]), "x"
    )
    (plus,), (minus,) = lines(plot.svg, 1), lines(plot.svg, 2)
    ground = plus[:, 1].max()
    heights = [ground - curve[:, 1].min() for curve in (plus, minus)]
    assert heights[0] / heights[1] == pytest.approx(norm.pdf(0, 0, 1) / norm.pdf(0, 0, 2), rel=0.01)
    tops = [curve[curve[:, 1].argmin(), 0] for curve in (plus, minus)]
    assert tops[0] > tops[1]
    assert "Round 7: OVL 20.0%" in texts(plot.svg)
    assert plot.rows == [["7", "20.0%", "2", "1", "-2", "2"]]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_any_number_of_distributions_and_features_without_spread_are_drawn(count):
    still = {"mean": 0.5, "sd": 0.0}
    shots = [
        {"round": r, "plus": still, "minus": still, "overlap": 1.0, "plus_sample": [0.5, 0.5], "minus_sample": []}
        for r in range(count)
    ]
    plot = property_figures.distributions(with_series(distributions=shots), "x")
    assert len([text for text in texts(plot.svg) if text.endswith("OVL 100%")]) == count
    assert "nan" not in plot.svg.lower()


def answer(client, posterior, positive=False, **changes):
    entry = {"client": client, "target": "3", "seed": 0, "posterior": posterior}
    ends = {"low": posterior / 2, "high": (1 + posterior) / 2}
    return entry | ends | {"positive": positive, "rounds": 5} | changes


def test_the_most_suspicious_clients_come_first():
    entries = [answer("a", 0.1), answer("c", 0.9, True), answer("d", 0.5)]
    plot = property_figures.posteriors(with_series(posteriors=entries), "x")
    assert [row[0] for row in plot.rows] == ["c", "d", "a"]
    assert plot.rows[0] == ["c", "3", "0", "90.0%", "45.0–95.0%", "yes", "5"]
    names = [text for text in texts(plot.svg) if text in "abcd"]
    assert names == ["c", "d", "a"]
    assert "Client, most suspicious first" in texts(plot.svg)
    assert "client c 90.0% (45.0–95.0%), has the property; client d" in plot.svg


def test_at_most_twenty_five_posteriors_are_drawn_and_all_are_in_the_table():
    entries = [answer(f"n{i}", 1 - i / 100, target=str(i % 2)) for i in range(60)]
    plot = property_figures.posteriors(with_series(posteriors=entries), "x")
    assert len([text for text in texts(plot.svg) if text.startswith("n")]) == 25
    assert "n23 · 1" in texts(plot.svg)
    assert len(plot.rows) == 60
    assert plot.caption.startswith("The 25 most suspicious of 60 listed.")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("name", "series"),
    [
        ("f1", {"methods": {"rounds": [1], "methods": {"PROLIN": {"f1": [None]}}}}),
        ("stability", {"stability": {"rounds": [1, 2], "methods": {"PROLIN": [1.0, 1.0]}}}),
        ("posteriors", {"posteriors": [answer("a", 0.5)]}),
    ],
)
def test_the_smallest_series_are_drawn(name, series):
    plot = getattr(property_figures, name)(with_series(**series), "x")
    words = next(parsed(plot.svg).iter(f"{SVG}desc")).text
    assert words.endswith(".")
    assert "nan" not in plot.svg.lower()
    assert {len(row) for row in plot.rows} == {len(plot.header)}


def test_one_number_of_rounds_is_a_row_for_each_method_and_no_line():
    methods = {"PROLIN": {"f1": [0.8], "precision": [1.0], "recall": [2 / 3]}, "OLS": {"f1": [None]}}
    finding = with_series(
        methods={"rounds": [10], "methods": methods, "chance": 0.2},
        stability={"rounds": [10], "methods": {"OLS": [1.0]}},
    )
    plot = property_figures.f1(finding, "x")
    assert plot.title == "F1 score, precision and recall after 10 rounds"
    assert plot.rows == [["PROLIN", "80.0%", "100%", "66.7%"], ["OLS", "–", "–", "–"]]
    assert {"PROLIN", "OLS", "precision", "recall", "chance (F1)"} <= set(texts(plot.svg))
    assert property_figures.stability(finding, "x") is None
    assert property_figures.precision_and_recall(finding, "x") is None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["<script>1</script>", "$\\frac{1}$", "_", "客户端", "a" * 500, "&amp;"])
def test_names_from_outside_stay_text(name):
    series = {
        "posteriors": [answer(name, 0.5, target=name), answer("b", 0.2)],
        "methods": {"rounds": [1, 2], "methods": {name: {"f1": [0.1, 0.2]}}},
    }
    finding = with_series(**series)
    for draw in (property_figures.posteriors, property_figures.f1):
        svg = draw(finding, "x").svg
        parsed(svg)
        assert "<script" not in svg
    short = name if len(name) <= 12 else f"{name[:5]}…{name[-6:]}"
    assert f"{short} · {short}" in texts(property_figures.posteriors(finding, "x").svg)
