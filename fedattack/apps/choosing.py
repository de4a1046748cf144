"""The stage `choose` of an audit: the attacks whose needs are met, and why the others are not made."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedattack.apps.posing import Posed
from fedattack.apps.targets import FEW, SOME
from fedattack.attacks import ATTACKS, Attack, Knowledge
from fedattack.attacks.needs import FAILED, UNFIT, VIEW
from fedattack.attacks.registry import THREATS
from fedattack.audit.finding import ERROR
from fedattack.audit.judge import judge_of
from fedattack.audit.opened import Run
from fedattack.audit.reach import Prepared, Reach
from fedattack.audit.truth import Truth
from fedattack.audit.untried import UNSTATED, find_fewest_obstacles, find_obstacles
from fedattack.base.failures import Failure, failing_alone
from fedattack.base.reasons import Reason, merge_reasons
from fedattack.runs.forecast import needed_of
from fedattack.runs.watch import Watch

# Pixels of pairs of images that are compared for one client, at most: some seconds.
_MOST_COMPARED = 200_000_000

# Among how many headlines what every app is asked first is judged.
_HEADLINES = 2


@dataclass(frozen=True)
class Chosen:
    """Attacks with their options, what the report begins with first; by attack, options that the caller did not choose.

    ``refused`` says by attack why it is not made though its needs are met, or why that cannot be said.
    """

    attacks: tuple[Attack, ...]
    spared: Mapping[str, Mapping[str, str]]
    refused: Mapping[str, Reason]


def choose(
    runs: Sequence[Run], posed: Sequence[Posed], make: Callable[[Sequence[str]], Sequence[Attack]], watch: Watch
) -> Chosen:
    """Choose the attacks whose needs are met; ``make`` returns attacks by their names, with the caller's options."""
    refused: dict[str, Reason] = {}
    attacks: list[Attack] = []
    spared: dict[str, Mapping[str, str]] = {}
    for attack in make(_list_applying(runs, posed, refused)):
        if attack.in_apps.of_few:
            attack = attack.with_options({"clients": ",".join(posed[0].few)})
            if _are_many(runs[0]):
                spared[attack.name] = attack.in_apps.for_many
                attack = attack.with_options(attack.in_apps.for_many)
        if sparing := _spare(attack, len(runs[0].sent)):
            attack = attack.with_options(sparing)
            spared[attack.name] = {**spared.get(attack.name, {}), **sparing}
            options = " ".join(f"--option {key}={value}" for key, value in sparing.items())
            watch.say("note", f"{attack.name}: {options}, as for all apps; a larger number takes longer")
        attacks.append(attack)
    return Chosen(tuple(attacks), spared, refused)


def _list_applying(runs: Sequence[Run], posed: Sequence[Posed], refused: dict[str, Reason]) -> list[str]:
    """List the attacks whose needs are met, and that are not `refused`, which is told why."""
    names: list[str] = []
    failed: dict[str, Failure] = {}
    for threat in THREATS.values():
        asked = []
        for name in threat.judged:
            # An attack of another package may fail when it is asked.
            with failing_alone(failed, name):
                if _find_obstacles(ATTACKS[name], runs[0]):
                    continue
                why = _why_refused(name, runs, posed)
                if why is None:
                    names.append(name)
                else:
                    refused[name] = why
                asked.append(name)
        if asked:
            # What is judged beside others has no question of its own.
            beside = sorted({*threat.attacks} - {*threat.judged})
            names += [name for name in beside if not _find_obstacles(ATTACKS[name], runs[0])]
    refused |= {name: explain_failure(failure.why) for name, failure in failed.items()}
    # What every app is asked first stands first in the report.
    return sorted(names, key=_place)


def _are_many(run: Run) -> bool:
    """Say whether those whose examples are searched for hold more than few."""
    return _count_searched(run) > FEW


def _count_searched(run: Run) -> int:
    """Return how many examples the client holds whose examples are searched for first."""
    if run.truth is None or run.truth.records is None:
        return 0
    owners = run.truth.records.owners
    return owners.count(owners[0])


def _refuse_search(run: Run) -> Reason | None:
    """Say that the clients' model cannot be searched through, or that a client of many examples takes too long."""
    # It imports torch, which a listing of attacks does without.
    from fedattack.apps.inverting import explain_no_search
    from fedattack.threats.inversion.exchange import OTHERS

    model, truth = run.knowledge.model, run.truth
    if model is None or truth is None or truth.records is None:
        return None
    count = _count_searched(run)
    remedy = f"a run with a client of at most {FEW} examples, or `fedattack attack inversion`"
    if what := explain_no_search(model, truth.records.y[:count], is_bounded=_are_many(run)):
        return Reason(what, UNFIT, remedy)
    # Images are compared by their structural similarity, each that is found with each other one.
    pixels = math.prod(model.input_shape)
    if _are_many(run) and len(model.input_shape) == 3 and count * (count + OTHERS) * pixels > _MOST_COMPARED:
        what = f"a comparison of the {count} images of the smallest client with others takes too long"
        return Reason(what, UNFIT, remedy)
    return None


