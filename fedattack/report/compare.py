"""Compares runs that differ in a setting, such as the number of clients."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, cycle
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from fedattack.audit.finding import PROPORTION, Finding, list_words, p_in_words
from fedattack.base.errors import ReportError
from fedattack.base.files import make_private, write_atomically, write_json
from fedattack.report import drawing, words
from fedattack.report.drawing import CHANCE, INK, Plot
from fedattack.report.lacking import list_lacking
from fedattack.report.page import Page, Passage
from fedattack.report.section import PageTable
from fedattack.report.template import scalar
from fedattack.report.validate import read_findings, read_run, validate_findings, validate_run
from fedattack.report.words import interval, printable_all, shown
from fedattack.report.worse import WORSE, Change

_NUMBERS = ("name", "label", "value", "low", "high", "level", "units", "chance", "baselines", "null", "n", "verdict")
_BASELINE_LOOKS: list[dict[str, Any]] = [
    {"color": drawing.SECOND, "linestyle": (0, (5, 2)), "marker": "s"},
    {"color": drawing.THIRD, "linestyle": (0, (1.2, 1.2)), "marker": "^"},
]
# The values of more settings are no name for a run.
_MOST_SETTINGS = 2
# Height of a line of a legend.
_LEGEND_LINE = 26
# Letters of a run's name beside an axis.
_MOST_LETTERS = 60
# Numbers that are drawn on a logarithmic axis differ by this factor at least.
_FAR_APART = 8


@dataclass(frozen=True)
class Run:
    """A run as it is compared: its name, the facts of ``run.json``, and its findings."""

    name: str
    facts: dict[str, Any]
    findings: list[Finding]

    @property
    def names(self) -> list[str]:
        """Names of its findings."""
        return list(map(attrgetter("name"), self.findings))

    @property
    def lacking(self) -> list[str]:
        """What its report leaves out."""
        return list_lacking(self.facts)

    def values(self, keys: Iterable[str]) -> list[Any]:
        """Values of some of its settings."""
        return list(map(self.facts["setting"].get, keys))

    def find_named(self, name: str) -> Finding:
        """Return one of its findings."""
        return next(finding for finding in self.findings if finding.name == name)

    def label(self, keys: Iterable[str]) -> str:
        """Name it by some of its settings."""
        return " · ".join(map(scalar, self.values(keys)))


def compare_runs(
    folders: Sequence[Path], out: Path, by: str | None = None, changes: Sequence[Change] | None = None
) -> Path:
    """Write ``compare.json``, ``compare.md`` and ``compare.html`` about runs that differ in their settings.

    The runs are told apart by `by`, or by every setting in which they differ. Where these are numbers, they order the
    runs. A figure shows the first headline that all runs have; lines join runs only where nothing but one number
    differs. `changes` of the findings of the first run to the second are shown first; the runs may then have the same
    settings.

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
        raise ReportError(f"cannot compare {len(folders)} run folder; expected two or more")
    runs = list(map(read_compared, folders))
    common = _common(runs)
    # Runs may be compared that differ in nothing but time, such as two audits of one app.
    keys = [] if changes is not None and by is None and not _differing(runs) else _keys(runs, by)
    names = " to ".join(_labels(runs, keys))
    # Only numbers have an order; others stay as the caller named them.
    runs = _in_order(runs, keys)
    headline = _headline(runs, common)
    title = _title(runs, headline, keys)
    plots = [by_setting(runs, keys, headline)]
    tables = [table_of(runs, keys, name) for name in common]
    if changes is not None:
        tables.insert(0, _table_of_changes(names, changes))
    out = Path(out)
    try:
        make_private(out)
    except OSError as cause:
        raise ReportError(f"{out} cannot be created ({cause}); choose a folder that can be written") from None
    facts = [facts_of(run, keys) for run in runs]
    compared: dict[str, Any] = {"by": keys, "headline": headline, "runs": facts}
    if changes is not None:
        compared["changes"] = list(map(Change.to_dict, changes))
    write_json(out / "compare.json", compared)
    # What is shared stands once on the page.
    shared = {key: value for key, value in runs[0].facts["setting"].items() if not _differ(runs, key)}
    passages = [
        Passage("figures", "Side by side", "figures", plots),
        Passage("cards", "Findings", "findings", tables),
        Passage("runs", "Runs", "runs", [_describe_run(run, keys) for run in runs]),
        Passage("facts", "The same in all runs", "shared", shared),
    ]
    page = Page(f"Comparison of {len(runs)} runs", title, passages=passages)
    write_atomically(out / "compare.md", page.to_markdown().encode())
    write_atomically(out / "compare.html", page.to_html().encode())
    return out / "compare.html"


