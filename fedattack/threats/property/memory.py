"""What of a detector's work fits into memory, and in how many dimensions it is sought where that is little."""

import numpy as np

from fedattack.learning.shadows import CHUNK, TRAINED
from fedattack.threats.property.setting import SHARES, DetectorSetting, count_masks, count_points

STEPS = 24
"""Dimensions of a Krylov space, where the memory allows them."""

# Vectors of all parameters beside the Krylov space itself.
_BESIDE = 8
# Shares of the memory: for the Krylov space, and for what the system does not get back.
_SPANNED = 0.75
_LOST = 0.15
AT_A_TIME = 0.1
"""Share of the memory for what is computed at a time."""

# Sketches of updates: from how many parameters, which share of the memory, and the least numbers in one.
_SKETCHED_FROM = 1_000_000
_SKETCHED = 0.5
_NARROWEST = 1_000


def fits_into_memory(setting: DetectorSetting, size: int, *, random: bool) -> bool:
    """Whether all rows of a model of ``size`` parameters are kept in memory, dropout being ``random``."""
    return bytes_needed(setting, size, random=random) <= setting.memory


def bytes_needed(setting: DetectorSetting, size: int, *, random: bool) -> float:
    """Return how many bytes the usual way takes at most for a model of ``size`` parameters, which keeps all rows.

    Where it is more than the memory, products of these matrices are computed in parts. ``random`` says whether the
    model has dropout.
    """
    records, questions = len(setting.auxiliary), setting.questions
    spaces = 2 * (STEPS + _BESIDE) * len(questions)
    if setting.mode == "exact":
        return 4.0 * size * (6 * records + TRAINED * CHUNK + spaces)
    extra = [question.extra_count * count_masks("train", random) for question in questions]
    sides = len({question.behaviour == "ascend" for question in questions} | {False})
    later = sides * (count_points(setting) - 1) * SHARES["test"] * records
    return 4.0 * size * (records + later + sum(extra) + 3 * max(extra) + 6 * CHUNK + spaces)


def steps_within(memory: float, size: int) -> int:
    """Return how many steps a Krylov space may have for a model of ``size`` parameters."""
    return int(np.clip(_SPANNED * memory / (4 * size) - _BESIDE, 2, STEPS))


def questions_within(memory: float, size: int, steps: int, most: int) -> int:
    """Return how many questions' Krylov spaces of so many steps fit into memory together, ``most`` at most."""
    return int(np.clip(_SPANNED * memory / _spanned(size, steps), 1, most))


def room_beside_spaces(memory: float, size: int, steps: int, questions: int) -> float:
    """Return the bytes that are left beside the Krylov spaces of some questions for what passes over rows keep."""
    return max(0.0, memory * (1 - AT_A_TIME - _LOST) - _spanned(size, steps) * questions)


def _spanned(size: int, steps: int) -> float:
    """Return the bytes of one question's Krylov space."""
    return 4.0 * size * (steps + _BESIDE)


def sketch_width(setting: DetectorSetting, size: int) -> int:
    """Return how many numbers sketches of updates have; 0 where updates themselves are used.

    Shadow clients are trained again in every pass over updates that do not fit into memory. With a large model, of
    which not even a chunk of updates fits, that would take hours, and one pass over sketches takes its place.
    """
    if setting.mode == "linear" or size < _SKETCHED_FROM or 4.0 * size * CHUNK <= setting.memory:
        return 0
    vectors = 6 * len(setting.auxiliary) + 2 * (STEPS + _BESIDE)
    # Odd, so that sums do not follow the sides of layers.
    return min(size, max(_NARROWEST, int(_SKETCHED * setting.memory / (4 * vectors))) | 1)
