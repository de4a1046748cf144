"""What declares both attacks, apart from them: needs are shown, and options checked, before torch is imported."""

from dataclasses import dataclass
from typing import ClassVar

from fedattack.attacks import options
from fedattack.attacks.needs import InApps, Needs
from fedattack.record.format import PROTOCOLS


@dataclass(frozen=True)
class MembershipOptions(options.WorkersOptions, options.MemoryOptions):
    """How each client's members are told."""

    name: ClassVar[str] = "membership"
    title: ClassVar[str] = "Membership inference"
    paper: ClassVar[str] = "Zhu et al. 2025, FedMIA, Section 4"
    needs: ClassVar[Needs] = Needs(
        views=("individual",),
        protocols=tuple(PROTOCOLS),
        knowledge=("losses", "targets"),
        takes=("rounds", "clients", "frozen", "structures"),
    )
    in_apps: ClassVar[InApps] = InApps(place=1, options={"shadow_rounds": 10})

    shadows: int = options.whole(
        8,
        "shadow models that the attacker trains in each round, where it has auxiliary examples and knows how clients "
        "train; fewer than 2 for none",
        least=0,
    )
    shadow_rounds: int | None = options.whole(
        None, "rounds in which it trains them, spread over the whole run (all)", least=1
    )


@dataclass(frozen=True)
class AggregateMembershipOptions(options.WorkersOptions):
    """How members of any client are told."""

    name: ClassVar[str] = "membership-aggregate"
    title: ClassVar[str] = "Membership inference behind secure aggregation"
    paper: ClassVar[str] = "Carlini et al. 2022, Membership inference attacks from first principles, Section 6"
    needs: ClassVar[Needs] = Needs(
        views=("aggregate",),
        protocols=tuple(name for name, messages in PROTOCOLS.items() if messages.sends_back),
        knowledge=("model", "targets"),
        takes=("rounds", "frozen", "structures"),
    )

    references: int = options.whole(
        4, "reference federations that the attacker trains on auxiliary examples; fewer than 2 for none", least=0
    )


@dataclass(frozen=True)
class CanaryMembershipOptions:
    """How canaries are read; there is nothing to choose."""

    name: ClassVar[str] = "membership-canary"
    title: ClassVar[str] = "Membership inference by gradient canaries"
    paper: ClassVar[str] = "Pasquini et al. 2022, Eluding Secure Aggregation, Section 5"
    needs: ClassVar[Needs] = Needs(
        views=("individual", "aggregate"),
        protocols=("fedavg", "fedsgd"),
        knowledge=("model", "targets"),
        takes=("models",),
        server="canary",
    )
    in_apps: ClassVar[InApps] = InApps()
