"""How well membership inference does beside its baselines, what it says of nothing, and under a guarantee.

``python -m tests.benchmarks.membership compare`` runs FedMIA and the methods that look at one client alone on data sets
whose clients overfit, five seeds each. ``null`` runs it 200 times on targets that nobody holds, dealt to clients, and
counts how often the interval holds the truth, and leaks before the correction. ``private`` trains clients with DP-SGD
at ε = 1, 100 times, and counts how often the implied ε exceeds it. ``speed`` times 10 clients, 20 rounds and 2,000
targets of the SIA CNN.

Runs are in this process, without Ray. Each prints its figures as JSON.
"""

import argparse
import json
import logging
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedattack.attacks import ATTACKS, Knowledge, ModelKnowledge, Targets
from fedattack.audit.finding import Finding
from fedattack.audit.intervals import clopper_pearson
from fedattack.audit.truth import NOBODY
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.threats.membership.case import MembershipCase
from fedattack.threats.membership.judge import MembershipJudge
from fedattack.threats.membership.membership import ALONE, METHODS
from tests.benchmarks.calibration.federations import World, seeds_of
from tests.worlds.cases import change_case

SETTINGS = {
    "digits": ("dataset=digits",),
    "digits-uneven": ("dataset=digits", "clients=20", "rounds=16", "fraction=0.4", "nulls=600"),
    "mnist10k": ("dataset=MNIST", "records-per-client=100", "batch-size=16", "lr=0.05", "nulls=2000", "auxiliary=1000"),
    "synthetic": ("dataset=synthetic", "records-per-client=30", "lr=0.05", "nulls=2000", "auxiliary=300"),
}
"""Changes to the preset ``membership``; MNIST stands for the file that the command names."""

NULL_RUNS = 200
PRIVATE_RUNS = 100


def cases(changes: Sequence[str], seeds: Iterator[int], shadows: int = 8) -> Iterator[MembershipCase]:
    """Run, attack, and read each seed's case."""
    world = World("membership", tuple(changes), {"membership": {"shadows": str(shadows)}}, nulls={})
    for evidence in seeds_of(world, seeds):
        yield MembershipCase(evidence, "membership")


def findings(judged: Sequence[MembershipCase]) -> dict[str, Finding]:
    """Judge some cases."""
    judge = MembershipJudge(judged, setting={}, provenance={})
    return {finding.metric: finding for finding in judge.findings()}


def compare(names: Sequence[str], mnist: str) -> None:
    """FedMIA beside what looks at the client alone."""
    for name in names:
        changes = [change.replace("MNIST", mnist) for change in SETTINGS[name]]
        judged = findings([*cases(changes, iter(range(5)))])
        rows = {row["method"]: row for row in judged["tpr-at-1pct-fpr"].series["membership_methods"]}
        table = {method: _shown(rows[words]) for method, words in METHODS.items() if words in rows}
        best = max(ALONE, key=lambda method: table[method]["tpr"][0])
        verdicts = {metric: finding.verdict for metric, finding in judged.items()}
        print(json.dumps({"data": name, "best alone": best, "table": table, "verdicts": verdicts}), flush=True)


def _shown(row: dict[str, Any]) -> dict[str, list[float]]:
    shown = {"tpr": row["tpr_1pct"], "auc": row["auc"]}
    return {key: [round(value[end], 4) for end in ("value", "low", "high")] for key, value in shown.items()}


def null() -> None:
    """Targets that nobody holds, dealt to clients as if these held them."""
    held, leaks, values = 0, dict.fromkeys(("tpr-at-1pct-fpr", "auc", "epsilon-implied"), 0), []
    for case in cases(("nulls=1100", "auxiliary=0"), iter(range(NULL_RUNS)), shadows=0):
        draw = np.random.default_rng(case.seed)
        owners = case.truth.owners.copy()
        nobody = np.flatnonzero(owners == NOBODY)
        owners[owners != NOBODY] = "*"
        pretended = draw.choice(nobody, size=len(nobody) // 3, replace=False)
        owners[pretended] = draw.choice(case.truth.clients, size=len(pretended))
        judged = findings([change_case(case, truth=replace(case.truth, owners=owners))])
        rate = judged["tpr-at-1pct-fpr"]
        values.append(rate.value)
        held += (rate.low or 0) <= 0.01 <= (rate.high or 0)
        for metric in leaks:
            leaks[metric] += judged[metric].verdict == "leak"
        if len(values) % 20 == 0:
            print(json.dumps({"runs": len(values), "held": held, "leaks": leaks}), file=sys.stderr, flush=True)
    interval = clopper_pearson(held, NULL_RUNS)
    print(json.dumps({"runs": NULL_RUNS, "1 % held by": held, "interval": interval, "leaks": leaks}))
    print(json.dumps({"mean": float(np.mean(values)), "sd": float(np.std(values))}))


def private() -> None:
    """DP-SGD at ε = 1 for the whole run."""
    above, lows = 0, []
    changes = ("defence=dp-sgd", "dp-epsilon=1", "dp-clip=1", "auxiliary=0", "nulls=1100", "rounds=2", "local-epochs=2")
    for case in cases(changes, iter(range(PRIVATE_RUNS)), shadows=0):
        judged = findings([case])["epsilon-implied"]
        declared = judged.baselines["declared ε"]
        above += (judged.low or 0) > declared
        lows.append(judged.low or 0)
    shown = {"runs": PRIVATE_RUNS, "above": above, "declared": declared, "largest": max(lows)}
    print(json.dumps({**shown, "interval": clopper_pearson(above, PRIVATE_RUNS)}))


def speed() -> None:
    """Time and memory of one attack on random models."""
    model = ModelKnowledge(spec="sia-cnn", input_shape=(1, 28, 28), classes=10)
    state = {name: value.numpy() for name, value in model.build().state_dict().items()}
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as scratch:
        writer = RecordWriter(Path(scratch))
        for number in range(1, 21):
            replies = []
            for client in range(10):
                arrays = {name: value + draw.normal(0, 0.01, value.shape).astype("f4") for name, value in state.items()}
                replies.append(Reply(str(client), "ok", arrays, 10))
            writer.write(Exchange(number, state, replies))
        writer.close()
        x, y = draw.normal(size=(2000, 1, 28, 28)).astype(np.float32), draw.integers(10, size=2000)
        started, worked = time.perf_counter(), time.process_time()
        ATTACKS["membership"].run(Record(Path(scratch)), Knowledge(model=model, targets=Targets(x, y)), device="cpu")
        taken = {"seconds": time.perf_counter() - started, "processor": time.process_time() - worked}
    print(json.dumps({**taken, "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}))


def main() -> None:
    """Run what the first word names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="speed", choices=("compare", "null", "private", "speed"))
    parser.add_argument("settings", nargs="*", metavar="SETTING", help=f"of compare: {', '.join(SETTINGS)} (all)")
    parser.add_argument("--mnist", default="", metavar="FILE", help="where mnist10k.npz is; left out without it")
    asked = parser.parse_args()
    unknown = {*asked.settings} - {*SETTINGS}
    if unknown or (asked.settings and asked.what != "compare"):
        parser.error(f"unknown {', '.join(unknown) or 'setting'}: compare takes {', '.join(SETTINGS)}")
    logging.getLogger("flwr").setLevel(logging.WARNING)
    if asked.what == "compare":
        usual = [name for name in SETTINGS if asked.mnist or name != "mnist10k"]
        compare(asked.settings or usual, asked.mnist)
    else:
        {"null": null, "private": private, "speed": speed}[asked.what]()


if __name__ == "__main__":
    main()
