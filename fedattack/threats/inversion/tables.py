"""The tables of reconstructed examples, of columns and of quarters of cells, and pictures of some examples."""

from fedattack.audit import kinds
from fedattack.audit.table import Column, Table, in_file
from fedattack.threats.inversion.options import SURE

MOST_PICTURES = 20

RECORDS = Table(
    "records",
    in_file("client", "round", "record", "psnr", "ssim", "mse", "recognised", "cells"),
    file="one row for each example and each reply that was attacked; psnr is the peak signal-to-noise ratio in dB, "
    "ssim the structural similarity of images, mse the mean squared error of inputs in 0 … 1, "
    "cells the share of a row's cells that is right, for tables with categories",
)

CELLS = Table(
    "cells",
    in_file("client", "round", "record", "column", "found", "unsure", "right"),
    file="one row for each cell of a table and each reply that was attacked, with how unsure of it the attacker is, "
    "from 0 to 1; found is the index of a category among its inputs, or a number as the model takes it",
)

QUARTER_NAMES = ("surest", "second", "third", "least sure")

_COMMON = Column("common", "the most common value is right", kinds.SHARE, about="Share that the most common value has.")

_UNSURE = kinds.number(0, 1)

QUARTERS = Table(
    "quarters",
    (
        Column("quarter", "quarter", kinds.choice(*QUARTER_NAMES)),
        Column("cells", "cells", kinds.whole(1)),
        Column("unsure", "unsure, at most", _UNSURE, about="The largest of its cells, from 0 to 1."),
        Column("right", "right", kinds.SHARE, about="Share of the cells that is right."),
        _COMMON,
    ),
    title="Cells by how sure of them the attacker is",
    caption="The attacker sorts cells by how far its searches agree on them, without knowing the truth: from 0, where "
    "all found the same, to 1.",
    over_runs=True,
    about="Quarters of the cells of all runs, the surest first.",
)

# Nothing where the searches did not say how sure they are, or are sure of none.
_SOME = kinds.optional(kinds.SHARE)

COLUMNS = Table(
    "columns",
    (
        Column("column", "column", kinds.TEXT),
        Column("right", "right", kinds.SHARE, about="Share of the column's cells that is right."),
        _COMMON,
        Column("sure", "the attacker is sure of", _SOME, about="Share of its cells of which the attacker is sure."),
        Column("sure_right", "of these right", _SOME, about="Share of these that is right."),
    ),
    title="What was found of each column",
    caption="At most {shown} columns of the first run. The attacker is sure of a cell that is unsure by at most "
    f"{SURE:g}.",
    most=50,
    about="Columns of the first run.",
)

_PIXEL = kinds.whole(0, 255)
_IMAGE = kinds.list_of(kinds.list_of(kinds.either(_PIXEL, kinds.list_of(_PIXEL, 3, 3)), 1), 1)

FORMS = {
    "pictures": kinds.list_of(
        kinds.fields(
            {
                "client": kinds.TEXT,
                "round": kinds.INDEX,
                "psnr": kinds.NUMBER,
                "ssim": kinds.NUMBER,
                "truth": _IMAGE,
                "image": _IMAGE,
            }
        ),
        most=MOST_PICTURES,
    )
}
"""True and reconstructed images, as pixels by row and column, in colour with three numbers a pixel."""
