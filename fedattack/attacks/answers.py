"""What the clients' own app said when the attacker asked it: losses, and those of shadow models that it trained."""

from collections.abc import Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import DataError
from fedattack.base.stored import Axes, check_arrays, read_arrays


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

    seqs: Annotated[NDArray[np.int64], Axes("replies")]
    nodes: Annotated[NDArray[np.str_], Axes("replies")]
    losses: Annotated[NDArray[np.float64], Axes("replies", "targets", nan=True, kinds="f")]
    products: Annotated[NDArray[np.float64], Axes("replies", "targets", nan=True, kinds="f")]
    norms: Annotated[NDArray[np.float64], Axes("replies", "targets", nan=True, kinds="f")]
    lengths: Annotated[NDArray[np.float64], Axes("replies", nan=True, kinds="f")]

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

    seqs: Annotated[NDArray[np.int64], Axes("rounds")]
    losses: Annotated[NDArray[np.float64], Axes("rounds", "shadows", "targets", nan=True, kinds="f")]


_HINT = "expected the arrays of fedattack.attacks.answers.Answers"
_SHADOWS_HINT = "expected the arrays of fedattack.attacks.answers.ShadowLosses"


def read_answers(path: Path, targets: Sized | None) -> Answers:
    """Read answers about the targets, without pickle; raises as :func:`check_answers`."""
    return read_arrays(Answers, path, DataError, _HINT, sizes=_sizes(targets))


def check_answers(arrays: Mapping[str, NDArray[Any]], targets: Sized | None, where: object) -> Answers:
    """Make answers of their arrays, or raise a DataError if they do not fit each other or the targets."""
    return check_arrays(Answers, arrays, where, DataError, _HINT, sizes=_sizes(targets))


def read_shadow_losses(path: Path, targets: Sized | None) -> ShadowLosses:
    """Read what shadow models lose; raises as :func:`check_shadow_losses`."""
    return read_arrays(ShadowLosses, path, DataError, _SHADOWS_HINT, sizes=_sizes(targets))


def check_shadow_losses(arrays: Mapping[str, NDArray[Any]], targets: Sized | None, where: object) -> ShadowLosses:
    """Make shadow losses of their arrays, or raise a DataError if they do not fit each other or the targets."""
    return check_arrays(ShadowLosses, arrays, where, DataError, _SHADOWS_HINT, sizes=_sizes(targets))


def _sizes(targets: Sized | None) -> dict[str, int]:
    return {"targets": len(targets or ())}
