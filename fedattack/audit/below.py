"""Find what is far below guessing: there the scores mean something else than they are taken for.

An attack that knows nothing is at chance, and hardly ever far below it. If it is, something is misread: a loss that is
no loss of one example, a sign, or who holds what. Whoever turned the scores round would be far above chance. So nothing
is shown either way, and above all not that there is no leak.
"""

from collections.abc import Sequence

from fedattack.audit.finding import (
    AUC,
    BELOW_ERROR,
    CANNOT_TELL,
    NO_EVIDENCE,
    PROPORTION,
    TOO_FEW,
    Finding,
    in_units,
    p_in_words,
)
from fedattack.audit.significance import adjust
from fedattack.base.reasons import Reason

BELOW = "below guessing"
"""Kind of the ground that takes a verdict back."""


def mark_below_guessing(findings: Sequence[Finding]) -> list[Finding]:
    """Take back that rates and areas show nothing where they lie below chance, and hardly so by accident.

    It is asked of all findings of a report together (Holm), so that a report on nothing says it in at most
    :data:`~fedattack.audit.finding.BELOW_ERROR` of all cases. All count alike: none was fixed in advance for this. A
    headline that shows nothing is taken back, too, where another measure of its attack is below guessing: both are
    about the same scores.
    """
    below = _find_below(findings)
    by_attack: dict[str, str] = {}
    for index, words in below.items():
        by_attack.setdefault(findings[index].attack, f"{findings[index].label}: {words}")
    final = []
    for index, finding in enumerate(findings):
        # The headline cannot be told either where another number of its attack is below guessing.
        words = below.get(index, "")
        if finding.headline and not words:
            words = by_attack.get(finding.attack, "")
        if words and finding.verdict in (NO_EVIDENCE, TOO_FEW):
            ground = Reason(f"below guessing, so the scores mean something else ({words})", BELOW)
            finding = finding.with_grounds(ground, verdict=CANNOT_TELL)
        final.append(finding)
    return final


def _find_below(findings: Sequence[Finding]) -> dict[int, str]:
    """Return by their index which findings are far below chance, and in words how far."""
    ps = {}
    for index, finding in enumerate(findings):
        # What could not have been so small by its test takes nothing from the others.
        is_possible = finding.p_least is not None and finding.p_least <= BELOW_ERROR
        if finding.p_below is not None and is_possible and finding.units in (PROPORTION, AUC):
            ps[index] = finding.p_below
    # Holm's correction with equal weights: here no finding is more important than another.
    adjusted = adjust([*ps.values()], [1.0] * len(ps))
    below = {}
    for index, p in zip(ps, adjusted, strict=True):
        finding = findings[index]
        if p <= BELOW_ERROR and finding.value is not None and finding.chance is not None and _is_far_below(finding):
            value, chance = in_units(finding.value, finding.units), in_units(finding.chance, finding.units)
            below[index] = f"{value} where guessing gives {chance}, corrected {p_in_words(p)}"
    return below


def _is_far_below(finding: Finding) -> bool:
    """Whether the interval about these very runs lies below chance: a test may be of another number than the value."""
    # The interval over runs is wider by how runs differ, which says nothing of misread scores.
    high = finding.high if finding.here_high is None else finding.here_high
    return high is not None and finding.chance is not None and high < finding.chance
