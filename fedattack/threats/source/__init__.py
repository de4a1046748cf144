"""Source inference finds out which client holds an example."""

from typing import Any

from fedattack.attacks.threat import Threat
from fedattack.threats.source.options import SourceOptions


class SourceThreat(Threat):
    name = "source"
    question = "Which client holds this example?"
    options = (SourceOptions,)

    def load_attacks(self) -> tuple[type, ...]:
        from fedattack.threats.source.sia import SourceInference

        return (SourceInference,)

    def load_judges(self) -> dict[str, type]:
        from fedattack.threats.source.judge import SourceJudge

        return {"sia": SourceJudge}

    def load_section(self) -> Any:
        from fedattack.threats.source.section import SECTION

        return SECTION


THREAT = SourceThreat()
