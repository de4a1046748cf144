"""An answer about a claim, as rows and lines for people."""

from __future__ import annotations

from fedattack.claims.check import ClaimAnswer
from fedattack.claims.claim import Claim
from fedattack.claims.figures import bounds_in_figures
from fedattack.claims.finding import sure_of
from fedattack.privacy import Epsilon


def answer_rows(answer: ClaimAnswer) -> list[tuple[str, str, str, str]]:
    """Give a row for what is declared, and one for each finding: name, ε of a message, ε of the run, verdict."""
    rows = [("declared", *_write_declared(answer.claim), "")]
    for finding in answer.findings:
        rows.append((finding.name, _write_bounds(finding.message), _write_bounds(finding.run), finding.verdict))
    return rows


def _write_declared(claim: Claim) -> tuple[str, str]:
    epsilon = f"{claim.epsilon:g}"
    return (epsilon, "–") if claim.epsilon_of == "message" else ("–", epsilon)


def _write_bounds(bounds: Epsilon | None) -> str:
    return "–" if bounds is None else bounds_in_figures(bounds)


def answer_lines(answer: ClaimAnswer) -> list[str]:
    """Give the sentence for everybody, then the grounds of each verdict, then what they assume."""
    sure = sure_of({finding.name: finding.verdict for finding in answer.findings})
    lines = [f"{answer.verdict.capitalize()}. {answer.sentence} {sure}".rstrip(), ""]
    lines.extend(f"- {note}" for note in answer.notes)
    for finding in answer.findings:
        lines.append(f"{finding.name}: {finding.verdict}; {finding.reason}")
        lines.extend(f"  - {note}" for note in finding.notes)
        lines.extend(f"  - assumed: {text}" for text in finding.assumes)
    return lines
