"""Trees: what thresholds, leaves and covers of boosted trees give away of a client's table."""

from fedattack.attacks.threat import Threat

THREAT = Threat(
    package=__name__,
    name="trees",
    question="What do boosted trees give away of a client's table?",
    attacks={"trees": "trees:TreesOfTables"},
    judges={"trees": "judge:TreesJudge"},
    options={"trees": "options:TreesOptions"},
    section="section:SECTION",
)
