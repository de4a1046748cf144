"""Membership inference finds out whether a client trained on an example."""

from fedattack.attacks.threat import Threat

_FINDINGS = ("tpr-at-1pct-fpr", "tpr-at-0.1pct-fpr", "auc", "epsilon-implied", "balanced-accuracy")

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
    options={
        "membership": "options:MembershipOptions",
        "membership-aggregate": "options:AggregateMembershipOptions",
    },
    findings={
        "membership": (
            *_FINDINGS,
            "tpr-at-1pct-fpr-elsewhere",
            "tpr-at-1pct-fpr-adaptive",
            "worst-client",
        ),
        "membership-aggregate": _FINDINGS,
    },
    section="section:SECTION",
)
