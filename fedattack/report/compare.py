"""Compares runs that differ in a setting, such as the number of clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray

from fedattack.audit.finding import PROPORTION, Finding
from fedattack.errors import ReportError
from fedattack.files import write_atomically, write_json
from fedattack.report.drawing import (
    CHANCE,
    DASHES,
    FIRST,
    INK,
    SECOND,
    STYLE,
    THIRD,
    Plot,
    draw_lines,
    floats,
    label_rounds,
    looks_of,
    name_ticks,
    one_axes,
    one_legend,
    panels,
    quantity,
    scale_of,
    short,
    to_svg,
)
from fedattack.report.html import scalar, template
from fedattack.report.validate import read_findings, read_run, validate_findings, validate_run
from fedattack.report.words import (
    interval,
    level,
    markdown,
    markdown_row,
    printable,
    printable_all,
    shown,
    with_interval,
)

_NUMBERS = ("name", "label", "value", "low", "high", "level", "units", "chance", "baselines", "null", "n", "verdict")
_BASELINE_LOOKS: list[dict[str, Any]] = [
    {"color": SECOND, "linestyle": (0, (5, 2)), "marker": "s"},
    {"color": THIRD, "linestyle": (0, (1.2, 1.2)), "marker": "^"},
]
# Numbers that are drawn on a logarithmic axis differ by this factor at least.
_FAR_APART = 8


@dataclass(frozen=True)
class _Run:
    name: str
    facts: dict[str, Any]
    findings: list[Finding]

    def setting(self, key: str) -> Any:
        return self.facts["setting"].get(key)

    def named(self, name: str) -> Finding:
        return next(finding for finding in self.findings if finding.name == name)

    def label(self, by: Sequence[str]) -> str:
        return " · ".join(scalar(self.setting(key)) for key in by)

    def f1(self, name: str) -> dict[str, list[float | None]]:
        """F1 score of each method by rounds, if the finding `name` has them."""
        methods = self.named(name).series.get("methods", {}).get("methods", {})
        return {method: measures["f1"] for method, measures in methods.items()}


def compare_runs(folders: Sequence[Path], out: Path, by: str | None = None) -> Path:
    """Write ``compare.json``, ``compare.md`` and ``compare.html`` about runs that differ in their settings.

    The runs are told apart by `by`, or by every setting in which they differ, and are sorted by it where it is numbers.
    The figures show the first headline that all have, and the F1 score of each method against the rounds as Figure 8
    of the PROLIN paper.

    Parameters
    ----------
    folders
        Run folders, each with ``findings.json`` and ``run.json``.
    out
        Folder for the three files; it is made if it is not there.
    by
        The setting to compare by.

    Returns
    -------
    Path
        Path of ``compare.html``.

    Raises
    ------
    ReportError
        If there are fewer than two folders, one lacks its files or holds damaged ones, the runs have no finding in
        common, differ in nothing, or `by` does not tell them apart.
    """
    if len(folders) < 2:
        raise ReportError(f"there is nothing to compare in {len(folders)} run folder; expected two or more")
    runs = [_read(Path(folder)) for folder in folders]
    common = [f.name for f in runs[0].findings if all(f.name in {g.name for g in r.findings} for r in runs)]
    common = list(dict.fromkeys(common))
    if not common:
        have = "; ".join(f"{run.name}: {', '.join(f.name for f in run.findings) or 'none'}" for run in runs)
        raise ReportError(f"the runs have no finding in common ({have}); compare runs that the same attack was run on")
    keys = _told_apart_by(runs, by)
    numbers = [[run.setting(key) for key in keys] for run in runs]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for row in numbers for value in row):
        runs = [run for _, run in sorted(zip(numbers, runs, strict=True), key=lambda pair: pair[0])]
    headline = next((name for name in common if all(run.named(name).headline for run in runs)), common[0])
    by_setting, by_rounds = _by_setting(runs, keys, headline), _by_rounds(runs, keys, headline)
    tables = [(runs[0].named(name), _rows(runs, keys, name)) for name in common]
    headers = {name: _header(runs, keys, name) for name in common}
    title = f"{runs[0].named(headline).label}, by {' and '.join(keys)}"

    out = Path(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise ReportError(f"{out} cannot be created ({cause}); choose a folder that can be written") from None
    write_json(
        out / "compare.json",
        {
            "by": keys,
            "headline": headline,
            "runs": [
                {
                    "run": run.name,
                    "title": run.facts["title"],
                    "settings": {key: run.setting(key) for key in keys},
                    "findings": [{key: getattr(finding, key) for key in _NUMBERS} for finding in run.findings],
                }
                for run in runs
            ],
        },
    )
    sections = [(f"{finding.label} ({finding.name})", headers[finding.name], rows) for finding, rows in tables]
    if by_rounds is not None:
        sections.append(("F1 score of each method after the last round", by_setting.header, by_setting.rows))
    text = f"# {markdown(title)}\n" + "".join(
        f"\n## {markdown(name)}\n\n"
        + "\n".join(map(markdown_row, [head, ["---"] + ["---:"] * (len(head) - 1), *rows]))
        + "\n"
        for name, head, rows in sections
    )
    write_atomically(out / "compare.md", text.encode())
    page = out / "compare.html"
    html = template("compare.html.j2").render(
        title=title,
        keys=keys,
        runs=runs,
        plots=[plot for plot in (by_setting, by_rounds) if plot],
        tables=tables,
        headers=headers,
        shared=_shared(runs),
    )
    write_atomically(page, html.encode())
    return page


def _read(folder: Path) -> _Run:
    findings = validate_findings(printable_all([finding.to_dict() for finding in read_findings(folder)]))
    return _Run(printable(folder.resolve().name), validate_run(printable_all(read_run(folder))), findings)


def _told_apart_by(runs: Sequence[_Run], by: str | None) -> list[str]:
    known = list(dict.fromkeys(key for run in runs for key in run.facts["setting"]))
    differing = [key for key in known if any(run.setting(key) != runs[0].setting(key) for run in runs)]
    choose = f"they differ in: {', '.join(differing)}" if differing else "they differ in nothing"
    if not differing:
        raise ReportError(f"the settings of {_names(runs)} differ in nothing; expected runs that differ in one")
    if by is not None and by not in known:
        raise ReportError(f"no run has a setting {by!r}; {choose}")
    keys = differing if by is None else [by]
    alike: dict[str, list[_Run]] = {}
    for run in runs:
        alike.setdefault(run.label(keys), []).append(run)
    for label, same in alike.items():
        if len(same) > 1:
            raise ReportError(f"{' · '.join(keys)} is {label} in {_names(same)} alike; {choose}")
    return keys


def _names(runs: Sequence[_Run]) -> str:
    *first, last = [run.name for run in runs]
    return f"{', '.join(first)} and {last}"


def _shared(runs: Sequence[_Run]) -> list[tuple[str, Any]]:
    return [
        (key, value)
        for key, value in runs[0].facts["setting"].items()
        if all(key in run.facts["setting"] and run.setting(key) == value for run in runs)
    ]


def _bars(runs: Sequence[_Run], name: str) -> list[str]:
    """Names of the baselines that the finding `name` is held against in some run."""
    return list(dict.fromkeys(bar for run in runs for bar in run.named(name).baselines))


def _header(runs: Sequence[_Run], keys: Sequence[str], name: str) -> list[str]:
    bars = _bars(runs, name)
    return [" · ".join(keys), "value", "interval", "chance", *bars, "null run (interval)", "n", "verdict"]


def _rows(runs: Sequence[_Run], keys: Sequence[str], name: str) -> list[list[str]]:
    return [
        [
            run.label(keys),
            shown(finding.value, finding.units),
            interval(finding.low, finding.high, finding.units),
            shown(finding.chance, finding.units),
            *(shown(finding.baselines.get(bar), finding.units) for bar in _bars(runs, name)),
            with_interval(finding.null, finding.units),
            f"{finding.n:,}",
            finding.verdict,
        ]
        for run in runs
        for finding in run.findings
        if finding.name == name
    ]


@matplotlib.rc_context(STYLE)
def _by_setting(runs: Sequence[_Run], keys: Sequence[str], name: str) -> Plot:
    findings = [run.named(name) for run in runs]
    units = findings[0].units
    places, on_scale = _places(runs, keys)
    bars = _bars(runs, name)
    scores = [run.f1(name) for run in runs]
    methods = list(dict.fromkeys(method for curves in scores for method in curves))
    ends = {method: [curves.get(method, [None])[-1] for curves in scores] for method in methods}
    columns = {key: [getattr(finding, key) for finding in findings] for key in ("value", "low", "high", "chance")}
    columns["null"] = [finding.null["value"] if finding.null else None for finding in findings]
    columns |= {bar: [finding.baselines.get(bar) for finding in findings] for bar in bars}
    drawn = {key: scale_of(units) * floats(values) for key, values in columns.items()}
    figure, axes = one_axes(300)
    # With methods, the colours are theirs.
    colour = INK if methods else FIRST
    axes.vlines(places, drawn["low"], drawn["high"], color=colour, linewidth=5, alpha=0.35)
    axes.plot(
        places,
        drawn["value"],
        "o" if methods else "-o",
        color=colour,
        markerfacecolor="none" if methods else colour,
        markersize=9 if methods else 6,
        label=f"result with {level(findings[0].level)} interval",
    )
    for key, label, look in (("chance", "chance", CHANCE), ("null", "null run", {"marker": "x"})):
        if not np.isnan(drawn[key]).all():
            axes.plot(places, drawn[key], **{"color": INK, "linestyle": "none", **look, "label": label})
    for bar, look in zip(bars, cycle(_BASELINE_LOOKS), strict=False):
        axes.plot(places, drawn[bar], **look, markersize=4, linewidth=1.2, label=bar)
    if methods:
        draw_lines(axes, places.tolist(), ends, looks_of(methods))
    axes.set_xlabel(" · ".join(keys))
    axes.set_ylabel(quantity("Result", units))
    if on_scale:
        axes.set_xscale("log")
        axes.set_xticks(places, [run.label(keys) for run in runs])
        axes.minorticks_off()
        axes.margins(x=0.1)
    else:
        name_ticks(axes.xaxis, [run.label(keys) for run in runs])
        axes.set_xlim(-0.4, len(runs) - 0.6)
    # Where chance itself falls a long way, as it does with the number of clients, a straight axis would hide both.
    if units == PROPORTION and on_scale and not methods and _far_apart(drawn["chance"]):
        axes.set_yscale("log")
        axes.set_ylim(np.nanmin(drawn["chance"]) / 2, 140)
        axes.yaxis.set_major_formatter("{x:g}")
    elif units == PROPORTION:
        axes.set_ylim(-4, 104)
    one_legend(figure, [axes], handlelength=DASHES)

    title = f"{findings[0].label}, by {' and '.join(keys)}"
    words = "Result with its interval: " + "; ".join(
        f"{run.label(keys)} {shown(f.value, f.units)} ({interval(f.low, f.high, f.units)})"
        for run, f in zip(runs, findings, strict=True)
    )
    return Plot(
        title,
        to_svg(figure, "by-setting", title, words + "."),
        ("" if on_scale else "Runs are evenly spaced, whatever the setting's values.")
        + " Lines: F1 after the last round." * bool(methods),
        [" · ".join(keys), "result", "interval", "chance", *bars, "null run", *methods],
        [
            [
                run.label(keys),
                shown(f.value, units),
                interval(f.low, f.high, units),
                shown(f.chance, units),
                *(shown(columns[bar][i], units) for bar in bars),
                shown(columns["null"][i], units),
                *(shown(values[i]) for values in ends.values()),
            ]
            for i, (run, f) in enumerate(zip(runs, findings, strict=True))
        ],
    )


def _places(runs: Sequence[_Run], keys: Sequence[str]) -> tuple[NDArray[np.float64], bool]:
    """Where runs stand: at their setting on a logarithmic axis if that is one of far apart numbers, else in a row."""
    values = [run.setting(key) for run in runs for key in keys]
    if len(keys) == 1 and all(isinstance(v, int | float) and not isinstance(v, bool) and v > 0 for v in values):
        places = np.array(values, dtype=float)
        if _far_apart(places):
            return places, True
    return np.arange(len(runs), dtype=float), False


def _far_apart(values: NDArray[np.float64]) -> bool:
    known = values[~np.isnan(values)]
    return bool(len(known) and known.min() > 0 and known.max() >= _FAR_APART * known.min())


@matplotlib.rc_context(STYLE)
def _by_rounds(runs: Sequence[_Run], keys: Sequence[str], name: str) -> Plot | None:
    having = [run for run in runs if run.f1(name)]
    if not having:
        return None
    looks = looks_of(method for run in having for method in run.f1(name))
    columns = min(len(having), 2)
    lines = -(-len(having) // columns)
    figure, grid = panels(95 + 165 * lines, len(having), columns, shared=True)
    words, rows = "Line charts, one per run.", []
    for axes, run in zip(grid, having, strict=True):
        series, scores, label = run.named(name).series["methods"], run.f1(name), run.label(keys)
        rounds = series["rounds"]
        draw_lines(axes, rounds, scores, looks)
        if series.get("chance") is not None:
            axes.axhline(100 * series["chance"], **CHANCE)
        axes.set_title(f"{keys[0]} = {short(label)}" if len(keys) == 1 else short(label))
        label_rounds(axes, "", ticks=4)
        ends = ", ".join(f"{method} {shown(values[-1])}" for method, values in scores.items())
        words += f" {label}, after {rounds[-1]} rounds: {ends}."
        filled = [scores.get(method, [None] * len(rounds)) for method in looks]
        rows += [[label, str(r), *map(shown, values)] for r, *values in zip(rounds, *filled, strict=True)]
    figure.supxlabel("Rounds that the server has seen", fontsize=11.5)
    figure.supylabel("F1 score (%)", fontsize=11.5)
    one_legend(figure, grid, handlelength=DASHES)
    title = f"F1 score of each method, by {' and '.join(keys)}"
    return Plot(
        title,
        to_svg(figure, "by-rounds", title, words),
        "What each method answers from the rounds so far, against the truth; one panel per run.",
        [" · ".join(keys), "rounds seen", *looks],
        rows,
        tall=lines > 2,
    )
