"""Why an attack cannot be made, and what would help."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from fedattack.attacks import ATTACKS, Knowledge, ModelKnowledge
from fedattack.attacks.knowledge import Targets
from fedattack.attacks.needs import UNFIT, UNKNOWN
from fedattack.base.reasons import Reason
from fedattack.base.structured import pack
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


def reasons_of(knowledge: Knowledge) -> dict[str, dict[str, Reason]]:
    """By attack and kind, why it cannot be made."""
    reasons = {}
    for name in ASKED:
        needs = ATTACKS[name].needs
        reasons[name] = {reason.kind: reason for reason in needs.find_lacks(Seen(view=needs.views[0]), knowledge)}
    return reasons


def test_what_a_question_would_take_stands_with_what_the_attacker_does_not_know():
    found = reasons_of(Knowledge(model=MODEL, targets=TABLES, auxiliary=TABLES))
    for name in ("ara", "aia"):
        unknown = found[name][UNKNOWN]
        assert unknown.what.startswith("the attacker does not know how clients train, clients' examples")
        assert unknown.remedy == "it would take `fedattack audit APP --sensitive NUMBER`, a column of the model's input"
    assert found["prolin"][UNKNOWN].remedy.startswith("it would take `fedattack audit APP --property CLASS`, of which")
    assert found["private-attribute"][UNKNOWN].remedy.endswith("which says which clients belong together")
    assert not any(UNFIT in kinds for kinds in found.values())
    without = reasons_of(Knowledge(model=MODEL, targets=TABLES))
    assert without["private-attribute"][UNKNOWN].remedy.endswith("clients that evaluate on examples of their own")


def test_nothing_is_promised_that_these_examples_cannot_keep():
    images = Targets(np.zeros((3, 1, 8, 8), np.float32), LABELS)
    found = reasons_of(Knowledge(model=MODEL, targets=images))
    assert found["ara"][UNKNOWN].remedy == ""
    assert found["ara"][UNFIT].what.endswith("only of tables, but the model takes examples of shape (1, 8, 8)")
    found = reasons_of(Knowledge(model=replace(MODEL, classes=1), targets=TABLES))
    assert found["prolin"][UNKNOWN].remedy == ""
    assert found["prolin"][UNFIT].what == "it is asked only of classes, but these examples have none"
    words = Targets(pack({"ids": np.zeros((3, 2), np.int64), "mask": np.zeros((3, 2), np.int64)}), LABELS)
    found = reasons_of(Knowledge(model=MODEL, targets=words))
    for name in ("ara", "inversion"):
        assert found[name][UNKNOWN].remedy == ""
        assert found[name][UNFIT].what.endswith("this model takes ids, mask")


@pytest.mark.parametrize("known", [Knowledge(), Knowledge(model=MODEL), Knowledge(targets=TABLES)])
def test_without_examples_and_a_model_nobody_knows_what_it_would_take(known):
    assert {reason.remedy for kinds in reasons_of(known).values() for reason in kinds.values()} == {""}


def test_one_client_that_trains_by_sgd_is_enough_to_read_gradients():
    needs = ATTACKS["ara"].needs
    (reason,) = needs.find_unread(Seen(), {"Adam", "RMSprop"})
    assert reason == Reason("it reads gradients from updates of SGD, but these clients train by Adam, RMSprop", UNFIT)
    assert not needs.find_unread(Seen(), {"Adam", "SGD"})
    assert not needs.find_unread(Seen(protocol="fedsgd"), {"Adam"})
    assert not ATTACKS["sia"].needs.find_unread(Seen(), {"Adam"})
