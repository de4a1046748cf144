"""Labels: how many examples of each label a client holds, read off how the last layer moves."""

from typing import Any

from fedattack.attacks.threat import Threat
from fedattack.threats.labels.options import LabelsOptions


class LabelsThreat(Threat):
    name = "labels"
    question = "How many examples of each label does a client hold?"
    options = (LabelsOptions,)

    def load_attacks(self) -> tuple[type, ...]:
        from fedattack.threats.labels.labels import LabelCounting

        return (LabelCounting,)

    def load_judges(self) -> dict[str, type]:
        from fedattack.threats.labels.judge import LabelsJudge

        return {"labels": LabelsJudge}

    def load_section(self) -> Any:
        from fedattack.threats.labels.section import SECTION

        return SECTION


THREAT = LabelsThreat()
