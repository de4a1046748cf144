"""What an app is asked by gradients of single examples is the same on any machine, and bounded."""

import time
from dataclasses import replace

import numpy as np
import pytest

from fedattack.apps import probing
from fedattack.apps.probing import ask_outputs, ask_roles, ask_touched
from fedattack.attacks import Knowledge, Targets
from fedattack.attacks.last_layer import find_known_last_layer
from fedattack.attacks.roles import FIRST, OTHER
from fedattack.attacks.tables import TokenTable
from fedattack.record import Record
from fedattack.record.folder import Part
from tests.apps.test_inverting import TRAINING, examples, player_of, run
from tests.attacks.probing import kinds_of


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    part = Part(tmp_path_factory.mktemp("few"), "")
    return part, run(part, "few")


@pytest.fixture
def probed(few):
    """Ask a step all that is asked by gradients."""
    x, y = examples()
    player, received = player_of(*few, x, y)
    roles = ask_roles(player, [received], x, y)
    last = find_known_last_layer(Knowledge(roles=roles))
    table = TokenTable(last.weight, "", False, np.arange(last.classes))

    def probe():
        player.take(received)
        clients = {str(client): (x[20 * client :][:20], y[20 * client :][:20]) for client in range(5)}
        touched = ask_touched(player, [table], clients)
        outputs = ask_outputs(player, last, Record(few[0].record), Targets(x, y), TRAINING, (20,))
        return ask_roles(player, [received], x, y), touched, outputs

    return probe


def test_the_machine_does_not_decide_what_is_asked(probed, monkeypatch):
    one = probed()
    # A machine that is a thousand times slower.
    for clock in (time.process_time, time.monotonic, time.perf_counter, time.time):
        monkeypatch.setattr(time, clock.__name__, lambda clock=clock: 1_000 * clock())
    other = probed()
    assert one[0] == other[0]
    for mine, yours in ((one[1], other[1]), (vars(one[2]), vars(other[2]))):
        for name, array in mine.items():
            np.testing.assert_array_equal(array, yours[name], err_msg=name)


def test_what_is_asked_is_bounded_by_what_it_costs(probed, monkeypatch):
    _, touched, outputs = probed()
    assert len(touched["whole"]) == 5
    assert len(outputs.seqs) > 1
    monkeypatch.setattr(probing, "_SECONDS", 1e-6)
    roles, touched, outputs = probed()
    # One of each is always asked; of roles, as many examples as show any.
    assert touched["whole"].tolist() == ["0"]
    assert (len(outputs.seqs), set(outputs.shares.tolist())) == (1, {0.0})
    assert {role.kind for role in roles} != {"other"}


def test_an_array_whose_role_changes_from_round_to_round_has_none(few, monkeypatch):
    x, y = examples()
    player, received = player_of(*few, x, y)
    later = {name: 2 * array for name, array in received.items()}
    kinds = kinds_of(ask_roles(player, [received, later], x, y))
    assert kinds == kinds_of(ask_roles(player, [received], x, y))
    first = next(name for name, of_array in kinds.items() if FIRST in of_array)
    probe = probing._probe

    def change(player, weights, x, y):
        found = probe(player, weights, x, y)
        if weights is later:
            # In the later round what enters the layer is another example each time.
            return replace(found, gradients={**found.gradients, first: found.gradients[first][::-1]})
        return found

    monkeypatch.setattr(probing, "_probe", change)
    found = {role.name: role for role in ask_roles(player, [received, later], x, y)}
    assert found[first].kind == OTHER
    assert found[first].evidence.startswith("its role changes with the weights: first layer")
