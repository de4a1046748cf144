"""How long work takes: told once, from what was timed."""

import pytest

from fedattack.runs.pace import Pace, roughly


@pytest.mark.parametrize(
    ("begun", "start", "a_round", "lines"),
    [
        (0, 16, 3.0, ["training takes about 5 minutes more, after 3 of 100 rounds"]),
        (60, 10, 2.0, ["training takes about 70 seconds more, after 63 of 100 rounds"]),
        (0, 16, 0.1, []),
    ],
    ids=["anew", "resumed", "short"],
)
def test_a_training_is_told_after_its_third_round_without_what_came_before_the_first(begun, start, a_round, lines):
    said, now = [], 0.0
    pace = Pace("training", "rounds", 100, 2, lambda kind, line: said.append(line), lambda: now)
    for done in range(1, 41):
        now = start + done * a_round
        pace.seen(begun + done)
    assert said == lines


@pytest.mark.parametrize(
    ("each", "lines"), [(60, ["attack sia takes about 3 minutes more, after 1 of 4 seeds"]), (5, [])]
)
def test_an_attack_is_told_from_its_first_seed(each, lines):
    said, now = [], 0.0
    pace = Pace("attack sia", "seeds", 4, 1, lambda kind, line: said.append(line), lambda: now)
    for seed in range(4):
        pace.seen(seed)
        now += each
    assert said == lines


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(3, "about 10 seconds"), (44, "about 40 seconds"), (91, "about 2 minutes"), (5400, "about 2 hours")],
)
def test_times_are_rough(seconds, words):
    assert roughly(seconds) == words
