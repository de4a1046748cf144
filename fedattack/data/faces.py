"""Faces with private attributes: LFW with the attributes of Kumar et al. 2009, and CelebA (Liu et al. 2015).

Tasks and attributes are those of RecUP-FL (Cui et al. 2023, Sections 5.2 and 6.1 to 6.3). Scikit-learn's own reader
of LFW keeps pickles in the data folder and reads them back, so that it is used for the download alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.data._pool import Pool
from fedattack.errors import DataError

LFW_ATTRIBUTES = "http://www.cs.columbia.edu/CAVE/databases/pubfig/download/lfw_attributes.txt"
CELEBA_PAGE = "http://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"

CELEBA_RECORDS = 20_000
"""The first of 202,599 pictures, whose persons are in no order: each process that loads them has to decode them."""

CELEBA_BY_HAND = f"fetch the aligned pictures and the annotations from {CELEBA_PAGE} and put them into a folder celeba, as torchvision's CelebA has them"  # noqa: E501 - one line for a person

# Value → name of its score in LFW's attributes, of which the largest decides.
_LFW_CHOICES: Mapping[str, Mapping[str, str]] = {
    "race": {"asian": "Asian", "white": "White", "black": "Black"},
    "age": {"baby": "Baby", "child": "Child", "youth": "Youth", "middle-aged": "Middle Aged", "senior": "Senior"},
    "glasses": {"eyeglasses": "Eyeglasses", "sunglasses": "Sunglasses", "none": "No Eyewear"},
    "hair": {"black": "Black Hair", "blond": "Blond Hair", "brown": "Brown Hair", "bald": "Bald"},
}

# Attribute → its name in CelebA's annotations, and what 0 and 1 are called.
_CELEBA_SWITCHES: Mapping[str, tuple[str, tuple[str, str]]] = {
    "age": ("Young", ("old", "young")),
    "glasses": ("Eyeglasses", ("none", "eyeglasses")),
    "smile": ("Smiling", ("none", "smiling")),
}

Box = tuple[int, int, int, int]
"""Left, top, right and bottom of what is cut out of a picture."""


def lfw(seed: int, root: Path) -> Pool:
    """Read Labeled Faces in the Wild, with smiling or not as the task.

    Pictures are cut and halved as scikit-learn does it by default, to 62 x 47, in colour. An attribute is a score above
    0, or where there are several values the one of the largest score: ``race``, ``gender``, ``age``, ``glasses`` and
    ``hair``. Records can be divided by ``person``.

    Parameters
    ----------
    seed : int
        Not used.
    root : Path
        The data folder, with ``lfw_home/lfw_funneled``, which is downloaded, and ``lfw_home/lfw_attributes.txt``.

    Raises
    ------
    DataError
        If something is missing or damaged.
    """
    folder, file = root / "lfw_home" / "lfw_funneled", root / "lfw_home" / "lfw_attributes.txt"
    if not folder.is_dir():
        raise DataError(f"dataset 'lfw' is not in {root}: expected lfw_home/lfw_funneled; run `fedattack download lfw`")
    if not file.is_file():
        raise DataError(
            f"dataset 'lfw' in {root} lacks lfw_home/lfw_attributes.txt, which says who smiles and is not downloaded; "
            f"fetch {LFW_ATTRIBUTES} and put it there"
        )
    persons, numbers, scores = _lfw_scores(file)
    files = [folder / person / f"{person}_{number:04d}.jpg" for person, number in zip(persons, numbers, strict=True)]
    private = {
        name: (tuple(values), np.argmax([scores[score] for score in values.values()], axis=0))
        for name, values in _LFW_CHOICES.items()
    }
    return Pool(
        _pictures(files, (250, 250), (78, 70, 172, 195), (47, 62)),
        (scores["Smiling"] > 0).astype(np.int64),
        classes=2,
        images=True,
        groups={"person": np.unique(persons, return_inverse=True)[1]},
        private={"gender": (("female", "male"), (scores["Male"] > 0).astype(np.int64)), **private},
    )


def _lfw_scores(file: Path) -> tuple[list[str], list[int], dict[str, NDArray[np.float64]]]:
    """Return persons and numbers of the pictures, and their scores (n,) by name.

    After a line for people come the names, behind a ``#``, and then a line for each picture, all separated by tabs.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        names = lines[1].lstrip("#").strip().split("\t")
        rows = [line.strip().split("\t") for line in lines[2:] if line.strip()]
        table = np.array([row[2:] for row in rows], dtype=np.float64)
        scores = dict(zip(names[2:], table.T, strict=True))
        numbers = [int(row[1]) for row in rows]
    except (OSError, ValueError, IndexError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{file}: expected a person, a number and scores a line, separated by tabs ({reason}); fetch it again from "
            f"{LFW_ATTRIBUTES}"
        ) from None
    needed = ["Male", "Smiling", *(name for values in _LFW_CHOICES.values() for name in values.values())]
    lacking = [name for name in needed if name not in scores]
    if lacking or not np.isfinite(table).all():
        what = f"no scores {lacking[0]!r}" if lacking else "scores that are no finite numbers"
        raise DataError(f"{file}: {what}; fetch it again from {LFW_ATTRIBUTES}")
    return [row[0].replace(" ", "_") for row in rows], numbers, scores


