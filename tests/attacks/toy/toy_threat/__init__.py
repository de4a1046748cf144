"""A threat of another package: who holds the most examples?"""

from fedattack.attacks.threat import Threat

THREAT = Threat(
    package=__name__,
    name="toy",
    question="Which client holds the most examples?",
    attacks={"toy": "attack:LargestUpdate"},
    judges={"toy": "judge:ToyJudge"},
    section="section:SECTION",
)
