"""Apps whose models take more than one array: a classifier of texts, and a language model with LoRA adapters.

Their findings are those of a truth written by hand on the same run; the run is what it is without witness and observer.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedattack.apps.auditing import list_trusted
from fedattack.apps.server import WitnessedServerApp
from fedattack.apps.witnessing import witness_of
from fedattack.attacks import ATTACKS, Knowledge, ModelKnowledge, Scores, Targets, read_targets
from fedattack.audit.truth import NOBODY, note_node, write_truth
from fedattack.base.errors import NeedsError
from fedattack.base.structured import fields, pack
from fedattack.learning import LocalSGD
from fedattack.observe import ObservedServerApp
from fedattack.record import Record
from fedattack.record.folder import new_parts, write_study
from fedattack.runs.pipeline import judge_folder
from fedattack.runs.watch import Watch
from fedattack.witness import WitnessedClientApp, sources
from tests.apps.projects import CLIENTS, LORA, TEXTS, Toy, fedattack
from tests.apps.worlds import attack_all, pose_all, write_record
from tests.witness.apps import load, run
from tests.worlds.local_grid import FIRST_NODE

STATED = ("value", "low", "high", "n", "chance", "null", "verdict", "baselines")


@pytest.fixture(autouse=True)
def hooked():
    for package in ("transformers", "peft"):
        pytest.importorskip(package, reason="it is one of the packages that these apps use")
    yield
    sources.remove()


def audited_here(project: Toy, out: Path, monkeypatch) -> tuple[dict, list, set[str]]:
    """Run an app in this process, with and without being watched, and judge it; returns findings, notes, trusted."""
    plain = run(project)
    out.mkdir()
    (part,) = new_parts(out, [0])
    server, folder = load(project, "server_app"), witness_of(part)
    watched = ObservedServerApp(WitnessedServerApp(server.app, folder), part.record)
    monkeypatch.setattr(server, "app", watched)
    assert run(project, lambda app: WitnessedClientApp(app, folder)) == plain
    write_study(out, {"commands": ["fedattack audit ."], "seeds": [0]})
    posed = pose_all([part])
    attacked = attack_all([part], posed)
    # An adapter's embeddings are frozen, and its model tells its own loss.
    further = ("tokens",) if project is TEXTS else ()
    assert attacked.scored == ("sia", "membership", *further, "plaintext")
    trusted = list_trusted(posed)
    return judged(out, trusted), [*posed[0].notes], trusted


def judged(out: Path, trusted) -> dict:
    findings, _ = judge_folder(out, device="cpu", watch=Watch(), trusted=trusted)
    return {f"{finding.attack}.{finding.metric}": finding for finding in findings}


def by_hand(project: Toy, out: Path, classes: list[str]) -> Path:
    """Write the truth from what the project's own function loads."""
    texts = [load(project, "task").load_data(client) for client in range(CLIENTS)]
    targets = read_targets(out / "knowledge" / "targets.npz")
    held = {tuple(text["input_ids"]): str(client) for client, (own, _) in enumerate(texts) for text in own}
    kept = {tuple(text["input_ids"]): str(client) for client, (_, own) in enumerate(texts) for text in own}
    rows = [tuple(row["input_ids"][row["attention_mask"] == 1].tolist()) for row in targets.x]
    assert {*rows} <= {*held, *kept}
    other = out.with_name("by-hand")
    shutil.copytree(out, other, ignore=shutil.ignore_patterns("truth", "witness"))
    owners = [held.get(row, NOBODY) for row in rows]
    nobody = [index for index, owner in enumerate(owners) if owner == NOBODY]
    counts = np.zeros((CLIENTS, len(classes)), np.int64)
    for client, (own, _) in enumerate(texts):
        for text in own:
            counts[client, text.get("label", 0)] += 1
    scored = out / "scores" / "tokens.npz"
    write_truth(
        other / "truth",
        answers={"tokens": used_by_hand(texts, scored)} if scored.exists() else None,
        clients=[str(client) for client in range(CLIENTS)],
        classes=classes,
        counts=counts,
        owners=owners,
        origins=[kept.get(row, "") if owner == NOBODY else "" for row, owner in zip(rows, owners, strict=True)],
        evaluation=(targets.x[nobody], targets.y[nobody]),
        targets=targets.fingerprint,
    )
    for client in range(CLIENTS):
        note_node(other / "truth", node=str(FIRST_NODE + client), client=str(client))
    return other


