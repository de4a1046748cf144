"""Audit a run folder: scores and truth in, ``findings.json`` and ``run.json`` out."""

import hashlib
import importlib.metadata
import json
import math
import platform
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedattack.attacks import ATTACKS, Attack, Knowledge, Scores, read_knowledge
from fedattack.attacks.matching import named_for
from fedattack.audit.attribute import BASELINES, AttributeCase, judge_attribute
from fedattack.audit.finding import NOT_APPLICABLE, Finding
from fedattack.audit.inversion import InversionCase, judge_inversion
from fedattack.audit.isolation import ISOLATING, judge_isolation
from fedattack.audit.private_attribute import PrivateCase, judge_private
from fedattack.audit.property import PropertyCase, judge_property
from fedattack.audit.quality import Quality, measure_quality, training_accuracy
from fedattack.audit.source import SourceCase, judge_source
from fedattack.audit.truth import HOLDINGS, Privacy, Truth, read_truth
from fedattack.errors import DataError, RecordError, short
from fedattack.files import write_json, write_sealed
from fedattack.folder import Part, find_parts, read_study
from fedattack.nodes import NODES
from fedattack.record import Record
from fedattack.record.format import Protocol

FINDINGS = "findings.json"
RUN = "run.json"

_PACKAGES = ("fedattack", "flwr", "torch", "numpy", "scikit-learn", "opacus", "ray", "safetensors")

# What a client sends beside its example count and its metrics.
_REPLIES: Mapping[Protocol, str] = {
    "fedavg": "its model",
    "fedsgd": "the average gradient over its records",
    "fedmd": "its predictions on the public records",
}

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

# What ε speaks of; its numbers come from the truth.
_DP_SGD = {
    "name": "DP-SGD",
    "noise_is": "noise multiplier σ",
    "mechanism": "DP-SGD in local training: the gradient of each record is clipped to norm C, and Gaussian noise of "
    "standard deviation σ·C is added to their sum in every step",
    "unit": "one record of one client, there or not, towards a server that sees all that the client sends; how many "
    "records a client has counts as known",
    "not_protected": "what many records of a client have in common, such as its mix of classes, from which an owner "
    "can be guessed as well",
    "accountant": "Rényi orders (Opacus): an upper bound",
    "assumes": "that the server learns neither which records a step was computed on (Poisson sampling) nor the seed of "
    "the noise, which in a simulation follows from the run's own",
}
_LOCAL = {
    "unit": "all records of one client, whatever they are, towards a server that sees all that the client sends; how "
    "many records a client has counts as known",
    "not_protected": "how many records a client has, and in which rounds it takes part",
    "accountant": "Rényi orders (Opacus) for a sensitivity of 2C, composed over the rounds: an upper bound",
    "assumes": "that the server does not learn the seed of the noise, which in a simulation follows from the run's own",
}
_GAUSSIAN = _LOCAL | {
    "noise_is": "standard deviation σ of the noise",
    "mechanism": "DP-Gaussian: the update is clipped to norm C, and Gaussian noise of standard deviation σ is added to "
    "every entry",
}
_PRIVACY: Mapping[str, Mapping[str, str]] = {
    "dp-sgd": _DP_SGD,
    "dp-gaussian": _GAUSSIAN | {"name": "DP-Gaussian"},
    "dp-laplace": _LOCAL
    | {
        "name": "DP-Laplace",
        "noise_is": "scale b of the noise",
        "mechanism": "DP-Laplace: the update is clipped to norm C, and Laplace noise of scale b is added to every "
        "entry",
    },
    "flower-localdp": _GAUSSIAN | {"name": "Flower's LocalDpMod"},
}
_ACTIVE = {"isolating": " (active server)"}
_SERVERS = {"passive": "passive", "isolating": ISOLATING}

_ATTRIBUTE_NOTES = (
    "What counts of attribute inference is the excess over guessing the attribute without any update, from the other "
    "columns and the label. Its null is the same against a shuffled truth; a null run, in which clients train on a "
    "shuffled column, is `--set permute-sensitive=true`.",
)

