import logging

import numpy as np
import pytest
import torch

from fedattack.base.errors import ConfigError
from fedattack.claims.mechanisms import Mechanism, mechanism_of
from fedattack.claims.tester import LEAST_DRAWS, Play, measure
from tests.claims import known

SIZE = 8
UPDATE = np.array([3.0, 0, 0, 0, 0, 0, 0, 4.0])


def named(name: str) -> Mechanism:
    return mechanism_of(getattr(known, name), name=name, size=SIZE)


@pytest.mark.parametrize("name", ["platform", "honest", "own_mod", "own_defence", "gaussian", "noise_first", "wrapped"])
def test_every_kind_is_drawn_from(name):
    """The clipped update is [0.6, …, 0.8]; the draws lie around it."""
    mechanism = named(name)
    sent = mechanism.draws(UPDATE, 400, np.random.default_rng(0))
    assert sent.shape == (400, SIZE)
    assert np.ptp(sent, axis=0).min() > 0
    error = sent.std(axis=0) / 20
    if name != "noise_first":
        assert (np.abs(sent.mean(axis=0) - UPDATE / 5) < 5 * error + 1e-6).all()
    mechanism.check(UPDATE, 0)


def test_flowers_logger_is_left_as_it_was():
    before = logging.getLogger("flwr").level
    named("honest").draws(UPDATE, 3, np.random.default_rng(0))
    assert logging.getLogger("flwr").level == before < logging.ERROR


def test_draws_follow_from_the_seed_and_leave_other_generators_alone():
    mechanism = named("honest")
    state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    first, again, other = (mechanism.draws(UPDATE, 5, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.array_equal(state, np.random.get_state()[1])  # noqa: NPY002
    assert torch.equal(torch_state, torch.get_rng_state())


def test_a_mechanism_may_work_in_the_update_that_it_gets():
    def in_place(update):
        for array in update.values():
            array += 1
        return update

    sent = mechanism_of(in_place, size=SIZE).draws(UPDATE, 3, np.random.default_rng(0))
    assert np.array_equal(sent, np.stack([UPDATE + 1] * 3))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "raised RuntimeError: out of cheese for an update of norm 1"),
        ("not_a_number", "returns NaN or infinity"),
        ("other_shapes", "changes shapes: first was (2, 2) and comes back as (1, 2)"),
        ("other_arrays", "expected arrays first, second as they came, got ['third']"),
        ("no_arrays", "expected arrays first, second as they came, got list"),
        ("integers", "comes back as int64"),
        ("not_repeatable", "is not repeatable"),
        ("with_state", "keeps state between calls"),
        ("asks_for_more", "asks for temperature"),
        ("returns_nothing", "returns a int"),
    ],
)
def test_bad_ones_get_one_clear_line(name, said):
    with pytest.raises(ConfigError) as caught:
        measure(named(name), Play(draws=LEAST_DRAWS))
    text = str(caught.value)
    assert text.startswith(name)
    assert said in text
    assert "\n" not in text
    assert len(text) <= 300


def test_what_is_no_mechanism_at_all():
    with pytest.raises(ConfigError, match="cannot be called"):
        mechanism_of(3)
    with pytest.raises(ConfigError, match="multiple of 4"):
        mechanism_of(known.bare, size=6)
