"""What a source of data gives before it is split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from fedattack.data.columns import Column


@dataclass(frozen=True, eq=False)
class Pool:
    r"""All records of a source.

    Attributes
    ----------
    x : ndarray, shape (n, \*input_shape)
        Records, as they came or encoded.
    y : ndarray, shape (n,)
        Labels in 0 … classes - 1 (int64), or the targets of a regression (floats).
    classes : int
        Number of classes; 1 for a regression.
    images : bool
        Whether the records are images, which are standardised per channel.
    own_test : int
        How many records at the end are the source's own test set.
    columns : tuple of Column
        What the input columns mean, if that is declared.
    scaled : tuple of int
        Input columns that are standardised.
    groups : mapping of str to ndarray of int64, shape (n,)
        Columns that are no input, by which records can be divided among clients.
    sensitive : str
        Name of the column that the source declares as sensitive; empty for none.
    private : mapping of str to (tuple of str, ndarray of int64, shape (n,))
        Attributes that an attacker may look for: what their values are called, and each record's value, an index into
        these. They are no inputs, but in the case of Adult.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    classes: int
    images: bool = False
    own_test: int = 0
    columns: tuple[Column, ...] = ()
    scaled: tuple[int, ...] = ()
    groups: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    sensitive: str = ""
    private: Mapping[str, tuple[tuple[str, ...], NDArray[Any]]] = field(default_factory=dict)
