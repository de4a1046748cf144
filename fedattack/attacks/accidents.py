"""How unlikely it is that numbers that somebody sends meet known ones by accident, in bits."""

import numpy as np
from numpy.typing import NDArray

# Numbers nearer to each other than this part of their span are one number, but for rounding.
_SAME = 1e-6

# Known examples by which columns are compared with each other.
_COMPARED_ROWS = 1_000

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


def bits_of_matches(examples: Floats, errors: Floats, known: Floats) -> Floats:
    """Say how many bits tell each example from an accident that comes as near in all columns.

    How many known examples have a number tells little where there are few. Here counts, too, how exactly a number is
    met. Around each number known ones are taken as spread evenly. No number is taken as finer than the column is: where
    its values are multiples of 0.1, an error below that tells nothing more.

    Parameters
    ----------
    examples, errors
        (n, columns), (n, columns) or (columns,): numbers that were met, and the largest error by which.
    known
        (k, columns): numbers of the same kind, these among them.

    Returns
    -------
    ndarray
        (n,): columns are taken for independent, but for those that say the same.
    """
    bits = np.zeros(len(examples))
    errors = np.broadcast_to(errors, examples.shape)
    for column in columns_apart(known):
        bits -= np.log2(_chance_to_meet(examples[:, column], errors[:, column], np.sort(known[:, column])))
    return bits


def _chance_to_meet(values: Floats, errors: Floats, ordered: Floats) -> Floats:
    """Return how likely another number comes as near to each value (n,), by numbers of its column in their order."""
    count = len(ordered)
    # The value's own entry is none of the others.
    within = np.searchsorted(ordered, values + errors, "right") - np.searchsorted(ordered, values - errors, "left")
    by_count = np.where(within > 1, within / (count + 1), 0.0)
    # The window holds a tenth of all numbers, and four at least.
    size = min(count - 1, max(4, count // 10))
    first = np.clip(np.searchsorted(ordered, values) - size // 2, 0, count - 1 - size)
    width = ordered[first + size] - ordered[first]
    gaps = np.diff(ordered)
    gaps = gaps[gaps > _SAME * (ordered[-1] - ordered[0])]
    # The first percentile: one odd number between the others does not make a column fine.
    finest = float(np.quantile(gaps, 0.01, method="lower")) if len(gaps) else 0.0
    inside = np.ones(len(values))
    # All numbers of a window without any width are the same.
    np.divide(np.maximum(2 * errors, finest), width, out=inside, where=width > 0)
    by_width = (size + 1) / (count + 1) * np.minimum(inside, 1.0)
    return np.asarray(np.clip(np.maximum(by_count, by_width), np.finfo(float).tiny, 1.0))


def columns_apart(known: Floats) -> NDArray[np.int64]:
    """Return the columns (k,) that are not the same as another one before, but for scale and offset."""
    some = known[:_COMPARED_ROWS]
    centred = some - some.mean(axis=0) if len(some) else some
    scale = np.abs(centred).max(axis=0, initial=0)
    # A column that never varies tells nothing.
    varies = np.flatnonzero(scale > 0)
    # Rounded, as the same numbers in other units differ in the last digits.
    alike = np.round(centred[:, varies] / scale[varies], 6)
    if not alike.size:
        return varies
    # The sign, too, may be another one.
    first = alike[np.abs(alike).argmax(axis=0), np.arange(len(varies))]
    # Adding 0.0 makes −0.0 to 0.0, which `unique` would take for another value.
    _, kept = np.unique(alike * np.sign(first) + 0.0, axis=1, return_index=True)
    return varies[np.sort(kept)]


def count_repeats(things: Counts, holders: Counts, clients: int) -> tuple[int, int]:
    """Count how often one client holds what another one, or nobody, holds, and how often it could.

    What all of three clients or more hold is public, and no accident: it is left out.

    Parameters
    ----------
    things, holders
        (entries,): a number for each known thing, and who holds it: 0 or more, or -1 for nobody. A pair may stand there
        several times.
    clients
        How many clients hold something.

    Returns
    -------
    tuple of int and int
        The pairs of an entry and of another client that holds the same thing, and all pairs.
    """
    things, holders = np.unique(np.stack([things, holders]), axis=1)
    is_held = holders >= 0
    counts = np.bincount(things[is_held], minlength=things.max(initial=-1) + 1)
    if clients > 2:
        is_told = counts[things] < clients
        things, is_held = things[is_told], is_held[is_told]
    # Who holds a thing is not another one than itself.
    others = counts[things] - is_held
    return int(others.sum()), int((clients - is_held.astype(np.int64)).sum())
