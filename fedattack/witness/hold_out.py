"""Examples that a client does not train on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray


@dataclass(frozen=True)
class HoldOut:
    """Which examples a client does not train on, so that there are some that nobody trained on.

    Attributes
    ----------
    share
        Share of all examples, between 0 and 1.
    seed
        Seed of the choice: another seed holds out other examples.
    """

    share: float
    seed: int = 0

    def choose(self, hashes: Sequence[bytes]) -> NDArray[np.bool_]:
        """Return (n,): which of the examples with these hashes are held out; the same for all clients and rounds."""
        # A witness keeps the examples with the smallest hashes: these must not be the ones that are held out.
        draws = [xxhash.xxh3_64_intdigest(each, self.seed) for each in hashes]
        return np.array(draws, dtype=np.uint64) < np.uint64(int(self.share * 2**64))