def _describe_run(run: Run, keys: Sequence[str]) -> dict[str, Any]:
    """Gather what the page says of a run."""
    return {
        "name": run.name,
        "title": run.facts["title"],
        "settings": dict(zip(keys, run.values(keys), strict=True)),
        "lacking": run.lacking,
        "commands": run.facts["provenance"].get("commands", ()),
    }


def read_compared(folder: Path) -> Run:
    """Read a run folder that was reported.

    Raises
    ------
    ReportError
        If its files are missing or damaged.
    """
    findings = list(map(Finding.to_dict, read_findings(folder)))
    # Validated again: making texts printable may have changed what a schema asks for.
    checked = validate_findings(printable_all(findings))
    name = words.printable(Path(folder).resolve().name)
    return Run(name, validate_run(printable_all(read_run(folder))), checked)


def _distinct(runs: Sequence[Run], texts_of: Callable[[Run], Iterable[str]]) -> list[str]:
    """Return the texts that any run has, each once."""
    return list(dict.fromkeys(chain.from_iterable(map(texts_of, runs))))


def _common(runs: Sequence[Run]) -> list[str]:
    """Name the findings that all runs have."""
    shared = set(runs[0].names).intersection(*map(attrgetter("names"), runs))
    if not shared:
        have = "; ".join(f"{run.name}: {', '.join(run.names) or 'none'}" for run in runs)
        raise ReportError(f"the runs have no finding in common ({have}); compare runs that the same attack was run on")
    return sorted(shared, key=runs[0].names.index)


def _headline(runs: Sequence[Run], common: Sequence[str]) -> str:
    """Name the first finding that is a headline of all runs, or else the first one."""
    for name in common:
        if all(run.find_named(name).headline for run in runs):
            return name
    return common[0]


def _keys(runs: Sequence[Run], by: str | None) -> list[str]:
    """Name the settings that tell the runs apart."""
    known, differing = _distinct(runs, lambda run: run.facts["setting"]), _differing(runs)
    if not differing:
        raise ReportError(f"the settings of {_names(runs)} differ in nothing; expected runs that differ in one")
    choose = f"they differ in: {', '.join(differing)}"
    if by is not None and by not in known:
        raise ReportError(f"no run has a setting {by!r}; {choose}")
    keys = differing if by is None else [by]
    alike: dict[str, list[Run]] = {}
    for run in runs:
        alike.setdefault(run.label(keys), []).append(run)
    for label, same in alike.items():
        if len(same) > 1:
            # Two runs of the same value could not be told apart on the axis.
            raise ReportError(f"{' · '.join(keys)} is {label} in {_names(same)} alike; {choose}")
    return keys


def _differ(runs: Sequence[Run], key: str) -> bool:
    # Values may be lists, which have no hash: they are counted.
    values = _values(runs, [key])
    return values.count(values[0]) < len(values)


def _values(runs: Sequence[Run], keys: Sequence[str]) -> list[Any]:
    return list(chain.from_iterable(map(methodcaller("values", keys), runs)))


def _in_order(runs: Sequence[Run], keys: Sequence[str]) -> list[Run]:
    """Sort runs by their settings if all of these are numbers."""
    if not all(map(_is_number, _values(runs, keys))):
        return list(runs)
    return sorted(runs, key=lambda run: run.values(keys))


