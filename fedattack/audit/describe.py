"""Facts of a run as a whole, which the report shows beside the findings: what ``run.json`` holds."""

import hashlib
import importlib.metadata
import json
import math
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fedattack.audit.evidence import Evidence
from fedattack.audit.isolation import ISOLATING
from fedattack.audit.judge import judge_of
from fedattack.audit.quality import Quality
from fedattack.audit.truth import Privacy, Truth
from fedattack.defences.guarantee import GUARANTEES
from fedattack.record import Record
from fedattack.record.format import PROTOCOLS
from fedattack.threats import ATTACKS

_PACKAGES = ("fedattack", "flwr", "torch", "numpy", "scikit-learn", "opacus", "ray", "safetensors")

_VIEWS = {
    "individual": (
        "every client's reply by itself: {reply}, its example count, its metrics",
        "the clients' records, and what a client computes before it replies",
    ),
    "aggregate": (
        "sums of the clients' replies, who took part, and what secure aggregation lets through in plaintext",
        "any single client's model or update",
    ),
}
_SERVERS = {"passive": "passive", "isolating": ISOLATING}
_ACTIVE = {"isolating": " (active server)"}
_AGGREGATIONS = {
    "secagg+": "The sums are what Flower's SecAgg+ protocol unmasked for the server.",
    "projection": "The sums are computed from the clients' replies; no cryptography was run, and single replies were "
    "not kept.",
}


def title_of(folder_name: str, study: Mapping[str, Any], evidence: Sequence[Evidence]) -> str:
    """Return the run's title, which says whether the server was active."""
    title: str = study.get("title", f"Audit of {folder_name}")
    return title + _ACTIVE.get(evidence[0].record.server, "")


def setting_of(study: Mapping[str, Any], evidence: Sequence[Evidence]) -> dict[str, Any]:
    """Return what was run: the preset's settings, or what the record tells of itself."""
    record = evidence[0].record
    setting: dict[str, Any] = {"preset": study["preset"]} if "preset" in study else {}
    setting |= {key: value for key, value in study.get("settings", {}).items() if value != ""}
    facts = {key: value for key, value in record.facts.items() if isinstance(value, str | int | float | bool)}
    setting = facts | setting
    setting.setdefault("clients", len(record.nodes))
    setting.setdefault("rounds", len(record))
    return setting


def provenance_of(study: Mapping[str, Any], evidence: Sequence[Evidence], setting: Mapping[str, Any]) -> dict[str, Any]:
    """Return where the numbers come from: versions, seeds, hashes of setting, records and data, commands."""
    records = [seed.record for seed in evidence]
    config = json.dumps(setting, sort_keys=True).encode()
    provenance: dict[str, Any] = {name: importlib.metadata.version(name) for name in _PACKAGES}
    provenance |= {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "seeds": [record.seed for record in records],
        "config_sha256": hashlib.sha256(config).hexdigest(),
        "record_sha256": [_fingerprint(record) for record in records],
        "signed_by": [record.signer or "nobody" for record in records],
        "started": str(study.get("started", records[0].manifest["started"])),
        "finished": str(records[-1].manifest["ended"]),
        "commands": list(study.get("commands", [])),
        "runtime": str(study.get("runtime", "elsewhere")),
    }
    data = sorted({seed.truth.data for seed in evidence if seed.truth is not None and seed.truth.data})
    return provenance | ({"data_sha256": data} if data else {})


def _fingerprint(record: Record) -> str:
    """Hash the index, which holds the hash of every round."""
    return hashlib.sha256(b"".join(item.file.xxh3.encode() for item in record)).hexdigest()


def threat_model_of(evidence: Sequence[Evidence]) -> dict[str, Any]:
    """Say what this server is, what it sees and does not see, and what it is assumed to know."""
    record, knowledge = evidence[0].record, evidence[0].knowledge
    sees, hidden = _VIEWS[record.view]
    knows = list(dict.fromkeys(piece for attack in evidence[0].scores for piece in ATTACKS[attack].knows))
    if knowledge.prior == "examples":
        knows.append("that a client with more examples is a likelier source, from the counts sent in plaintext")
    if knowledge.public is not None:
        knows.append("the public records that clients predict on; the architecture is that of its own students")
    return {
        "server": _SERVERS[record.server],
        "view": record.view,
        "sees": sees.format(reply=PROTOCOLS[record.protocol].reply),
        "does_not_see": hidden,
        "knows": knows,
    }


def observed_of(evidence: Sequence[Evidence]) -> dict[str, Any]:
    """Count what the server observed, and name what came in plaintext."""
    records = [seed.record for seed in evidence]
    status: Counter[str] = Counter()
    plaintext: dict[str, None] = {}
    for record in records:
        for round_ in record:
            for observation in round_.observations:
                status[observation.status] += 1
                if observation.num_examples is not None:
                    plaintext["num-examples"] = None
                plaintext |= dict.fromkeys(observation.metrics)
    return {
        "rounds": sum(len(record) for record in records),
        "replies": status["ok"],
        "failed": status["failed"],
        "missing": status["missing"],
        "late": status["late"],
        "in_plaintext": list(plaintext),
    }