def _place(name: str) -> tuple[int, str]:
    return ATTACKS[name].in_apps.place, name


def explain_failure(why: str) -> Reason:
    """Say that an attack could not be made, though nobody foresaw that."""
    return Reason(why, FAILED, "a run without that fault; `fedattack attack` tries it again")


def _why_refused(name: str, runs: Sequence[Run], posed: Sequence[Posed]) -> Reason | None:
    """Say why an attack whose needs are met is not made; ``None`` if it is."""
    how = ATTACKS[name].in_apps
    if name in posed[0].reasons:
        return posed[0].reasons[name]
    if how.of_few and (len(posed) > 1 or not posed[0].few):
        return _require_few(runs[0])
    if how.of_few:
        return _refuse_search(runs[0])
    if not how.is_slow:
        return None
    # A slow attack is made only where its result could count.
    prepared = [Prepared(run.truth, run.knowledge) for run in runs if run.truth is not None]
    reach = _reach(name, prepared, ERROR)
    if reach is None or reach.least <= ERROR:
        return None
    what = f"with {reach.size} no outcome could be a leak (the smallest possible p is {reach.least:.2g})"
    return Reason(what, UNFIT, f"another run, with {reach.enough}")


def _require_few(run: Run) -> Reason:
    """Say of whom alone examples are searched for, and how many examples the smallest client has if these are more."""
    what = f"it is only tried in a single run, on a client that has at most {SOME} examples"
    if run.truth is not None and (least := int(run.truth.counts.sum(axis=1).min())) > SOME:
        what += f"; the smallest client here has {least:,}"
    return Reason(what, UNFIT, f"a single run, with a client of at most {SOME} examples that are all witnessed")


def _reach(name: str, prepared: Sequence[Prepared], needed: float) -> Reach | None:
    judge = judge_of(name)
    if judge is None:
        return None
    return judge.reach(prepared, needed)


def _spare(attack: Attack, rounds: int) -> dict[str, str]:
    sparing = {}
    for key, value in attack.in_apps.options.items():
        # What the caller set stays; sparing options have no default but None.
        if getattr(attack.options, key) is None and (key != "shadow_rounds" or value < rounds):
            sparing[key] = str(value)
    return sparing


def _find_obstacles(attack: Attack, run: Run) -> list[Reason]:
    """Say why an attack cannot be made; a property is asked of sums, which single replies make."""
    obstacles = find_obstacles(attack, run)
    if attack.in_apps.of_few:
        # The auditor of an app writes no truth: it states examples of clients that have few.
        obstacles = [_require_few(run) if reason.kind == UNSTATED else reason for reason in obstacles]
    if attack.in_apps.of_sums and run.sent.view == "individual":
        # `_attack_sums` computes the sums that such an attack needs.
        return [reason for reason in obstacles if reason.kind != VIEW]
    return obstacles


def list_unasked(
    scored: Collection[str], failed: Mapping[str, Reason], run: Run, posed: Sequence[Posed]
) -> dict[str, Reason]:
    """Say of each threat that was not asked why, and what it would take."""
    unasked: dict[str, Reason] = {}
    for threat in THREATS.values():
        if {*threat.attacks} & {*scored}:
            continue
        keys = [threat.name]
        for name in threat.judged:
            keys += ATTACKS[name].needs.knowledge
        reasons = [each.reasons[key] for each in posed for key in keys if key in each.reasons]
        reasons += [failed[name] for name in threat.attacks if name in failed]
        if not reasons:
            obstacles = find_fewest_obstacles(threat, lambda attack: _find_obstacles(attack, run))
            if obstacles is not None and obstacles[1]:
                reasons = [merge_reasons(obstacles[1])]
        for why in reasons[:1]:
            unasked[threat.name] = why
    return unasked


def describe_too_few(clients: int) -> str:
    """Say, before a run, that with so few clients no owner can be named beyond accident; empty if there are enough."""
    first = min(ATTACKS, key=_place)
    # As if each client held one target, and was named for it: the best that there is.
    names = tuple(map(str, range(clients)))
    counts = np.zeros((clients, 1), dtype=np.int64)
    nothing = np.zeros((0, 1), dtype=np.float32), np.zeros(0, dtype=np.int64)
    truth = Truth(names, ("all",), counts, np.array(names), nothing, nodes={}, targets="")
    needed = needed_of(_HEADLINES)
    reach = _reach(first, [Prepared(truth, Knowledge())], needed)
    if reach is None or reach.least <= needed:
        return ""
    outcome = "no"
    if reach.least <= ERROR:
        outcome = "hardly any"
    return (
        f"{outcome} outcome of {first} can be a leak: with {clients} clients the smallest possible p is "
        f"{reach.least:.2g}, and {needed:.2g} is needed; take {reach.enough}, by --supernodes"
    )
