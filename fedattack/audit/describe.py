"""Facts of a run as a whole, which the report shows beside the findings: what ``run.json`` holds."""

import hashlib
import json
import math
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from operator import attrgetter
from statistics import fmean
from typing import Any

from fedattack.attacks import ATTACKS
from fedattack.attacks.base import KNOWS_ARCHITECTURE, KNOWS_MODEL, KNOWS_NOTHING
from fedattack.attacks.needs import READS_MODELS
from fedattack.attacks.registry import threat_of
from fedattack.attacks.told_labels import list_told_labels
from fedattack.audit.finding import list_words
from fedattack.audit.isolation import ISOLATING
from fedattack.audit.judge import judge_of
from fedattack.audit.opened import Run
from fedattack.audit.quality import Quality
from fedattack.audit.truth import Privacy, Truth
from fedattack.base.errors import short
from fedattack.base.version import __version__
from fedattack.defences.guarantee import GUARANTEES, list_hazards
from fedattack.record import Record
from fedattack.record.format import PROTOCOLS, RUN
from fedattack.record.project import ALTERED

_PACKAGES = ("flwr", "torch", "numpy", "scikit-learn", "opacus", "ray", "safetensors")

_VIEWS = {
    "individual": (
        "every client's reply by itself: {reply}, its example count, its metrics",
        "the clients' examples, and what a client computes before it replies",
    ),
    "aggregate": (
        "sums of the clients' replies, who took part, and what secure aggregation lets through in plaintext",
        "any single client's model or update",
    ),
}
_ITS_APP = "the clients' own app, whose code it runs to compute the losses of examples"
_ITS_GRADIENTS = "what arrays are to the examples, by the gradients that the clients' own app gives"
_SERVERS = {
    "passive": "passive",
    "isolating": ISOLATING,
    "inconsistent": "active: it sends all but one client a model that does not learn, so the sum is only that "
    "client's update",
    "imprint": "active: it sends first-layer weights that let it recover examples from the replies",
    "fishing": "active: it sends last-layer weights with which only examples of one class move the other weights",
    "canary": "active: it sends first-layer weights with which only one target record moves each neuron",
}
_AGGREGATIONS = {
    "secagg+": "The sums are what Flower's SecAgg+ protocol unmasked for the server.",
    "projection": "The sums are computed from the clients' replies; no cryptography was run, and single replies were "
    "not kept.",
}


def setting_of(study: Mapping[str, Any], runs: Sequence[Run]) -> dict[str, Any]:
    """Return what was run: the preset's settings, or what the record tells of itself."""
    record = runs[0].record
    setting: dict[str, Any] = {}
    # Facts may hold lists and objects of any making; settings are plain values alone.
    for name, fact in record.facts.items():
        if name != RUN and isinstance(fact, str | int | float | bool):
            setting[name] = fact
    if "preset" in study:
        setting["preset"] = study["preset"]
    for name, value in study.get("settings", {}).items():
        # An empty setting stands for its default.
        if value != "":
            setting[name] = value
    # Where nothing was recorded, nobody knows how many there are.
    if nodes := _list_nodes(record):
        setting.setdefault("clients", len(nodes))
    setting.setdefault("rounds", len(record))
    return setting


def _list_nodes(record: Record) -> set[str]:
    """Return the nodes that took part in training; where nothing is trained, those that got or answered messages."""
    nodes = {*record.nodes}
    if not len(record):
        for others in record.others:
            nodes.update(others.nodes)
    return nodes


def provenance_of(study: Mapping[str, Any], runs: Sequence[Run], setting: Mapping[str, Any]) -> dict[str, Any]:
    """Return where the numbers come from: versions, seeds, hashes of setting, records and data, commands."""
    first, last = runs[0].record, runs[-1].record
    # Sorted keys: the same settings give the same hash, whatever order the preset has.
    config = json.dumps(setting, sort_keys=True).encode()
    provenance: dict[str, Any] = {
        "fedattack": __version__,
        **dict(zip(_PACKAGES, map(version, _PACKAGES), strict=True)),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "seeds": [],
        "config_sha256": hashlib.sha256(config).hexdigest(),
        "record_sha256": [],
        "signed_by": [],
        "started": str(study.get("started", first.manifest["started"])),
        "finished": str(last.manifest["ended"]),
        "commands": list(study.get("commands", [])),
        "runtime": str(study.get("runtime", "elsewhere")),
    }
    data = set()
    for run in runs:
        provenance["seeds"].append(run.seed)
        provenance["record_sha256"].append(_fingerprint(run.record))
        provenance["signed_by"].append(run.record.signer or "nobody")
        if run.truth is not None and run.truth.data:
            data.add(run.truth.data)
    if data:
        provenance["data_sha256"] = sorted(data)
    return provenance


