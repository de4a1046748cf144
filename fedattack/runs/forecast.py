"""What is said of a run before its first round: what it writes, and whether its size can show anything.

Sizes and counts come from the settings and from what the preparation wrote, so they are sure. How long a run takes is
not known before it has begun: :mod:`fedattack.runs.pace` says it once the first rounds were timed.
"""

import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedattack.audit.federation import dealt_anew
from fedattack.audit.finding import ERROR
from fedattack.audit.judge import judge_of
from fedattack.audit.reach import Prepared, Reach, smallest
from fedattack.audit.significance import HEADLINES, adjusted
from fedattack.audit.truth import read_truth
from fedattack.errors import ConfigError
from fedattack.folder import Part
from fedattack.record.format import PROTOCOLS
from fedattack.record.size import in_bytes
from fedattack.runs.app import Value
from fedattack.runs.asked import known_to
from fedattack.runs.pace import Say
from fedattack.runs.settings import nodes_of
from fedattack.threats import Knowledge

# Frameworks have the names of their protocols.
_WITHOUT_COMMON_MODEL = [name for name, messages in PROTOCOLS.items() if not messages.sends_model]

# Draws of who takes part, and clients with whom they are worth their time: of many, enough take part.
_DRAWS, _MOST_CLIENTS = 200, 200

# Each draw looks at all targets: of many targets there are fewer draws, so that they take a few seconds at most.
_LEAST_DRAWS, _TARGETS = 20, 2_000_000

# A share of these draws that is worth a warning.
_LUCK = 0.05

# Of a line of the record's index for each reply, and of the record's other files.
_INDEX_OF_REPLY, _INDEX_OF_ROUND = 230, 900


