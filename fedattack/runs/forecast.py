"""What is said of a run before its first round: what it writes, and whether its size can show anything.

Sizes and counts come from the settings and from what the preparation wrote, so they are sure. How long a run takes is
not known before it has begun: :mod:`fedattack.runs.pace` says it once the first rounds were timed.
"""

import math
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks import Knowledge
from fedattack.audit.federation import dealt_anew
from fedattack.audit.finding import ERROR
from fedattack.audit.judge import judge_of
from fedattack.audit.numbers import count_words
from fedattack.audit.reach import Prepared, Reach
from fedattack.audit.significance import HEADLINES
from fedattack.audit.truth import Truth, read_truth
from fedattack.base.errors import ConfigError
from fedattack.base.settings import Value
from fedattack.record.folder import Part
from fedattack.record.format import PROTOCOLS, View
from fedattack.record.keep import Keep
from fedattack.record.schema import Protocol
from fedattack.record.size import Size, in_bytes
from fedattack.runs.asked import known_to
from fedattack.runs.pace import Say
from fedattack.runs.settings import lines_of, nodes_of

# Frameworks have the names of their protocols, but for that of trees.
_TREES = "fedxgb"
_WITHOUT_COMMON_MODEL = [name for name, messages in PROTOCOLS.items() if not messages.sends_model]

# Bytes of a line of the record's index for each reply, and of the record's other files.
_INDEX_OF_REPLY, _INDEX_OF_ROUND = 230, 900

# Bytes of a tree of XGBoost in JSON, and of each of its nodes.
_TREE, _NODE = 500, 25


def needed_of(headlines: int) -> float:
    """Return the p that one of so many headlines needs, were no other finding of its report a leak."""
    # Bonferroni among headlines: they share 90 % of the error, as `share_error` deals it.
    return ERROR * HEADLINES / max(headlines, 1)


def foretell(
    attacks: Sequence[str],
    settings: Mapping[str, Value],
    parts: Sequence[Part],
    say: Say,
    trusted: Collection[str] = (),
) -> None:
    """Say what is known of a run whose knowledge and truth are prepared: its size, and which attacks cannot succeed.

    Parameters
    ----------
    attacks
        Those that are to follow.
    settings
        All settings of the run.
    parts
        One per seed.
    say
        Takes ``note`` or ``warning``, and a line.
    trusted
        What of the knowledge's import paths may be followed.

    Raises
    ------
    ConfigError
        If the records will not fit on the disk.
    DataError
        If knowledge or truth is damaged.
    """
    runs = [Prepared(read_truth(part.truth), known_to(part, trusted)) for part in parts]
    record = len(parts) * record_size(settings, runs[0])
    prepared = sum(_size_of(folder) for part in parts for folder in (part.knowledge, part.truth))
    free = shutil.disk_usage(parts[0].folder).free
    # Before a round is trained: a disk that fills up would cut the record short.
    if record > free:
        raise ConfigError(
            f"{parts[0].folder}: the records of this run take {in_bytes(record)}, and {in_bytes(free)} are "
            "free; make room, choose another --out, or set fewer rounds, clients or seeds"
        )
    size = f"{count_words(len(parts), 'run')} of {settings['rounds']} rounds: about {in_bytes(record + prepared)}"
    say("note", f"{size} on disk ({in_bytes(record)} of records), and scores; {in_bytes(free)} are free")
    for kind, line in describe_reaches(find_reaches(attacks, runs)):
        say(kind, line)


def find_reaches(attacks: Sequence[str], runs: Sequence[Prepared]) -> dict[str, Reach]:
    """Find the best that each attack's headline can come to; attacks of which nothing can be said are left out."""
    # Runs of one federation add nothing to what a test can show.
    anew = [runs[index] for index in dealt_anew(runs)]
    judges = {name: judge for name in attacks if (judge := judge_of(name)) is not None}
    reaches: dict[str, Reach] = {}
    for name, judge in judges.items():
        reach = judge.reach(anew, needed_of(len(judges)))
        if reach is not None:
            reaches[name] = reach
    return reaches


def describe_reaches(reaches: Mapping[str, Reach]) -> list[tuple[str, str]]:
    """Warn of attacks of whose headlines hardly any outcome can be a leak, and name the others."""
    needed, lines, able = needed_of(len(reaches)), [], []
    for name, reach in reaches.items():
        if reach.least <= needed:
            able.append(f"{name} ({reach.size})")
            continue
        outcome, best = "no", "there is nothing to test"
        if reach.least <= ERROR:
            outcome = "hardly any"
        if reach.least < 1:
            best = f"p is {reach.least:.2g} at best, and {needed:.2g} is needed"
        change = f"one run would need {reach.enough}"
        if reach.setting:
            change += f" (--set {reach.setting})"
        lines.append(("warning", f"{outcome} outcome of {name} can be a leak: with {reach.size}, {best}; {change}"))
    if able:
        lines.append(("note", f"enough for a leak to be stated, if there is one: {', '.join(able)}"))
    return lines


def record_size(settings: Mapping[str, Value], run: Prepared) -> int:
    """Return about how many bytes the record of one seed takes."""
    framework, rounds = str(settings["framework"]), int(settings["rounds"])
    sampled = max(1, round(float(settings["fraction"]) * nodes_of(settings)))
    if framework == _TREES:
        # Each round has the new trees, and all that were there before.
        grown = sampled * _tree_size(int(settings["tree-depth"]), run.truth)
        # 1 + 2 + … + rounds: the sum of all trees that are sent in all rounds.
        return grown * rounds * (rounds + 1) // 2 + rounds * (_INDEX_OF_ROUND + sampled * _INDEX_OF_REPLY)
    view: View = "individual"
    index = _INDEX_OF_ROUND + sampled * _INDEX_OF_REPLY
    if settings["property"] or settings["secagg"]:
        view, index = "aggregate", _INDEX_OF_ROUND
    message = _message_of(framework, run.knowledge)
    if framework not in PROTOCOLS:
        # That of another package: it is not known whether its server averages.
        framework = "fedsgd"
    size = Size.of(message, sampled, Keep(), view=view, protocol=cast(Protocol, framework))
    models = 0
    if settings["server"] in ("isolating", "inconsistent"):
        # Models that single clients are sent, beside the common one.
        models = sampled * size.once
    return size.run(lines_of(settings)) + lines_of(settings) * (models + index)


def _tree_size(depth: int, truth: Truth) -> int:
    """Return how many bytes a tree takes: each of its leaves holds one example at least."""
    examples = math.ceil(int(truth.counts.sum()) / len(truth.clients))
    # A full binary tree of so many levels, or one whose leaves hold one example each.
    nodes: int = min(2 ** (depth + 1), 2 * examples)
    return _TREE + _NODE * nodes


def _message_of(framework: str, knowledge: Knowledge) -> dict[str, NDArray[Any]]:
    """Return arrays like those that a client sends in a round."""
    if knowledge.model is None:
        return {}
    if framework in _WITHOUT_COMMON_MODEL and knowledge.public is not None:
        return {"predictions": np.zeros((len(knowledge.public), knowledge.model.classes), dtype=np.float32)}
    # As the state dict has it: buffers travel, too.
    return {name: tensor.numpy() for name, tensor in knowledge.model.build().state_dict().items()}


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
