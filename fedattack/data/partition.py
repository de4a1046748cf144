"""Who holds which examples: partitions of a training set among clients, most by flwr-datasets' partitioners."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedattack.base.errors import DataError

if TYPE_CHECKING:
    import datasets


# The column of the table that says which client gets a record.
_GROUP = "group"

SCHEMES: Mapping[str, str] = {
    "iid": "IidPartitioner",
    "dirichlet": "DirichletPartitioner",
    "dirichlet-balanced": "DirichletPartitioner",
    "linear": "LinearPartitioner",
    "square": "SquarePartitioner",
    "exponential": "ExponentialPartitioner",
    "size": "SizePartitioner",
    "column": "NaturalIdPartitioner",
}
"""Partition schemes by name, each with its partitioner in flwr-datasets."""


def partition(
    y: ArrayLike,
    *,
    scheme: str,
    clients: int,
    alpha: float = 1.0,
    seed: int,
    sizes: Sequence[int] | None = None,
    min_size: int = 1,
    column: ArrayLike | None = None,
) -> list[NDArray[np.int64]]:
    """Divide examples among clients.

    Parameters
    ----------
    y : array_like of int, shape (n,)
        Labels of the examples.
    scheme : str
        A name in :data:`SCHEMES`:

        - ``iid``: equal sizes;
        - ``dirichlet``: a draw from Dirichlet(alpha) divides each class, so a small alpha gives clients of few classes;
        - ``dirichlet-balanced``: likewise, but a client that has its even share of all examples gets no further class.
          The code of many papers that say Dirichlet does so;
        - ``linear``, ``square`` and ``exponential``: client i's share is in proportion to i, i squared, e to the i;
        - ``size``: the sizes given;
        - ``column``: clients of about equal sizes whose examples have neighbouring values of a column. It is one value
          where there are at least as many clients as values.
    clients : int
        Number of clients.
    alpha : float
        Concentration of ``dirichlet`` and ``dirichlet-balanced``, above 0. Other schemes do not use it.
    seed : int
        Decides which examples go where.
    sizes : sequence of int, optional
        Examples per client for ``size``: one entry a client, with sum n.
    min_size : int
        Fewest examples that a client may get.
    column : array_like, shape (n,), optional
        The values of each example for ``column``.

    Returns
    -------
    list of ndarray of int64
        For every client its sorted row indices. They are disjoint, and together they are all rows.

    Raises
    ------
    DataError
        If the request cannot be met.
    """
    labels = np.asarray(y)
    values = None if column is None else np.asarray(column)
    _check_request(labels, scheme, clients, alpha, min_size)
    _check_sizes(sizes, scheme, clients, len(labels))
    _check_column(values, scheme, len(labels))

    import datasets

    # The partitioners take rows in the order in which they come, Dirichlet within a class: without this shuffle a
    # sorted file would give every client other classes, and the same records would stay together under every seed.
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    table = datasets.Dataset.from_dict({"label": labels[order], "row": order})
    if values is not None:
        # The group of each row is a column of the table, which the partitioner divides by.
        table = table.add_column(_GROUP, _group_rows(values[order], clients, rng).tolist())
    options = _partitioner_options(scheme, clients, alpha, sizes, min_size, seed=int(rng.integers(2**63)))
    how = f"{scheme!r} with alpha {alpha}" if scheme.startswith("dirichlet") else f"{scheme!r}"
    refusal = (
        f"cannot divide {len(labels)} examples among {clients} clients by {how} so that each gets at least {min_size}; "
        "use fewer clients, more examples, or a more even scheme"
    )
    try:
        parts = _divide(table, SCHEMES[scheme], options, clients)
    except ValueError as error:
        raise DataError(refusal) from error
    # Some partitioners leave clients empty without a word.
    if min(len(part) for part in parts) < min_size:
        raise DataError(refusal)
    return parts


def _partitioner_options(
    scheme: str, clients: int, alpha: float, sizes: Sequence[int] | None, min_size: int, seed: int
) -> dict[str, Any]:
    """Return what a scheme's partitioner is called with."""
    if scheme == "size":
        return {"partition_sizes": [int(size) for size in sizes or ()]}
    if scheme == "column":
        return {"partition_by": _GROUP}
    if not scheme.startswith("dirichlet"):
        return {"num_partitions": clients}
    return {
        "num_partitions": clients,
        "partition_by": "label",
        "alpha": float(alpha),
        "min_partition_size": min_size,
        "self_balancing": scheme == "dirichlet-balanced",
        "shuffle": False,
        "seed": seed,
    }