def download_lfw(root: Path) -> None:
    """Fetch LFW's pictures into ``root``; not again if they are there."""
    from sklearn.datasets import _lfw

    # The public function would go on to read the pictures, by way of pickles.
    _lfw._check_fetch_lfw(data_home=str(root), n_retries=0)


def celeba(seed: int, root: Path) -> Pool:
    """Read the first :data:`CELEBA_RECORDS` pictures of CelebA, with male or not as the task.

    Of the aligned pictures the middle square is scaled to 32 x 32. Private are ``age``, which RecUP-FL hides,
    ``glasses`` and ``smile``. Records can be divided by ``person``.

    Parameters
    ----------
    seed : int
        Not used.
    root : Path
        The data folder, with a folder ``celeba`` as torchvision has it.

    Raises
    ------
    DataError
        If something is missing or damaged.
    """
    from torchvision.datasets import CelebA

    try:
        source = CelebA(str(root), split="all", target_type=["attr", "identity"], download=False)
        place = {name: index for index, name in enumerate(source.attr_names)}
        male, *others = (place[name] for name in ("Male", *(name for name, _ in _CELEBA_SWITCHES.values())))
    except (RuntimeError, OSError, ValueError, LookupError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"dataset 'celeba' is not in {root}, or its annotations are damaged ({reason}); {CELEBA_BY_HAND}"
        ) from None
    table = source.attr[:CELEBA_RECORDS].numpy().astype(np.int64)
    files = [root / "celeba" / "img_align_celeba" / name for name in source.filename[:CELEBA_RECORDS]]
    return Pool(
        _pictures(files, (178, 218), (0, 20, 178, 198), (32, 32)),
        table[:, male],
        classes=2,
        images=True,
        groups={"person": np.unique(source.identity[:CELEBA_RECORDS, 0].numpy(), return_inverse=True)[1]},
        private={
            name: (values, table[:, column])
            for (name, (_, values)), column in zip(_CELEBA_SWITCHES.items(), others, strict=True)
        },
    )


def _pictures(files: Sequence[Path], whole: tuple[int, int], box: Box, size: tuple[int, int]) -> NDArray[Any]:
    """Return what ``box`` cuts out of each picture of size ``whole``, scaled to ``size``: (n, 3, height, width)."""
    from torchvision.datasets.folder import pil_loader

    x = np.empty((len(files), 3, size[1], size[0]), dtype=np.uint8)
    for row, file in enumerate(files):
        try:
            picture = pil_loader(str(file))
        except (OSError, ValueError, SyntaxError) as error:
            reason = " ".join(str(error).split())
            raise DataError(f"{file}: no picture that can be read ({reason}); fetch the dataset again") from None
        if picture.size != whole:
            raise DataError(
                f"{file}: expected a picture of {whole} pixels, got {picture.size}; fetch the dataset again"
            )
        x[row] = np.asarray(picture.crop(box).resize(size)).transpose(2, 0, 1)
    return x
