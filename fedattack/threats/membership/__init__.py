"""Membership inference finds out whether a client trained on an example."""

from fedattack.threats.threat import Threat

THREAT = Threat(
    package=__name__,
    name="membership",
    question="Did this client train on this example?",
    attacks={
        "membership": "membership:Membership",
        "membership-aggregate": "aggregate:AggregateMembership",
    },
    judges={
        "membership": "judge:MembershipJudge",
        "membership-aggregate": "judge:AggregateMembershipJudge",
    },
    section="section:SECTION",
)
