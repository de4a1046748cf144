"""Gradient inversion shows what a client's examples look like."""

from typing import Any

from fedattack.attacks.threat import Threat
from fedattack.threats.inversion.options import GradientInversionOptions


class InversionThreat(Threat):
    name = "inversion"
    question = "What do a client's examples look like?"
    options = (GradientInversionOptions,)

    def load_attacks(self) -> tuple[type, ...]:
        from fedattack.threats.inversion.inversion import GradientInversion

        return (GradientInversion,)

    def load_judges(self) -> dict[str, type]:
        from fedattack.threats.inversion.judge import InversionJudge

        return {"inversion": InversionJudge}

    def load_section(self) -> Any:
        from fedattack.threats.inversion.section import SECTION

        return SECTION


THREAT = InversionThreat()
