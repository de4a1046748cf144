"""Match a record's arrays with the parameters of the model that the attacker knows."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedattack.attacks.knowledge import Knowledge, ModelKnowledge
from fedattack.base.errors import ModelError, NeedsError
from fedattack.learning import check_parameters
from fedattack.learning.torch_utils import shapes_of
from fedattack.record import Record
from fedattack.record.format import PROTOCOLS

NAMELESS = (
    "the record's arrays have no names; as their number and shapes are those of the model's parameters, they were "
    "taken in the model's order"
)


SHORTENED = (
    "the record's arrays have shorter names than the model's parameters; each was taken for the only one of its shape "
    "whose name has all its parts"
)


def as_stated(record: Record, knowledge: Knowledge) -> Record:
    """Return a view of the protocol that replies are known to be of, or the record itself where it says that one."""
    if knowledge.sends is None or not knowledge.sends.protocol:
        return record
    return record.read_as((), None, protocol=knowledge.sends.protocol)


def as_models(record: Record, knowledge: Knowledge) -> Record:
    """Return a view whose replies are local models, where they hold other arrays, too, or differences alone.

    Raises
    ------
    NeedsError
        If there are sums alone of differences, which are of another size for each client.
    """
    sends = knowledge.sends
    if sends is None:
        return record
    if sends.factors is not None and record.view == "aggregate":
        raise NeedsError(
            f"{record.path} holds sums of differences, not of models; expected a record in the view individual"
        )
    return record.read_as(sends.arrays, sends.factors, entries=sends.sparse, flat=sends.flat, protocol=sends.protocol)


def named_for(record: Record, known: ModelKnowledge | None, frozen: Collection[str] = ()) -> Record:
    """Return a view with the model's names, or the record itself where its arrays have names or do not match.

    Clients that send a list of arrays, as NumPyClients do, leave the record with ``"0"``, ``"1"`` … for names. They
    are matched only if there are as many as the model's state has entries, with the same shapes in the same order.
    Entries that are ``frozen`` may be missing all.
    """
    shapes = _shapes_of(record)
    if known is None or not shapes or not PROTOCOLS[record.protocol].sends_model:
        return record
    if frozen and not all(map(str.isdecimal, shapes)):
        return _with_whole_names(record, known, frozen)
    # Names are numbers where arrays came without names, as from NumPyClient's lists.
    numbers = [str(index) for index in range(len(shapes))]
    if {*shapes} != {*numbers}:
        return record
    sent = [shapes[number] for number in numbers]
    # Clients send all arrays of the model, or those alone that are trained.
    for left_out in ((), frozen):
        state = _shapes_of_model(known, left_out)
        # Number and shapes, in order: nothing else tells nameless arrays apart.
        if sent == [*state.values()]:
            return record.rename(dict(zip(numbers, state, strict=True)))
    return record


def _shapes_of_model(known: ModelKnowledge, frozen: Collection[str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's state by name, without what is ``frozen``."""
    return {name: tuple(value.shape) for name, value in known.build().state_dict().items() if name not in frozen}


def how_named(record: Record, named: Record) -> list[str]:
    """Say how a record's arrays were given the model's names; nothing if they have these."""
    if named is record:
        return []
    if all(map(str.isdecimal, _shapes_of(record))):
        return [NAMELESS]
    return [SHORTENED]


def _with_whole_names(record: Record, known: ModelKnowledge, frozen: Collection[str]) -> Record:
    """Give arrays the model's names where they have shorter ones: peft leaves the name of an adapter out.

    A name is meant if it is the only one, among what is not frozen, that has all the parts of the shorter one in their
    order, and the same shape.
    """
    trained = _shapes_of_model(known, frozen)
    names = {}
    for name, shape in _shapes_of(record).items():
        meant = [long for long, other in trained.items() if shape == other and _shortens(name, long)]
        # Several parameters of one shape whose names fit: no choice is safe.
        if len(meant) != 1:
            return record
        names[name] = meant[0]
    # Two arrays must not get one name.
    return record.rename(names) if len({*names.values()}) == len(names) else record


def _shortens(short_name: str, name: str) -> bool:
    parts = iter(name.split("."))
    # A subsequence: `in` on an iterator goes on after the last part that was found.
    return all(part in parts for part in short_name.split("."))


def complete_models(record: Record, knowledge: Knowledge) -> Record:
    """Return a view with the frozen weights in every model, or the record itself where nothing is missing.

    ``record`` has the model's names.
    """
    frozen, known = knowledge.frozen or {}, knowledge.model
    if known is None or not frozen or not PROTOCOLS[record.protocol].sends_model:
        return record
    state = known.build().state_dict()
    there = {parameter.name for parameter in record.parameters}
    lacking = {name: np.asarray(frozen[name]) for name in state if name not in there and name in frozen}
    return record.complete(lacking, [*state]) if lacking else record


def check_model(model: nn.Module, record: Record) -> None:
    """Check that a record's arrays are the parameters and buffers of a model; a ModelError names others."""
    try:
        check_parameters(model, _shapes_of(record))
    except ModelError as cause:
        way = ""
        # All names that are there are the model's; others are lacking.
        if _shapes_of(record).keys() < model.state_dict().keys():
            way = "; or the weights that clients do not send, by --frozen FILE"
        raise ModelError(f"{record.path}: {cause}{way}") from None


def check_state(model: nn.Module, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Check arrays by name as :func:`check_model` checks a record, and that they are of floating point where it is."""
    check_parameters(model, shapes_of(arrays))
    for name, tensor in model.state_dict().items():
        # Some clients send bfloat16, which NumPy has not, as the whole numbers of its bits.
        if tensor.is_floating_point() and tensor.dtype != torch.bfloat16 and arrays[name].dtype.kind != "f":
            raise ModelError(
                f"{name} holds {arrays[name].dtype}, and the model's own {str(tensor.dtype).removeprefix('torch.')}"
            )


def fits_model(model: nn.Module, arrays: Mapping[str, NDArray[Any]], where: str, notes: list[str]) -> bool:
    """Say whether arrays are the model's; if not, add a note that begins with ``where`` and gives the cause."""
    try:
        check_state(model, arrays)
    except ModelError as cause:
        notes.append(f"{where}: {cause}")
        return False
    return True


def is_finite(arrays: Iterable[NDArray[Any]]) -> bool:
    """Say whether all entries of all arrays are finite."""
    return all(np.isfinite(array).all() for array in arrays)


def is_zero(arrays: Iterable[NDArray[Any]]) -> bool:
    """Say whether all entries of all arrays are zero."""
    return not any(array.any() for array in arrays)


def flatten_arrays(arrays: Mapping[str, Any], names: Iterable[str]) -> NDArray[np.float64]:
    """Return some of the arrays, or tensors, as one vector in float64."""
    return np.concatenate([np.asarray(arrays[name], dtype=np.float64).reshape(-1) for name in names])


def _shapes_of(record: Record) -> dict[str, tuple[int, ...]]:
    return {parameter.name: parameter.shape for parameter in record.parameters}
