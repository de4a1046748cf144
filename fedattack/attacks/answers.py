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


@dataclass(frozen=True, eq=False)
class AskedOutputs:
    """What enters and leaves the last layer of clients' models, as the clients' own app showed it by gradients.

    Attributes
    ----------
    seqs, nodes, shares
        (models,): the position of a model's round, the node, and how far the model lies from what was sent to what came
        back, 0 … 1; no node for a model that all were sent.
    rows
        (examples,): which of the attacker's auxiliary examples were put in; −1 for drawn inputs.
    softmax, inputs
        (models, examples, classes) and (models, examples, inputs): what leaves the layer, and what enters it. Of
        models of several forms, narrower ones have zeros beyond their own inputs.
    """

    seqs: Annotated[NDArray[np.int64], Axes("models")]
    nodes: Annotated[NDArray[np.str_], Axes("models")]
    shares: Annotated[NDArray[np.float64], Axes("models", low=0, high=1)]
    rows: Annotated[NDArray[np.int64], Axes("examples", low=-1)]
    softmax: Annotated[NDArray[np.float32], Axes("models", "examples", "classes")]
    inputs: Annotated[NDArray[np.float32], Axes("models", "examples", "inputs")]

    def find(
        self, seq: int, node: str, share: float, *, is_common: bool
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
        """Return softmax and inputs of one model; ``None`` where nothing is known of it.

        ``is_common`` says whether the node was sent what others were sent.
        """
        whose = self.nodes == node
        if is_common and not share:
            whose |= self.nodes == ""
        for index in np.flatnonzero(whose & (self.seqs == seq) & np.isclose(self.shares, share)):
            return self.softmax[index], self.inputs[index]
        return None


_HINT = "expected the arrays of fedattack.attacks.answers.Answers"
_OUTPUTS_HINT = "expected the arrays of fedattack.attacks.answers.AskedOutputs"
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


def read_outputs(path: Path, auxiliary: Sized | None) -> AskedOutputs:
    """Read what the app showed of the last layer, without pickle; raises as :func:`check_outputs`."""
    return _refuse_rows(read_arrays(AskedOutputs, path, DataError, _OUTPUTS_HINT), path, auxiliary)


def check_outputs(arrays: Mapping[str, NDArray[Any]], where: object, auxiliary: Sized | None) -> AskedOutputs:
    """Make outputs of their arrays, or raise a DataError if they do not fit each other or the auxiliary examples."""
    return _refuse_rows(check_arrays(AskedOutputs, arrays, where, DataError, _OUTPUTS_HINT), where, auxiliary)


def _refuse_rows(found: AskedOutputs, where: object, auxiliary: Sized | None) -> AskedOutputs:
    if found.rows.max(initial=-1) >= len(auxiliary or ()):
        raise DataError(f"{where}: rows go beyond the {len(auxiliary or ())} auxiliary examples; {_OUTPUTS_HINT}")
    return found


def _sizes(targets: Sized | None) -> dict[str, int]:
    return {"targets": len(targets or ())}
