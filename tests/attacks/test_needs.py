"""Why an attack cannot be made, and what would help."""

import ast
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

import fedattack
from fedattack.attacks import ATTACKS, Attack, Knowledge, ModelKnowledge, base
from fedattack.attacks.knowledge import Targets
from fedattack.attacks.needs import KEPT, PROTOCOL, UNFIT, UNKNOWN, VIEW
from fedattack.base.reasons import NOTHING, Reason, merge_reasons
from fedattack.base.structured import pack
from fedattack.learning import LocalSGD
from fedattack.record.format import PROTOCOLS
from fedattack.record.keep import Keep

ASKED = ("ara", "aia", "prolin", "private-attribute", "inversion")
LABELS = np.arange(3)
MODEL = ModelKnowledge("torch.nn:Linear", (4,), 3)
TABLES = Targets(np.zeros((3, 4), np.float32), LABELS)


@dataclass
class Seen:
    """What needs look at in a record."""

    view: str = "individual"
    protocol: str = "fedavg"
    server: str = "passive"
    keep: Keep = field(default_factory=Keep)
    path: str = "record"


def reasons_of(knowledge: Knowledge) -> dict[str, dict[str, Reason]]:
    """By attack and kind, why it cannot be made."""
    reasons = {}
    for name in ASKED:
        needs = ATTACKS[name].needs
        reasons[name] = {reason.kind: reason for reason in needs.find_lacks(Seen(view=needs.views[0]), knowledge)}
    return reasons


def test_what_a_question_would_take_stands_with_what_the_attacker_does_not_know():
    found = reasons_of(Knowledge(model=MODEL, targets=TABLES, auxiliary=TABLES))
    # Losses say which value fits, however clients train; gradients are read from steps that are known.
    for name, lacks in (("ara", "how clients train or clients' examples"), ("aia", "clients' examples")):
        unknown = found[name][UNKNOWN]
        assert unknown.what.startswith(f"the attacker does not know {lacks}")
        assert unknown.remedy == "`fedattack audit APP --sensitive NUMBER`, a column of the model's input"
    assert found["prolin"][UNKNOWN].remedy.startswith("`fedattack audit APP --property CLASS`, of which")
    assert found["private-attribute"][UNKNOWN].remedy.endswith("which says which clients belong together")
    assert not any(UNFIT in kinds for kinds in found.values())
    without = reasons_of(Knowledge(model=MODEL, targets=TABLES))
    assert without["private-attribute"][UNKNOWN].remedy.endswith("clients that evaluate on examples of their own")


def test_nothing_is_promised_that_these_examples_cannot_keep():
    images = Targets(np.zeros((3, 1, 8, 8), np.float32), LABELS)
    found = reasons_of(Knowledge(model=MODEL, targets=images))
    assert found["ara"][UNFIT].remedy.startswith(NOTHING)
    assert found["ara"][UNFIT].what.endswith("only of tables, but the model takes examples of shape (1, 8, 8)")
    found = reasons_of(Knowledge(model=replace(MODEL, classes=1), targets=TABLES))
    assert found["prolin"][UNFIT].remedy.startswith(NOTHING)
    assert found["prolin"][UNFIT].what == "it is asked only of classes, but these examples have none"
    words = Targets(pack({"ids": np.zeros((3, 2), np.int64), "mask": np.zeros((3, 2), np.int64)}), LABELS)
    found = reasons_of(Knowledge(model=MODEL, targets=words))
    for name in ("ara", "inversion"):
        assert found[name][UNFIT].remedy.startswith(NOTHING)
        assert found[name][UNFIT].what.endswith("this model takes ids, mask")


@pytest.mark.parametrize("known", [Knowledge(), Knowledge(model=MODEL), Knowledge(targets=TABLES)])
def test_without_examples_and_a_model_an_attacker_states_what_it_knows(known):
    for name, kinds in reasons_of(known).items():
        remedy = kinds[UNKNOWN].remedy
        assert remedy.endswith(" of `fedattack attack`")
        assert ("--model module:function" in remedy) == (known.model is None), name
        assert "--targets" not in remedy, "none of these attacks needs them"


