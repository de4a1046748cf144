"""What was read off and is right: how much of it leaves no doubt, whatever a test of all targets together says.

A test needs many targets. A single example of many numbers that is met number by number needs none: where no other
known example is near it, no accident meets it. How unlikely that is, is counted in bits. Two kinds of things are read:

- *examples*, of which each number says how rare it is (:func:`bits_beside`), and where they stand as they are, how
  exactly it is met (:func:`fedattack.attacks.accidents.bits_of_matches`);
- *items*, such as words, of which each says little: those that one client alone holds are counted
  (:func:`bits_of_items`).

Both take what one thing is made of for independent. Things that several clients hold as a whole show where it is not:
:func:`bits_of_repeats` then says how many of them are no accident.

What is certain is a leak in itself. No correction for other findings takes it back, and none is paid for by it.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp
from scipy.stats import binom

from fedattack.attacks.accidents import columns_apart
from fedattack.audit.finding import ReadOff

BITS = 40.0
"""What is met with a chance below 2 to the power of minus so many is certain: less than once in 10¹²."""

# Numbers that are compared, at most: further examples are not looked at, and fewer are called certain.
_MOST_COMPARED = 2**31

# Numbers that are compared at once.
_AT_ONCE = 2**22

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def read_off(what: str, right: Sequence[NDArray[Any]], certain: Sequence[NDArray[Any]]) -> ReadOff:
    """Sum up how much was read off and is right, and how much of it is certain, of how many clients.

    Parameters
    ----------
    what
        What one of them is, in the singular: ``example``.
    right, certain
        For each run (clients,): how many of each client.
    """
    # A client counts once a run; arrays hold its number of certain hits.
    clients = sum(int((np.asarray(of_run) > 0).sum()) for of_run in certain)
    totals = [int(sum(np.asarray(of_run).sum() for of_run in counts)) for counts in (right, certain)]
    return {"what": what, "right": totals[0], "certain": totals[1], "clients": clients}


def bits_beside(examples: Floats, others: Floats, known: Floats, tolerance: float) -> Floats:
    """Say how many bits tell each example from the nearest of others.

    A number tells as many bits as it is rare among the known examples in its column, within the tolerance. Those count
    in which the other example differs; of columns that say the same, one. Without any others all numbers count. All
    other columns are taken for independent: of columns that depend on each other in another way it tells too many.

    Parameters
    ----------
    examples, others, known
        (n, columns), (m, columns), (k, columns): in units of the columns' spans. Known examples tell how rare a number
        is.
    tolerance
        How near numbers are that count as equal.

    Returns
    -------
    ndarray
        (n,): 0 for those after the first so many that there is no time for.
    """
    bits = np.zeros(len(examples))
    columns = columns_apart(known)
    examples, others, known = examples[:, columns], others[:, columns], known[:, columns]
    compared = max(1, (len(others) + len(known)) * max(1, len(columns)))
    # Beyond the budget of comparisons examples have 0 bits, and are called certain by nothing.
    for row, example in enumerate(examples[: max(1, _MOST_COMPARED // compared)]):
        others_in_all, times = 0, np.zeros(len(columns))
        # In how many others of all known examples each column is met as well.
        for near in _find_near(known, example, tolerance):
            # The example itself, and its equals, say nothing of how rare it is.
            other = near[~near.all(axis=1)]
            others_in_all += len(other)
            times += other.sum(axis=0)
        # log2 of how much rarer than the whole a match in this column is, with one added to both counts.
        rarity = np.log2(others_in_all + 1) - np.log2(times + 1)
        bits[row] = float(rarity.sum())
        for near in _find_near(others, example, tolerance):
            # A rival that is nearer in all columns but a few leaves the bits of these few alone.
            bits[row] = min(bits[row], float((~near @ rarity).min()))
    return bits


def _find_near(rows: Floats, example: Floats, tolerance: float) -> Iterator[Flags]:
    """Yield of rows (n, columns), some at once, which numbers are near the example's."""
    at_once = max(1, _AT_ONCE // max(1, rows.shape[1]))
    for first in range(0, len(rows), at_once):
        # Nothing is near NaN: the comparison is false.
        yield np.abs(rows[first : first + at_once] - example) <= tolerance


def bits_of_items(own: int, others: int, held: int, all_held: int) -> float:
    """Say how unlikely it is that so many of the items that are named of a client are its own.

    Drawn are as many of all items that one client alone holds as are named: how often are so many of this client's?

    Parameters
    ----------
    own, others
        Items that are named of the client: those that it alone holds, and those that another one alone holds.
    held, all_held
        Items that it alone holds, and that any client alone holds.
    """
    named = own + others
    hits = np.arange(own, min(held, named) + 1, dtype=np.float64)
    if not own or not len(hits):
        return 0.0
    # The upper tail of a hypergeometric distribution, by logarithms: factorials of thousands exceed a float.
    logarithms = _log_ways(held, hits) + _log_ways(all_held - held, named - hits) - _log_ways(all_held, named)
    return max(0.0, -float(logsumexp(logarithms)) / math.log(2.0))


def bits_of_repeats(right: int, read: int, repeats: int, pairs: int) -> float:
    """Say how unlikely it is that so many of what was read of a client are its own, where the same things come again.

    What others hold stands for what accidents meet. Where clients often hold the same, such as a phrase that many
    write, a thing of many numbers is met by accident all the same.

    Parameters
    ----------
    right, read
        Things that were read and are the client's own, and all that were read of it.
    repeats, pairs
        As :func:`fedattack.attacks.accidents.count_repeats` gives them.

    Returns
    -------
    float
        Infinite where nothing comes again: then this tells nothing, and what each thing is made of does.
    """
    if not repeats:
        return math.inf
    # A binomial tail, by its logarithm: each thing that was read is right by accident as often as others' are.
    return -float(binom.logsf(right - 1, read, repeats / pairs)) / math.log(2.0)


def _log_ways(size: float, chosen: Any) -> Any:
    """Return the logarithm of how many ways there are to choose so many; −∞ where there are not as many."""
    possible = (chosen >= 0) & (chosen <= size)
    # gammaln has poles where nothing can be chosen: zeros stand in there.
    some = np.where(possible, chosen, 0)
    return np.where(possible, gammaln(size + 1) - gammaln(some + 1) - gammaln(size - some + 1), -np.inf)