@dataclass(frozen=True)
class Forecast:
    """What is known of a run before its first round.

    Attributes
    ----------
    seeds, rounds, sampled
        Runs, rounds of each, and clients in each round.
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
    unlucky
        By attack, in which share of draws of who takes part in the rounds no outcome can be a leak.
    """

    seeds: int
    rounds: int
    sampled: int
    record: int
    prepared: int
    free: int
    reaches: Mapping[str, Reach]
    anew: int
    unlucky: Mapping[str, float] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether there is room for the records."""
        return self.record <= self.free

    def out_of_reach(self, *, alone: bool = False) -> list[str]:
        """Name the attacks of whose headlines no outcome can be a leak.

        Parameters
        ----------
        alone
            Whether the headlines must do without help: a report's other findings take nothing from them if they are
            shown first, but that cannot be relied on.
        """
        return _out_of_reach(self.reaches, alone=alone)

    def lines(self) -> list[tuple[str, str]]:
        """Say it: kinds of lines, ``note`` or ``warning``, and their texts."""
        runs = f"{self.seeds} runs" if self.seeds > 1 else "1 run"
        clients = f"{self.sampled} clients" if self.sampled > 1 else "1 client"
        size = f"{runs} of {self.rounds} rounds with {clients} in each: about {in_bytes(self.record + self.prepared)}"
        parts = f"{in_bytes(self.record)} of records, {in_bytes(self.prepared)} of knowledge and truth"
        told = [("note", f"{size} on disk ({parts}), and scores; {in_bytes(self.free)} are free")]
        hopeless, hard = self.out_of_reach(), self.out_of_reach(alone=True)
        for name in hard:
            told.append(("warning", self._warning(name, hardly=name not in hopeless)))
        by_luck = [name for name, share in self.unlucky.items() if name not in hard and share > _LUCK]
        for name in by_luck:
            told.append(("warning", self._by_luck(name, self.unlucky[name])))
        warned = {*hard, *by_luck}
        able = [f"{name} ({reach.size})" for name, reach in self.reaches.items() if name not in warned]
        if able:
            told.append(("note", f"enough for a leak to be stated, if there is one: {', '.join(able)}"))
        return told

    def _warning(self, name: str, *, hardly: bool) -> str:
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
        outcome = "hardly any" if hardly else "no"
        return f"{outcome} outcome of {name} can be a leak: with {reach.size}, {best}; {change}"

    def _by_luck(self, name: str, share: float) -> str:
        often = f"in {round(100 * share)} of 100 draws of who takes part"
        return (
            f"{often}, too few do for {name} to show a leak; set more rounds or a larger fraction, or take more seeds"
        )

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


def _out_of_reach(reaches: Mapping[str, Reach], *, alone: bool) -> list[str]:
    tested = {name: reach.least for name, reach in reaches.items() if reach.least <= ERROR}
    ps, weights = [*tested.values()], [1.0] * len(tested)
    if alone:
        ps, weights = [*ps, 1.0], [*(HEADLINES / len(tested) for _ in tested), 1 - HEADLINES]
    corrected = dict(zip(tested, adjusted(ps, weights), strict=False))
    return [name for name in reaches if corrected.get(name, 1.0) > ERROR]


def _reaches(attacks: Sequence[str], runs: Sequence[Prepared]) -> dict[str, Reach]:
    judges = {name: judge for name in attacks if (judge := judge_of(name)) is not None}
    reaches: dict[str, Reach] = {}
    for name, judge in judges.items():
        reach = judge.reach(runs, needed_of(len(judges)))
        if reach is not None:
            reaches[name] = reach
    return reaches


def _draws_for(runs: Sequence[Prepared]) -> int:
    targets = sum(len(run.truth.owners) for run in runs)
    return max(_LEAST_DRAWS, min(_DRAWS, _TARGETS // max(targets, 1)))


def _unlucky(
    attacks: Sequence[str], runs: Sequence[Prepared], rounds: int, sampled: int, draws: int | None = None
) -> dict[str, float]:
    """Return by attack how often so few clients take part in any round that no outcome can be a leak."""
    clients = len(runs[0].truth.clients)
    nodes = clients + len(runs[0].truth.canaries)
    counts = dict.fromkeys(attacks, 0)
    if sampled == nodes or clients > _MOST_CLIENTS:
        return {}
    draws = draws or _draws_for(runs)
    rng = np.random.default_rng(0)
    for _ in range(draws):
        seen = []
        for run in runs:
            sample = rng.random((rounds, nodes)).argsort(axis=1)[:, :sampled]
            seen.append(run.seen(np.isin(np.arange(clients), sample)))
        reaches = _reaches(attacks, seen)
        hopeless = {*_out_of_reach(reaches, alone=True), *(set(attacks) - reaches.keys())}
        for name in hopeless:
            counts[name] += 1
    return {name: count / draws for name, count in counts.items()}


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
    reaches = _reaches(attacks, anew)
    return Forecast(
        seeds=len(parts),
        rounds=rounds,
        sampled=sampled,
        record=len(parts) * _record_size(settings, runs[0].knowledge, rounds, sampled),
        prepared=sum(_size_of(folder) for part in parts for folder in (part.knowledge, part.truth)),
        free=shutil.disk_usage(parts[0].folder).free,
        reaches=reaches,
        anew=len(anew),
        unlucky=_unlucky([*reaches], anew, rounds, sampled),
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
    told = forecast(attacks, settings, parts, trusted)
    if not told.fits:
        raise ConfigError(
            f"{parts[0].folder}: the records of this run take {in_bytes(told.record)}, and {in_bytes(told.free)} are "
            "free; make room, choose another --out, or set fewer rounds, clients or seeds"
        )
    for kind, line in told.lines():
        say(kind, line)


def _record_size(settings: Mapping[str, Value], knowledge: Knowledge, rounds: int, sampled: int) -> int:
    """Return about how many bytes the record of one seed takes."""
    framework = str(settings["framework"])
    if settings["property"] or settings["secagg"]:
        # A sum in double precision, and no reply of a single client.
        messages, lines = 2, 0
    else:
        messages = lines = sampled
    common = 1
    if framework == "fedavg" and lines:
        # The next model is the mean of the replies, which a record says in words; with ``isolate`` each has its own.
        common = sampled if settings["isolate"] else 0
    message = _message_size(framework, knowledge)
    return message + rounds * ((messages + common) * message + _INDEX_OF_ROUND + lines * _INDEX_OF_REPLY)


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