def _fingerprint(record: Record) -> str:
    """Hash the index, which holds the hash of every round."""
    digest = hashlib.sha256()
    # xxh3 of each round's file stands in the index; SHA-256 over all of these changes with any of them.
    for round_ in record:
        digest.update(round_.file.xxh3.encode())
    return digest.hexdigest()


def _without_model(known: str) -> str:
    """Return what stands for a piece of knowledge where the clients' own app is run in the place of a model."""
    if known == KNOWS_MODEL:
        return _ITS_APP
    # What reads single layers finds them by gradients.
    if known.startswith(KNOWS_ARCHITECTURE):
        return _ITS_GRADIENTS
    return known


def threat_model_of(runs: Sequence[Run]) -> dict[str, Any]:
    """Say what this server is, what it sees and does not see, and what it is assumed to know."""
    record, knowledge = runs[0].record, runs[0].knowledge
    sees, hidden = _VIEWS[record.view]
    knows: list[str] = []
    # Attacks are the same for all seeds, so that the first one stands for all.
    for attack in runs[0].scores:
        knows += ATTACKS[attack].knows
    if knowledge.answers is not None and knowledge.model is None:
        # The server runs the clients' own app instead of a model of its own.
        knows = [_without_model(known) for known in knows]
    knows = _join_known(knows)
    if knowledge.prior == "examples":
        knows.append("that a client with more examples is a likelier source, from the counts sent in plaintext")
    if knowledge.sends is not None and knowledge.sends.factors is not None:
        knows.append("that clients send differences, and the factor that each client multiplies them by")
    if knowledge.public is not None:
        knows.append("the public records that clients predict on; the architecture is that of its own students")
    return {
        "server": _SERVERS[record.server],
        "view": record.view,
        "sees": sees.format(reply=PROTOCOLS[record.protocol].reply),
        "does_not_see": hidden,
        "knows": knows,
        "not_asked": _list_not_asked(record, runs[0].scores),
    }


def _join_known(known: Sequence[str]) -> list[str]:
    """Return what several attacks are assumed to know, each once, without what a longer entry says as well."""
    kept = []
    for text in _once(known):
        # One attack that needs nothing says nothing of what the others know.
        is_said = any(other.startswith((f"{text} and ", f"{text},", f"{text}:")) for other in known)
        if not is_said and not text.startswith(KNOWS_NOTHING):
            kept.append(text)
    return kept


def _list_not_asked(record: Record, attacks: Iterable[str]) -> list[str]:
    """Name who else may attack such a run, and was not asked about."""
    others = ["who gets the trained model, or may query it", "servers and clients that share what they see"]
    if not any(ATTACKS[attack].asks_peers for attack in attacks):
        others.insert(0, "clients, which see the models that they receive")
    if record.server == "passive":
        others.insert(0, "a server that departs from the protocol")
    return others


RECORD_ALONE = "the record alone"
"""By which means an attack asks that needs to know of no model."""


def means_of(runs: Sequence[Run], losses: str = "") -> list[dict[str, Any]]:
    """Say of each attack what it answers, by which means, what it is assumed to know, and what it took.

    ``losses`` names what gave losses, where an app was audited. What it took is the mean over the seeds.
    """
    means = []
    for name in runs[0].scores:
        question, mean = ATTACKS[name].title, None
        if threat := threat_of(name):
            question = threat.question
        seconds = [run.scores[name].seconds for run in runs]
        if all(seconds):
            mean = round(fmean(seconds), 2)
        knows = list(ATTACKS[name].knows)
        means.append({"attack": name, "question": question, "by": _by(name, losses), "knows": knows, "seconds": mean})
    return means


def _by(name: str, losses: str) -> str:
    """Say by which means an attack asks: what gives it losses or gradients, or the record alone."""
    if not READS_MODELS & {*ATTACKS[name].needs.knowledge}:
        return RECORD_ALONE
    return losses or "a model that the attacker builds"


