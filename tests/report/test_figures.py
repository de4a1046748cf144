import re
from dataclasses import replace
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest

from fedattack.report import drawing, figures
from fedattack.report.strip import strip
from fedattack.threats.property import section as property_figures
from tests.report import example

SVG = "{http://www.w3.org/2000/svg}"


def plots():
    finding, run = example.findings()[0], example.run()
    return [
        strip(finding, [], "strip"),
        figures.per_round(finding, "rounds"),
        figures.per_client(finding, "clients"),
        figures.reliability(finding, "reliability"),
        figures.who_holds_what(run["holdings"], "holdings"),
        figures.training(run["accuracy"], run["overfitting"], "training"),
        figures.training(run["accuracy"], None, "accuracy"),
        *property_plots(example.prolin_findings()[0]),
    ]


def property_plots(finding):
    names = ("f1", "precision_and_recall", "posteriors", "overlap", "distributions", "stability")
    return [getattr(property_figures, name)(finding, name) for name in names]


def with_series(**series):
    return replace(example.findings()[0], series=series)


def parsed(svg):
    return ElementTree.fromstring(svg)  # noqa: S314 our own output


def texts(svg):
    return [element.text for element in parsed(svg).iter(f"{SVG}text")]


def extents(svg, colour):
    """Widths and heights of the filled shapes of a colour."""
    found = []
    for element in parsed(svg).iter(f"{SVG}path"):
        if f"fill: {colour}" in element.get("style", ""):
            points = np.array(re.findall(r"(-?[\d.]+) (-?[\d.]+)", element.get("d")), dtype=float)
            found.append(np.ptp(points, axis=0))
    return np.array(found)


@pytest.mark.slow
def test_figures_are_the_same_each_time():
    assert plots() == plots()


@pytest.mark.slow
def test_drawing_leaves_matplotlib_as_it_was():
    before = dict(matplotlib.rcParams)
    plots()
    assert dict(matplotlib.rcParams) == before


@pytest.mark.slow
def test_figures_fit_into_one_page():
    together = "".join(plot.svg for plot in plots())
    ids = re.findall(r' id="([^"]+)"', together)
    assert len(ids) == len(set(ids))
    for reference in re.findall(r'href="#([^"]+)"', together) + re.findall(r"url\(#([^)]+)\)", together):
        assert reference in ids
    assert "<style" not in together
    assert "font-family: '" not in together


@pytest.mark.parametrize("plot", plots(), ids=lambda plot: plot.title)
def test_each_figure_has_a_name_a_description_and_no_fixed_text_colour(plot):
    root = parsed(plot.svg)
    assert root.get("role") == "img"
    named = {element.get("id"): element for element in root.iter() if element.get("id")}
    assert named[root.get("aria-labelledby")].text == plot.title
    assert re.search(r"\d", named[root.get("aria-describedby")].text)
    colours = set(re.findall(r"(?:fill|stroke): ([^;\"]+)", plot.svg))
    okabe_ito = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
    variables = {f"var(--series-{i}, {c})" for i, c in enumerate(okabe_ito, 1)}
    assert colours <= {"none", "currentColor"} | variables
    assert all("currentColor" in text.get("style") for text in root.iter(f"{SVG}text"))


def test_descriptions_state_the_numbers():
    finding = with_series(per_round={"rounds": [1, 2, 4], "value": [0.2, None, 0.5], "null": [0.1, 0.12, 0.11]})
    words = figures.per_round(finding, "x").svg
    assert "Lowest 20.0% in round 1, highest 50.0% in round 4, 50.0% in round 4." in words
    assert "Chance is 10.0%. The null run stays within 10.0–12.0%." in words


