"""Membership inference finds out whether a client trained on an example."""

from typing import Any

from fedattack.attacks.threat import Threat
from fedattack.threats.membership.options import AggregateMembershipOptions, CanaryMembershipOptions, MembershipOptions


class MembershipThreat(Threat):
    name = "membership"
    question = "Did this client train on this example?"
    options = (MembershipOptions, AggregateMembershipOptions, CanaryMembershipOptions)

    def load_attacks(self) -> tuple[type, ...]:
        from fedattack.threats.membership.aggregate import AggregateMembership
        from fedattack.threats.membership.canaries import CanaryMembership
        from fedattack.threats.membership.membership import Membership

        return Membership, AggregateMembership, CanaryMembership

    def load_judges(self) -> dict[str, type]:
        from fedattack.threats.membership.judge import AggregateMembershipJudge, CanaryMembershipJudge, MembershipJudge

        return {
            "membership": MembershipJudge,
            "membership-aggregate": AggregateMembershipJudge,
            "membership-canary": CanaryMembershipJudge,
        }

    def load_section(self) -> Any:
        from fedattack.threats.membership.section import SECTION

        return SECTION


THREAT = MembershipThreat()