_NOTES = {
    "aia": _ATTRIBUTE_NOTES,
    "ara": _ATTRIBUTE_NOTES,
    "sia": (
        "The null run deals records that nobody holds to clients at random, so it stays at chance unless something but "
        "the record's content gives the owner away. The null of sia.asr-beyond-labels is the harder one.",
    ),
    "inversion": (
        "A reconstruction is held against guesses without any gradient, too: images of one class resemble each other. "
        "Where the residual of the replay is large, the attack looks at another computation than the client's, "
        "and that it fails says nothing of privacy.",
    ),
    "private-attribute": (
        "The null of private-attribute's findings is the same decisions against a shuffled truth. A static adversary "
        "knows nothing of a defence; an adaptive one trained on updates that it defended itself.",
    ),
    "prolin": (
        "The null of prolin's findings is the same result against a shuffled truth; a null run, in which no client has "
        "the property, is `--set positives=0`.",
        "Clients that were never sampled are unknown: they count neither as right nor as wrong.",
    ),
}

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many steps are done, and of how many."""


def audit_folder(
    folder: Path, *, device: str = "auto", progress: Progress | None = None, trusted: Collection[str] = ()
) -> list[Finding]:
    """Judge every attack that has scores in ``folder``, and write what was found.

    Without the truth, findings are "not applicable": what the attack decided is in its scores, whether that is right
    cannot be known.

    Parameters
    ----------
    folder
        The run folder.
    device
        Where models are evaluated.
    progress
        Told of progress.
    trusted
        What of the folder's import paths and paths may be followed; see :func:`fedattack.attacks.read_knowledge`.

    Raises
    ------
    TrustError
        If models are to be evaluated, and the folder names code for them that is not trusted.
    DataError
        If there are no scores, or the truth is damaged.
    RecordError
        If a record is missing or damaged.
    """
    tell = progress or (lambda what, done, total: None)
    parts = find_parts(folder)
    attacks = [name for name in ATTACKS if all(part.scores(name).exists() for part in parts)]
    if attacks == [BASELINES]:
        raise DataError(
            f"{folder / 'scores'} holds the scores of {BASELINES} alone, which are bars for attacks on attributes; run "
            f"`fedattack attack NAME {folder}` with one of these, too"
        )
    if not attacks:
        raise DataError(
            f"{folder / 'scores'} holds no scores for every record; run `fedattack attack NAME {folder}` first"
        )
    study = read_study(folder)
    # What the study is about comes first.
    attacks = sorted(attacks, key=lambda name: name not in study.get("attacks", ())[:1])
    records = [Record(part.record, skip_damaged=True) for part in parts]
    for record in records:
        if not len(record):
            why = record.damage[0] if record.damage else "no round was recorded"
            raise RecordError(f"{record.path} holds no round that can be read, so that nothing can be judged: {why}")
    truths = [read_truth(part.truth) if (part.truth / HOLDINGS).exists() else None for part in parts]
    knowledge = [read_knowledge(part.knowledge, trusted=trusted) for part in parts]
    for part, known, truth in zip(parts, knowledge, truths, strict=True):
        # Clients note themselves in both, so that neither folder has a checksum of these files.
        if truth is not None and known.nodes and known.nodes != truth.nodes:
            odd = min({*known.nodes.items()} ^ {*truth.nodes.items()})[0]
            raise DataError(
                f"{part.knowledge / NODES} and {part.truth / NODES} do not say the same of node {short(odd, 60)}; put "
                "back the files as their clients wrote them"
            )
    # Without the truth no model is evaluated, and the project that it comes from need not be at hand.
    records = [
        record if truth is None else named_for(record, known.model)
        for record, known, truth in zip(records, knowledge, truths, strict=True)
    ]
    setting = _setting(study, records)
    provenance = _provenance(study, records, setting)
    data = sorted({truth.data for truth in truths if truth is not None and truth.data})
    if data:
        provenance["data_sha256"] = data
    findings: list[Finding] = []
    notes: list[str] = [*_aggregation(records[0])]
    notes += [
        f"{part.label}: {note}"
        for part, truth in zip(parts, truths, strict=True)
        if truth is not None
        for note in truth.notes
    ]
    scores = {name: [ATTACKS[name].load_scores(part.scores(name)) for part in parts] for name in attacks}
    for name, items in scores.items():
        notes += _NOTES.get(name, ())
        notes += [f"{part.label}: {note}" for part, item in zip(parts, items, strict=True) for note in item.notes]
        if name in _JUDGES:
            findings += _judge(name, scores, records, truths, knowledge, setting, provenance)
    if records[0].server == "isolating":
        findings += judge_isolation(
            records,
            knowledge,
            truths,
            setting=setting,
            provenance=provenance,
            device=device,
            progress=lambda done, total: tell("isolated models", done, total),
        )
    judged = [
        (part, record, known, truth)
        for part, record, known, truth in zip(parts, records, knowledge, truths, strict=True)
        if truth is not None and known.asked() == truth.targets
    ]
    quality = [
        measure_quality(
            record,
            known,
            truth,
            device=device,
            progress=lambda done, total, part=part: tell(f"models of {part.label}", done, total),  # type: ignore[misc]
        )
        for part, record, known, truth in judged
    ]
    trained = [training_accuracy(record, known, truth, device=device) for _, record, known, truth in judged]
    run = {
        "title": study.get("title", f"Audit of {folder.name}") + _ACTIVE.get(records[0].server, ""),
        "threat_model": _threat_model(records[0], [ATTACKS[name] for name in attacks], knowledge[0]),
        "setting": setting,
        "provenance": provenance,
        "observed": _observed(records),
        "notes": [*dict.fromkeys(notes), *_record_notes(parts, records), *_exchanged(parts, records, truths)],
    }
    if len(quality) == len(records):
        run |= _curves(records, quality, trained)
    private = [truth.privacy for truth in truths if truth is not None and truth.privacy is not None]
    if len(private) == len(records):
        run["privacy"] = _privacy(private)
    if truths[0] is not None:
        run["holdings"] = {
            "clients": list(truths[0].clients),
            "classes": list(truths[0].classes),
            "counts": truths[0].counts.tolist(),
            "seed": records[0].seed or 0,
        }
    write_json(folder / FINDINGS, [finding.to_dict() for finding in findings])
    run["findings_sha256"] = hashlib.sha256((folder / FINDINGS).read_bytes()).hexdigest()
    write_sealed(folder / RUN, run)
    return findings


def _judge(
    name: str,
    scores: Mapping[str, Sequence[Scores]],
    records: Sequence[Record],
    truths: Sequence[Truth | None],
    knowledge: Sequence[Knowledge],
    setting: dict[str, Any],
    provenance: dict[str, Any],
) -> list[Finding]:
    seeds = [record.seed if record.seed is not None else index for index, record in enumerate(records)]
    judge = _JUDGES[name]
    cases = []
    for index, (seed, truth) in enumerate(zip(seeds, truths, strict=True)):
        item = scores[name][index]
        if truth is None:
            attack = ATTACKS[name]
            return [
                Finding(
                    attack=name,
                    metric=judge.headline,
                    label=attack.title,
                    view=records[0].view,
                    value=None,
                    low=None,
                    high=None,
                    n=0,
                    seeds=seeds,
                    verdict=NOT_APPLICABLE,
                    reason="the truth is not there, so decisions cannot be told right from wrong; they are in scores/",
                    headline=True,
                    setting=setting,
                    provenance=provenance,
                    paper=attack.paper,
                )
            ]
        beside = tuple(scores[other][index] for other in scores if other != name and other in judge.beside)
        if any(each.facts["targets"] != truth.targets for each in (item, *beside)):
            raise DataError(
                f"seed {seed}: the scores of {name} are about other target records than the truth; attack the run with "
                "the targets that its knowledge/ holds, or move truth/ away to see the decisions alone"
            )
        first = name == next(other for other in scores if other in (name, *judge.beside) and other in _JUDGES)
        cases.append(judge.case(_Evidence(seed, item, truth, records[index], knowledge[index], beside, first)))
    return judge.judge(cases, setting=setting, provenance=provenance)


@dataclass(frozen=True)
class _Evidence:
    """All that there is about one seed's attack.

    ``beside`` are the scores of others on the same questions, ``first`` whether none of these is judged before it.
    """

    seed: int
    scores: Scores
    truth: Truth
    record: Record
    knowledge: Knowledge
    beside: tuple[Scores, ...]
    first: bool


@dataclass(frozen=True)
class _Judge:
    """Who judges an attack: how a seed's case is made, the judge, which measure is the headline, and who is beside."""

    case: Callable[[_Evidence], Any]
    judge: Callable[..., list[Finding]]
    headline: str
    beside: tuple[str, ...] = ()


