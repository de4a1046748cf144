"""Private attributes are what all examples of a client have in common."""

from typing import Any

from fedattack.attacks.threat import Threat
from fedattack.threats.group.options import PrivateAttributeOptions


class GroupThreat(Threat):
    name = "group"
    question = "What do all examples of a client have in common?"
    options = (PrivateAttributeOptions,)

    def load_attacks(self) -> tuple[type, ...]:
        from fedattack.threats.group.private_attribute import PrivateAttribute

        return (PrivateAttribute,)

    def load_judges(self) -> dict[str, type]:
        from fedattack.threats.group.judge import PrivateAttributeJudge

        return {"private-attribute": PrivateAttributeJudge}

    def load_section(self) -> Any:
        from fedattack.threats.group.section import SECTION

        return SECTION


THREAT = GroupThreat()
