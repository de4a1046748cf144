from dataclasses import dataclass

from fedattack.base.settings import SettingsModel, setting
from fedattack.defences.base import DefenceKind, as_float32, number


class ToySettings(SettingsModel):
    toy_shrink_power: float = setting(1.0, "toy-shrink: power of the strength", gt=0)


@dataclass(frozen=True)
class Shrink:
    factor: float
    name = "toy-shrink"
    needs_batch = False

    def apply(self, update, rng, batch=None):
        return {name: array * (1 - self.factor) for name, array in as_float32(update).items()}


def make(settings):
    return Shrink(number(settings, "defence-strength", high=1) ** number(settings, "toy-shrink-power"))


KIND = DefenceKind("toy-shrink", make, ToySettings)