def _is_number(value: Any) -> bool:
    # A bool is an int, and has no place on an axis of numbers.
    return isinstance(value, int | float) and not isinstance(value, bool)


def _names(runs: Sequence[Run]) -> str:
    return list_words(list(map(attrgetter("name"), runs)), "and")


def _baselines(runs: Sequence[Run], name: str) -> list[str]:
    """Name the baselines that the finding `name` is held against in some run."""
    return _distinct(runs, lambda run: run.find_named(name).baselines)


def facts_of(run: Run, keys: Sequence[str]) -> dict[str, Any]:
    """Gather what ``compare.json`` says of a run."""
    findings = [dict(zip(_NUMBERS, attrgetter(*_NUMBERS)(finding), strict=True)) for finding in run.findings]
    settings = dict(zip(keys, run.values(keys), strict=True))
    facts = {"run": run.name, "title": run.facts["title"], "settings": settings, "findings": findings}
    if run.lacking:
        facts["left_out"] = run.lacking
    return facts


def table_of(
    runs: Sequence[Run],
    keys: Sequence[str],
    name: str,
    absent: Callable[[Run], str] = lambda run: "not asked",
) -> PageTable:
    """Write the finding `name` of all runs, with its name as the caption.

    A run that lacks it has a row of dashes, and `absent` says why.
    """
    having = [run for run in runs if name in run.names]
    baselines = _baselines(having, name)
    header = [_heading(keys), "value", "interval", "chance", *baselines, "null run (interval)", "n", "verdict"]
    rows = []
    for label, run in zip(_labels(runs, keys), runs, strict=True):
        if name not in run.names:
            rows.append([label, *[words.NOTHING] * (len(header) - 2), absent(run)])
        for finding in run.findings:
            if finding.name == name:
                null = words.with_interval(finding.null, finding.units)
                row = [label, *_result(finding, baselines, finding.units)]
                rows.append([*row, null, f"{finding.n:,}", finding.verdict])
    return PageTable(_label(having, name), name, header, rows)


def _table_of_changes(names: str, changes: Sequence[Change]) -> PageTable:
    """Write how findings changed from a run to the next."""
    rows = []
    for change in changes:
        values = [shown(finding.value, finding.units) for finding in (change.before, change.after)]
        said = f"not surely {WORSE}"
        if change.is_worse:
            said = WORSE
        rows.append([change.after.name, *values, p_in_words(change.p_adjusted), said])
    return PageTable(
        f"From {names}", f"--fail-if {WORSE}", ["finding", "baseline", "new", "corrected p", "change"], rows
    )


def _guesses(finding: Finding, baselines: Sequence[str]) -> list[float | None]:
    return [finding.chance, *map(finding.baselines.get, baselines)]


def _result(finding: Finding, baselines: Sequence[str], units: str) -> list[str]:
    """Write a finding's value and interval, and what guesses give."""
    ends = interval(finding.low, finding.high, units)
    return [shown(finding.value, units), ends, *map(partial(shown, units=units), _guesses(finding, baselines))]


