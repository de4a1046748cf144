"""How often the record accuses honest runs, and how often it finds those who add too little noise.

``python -m tests.benchmarks.witness`` writes records of runs whose noise is known, and checks each. It prints a row for
each kind of run: 200 honest ones, of which 5 % may be contradicted in all; 50 with a fault, which has to be named in
95 %. It takes ten minutes on one core.
"""

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedattack.audit.intervals import clopper_pearson
from fedattack.claims import compute_epsilon, make_claim
from fedattack.claims.check import ClaimAnswer, check_claim
from fedattack.claims.claim import Claim
from tests.claims.recorded.runs import Run, laplace, write_run

LAYERS = {
    "conv.weight": (32, 3, 5, 5),
    "conv.bias": (32,),
    "norm.running_mean": (32,),
    "hidden.weight": (128, 256),
    "hidden.bias": (128,),
    "out.weight": (10, 128),
    "out.bias": (10,),
}
PLATFORM = 4.845e-5
"""σ of the platform whose sensitivity is far below its clipping norm."""

BAD = 3
"""The client with a fault."""


@dataclass(frozen=True)
class Case:
    """A kind of run with its claim."""

    name: str
    run: Run
    claim: Mapping[str, Any]

    def read_claim(self) -> Claim:
        """Return the claim, whose ε is that of what it configures."""
        values = {"delta": 1e-5, "rounds": self.run.rounds, "clip": 1.0, **self.claim}
        found = compute_epsilon(make_claim(self.name, epsilon=1.0, **values))
        return make_claim(self.name, epsilon=found.run.high if found.run else 1.0, **values)


def honest() -> Iterator[Case]:
    """Give kinds of runs that do what they claim."""
    gaussian = {"mechanism": "gaussian"}
    yield Case("Gaussian, σ = 0.1", Run(LAYERS), {**gaussian, "sigma": 0.1})
    yield Case(
        "Gaussian, σ = 10, nothing else in the update", Run(LAYERS, norm=1e-9, sigma=10.0), {**gaussian, "sigma": 10.0}
    )
    yield Case("Gaussian, σ = 4.8e-5", Run(LAYERS, sigma=PLATFORM), {**gaussian, "sigma": PLATFORM})
    yield Case("Laplace, b = 0.1", Run(LAYERS, draw=laplace), {"mechanism": "laplace", "sigma": 0.1})
    # Noise of z = 1, a learning rate of 0.1, batches of 32: what the last step adds.
    step = {"mechanism": "dp-sgd", "noise_multiplier": 1.0, "learning_rate": 0.1, "batch_size": 32.0, "steps": 10}
    yield Case("DP-SGD, z = 1", Run(LAYERS, sigma=0.1 / 32), step)
    yield Case("sums, σ = 0.1", Run(LAYERS, aggregate=True), {**gaussian, "sigma": 0.1})


def faulty() -> Iterator[Case]:
    """Give kinds of runs that do not."""
    for name, sigma in (("σ = 0.1", 0.1), ("σ = 10", 10.0)):
        claim = {"mechanism": "gaussian", "sigma": sigma}
        run = Run(LAYERS, sigma=sigma)
        for fault, other in faults(run).items():
            yield Case(f"{name}: {fault}", other, claim)
    claim = {"mechanism": "gaussian", "sigma": PLATFORM}
    low = Run(LAYERS, sigma=PLATFORM)
    yield Case("σ = 4.8e-5: one client without noise", low.with_other(others={BAD: {"": 0.0}}), claim)
    without = low.with_other(others={BAD: {"": 0.0}}, unclipped=(BAD,))
    yield Case("σ = 4.8e-5: one client without the mod", without, claim)


def faults(run: Run) -> dict[str, Run]:
    """Return what each fault makes of a run."""
    half = [name for name in run.shapes if name > "i"]
    return {
        "one client without noise": run.with_other(others={BAD: {"": 0.0}}),
        "one client with a tenth of it": run.with_other(others={BAD: {"": run.sigma / 10}}),
        "one client with noise on half of the layers": run.with_other(others={BAD: dict.fromkeys(half, 0.0)}),
    }


def checked(case: Case, seed: int) -> ClaimAnswer:
    """Write a record, and check it."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record"
        write_run(record, case.run, seed)
        return check_claim(case.read_claim(), record=record)


def accused(answer: ClaimAnswer) -> bool:
    """Whether the record contradicts the claim."""
    return any(
        finding.verdict == "contradicted" for finding in answer.findings if finding.name != "claim.epsilon-configured"
    )


def found(answer: ClaimAnswer) -> bool:
    """Whether the client with a fault is named, and nobody else."""
    (missing,) = (finding for finding in answer.findings if finding.name == "claim.noise-missing")
    return missing.clients == (str(100 + BAD),)


def rows(runs: int, powers: int) -> None:
    """Print a row for each kind of run."""
    print("| runs | checked | contradicted if honest; else exactly those named |\n|---|---|---|", flush=True)
    total = 0
    kinds = 0
    for case in honest():
        alarms = sum(accused(checked(case, seed)) for seed in range(runs))
        total, kinds = total + alarms, kinds + 1
        _row(f"honest: {case.name}", alarms, runs)
    _row("honest, all together", total, kinds * runs)
    for case in faulty():
        _row(case.name, sum(found(checked(case, seed)) for seed in range(powers)), powers)


def _row(name: str, count: int, runs: int) -> None:
    low, high = clopper_pearson(count, runs)
    print(f"| {name} | {runs} | {count / runs:.1%} ({low:.1%}–{high:.1%}) |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200, help="honest ones of each kind")
    parser.add_argument("--powers", type=int, default=50, help="faulty ones of each kind")
    told = parser.parse_args()
    rows(told.runs, told.powers)


if __name__ == "__main__":
    main()
