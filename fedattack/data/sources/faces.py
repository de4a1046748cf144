"""Faces with private attributes: LFW with the attributes of Kumar et al. 2009, and CelebA (Liu et al. 2015).

Tasks and attributes are those of RecUP-FL (Cui et al. 2023, Sections 5.2 and 6.1 to 6.3). Scikit-learn's own reader
of LFW keeps pickles in the data folder and reads them back, so that it is used for the download alone.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import DataError
from fedattack.data.source import Attribute, Pool, Source, one_line

LFW_ATTRIBUTES = "http://www.cs.columbia.edu/CAVE/databases/pubfig/download/lfw_attributes.txt"
CELEBA_PAGE = "http://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"

CELEBA_RECORDS = 20_000
"""The first of 202,599 pictures, whose persons are in no order: each process that loads them has to decode them."""

CELEBA_BY_HAND = f"fetch pictures and annotations of {CELEBA_PAGE} into a folder celeba, laid out as torchvision does"

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

    Pictures are cut and halved as scikit-learn does it by default: colour images (3, 62, 47). Examples can be divided
    by ``person``. The private attribute ``gender`` is a score above 0 or not. The value of ``race``, ``age``,
    ``glasses`` and ``hair`` is the one of the largest score.

    The data folder ``root`` has ``lfw_home/lfw_funneled``, which is downloaded, and ``lfw_home/lfw_attributes.txt``.

    Raises
    ------
    DataError
        If something is missing or damaged.
    """
    folder = root / "lfw_home" / "lfw_funneled"
    file = root / "lfw_home" / "lfw_attributes.txt"
    if not folder.is_dir():
        raise DataError(f"dataset 'lfw' is not in {root}: expected lfw_home/lfw_funneled; run `fedattack download lfw`")
    if not file.is_file():
        raise DataError(
            f"dataset 'lfw' in {root} lacks lfw_home/lfw_attributes.txt, which says who smiles and is not downloaded; "
            f"fetch {LFW_ATTRIBUTES} and put it there"
        )
    persons, numbers, scores = _lfw_scores(file)
    files = [folder / person / f"{person}_{number:04d}.jpg" for person, number in zip(persons, numbers, strict=True)]
    private: dict[str, Attribute] = {"gender": (("female", "male"), (scores["Male"] > 0).astype(np.int64))}
    for attribute, names in _LFW_CHOICES.items():
        columns = [scores[name] for name in names.values()]
        # The largest score decides, as the scores are distances from a classifier's plane.
        private[attribute] = (tuple(names), np.argmax(columns, axis=0))
    return Pool(
        # Box and size of scikit-learn's LFW at resize=0.5: its slices are rows 70 to 195, columns 78 to 172.
        _pictures(files, (250, 250), (78, 70, 172, 195), (47, 62)),
        (scores["Smiling"] > 0).astype(np.int64),
        classes=2,
        images=True,
        groups={"person": np.unique(persons, return_inverse=True)[1]},
        private=private,
    )


def _lfw_scores(file: Path) -> tuple[list[str], list[int], dict[str, NDArray[np.float64]]]:
    """Return persons and numbers of the pictures, and their scores (n,) by name.

    The first line is for people. The second has the names, behind a ``#``. Each further line is a picture. Tabs
    separate the entries of a line.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        names = lines[1].lstrip("#").strip().split("\t")
        rows = [line.strip().split("\t") for line in lines[2:] if line.strip()]
        table = np.array([row[2:] for row in rows], dtype=np.float64)
        scores = dict(zip(names[2:], table.T, strict=True))
        numbers = [int(row[1]) for row in rows]
    except (OSError, ValueError, IndexError) as error:
        raise DataError(
            f"{file}: expected a person, a number and scores a line, separated by tabs ({one_line(error)}); fetch it "
            f"again from {LFW_ATTRIBUTES}"
        ) from None
    needed = ["Male", "Smiling"]
    for choices in _LFW_CHOICES.values():
        needed += choices.values()
    for name in needed:
        if name not in scores:
            raise DataError(f"{file}: no scores {name!r}; fetch it again from {LFW_ATTRIBUTES}")
    if not np.isfinite(table).all():
        raise DataError(f"{file}: scores that are no finite numbers; fetch it again from {LFW_ATTRIBUTES}")
    return [row[0].replace(" ", "_") for row in rows], numbers, scores


def download_lfw(root: Path) -> None:
    """Fetch LFW's pictures into ``root``; not again if they are there."""
    from sklearn.datasets import _lfw

    # The public function would go on to read the pictures, by way of pickles.
    _lfw._check_fetch_lfw(data_home=str(root), n_retries=0)