@matplotlib.rc_context(drawing.STYLE)
def by_setting(runs: Sequence[Run], keys: Sequence[str], name: str, *, anchor: str = "by-setting") -> Plot:
    """Draw the finding `name` of all runs.

    Runs are joined by lines only along one setting of numbers in which alone they differ. Other runs stand in rows.
    All ids in the drawing begin with `anchor`.
    """
    findings = [run.find_named(name) for run in runs]
    labels = _labels(runs, keys)
    baselines = _baselines(runs, name)
    first = findings[0]
    others = [key for key in _differing(runs) if key not in keys]
    caption = ""
    if _is_ordered(runs, keys, name):
        figure, axes = drawing.one_axes(300)
        _draw_along(axes, _values(runs, keys), findings, baselines)
        axes.set_xlabel(keys[0])
        caption = "Lines join runs that differ in nothing else."
    else:
        beside = [drawing.short(label, _MOST_LETTERS) for label in labels]
        height = 110 + 18 * len(runs) * (1 + max(map(drawing.lines_of, beside)))
        # Names of many baselines stand below each other.
        if len(baselines) > len(_BASELINE_LOOKS):
            height += _LEGEND_LINE * len(baselines)
        figure, axes = drawing.one_axes(height)
        _draw_rows(axes, findings, baselines)
        drawing.name_rows(axes, beside)
        if others:
            caption = f"The runs differ in {list_words(others, 'and')}, too."
    drawing.one_legend(figure, [axes], handlelength=drawing.DASHES)

    rows, sentences = [], []
    for label, finding in zip(labels, findings, strict=True):
        ends = interval(finding.low, finding.high, finding.units)
        sentences.append(f"{label} {shown(finding.value, finding.units)} ({ends})")
        null = shown(finding.null_value, first.units)
        rows.append([label, *_result(finding, baselines, first.units), null])
    title = _title(runs, name, keys)
    svg = drawing.to_svg(figure, anchor, title, f"Result with its interval: {'; '.join(sentences)}.")
    header = [_heading(keys), "result", "interval", "chance", *baselines, "null run"]
    return Plot(title, svg, caption, header, rows)


def _differing(runs: Sequence[Run]) -> list[str]:
    """Name all settings in which runs differ."""
    return [key for key in _distinct(runs, lambda run: run.facts["setting"]) if _differ(runs, key)]


def _is_ordered(runs: Sequence[Run], keys: Sequence[str], name: str) -> bool:
    """Whether runs differ in nothing but one setting of numbers, and ask the same: these may be joined by lines."""
    one_setting = len(keys) == 1 and _differing(runs) == list(keys)
    return one_setting and all(map(_is_number, _values(runs, keys))) and _ask_the_same(runs, name)


def _ask_the_same(runs: Sequence[Run], name: str) -> bool:
    """Whether the finding `name` is about the same column in all runs, if it is about one."""
    asked = [run.find_named(name).series.get("asked") for run in runs]
    return asked.count(asked[0]) == len(asked)


def _labels(runs: Sequence[Run], keys: Sequence[str]) -> list[str]:
    """Tell runs apart by a few settings, or else by the names of their folders."""
    if _are_names(keys):
        return [run.label(keys) for run in runs]
    names = list(map(attrgetter("name"), runs))
    if len(set(names)) == len(names):
        return names
    return [f"{number}: {name}" for number, name in enumerate(names, start=1)]


def _heading(keys: Sequence[str]) -> str:
    """Name the column of what :func:`_labels` gives."""
    if _are_names(keys):
        return " · ".join(keys)
    return "run"


def _are_names(keys: Sequence[str]) -> bool:
    """Whether the values of these settings name a run."""
    return 0 < len(keys) <= _MOST_SETTINGS


def _title(runs: Sequence[Run], name: str, keys: Sequence[str]) -> str:
    label = _label(runs, name)
    if _are_names(keys):
        return f"{label}, by {' and '.join(keys)}"
    return f"{label}, run by run"


def _label(runs: Sequence[Run], name: str) -> str:
    """Return a finding's label, which names no column and no baseline where those of the runs differ."""
    first = runs[0].find_named(name)
    if _ask_the_same(runs, name) and len({run.find_named(name).label for run in runs}) > 1:
        # What stands in brackets at the end, such as a baseline, is what each run was held against.
        return re.sub(r" \([^()]*\)$", "", first.label)
    if _ask_the_same(runs, name) or not first.series.get("asked"):
        return first.label
    return first.label.replace(first.series["asked"]["column"], "different columns")


def _numbers(findings: Sequence[Finding], baselines: Sequence[str]) -> NDArray[np.float64]:
    """Return (5 + baselines, runs): value, low, high, null, chance and baselines, as they are drawn."""
    columns = []
    for finding in findings:
        columns.append([finding.value, finding.low, finding.high, finding.null_value, *_guesses(finding, baselines)])
    # Transposed, with NaN for None, which matplotlib leaves out.
    return np.asarray(drawing.scale_of(findings[0].units) * np.array(columns, dtype=float).T)


