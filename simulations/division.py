"""Who gets which training examples: the clients, the attacker, and nobody."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import DataError
from fedattack.data import Dataset, partition
from fedattack.runs.settings import StudySettings
from simulations.attributes import column_values
from simulations.records import singles
from simulations.seeds import AUXILIARY_STREAM, CHOICE_STREAM, POSITIVE_STREAM, RECORDS_STREAM, generator

Rows = NDArray[np.int64]

# How `partition` says by which column.
_BY_COLUMN = "column:"


@dataclass(frozen=True, eq=False)
class Division:
    """Indices of training examples. Targets and auxiliary records occur once in all data.

    Attributes
    ----------
    parts
        Each client's; held targets are among them.
    held, null
        Targets that positive clients hold, and as many that nobody holds.
    auxiliary
        The attacker's.
    pools
        Where each client's examples are from: its parts, or by a column all that ``records-per-client`` draws from.
    """

    parts: list[Rows]
    held: Rows
    null: Rows
    auxiliary: Rows
    pools: list[Rows]

    @property
    def targets(self) -> Rows:
        """The target records, held ones first."""
        return np.concatenate([self.held, self.null])

    @property
    def everyone(self) -> Rows:
        """The clients' examples, one client after another."""
        return np.concatenate(self.parts)


def divide(data: Dataset, settings: StudySettings, *, public: Rows, positives: NDArray[np.bool_]) -> Division:
    """Divide the training examples.

    Parameters
    ----------
    data, settings
        What is divided, and how.
    public
        Records that are set aside as public ones.
    positives
        See :func:`draw_positives`.

    Raises
    ------
    DataError
        If there are too few examples.
    """
    rows = np.arange(len(data.y_train))
    single = rows[:0]
    if settings.has_auxiliary:
        single, *_ = singles(data)
    count = 0
    if settings.has_targets:
        count = 2 * settings.targets
    if count > len(single):
        raise DataError(
            f"{count} target records, held and not held, do not fit into the {len(single)} training examples that "
            "occur once in the data; lower targets, or use more data"
        )
    chosen = generator(settings.seed, CHOICE_STREAM).permutation(single)
    held, null = chosen[: count // 2], chosen[count // 2 : count]
    if settings.records_per_client:
        rest = np.setdiff1d(rows, np.concatenate([chosen[:count], public]))
        parts, pools = _equal_parts(data, settings, rest)
    else:
        # Without a number of records of their own, clients get all but what is set aside.
        set_aside = chosen[: count + settings.auxiliary]
        parts = pools = _partition(data, settings, np.setdiff1d(rows, np.concatenate([set_aside, public])))
    if count:
        parts = _with_targets(parts, held, positives, settings.seed)
    auxiliary = rows[:0]
    if settings.has_auxiliary:
        taken = np.concatenate([*parts, held, null])
        auxiliary = _auxiliary(np.setdiff1d(single, taken), settings, len(rows), sum(map(len, parts)), count)
    return Division(parts, held, null, auxiliary, pools)


def draw_positives(settings: StudySettings) -> NDArray[np.bool_]:
    """Draw which clients have the property, one row per target or a single one.

    Rows of membership are in the order of :attr:`Division.targets`, of which nobody holds the second half.
    """
    rows = 1
    if settings.has_targets:
        rows = 2 * settings.targets
    rng = generator(settings.seed, POSITIVE_STREAM)
    positives = np.zeros((rows, settings.clients), dtype=np.bool_)
    for row in positives[: max(rows // 2, 1)]:
        row[rng.choice(settings.clients, size=settings.positive_count, replace=False)] = True
    return positives


def dividing_column(data: Dataset, settings: StudySettings) -> NDArray[Any] | None:
    """Return all examples' values of the column that the training examples are divided by, if they are.

    They are as :func:`simulations.attributes.column_values` returns them.
    """
    if not settings.scheme.startswith(_BY_COLUMN):
        return None
    return column_values(data, settings.scheme.removeprefix(_BY_COLUMN))


def _partition(data: Dataset, settings: StudySettings, rows: Rows) -> list[Rows]:
    """Divide all of ``rows`` as the scheme says."""
    scheme, column = settings.scheme, dividing_column(data, settings)
    if column is not None:
        scheme, column = "column", column[rows]
    labels, _ = data.labels
    parts = partition(
        labels[rows],
        scheme=scheme,
        clients=settings.clients,
        alpha=settings.alpha,
        seed=settings.seed,
        column=column,
    )
    return [rows[part] for part in parts]


def _equal_parts(data: Dataset, settings: StudySettings, rows: Rows) -> tuple[list[Rows], list[Rows]]:
    """Give each client ``records_per_client`` of ``rows``, at random, from its own where the scheme is by a column.

    Returns the clients' examples, and the pools that they are from.
    """
    size, clients = settings.records_per_client, settings.clients
    shuffled = generator(settings.seed, RECORDS_STREAM).permutation(rows)
    if settings.scheme.startswith(_BY_COLUMN):
        pools = _partition(data, settings, shuffled)
        fewest = min(map(len, pools))
        if fewest < size:
            raise DataError(
                f"records-per-client = {size}: by {settings.scheme} a client has {fewest} training examples; lower "
                "records-per-client or clients, or use more data"
            )
        return [np.sort(pool[:size]) for pool in pools], pools
    if clients * size > len(rows):
        raise DataError(
            f"{clients} clients of {size} examples do not fit into {len(rows)} training examples; lower "
            "records-per-client or clients, or use more data"
        )
    parts = [np.sort(shuffled[client * size : (client + 1) * size]) for client in range(clients)]
    return parts, parts


def _with_targets(parts: list[Rows], held: Rows, positives: NDArray[np.bool_], seed: int) -> list[Rows]:
    """Put each held target in the place of an example of each of its positive clients."""
    rng = generator(seed, POSITIVE_STREAM, 1)
    mixed = []
    for client, part in enumerate(parts):
        targets = held[positives[: len(held), client]]
        if len(targets) > len(part):
            raise DataError(
                f"client {client} would hold {len(targets)} targets but has {len(part)} examples; lower targets or "
                "positives, or raise records-per-client"
            )
        kept = rng.permutation(part)[len(targets) :]
        mixed.append(np.sort(np.concatenate([kept, targets])))
    return mixed


def _auxiliary(free: Rows, settings: StudySettings, total: int, held: int, targets: int) -> Rows:
    """Draw the attacker's examples among those that nobody uses."""
    if len(free) < max(settings.auxiliary, 1):
        raise DataError(
            f"{len(free)} examples are left for the attacker, who needs {settings.auxiliary or 'some'}: of "
            f"{total} training examples clients hold {held} and targets are {targets}; lower "
            "records-per-client, clients or auxiliary, or use more data"
        )
    rng = generator(settings.seed, AUXILIARY_STREAM)
    return np.sort(rng.choice(free, size=settings.auxiliary or len(free), replace=False))
