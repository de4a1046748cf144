"""One result beside what it is held against: the null run, what is trivial, and guessing, each with its name."""

from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes

from fedattack.audit.finding import PROPORTION, Finding
from fedattack.base.errors import short
from fedattack.report.drawing import CHANCE, FIRST, INK, SECOND, STYLE, Plot, one_axes, scale_of, to_svg
from fedattack.report.words import interval, level, shown, with_interval

_WIDEST_NAME = 30


@matplotlib.rc_context(STYLE)
def strip(finding: Finding, explained: Sequence[tuple[str, float]], slug: str) -> Plot | None:
    """Draw one finding, and what else is explained in its units, by name; None if there is no value.

    All ids in the drawing start with `slug`.
    """
    if finding.value is None:
        return None
    null = finding.null
    names = ["this attack", *(short(name, _WIDEST_NAME) for name, _ in explained)]
    if null is not None:
        names.insert(1, f"nothing to find{_say_fewer(finding.n, null['n'])}")
    figure, axes = one_axes(46 + 21 * len(names))
    scale = scale_of(finding.units)
    _row(axes, 0, finding.value, finding.low, finding.high, scale, colour=FIRST, marker="o")
    if null is not None:
        _row(axes, 1, null["value"], null["low"], null["high"], scale, colour=SECOND, marker="s")
    # Baselines come last, after the attack and the null run.
    for row, (_, value) in enumerate(explained, len(names) - len(explained)):
        axes.plot(scale * value, row, "D", color=INK, markerfacecolor="none", markersize=6, markeredgewidth=1.4)
    if finding.chance is not None:
        axes.axvline(scale * finding.chance, **CHANCE)
        said = "no gain"
        if finding.units == PROPORTION:
            said = f"guessing {shown(finding.chance, finding.units)}"
        axes.annotate(
            said,
            (scale * finding.chance, 1),
            xycoords=("data", "axes fraction"),
            xytext=(3, 2),
            textcoords="offset points",
        )
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    _scale(axes, finding, scale)
    title = f"{finding.label}: result, null and guessing"
    words = f"{shown(finding.value, finding.units)}, {level(finding.level)} interval "
    words += f"{interval(finding.low, finding.high, finding.units)}; chance {shown(finding.chance, finding.units)}; "
    words += f"null run {with_interval(null, finding.units)}"
    for name, value in explained:
        words += f"; {name} {shown(value, finding.units)}"
    return Plot(title, to_svg(figure, slug, title, f"{words}."), "", [], [])


def _say_fewer(n: int, of_null: int) -> str:
    """Say of how many targets the null run is, where these are so few that its interval is wider for that."""
    if 2 * of_null >= n:
        return ""
    return f" (n = {of_null:,})"


def _row(
    axes: Axes,
    height: int,
    value: float,
    low: float | None,
    high: float | None,
    scale: float,
    *,
    colour: str,
    marker: str,
) -> None:
    if low is not None and high is not None:
        axes.plot([scale * low, scale * high], [height, height], color=colour, linewidth=5, alpha=0.4)
    axes.plot(scale * value, height, marker, color=colour, markersize=7.5)


def _scale(axes: Axes, finding: Finding, scale: float) -> None:
    """Begin a rate's axis at nothing, and end it where there is nothing more to see."""
    if finding.units != PROPORTION:
        axes.set_xlabel(finding.units)
        axes.margins(x=0.12)
        return
    # Limits that matplotlib chose for the data, before they are changed.
    right = axes.get_xlim()[1]
    axes.set_xlim(0, min(max(right * 1.12, 5), 102))
    axes.xaxis.set_major_formatter("{x:g}%")