def observed_of(runs: Sequence[Run]) -> dict[str, Any]:
    """Count what the server observed in rounds, and name what came in plaintext in any reply."""
    rounds = 0
    status: Counter[str] = Counter()
    # A dict without values keeps the order in which names were first seen, as a set does not.
    plaintext: dict[str, None] = {}
    beside: Counter[str] = Counter()
    for run in runs:
        rounds += len(run.record)
        for round_ in run.record:
            # Rounds hold what trainings brought; evaluations and queries come below.
            for observation in round_.observations:
                status[observation.status] += 1
                plaintext |= dict.fromkeys(observation.plaintext)
        for others in run.record.others:
            if others.way == "reply":
                plaintext |= dict.fromkeys([*others.metrics, *others.arrays])
                beside[others.type] += len(others.nodes)
        # What is named in the record, without its content.
        for entry in run.record.unrecorded:
            if entry["way"] == "reply":
                names = [array["name"] for array in entry["arrays"]]
                plaintext |= dict.fromkeys([*entry["metrics"], *names])
                beside[entry["type"]] += entry["messages"]
    return {
        "rounds": rounds,
        "replies": status["ok"],
        "failed": status["failed"],
        "missing": status["missing"],
        "late": status["late"],
        **{f"replies to {short(type_, 40)}": count for type_, count in beside.items()},
        "in_plaintext": list(plaintext),
    }


def notes_of(runs: Sequence[Run]) -> list[str]:
    """List what a reader of the report must know: of sums, data, attacks, records, and nodes that were mixed up."""
    # The same for all seeds, so that they are said once; notes on single seeds follow with their label.
    notes = _once(_notes_of_aggregation(runs[0].record) + _notes_of_truths(runs) + _notes_of_attacks(runs))
    remarks: list[str] = []
    for run in runs:
        remarks += run.record.remarks
    notes += _once(remarks)
    for run in runs:
        notes += _notes_of_record(run)
    notes += _once(list(map(_describe_unbound, runs)))
    notes += _notes_of_canaries(runs[0])
    notes += list_told_labels(runs[0].sent)
    for run in runs:
        if run.truth is not None and _are_exchanged(run.record, run.truth):
            notes.append(
                f"{run.part.label}: the nodes sent the example counts of the truth, but those of other clients; are "
                "clients mixed up in truth/nodes?"
            )
    return list(filter(None, notes))


def _describe_unbound(run: Run) -> str:
    """Say what does not state of which record it is; nothing if all does."""
    unbound = [f"the scores of {name}" for name, scores in run.scores.items() if scores.record is None]
    if unbound and not run.knowledge.record:
        unbound.append("the knowledge")
    if run.truth is not None and not run.truth.record:
        unbound.append("the truth")
    if not unbound:
        return ""
    return (
        f"nothing ties {list_words(unbound, 'and')} to this record: an earlier version of fedattack or a person wrote "
        "it; if it belongs to another record, nobody can tell"
    )


