"""Tokens: which words, items or categories a client holds, by which rows of a table moved."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedattack.attacks.threat import Threat
from fedattack.threats.tokens.options import TokensOptions

if TYPE_CHECKING:
    from fedattack.attacks.held_examples import HeldByClients


class TokensThreat(Threat):
    name = "tokens"
    question = "Which words, items or categories does a client hold?"
    options = (TokensOptions,)

    def load_attacks(self) -> tuple[type, ...]:
        from fedattack.threats.tokens.tokens import MovedRows

        return (MovedRows,)

    def load_judges(self) -> dict[str, type]:
        from fedattack.threats.tokens.judge import TokensJudge

        return {"tokens": TokensJudge}

    def load_section(self) -> Any:
        from fedattack.threats.tokens.section import SECTION

        return SECTION

    def find_truth(self, held: "HeldByClients") -> Mapping[str, Any] | None:
        """Return the rows that clients use of which all examples are known: by gradients, where the app gave some."""
        from fedattack.attacks.lookups import used_rows

        if held.touched is not None:
            return held.touched
        return used_rows(held.knowledge, held.of_whole(), held.record)


THREAT = TokensThreat()
