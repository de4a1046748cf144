"""What is said of a run before its first round: what it writes, and whether its size can show anything.

Sizes and counts come from the settings and from what the preparation wrote, so they are sure. How long a run takes is
not known before it has begun: :mod:`fedattack.runs.pace` says it once the first rounds were timed.
"""

import math
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedattack.attacks import Knowledge
from fedattack.audit.federation import dealt_anew
from fedattack.audit.finding import ERROR
from fedattack.audit.judge import judge_of
from fedattack.audit.numbers import count_words
from fedattack.audit.reach import Prepared, Reach, smallest
from fedattack.audit.significance import HEADLINES, adjust
from fedattack.audit.truth import Truth, read_truth
from fedattack.base.errors import ConfigError
from fedattack.base.settings import Value
from fedattack.record.folder import Part
from fedattack.record.format import PROTOCOLS
from fedattack.record.size import in_bytes
from fedattack.runs.asked import known_to
from fedattack.runs.pace import Say
from fedattack.runs.settings import lines_of, nodes_of

# Frameworks have the names of their protocols, but for that of trees.
_TREES = "fedxgb"
_WITHOUT_COMMON_MODEL = [name for name, messages in PROTOCOLS.items() if not messages.sends_model]

# A chance that is worth a line.
_CHANCE = 0.005

# Of a line of the record's index for each reply, and of the record's other files.
_INDEX_OF_REPLY, _INDEX_OF_ROUND = 230, 900

# Of a tree of XGBoost in JSON, and of each of its nodes.
_TREE, _NODE = 500, 25


@dataclass(frozen=True)
class Forecast:
    """What is known of a run before its first round.

    Attributes
    ----------
    seeds, rounds, nodes, sampled
        Runs, rounds of each, clients, and clients in each round.
    record
        Bytes that the records of all seeds will take.
    prepared
        Bytes that knowledge and truth take already.
    free
        Bytes that are free where the run folder lies.
    reaches
        By attack, the best that its headline can come to. Attacks of which nothing can be said are left out.
    anew
        Of how many seeds the clients hold something else than in all seeds before; the others are no news to a test.
    """

    seeds: int
    rounds: int
    nodes: int
    sampled: int
    record: int
    prepared: int
    free: int
    reaches: Mapping[str, Reach]
    anew: int

    @property
    def fits(self) -> bool:
        """Whether there is room for the records."""
        return self.record <= self.free

    @property
    def out_of_reach(self) -> list[str]:
        """Name the attacks of whose headlines hardly any outcome can be a leak.

        The report's other findings are taken for no leaks: they may be shown first, but that cannot be relied on.
        """
        tested = {name: reach.least for name, reach in self.reaches.items() if reach.least <= ERROR}
        weights = [HEADLINES / len(tested) for _ in tested]
        corrected = adjust([*tested.values(), 1.0], [*weights, 1 - HEADLINES])
        able = [name for name, p in zip(tested, corrected, strict=False) if p <= ERROR]
        return [name for name in self.reaches if name not in able]

    @property
    def never_sampled(self) -> float:
        """How likely it is that a client takes part in no round of a run."""
        return (1 - self.sampled / self.nodes) ** self.rounds

    def lines(self) -> list[tuple[str, str]]:
        """Say it: kinds of lines, ``note`` or ``warning``, and their texts."""
        runs, clients = count_words(self.seeds, "run"), count_words(self.sampled, "client")
        size = f"{runs} of {self.rounds} rounds with {clients} in each: about {in_bytes(self.record + self.prepared)}"
        parts = f"{in_bytes(self.record)} of records, {in_bytes(self.prepared)} of knowledge and truth"
        lines = [("note", f"{size} on disk ({parts}), and scores; {in_bytes(self.free)} are free")]
        warned = self.out_of_reach
        for name in warned:
            lines.append(("warning", self._warning(name)))
        able = [f"{name} ({reach.size})" for name, reach in self.reaches.items() if name not in warned]
        if able:
            lines.append(("note", f"enough for a leak to be stated, if there is one: {', '.join(able)}"))
        if self.reaches and self.never_sampled > _CHANCE:
            lines.append(
                (
                    "note",
                    f"each client takes part in no round with a chance of {self.never_sampled:.0%}, and these sizes "
                    "count all clients; with more rounds or a larger fraction more of them take part",
                )
            )
        return lines

    def _warning(self, name: str) -> str:
        reach = self.reaches[name]
        change = f"one run would need {reach.enough}"
        if reach.setting:
            change += f" (--set {reach.setting})"
        enough = self._seeds_that_do(reach.least)
        if enough is not None:
            change += f", or take --seeds {enough}"
        best = "there is nothing to test"
        if reach.least < 1:
            best = f"p is {reach.least:.2g} at best, and {self._needed:.2g} is needed"
        outcome = "hardly any" if reach.least <= ERROR else "no"
        return f"{outcome} outcome of {name} can be a leak: with {reach.size}, {best}; {change}"

    @property
    def _needed(self) -> float:
        return needed_of(len(self.reaches))

    def _seeds_that_do(self, least: float) -> int | None:
        """Say how many seeds would be enough, if each deals anew to as many clients as these did."""
        if self.anew < self.seeds or least >= 1:
            return None
        of_one = least ** (1 / self.seeds)
        return smallest(lambda seeds: of_one**seeds <= self._needed, self.seeds + 1)


