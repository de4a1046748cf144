"""What declares both attacks, apart from them: needs are shown, and options checked, before torch is imported."""

from fedattack.attacks.needs import InApps, Needs
from fedattack.attacks.options import MemoryOptions, Options, WorkersOptions
from fedattack.base.settings import setting
from fedattack.record.format import PROTOCOLS

_FINDS = (
    "tpr-at-1pct-fpr",
    "tpr-at-0.1pct-fpr",
    "tpr-at-1pct-fpr-elsewhere",
    "tpr-at-1pct-fpr-adaptive",
    "auc",
    "worst-client",
    "epsilon-implied",
    "balanced-accuracy",
)


class MembershipOptions(WorkersOptions, MemoryOptions):
    """How each client's members are told."""

    name = "membership"
    title = "Membership inference"
    paper = "Zhu et al. 2025, FedMIA, Section 4"
    finds = _FINDS
    needs = Needs(
        views=("individual",),
        protocols=tuple(PROTOCOLS),
        knowledge=("losses", "targets"),
        takes=("rounds", "clients", "frozen", "structures"),
    )
    in_apps = InApps(place=1, options={"shadow_rounds": 10})

    shadows: int = setting(
        8,
        "shadow models that the attacker trains in each round, if it has auxiliary examples and knows how clients "
        "train; fewer than 2 for none",
        ge=0,
    )
    shadow_rounds: int | None = setting(None, "rounds in which it trains them, spread over the whole run (all)", ge=1)


class AggregateMembershipOptions(WorkersOptions):
    """How members of any client are told."""

    name = "membership-aggregate"
    title = "Membership inference behind secure aggregation"
    paper = "Carlini et al. 2022, Membership inference attacks from first principles, Section 6"
    finds = ("tpr-at-1pct-fpr", "tpr-at-0.1pct-fpr", "auc", "epsilon-implied", "balanced-accuracy")
    needs = Needs(
        views=("aggregate",),
        protocols=tuple(name for name, messages in PROTOCOLS.items() if messages.sends_back),
        knowledge=("model", "targets"),
        takes=("rounds", "frozen", "structures"),
    )

    references: int = setting(
        4, "reference federations that the attacker trains on auxiliary examples; fewer than 2 for none", ge=0
    )


class CanaryMembershipOptions(Options):
    """How canaries are read; there is nothing to choose."""

    name = "membership-canary"
    title = "Membership inference by gradient canaries"
    paper = "Pasquini et al. 2022, Eluding Secure Aggregation, Section 5"
    finds = _FINDS
    needs = Needs(
        views=("individual", "aggregate"),
        protocols=("fedavg", "fedsgd"),
        knowledge=("model", "targets"),
        takes=("models",),
        server="canary",
    )
    in_apps = InApps()
