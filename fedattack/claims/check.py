"""What is declared beside what is configured and what is measured, each with a verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedattack.base.errors import ConfigError
from fedattack.claims.accounting import compute_epsilon
from fedattack.claims.arithmetic import describe_configured, judge_configured
from fedattack.claims.canaries.measure import CanaryResult, canary_finding, canary_sentence
from fedattack.claims.claim import Claim
from fedattack.claims.figures import plain
from fedattack.claims.finding import CONTRADICTED, ERROR, WHOLE, ClaimFinding, checks_by_chance, verdict_of
from fedattack.claims.measured import TEN_THOUSAND, Trial, describe_measured, judge_measured, measure_mechanism
from fedattack.claims.mechanisms import mechanism_of
from fedattack.claims.reading import claim_of, readable, replace_by_configured
from fedattack.claims.recorded import recorded_dict, recorded_findings, sentence_of, testify
from fedattack.claims.settings import claim_of_run, claimed_besides
from fedattack.claims.tester import Measured
from fedattack.learning.importing import import_callable


@dataclass(frozen=True)
class ClaimAnswer:
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
        # Each check that rests on chance errs in 5 % of runs; the sum bounds all of them (Bonferroni).
        return round(ERROR * len(checks_by_chance({finding.name: finding.verdict for finding in self.findings})), 2)

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
            "findings": [{**asdict(finding), "consequence": finding.consequence} for finding in self.findings],
            "notes": self.notes,
            "measured": None if self.measured is None else asdict(self.measured),
            "recorded": self.recorded,
            "canaries": self.canaries,
        }
        return plain(value)  # type: ignore[no-any-return]


def check_claim(
    claim: Claim | None,
    mechanism: object = None,
    trial: Trial = TEN_THOUSAND,
    *,
    name: str = "",
    record: Path | None = None,
    sends_models: bool = True,
    canaries: Callable[[Claim], CanaryResult] | None = None,
) -> ClaimAnswer:
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
    sends_models
        Whether clients reply models in it; see :func:`fedattack.claims.recorded.testify`.
    canaries
        Measures the canaries of that run for a claim.

    Raises
    ------
    ConfigError
        If there is neither, or no claim can be read, or the mechanism fails.
    """
    name = name or "the mechanism"
    claim, notes = choose_claim(claim, mechanism, name, record)
    configured = compute_epsilon(claim)
    findings = [judge_configured(claim, configured)]
    sentences = [_describe_declared(claim), describe_configured(claim, configured)]
    measured = recorded = shown = None
    if mechanism is not None:
        measured = measure_mechanism(claim, mechanism, trial, name)
        findings.append(judge_measured(claim, measured))
        sentences.append(describe_measured(claim, measured))
    if record is not None:
        testimony, records = testify(claim, record, sends_models=sends_models)
        seen = recorded_findings(claim, testimony)
        # Right behind what is configured.
        findings[1:1] = seen
        recorded = recorded_dict(testimony, records)
        sentences.append(sentence_of(claim, testimony, seen))
    if canaries is not None:
        result = canaries(claim)
        findings.append(canary_finding(claim, result))
        shown = plain(asdict(result))
        sentences.append(canary_sentence(claim, findings[-1], result))
    return ClaimAnswer(claim, tuple(findings), " ".join(sentences), notes, measured, recorded, shown)


def choose_claim(
    claim: Claim | None, mechanism: object, name: str, record: Path | None
) -> tuple[Claim, tuple[str, ...]]:
    """Read what is claimed off the mechanism or the run where nobody says it; what is configured counts.

    Returns
    -------
    Claim, tuple of str
        The claim, and notes about where it is from.

    Raises
    ------
    ConfigError
        If nothing says what is claimed, or what says it does not make a claim.
    """
    known = mechanism is not None and readable(mechanism)
    if claim is not None:
        # What the code has wins over what the file says of it.
        return replace_by_configured(claim, mechanism, name) if known else (claim, ())
    if record is not None and mechanism is None:
        claim = claim_of_run(record)
        besides = claimed_besides(record)
        return claim, ("the claim is read from the settings of the run", *filter(None, [besides]))
    if not known:
        raise ConfigError("there is no claim to check; give --claim claim.toml (fedattack/claims/README.md)")
    return claim_of(mechanism), ()


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


def _describe_declared(claim: Claim) -> str:
    who = "Each message is claimed to have"
    if claim.epsilon_of == "run":
        who = "The run claims"
    return f"{who} ε = {claim.epsilon:g} (δ = {claim.delta:g})."
