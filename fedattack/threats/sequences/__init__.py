"""Sequences: which sequences of tokens a client trains on, by what the gradients of self-attention span."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedattack.attacks.threat import Threat
from fedattack.threats.sequences.options import SequencesOptions

if TYPE_CHECKING:
    from fedattack.attacks.held_examples import HeldByClients


class SequencesThreat(Threat):
    name = "sequences"
    question = "Which sequences of tokens did a client train on?"
    options = (SequencesOptions,)

    def load_attacks(self) -> tuple[type, ...]:
        from fedattack.threats.sequences.dager import SpanCheck

        return (SpanCheck,)

    def load_judges(self) -> dict[str, type]:
        from fedattack.threats.sequences.judge import SequencesJudge

        return {"dager": SequencesJudge}

    def load_section(self) -> Any:
        from fedattack.threats.sequences.section import SECTION

        return SECTION

    def find_truth(self, held: "HeldByClients") -> Mapping[str, Any] | None:
        """Return the sequences of clients of which all examples are known."""
        from fedattack.attacks.lookups import trained_sequences

        return trained_sequences(held.knowledge, held.of_whole())


THREAT = SequencesThreat()