def test_tables_hold_the_numbers_that_are_drawn():
    finding = with_series(per_round={"rounds": [1, 2], "value": [0.2, None], "low": [0.1, None], "high": [0.3, None]})
    assert figures.per_round(finding, "x").rows == [
        ["1", "20.0%", "10.0–30.0%", "–", "10.0%"],
        ["2", "–", "–", "–", "10.0%"],
    ]
    holdings = {"clients": ["a", "b"], "classes": ["0", "1"], "counts": [[1, 2], [0, 1500]]}
    assert figures.who_holds_what(holdings, "x").rows == [["a", "1", "2", "3"], ["b", "0", "1,500", "1,500"]]
    curves = {"rounds": [1, 3], "seeds": {"0": [0.2, 0.4], "1": [0.4, None]}, "what": "test split"}
    late = {"rounds": [3, 5], "seeds": {"0": [0.1, -0.1]}, "what": "gap"}
    assert figures.training(curves, late, "x").rows == [
        ["1", "30.0%", "–"],
        ["3", "40.0%", "10.0%"],
        ["5", "–", "-10.0%"],
    ]


def test_bars_are_as_long_as_the_rates():
    clients = [{"client": c, "value": v, "low": v - 0.1, "high": v + 0.1, "n": 9} for c, v in (("a", 0.8), ("b", 0.2))]
    bars = extents(figures.per_client(with_series(per_client=clients), "x").svg, "var(--series-1")
    lengths = sorted(bars[:, 0])[-2:]
    assert lengths[1] / lengths[0] == pytest.approx(4, rel=1e-3)


def test_bubbles_have_areas_in_proportion_to_the_records():
    holdings = {"clients": ["a", "b", "c"], "classes": ["0"], "counts": [[100], [25], [4]]}
    widths = np.unique(extents(figures.who_holds_what(holdings, "x").svg, "var(--series-1")[:, 0].round(2))
    assert len(widths) == 3
    assert (widths[-1] / widths) ** 2 == pytest.approx([25, 4, 1], rel=0.02)


def test_a_round_s_own_chance_is_drawn():
    """Where few clients take part in a round, it is easier to guess than among all."""
    lists = {"rounds": [1, 2], "value": [0.5, 0.6], "chance": [0.2, 0.25]}
    plot = figures.per_round(with_series(per_round=lists), "x")
    assert [row[-1] for row in plot.rows] == ["20.0%", "25.0%"]
    assert "Chance is 25.0%." in plot.svg


def test_of_many_clients_some_of_every_size_are_drawn():
    counts = np.random.default_rng(1).permutation(1000)[:, None] * [1, 2]
    holdings = {"clients": list(map(str, range(1000))), "classes": ["0", "1"], "counts": counts.tolist()}
    plot = figures.who_holds_what(holdings, "x")
    totals = [int(row[-1].replace(",", "")) for row in plot.rows]
    assert len(totals) == 50
    assert min(totals) == 0
    assert max(totals) == 3 * 999
    assert np.abs(np.diff(np.sort(totals)) / 3 - 999 / 49).max() <= 1
    assert f"{3 * sum(range(1000)):,} training examples" in plot.svg
    assert len(plot.svg) < 200_000


def test_many_clients_are_cut_to_the_most_exposed_and_stay_in_the_table():
    clients = [{"client": str(i), "value": 1 - i / 100, "low": None, "high": None, "n": 5} for i in range(60)]
    plot = figures.per_client(with_series(per_client=clients), "x")
    assert len(plot.rows) == 60
    assert "The 15 of 60 clients with the highest rates" in plot.caption
    assert "14" in texts(plot.svg)
    assert "15" not in texts(plot.svg)


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (200, 10), (10, 100)])
def test_holdings_of_any_size_are_drawn_without_crowded_ticks(clients, classes):
    counts = np.random.default_rng(0).integers(0, 50, (clients, classes)).tolist()
    holdings = {"clients": [f"client-{i}" for i in range(clients)], "classes": list(map(str, range(classes)))}
    plot = figures.who_holds_what({**holdings, "counts": counts}, "x")
    assert len([text for text in texts(plot.svg) if text.startswith("client-")]) <= 20
    assert len(texts(plot.svg)) <= 44
    assert len(plot.rows) == min(clients, 50)
    assert f"at {clients} clients." in plot.caption


