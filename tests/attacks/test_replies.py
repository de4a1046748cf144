"""Knowledge that states long trainings costs no hours: attacks imitate so many steps of a client and no more."""

from dataclasses import replace

import pytest

from fedattack.attacks import ATTACKS, Knowledge, KnownDefence, read_knowledge
from fedattack.attacks.replies import MOST_STEPS, check_steps
from fedattack.base.errors import NeedsError
from fedattack.learning import LocalSGD
from fedattack.record import Record
from tests.attacks.test_contract import QUICK, RUNS

LONG = LocalSGD(epochs=MOST_STEPS, batch_size=1, lr=0.01)


def test_steps_are_counted_of_the_training_and_of_the_known_defence():
    check_steps("x", Knowledge(training=LONG), 1)
    check_steps("x", Knowledge(), 10**6)
    with pytest.raises(
        NeedsError, match=r"knowledge of training .* of 2 examples makes 20,000 steps .* at most 10,000"
    ):
        check_steps("x", Knowledge(training=LONG), 2)
    private = KnownDefence("fedattack", {"defence": "dp-sgd", "training": LONG.keywords()})
    with pytest.raises(NeedsError, match="knowledge of defence"):
        check_steps("x", Knowledge(training=replace(LONG, epochs=1), defence=private), 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["membership", "membership-aggregate", "prolin", "private-attribute", "inversion"])
def test_a_training_of_too_many_steps_is_not_imitated(name, tmp_path):
    folder = RUNS[name, "fedavg"](tmp_path)
    known = read_knowledge(folder / "knowledge")
    attack = ATTACKS[name].with_options(QUICK.get(name, {}))
    try:
        said = " ".join(attack.run(Record(folder / "record"), replace(known, training=LONG), device="cpu").notes)
    except NeedsError as cause:
        said = str(cause)
    assert "are imitated: state fewer epochs, or a larger batch_size" in said
