"""Judge all attacks on a run: each by its judge, on the same evidence."""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

from fedattack.attacks import ATTACKS, Scores
from fedattack.attacks.needs import READS_MODELS
from fedattack.audit.below import mark_below_guessing
from fedattack.audit.federation import dealt_anew
from fedattack.audit.finding import (
    CANNOT_TELL,
    LEAK,
    NO_EVIDENCE,
    NOT_APPLICABLE,
    ONE_FEDERATION,
    TOO_FEW,
    Finding,
    list_words,
)
from fedattack.audit.judge import Judge, judge_of
from fedattack.audit.listing import Listing
from fedattack.audit.opened import Run
from fedattack.audit.significance import correct_findings
from fedattack.base.errors import DataError
from fedattack.base.failures import Failure, failing_alone
from fedattack.base.reasons import ABOUT, Reason


def judge_attacks(
    runs: Sequence[Run],
    *,
    setting: Mapping[str, Any],
    provenance: Mapping[str, Any],
    listings: list[Listing] | None = None,
    failed: MutableMapping[str, Failure] | None = None,
    check: Callable[[Sequence[Finding]], object] | None = None,
) -> list[Finding]:
    """State what every attack found, attack by attack, corrected for each other.

    What the judges list one by one is put into `listings`. Without the truth an attack has one finding, "not
    applicable": what it decided is in its scores, whether that is right cannot be known.

    Parameters
    ----------
    failed
        Is told by attack why it could not be judged, while all others are; ``None`` to raise what went wrong.
    check
        Raises an error where it is given findings of an attack that nobody could show.

    Raises
    ------
    DataError
        If scores are about other target records than the truth, or do not fit it, and `failed` is ``None``.
    """
    by_attack = judge_each(
        [*runs[0].scores],
        runs,
        setting=setting,
        provenance=provenance,
        listings=listings,
        failed=failed,
        check=check,
    )
    return correct_together([finding for found in by_attack.values() for finding in found], runs)


def judge_each(
    attacks: Sequence[str],
    runs: Sequence[Run],
    *,
    setting: Mapping[str, Any],
    provenance: Mapping[str, Any],
    listings: list[Listing] | None = None,
    failed: MutableMapping[str, Failure] | None = None,
    check: Callable[[Sequence[Finding]], object] | None = None,
) -> dict[str, list[Finding]]:
    """State what each of these attacks found by itself; see :func:`judge_attacks`."""
    by_attack = {}
    # Who holds what is exchanged run by run. In runs of one federation it was dealt once.
    anew = dealt_anew(runs)
    for attack in attacks:
        # A judge that fails takes its own findings along, and leaves those of others.
        with failing_alone(failed, attack):
            found, listed = _judge_attack(attack, runs, anew, setting, provenance, listed=listings is not None)
            if check is not None:
                check(found)
            by_attack[attack] = found
            if listings is not None:
                listings += listed
    return by_attack


def correct_together(findings: Sequence[Finding], runs: Sequence[Run]) -> list[Finding]:
    """Correct what all attacks found by themselves for each other."""
    # The correction is over all attacks: a page with more findings has more chances of a false alarm.
    findings = mark_below_guessing(correct_findings(findings))
    for run in runs:
        if run.truth is not None and run.truth.unread:
            return [_if_read(finding, run.truth.unread) for finding in findings]
    return [*findings]


def _judge_attack(
    attack: str,
    runs: Sequence[Run],
    anew: Sequence[int],
    setting: Mapping[str, Any],
    provenance: Mapping[str, Any],
    *,
    listed: bool,
) -> tuple[list[Finding], list[Listing]]:
    """State what one attack found, and list it one by one if that is wanted; nothing of a baseline of others."""
    judge = judge_of(attack)
    if judge is None:
        return [], []
    if any(run.truth is None for run in runs):
        return [_without_truth(judge, attack, runs, setting, provenance)], []
    together = [name for name in runs[0].scores if name == attack or name in judge.beside]
    for run in runs:
        _check_targets(run, [run.scores[name] for name in together])
    cases = [judge.case(run, attack) for run in runs]
    judging = judge(cases, setting=setting, provenance=provenance)
    findings = judging.findings()
    listings: list[Listing] = []
    if listed:
        listings = judging.listed()
    if len(anew) < len(cases):
        first = [cases[index] for index in anew]
        # The same judge over fewer runs: what is shown stays the mean of all, and p is the larger of both.
        tested = judge(first, setting=setting, provenance=provenance).findings()
        findings = _tested_on(findings, tested)
    return findings, listings


