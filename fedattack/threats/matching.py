"""Match a record's arrays with the parameters of the model that the attacker knows."""

from torch import nn

from fedattack.errors import ModelError
from fedattack.learning import check_parameters
from fedattack.record import Record
from fedattack.record.format import PROTOCOLS
from fedattack.threats.knowledge import ModelKnowledge

NAMELESS = (
    "the record's arrays have no names; as their number and shapes are those of the model's parameters, they were "
    "taken in the model's order"
)


def named_for(record: Record, known: ModelKnowledge | None) -> Record:
    """Give nameless arrays the names of the model's parameters, by their places.

    Clients that send a list of arrays, as NumPyClients do, leave the record with ``"0"``, ``"1"`` … for names. They
    are matched only if there are as many as the model's state has entries, with the same shape place by place.

    Returns
    -------
    Record
        A view with the model's names, or the record itself where its arrays have names or do not match.
    """
    shapes = {parameter.name: parameter.shape for parameter in record.parameters}
    places = [str(place) for place in range(len(shapes))]
    if known is None or not shapes or not PROTOCOLS[record.protocol].sends_model or sorted(shapes) != sorted(places):
        return record
    expected = {name: tuple(value.shape) for name, value in known.build().state_dict().items()}
    if [shapes[place] for place in places] != [*expected.values()]:
        return record
    return record.renamed(dict(zip(places, expected, strict=True)))


def check_model(model: nn.Module, record: Record) -> None:
    """Check that a record's arrays are the parameters and buffers of a model.

    Raises
    ------
    ModelError
        If they are not; it names those that differ.
    """
    try:
        check_parameters(model, {parameter.name: parameter.shape for parameter in record.parameters})
    except ModelError as cause:
        raise ModelError(f"{record.path}: {cause}") from None
