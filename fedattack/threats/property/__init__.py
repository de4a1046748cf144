"""Property inference finds out which clients have a property, from sums of their updates alone."""

from typing import Any

from fedattack.attacks.threat import Threat
from fedattack.threats.property.options import ProlinOptions


class PropertyThreat(Threat):
    name = "property"
    question = "Which clients have a property, if the server sees only sums?"
    options = (ProlinOptions,)

    def load_attacks(self) -> tuple[type, ...]:
        from fedattack.threats.property.prolin import Prolin

        return (Prolin,)

    def load_judges(self) -> dict[str, type]:
        from fedattack.threats.property.judge import PropertyJudge

        return {"prolin": PropertyJudge}

    def load_section(self) -> Any:
        from fedattack.threats.property.section import SECTION

        return SECTION


THREAT = PropertyThreat()
