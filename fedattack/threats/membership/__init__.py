"""Membership inference finds out whether a client trained on an example."""

from fedattack.attacks.threat import Threat

THREAT = Threat(
    package=__name__,
    name="membership",
    question="Did this client train on this example?",
    attacks={
        "membership": "membership:Membership",
        "membership-aggregate": "aggregate:AggregateMembership",
        "membership-canary": "canaries:CanaryMembership",
    },
    judges={
        "membership": "judge:MembershipJudge",
        "membership-aggregate": "judge:AggregateMembershipJudge",
        "membership-canary": "judge:CanaryMembershipJudge",
    },
    options={
        "membership": "options:MembershipOptions",
        "membership-aggregate": "options:AggregateMembershipOptions",
        "membership-canary": "options:CanaryMembershipOptions",
    },
    section="section:SECTION",
)
