"""Exact: which training examples can be read off the first fully connected layer, number by number."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedattack.attacks.threat import Threat
from fedattack.threats.exact.options import ExactOptions

if TYPE_CHECKING:
    from fedattack.attacks.held_examples import HeldByClients


class ExactThreat(Threat):
    name = "exact"
    question = "Which training examples can be recovered exactly?"
    options = (ExactOptions,)

    def load_attacks(self) -> tuple[type, ...]:
        from fedattack.threats.exact.exact import FirstLayerReading

        return (FirstLayerReading,)

    def load_judges(self) -> dict[str, type]:
        from fedattack.threats.exact.judge import ExactJudge

        return {"exact": ExactJudge}

    def load_section(self) -> Any:
        from fedattack.threats.exact.section import SECTION

        return SECTION

    def find_truth(self, held: "HeldByClients") -> Mapping[str, Any] | None:
        """Return the examples of clients of which all are known."""
        from fedattack.attacks.held_examples import held_examples

        return held_examples(held.knowledge, held.of_whole())


THREAT = ExactThreat()
