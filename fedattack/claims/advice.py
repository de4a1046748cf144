"""What to do about an answer: the noise that is enough, the ε that holds, and which checks are still to be made."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass

from fedattack.claims.accounting import compute_epsilon
from fedattack.claims.check import ClaimAnswer
from fedattack.claims.claim import DP_SGD, Claim, classical_sigma
from fedattack.claims.figures import in_figures
from fedattack.claims.finding import (
    CANARIES,
    CONFIGURED,
    CONSISTENT,
    CONTRADICTED,
    MEASURED,
    MISSING,
    RECORDED,
    UNCHECKED,
    WORTH,
    ClaimFinding,
    scope_of,
)
from fedattack.defences.guarantee import list_hazards

# The range of noise multipliers that is searched, and how close to the least one the search ends.
_LEAST, _MOST = 1e-3, 1e7
_CLOSE = 1.001

_GUIDE = "fedattack/claims/README.md"
# Findings, why each may contradict what is configured, and what to look for.
_LOOK_FOR = {
    RECORDED: (
        "Find out where the noise is lost",
        "The updates are too small for the noise that is claimed. Is the mod in the app that clients run, and the last "
        "step before the message leaves?",
    ),
    MEASURED: (
        "Mend the mechanism",
        "It protects less than its settings promise. The test updates show where: arrays without noise, no clipping, "
        "or noise that depends on the update.",
    ),
    CANARIES: (
        "Find out where the released model reveals one unit",
        "Canaries show more than the accountant allows. Is the noise as large as is claimed, and new in each round?",
    ),
}
_CHECKS = {
    CONFIGURED: "What is configured",
    MISSING: "Whether noise is missing in single messages",
    RECORDED: "What a record of the run shows",
    MEASURED: "What a test of the mechanism shows",
    CANARIES: "What canaries in the run show",
}
# By whether the server adds the noise.
_NO_RECORD = {
    False: "no record was given, so nothing shows that the run used the mechanism",
    True: "the server adds the noise, and a record only shows noise that clients add",
}


@dataclass(frozen=True)
class NextStep:
    """One thing to do: what, why, and a command if there is one."""

    what: str
    why: str
    command: str = ""


@dataclass(frozen=True)
class Open:
    """One thing that was not checked, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class Given:
    """What the command was given, as its user wrote it; empty where it was not."""

    folder: str = ""
    claim: str = ""
    mechanism: str = ""

    def command(self, *, folder: str = "", mechanism: str = "") -> str:
        """Write the command again; what is given here stands where its user gave nothing."""
        words = ["fedattack", "claim"]
        if self.folder or folder:
            words.append(self.folder or folder)
        # What is claimed may also be read off the mechanism, or off the settings of a run.
        if self.claim or not (self.mechanism or mechanism or self.folder):
            words += ["--claim", self.claim or "claim.toml"]
        if self.mechanism or mechanism:
            words += ["--mechanism", self.mechanism or mechanism]
        # shlex: paths of a user may hold blanks.
        return shlex.join(words)


def steps_of(answer: ClaimAnswer, given: Given) -> list[NextStep]:
    """Say what to do next: what mends a claim that does not hold, then which checks are missing."""
    by_name = {finding.name: finding for finding in answer.findings}
    steps = []
    wrong = [finding for finding in answer.findings if finding.verdict == CONTRADICTED]
    if any(finding.name == CONFIGURED for finding in wrong):
        steps += _advise_more_noise(answer.claim)
        steps += _advise_another_number(answer.claim, by_name[CONFIGURED])
    for finding in wrong:
        if finding.rounds:
            title = f"Claim the rounds that are run, rounds = {finding.rounds}, or stop after {answer.claim.rounds}"
            steps.append(NextStep(title, "ε grows with each round."))
        else:
            steps += _advise_search(finding, by_name)
    if wrong:
        steps.append(NextStep("Check again", "A corrected claim is a new claim.", given.command()))
    steps += _advise_key(answer)
    steps += _advise_checks(answer, by_name, given)
    if not steps and answer.verdict == CONSISTENT:
        gate = shlex.join(["--fail-if", "claim.verdict != consistent"])
        steps.append(NextStep("Keep it so", "A pipeline fails when the claim does.", f"{given.command()} {gate}"))
    return steps


def open_of(answer: ClaimAnswer) -> list[Open]:
    """List what was not checked, and what was and decides nothing."""
    done = {finding.name for finding in answer.findings}
    unchecked = [
        Open(_CHECKS[finding.name], finding.reason) for finding in answer.findings if finding.verdict == UNCHECKED
    ]
    reasons = {
        RECORDED: _NO_RECORD[answer.claim.central],
        MEASURED: "no mechanism was given, so nothing shows that the code does what it is configured to do",
        CANARIES: "no canaries were in the run",
    }
    for name, reason in reasons.items():
        if name not in done:
            unchecked.append(Open(_CHECKS[name], reason))
    return unchecked + [Open(hazard.what, hazard.why) for hazard in list_hazards(own_noise=False)]


