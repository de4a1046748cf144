"""A threat of another package: who holds the most examples?"""

from fedattack.attacks.threat import Threat
from toy_threat.options import ToyOptions


class ToyThreat(Threat):
    name = "toy"
    question = "Which client holds the most examples?"
    options = (ToyOptions,)

    def load_attacks(self):
        from toy_threat.attack import LargestUpdate

        return (LargestUpdate,)

    def load_judges(self):
        from toy_threat.judge import ToyJudge

        return {"toy": ToyJudge}

    def load_section(self):
        from toy_threat.section import SECTION

        return SECTION

    def find_truth(self, held):
        import numpy as np

        return {"sizes": np.array([len(x) for x in held.seen.values()])}


THREAT = ToyThreat()
