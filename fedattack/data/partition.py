"""Who holds which records: partitions of a training set among clients, by flwr-datasets' partitioners."""

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


SCHEMES: Mapping[str, Callable[[_Request], Partitioner]] = {
    "iid": _growing("IidPartitioner"),
    "dirichlet": _dirichlet(balanced=False),
    "dirichlet-balanced": _dirichlet(balanced=True),
    "linear": _growing("LinearPartitioner"),
    "square": _growing("SquarePartitioner"),
    "exponential": _growing("ExponentialPartitioner"),
    "size": _by_size,
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
        ``size`` (the sizes given).
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

    import datasets

    # The partitioners take rows in the order in which they come, Dirichlet within a class: without this shuffle a
    # sorted file would give every client other classes, and the same records would stay together under every seed.
    rng = np.random.default_rng(seed)
    order = rng.permutation(records)
    table = datasets.Dataset.from_dict({"label": labels[order], "row": order})
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
