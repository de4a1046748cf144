"""Who holds which records: partitions of a training set among clients, most by flwr-datasets' partitioners."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedattack.errors import DataError

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner


@dataclass(frozen=True)
class _Request:
    clients: int
    alpha: float
    seed: int
    sizes: tuple[int, ...]
    min_size: int


def _growing(class_name: str) -> Callable[[_Request], Partitioner]:
    """Return a builder for a partitioner that needs nothing but the number of clients."""

    def build(request: _Request) -> Partitioner:
        from flwr_datasets import partitioner

        built: Partitioner = getattr(partitioner, class_name)(num_partitions=request.clients)
        return built

    return build


def _dirichlet(*, balanced: bool) -> Callable[[_Request], Partitioner]:
    """Return a builder for Dirichlet partitions."""

    def build(request: _Request) -> Partitioner:
        from flwr_datasets.partitioner import DirichletPartitioner

        return DirichletPartitioner(
            num_partitions=request.clients,
            partition_by="label",
            alpha=request.alpha,
            min_partition_size=request.min_size,
            self_balancing=balanced,
            shuffle=False,
            seed=request.seed,
        )

    return build


def _by_size(request: _Request) -> Partitioner:
    from flwr_datasets.partitioner import SizePartitioner

    return SizePartitioner(partition_sizes=request.sizes)


def _by_column(request: _Request) -> Partitioner:
    """Give each client the records that :func:`_groups_of` put into its group."""
    from flwr_datasets.partitioner import NaturalIdPartitioner

    return NaturalIdPartitioner(partition_by=_GROUP)


_GROUP = "group"


def _groups_of(values: NDArray[np.generic], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Divide rows into groups of about equal size, one a client, that keep rows of one value together.

    Few values (at most as many as clients) get clients of their own, several in proportion to their records where
    there are more clients than values. More values than clients are put together in their order, as with numbers.
    """
    found, place = np.unique(values, return_inverse=True)
    if len(found) > clients:
        # Cut in the order of the values: whole values stay together unless a cut falls into one.
        order = np.lexsort((rng.random(len(values)), place))
        groups = np.empty(len(values), dtype=np.int64)
        groups[order] = np.arange(len(values)) * clients // len(values)
        return groups
    counts = np.bincount(place)
    shares = np.ones(len(found), dtype=np.int64)
    for _ in range(clients - len(found)):
        shares[np.argmax(counts / shares)] += 1
    first = np.cumsum(shares) - shares
    groups = np.empty(len(values), dtype=np.int64)
    for index, (start, share) in enumerate(zip(first.tolist(), shares.tolist(), strict=True)):
        rows = rng.permutation(np.flatnonzero(place == index))
        groups[rows] = start + np.arange(len(rows)) % share
    return groups


SCHEMES: Mapping[str, Callable[[_Request], Partitioner]] = {
    "iid": _growing("IidPartitioner"),
    "dirichlet": _dirichlet(balanced=False),
    "dirichlet-balanced": _dirichlet(balanced=True),
    "linear": _growing("LinearPartitioner"),
    "square": _growing("SquarePartitioner"),
    "exponential": _growing("ExponentialPartitioner"),
    "size": _by_size,
    "column": _by_column,
}
"""Partition schemes by name."""


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
    """Divide records among clients.

    Parameters
    ----------
    y : array_like of int, shape (n,)
        Labels of the records.
    scheme : str
        A name in :data:`SCHEMES`: ``iid`` (equal sizes), ``dirichlet`` (each class is divided by a draw from
        Dirichlet(alpha), so a small alpha gives clients of few classes), ``dirichlet-balanced`` (likewise, but a client
        that has its even share of all records gets no further class, as in the code of many papers that say Dirichlet),
        ``linear``, ``square`` and ``exponential`` (client i gets a share in proportion to i, i squared, e to the i),
        ``size`` (the sizes given), ``column`` (by the values of a column: clients of about equal sizes whose records
        have neighbouring values, or the same one where it has no more values than there are clients).
    clients : int
        Number of clients.
    alpha : float
        Concentration of ``dirichlet`` and ``dirichlet-balanced``, above 0. Other schemes do not use it.
    seed : int
        Decides which records go where.
    sizes : sequence of int, optional
        Records per client for ``size``: one entry a client, with sum n.
    min_size : int
        Fewest records that a client may get.
    column : array_like, shape (n,), optional
        The values of each record for ``column``.

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
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(f"labels to partition must be integers of shape (n,); got {labels.dtype}, shape {labels.shape}")
    records = len(labels)
    if scheme not in SCHEMES:
        raise DataError(f"unknown partition scheme {scheme!r}; expected one of {', '.join(SCHEMES)}")
    if not 1 <= clients <= records:
        raise DataError(f"cannot divide {records} records among {clients} clients; expected 1 to {records} clients")
    if not (alpha > 0 and np.isfinite(alpha)):
        raise DataError(f"the Dirichlet alpha must be finite and above 0; got {alpha}")
    if min_size < 1:
        raise DataError(f"min_size must be at least 1; got {min_size}")
    if (sizes is not None) != (scheme == "size"):
        raise DataError(f"sizes go with the scheme 'size' and only with it; got scheme {scheme!r} and sizes {sizes}")
    if sizes is not None and (len(sizes) != clients or sum(sizes) != records or min(sizes) < 1):
        raise DataError(
            f"sizes must be {clients} positive numbers, one a client, with sum {records}; got {len(sizes)} numbers "
            f"with sum {sum(sizes)}"
        )

    values = np.zeros(records) if column is None else np.asarray(column)
    if (column is not None) != (scheme == "column") or values.shape != labels.shape:
        raise DataError(
            f"a column goes with the scheme 'column' and only with it, with a value for each of {records} records; got "
            f"scheme {scheme!r} and {'no column' if column is None else f'values of shape {values.shape}'}"
        )

    import datasets

    # The partitioners take rows in the order in which they come, Dirichlet within a class: without this shuffle a
    # sorted file would give every client other classes, and the same records would stay together under every seed.
    rng = np.random.default_rng(seed)
    order = rng.permutation(records)
    table = datasets.Dataset.from_dict({"label": labels[order], "row": order})
    if column is not None:
        table = table.add_column(_GROUP, _groups_of(values[order], clients, rng).tolist())
    request = _Request(
        clients,
        float(alpha),
        seed=int(rng.integers(2**63)),
        sizes=tuple(int(size) for size in sizes or ()),
        min_size=min_size,
    )
    how = f"{scheme!r} with alpha {alpha}" if scheme.startswith("dirichlet") else f"{scheme!r}"
    refusal = (
        f"cannot divide {records} records among {clients} clients by {how} so that each gets at least {min_size}; use "
        "fewer clients, more records, or a more even scheme"
    )
    try:
        with warnings.catch_warnings():
            # The Dirichlet partitioner warns at every draw that it repeats; only its giving up matters.
            warnings.simplefilter("ignore")
            partitioner = SCHEMES[scheme](request)
            partitioner.dataset = table
            parts = [
                np.sort(np.asarray(partitioner.load_partition(client)["row"][:], dtype=np.int64))
                for client in range(clients)
            ]
    except ValueError as error:
        raise DataError(refusal) from error
    if min(len(part) for part in parts) < min_size:
        raise DataError(refusal)
    return parts


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