def _attribute_case(given: _Evidence) -> AttributeCase:
    return AttributeCase(**vars(given))


_ON_ATTRIBUTES = ("aia", "ara", BASELINES)


_JUDGES: Mapping[str, _Judge] = {
    "sia": _Judge(lambda given: SourceCase(given.seed, given.scores, given.truth), judge_source, "asr"),
    "prolin": _Judge(
        lambda given: PropertyCase(given.seed, given.scores, given.truth, given.record), judge_property, "f1"
    ),
    "inversion": _Judge(
        lambda given: InversionCase(given.seed, given.scores, given.truth, given.record, given.knowledge),
        judge_inversion,
        "recognised",
    ),
    "private-attribute": _Judge(
        lambda given: PrivateCase(given.seed, given.scores, given.truth), judge_private, "success"
    ),
    "aia": _Judge(_attribute_case, partial(judge_attribute, headline="reconstructed"), "excess", beside=_ON_ATTRIBUTES),
    "ara": _Judge(_attribute_case, judge_attribute, "excess", beside=_ON_ATTRIBUTES),
}


def _aggregation(record: Record) -> list[str]:
    how = record.manifest["aggregation"] or {}
    told = {
        "secagg+": "The sums are what Flower's SecAgg+ protocol unmasked for the server.",
        "projection": "The sums are computed from the clients' replies; no cryptography was run, and single replies "
        "were not kept.",
    }
    return [told[how["by"]]] if how.get("by") in told else []