def _divide(
    table: datasets.Dataset, class_name: str, options: Mapping[str, Any], clients: int
) -> list[NDArray[np.int64]]:
    """Return each client's sorted entries of the column ``row``."""
    from flwr_datasets import partitioner

    parts = []
    with warnings.catch_warnings():
        # The Dirichlet partitioner warns at every draw that it repeats; only its giving up matters.
        warnings.simplefilter("ignore")
        divided = getattr(partitioner, class_name)(**options)
        divided.dataset = table
        for client in range(clients):
            # [:] makes a list of the column; newer versions of datasets would give a lazy one.
            rows = divided.load_partition(client)["row"][:]
            parts.append(np.sort(np.asarray(rows, dtype=np.int64)))
    return parts


def _check_request(labels: NDArray[Any], scheme: str, clients: int, alpha: float, min_size: int) -> None:
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(f"labels to partition must be integers of shape (n,); got {labels.dtype}, shape {labels.shape}")
    records = len(labels)
    if scheme not in SCHEMES:
        raise DataError(f"unknown partition scheme {scheme!r}; expected one of {', '.join(SCHEMES)}")
    if not 1 <= clients <= records:
        raise DataError(f"cannot divide {records} examples among {clients} clients; expected 1 to {records} clients")
    if not (alpha > 0 and np.isfinite(alpha)):
        raise DataError(f"the Dirichlet alpha must be finite and above 0; got {alpha}")
    if min_size < 1:
        raise DataError(f"min_size must be at least 1; got {min_size}")


def _check_sizes(sizes: Sequence[int] | None, scheme: str, clients: int, records: int) -> None:
    if (sizes is not None) != (scheme == "size"):
        raise DataError(f"sizes go with the scheme 'size' and only with it; got scheme {scheme!r} and sizes {sizes}")
    if sizes is not None and (len(sizes) != clients or sum(sizes) != records or min(sizes) < 1):
        raise DataError(
            f"sizes must be {clients} positive numbers, one for each client, with sum {records}; got {len(sizes)} "
            f"numbers "
            f"with sum {sum(sizes)}"
        )


def _check_column(values: NDArray[Any] | None, scheme: str, records: int) -> None:
    is_asked = scheme == "column"
    if values is None and not is_asked:
        return
    if values is None or values.shape != (records,) or not is_asked:
        got = "no column" if values is None else f"values of shape {values.shape}"
        raise DataError(
            f"a column goes with the scheme 'column' and only with it, with a value for each of {records} examples; "
            f"got scheme {scheme!r} and {got}"
        )


def _group_rows(column: NDArray[np.generic], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Divide rows into groups of about equal size, one a client, that keep rows of one value together.

    Where there are at least as many clients as values, each value gets its clients, more for more examples. Otherwise
    several values share a client, in the values' order.
    """
    values, codes = np.unique(column, return_inverse=True)
    groups = np.empty(len(column), dtype=np.int64)
    if len(values) > clients:
        # Cut in the order of the values: whole values stay together unless a cut falls into one.
        order = np.lexsort((rng.random(len(column)), codes))
        # Cuts at equal distances: group g takes the rows from g·n/clients on.
        groups[order] = np.arange(len(column)) * clients // len(column)
        return groups
    counts = np.bincount(codes)
    shares = np.ones(len(values), dtype=np.int64)
    for _ in range(clients - len(values)):
        # The value with the most rows for each of its clients gets one client more.
        shares[np.argmax(counts / shares)] += 1
    start = 0
    for code, share in enumerate(shares.tolist()):
        rows = rng.permutation(np.flatnonzero(codes == code))
        # Dealt in turn: sizes within a value differ by one at most.
        groups[rows] = start + np.arange(len(rows)) % share
        start += share
    return groups


def label_counts(y: ArrayLike, parts: Sequence[NDArray[np.int64]], classes: int) -> NDArray[np.int64]:
    """Count the labels that each client holds.

    Parameters
    ----------
    y : array_like of int, shape (n,)
        Labels in 0 … classes - 1.
    parts : sequence of ndarray of int64
        Row indices of every client, as :func:`partition` returns them.
    classes : int
        Number of classes.

    Returns
    -------
    ndarray of int64, shape (clients, classes)
    """
    labels = np.asarray(y)
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])
