"""Attribute inference fills in the one column of clients' examples that the server lacks."""

from typing import Any

from fedattack.attacks.threat import Threat
from fedattack.threats.attribute.options import (
    BaselinesOptions,
    GradientMatchingOptions,
    ModelBasedOptions,
    NumberOptions,
)


class AttributeThreat(Threat):
    name = "attribute"
    question = "What stands in the one column of clients' examples that the server lacks?"
    options = (ModelBasedOptions, GradientMatchingOptions, NumberOptions, BaselinesOptions)

    def load_attacks(self) -> tuple[type, ...]:
        from fedattack.threats.attribute.aia import ModelBased
        from fedattack.threats.attribute.ara import GradientMatching
        from fedattack.threats.attribute.baselines import AttributeBaselines
        from fedattack.threats.attribute.numbers import NumbersOfColumn

        return ModelBased, GradientMatching, NumbersOfColumn, AttributeBaselines

    def load_judges(self) -> dict[str, type]:
        from fedattack.threats.attribute.judge import AttributeJudge, ModelBasedJudge
        from fedattack.threats.attribute.numbers_judge import NumbersJudge

        return {"aia": ModelBasedJudge, "ara": AttributeJudge, "attribute-number": NumbersJudge}

    def load_section(self) -> Any:
        from fedattack.threats.attribute.section import SECTION

        return SECTION


THREAT = AttributeThreat()
