"""Examples that a client is kept from training on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray


@dataclass(frozen=True)
class HoldOut:
    """Which examples a client is kept from training on, so that there are some that nobody trained on.

    Attributes
    ----------
    share
        Of all examples, between 0 and 1.
    seed
        Another seed holds out others.
    """

    share: float
    seed: int = 0

    def choose(self, hashes: Sequence[bytes]) -> NDArray[np.bool_]:
        """Return (n,): which of the examples with these hashes are held out; the same for all clients and rounds."""
        # A witness keeps the examples with the smallest hashes: these must not be the ones that are held out.
        draws = [xxhash.xxh3_64_intdigest(each, self.seed) for each in hashes]
        return np.array(draws, dtype=np.uint64) < np.uint64(int(self.share * 2**64))
