"""What servers gain that depart from the protocol, what defences leave of it, and what clients notice.

``python -m tests.benchmarks.departures gain`` holds each departure beside the honest server of the same run and seed.
``defences`` asks the same under defences. ``check`` counts how often clients notice a departure in its first round, of
200 models, and how often they notice something of honest servers: in runs of all presets that load here,
or of a preset or a run folder that is named.

All is in this process, without Ray; SecAgg+ is the real one. Names after the part, such as ``gain imprint``, narrow it
down.
"""

import logging
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks import ATTACKS, read_knowledge
from fedattack.audit.judging import judge_attacks
from fedattack.audit.opened import open_runs
from fedattack.audit.quality import measure_quality
from fedattack.base.errors import FedAttackError
from fedattack.defences.checked import Last, check_moved, check_received, differences, norm_of
from fedattack.learning import LocalSGD, build_model
from fedattack.learning.departures import CanaryWeights, FirstLayers, Fishing, Imprint, unlearning_model
from fedattack.record import Record, records_in
from fedattack.record.folder import RunFolder
from fedattack.runs.presets import preset_names
from tests.worlds.reference import run_preset

Array = NDArray[Any]

LOKI = [
    *("secagg=true", "framework=fedavg", "clients=20", "records-per-client=64", "hidden=6400", "lr=1", "auxiliary=100"),
    *("nulls=200", "rounds=1", "departures=0"),
]
GROUP = ["clients=20", "rounds=2", "secagg=true", "server=inconsistent"]
GAINS = {
    "imprint": ("imprint", "exact", ["rounds=2"], ["server=passive", "departures=0"]),
    "imprint-sums": ("imprint", "exact", LOKI, ["server=passive"]),
    "fishing": ("fishing", "exact", ["rounds=2"], ["server=passive", "departures=0"]),
    "inconsistent": ("inconsistent", "membership,sia", [], ["secagg=false", "server=passive"]),
    "inconsistent-group": ("private-attribute", "private-attribute", GROUP, ["secagg=false", "server=passive"]),
    "canary": ("canary", "membership-canary", [], ["server=canary", "secagg=false", "rounds=1"]),
}
DEFENCES = {
    "nothing": [],
    "two local steps": ["framework=fedavg", "batch-size=32"],
    "four local steps": ["framework=fedavg", "batch-size=16"],
    "16 local steps": ["framework=fedavg", "batch-size=4"],
    "batch of 256": ["records-per-client=256"],
    "clipping to 1, noise of 1e-5": ["defence=dp-gaussian", "defence-strength=0.00001"],
    "clipping to 1, noise of 1e-3": ["defence=dp-gaussian", "defence-strength=0.001"],
    "largest tenth of entries": ["defence=sparsify", "defence-strength=0.9"],
    "the check": ["check-model=refuse"],
}


