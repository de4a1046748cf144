"""The scores of canaries: one mark for each, of those that were in the run and of those that were not."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from fedattack.report.drawing import FIRST, SECOND, STYLE, Plot, name_rows, one_axes, to_svg
from fedattack.report.words import compact

# Marks of a row; of more each k-th one of the sorted scores is drawn.
_MOST_MARKS = 500


@matplotlib.rc_context(STYLE)
def canary_scores(canaries: Mapping[str, Any], slug: str) -> Plot | None:
    """Draw the scores by which canaries were told apart; None if none were kept.

    Parameters
    ----------
    canaries
        As ``claim.schema.json`` describes it; ``scores.out`` is empty where the null is known by analysis.
    slug
        What ids in the drawing start with; unique in the page.
    """
    series = {"in the run": canaries["scores"]["in"], "not in the run": canaries["scores"]["out"]}
    series = {name: sorted(scores) for name, scores in series.items() if scores}
    if not series:
        return None
    figure, axes = one_axes(60 + 40 * len(series))
    rows = []
    for index, (name, scores) in enumerate(series.items()):
        # With a few hundred marks a row is full; each k-th keeps the shape.
        _marks(axes, index, scores, (FIRST, SECOND)[index])
        middle = float(np.median(scores))
        rows.append([name, f"{len(scores):,}", compact(scores[0]), compact(middle), compact(scores[-1])])
    name_rows(axes, list(series))
    axes.set_xlabel("Score")
    axes.margins(x=0.05)
    title = "Scores of the canaries"
    header = ["Canaries", "How many", "Least", "Median", "Most"]
    words = "; ".join(f"{row[0]}: {row[1]} scores from {row[2]} to {row[4]}, median {row[3]}" for row in rows)
    caption = "One mark for each canary. The further apart both rows are, the more the released model tells."
    return Plot(title, to_svg(figure, slug, title, f"{words}."), caption, header, rows)


def _marks(axes: Axes, height: int, scores: Sequence[float], colour: str) -> None:
    step = -(-len(scores) // _MOST_MARKS)
    kept = scores[::step]
    axes.plot(kept, [height] * len(kept), "|", color=colour, markersize=16, alpha=0.6, markeredgewidth=1.4)
    axes.plot(float(np.median(scores)), height, "D", color=colour, markersize=6)
