"""Trees: what thresholds, leaves and covers of boosted trees give away of a client's table."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedattack.attacks.threat import Threat
from fedattack.threats.trees.options import TreesOptions

if TYPE_CHECKING:
    from fedattack.attacks.held_examples import HeldByClients
    from fedattack.record import Record

TREES = "trees"
"""What replies hold that are not arrays of a model."""


class TreesThreat(Threat):
    name = "trees"
    question = "What do boosted trees give away of a client's table?"
    options = (TreesOptions,)

    def load_attacks(self) -> tuple[type, ...]:
        from fedattack.threats.trees.trees import TreesOfTables

        return (TreesOfTables,)

    def load_judges(self) -> dict[str, type]:
        from fedattack.threats.trees.judge import TreesJudge

        return {"trees": TreesJudge}

    def load_section(self) -> Any:
        from fedattack.threats.trees.section import SECTION

        return SECTION

    def find_truth(self, held: "HeldByClients") -> Mapping[str, Any] | None:
        """Return the rows of clients that send trees; of a large client those that are known."""
        from fedattack.attacks.held_examples import join_examples
        from fedattack.base.structured import fields

        if held.content != TREES:
            return None
        # Trees are grown on tables: examples of several arrays are none.
        return join_examples((name, x) for name, x in held.seen.items() if not fields(x))

    def find_content(self, record: "Record") -> str:
        """Say that replies hold trees, if one can be read as a model of such."""
        from fedattack.threats.trees.replies import holds_trees

        if not holds_trees(record):
            return ""
        return TREES


THREAT = TreesThreat()
