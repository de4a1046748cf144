"""Train a client that sends predictions further on its own targets, by the app's own training, and let it predict.

A server that is sent predictions alone has no model that it could train further. The app's own training has one: it is
called once more with the client's own targets in the place of all of its examples, and predicts again what it did.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from fedattack.apps.player import Handler, form_of
from fedattack.base.errors import DataError
from fedattack.record.format import Arrays
from fedattack.witness.feeding import feed, find_own_steps

# Predictions that are moved by less are the same: an app that learns nothing draws other numbers all the same.
_SAME = 1e-4


class PredictingClient:
    """One client that keeps its model, and sends what this predicts.

    Parameters
    ----------
    handler
        Its own training.
    x, y
        (n, …), (n,): the targets.
    """

    def __init__(self, handler: Handler, x: NDArray[Any], y: NDArray[Any]) -> None:
        self._handler, self._x, self._y = handler, x, y
        # What the client keeps from round to round, such as its model.
        self._state = RecordDict()
        # How many rounds there were in which what was planted changed what it predicts.
        self.changed = 0

    def train(
        self, received: Arrays, sent: Arrays, rows: Sequence[int], passes: Sequence[int], seed: int
    ) -> Iterator[Arrays]:
        """Train for one round, then further on some of the targets, and yield what the client would send.

        Each pass more is the app's own training once more, all of whose batches of examples are of these targets. What
        else it learns, such as what all clients predict, it learns again. The next round goes on as if there had been
        none.

        Parameters
        ----------
        received, sent
            What the client was sent in this round, and what it sent, whose names and shapes are expected.
        rows
            Which targets are its own.
        passes
            After each of these numbers of passes in all something is yielded, in ascending order.
        seed
            Of all that the app draws in this round.

        Raises
        ------
        DataError
            If the app trains on nothing like the targets, or sends something else.
        """
        steps = find_own_steps(lambda: self._handler(received, seed, self._state), self._x, self._y)
        leaves = {place: array[rows] for place, array in steps.leaves.items()}
        state, done = deepcopy(self._state), 0
        for until in passes:
            for turn in range(done, until):
                drawn = int(np.random.SeedSequence((seed, turn)).generate_state(1)[0])
                reply = feed(lambda: self._handler(received, drawn, state), leaves, drawn, steps.indices)  # noqa: B023
            done = until
            found = self._handler.read_arrays(reply)
            if form_of(found) != form_of(sent):
                raise DataError(
                    "a client that trains only on its own targets does not send the arrays that it sent in the run"
                )
            yield found
        before = self._handler.read_arrays(steps.result)
        self.changed += any(not np.allclose(found[name], before[name], rtol=_SAME, atol=_SAME) for name in found)