@pytest.mark.parametrize(
    "series",
    [
        {"per_round": {"rounds": [1], "value": [0.5], "low": [0.4], "high": [0.6]}},
        {"per_round": {"rounds": [1, 2], "value": [None, None]}},
        {"per_client": [{"client": "a", "value": None, "low": None, "high": None, "n": 0}]},
        {"reliability": {"confidence": [None], "accuracy": [None], "count": [0]}},
    ],
)
@pytest.mark.filterwarnings("error")
def test_the_smallest_series_are_drawn(series):
    ((name, _),) = series.items()
    plot = getattr(figures, name)(with_series(**series), "x")
    words = next(parsed(plot.svg).iter(f"{SVG}desc")).text
    assert words.endswith(".")
    assert "nan" not in plot.svg.lower()
    assert {len(row) for row in plot.rows} == {len(plot.header)}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "$\\frac{1}$", "_", "", "客户端", "a" * 500, "&amp;"])
def test_names_from_outside_stay_text(name):
    clients = [{"client": name, "value": 0.5, "low": 0.4, "high": 0.6, "n": 9}]
    plot = figures.per_client(with_series(per_client=clients), "x")
    holdings = figures.who_holds_what({"clients": [name], "classes": [name], "counts": [[3]]}, "y")
    for svg in (plot.svg, holdings.svg):
        shown = name if len(name) <= 12 else f"{name[:5]}…{name[-6:]}"
        assert not name or shown in texts(svg)
        assert "<script" not in svg


SCORES = {"edges": [0.0, 0.5, 1.0], "positive": [10, 30], "negative": [90, 10]}
HISTOGRAM = {"title": "Scores", "axis": "Score", "positive": "members", "negative": "non-members"}


def heights(svg):
    """Heights of the steps of each group, in the order of drawing."""
    found = []
    for element in parsed(svg).iter(f"{SVG}path"):
        if "clip-path" in element.attrib and "series" in element.get("style", ""):
            points = np.array(re.findall(r"(-?[\d.]+) (-?[\d.]+)", element.get("d")), dtype=float)
            found.append(points[:, 1].max() - points[1:-1:2, 1])
    return found


@pytest.mark.filterwarnings("error")
def test_both_groups_are_drawn_in_the_same_bins_as_shares_and_differ_without_colour():
    plot = figures.histogram(with_series(scores=SCORES), "x", **HISTOGRAM)
    assert plot.rows == [["0 to 0.5", "10", "90"], ["0.5 to 1", "30", "10"]]
    assert "They have 35.0% of their areas in common" in plot.svg, "the smaller of 25 and 90, and of 75 and 10 per cent"
    assert {"members (40)", "non-members (100)", "Score", "Share of the group (%)"} <= set(texts(plot.svg))
    members, others = heights(plot.svg)
    assert members[1] / members[0] == pytest.approx(3, rel=0.01)
    assert others[0] / others[1] == pytest.approx(9, rel=0.01)
    assert others[0] / members[1] == pytest.approx(90 / 75, rel=0.01)
    fills = re.findall(r"fill: (none|var\(--series)", "".join(re.findall(r"<path[^>]*series[^>]*>", plot.svg)))
    assert {"none", "var(--series"} <= set(fills), "one group is filled, the other is an outline"


@pytest.mark.filterwarnings("error")
def test_a_curve_without_a_band_claims_none():
    curve = {"fpr": [0.001, 0.1], "value": [0.0, 1.0]}
    words = {"title": "ROC", "found": "holders", "accused": "other clients"}
    plot = figures.roc(with_series(roc=curve), "x", **words)
    assert plot.rows == [["0.1%", "0%", "–"], ["10.0%", "100%", "–"]]
    assert "band" not in plot.svg + plot.caption
    banded = figures.roc(with_series(roc={**curve, "low": [0, 0.9], "high": [0.1, 1]}), "x", **words)
    assert "95% band" in texts(banded.svg)
    assert "The band holds for each point separately." in banded.caption


@matplotlib.rc_context(drawing.STYLE)
@pytest.mark.parametrize(("letters", "lines"), [(6, 2), (30, 5), (200, 25)])
def test_a_legend_has_as_many_columns_as_there_is_room_for(letters, lines):
    figure, axes = drawing.one_axes(600)
    for number in range(5):
        axes.plot([0, 1], label=f"{number} " + " ".join(["abcdefg"] * (letters // 8 or 1)))
    drawing.one_legend(figure, [axes])
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width
    rows = {round(text.get_window_extent().y0) for text in legend.get_texts()}
    assert len(rows) <= lines
