"""How many public records are some client's training data, too."""

import numpy as np
from numpy.typing import NDArray

from simulations.study import Study

# Cosine from which two images are the same: single precision keeps seven digits.
_SAME = 1 - 1e-5

# Public images that are compared with all clients' at a time.
_CHUNK = 100


def overlap_notes(study: Study) -> list[str]:
    """Say it for the report, where there is a dataset of public records that overlaps."""
    if not study.settings.public:
        return []
    public, private = study.public_x, study.data.x_train[study.division.everyone]
    same = _same_images(public, private) if public.ndim == 4 else _same_records(public, private)
    if not same:
        return []
    return [f"public set: {same} of {len(public)} examples are also some client's training data"]


def _same_records(public: NDArray[np.float32], private: NDArray[np.float32]) -> int:
    held = {record.tobytes() for record in private}
    return sum(record.tobytes() in held for record in public)


def _same_images(public: NDArray[np.float32], private: NDArray[np.float32]) -> int:
    """Compare images without their brightness and contrast: each dataset is scaled by its own statistics."""
    public, private = _without_scale(public), _without_scale(private)
    same = 0
    for start in range(0, len(public), _CHUNK):
        cosines = public[start : start + _CHUNK] @ private.T
        same += int((cosines > _SAME).any(axis=1).sum())
    return same


def _without_scale(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return images as rows of length 1, with mean 0 and one deviation in each channel."""
    centred = images - images.mean(axis=(2, 3), keepdims=True)
    rows = (centred / np.maximum(centred.std(axis=(2, 3), keepdims=True), 1e-6)).reshape(len(images), -1)
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12), dtype=np.float32)
