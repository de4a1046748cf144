"""Private attributes are what all examples of a client have in common."""

from fedattack.threats.threat import Threat

THREAT = Threat(
    package=__name__,
    name="group",
    question="What do all examples of a client have in common?",
    attacks={"private-attribute": "private_attribute:PrivateAttribute"},
    judges={"private-attribute": "judge:PrivateAttributeJudge"},
    section="section:SECTION",
)