def _setting(study: Mapping[str, Any], records: Sequence[Record]) -> dict[str, Any]:
    setting: dict[str, Any] = {}
    if "preset" in study:
        setting["preset"] = study["preset"]
    setting |= {key: value for key, value in study.get("settings", {}).items() if value != ""}
    facts = {key: value for key, value in records[0].facts.items() if isinstance(value, str | int | float | bool)}
    setting = facts | setting
    setting.setdefault("clients", len(records[0].nodes))
    setting.setdefault("rounds", len(records[0]))
    return setting


def _provenance(study: Mapping[str, Any], records: Sequence[Record], setting: Mapping[str, Any]) -> dict[str, Any]:
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    config = json.dumps(setting, sort_keys=True).encode()
    return versions | {
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


def _fingerprint(record: Record) -> str:
    """Hash the index, which holds the hash of every round."""
    return hashlib.sha256(b"".join(item.file.xxh3.encode() for item in record)).hexdigest()


def _threat_model(record: Record, attacks: Sequence[Attack], knowledge: Knowledge) -> dict[str, Any]:
    sees, hidden = _VIEWS[record.view]
    knows = list(dict.fromkeys(item for attack in attacks for item in attack.knows))
    if knowledge.prior == "examples":
        knows.append("that a client with more examples is a likelier source, from the counts sent in plaintext")
    if knowledge.public is not None:
        knows.append("the public records that clients predict on; the architecture is that of its own students")
    sees = sees.format(reply=_REPLIES[record.protocol])
    return {
        "server": _SERVERS[record.server],
        "view": record.view,
        "sees": sees,
        "does_not_see": hidden,
        "knows": knows,
    }


def _privacy(of_parts: Sequence[Privacy]) -> dict[str, Any]:
    """Give the extremes over all clients and seeds; ``None`` stands for no guarantee."""

    def ends(values: Iterable[float]) -> dict[str, float | None]:
        found = sorted(values)
        return {name: end if math.isfinite(end) else None for name, end in (("low", found[0]), ("high", found[-1]))}

    one = of_parts[0]
    return {
        **_PRIVACY[one.mechanism],
        "clip": one.clip,
        "delta": one.delta,
        "rounds": one.rounds,
        **{
            name: ends(value for part in of_parts for value in getattr(part, name))
            for name in ("noise", "epsilon_round", "epsilon_run")
        },
    }


def _observed(records: Sequence[Record]) -> dict[str, Any]:
    status: Counter[str] = Counter()
    plaintext: dict[str, None] = {}
    for record in records:
        for item in record:
            for seen in item.observations:
                status[seen.status] += 1
                plaintext |= dict.fromkeys(
                    [*(["num-examples"] if seen.num_examples is not None else []), *seen.metrics]
                )
    return {
        "rounds": sum(len(record) for record in records),
        "replies": status["ok"],
        "failed": status["failed"],
        "missing": status["missing"],
        "late": status["late"],
        "in_plaintext": list(plaintext),
    }


def _exchanged(parts: Sequence[Part], records: Sequence[Record], truths: Sequence[Truth | None]) -> list[str]:
    """Say where clients and nodes may have been mixed up: the example counts fit, but in another order."""
    notes = []
    for part, record, truth in zip(parts, records, truths, strict=True):
        if truth is None:
            continue
        held = dict(zip(truth.clients, truth.counts.sum(axis=1).tolist(), strict=True))
        told = {seen.node: seen.num_examples for item in record.rounds[:1] for seen in item.observations}
        pairs = [(held.get(truth.nodes[node]), told[node]) for node in told if node in truth.nodes]
        if any(mine != theirs for mine, theirs in pairs) and Counter(mine for mine, _ in pairs) == Counter(
            theirs for _, theirs in pairs
        ):
            notes.append(
                f"{part.label}: the nodes sent the example counts that the truth has, but others' than their own; are "
                "clients mixed up in truth/nodes?"
            )
    return notes


def _record_notes(parts: Sequence[Part], records: Sequence[Record]) -> list[str]:
    notes = list(dict.fromkeys(line for record in records for line in record.remarks))
    for part, record in zip(parts, records, strict=True):
        if record.status == "cut short":
            notes.append(f"{part.label}: the recording was cut short: {record.manifest['error']}")
        elif record.status == "open":
            notes.append(f"{part.label}: the run did not end, or goes on; {len(record)} rounds are used")
        if record.silence:
            notes.append(f"{part.label}: {record.silence}")
        notes += [f"{part.label}: left out as damaged: {item}" for item in record.damage]
    return notes


def _curves(records: Sequence[Record], quality: Sequence[Quality], trained: Sequence[float | None]) -> dict[str, Any]:
    names = [str(record.seed if record.seed is not None else index) for index, record in enumerate(records)]
    length = min(len(item.rounds) for item in quality)
    steps = min(len(item.overfitting_rounds) for item in quality)
    measure = quality[0].measure
    curves: dict[str, Any] = {}
    if length:
        curves["accuracy"] = {
            "rounds": quality[0].rounds[:length],
            "seeds": {name: item.accuracy[:length] for name, item in zip(names, quality, strict=True)},
            "what": ("mean of the local models" if any(item.local for item in quality) else "global model")
            + " on the test split"
            + ("" if measure == "accuracy" else f", as {measure}"),
            "measure": measure,
        }
    if any(value is not None for item in quality for value in item.loss):
        curves["loss"] = {
            "rounds": quality[0].rounds[:length],
            "seeds": {name: list(item.loss[:length]) for name, item in zip(names, quality, strict=True)},
            "what": "global model on the test split, in the clients' own loss",
        }
    if any(value is not None for value in trained):
        curves["train_accuracy"] = {
            "rounds": [records[0].rounds[-1].number],
            "seeds": {name: [value] for name, value in zip(names, trained, strict=True)},
            "what": "global model on the target records that clients hold",
        }
    if steps and any(value is not None for item in quality for value in item.overfitting):
        curves["overfitting"] = {
            "rounds": quality[0].overfitting_rounds[:steps],
            "seeds": {name: item.overfitting[:steps] for name, item in zip(names, quality, strict=True)},
            "what": f"local models: {measure} on own training records minus {measure} on the test split",
        }
    return curves
