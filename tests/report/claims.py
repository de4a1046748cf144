"""Pages about privacy claims, for tests and the gallery: of every verdict, with and without a record and canaries.

What is configured is computed. What was seen and measured is made up, in the form that the checks give.
"""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from fedattack.claims import make_claim
from fedattack.claims.advice import Given
from fedattack.claims.check import ClaimAnswer, check_claim
from fedattack.claims.finding import ClaimFinding
from fedattack.claims.measured import Trial
from fedattack.claims.sheet import sheet_of
from fedattack.claims.tester import Measured, ScopedBound
from fedattack.privacy import Epsilon
from fedattack.report.claim import write_claim

INFINITE = float("inf")
NOW = datetime(2026, 11, 23, 19, 30, tzinfo=UTC)
NODES = [str(7_318_220_945_136_800_000 + 791_919 * number) for number in range(10)]
SIGMA = 4.845e-5


def platform() -> ClaimAnswer:
    """ClaimAnswer about a mod whose sensitivity is far too small, with one client that sends no noise."""
    claim = make_claim(
        "claim.toml",
        mechanism="flower-localdp",
        unit="client",
        clip=1.0,
        sensitivity=1e-4,
        epsilon=10.0,
        delta=1e-5,
        rounds=5,
    )
    answer = check_claim(claim)
    findings = (
        *answer.findings,
        finding(
            "recorded",
            3120.0,
            "contradicted",
            "at 95 %, ε of the run of 5 rounds is 3,120 or more, and 10 is claimed",
            message=412.0,
            assumes=("an update that was clipped may differ from another in one tensor alone",),
        ),
        replace(
            finding("", 1.0, "contradicted", f"client {NODES[3]}: no noise in conv1.weight, in 5 of 5 updates"),
            name="claim.noise-missing",
            message=None,
            run=None,
            clients=(NODES[3],),
        ),
        finding(
            "measured",
            1.1e9,
            "contradicted",
            "at 95 %, ε of the run of 5 rounds is 10^9 or more by scores that passed the tests of a Gaussian, and 10 "
            "is claimed",
            message=2.1e8,
            notes=("played: ±C along one direction; told apart by the position along the line between both",),
            assumes=("the tails of the scores, which so few draws do not reach, are also Gaussian",),
        ),
    )
    sentence = (
        f"{answer.sentence} A test told two updates apart in 8,000 of 8,000 tries. At 95 %, ε of the run of 5 "
        "rounds is 10^9 or more if the noise is Gaussian, as it looks; counting alone shows 6.8 for one message."
    )
    return replace(answer, findings=findings, sentence=sentence, measured=measured(), recorded=recorded())


def central() -> ClaimAnswer:
    """ClaimAnswer about noise of the server that holds, with canaries."""
    claim = make_claim(
        "claim.toml", mechanism="central-gaussian", clip=1.0, noise_multiplier=4.0, epsilon=8.0, delta=1e-5, rounds=20,
        clients=10, weights="equal",
    )  # fmt: skip
    answer = check_claim(claim)
    findings = (
        *answer.findings,
        finding("canaries", 1.8, "consistent", "at 95 %, ε of the run of 20 rounds is 1.8 or more", declared=8.0),
    )
    return replace(answer, findings=findings, canaries=canaries())


def undecided() -> ClaimAnswer:
    """ClaimAnswer about a weighted mean of which the weights are not known."""
    claim = make_claim(
        "claim.toml", mechanism="central-gaussian", noise_multiplier=2.0, clients=10, weights="examples", epsilon=3.0,
        delta=1e-5, rounds=1,
    )  # fmt: skip
    return check_claim(claim)


def finding(
    kind: str,
    low: float,
    verdict: str,
    reason: str,
    *,
    message: float = 0.5,
    declared: float = 10.0,
    notes: tuple[str, ...] = (),
    assumes: tuple[str, ...] = (),
) -> ClaimFinding:
    """Make a lower bound on the ε of the run."""
    return ClaimFinding(
        name=f"claim.epsilon-{kind}",
        declared=declared,
        scope="run",
        value=low,
        message=Epsilon(message, INFINITE),
        run=Epsilon(low, INFINITE),
        verdict=verdict,
        reason=reason,
        notes=notes,
        assumes=assumes,
    )


def measured() -> Measured:
    """Make what a test of the mechanism found."""
    bound = ScopedBound(2.1e8, 2.1e8, 1.1e9)
    return Measured(bound, "gaussian", 6.8, 6.8, 4.1e4, 8000, 8000, 10_000, "±C along one direction", "the position")


def recorded() -> dict[str, Any]:
    """Make what a record of ten clients shows, of whom one sent no noise."""
    clients = []
    for number, node in enumerate(NODES):
        none = number == 3
        clients.append(
            {
                "node": node,
                "updates": 5,
                "noise_at_most": 0.0 if none else SIGMA * (1.02 + number / 50),
                "where": "fc2.bias" if none else "conv1.weight",
                "norm_most": 0.98 if none else 1.003,
                "faults": ["no noise: 4,096 entries of conv1.weight are exactly zero"] if none else [],
            }
        )
    tests = [
        ("noise", "the length of each tensor of each update, and the sizes of its entries", 0.03, 200, 4),
        ("norms", "the length of each update", 0.01, 50, 0),
        ("repeats", "noise that two updates, rounds or tensors share", 0.01, 1225, 0),
    ]
    names = ("name", "what", "error_rate", "checked", "failed")
    return {
        "view": "individual",
        "protocol": "fedavg",
        "rounds": 5,
        "clients": clients,
        "tests": [dict(zip(names, test, strict=True)) for test in tests],
        "server": None,
        "notes": ["the integer buffer num_batches_tracked is sent without noise"],
    }


def canaries() -> dict[str, Any]:
    """Make what twenty client canaries show."""
    rng = np.random.default_rng(0)
    return {
        "kind": "client",
        "count": 20,
        "bound_message": None,
        "bound_run": 1.8,
        "estimate": 3.4,
        "confidence": 0.95,
        "accountant": 6.1,
        "cost": {"accuracy": 0.912, "accuracy_without": 0.921},
        "scores": {"in": rng.normal(0.05, 0.01, 20).tolist(), "out": rng.normal(0, 0.01, 20).tolist()},
        "notes": ["the null is that of random directions"],
    }


def sheet(answer: ClaimAnswer, folder: Path) -> dict[str, Any]:
    """Make the content of ``claim.json``, as of a run folder that was looked at and a mod that was tested."""
    file = folder / "claim.toml"
    file.write_text('mechanism = "gaussian"\n')
    record = folder / "record"
    if answer.recorded:
        record.mkdir(exist_ok=True)
        (record / "manifest.json").write_text("{}")
    mechanism = "tests.claims.known:platform" if answer.measured else ""
    given = Given(str(folder) if answer.recorded else "", str(file), mechanism)
    trial = Trial() if answer.measured else None
    command = "fedattack claim runs/first --claim claim.toml"
    return sheet_of(answer, given, trial=trial, command=command, now=NOW)


def page(answer: ClaimAnswer, folder: Path) -> Path:
    """Write the page of an answer to a folder."""
    return write_claim(folder, sheet(answer, folder))