def celeba(seed: int, root: Path) -> Pool:
    """Read the first :data:`CELEBA_RECORDS` pictures of CelebA, with male or not as the task.

    The middle square of each aligned picture is scaled to (3, 32, 32). Private attributes are ``age``, which RecUP-FL
    hides, ``glasses`` and ``smile``. Examples can be divided by ``person``.

    The data folder ``root`` has a folder ``celeba`` as torchvision makes it.

    Raises
    ------
    DataError
        If something is missing or damaged.
    """
    if not (root / "celeba").is_dir():
        raise DataError(f"dataset 'celeba' is not in {root}: expected a folder celeba; {CELEBA_BY_HAND}")
    from torchvision.datasets import CelebA

    try:
        source = CelebA(str(root), split="all", target_type=["attr", "identity"], download=False)
        table = source.attr[:CELEBA_RECORDS].numpy().astype(np.int64)
        # Torchvision reads one name too many where their line ends with a blank.
        attributes = dict(zip(source.attr_names, table.T, strict=False))
        male = attributes["Male"]
        private = {key: (values, attributes[name]) for key, (name, values) in _CELEBA_SWITCHES.items()}
    except (RuntimeError, OSError, ValueError, LookupError) as error:
        raise DataError(
            f"dataset 'celeba' in {root} lacks annotations, or they are damaged ({one_line(error)}); {CELEBA_BY_HAND}"
        ) from None
    files = [root / "celeba" / "img_align_celeba" / name for name in source.filename[:CELEBA_RECORDS]]
    return Pool(
        _pictures(files, (178, 218), (0, 20, 178, 198), (32, 32)),
        male,
        classes=2,
        images=True,
        groups={"person": np.unique(source.identity[:CELEBA_RECORDS, 0].numpy(), return_inverse=True)[1]},
        private=private,
    )


def _pictures(files: Sequence[Path], whole: tuple[int, int], box: Box, size: tuple[int, int]) -> NDArray[Any]:
    """Return what ``box`` cuts out of each picture of size ``whole``, scaled to ``size``: (n, 3, height, width)."""
    from torchvision.datasets.folder import pil_loader

    x = np.empty((len(files), 3, size[1], size[0]), dtype=np.uint8)
    for row, file in enumerate(files):
        try:
            picture = pil_loader(str(file))
        except (OSError, ValueError, SyntaxError) as error:
            raise DataError(
                f"{file}: no picture that can be read ({one_line(error)}); fetch the dataset again"
            ) from None
        if picture.size != whole:
            raise DataError(
                f"{file}: expected a picture of {whole} pixels, got {picture.size}; fetch the dataset again"
            )
        # PIL has (height, width, channels), torch channels first.
        x[row] = np.asarray(picture.crop(box).resize(size)).transpose(2, 0, 1)
    return x


SOURCES = (
    Source(
        "lfw",
        "13,143 faces in colour, 3 x 62 x 47, smiling or not; private attributes race, gender, age, glasses and hair, "
        "from lfw_attributes.txt, which is not downloaded",
        lfw,
        download_lfw,
        position=70,
    ),
    Source(
        "celeba",
        "20,000 faces in colour, 3 x 32 x 32, male or not; private attributes age, glasses and smile; from your folder",
        celeba,
        by_hand=CELEBA_BY_HAND,
        position=71,
    ),
)
