"""What a user might plug in: properties and models by import path."""

from torch import Tensor, nn

from fedattack.attacks.knowledge import Targets
from fedattack.threats.property.properties import Property, containing, draw_records


def _draw(has, count, size, rows, generator):
    return draw_records(count, size, rows, generator)


def nothing(auxiliary: Targets, targets: Targets | None) -> list[Property]:
    """Ask for something that changes nothing: batches with and without it are drawn alike."""
    return [Property("nothing", _draw)]


def first_class(auxiliary: Targets, targets: Targets | None) -> list[Property]:
    """Ask whether most of a client's records are of class 0."""
    return [containing(auxiliary, auxiliary.y == 0, 0.75, "class 0")]


def no_property(auxiliary: Targets, targets: Targets | None) -> list[str]:
    return ["membership"]


def empty(auxiliary: Targets, targets: Targets | None) -> list[Property]:
    return []


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Dropout(0.5), nn.Linear(24, 4))


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def own_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")
