"""The table of reconstructed examples, and pictures of some."""

from fedattack.audit import kinds
from fedattack.audit.table import Table, in_file

MOST_PICTURES = 20

RECORDS = Table(
    "records",
    in_file("client", "round", "record", "psnr", "ssim", "mse", "recognised"),
    file="one row for each example and each reply that was attacked; psnr is the peak signal-to-noise ratio in dB, "
    "ssim the structural similarity of images, mse the mean squared error of inputs in 0 … 1",
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
