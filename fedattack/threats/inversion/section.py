"""Figure of gradient inversion: true images beside reconstructed ones."""

from collections.abc import Iterator, Mapping
from typing import Any

import matplotlib
import numpy as np

from fedattack.audit.finding import Finding
from fedattack.report.drawing import STYLE, Plot, panels, short, to_svg
from fedattack.report.section import Lists, Section, forms_beside
from fedattack.report.words import shown

_PAIRS = 4
_CELL = 132


@matplotlib.rc_context(STYLE)
def pictures(finding: Finding, slug: str) -> Plot:
    """Each true image over what the server made of the reply (``series["pictures"]``)."""
    items = finding.series["pictures"]
    lines = -(-len(items) // _PAIRS)
    figure, grid = panels(2 * _CELL * lines, 2 * lines * _PAIRS, _PAIRS)
    for axes in grid:
        axes.set_axis_off()
    for number, item in enumerate(items):
        line, column = divmod(number, _PAIRS)
        for row, key, title in (
            (0, "truth", f"client {short(item['client'])}"),
            (1, "image", shown(item["psnr"], "dB")),
        ):
            axes = grid[(2 * line + row) * _PAIRS + column]
            pixels = np.asarray(item[key], dtype=np.uint8)
            axes.imshow(pixels, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            axes.set_title(title)

    title = f"{finding.label}: true images and reconstructions"
    words = f"Grid of {len(items)} pairs of images, the true one above its reconstruction. " + "; ".join(
        f"client {item['client']}, round {item['round']}: {shown(item['psnr'], 'dB')}, structural similarity "
        f"{shown(item['ssim'], '')}"
        for item in items
    )
    return Plot(
        title,
        to_svg(figure, slug, title, words + "."),
        "Above, what a client trained on; below, what the server made of its reply, with its peak signal-to-noise "
        f"ratio. The first {len(items)} records that were attacked, not the best. The server does not see the true "
        "images; the audit knows them.",
        ["client", "round", "peak signal-to-noise ratio", "structural similarity"],
        [[item["client"], str(item["round"]), shown(item["psnr"], "dB"), shown(item["ssim"], "")] for item in items],
        tall=lines > 1,
    )


def _lists(series: Mapping[str, Any]) -> Iterator[Lists]:
    for number, picture in enumerate(series.get("pictures", ())):
        for key in ("truth", "image"):
            yield f"pictures[{number}].{key}", {f"row {row}": values for row, values in enumerate(picture[key])}


SECTION = Section(
    sentences={
        "recognised": "Of the records that clients trained on, the server reconstructed {value}{interval} so well "
        "that they can be recognised, from what the clients sent{chance}.",
    },
    figures=(("pictures", pictures),),
    forms=forms_beside(__file__),
    lists=_lists,
    more_is_worse=("psnr", "ssim"),
    less_is_worse=("mse",),
)
