"""Pictures of the results, drawn from the tables of their pages: `python -m tests.docs.charts` writes them anew."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib import rc_context

from fedattack.report.drawing import CHANCE, STYLE, looks_of, one_axes, one_legend, to_svg

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "simulations" / "results"
LOOK = """<style>
svg { color: #1c1c1c }
@media (prefers-color-scheme: dark) {
svg { color: #e4e4e4; --series-1: #56b4e9; --series-2: #ff9a5c; --series-3: #3fc99b; --series-4: #e6a3cb }
}
</style>"""
"""Colours of a picture that is looked at by itself, or in a page that shows it as an image."""
NAME, STEP = 18, 9
"""Points of height of a row's name, and of each number below it."""


@dataclass(frozen=True)
class Point:
    """A number of a table, perhaps with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Chart:
    """What is drawn of a table.

    Attributes
    ----------
    title
        What it shows.
    header
        How the table's first line begins.
    names, between
        The columns that name a row, and what stands between them.
    series
        By legend, the column of its numbers.
    by
        The column that names the series in place of ``series``, and that of their numbers.
    only
        What rows must have in a column.
    page
        Where the table stands, if not on the picture's own page.
    line, line_label
        What the numbers are held against.
    scale
        What numbers, not their intervals, are multiplied with.
    """

    title: str
    header: str
    unit: str
    series: Mapping[str, int] = field(default_factory=dict)
    names: tuple[int, ...] = (0,)
    between: str = ", "
    by: tuple[int, int] | None = None
    only: Mapping[int, str] = field(default_factory=dict)
    page: str = ""
    line: float | None = None
    line_label: str = "chance"
    scale: float = 1.0
    logarithmic: bool = False


SHARE = "found (%)"
CHARTS = {
    "calibration": Chart(
        "Reports on nothing that show a leak, in per cent",
        "| federation | nothing",
        "reports with a leak (%)",
        {"reports": 3},
        (0, 1),
        only={2: "200"},
        line=5,
        line_label="allowed",
        scale=0.5,
    ),
    "source": Chart(
        "Owner named, compared with the paper",
        "| data | α | paper, best",
        "owner named (%)",
        {"paper, best round": 2, "ours, best round": 3, "ours, all rounds": 4},
        (0, 1),
        ", α = ",
        line=10,
    ),
    "property": Chart(
        "Clients with the property named after 300 rounds",
        "| setting | runs",
        "F1 score (%)",
        by=(2, 8),
        scale=100,
    ),
    "attribute": Chart(
        "Values of the missing column found",
        "| way to fill in",
        SHARE,
        {"breast cancer, isolated": 1, "diabetes, passive": 4},
        line=50,
        line_label="guessing, about",
    ),
    "group": Chart(
        "Clients whose colour a network names, by defence",
        "| defence | strength | learning loss",
        "named (%)",
        {"attacker does not know the defence": 4, "attacker knows it": 5},
        (0, 1),
        " ",
        line=33.3,
    ),
    "inversion": Chart(
        "How near reconstructed images are, compared with other tools",
        "| network, batch, client sends | images | ours",
        "PSNR (dB); from 20 recognised",
        {"ours": 2, "AIJack, squared": 4, "AIJack, cosine": 5, "breaching": 7},
        line=20,
        line_label="recognised",
    ),
    "labels": Chart(
        "Labels counted right, and what helps",
        "| preset labels",
        "counted right (%)",
        {"attack": 1, "null": 2},
        line=56.2,
        line_label="auxiliary labels taken",
    ),
    "tokens": Chart("Words named, and what helps", "| preset tokens", "F1 score (%)", {"attack": 1, "null": 4}),
    "plaintext": Chart(
        "Statistics of clients that stand in what they send, and what helps",
        "| preset plaintext",
        SHARE,
        {"statistics": 1, "null": 2},
    ),
    "exact": Chart(
        "Examples recovered exactly, and what helps",
        "| preset exact",
        "recovered exactly (%)",
        {"attack": 1, "null": 2},
        page="fedattack/threats/exact/README.md",
    ),
    "sequences": Chart("Texts found exactly, and what helps", "| preset sequences", SHARE, {"attack": 1}),
    "defences": Chart(
        "What defences of the quickstart buy and cost",
        "| quickstart, two seeds",
        "per cent",
        {"owner named": 2, "accuracy of the model": 1},
        line=10,
    ),
    "peers": Chart(
        "Values of a column found, compared with fedkit-learn",
        "| method | `aia-model`",
        SHARE,
        {"diabetes": 1, "breast cancer": 4},
    ),
    "recording": Chart(
        "A round with recording, as a multiple of one without",
        "| a client takes",
        "times as long",
        {"round": 3},
        (0, 1),
        line=1,
        line_label="nothing recorded",
    ),
    "scale": Chart(
        "Time by the model's size, ten clients and five rounds",
        "| what | parameters | clients",
        "seconds",
        by=(1, 6),
        only={2: "10", 3: "5", 4: "1,000", 5: "200"},
        logarithmic=True,
    ),
}
"""By page of the results, its picture."""


def read_rows(text: str, header: str) -> list[list[str]]:
    """Read the table whose first line begins so; an empty first cell repeats the one above it."""
    rows: list[list[str]] = []
    for line in text[text.index(header) :].split("\n\n")[0].splitlines()[2:]:
        row = [re.sub("[*`]", "", cell).strip() for cell in line.split("|")[1:-1]]
        rows.append([row[0] or rows[-1][0], *row[1:]])
    return rows


def read_point(cell: str, scale: float) -> Point | None:
    """Read a cell's first number, and the interval behind it."""
    number = re.match(r"[^\d.−]{0,3}?(−?[\d,]*\.?\d+)", cell)
    if number is None:
        return None
    value = _number(number[1]) * scale
    interval = re.search(r"\((−?[\d.]+)(?:–| to )(−?[\d.]+)", cell)
    if interval is None:
        return Point(value, value, value)
    return Point(value, _number(interval[1]), _number(interval[2]))


def _number(text: str) -> float:
    return float(text.replace("−", "-").replace(",", ""))


def points_of(chart: Chart, text: str) -> dict[str, dict[str, Point]]:
    """Return the points of each series, by row."""
    series: dict[str, dict[str, Point]] = {legend: {} for legend in chart.series}
    group = ""
    for place, row in enumerate(read_rows(text, chart.header)):
        if any(row[column] != wanted for column, wanted in chart.only.items()):
            continue
        name = chart.between.join(row[column] for column in chart.names)
        if chart.by is not None:
            # A setting's rows stand together, and two settings may have the same name.
            group = group if group.startswith(f"{name}\t") else f"{name}\t{place}"
            columns, name = {row[chart.by[0]]: chart.by[1]}, group
        else:
            columns, name = chart.series, f"{name}\t{place}"
        for legend, column in columns.items():
            point = read_point(row[column] if column < len(row) else "", chart.scale)
            if point is not None:
                series.setdefault(legend, {})[name] = point
    return series


def draw(name: str, chart: Chart) -> str:
    """Draw a chart as an SVG that is legible on light and dark pages."""
    page = ROOT / chart.page if chart.page else RESULTS / f"{name}.md"
    series = points_of(chart, page.read_text(encoding="utf-8"))
    rows = list(dict.fromkeys(row for points in series.values() for row in points))
    names = [row.partition("\t")[0] for row in rows]
    height = len(names) * (NAME + STEP * len(series)) + 80
    with rc_context(STYLE):
        figure, axes = one_axes(height + 70)
        if chart.line is not None:
            axes.axvline(chart.line, **(CHANCE | {"label": chart.line_label}))
        for index, (legend, look) in enumerate(looks_of(series).items()):
            shift = (NAME + STEP * (index + 0.35)) / (NAME + STEP * len(series))
            points = series[legend]
            places = [rows.index(row) + shift for row in points]
            values = [point.value for point in points.values()]
            below = [max(point.value - point.low, 0) for point in points.values()]
            above = [max(point.high - point.value, 0) for point in points.values()]
            axes.errorbar(values, places, xerr=[below, above], **(look | {"linestyle": "none", "elinewidth": 1.4}))
        if chart.logarithmic:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
        for place, row_name in enumerate(names):
            axes.text(0.01, place + 0.1, row_name, transform=axes.get_yaxis_transform(), va="top", in_layout=False)
        axes.set_ylim(len(names), 0)
        axes.set_yticks([])
        axes.set_xlabel(chart.unit)
        one_legend(figure, [axes])
        words = " ".join(
            f"{legend}. {'; '.join(f'{row.partition(chr(9))[0]}: {point.value:g}' for row, point in points.items())}."
            for legend, points in series.items()
        )
        svg = to_svg(figure, name, chart.title, words)
    return svg.replace("<svg ", '<svg width="600" ', 1).replace(">", f">{LOOK}", 1) + "\n"


def main() -> None:
    """Write all pictures."""
    for name, chart in CHARTS.items():
        (RESULTS / f"{name}.svg").write_text(draw(name, chart), encoding="utf-8")


if __name__ == "__main__":
    main()
