"""What the clients' own app said when the attacker asked it: losses, and those of shadow models that it trained."""

from collections.abc import Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import DataError
from fedattack.base.untrusted import read_npz


@dataclass(frozen=True, eq=False)
class Answers:
    """What the clients' own app says of the targets under the models that clients sent: the attacker ran its code.

    It stands in the place of a model that the attacker could build: whoever operates a server has the app, too.

    Attributes
    ----------
    seqs, nodes
        (k,) int64, (k,) str: the position of each reply's round in the record, and its node.
    losses
        (k, targets): at the client's own model.
    products, norms, lengths
        (k, targets), (k, targets), (k,): ⟨−∇ℓ, Δ⟩ and ‖∇ℓ‖ at the model that the client was sent, and ‖Δ‖; NaN where
        they are not known.
    """

    seqs: NDArray[np.int64]
    nodes: NDArray[np.str_]
    losses: NDArray[np.float64]
    products: NDArray[np.float64]
    norms: NDArray[np.float64]
    lengths: NDArray[np.float64]

    def rows(self) -> dict[tuple[int, str], int]:
        """Return by round and node which row speaks of a reply."""
        keys = zip(self.seqs.tolist(), self.nodes.tolist(), strict=True)
        return dict(zip(keys, range(len(self.seqs)), strict=True))


@dataclass(frozen=True, eq=False)
class ShadowLosses:
    """What targets lose under models that the clients' own app trained on the attacker's examples.

    Attributes
    ----------
    seqs
        (k,) int64: the position of each round in the record.
    losses
        (k, shadows, targets).
    """

    seqs: NDArray[np.int64]
    losses: NDArray[np.float64]


_NAMES = tuple(Answers.__dataclass_fields__)
_HINT = "expected the arrays of fedattack.attacks.answers.Answers"
_SHADOWS_HINT = "expected the arrays of fedattack.attacks.answers.ShadowLosses"


def read_answers(path: Path, targets: Sized | None) -> Answers:
    """Read answers about the targets, without pickle; raises as :func:`check_answers`."""
    return check_answers(read_npz(path, DataError, _HINT, *_NAMES), targets, path)


def check_answers(arrays: Mapping[str, NDArray[Any]], targets: Sized | None, where: object) -> Answers:
    """Make answers of their arrays, or raise a DataError if they do not fit each other or the targets."""
    seqs, nodes = arrays["seqs"], arrays["nodes"]
    shape = (len(seqs), len(targets or ()))
    if seqs.dtype.kind not in "iu" or seqs.ndim != 1 or nodes.dtype.kind != "U" or nodes.shape != seqs.shape:
        kinds = f"seqs {seqs.dtype} {seqs.shape} and nodes {nodes.dtype} {nodes.shape}"
        raise DataError(f"{where}: got {kinds}; {_HINT}")
    numbers = {}
    for name in _NAMES[2:]:
        expected = shape[:1] if name == "lengths" else shape
        if arrays[name].shape != expected or arrays[name].dtype.kind != "f":
            raise DataError(f"{where}: {name}: expected numbers {expected}, got {arrays[name].shape}; {_HINT}")
        numbers[name] = arrays[name].astype(np.float64)
    return Answers(seqs.astype(np.int64), nodes.astype(np.str_), **numbers)


def read_shadow_losses(path: Path, targets: Sized | None) -> ShadowLosses:
    """Read what shadow models lose; raises as :func:`check_shadow_losses`."""
    return check_shadow_losses(read_npz(path, DataError, _SHADOWS_HINT, "seqs", "losses"), targets, path)


def check_shadow_losses(arrays: Mapping[str, NDArray[Any]], targets: Sized | None, where: object) -> ShadowLosses:
    """Make shadow losses of their arrays, or raise a DataError if they do not fit each other or the targets."""
    seqs, losses = arrays["seqs"], arrays["losses"]
    count = len(targets or ())
    fits = losses.ndim == 3 and losses.shape[::2] == (len(seqs), count)
    if seqs.ndim != 1 or seqs.dtype.kind not in "iu" or losses.dtype.kind != "f" or not fits:
        kinds = f"seqs {seqs.dtype} {seqs.shape} and losses {losses.dtype} {losses.shape} of {count} targets"
        raise DataError(f"{where}: got {kinds}; {_SHADOWS_HINT}")
    return ShadowLosses(seqs.astype(np.int64), losses.astype(np.float64))
