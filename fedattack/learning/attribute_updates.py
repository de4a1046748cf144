"""Updates of clients made up from auxiliary records, each client of one value of an attribute.

Cui et al. 2023 (RecUP-FL), Sections 5.3 and 5.4: attackers train their classifiers on them, defenders their model zoo.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedattack.base.errors import DataError
from fedattack.learning.inputs import examples_of
from fedattack.learning.losses import mean_loss
from fedattack.learning.shadows import CHUNK, TRAINED, ShadowModel
from fedattack.learning.stated import LocalSGD
from fedattack.learning.torch_utils import to_tensor


@dataclass(frozen=True, eq=False)
class AttributeUpdates:
    """Updates of k clients, each of one value of an attribute: Δ by parameter name, float32.

    They are made each time they are gone through, and never all in memory.

    Attributes
    ----------
    values : ndarray of int64, shape (k,)
        Each client's value.
    rows : ndarray of int64, shape (k, n)
        The auxiliary records that each client trained on.
    make
        Begins to make the updates.
    """

    values: NDArray[np.int64]
    rows: NDArray[np.int64]
    make: Callable[[], Iterator[dict[str, NDArray[np.float32]]]]

    def __iter__(self) -> Iterator[dict[str, NDArray[np.float32]]]:
        return self.make()


def attribute_updates(
    model: nn.Module,
    start: Mapping[str, NDArray[np.float32]],
    x: NDArray[Any],
    y: NDArray[np.int64],
    attribute: NDArray[np.int64],
    training: LocalSGD,
    *,
    clients: int,
    records: int,
    seed: int,
    loss: str = "cross-entropy",
    device: str = "cpu",
    memory: float = math.inf,
) -> AttributeUpdates:
    """Compute the updates of clients made up from auxiliary records, as they are asked for.

    Parameters
    ----------
    model : nn.Module
        The clients' architecture.
    start : mapping
        The common model that clients start from.
    x, y, attribute : ndarray, shape (n, …), (n,), (n,)
        Auxiliary records, their labels and their attribute. Examples may be of structured type, see
        :mod:`fedattack.base.structured`.
    training : LocalSGD
        How clients train.
    clients, records : int
        How many clients, and examples of each. Values of the attribute are dealt to clients as they occur in
        ``attribute``; a client's examples are drawn from those of its value, none twice.
    seed : int
        Of all draws.
    loss, device : str
        What clients minimise; where to compute.
    memory : float
        Bytes that clients which are trained together may take.

    Raises
    ------
    DataError
        If a value has fewer examples than a client holds.
    """
    known, counts = np.unique(attribute, return_counts=True)
    if len(known) == 0 or counts.min() < records or records < 1:
        raise DataError(
            f"auxiliary updates: expected at least {max(records, 1)} examples of each value; got "
            f"{dict(zip(known.tolist(), counts.tolist(), strict=True))}; take fewer examples for each client"
        )
    rng = np.random.default_rng(seed)
    # Sections 5.3 and 5.4: all of a client's examples share one value, as where the attribute is of the client itself.
    values = rng.choice(known, size=clients, p=counts / counts.sum())
    rows_of = {value: np.flatnonzero(attribute == value) for value in known.tolist()}
    rows = np.stack([rng.choice(rows_of[value], size=records, replace=False) for value in values.tolist()])
    shadow = ShadowModel(model, x[0], mean_loss(loss), device=device)
    # Drawn once, so that each time that the updates are made they are the same ones.
    drawn = int(rng.integers(2**31))
    # Four bytes a number, and so many copies of the model for each client that trains.
    together = int(min(CHUNK, max(1, memory / (4 * shadow.size * TRAINED))))

    def make() -> Iterator[dict[str, NDArray[np.float32]]]:
        generator = torch.Generator().manual_seed(drawn)
        for first in range(0, clients, CHUNK):
            own = rows[first : first + CHUNK]
            x_of, y_of = examples_of(x[own]), to_tensor(y[own])
            for vectors in shadow.update_parts(
                shadow.flatten(start), x_of, y_of, training, generator=generator, together=together
            ):
                for vector in vectors.cpu():
                    parameters = shadow.unflatten(vector)
                    yield {name: part.numpy() for name, part in parameters.items()}

    return AttributeUpdates(values, rows, make)
