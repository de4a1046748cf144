"""Options of both attacks, apart from them: they are checked before torch is imported."""

from dataclasses import dataclass

from fedattack.attack import options


@dataclass(frozen=True)
class MembershipOptions(options.WorkersOptions, options.MemoryOptions):
    """How each client's members are told."""

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

    references: int = options.whole(
        4, "reference federations that the attacker trains on auxiliary examples; fewer than 2 for none", least=0
    )
