"""Datasets that come with scikit-learn: digits, also as words and texts, diabetes, breast cancer."""

from pathlib import Path

import numpy as np

from fedattack.data.source import Pool, Source
from fedattack.data.tables import Declaration, encode


def digits(seed: int, root: Path) -> Pool:
    """Read scikit-learn's handwritten digits: 1,797 images (1, 8, 8). Neither parameter is used."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return Pool(bunch.images[:, np.newaxis], bunch.target.astype(np.int64), classes=10, images=True)


def digit_words(seed: int, root: Path) -> Pool:
    """Write the digits as texts of 64 words out of 1,088, one-hot: word 17·i + v says that pixel i has the value v."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    values = bunch.data.astype(np.int64)
    count, pixels = values.shape
    x = np.zeros((count, 17 * pixels), dtype=np.float32)
    # One word for each pixel: 17 values each.
    x[np.arange(count)[:, None], 17 * np.arange(pixels) + values] = 1
    return Pool(x, bunch.target.astype(np.int64), classes=10)


def digit_texts(seed: int, root: Path) -> Pool:
    """Write the digits as texts of 16 words out of 256: each is four neighbouring pixels of a row, of four greys."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    # Values 0 … 16 become four greys, 0 … 3.
    greys = (bunch.data.astype(np.int64) // 5).reshape(len(bunch.data), 16, 4)
    # Four greys in the number system of base 4.
    words = greys @ np.array([64, 16, 4, 1])
    return Pool(words.astype(np.float32), bunch.target.astype(np.int64), classes=10)


def diabetes(seed: int, root: Path) -> Pool:
    """Read scikit-learn's diabetes (442 patients, 10 columns, a regression); its sensitive column is ``sex``."""
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes(as_frame=True, scaled=False)
    return encode(bunch.frame, Declaration(target="target", task="regression", sensitive="sex"), "diabetes")


def breast_cancer(seed: int, root: Path) -> Pool:
    """Read scikit-learn's breast cancer (569 tumours, 30 numbers, benign or malignant) with a binary column.

    No column has few values. So ``symmetry error`` is cut at its median and declared as sensitive. If columns are cut
    like that, the others tell the least of this one (a random forest is right for 74 %).
    """
    from sklearn.datasets import load_breast_cancer

    frame = load_breast_cancer(as_frame=True).frame
    name = "symmetry error"
    # Above or not above the median: two classes of about equal size.
    frame[name] = np.where(frame[name] > frame[name].median(), "high", "low")
    declared = Declaration(target="target", sensitive=name, domain={name: ("low", "high")})
    return encode(frame, declared, "breast-cancer")


SOURCES = (
    Source("digits", "handwritten digits, 1,797 grey images of 8 x 8, bundled with scikit-learn", digits, position=0),
    Source(
        "digit-words",
        "the same digits as 64 words each of 1,088, one for each pixel and value; one-hot",
        digit_words,
        position=49,
    ),
    Source(
        "digit-texts",
        "the same digits as texts of 16 words, numbers from 0 to 255, each of four pixels; for the model decoder",
        digit_texts,
        position=49,
    ),
    Source(
        "diabetes",
        "442 patients of 10 columns, a regression, sensitive column sex, bundled with scikit-learn",
        diabetes,
        position=50,
    ),
    Source(
        "breast-cancer",
        "569 tumours of 30 columns, 2 classes, sensitive column symmetry error, bundled with scikit-learn",
        breast_cancer,
        position=51,
    ),
)