def _draw_along(axes: Axes, setting: Sequence[float], findings: Sequence[Finding], baselines: Sequence[str]) -> None:
    """Draw results with their intervals, chance, null runs and baselines over a setting; lines join results.

    The axis is logarithmic where the setting's values are far apart.
    """
    value, low, high, null, chance, *guesses = _numbers(findings, baselines)
    units = findings[0].units
    positions = np.array(setting, dtype=float)
    label = f"result with {words.level(findings[0].level)} interval"
    axes.vlines(positions, low, high, color=drawing.FIRST, linewidth=5, alpha=0.35)
    axes.plot(positions, value, "-o", color=drawing.FIRST, markersize=6, label=label)
    if not np.isnan(chance).all():
        axes.plot(positions, chance, **CHANCE)
    if not np.isnan(null).all():
        axes.plot(positions, null, color=INK, linestyle="none", marker="x", label="null run")
    # Looks repeat where there are more baselines than looks.
    for baseline, values, look in zip(baselines, guesses, cycle(_BASELINE_LOOKS), strict=False):
        axes.plot(positions, values, **look, markersize=4, linewidth=1.2, label=baseline)
    far_apart = _far_apart(positions)
    if far_apart:
        axes.set_xscale("log")
    axes.set_xticks(positions, list(map("{:g}".format, positions)))
    axes.minorticks_off()
    axes.margins(x=0.1)
    axes.set_ylabel(drawing.quantity("Result", units))
    # With the number of clients, chance may fall so far that a straight axis would hide it and the results.
    if units == PROPORTION and far_apart and _far_apart(chance):
        axes.set_yscale("log")
        # Half of the lowest chance and a little above 100 %, so that markers are not cut.
        axes.set_ylim(np.nanmin(chance) / 2, 140)
        axes.yaxis.set_major_formatter("{x:g}")
    elif units == PROPORTION:
        axes.set_ylim(*_limits(value, high, null, chance, *guesses))


def _draw_rows(axes: Axes, findings: Sequence[Finding], baselines: Sequence[str]) -> None:
    """Draw the same, a row for each run, and join nothing."""
    value, low, high, null, chance, *guesses = _numbers(findings, baselines)
    units = findings[0].units
    rows = np.arange(len(findings), dtype=float)
    label = f"result with {words.level(findings[0].level)} interval"
    axes.hlines(rows, low, high, color=drawing.FIRST, linewidth=5, alpha=0.35)
    axes.plot(value, rows, "o", color=drawing.FIRST, markersize=7, label=label)
    if not np.isnan(chance).all():
        axes.vlines(chance, rows - 0.35, rows + 0.35, **CHANCE)
    if not np.isnan(null).all():
        axes.plot(null, rows, color=INK, linestyle="none", marker="x", markersize=6, label="null run")
    for name, values, look in zip(baselines, guesses, cycle(_BASELINE_LOOKS), strict=False):
        hollow = {"markerfacecolor": "none", "markersize": 7, "linestyle": "none", "label": name}
        axes.plot(values, rows, **(look | hollow))
    axes.set_xlabel(drawing.quantity("Result", units))
    if units == PROPORTION:
        axes.set_xlim(*_limits(value, high, null, chance, *guesses))


def _limits(*drawn: NDArray[np.float64]) -> tuple[float, float]:
    """Return the ends of an axis in per cent: from 0 to the largest number, or to 100 where that is above half."""
    largest = max(float(np.nanmax(numbers, initial=0)) for numbers in drawn)
    if largest > 50 or largest == 0:
        largest = 100
    return -0.04 * largest, 1.04 * largest


def _far_apart(values: NDArray[np.float64]) -> bool:
    known = values[~np.isnan(values)]
    # A logarithmic axis takes positive numbers alone.
    return bool(len(known) and known.min() > 0 and known.max() >= _FAR_APART * known.min())
