"""Figure of gradient inversion: true images beside reconstructed ones."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from fedattack.audit.finding import Finding
from fedattack.report.drawing import STYLE, Plot, panels, short, to_svg
from fedattack.report.section import Lists, Section
from fedattack.report.words import shown
from fedattack.threats.inversion.tables import COLUMNS, FORMS, QUARTERS

_PAIRS = 4
_CELL = 132


@matplotlib.rc_context(STYLE)
def pictures(finding: Finding, slug: str) -> Plot:
    """Each true image over what the server made of the reply (``series["pictures"]``)."""
    images = finding.series["pictures"]
    lines = math.ceil(len(images) / _PAIRS)
    figure, grid = panels(2 * _CELL * lines, 2 * lines * _PAIRS, _PAIRS)
    for axes in grid:
        axes.set_axis_off()
    for number, picture in enumerate(images):
        line, column = divmod(number, _PAIRS)
        above = 2 * line * _PAIRS + column
        _draw(grid[above], picture["truth"], f"client {short(picture['client'])}")
        _draw(grid[above + _PAIRS], picture["image"], shown(picture["psnr"], "dB"))

    rows = []
    for picture in images:
        ratio, similarity = shown(picture["psnr"], "dB"), shown(picture["ssim"], "")
        rows.append([picture["client"], str(picture["round"]), ratio, similarity])
    pairs = [f"client {row[0]}, round {row[1]}: {row[2]}, structural similarity {row[3]}" for row in rows]
    title = f"{finding.label}: true images and reconstructions"
    described = f"Grid of {len(images)} pairs of images, the true one above its reconstruction. {'; '.join(pairs)}."
    return Plot(
        title,
        to_svg(figure, slug, title, described),
        "Above, what a client trained on; below, the server's reconstruction, with its peak signal-to-noise ratio. "
        f"These are the first {len(images)} examples that were attacked, not the best. Only the audit knows the true "
        "images; the server does not.",
        ["client", "round", "peak signal-to-noise ratio", "structural similarity"],
        rows,
    )


def _draw(axes: Axes, pixels: Any, title: str) -> None:
    axes.imshow(np.asarray(pixels, dtype=np.uint8), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set_title(title)


def _lists(series: Mapping[str, Any]) -> Iterator[Lists]:
    for number, picture in enumerate(series.get("pictures", ())):
        for key in ("truth", "image"):
            yield f"pictures[{number}].{key}", {f"row {row}": values for row, values in enumerate(picture[key])}


def _best_seen(findings: Sequence[Finding]) -> str:
    """Name the example of which the server made the best image, of those that are shown."""
    pictures = findings[0].series.get("pictures", ())
    if not pictures:
        return ""
    best = max(pictures, key=lambda picture: picture["psnr"])
    whose = f"client {best['client']} in round {best['round']}"
    return f"The best of the {len(pictures)} reconstructions shown is that of {whose}: {shown(best['psnr'], 'dB')}."


SECTION = Section(
    question="Can the server see what the examples look like?",
    exposed=_best_seen,
    sentences={
        "recognised": "The server reconstructed {value} of the examples that clients trained on{interval} to 20 dB or "
        "better{chance}.",
        "cells": "{value} of the cells of rows that clients trained on{interval} are right{chance}.",
        "rows": "{value} of these rows{interval} are right in all cells{chance}.",
        "sure-cells": "{value} of the quarter of cells that the attacker is surest of are right.",
    },
    tables=(COLUMNS, QUARTERS),
    figures=(("pictures", pictures),),
    forms=FORMS,
    lists=_lists,
    more_is_worse=("psnr", "ssim"),
    less_is_worse=("mse",),
)