def judged(preset: str, attacks: str, changes: Sequence[str], seed: int) -> str:
    """Run, attack and judge; returns the findings that matter in one line."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            record = run_preset(preset, changes, seed, folder)
            knowledge = read_knowledge(folder / "knowledge")
            for attack in map(ATTACKS.get, attacks.split(",")):
                options = {"draws": "1000"} if attack.name == "exact" else {}
                attack.with_options(options).run(record, knowledge, device="cpu").save(
                    folder / "scores" / f"{attack.name}.npz"
                )
            evidence = open_runs(RunFolder(folder))
        except FedAttackError as cause:
            return str(cause)[:100]
        found = {item.name: item for item in judge_attacks(evidence, setting={}, provenance={})}
        seen = evidence[0]
        quality = measure_quality(seen.record, seen.knowledge, seen.truth, device="cpu").accuracy[-1]
        wanted = ("exact.recovered", "exact.precision", "exact.clients", "exact.psnr", "sia.asr")
        words = [f"{key} {item.value:.3f} ({item.verdict})" for key, item in found.items() if key in wanted]
        endings = ("1pct-fpr", "stru-nn", "unkwn-nn", "svm", "random-forest")
        words += [f"{key} {item.value:.3f} ({item.verdict})" for key, item in found.items() if key.endswith(endings)]
        return f"{', '.join(words)}; accuracy {quality:.3f}; {len(record)} exchanges"


def gain(names: Sequence[str]) -> None:
    """Print each departure beside the honest server."""
    for name in names or GAINS:
        preset, attacks, changes, honest = GAINS[name]
        for seed in range(3 if name in ("imprint", "fishing") else 1):
            print(name, seed, judged(preset, attacks, changes, seed), flush=True)
            print(name, seed, "honest:", judged(preset, attacks, [*changes, *honest], seed), flush=True)


def defences(names: Sequence[str]) -> None:
    """Print what defences leave of what imprinting and fishing gain."""
    for server in names or ("imprint", "fishing"):
        for name, changes in DEFENCES.items():
            print(server, name, judged(server, "exact", ["rounds=1", "clients=4", *changes], 0), flush=True)


def list_honest(record: Record) -> Iterator[list[str]]:
    """Yield what a client notices in each round of a record of an honest server."""
    lasts: dict[str, Last] = {}
    for item in record:
        for seen in item.observations:
            if seen.status != "ok" or seen.received is None:
                continue
            received = [*seen.received.values()]
            if record.protocol == "fedmd":
                continue
            returned = [*(seen.arrays or {}).values()]
            moved = returned if record.protocol == "fedsgd" else differences(received, returned)
            found = check_received(received, lasts.get(seen.node))
            if returned:
                found += check_moved(moved, seen.count or 0, lasts.get(seen.node))
            lasts[seen.node] = Last(received, norm_of(moved))
            yield found


def check(names: Sequence[str]) -> None:
    """Print how often departures are noticed, and how often honest servers seem to depart."""
    for server in ("imprint", "imprint by client", "fishing", "inconsistent", "canary"):
        noticed = 0
        for seed in range(200):
            name = ("mlp", "sia-mlp", "fedmd-mlp-2")[seed % 3]
            model = build_model(name, input_shape=(64,), classes=10, hidden=200, seed=seed)
            arrays = {key: value.detach().numpy() for key, value in model.state_dict().items()}
            keys = list(arrays)
            if server == "inconsistent":
                sent = unlearning_model(model, (64,), 10, LocalSGD(1, 8, 0.1), "cross-entropy")
            elif server == "fishing":
                sent = Fishing(*keys[-2:], first=seed % 10)(arrays, 1)
            elif server == "canary":
                drawn = np.random.default_rng(seed).random((300, 64), dtype=np.float32)
                sent = CanaryWeights(FirstLayers(*keys[:3]), drawn[:200], drawn[200:], seed)(arrays, 1)
            else:
                examples = np.random.default_rng(seed).random((100, 64), dtype=np.float32)
                parts = (seed % 10, 10) if server == "imprint by client" else (0, 1)
                sent = Imprint(FirstLayers(*keys[:3]), examples, seed)(arrays, 1, *parts)
            noticed += bool(check_received([*sent.values()]))
        print(f"{server}: noticed in the first round {noticed} of 200", flush=True)
    rounds = alarms = 0
    for name in names or preset_names():
        for found in list_recorded(name) if Path(name).is_dir() else list_trained(name):
            rounds += 1
            alarms += bool(found)
            if found:
                print(name, found, flush=True)
        print(f"{name}: {alarms} alarms in {rounds} rounds of clients so far", flush=True)


def list_recorded(folder: str) -> Iterator[list[str]]:
    """Yield what clients notice in the records of a run folder."""
    for path in records_in(Path(folder)).values():
        record = Record(path, thinned=True)
        if record.server == "passive" and not record.keep.kinds:
            yield from list_honest(record)


def list_trained(preset: str) -> Iterator[list[str]]:
    """Yield what clients notice in two runs of a preset, in which the server is honest."""
    for seed in range(2):
        with tempfile.TemporaryDirectory() as folder:
            try:
                record = run_preset(preset, ["server=passive", "departures=0", "rounds=8"], seed, Path(folder))
            except FedAttackError as cause:
                print(preset, "left out:", str(cause)[:80], flush=True)
                break
            yield from list_honest(record)


def main() -> None:
    """Run one part."""
    logging.disable(logging.INFO)
    parts = {"gain": gain, "defences": defences, "check": check}
    parts[sys.argv[1]](sys.argv[2:])


if __name__ == "__main__":
    main()
