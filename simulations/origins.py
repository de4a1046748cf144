"""From which client's data a target comes that nobody trained on: what tells a client's site from its examples."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.data import label_counts
from simulations.division import dividing_column
from simulations.seeds import ORIGIN_STREAM, generator
from simulations.study import Study


def deal_origins(study: Study, places: NDArray[np.int64]) -> list[str]:
    """Deal examples that no client holds to the clients that might hold them.

    An example has the origin of an example drawn from the clients' own with the same label. Where the examples are
    divided by a column, its value has the same place among the clients, too. So an example of label l and origin i is
    like those of label l that client i trains on.

    Parameters
    ----------
    study
        The run.
    places
        (n,): indices of training examples and, above these, of test examples.

    Returns
    -------
    list of str
        Names of clients; "" where no client has such examples.
    """
    data, pools = study.data, study.division.pools
    train_labels, names = data.labels
    labels = np.concatenate([train_labels, data.test_labels])
    column = dividing_column(data, study.settings)
    regions = np.zeros(len(labels), dtype=np.int64) if column is None else _regions(column, pools)
    strata = np.where(regions < 0, -1, regions * len(names) + labels)
    owners = np.repeat(np.arange(len(pools)), [len(pool) for pool in pools])
    strata_of_owners = strata[np.concatenate(pools)]
    # Records-per-client may leave a client without a label of its pool.
    trains = label_counts(labels, study.division.parts, len(names)) > 0
    rng = generator(study.settings.seed, ORIGIN_STREAM)
    origins = np.full(len(places), "", dtype=object)
    for stratum in np.unique(strata[places]):
        asked = np.flatnonzero(strata[places] == stratum)
        alike = owners[strata_of_owners == stratum]
        if len(alike):
            drawn = rng.choice(alike, size=len(asked))
            known = trains[drawn, labels[places[asked]]]
            origins[asked[known]] = drawn[known].astype(str)
    return origins.tolist()


def _regions(values: NDArray[Any], pools: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return a number for each value (n,), the same for values of the same clients; -1 for one that no client has.

    Each client has an interval of values, and neighbours may share its ends. A number between the ends belongs to the
    client. A category does so only if some client has it.
    """
    ends = np.unique([end for pool in pools for end in (values[pool].min(), values[pool].max())])
    regions = np.searchsorted(ends, values, side="left") + np.searchsorted(ends, values, side="right")
    if values.dtype.kind != "f":
        regions[~np.isin(values, values[np.concatenate(pools)])] = -1
    return regions