def _once(texts: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _notes_of_aggregation(record: Record) -> list[str]:
    by = (record.manifest["aggregation"] or {}).get("by")
    return [text for name, text in _AGGREGATIONS.items() if name == by]


def _notes_of_truths(runs: Sequence[Run]) -> list[str]:
    notes: list[str] = []
    for run in runs:
        if run.truth is not None:
            notes += _label_notes(run, run.truth.notes)
    return notes


def _notes_of_attacks(runs: Sequence[Run]) -> list[str]:
    notes: list[str] = []
    for attack in runs[0].scores:
        judge = judge_of(attack)
        if judge is not None:
            notes += judge.notes
        for run in runs:
            notes += _label_notes(run, run.scores[attack].notes)
    return notes


def _notes_of_canaries(run: Run) -> list[str]:
    count = len(run.knowledge.canaries)
    if not count:
        return []
    left = "what attacks read, chance, counts of replies, and the privacy spent per client"
    if run.record.view == "aggregate":
        left = "the privacy spent per client, but they are in the sums that the server saw"
    return [
        f"{count} canaries took part: the auditor's own clients, which hold no data and measure ε. They are left out "
        f"of {left}. The trained model contains what they sent"
    ]


def _notes_of_record(run: Run) -> list[str]:
    record, notes = run.record, []
    if ALTERED in record.facts:
        notes.append(
            f"the record is an altered copy ({short(str(record.facts[ALTERED]), 60)}): the server's models are those "
            "of the original run, in which nobody trained this way"
        )
    if record.status == "cut short":
        notes.append(f"the recording was cut short: {record.manifest['error']}")
    elif record.status == "open":
        notes.append(f"the run has not ended, or is still running; {len(record)} rounds are used")
    if record.silence:
        notes.append(record.silence)
    notes += record.gaps
    return _label_notes(run, notes)


def list_damage(runs: Sequence[Run]) -> list[str]:
    """List what of the records is damaged, so that nothing that was found speaks of it."""
    lines: list[str] = []
    for run in runs:
        lines += _label_notes(run, [f"left out as damaged: {damage}" for damage in run.record.damage])
    return lines


def _label_notes(run: Run, notes: Iterable[str]) -> list[str]:
    """Say before each note what it is about."""
    return [f"{run.part.label}: {note}" for note in notes]


def _are_exchanged(record: Record, truth: Truth) -> bool:
    """Say whether the example counts that nodes sent fit the truth's, but in another order."""
    examples = dict(zip(truth.clients, truth.counts.sum(axis=1).tolist(), strict=True))
    expected, sent = [], []
    # The first round alone: a node keeps its examples from round to round.
    for round_ in record.rounds[:1]:
        for observation in round_.observations:
            if observation.node in truth.nodes:
                expected.append(examples.get(truth.nodes[observation.node]))
                sent.append(observation.num_examples)
    # The same counts, at other nodes: the truth's node files were mixed up, or clients renamed.
    return expected != sent and Counter(expected) == Counter(sent)


def privacy_of(guarantees: Sequence[Privacy], plaintext: Sequence[str]) -> dict[str, Any]:
    """Return what the clients of each seed guarantee, from the least to the most over all of them."""
    first = guarantees[0]
    return {
        **GUARANTEES[first.mechanism],
        "clip": first.clip,
        "delta": first.delta,
        "rounds": first.rounds,
        "noise": _ends(guarantees, "noise"),
        "epsilon_round": _ends(guarantees, "epsilon_round"),
        "epsilon_run": _ends(guarantees, "epsilon_run"),
        "hazards": [hazard._asdict() for hazard in list_hazards(own_noise=True, plaintext=plaintext)],
    }


def _ends(guarantees: Sequence[Privacy], name: str) -> dict[str, float | None]:
    """Return the least and the largest value of all seeds; ``None`` stands for no guarantee."""
    values: list[float] = []
    for guarantee in guarantees:
        values += getattr(guarantee, name)
    ends: dict[str, float | None] = {"low": min(values), "high": max(values)}
    for end, value in ends.items():
        # JSON has no infinity.
        if value == math.inf:
            ends[end] = None
    return ends


def curves_of(runs: Sequence[Run], quality: Sequence[Quality], trained: Sequence[float | None]) -> dict[str, Any]:
    """Return the curves of the run: accuracy, loss and overfitting by round, for each seed.

    `trained` is the accuracy on target records that clients hold; ``None`` where it is not known.
    """
    seeds, measure = _seed_names(runs), quality[0].measure
    model, unit = "global model", ""
    if any(map(attrgetter("local"), quality)):
        model = "mean of the local models"
    if measure != "accuracy":
        unit = f", as {measure}"
    curves: dict[str, Any] = {}
    for name, rounds_name, title in (
        ("accuracy", "rounds", f"{model} on the test split{unit}"),
        ("loss", "rounds", "global model on the test split, in the clients' own loss"),
        (
            "overfitting",
            "overfitting_rounds",
            f"local models: {measure} on own training examples minus {measure} on the test split",
        ),
    ):
        # Seeds may have stopped early; curves hold the rounds that all have.
        rounds = min(map(attrgetter(rounds_name), quality), key=len)
        values = list(map(attrgetter(name), quality))
        if rounds and (name == "accuracy" or _has_values(values)):
            curves[name] = _curve(title, rounds, seeds, values)
    if "accuracy" in curves:
        curves["accuracy"]["measure"] = measure
    if _has_values([trained]):
        last = runs[0].record.rounds[-1].number
        title = "global model on the target records that clients hold"
        curves["train_accuracy"] = _curve(title, [last], seeds, [[accuracy] for accuracy in trained])
    return curves


def _seed_names(runs: Sequence[Run]) -> list[str]:
    """Name each curve by its seed, and by its part of the folder, too, where a seed occurs twice."""
    seeds = list(map(str, map(attrgetter("seed"), runs)))
    if len(set(seeds)) == len(seeds):
        return seeds
    return [f"{run.seed} ({run.part.name})" for run in runs]


def _curve(
    what: str, rounds: Sequence[int], seeds: Sequence[str], values: Sequence[Sequence[float | None]]
) -> dict[str, Any]:
    """Make a curve of the rounds that all seeds have."""
    by_seed = {}
    for seed, of_seed in zip(seeds, values, strict=True):
        by_seed[seed] = list(of_seed[: len(rounds)])
    return {"rounds": list(rounds), "seeds": by_seed, "what": what}


def _has_values(values: Sequence[Sequence[float | None]]) -> bool:
    return any(value is not None for of_seed in values for value in of_seed)
