"""Moved rows are told from those that decay and noise move, and traced in sums, beside slow obvious ways."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from fedattack.threats.tokens.moved import ALL, DECAY, NOISE, STILL, TIED, find_moved, measure, name_few
from fedattack.threats.tokens.tracing import find_possible, trace
from tests.threats.tokens.world import WORDS, WordModel, texts

HOT, IDS, Y = texts()


def train(optimizer, *, tied=False, examples=6, rounds=1, padding=None, width=8):
    """Train on a few texts; return the table before the last round and after, and which words were used."""
    torch.manual_seed(0)
    model = WordModel(tied=tied, padding=padding, width=width)
    ids = torch.from_numpy(IDS["0"][:examples].copy())
    y = ids[:, 30] if tied else torch.from_numpy(Y[:examples])
    stepping = optimizer(model.parameters())
    for _ in range(rounds):
        start = model.embed.weight.detach().numpy().copy()
        for _ in range(3):
            for rows in torch.arange(examples).split(2):
                stepping.zero_grad()
                nn.functional.cross_entropy(model(ids[rows]), y[rows]).backward()
                stepping.step()
    used = np.zeros(WORDS, dtype=bool)
    used[ids.numpy().ravel()] = True
    if padding is not None:
        used[padding] = False
    return start, model.embed.weight.detach().numpy(), used


def found(start, end, tied=False, false_alarms=0.05):
    return find_moved(measure(start, end, tied=tied), false_alarms=false_alarms)


OPTIMIZERS = {
    "SGD": (lambda p: torch.optim.SGD(p, lr=0.1), STILL),
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), STILL),
    "SGD, decay": (lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=1e-2), DECAY),
    "SGD, little decay": (lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=1e-4), DECAY),
    "momentum, decay": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3), DECAY),
    "Adam": (lambda p: torch.optim.Adam(p, lr=1e-3), STILL),
    "AdamW": (lambda p: torch.optim.AdamW(p, lr=1e-3), DECAY),
    "Adam, decay": (lambda p: torch.optim.Adam(p, lr=1e-3, weight_decay=1e-3), DECAY),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_rows_that_examples_moved_are_all_named_and_no_other(optimizer):
    how, expected = OPTIMIZERS[optimizer]
    start, end, used = train(how)
    moved, told = found(start, end)
    assert told == expected
    np.testing.assert_array_equal(moved, used)


def test_a_row_for_padding_is_zero_and_stands_still_under_decay():
    start, end, used = train(OPTIMIZERS["SGD, decay"][0], padding=17 * 5)
    moved, told = found(start, end)
    assert told == DECAY
    np.testing.assert_array_equal(moved, used)


def test_momentum_that_outlives_a_round_names_the_words_of_the_rounds_before():
    start, end, used = train(OPTIMIZERS["momentum"][0], rounds=2)
    np.testing.assert_array_equal(found(start, end)[0], used)


def test_gradients_are_read_as_they_are():
    start = np.ones((50, 4), np.float32)
    gradient = np.zeros((50, 4), np.float32)
    gradient[[3, 8], 1] = 1e-12
    moved, told = find_moved(measure(start, gradient, tied=False, is_gradient=True), false_alarms=0.05)
    assert (np.flatnonzero(moved).tolist(), told) == ([3, 8], STILL)


def test_sparse_updates_name_no_wrong_row():
    start, end, used = train(OPTIMIZERS["SGD"][0])
    update = end - start
    update[np.abs(update) < np.quantile(np.abs(update), 0.97)] = 0
    moved, told = found(start, start + update)
    assert told == STILL
    assert not (moved & ~used).any()
    assert (moved & used).sum() > 0.2 * used.sum()


@pytest.mark.parametrize("false_alarms", [0.05, 0.3])
def test_under_noise_at_most_the_stated_share_of_the_named_rows_is_false(false_alarms):
    start, end, used = train(OPTIMIZERS["SGD"][0], width=16)
    false, right = [], []
    scale = np.median(np.abs((end - start)[used])) / 2
    for seed in range(60):
        noisy = end + np.random.default_rng(seed).normal(0, scale, size=end.shape).astype(np.float32)
        moved, told = found(start, noisy, false_alarms=false_alarms)
        assert told == NOISE
        false.append((moved & ~used).sum() / max(moved.sum(), 1))
        right.append((moved & used).sum() / used.sum())
    assert np.mean(false) <= false_alarms
    assert np.mean(right) > 0.95


def test_noise_alone_names_hardly_anything():
    draw = np.random.default_rng(0)
    start = draw.normal(size=(2000, 16)).astype(np.float32)
    named = [
        found(start, start + draw.normal(0, 0.01, size=start.shape).astype(np.float32))[0].any() for _ in range(60)
    ]
    assert np.mean(named) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 60)


@pytest.mark.parametrize(("optimizer", "least"), [("SGD", 0.99), ("momentum", 0.99), ("Adam", 0.15), ("AdamW", 0.15)])
def test_behind_a_tied_output_the_rows_are_named_that_did_not_move_as_most(optimizer, least):
    start, end, used = train(OPTIMIZERS[optimizer][0], tied=True, examples=4)
    moved, told = found(start, end, tied=True)
    assert told == TIED
    assert not (moved & ~used).any()
    assert (moved & used).sum() >= least * used.sum()


@pytest.mark.parametrize("optimizer", ["SGD", "momentum", "Adam", "AdamW"])
def test_behind_a_language_model_its_words_are_named(optimizer):
    """Under Adam the words that nobody uses move furthest: how far a row moved would name those."""
    transformers = pytest.importorskip("transformers", reason="it makes this model")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=500, n_positions=16, n_embd=32, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config)
    table = model.transformer.wte.weight
    words = torch.randperm(500)[:60]
    start, used = table.detach().numpy().copy(), np.zeros(500, dtype=bool)
    stepping = OPTIMIZERS[optimizer][0](model.parameters())
    for _ in range(10):
        ids = words[torch.randint(0, len(words), (8, 16))]
        used[ids.numpy().ravel()] = True
        stepping.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        stepping.step()
    moved, told = found(start, table.detach().numpy(), tied=True)
    assert told == TIED
    assert (moved & ~used).sum() <= 0.05 * moved.sum()
    assert (moved & used).sum() >= 0.95 * used.sum()


def test_where_no_row_stood_still_all_are_named():
    draw = np.random.default_rng(0)
    start = draw.normal(size=(40, 4)).astype(np.float32)
    end = start + draw.normal(size=(40, 4)).astype(np.float32) * np.exp(draw.normal(0, 3, size=(40, 1))).astype(
        np.float32
    )
    moved, told = found(start, end)
    assert (moved.all(), told) == (True, ALL)


def test_a_few_are_named_as_the_procedure_says():
    p = np.array([0.9, 0.001, 0.02, 0.03, 0.8])
    assert name_few(p, 0.05).tolist() == [False, True, True, True, False]
    assert not name_few(np.ones(3), 0.05).any()


@pytest.mark.slow
def test_a_million_rows_are_measured_within_the_bound_of_memory():
    import tracemalloc

    start = np.zeros((1_000_000, 16), np.float32) + 1
    end = start.copy()
    end[[5, 999_999]] += 1
    tracemalloc.start()
    moved, _ = found(start, end)
    assert tracemalloc.get_traced_memory()[1] < 400 * 2**20
    tracemalloc.stop()
    assert np.flatnonzero(moved).tolist() == [5, 999_999]


def test_rows_are_traced_as_all_ways_to_hold_them_say():
    """A client holds a row in every explanation: it is named. It holds it in none: it is not."""
    draw = np.random.default_rng(4)
    part = draw.random((6, 5)) < 0.5
    for holders in itertools.product([False, True], repeat=5):
        pattern = (part & np.array(holders)).any(axis=1)
        ways = [
            way for way in itertools.product([False, True], repeat=5) if ((part & way).any(axis=1) == pattern).all()
        ]
        ways = np.array(ways) & part.any(axis=0)
        (named,) = np.stack([*trace(part, pattern[:, None])]).T
        assert (named | ~ways.all(axis=0)).all()
        assert not (named & ~ways.any(axis=0)).any()
        assert (find_possible(part, pattern) == ways.any(axis=0)).all()
        # What is named explains every sum.
        assert ((part & named).any(axis=1) == pattern).all()