def _advise_more_noise(claim: Claim) -> list[NextStep]:
    if claim.central and claim.trusted_server is False:
        why = "The server sees each update before it adds the noise: towards it nothing is promised."
        return [NextStep("Let clients add the noise, or declare trusted-server = true", why)]
    needed = multiplier_for(claim)
    if needed is None:
        why = "For such a claim the necessary amount is not computed: raise it, and check again."
        return [NextStep("Make the noise larger, or the rounds fewer", why)]
    why = (
        f"This is the smallest value that gives ε = {claim.epsilon:g} for {scope_of(claim)}, with the same clipping "
        "norm."
    )
    if claim.noise_multiplier is not None or claim.clip is None or (claim.central and claim.clients is None):
        change = f"noise-multiplier = {_write_rounded_up(needed)}{_describe_replaced(claim.multiplier)}"
    else:
        sigma = needed * claim.clip / (claim.clients or 1)
        change = f"σ = {_write_rounded_up(sigma)}{_describe_replaced(claim.deviation)}"
        if claim.mechanism == "flower-localdp":
            # LocalDpMod computes σ from sensitivity, ε and δ, so that the sensitivity is the number to change.
            sensitivity = sigma / classical_sigma(1.0, claim.epsilon, claim.delta)
            why += f" LocalDpMod adds it if its sensitivity is {_write_rounded_up(sensitivity)}."
    return [NextStep(f"Make the noise larger: {change}", f"{why} It costs accuracy: try it before you promise it.")]


def _describe_replaced(value: float | None) -> str:
    if value is None:
        return ""
    return f" in place of {value:.3g}"


def multiplier_for(claim: Claim) -> float | None:
    """Find the least noise multiplier with which a claim of Gaussian noise holds; None if there is none, or not known.

    Where units are sampled, or the noise is Laplace's, each trial takes seconds, and it is not searched for.
    """
    if claim.draws or claim.mechanism == "laplace":
        return None
    low, high = _LEAST, _MOST
    if not _check_multiplier(claim, high):
        return None
    while high > low * _CLOSE:
        # Geometric: the range spans ten powers of ten.
        middle = math.sqrt(low * high)
        if _check_multiplier(claim, middle):
            high = middle
        else:
            low = middle
    return high


def _check_multiplier(claim: Claim, multiplier: float) -> bool:
    # A stated σ goes, as it would contradict the multiplier that is tried.
    configured = compute_epsilon(claim.model_copy(update={"noise_multiplier": multiplier, "sigma": None}))
    bounds = configured.message if claim.epsilon_of == "message" else configured.run
    return bounds is not None and bounds.high <= claim.epsilon


def _write_rounded_up(value: float) -> str:
    """Write three digits, rounded so that the noise is enough."""
    # The third digit's place.
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.ceil(value / step) * step:.4g}"


def _advise_another_number(claim: Claim, finding: ClaimFinding) -> list[NextStep]:
    value = finding.value
    if value is None or value > WORTH:
        return []
    return [
        NextStep(
            f"Or state what holds: ε = {in_figures(value)} for {scope_of(claim)}",
            "This is what the configured noise gives.",
        )
    ]


def _advise_search(finding: ClaimFinding, by_name: dict[str, ClaimFinding]) -> list[NextStep]:
    if finding.name == MISSING and not finding.clients:
        why = "A mod is opt-in. The sums contain too little noise, but do not show whose is missing."
        return [NextStep("Ask what the clients run", why)]
    if finding.name == MISSING:
        why = "A mod is opt-in. A client that starts without it sends raw updates, and nothing refuses them."
        return [NextStep("Ask what the named clients run", why)]
    # What is configured explains all others, and clients that are named explain what the record shows.
    explains = [CONFIGURED]
    if finding.name == RECORDED:
        explains.append(MISSING)
    explained = any(name in by_name and by_name[name].verdict == CONTRADICTED for name in explains)
    if explained or finding.name not in _LOOK_FOR:
        return []
    return [NextStep(*_LOOK_FOR[finding.name])]


def _advise_key(answer: ClaimAnswer) -> list[NextStep]:
    """Name the key of the claim that would decide it; other reasons stand beside what was not checked."""
    first, claim = answer.findings[0], answer.claim
    if first.verdict != UNCHECKED:
        return []
    if first.value is None:
        # Numbers of the claim are missing; what else is unknown is no key.
        return [NextStep("Complete the claim", f"{first.reason}. {_GUIDE} has its keys.")]
    if claim.central and claim.weights != "equal" and claim.largest_share is None:
        why = "The weight of a client decides how well the noise hides it."
        return [NextStep("Add largest-share to the claim: the largest weight of one client in any round", why)]
    return []


def _advise_checks(answer: ClaimAnswer, by_name: dict[str, ClaimFinding], given: Given) -> list[NextStep]:
    steps = []
    if RECORDED not in by_name and not answer.claim.central:
        why = "It shows whether clients really sent noise, and names those that did not."
        steps.append(NextStep("Look at the record of a run", why, given.command(folder="DIR")))
    if MEASURED not in by_name:
        why = "It shows whether the code does what its settings say. The code is imported and run."
        steps.append(NextStep("Test the mechanism", why, given.command(mechanism="module:function")))
    if CANARIES not in by_name and (answer.claim.central or answer.claim.mechanism == DP_SGD):
        why = "They show what the released model reveals about one unit; fedattack/claims/CANARIES.md says how."
        steps.append(NextStep("Put canaries into a run", why))
    return steps
