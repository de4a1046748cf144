"""Streams that a run's seed is split into.

What draws from one stream does not shift the others: a null run has the data, targets and model of the run that it is
compared with. The split of the data and the partition take the seed itself.
"""

from __future__ import annotations

import numpy as np

MODEL_STREAM = 1
CLIENT_STREAM = 2
TARGET_STREAM = 3
RECORDS_STREAM = 4
CHOICE_STREAM = 5
POSITIVE_STREAM = 6
AUXILIARY_STREAM = 7
PUBLIC_STREAM = 8
PERMUTATION_STREAM = 9
ZOO_STREAM = 10
ORIGIN_STREAM = 11
CANARY_STREAM = 12
CENTRAL_STREAM = 13
DEPARTURE_STREAM = 14


def derive_seed(seed: int, *stream: int) -> int:
    """Derive a seed of 32 bits, as torch takes, for one use of randomness from the run's seed."""
    return int(np.random.SeedSequence((seed, *stream)).generate_state(1)[0])


def derive_secret(seed: int, *stream: int) -> int:
    """Derive a seed of 128 bits, for noise and canaries: nobody can try them all."""
    return int.from_bytes(np.random.SeedSequence((seed, *stream)).generate_state(4).tobytes(), "little")


def generator(seed: int, *stream: int) -> np.random.Generator:
    """Make the generator of one use of randomness."""
    return np.random.default_rng(derive_seed(seed, *stream))