def needed_of(headlines: int) -> float:
    """Return the p that one of so many headlines needs, were no other finding of its report a leak."""
    return ERROR * HEADLINES / max(headlines, 1)


def _reaches(attacks: Sequence[str], runs: Sequence[Prepared]) -> dict[str, Reach]:
    judges = {name: judge for name in attacks if (judge := judge_of(name)) is not None}
    reaches: dict[str, Reach] = {}
    for name, judge in judges.items():
        reach = judge.reach(runs, needed_of(len(judges)))
        if reach is not None:
            reaches[name] = reach
    return reaches


def forecast(
    attacks: Sequence[str], settings: Mapping[str, Value], parts: Sequence[Part], trusted: Collection[str] = ()
) -> Forecast:
    """Say what is known of a run whose knowledge and truth are prepared.

    Parameters
    ----------
    attacks
        Those that are to follow.
    settings
        All settings of the run.
    parts
        One per seed.
    trusted
        What of the knowledge's import paths may be followed.

    Raises
    ------
    DataError
        If knowledge or truth is damaged.
    """
    runs = [Prepared(read_truth(part.truth), known_to(part, trusted)) for part in parts]
    nodes, rounds = nodes_of(settings), int(settings["rounds"])
    sampled = max(1, round(float(settings["fraction"]) * nodes))
    anew = [runs[place] for place in dealt_anew(runs)]
    return Forecast(
        seeds=len(parts),
        rounds=rounds,
        nodes=nodes,
        sampled=sampled,
        record=len(parts) * _record_size(settings, runs[0], rounds, sampled),
        prepared=sum(_size_of(folder) for part in parts for folder in (part.knowledge, part.truth)),
        free=shutil.disk_usage(parts[0].folder).free,
        reaches=_reaches(attacks, anew),
        anew=len(anew),
    )


def foretell(
    attacks: Sequence[str],
    settings: Mapping[str, Value],
    parts: Sequence[Part],
    say: Say,
    trusted: Collection[str] = (),
) -> None:
    """Say all of :func:`forecast`.

    Raises
    ------
    ConfigError
        If the records will not fit on the disk.
    """
    found = forecast(attacks, settings, parts, trusted)
    if not found.fits:
        raise ConfigError(
            f"{parts[0].folder}: the records of this run take {in_bytes(found.record)}, and {in_bytes(found.free)} are "
            "free; make room, choose another --out, or set fewer rounds, clients or seeds"
        )
    for kind, line in found.lines():
        say(kind, line)


def _record_size(settings: Mapping[str, Value], run: Prepared, rounds: int, sampled: int) -> int:
    """Return about how many bytes the record of one seed takes."""
    framework = str(settings["framework"])
    if framework == _TREES:
        # Each round has the new trees, and all that were there before.
        grown = sampled * _tree_size(int(settings["tree-depth"]), run.truth)
        return grown * rounds * (rounds + 1) // 2 + rounds * (_INDEX_OF_ROUND + sampled * _INDEX_OF_REPLY)
    if settings["property"] or settings["secagg"]:
        # A sum in double precision, and no reply of a single client.
        messages, lines = 2, 0
    else:
        messages = lines = sampled
    common = 1
    if settings["server"] == "inconsistent":
        # Beside the sum of each exchange stand the models that all but one client were sent.
        rounds, messages = lines_of(settings), 1 + sampled
    if framework == "fedavg" and lines:
        # The next model is the mean of the replies, which a record says in words; isolated clients have each its own.
        common = sampled if settings["server"] == "isolating" else 0
    message = _message_size(framework, run.knowledge)
    return message + rounds * ((messages + common) * message + _INDEX_OF_ROUND + lines * _INDEX_OF_REPLY)


def _tree_size(depth: int, truth: Truth) -> int:
    """Return how many bytes a tree takes: each of its leaves holds one example at least."""
    examples = math.ceil(int(truth.counts.sum()) / len(truth.clients))
    nodes: int = min(2 ** (depth + 1), 2 * examples)
    return _TREE + _NODE * nodes


def _message_size(framework: str, knowledge: Knowledge) -> int:
    """Return how many bytes a client sends in a round."""
    if knowledge.model is None:
        return 0
    if framework in _WITHOUT_COMMON_MODEL and knowledge.public is not None:
        return len(knowledge.public) * knowledge.model.classes * np.dtype(np.float32).itemsize
    state = knowledge.model.build().state_dict()
    return sum(array.numel() * array.element_size() for array in state.values())


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
