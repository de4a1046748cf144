"""What is declared beside what is configured and what is measured, each with a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedattack.base.errors import ConfigError
from fedattack.claims.accounting import Configured, configured
from fedattack.claims.canaries.finding import canary_finding, canary_sentence
from fedattack.claims.canaries.measure import CanaryResult
from fedattack.claims.claim import UPDATE, Claim, make_claim
from fedattack.claims.figures import equation, in_figures, plain
from fedattack.claims.finding import (
    CONFIGURED,
    CONSISTENT,
    CONTRADICTED,
    ERROR,
    MEASURED,
    TOLERANCE,
    UNCHECKED,
    WHOLE,
    ClaimFinding,
    checks_by_chance,
    scope_of,
    verdict_of,
)
from fedattack.claims.mechanisms import mechanism_of
from fedattack.claims.reading import claim_of, configuration_of, readable
from fedattack.claims.recorded import recorded_dict, recorded_findings, sentence_of, testify
from fedattack.claims.recorded.settings import claim_of_run, claimed_besides
from fedattack.claims.tester import LEVEL, Measured, Play, measure
from fedattack.learning.importing import import_callable
from fedattack.privacy import Epsilon

# Draws that a user may be asked for, at most.
_MOST_DRAWS = 10_000_000
# Who draws which units take part, by whether the mechanism does.
_SAMPLED = {
    True: "the mechanism draws whether the update takes part with the rate of the claim",
    False: "who takes part is drawn as the claim says, before the mechanism",
}
# How far a stated sensitivity may be below what clipping allows for; C and 2C are both in use.
_FAR_BELOW = 0.99
_FORMULA = "the classical formula is for one message, and is proved for ε up to 1"


@dataclass(frozen=True)
class Answer:
    """All that was found about a claim.

    Attributes
    ----------
    claim
        What is declared, with what was read off the mechanism.
    findings
        What was checked.
    sentence
        For people who are not statisticians.
    notes
        What concerns the claim itself.
    measured
        Of the test, if there was one.
    recorded
        What a record shows, if there was one, as JSON can hold it.
    canaries
        What canaries showed, if there were any, in the same form.
    """

    claim: Claim
    findings: tuple[ClaimFinding, ...]
    sentence: str
    notes: tuple[str, ...] = ()
    measured: Measured | None = None
    recorded: Mapping[str, Any] | None = None
    canaries: Mapping[str, Any] | None = None

    @property
    def verdict(self) -> str:
        """Contradicted if any finding is; else that of what is configured."""
        return verdict_of([finding.verdict for finding in self.findings])

    @property
    def whole(self) -> ClaimFinding:
        """The verdict on the whole claim as one more finding, for conditions that name it."""
        return replace(self.findings[0], name=WHOLE, verdict=self.verdict)

    @property
    def error_rate(self) -> float:
        """How often chance alone contradicts a claim that is true, at most; 0 where arithmetic contradicts it."""
        if self.findings[0].verdict == CONTRADICTED:
            return 0.0
        return round(ERROR * len(checks_by_chance([finding.name for finding in self.findings])), 2)

    def to_dict(self) -> dict[str, Any]:
        """Copy into what JSON can hold; an infinite number is the text ``infinity``."""
        value = {
            "claim": {
                # What holds where the claim says nothing: by it neighbours are C or 2C apart.
                "unit": self.claim.protects,
                "neighbours": self.claim.relation,
                **self.claim.model_dump(by_alias=True, exclude_none=True),
            },
            "verdict": self.verdict,
            "error_rate": self.error_rate,
            "sentence": self.sentence,
            "findings": [asdict(finding) for finding in self.findings],
            "notes": self.notes,
            "measured": None if self.measured is None else asdict(self.measured),
            "recorded": self.recorded,
            "canaries": self.canaries,
        }
        return plain(value)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Trial:
    """How a mechanism is to be tested; see :class:`fedattack.claims.tester.Play`."""

    draws: int = 10_000
    seed: int = 0
    clipped: bool = False
    sampled: bool = False


TEN_THOUSAND = Trial()


def check_claim(
    claim: Claim | None,
    mechanism: object = None,
    trial: Trial = TEN_THOUSAND,
    *,
    name: str = "",
    record: Path | None = None,
    canaries: Callable[[Claim], CanaryResult] | None = None,
) -> Answer:
    """Hold a claim against arithmetic; if there is a mechanism, against a test of it; and against a record.

    Parameters
    ----------
    claim
        What is declared; None if it can be read off the mechanism, or off the settings of the run folder.
    mechanism
        See :mod:`fedattack.claims.mechanisms`. What it configures is read off it where that is possible, and counts in
        place of what the claim says of it.
    trial
        How it is tested.
    name
        As messages call the mechanism.
    record
        A record, or a run folder with one or several.
    canaries
        Measures the canaries of that run for a claim.

    Raises
    ------
    ConfigError
        If there is neither, or no claim can be read, or the mechanism fails.
    """
    notes: tuple[str, ...] = ()
    name = name or "the mechanism"
    if claim is None and record is not None and mechanism is None:
        claim = claim_of_run(record)
        besides = claimed_besides(record)
        notes = ("what is claimed is read off the settings of the run", *filter(None, [besides]))
    elif claim is None:
        if mechanism is None or not readable(mechanism):
            raise ConfigError("nothing says what is claimed; give --claim claim.toml (fedattack/claims/README.md)")
        claim = claim_of(mechanism)
    elif mechanism is not None and readable(mechanism):
        claim, notes = _as_configured(claim, mechanism, name)
    found = configured(claim)
    findings = [_configured_finding(claim, found)]
    measured = None
    if mechanism is not None:
        measured = _measure(claim, mechanism, trial, name)
        findings.append(_measured_finding(claim, measured))
    sentence = _sentence(claim, found, measured)
    recorded = None
    if record is not None:
        testimony, records = testify(claim, record)
        seen = recorded_findings(claim, testimony)
        findings[1:1] = seen
        recorded = recorded_dict(testimony, records)
        sentence = f"{sentence} {sentence_of(claim, testimony, seen)}"
    shown = None
    if canaries is not None:
        result = canaries(claim)
        findings.append(canary_finding(claim, result))
        shown = plain(asdict(result))
        sentence = f"{sentence} {canary_sentence(claim, findings[-1], result)}"
    return Answer(claim, tuple(findings), sentence, notes, measured, recorded, shown)


def load_mechanism(spec: str) -> object:
    """Import a mechanism that the caller named as ``module:function``.

    Where the function takes no parameters, it is called, and gives the mechanism.

    Raises
    ------
    FedAttackError
        If it cannot be imported.
    """
    if ":" not in spec:
        raise ConfigError(f"--mechanism {spec}: expected module:function, such as mypackage.privacy:noisy")
    mechanism = mechanism_of(import_callable(spec, what="mechanism", known=["module:function"]), name=spec)
    return mechanism.source


def _as_configured(claim: Claim, mechanism: object, name: str) -> tuple[Claim, tuple[str, ...]]:
    """Put what a mechanism configures in the place of what a claim says of it."""
    try:
        read = dict(configuration_of(mechanism))
    except ConfigError as nothing:
        # Such as a mod that clips and adds no noise. It is tested all the same.
        return claim, (str(nothing),)
    declared = {"epsilon": claim.epsilon, "delta": claim.delta, "rounds": claim.rounds}
    read = {key: value for key, value in read.items() if value is not None}
    own = make_claim(name, **{**declared, **read})
    values = claim.model_dump(exclude_unset=True)
    notes = []
    for key in ("clip", "sensitivity", "deviation"):
        said, has = getattr(claim, key), getattr(own, key)
        if said is not None and has is not None and not math.isclose(said, has, rel_tol=TOLERANCE):
            word = "sigma" if key == "deviation" else key
            notes.append(f"the claim says {word} = {said:.4g}, and {name} has {has:.4g}, which counts")
    if claim.mechanism == own.mechanism == "flower-localdp" and not notes:
        return claim, ()
    for key in ("clip", "sensitivity", "sigma", "noise_multiplier"):
        values.pop(key, None)
        read.pop(key, None)
    for key in ("epsilon", "delta", "epsilon_of"):
        read.pop(key, None)
    values = {**read, **values}
    # Flower's formula has done its part: σ is known.
    values["mechanism"] = "gaussian" if own.mechanism == "flower-localdp" else own.mechanism
    noise = {"clip": own.clip, "sensitivity": own.sensitivity, "sigma": own.sigma if own.sigma else own.deviation}
    if own.deviation is None:
        noise["noise_multiplier"] = own.noise_multiplier
    values.update({key: value for key, value in noise.items() if value is not None})
    return make_claim(name, **values), tuple(notes)


def _measure(claim: Claim, mechanism: object, trial: Trial, name: str) -> Measured:
    if claim.clip is None:
        raise ConfigError("a test of a mechanism needs clip in the claim: it plays updates of that norm")
    if trial.sampled and claim.sampling == 1:
        raise ConfigError("--sampled: the claim has no sampling below 1 that the mechanism could draw with")
    inside = claim.sampling if trial.sampled else 1.0
    # Zeros are one of the units that may replace another.
    relation = "add-remove" if claim.sampling < 1 else claim.relation
    play = Play(
        clip=claim.clip,
        relation=relation,
        delta=claim.delta,
        draws=trial.draws,
        clipped=trial.clipped,
        inside=inside,
        rate=1.0 if trial.sampled else claim.sampling,
        message=claim.steps,
        run=claim.steps * claim.rounds,
    )
    return measure(mechanism_of(mechanism, name=name, clip=claim.clip), play, seed=trial.seed)


def _configured_finding(claim: Claim, found: Configured) -> ClaimFinding:
    bounds = found.message if claim.epsilon_of == "message" else found.run
    verdict, reason = UNCHECKED, found.lacks
    if bounds is not None:
        verdict, reason = _against(claim, bounds)
    return ClaimFinding(
        name=CONFIGURED,
        declared=claim.epsilon,
        scope=claim.epsilon_of,
        value=None if bounds is None else bounds.high,
        message=found.message,
        run=found.run,
        verdict=verdict,
        reason=reason,
        notes=tuple(_mistakes(claim, found)),
        assumes=found.assumes,
    )


def _against(claim: Claim, bounds: Epsilon) -> tuple[str, str]:
    most = claim.epsilon * (1 + TOLERANCE)
    of = scope_of(claim)
    if math.isinf(bounds.low):
        return CONTRADICTED, f"nothing bounds the ε of {of}"
    if bounds.low > most:
        return CONTRADICTED, f"ε of {of} is {in_figures(bounds.low)} or more, and {claim.epsilon:g} is claimed"
    if bounds.high <= most:
        return CONSISTENT, f"ε of {of} is {in_figures(bounds.high)} at most, and {claim.epsilon:g} is claimed"
    return (
        UNCHECKED,
        f"ε of {of} lies between {in_figures(bounds.low)} and {in_figures(bounds.high)}: no closer bounds are known",
    )


def _mistakes(claim: Claim, found: Configured) -> list[str]:
    """Say which of the usual mistakes explain the number."""
    notes = []
    most = claim.epsilon * (1 + TOLERANCE)
    below = _below(claim)
    if below:
        notes.append(below)
        if found.stated is not None and found.stated > most:
            said = f"even with the sensitivity that is stated, ε of {scope_of(claim)} is {in_figures(found.stated)}"
            notes.append(f"{said}: {_FORMULA}" if claim.mechanism == "flower-localdp" else said)
    elif claim.mechanism == "flower-localdp" and found.message is not None and found.message.low > most:
        notes.append(_FORMULA)
    fits = found.message is not None and found.message.high <= most
    if fits and claim.epsilon_of == "run" and found.run is not None and found.run.low > most:
        notes.append(f"ε is that of one message, quoted for a run of {claim.rounds} rounds")
    return notes


def _below(claim: Claim) -> str:
    """Say how far the stated sensitivity is below what clipping allows for; empty if it is not."""
    if claim.clip is None or claim.sensitivity is None or claim.mechanism not in UPDATE:
        return ""
    apart = claim.clip * (2 if claim.relation == "replace" else 1)
    if claim.sensitivity >= _FAR_BELOW * apart:
        return ""
    times = _times(apart / claim.sensitivity)
    return (
        f"the sensitivity {claim.sensitivity:g} is {times} times below {apart:g}, how far apart clipped updates may be"
    )


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"


def _measured_finding(claim: Claim, measured: Measured) -> ClaimFinding:
    bound = measured.bound.message if claim.epsilon_of == "message" else measured.bound.run
    shape = "scores that passed the tests of a Gaussian" if measured.method != "counting" else "counts alone"
    said = f"at {LEVEL:.0%}, ε of {scope_of(claim)} is {in_figures(bound)} or more by {shape}"
    if bound > claim.epsilon:
        verdict, reason = CONTRADICTED, f"{said}, and {claim.epsilon:g} is claimed"
    elif measured.method == "counting" and claim.epsilon >= measured.ceiling:
        verdict, reason = UNCHECKED, f"{said}; {_too_few(claim.epsilon, measured)}"
    else:
        verdict, reason = CONSISTENT, f"{said}, no more than the {claim.epsilon:g} that is claimed"
    return ClaimFinding(
        name=MEASURED,
        declared=claim.epsilon,
        scope=claim.epsilon_of,
        value=bound,
        message=Epsilon(measured.bound.message, math.inf),
        run=Epsilon(measured.bound.run, math.inf),
        verdict=verdict,
        reason=reason,
        notes=(f"played: {measured.pair}; told apart by {measured.score}", *measured.notes),
        assumes=_test_assumes(claim, measured),
    )


def _test_assumes(claim: Claim, measured: Measured) -> tuple[str, ...]:
    assumes = []
    if measured.method != "counting":
        assumes.append("the tails of the scores, which so few draws do not reach, are those of a Gaussian, too")
    if claim.sampling < 1:
        assumes.append(_SAMPLED[measured.method == "sampled gaussian"])
    return tuple(assumes)


def _too_few(epsilon: float, measured: Measured) -> str:
    told = f"{measured.draws:,} draws show no more than {measured.ceiling:.2g} by counting"
    # Zero false alarms in n draws leave room for a rate of 4.4/n; four fifths of the draws are for the bound.
    needed = 2.5 * 4.4 * math.exp(min(epsilon, 50.0)) * 1.2
    if needed > _MOST_DRAWS:
        return f"{told}, and no number of draws would do"
    return f"{told}; try --draws {math.ceil(needed / 1000) * 1000}"


def _sentence(claim: Claim, found: Configured, measured: Measured | None) -> str:
    who = "The run claims" if claim.epsilon_of == "run" else "Each message is claimed to have"
    parts = [f"{who} ε = {claim.epsilon:g} (δ = {claim.delta:g}).", _configured_sentence(claim, found)]
    if measured is not None:
        parts.append(_measured_sentence(claim, measured))
    return " ".join(parts)


def _measured_sentence(claim: Claim, measured: Measured) -> str:
    bound = measured.bound.message if claim.epsilon_of == "message" else measured.bound.run
    told = f"A test told two updates apart in {measured.told:,} of {measured.tries:,} tries"
    if not bound:
        return f"{told}, which shows nothing about ε."
    shown = f"{told}. At {100 * LEVEL:.0f} %, ε of {scope_of(claim)} is {in_figures(bound)} or more"
    if measured.method == "counting":
        return f"{shown} by counting alone."
    draws = claim.steps if claim.epsilon_of == "message" else claim.steps * claim.rounds
    one = "one step" if claim.steps > 1 else "one message"
    counting = in_figures(measured.counting) + (f" for {one}" if draws > 1 else "")
    return f"{shown} if the noise is Gaussian, as it looks; counting alone shows {counting}."


def _configured_sentence(claim: Claim, found: Configured) -> str:
    message, run = found.message, found.run
    if message is None or run is None:
        return f"What is configured cannot be worked out: {found.lacks}."
    if math.isinf(message.low):
        return "What is configured guarantees nothing."
    what = "a released model" if claim.central else "a message"
    text = f"What is configured gives {what} {equation(message)}"
    return f"{text}, and the run of {claim.rounds} rounds {equation(run)}." if claim.rounds > 1 else f"{text}."
