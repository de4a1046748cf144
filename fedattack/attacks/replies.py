"""Which replies of a record an attack uses: the rounds that an option names, and one client's replies in them."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from fedattack.base.errors import ConfigError, NeedsError, short
from fedattack.learning.stated import LocalSGD

if TYPE_CHECKING:
    # Options are checked before torch is imported, and their names of rounds stand here.
    from fedattack.attacks.knowledge import Knowledge
    from fedattack.record import Observation, Record, Round
    from fedattack.record.format import Arrays

UPDATES: Mapping[str, Callable[[Sequence[int]], Sequence[int]]] = {
    "pre1": lambda rounds: rounds[:1],
    "pre2": lambda rounds: rounds[:2],
    "pre5": lambda rounds: rounds[:5],
    "gap10": lambda rounds: rounds[9:50:10],
    "last5": lambda rounds: rounds[-5:],
    "stages": lambda rounds: sorted({*rounds[:1], *rounds[len(rounds) // 2 :][:1], *rounds[-1:]}),
}
"""Which of the rounds in which a client replied are used (Lyu & Chen 2021, Section 4.2).

gap10 takes its 10th, 20th, … 50th. ``stages`` is not the paper's: the first, the middle and the last.
"""


MOST_EXAMPLES = 1_000_000
"""Examples that a client, or a sum, is taken to have at most. Whoever says more is left out by attacks to which the
number is a size or a length of a training: it is one that anybody can state."""


MOST_STEPS = 10_000
"""Steps of one client's training in a round that an attack imitates at most: knowledge can state any number."""


def check_steps(attack: str, knowledge: "Knowledge", examples: int, most: int = MOST_STEPS) -> None:
    """Check that an attack can imitate how a client of so many examples trains, or is said to defend itself.

    Raises
    ------
    NeedsError
        If that takes more than ``most`` steps in a round.
    """
    trainings = {"training": knowledge.training}
    # A defence that trains, such as DP-SGD, states steps of its own.
    if knowledge.defence is not None and "training" in knowledge.defence.settings:
        trainings["defence"] = LocalSGD(**knowledge.defence.settings["training"])
    for what, training in trainings.items():
        if training is None:
            continue
        steps = training.steps(max(examples, 1))
        if steps > most:
            raise NeedsError(
                f"attack {attack} imitates clients' training, and knowledge of {what} says that a client of "
                f"{examples:,} examples makes {steps:,} steps in a round; at most {most:,} are imitated: state fewer "
                "epochs, or a larger batch_size"
            )


def choose_rounds(spec: str, rounds: Sequence[int]) -> list[int]:
    """Return the rounds whose updates are used, of those in which the client's update can be used, ascending.

    ``spec`` is a name in :data:`UPDATES`, or numbers of rounds as the server counts them, such as ``1,2,10``.

    Raises
    ------
    ConfigError
        If ``spec`` is neither.
    """
    if spec in UPDATES:
        return list(UPDATES[spec](rounds))
    asked = set()
    for number in spec.split(","):
        if not number.strip().isdecimal():
            raise ConfigError(f"expected one of {', '.join(UPDATES)}, or rounds such as 1,2,10")
        asked.add(int(number))
    # In the order of the record, whatever order the text has.
    return [number for number in rounds if number in asked]


def replies_of(record: "Record", knowledge: "Knowledge", client: str) -> Iterator[tuple[int, "Observation"]]:
    """Yield the rounds in which a client's reply arrived in time, with that reply; no array is read."""
    for round_ in record:
        for observation in round_.observations:
            if replied(observation) and knowledge.client_of(observation.node) == client:
                yield round_.number, observation
                # A client with several nodes in one round has replied once.
                break


def without_canaries(record: "Record", knowledge: "Knowledge") -> "Record":
    """Leave out the replies of canaries, which nobody would meet but for the audit; sums are what they are."""
    if record.view == "aggregate" or not knowledge.canaries:
        return record
    return record.without(node for node in record.nodes if knowledge.client_of(node) in knowledge.canaries)


def spread_replies(record: "Record", most: int) -> dict[int, set[str]]:
    """Choose replies of each client, spread over the run, where an attack does not look at all of them.

    Returns, by the position of a round, the nodes whose replies in it are chosen; of sums all are.
    """
    chosen: dict[int, set[str]] = {}
    if record.view == "aggregate":
        for round_ in record:
            chosen[round_.seq] = set(round_.participants)
        return chosen
    by_node: dict[str, list[int]] = {}
    for round_ in record:
        for reply in filter(replied, round_.observations):
            by_node.setdefault(reply.node, []).append(round_.seq)
    for node, rounds in by_node.items():
        # From the first to the last reply, evenly: one place for each number.
        count = min(most, len(rounds))
        for number in range(count):
            # The first and the last of the client's rounds are among them.
            index = number * (len(rounds) - 1) // max(count - 1, 1)
            chosen.setdefault(rounds[index], set()).add(node)
    return chosen


def why_left_out(notes: Sequence[str]) -> str:
    """Return, in brackets, why the first reply or round was left out; empty if none was."""
    reason = next((note for note in notes if " left out: " in note), "")
    return f" ({short(reason, 150)})" if reason else ""


def replied(observation: "Observation") -> bool:
    """Whether a client's reply arrived in time and holds arrays."""
    return observation.status == "ok" and observation.arrays is not None


def list_updates(
    round_: "Round", nodes: Collection[str]
) -> Iterator[tuple[list["Observation"], "Arrays | None", "Arrays | None", str]]:
    """Yield the updates of a round: of sums the one, else the replies of some nodes.

    Each is whose replies are in it, what was sent, what came back, and how a note begins that leaves it out.
    """
    # A round's sum is the one update of it, of all that took part.
    if round_.aggregate is not None:
        replies = [reply for reply in round_.observations if reply.status == "ok"]
        yield replies, round_.common, round_.aggregate, f"round {round_.number} left out"
        return
    for reply in filter(replied, round_.observations):
        if reply.node in nodes:
            yield [reply], reply.received, reply.arrays, f"round {round_.number}, client {reply.node} left out"