def notes_of(evidence: Sequence[Evidence]) -> list[str]:
    """List what a reader of the report must know: of sums, data, attacks, records, and nodes that were mixed up."""
    aggregation = evidence[0].record.manifest["aggregation"] or {}
    notes = [_AGGREGATIONS[aggregation["by"]]] if aggregation.get("by") in _AGGREGATIONS else []
    for seed in evidence:
        if seed.truth is not None:
            notes += [f"{seed.part.label}: {note}" for note in seed.truth.notes]
    for attack in evidence[0].scores:
        judge = judge_of(attack)
        notes += [] if judge is None else judge.notes
        for seed in evidence:
            notes += [f"{seed.part.label}: {note}" for note in seed.scores[attack].notes]
    # Each of these is said once.
    notes = list(dict.fromkeys(notes))
    notes += list(dict.fromkeys(remark for seed in evidence for remark in seed.record.remarks))
    for seed in evidence:
        notes += _notes_of_record(seed)
    for seed in evidence:
        if seed.truth is not None and _are_exchanged(seed.record, seed.truth):
            notes.append(
                f"{seed.part.label}: the nodes sent the example counts that the truth has, but others' than their own; "
                "are clients mixed up in truth/nodes?"
            )
    return notes


def _notes_of_record(seed: Evidence) -> list[str]:
    label, record = seed.part.label, seed.record
    notes = []
    if record.status == "cut short":
        notes.append(f"{label}: the recording was cut short: {record.manifest['error']}")
    elif record.status == "open":
        notes.append(f"{label}: the run did not end, or goes on; {len(record)} rounds are used")
    if record.silence:
        notes.append(f"{label}: {record.silence}")
    return notes + [f"{label}: left out as damaged: {damage}" for damage in record.damage]


def _are_exchanged(record: Record, truth: Truth) -> bool:
    """Say whether the example counts that nodes sent fit the truth's, but in another order."""
    held = dict(zip(truth.clients, truth.counts.sum(axis=1).tolist(), strict=True))
    sent = {seen.node: seen.num_examples for round_ in record.rounds[:1] for seen in round_.observations}
    nodes = [node for node in sent if node in truth.nodes]
    expected, got = [held.get(truth.nodes[node]) for node in nodes], [sent[node] for node in nodes]
    return expected != got and Counter(expected) == Counter(got)


def privacy_of(guarantees: Sequence[Privacy]) -> dict[str, Any]:
    """Return what the clients of each seed guarantee, from the least to the most over all of them."""
    first = guarantees[0]
    ends = {
        name: _ends([value for guarantee in guarantees for value in getattr(guarantee, name)])
        for name in ("noise", "epsilon_round", "epsilon_run")
    }
    return {
        **GUARANTEES[first.mechanism],
        "clip": first.clip,
        "delta": first.delta,
        "rounds": first.rounds,
        **ends,
    }


def _ends(values: Sequence[float]) -> dict[str, float | None]:
    """Return the least and the largest value; ``None`` stands for no guarantee."""
    return {"low": _finite(min(values)), "high": _finite(max(values))}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def curves_of(
    evidence: Sequence[Evidence], quality: Sequence[Quality], trained: Sequence[float | None]
) -> dict[str, Any]:
    """Return the curves of the run: accuracy, loss and overfitting by round, for each seed.

    Parameters
    ----------
    evidence, quality
        One for each seed.
    trained
        For each seed the accuracy on target records that clients hold; ``None`` where it is not known.
    """
    measure = quality[0].measure
    seeds = [str(seed.seed) for seed in evidence]
    rounds = min((item.rounds for item in quality), key=len)
    curves: dict[str, Any] = {}

    def curve(what: str, rounds: Sequence[int], values: Sequence[Sequence[Any]]) -> dict[str, Any]:
        cut = [list(of_seed[: len(rounds)]) for of_seed in values]
        return {"rounds": list(rounds), "seeds": dict(zip(seeds, cut, strict=True)), "what": what}

    if rounds:
        whose = "mean of the local models" if any(item.local for item in quality) else "global model"
        unit = "" if measure == "accuracy" else f", as {measure}"
        curves["accuracy"] = curve(f"{whose} on the test split{unit}", rounds, [item.accuracy for item in quality])
        curves["accuracy"]["measure"] = measure
    if any(value is not None for item in quality for value in item.loss):
        what = "global model on the test split, in the clients' own loss"
        curves["loss"] = curve(what, rounds, [item.loss for item in quality])
    if any(value is not None for value in trained):
        last = evidence[0].record.rounds[-1].number
        what = "global model on the target records that clients hold"
        curves["train_accuracy"] = curve(what, [last], [[value] for value in trained])
    if any(value is not None for item in quality for value in item.overfitting):
        steps = min((item.overfitting_rounds for item in quality), key=len)
        what = f"local models: {measure} on own training records minus {measure} on the test split"
        if steps:
            curves["overfitting"] = curve(what, steps, [item.overfitting for item in quality])
    return curves
