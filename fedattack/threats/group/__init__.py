"""Private attributes are what all examples of a client have in common."""

from fedattack.attacks.threat import Threat

THREAT = Threat(
    package=__name__,
    name="group",
    question="What do all examples of a client have in common?",
    attacks={"private-attribute": "private_attribute:PrivateAttribute"},
    judges={"private-attribute": "judge:PrivateAttributeJudge"},
    options={"private-attribute": "options:PrivateAttributeOptions"},
    section="section:SECTION",
)