def test_every_reason_why_an_attack_cannot_be_made_says_what_would_help_or_that_nothing_does():
    """Of every attack, of all kinds of records and of knowledge."""
    images = Targets(np.zeros((3, 1, 8, 8), np.float32), LABELS)
    words = Targets(pack({"ids": np.zeros((3, 2), np.int64), "mask": np.zeros((3, 2), np.int64)}), LABELS)
    knowledge = [Knowledge(), Knowledge(targets=TABLES)]
    for model in (MODEL, replace(MODEL, classes=1)):
        for targets in (None, TABLES, images, words):
            for training in (None, LocalSGD(1, 1, 0.1, optimizer="Adam")):
                knowledge.append(Knowledge(model=model, targets=targets, training=training))
    keeps = [Keep(), Keep(every=2), Keep(clients=("a",))]
    records = [
        Seen(view, protocol, server, keep)
        for view in ("individual", "aggregate")
        for protocol in PROTOCOLS
        for server in ("passive", "inconsistent", "canary")
        for keep in keeps
    ]
    kinds = set()
    for attack in ATTACKS.values():
        for record in records:
            for known in knowledge:
                reasons = attack.needs.find_lacks(record, known)
                kinds |= {reason.kind for reason in reasons}
                assert all(reason.remedy for reason in reasons), (attack.name, record, reasons)
                assert not reasons or merge_reasons(reasons).remedy
    assert kinds == {VIEW, PROTOCOL, KEPT, UNKNOWN, UNFIT}


def test_an_attack_that_takes_some_models_alone_says_which_the_question_is_about():
    choosy = {name for name, attack in ATTACKS.items() if type(attack).unfit is not Attack.unfit}
    assert {"exact", "labels", "tokens", "dager", "trees"} <= choosy
    assert {name for name in choosy if not ATTACKS[name].needs.about} == set()


@pytest.mark.parametrize("where", ["attacks", "apps", "audit/untried.py"])
def test_no_code_that_says_why_something_is_not_asked_forgets_what_would_help(where):
    """Each ``Reason(…)`` there is given a remedy; reasons of findings explain a verdict, and stand elsewhere."""
    root = Path(fedattack.__file__).parent / where
    files = [root] if root.is_file() else sorted(root.rglob("*.py"))
    made = 0
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Reason":
                given = len(node.args) + len(node.keywords)
                unpacked = any(keyword.arg is None for keyword in node.keywords)
                assert given == 3 or unpacked, f"{file.name}:{node.lineno}"
                made += 1
    assert made


def test_one_client_that_trains_by_sgd_is_enough_to_read_gradients():
    needs = ATTACKS["ara"].needs
    (reason,) = needs.find_unread(Seen(), {"Adam", "RMSprop"})
    what = "it reads gradients from updates of SGD, but these clients train by Adam, RMSprop"
    assert reason == Reason(what, UNFIT, "another run, whose clients train by SGD")
    assert not needs.find_unread(Seen(), {"Adam", "SGD"})
    assert not needs.find_unread(Seen(protocol="fedsgd"), {"Adam"})
    assert not ATTACKS["sia"].needs.find_unread(Seen(), {"Adam"})
    assert ATTACKS["ara"].needs.find_unread(Seen(), {"private SGD"})
    # What is clipped is known up to a factor: labels are counted, and examples read off, if noise leaves them.
    assert not ATTACKS["labels"].needs.find_unread(Seen(), {"private SGD"})
    assert ATTACKS["labels"].needs.find_unread(Seen(), {"private Adam"})


def test_an_attack_is_given_what_its_needs_name_and_nothing_that_is_not_known():
    seen = base.Seen(None, Knowledge(targets=TABLES), 0, "cpu", lambda done, total: None)
    assert seen.targets is TABLES
    for name in ("model", "training", "auxiliary", "partial"):
        with pytest.raises(AssertionError, match="its needs do not name"):
            getattr(seen, name)