def used_by_hand(texts: list, scored: Path) -> dict[str, np.ndarray]:
    """List the words that each client's texts are made of, for the judge of moved rows."""
    owned = [sorted({word for text in own for word in text["input_ids"]}) for own, _ in texts]
    table = Scores.load(scored).facts["tables"][0]["name"]
    return {
        "names": np.array([table]),
        "rows": np.concatenate(owned),
        "tables": np.zeros(sum(map(len, owned)), np.int64),
        "owners": np.repeat([str(client) for client in range(CLIENTS)], [len(words) for words in owned]),
        "whole": np.array([str(client) for client in range(CLIENTS)]),
    }


def check(project: Toy, out: Path, found: dict, trusted, classes: list[str]) -> None:
    other = judged(by_hand(project, out, classes), trusted)
    assert other.keys() == found.keys()
    for name, finding in found.items():
        assert {key: getattr(finding, key) for key in STATED} == {key: getattr(other[name], key) for key in STATED}


@pytest.mark.parametrize(
    ("project", "classes"),
    [
        pytest.param(TEXTS, ["0", "1", "2"], marks=pytest.mark.long, id="texts"),
        pytest.param(LORA, ["0"], id="lora"),
    ],
)
@pytest.mark.slow
def test_findings_are_those_of_a_truth_written_by_hand(project, classes, tmp_path, monkeypatch):
    found, notes, trusted = audited_here(project, tmp_path / "out", monkeypatch)
    check(project, tmp_path / "out", found, trusted, classes)
    assert found["sia.asr"].n > 80
    assert found["sia.asr"].value > 1.5 / CLIENTS
    verdicts = {found["sia.asr"].verdict, found["membership.tpr-at-1pct-fpr"].verdict}
    # So few texts, of which one label is all that the model learns, are not enough for more than a value.
    assert verdicts == {"leak"} if project is LORA else "not applicable" not in verdicts
    assert not [note for note in notes if "not covered" in note or "cannot" in note]
    if project is LORA:
        assert "the attacker is assumed to have the weights that no client sends or trains" in notes


def test_attacks_that_take_one_array_say_what_they_lack(tmp_path):
    write_record(tmp_path / "record", ["100"], rounds=1)
    x = pack({"input_ids": np.arange(6).reshape(2, 3), "attention_mask": np.ones((2, 3), np.int64)})
    training = LocalSGD(epochs=1, batch_size=2, lr=0.1)
    knowledge = Knowledge(ModelKnowledge("torch.nn:Linear", (), 2), Targets(x, np.arange(2)), training=training)
    assert fields(x)
    with pytest.raises(NeedsError, match="one array of numbers, but this model takes input_ids, attention_mask"):
        ATTACKS["inversion"].run(Record(tmp_path / "record"), knowledge)


@pytest.mark.long
@pytest.mark.flower
@pytest.mark.parametrize("project", [TEXTS, LORA], ids=["texts", "lora"])
def test_one_command_goes_to_a_judged_report(project, tmp_path):
    where, out = project.copy(tmp_path), tmp_path / "out"
    done = fedattack("audit", str(where), "--out", str(out), "--supernodes", str(CLIENTS), "--json", cwd=tmp_path)
    found = {f"{item['attack']}.{item['metric']}": item for item in json.loads(done.stdout)}
    for name in ("sia.asr", "membership.tpr-at-1pct-fpr"):
        assert found[name]["verdict"] != "not applicable"
    assert found["sia.asr"]["value"] > 1.5 / CLIENTS
    assert (out / "report.html").stat().st_size > 10_000
