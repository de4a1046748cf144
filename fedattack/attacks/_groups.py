"""Replies of a round that are worked on in one piece, which carries all arrays that this takes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fedattack.attacks.answers import Answers
from fedattack.attacks.local_models import LocalModels, Rebuilding
from fedattack.attacks.replies import replied
from fedattack.record import Observation, Record, Round
from fedattack.record.format import Arrays

Reply = tuple[Observation, Arrays]


@dataclass(frozen=True)
class Group:
    """Some replies of one round.

    Attributes
    ----------
    position, number, seq
        Where the round is among those of the record that are gone through; its number, and its position in the record.
    nodes, counts
        (k,), (k,): who replied, and the example counts that they told.
    known
        (k,): what their models are rebuilt of.
    """

    position: int
    number: int
    seq: int
    nodes: tuple[str, ...]
    counts: tuple[float | None, ...]
    known: Sequence[Arrays]

    def models(self, rebuild: Rebuilding) -> Sequence[Arrays]:
        """Return the clients' models (k,) as state dicts of arrays."""
        return rebuild(self.seq, self.known)

    def bare(self) -> "Group":
        """Return the group without arrays, as what was found of it comes back."""
        return replace(self, known=())


def groups_of(position: int, round_: Round, local: LocalModels, most: int) -> Iterator[tuple[Observation, Group]]:
    """Yield the usable replies of a round: at most so many together, and each that was sent a model of its own alone.

    The first observation of a group comes with it: what it was sent all were.
    """
    group: list[Reply] = []
    # Replies to one model are worked on together; one that was sent its own has nothing in common with them.
    for reply in local.usable(round_):
        if reply[0].singled_out:
            yield reply[0], _make_group(position, round_, [reply])
            continue
        group.append(reply)
        if len(group) == most:
            yield group[0][0], _make_group(position, round_, group)
            group = []
    if group:
        yield group[0][0], _make_group(position, round_, group)


def count_groups(record: Record, most: int) -> int:
    """Say about how many groups a record has, without a look at what was sent."""
    # Rounded up.
    return sum(-(-len(round_.participants) // most) for round_ in record)


def answered_groups(record: Record, answers: Answers) -> Iterator[tuple[Group, list[int]]]:
    """Yield the replies of each round that the clients' own app spoke of, with the rows of the answers."""
    rows = answers.rows()
    for position, round_ in enumerate(record):
        told: list[Reply] = []
        # The app has answered about these already: their arrays are not read again.
        for observation in filter(replied, round_.observations):
            if (round_.seq, observation.node) in rows:
                told.append((observation, {}))
        group = _make_group(position, round_, told).bare()
        if group.nodes:
            yield group, [rows[round_.seq, node] for node in group.nodes]


def _make_group(position: int, round_: Round, replies: Sequence[Reply]) -> Group:
    return Group(
        position,
        round_.number,
        round_.seq,
        tuple(observation.node for observation, _ in replies),
        tuple(observation.count for observation, _ in replies),
        [known for _, known in replies],
    )
