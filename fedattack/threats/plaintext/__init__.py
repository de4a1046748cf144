"""Plaintext is what a server reads as it is: arrays, numbers, lists and texts that hold examples or statistics."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedattack.attacks.threat import Threat
from fedattack.threats.plaintext.options import PlaintextOptions

if TYPE_CHECKING:
    from fedattack.attacks.held_examples import HeldByClients


class PlaintextThreat(Threat):
    name = "plaintext"
    question = "What do the numbers that clients send give away by themselves?"
    options = (PlaintextOptions,)

    def load_attacks(self) -> tuple[type, ...]:
        from fedattack.threats.plaintext.plaintext import Plaintext

        return (Plaintext,)

    def load_judges(self) -> dict[str, type]:
        from fedattack.threats.plaintext.judge import PlaintextJudge

        return {"plaintext": PlaintextJudge}

    def load_section(self) -> Any:
        from fedattack.threats.plaintext.section import SECTION

        return SECTION

    def find_truth(self, held: "HeldByClients") -> Mapping[str, Any] | None:
        """Return the examples that are held against what clients sent; before a run nothing was."""
        from fedattack.threats.plaintext.truths import known_examples

        return known_examples(held)


THREAT = PlaintextThreat()