def _if_read(finding: Finding, unread: str) -> Finding:
    """Take back that an attack found nothing in replies that are not understood; a leak that it found is one."""
    # An attack that reads neither models nor losses, but counts or metrics, was not misled.
    reads_models = READS_MODELS & {*ATTACKS[finding.attack].needs.knowledge}
    if finding.verdict not in (NO_EVIDENCE, TOO_FEW) or not reads_models or finding.is_right_in_part:
        return finding
    grounds = Reason(unread, ABOUT), Reason("replies that no attack can read show nothing")
    return replace(finding, verdict=CANNOT_TELL, reason="", grounds=grounds)


def _tested_on(findings: Sequence[Finding], tested: Sequence[Finding]) -> list[Finding]:
    """Take back what the test does not hold of the runs alone in which who holds what was dealt anew."""
    by_metric = {finding.metric: finding for finding in tested}
    final = []
    for finding in findings:
        other = by_metric.get(finding.metric)
        if finding.p is None or finding.is_certain:
            final.append(finding)
            continue
        if other is None or other.p is None or other.p_least is None:
            # Without the measure for these runs alone nothing holds the p of all runs.
            nothing = Reason("the runs in which clients hold different data are not enough for a test")
            final.append(finding.with_grounds(nothing, p=None, p_below=None, verdict=NOT_APPLICABLE))
            continue
        seeds = list_words(list(map(str, other.seeds)), "and")
        alone = f"in other runs the same clients hold the same data, so only seed {seeds} is tested"
        decided = finding
        # Both must show a leak: neither the runs that were dealt anew, nor all of them, decide alone.
        if other.verdict in (NO_EVIDENCE, TOO_FEW) and finding.verdict in (LEAK, NO_EVIDENCE):
            decided = replace(finding, verdict=other.verdict, reason="", grounds=other.grounds)
        p, least = max(finding.p, other.p), max(finding.p_least or 0.0, other.p_least)
        below = max(finding.p_below or 0.0, other.p_below or 0.0)
        final.append(decided.with_grounds(Reason(alone, ONE_FEDERATION), p=p, p_least=least, p_below=below))
    return final


def _check_targets(run: Run, scores: Sequence[Scores]) -> None:
    if run.truth is None:
        return
    spoken_of = {run.truth.targets}
    # Attributes may be asked of other targets than memberships are.
    if run.truth.attributes is not None and run.truth.attributes.asked:
        spoken_of.add(run.truth.attributes.asked)
    for each in scores:
        if each.facts.get("targets", "") not in spoken_of:
            raise DataError(
                f"seed {run.seed}: the scores of {each.attack} are about other target records than the truth; attack "
                "the run with the targets that its knowledge/ holds, or move truth/ away to see the decisions alone"
            )


def _without_truth(
    judge: type[Judge[Any]],
    attack: str,
    runs: Sequence[Run],
    setting: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> Finding:
    return Finding(
        attack=attack,
        metric=judge.headline_of(runs[0].scores[attack]),
        label=ATTACKS[attack].title,
        view=runs[0].record.view,
        value=None,
        low=None,
        high=None,
        n=0,
        seeds=[run.seed for run in runs],
        verdict=NOT_APPLICABLE,
        reason="there is no truth, so it is not known which decisions are right; they are in scores/",
        headline=True,
        setting=dict(setting),
        provenance=dict(provenance),
        paper=ATTACKS[attack].paper,
    )
