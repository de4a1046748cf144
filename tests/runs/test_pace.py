"""How long work takes: told once, from what was timed."""

import pytest

from fedattack.runs.pace import AttackPace, TrainingPace, roughly


class Clock:
    """Stands still until it is told the time."""

    now = 100.0

    def __call__(self):
        return self.now


def training(seeds, rounds, start, a_round, ending, begun=0):
    """Watch a training of which all this is true, twice a second; return what was said, and what was left then."""
    clock, said = Clock(), []
    pace = TrainingPace(seeds, rounds, lambda kind, line: said.append((line, clock.now)), starts=seeds, clock=clock)
    whole = start + (rounds - begun) * a_round + ending + (seeds - 1) * (start + rounds * a_round + ending)
    for tick in range(int(2 * whole) + 1):
        clock.now = 100 + tick / 2
        seed, at = 0, tick / 2
        of_this = start + (rounds - begun) * a_round + ending
        while at > of_this and seed < seeds - 1:
            at, seed, of_this = at - of_this, seed + 1, start + rounds * a_round + ending
        done = begun if seed == 0 else 0
        pace.seen(seed, min(rounds, done + max(0, int((at - start) // a_round))))
    assert len(said) <= 1
    return [(line, 100 + whole - at) for line, at in said]


@pytest.mark.parametrize(
    ("seeds", "rounds", "start", "a_round", "words"),
    [
        (5, 8, 16, 3.0, "training takes about 3 minutes more, after 3 of 40 rounds; the attacks come after it"),
        (1, 100, 10, 2.0, "training takes about 3 minutes more, after 3 of 100 rounds; the attacks come after it"),
    ],
)
def test_a_training_is_told_after_its_third_round(seeds, rounds, start, a_round, words):
    ((line, left),) = training(seeds, rounds, start, a_round, 5)
    assert line == words
    minutes = int(line.split("about ")[1].split()[0])
    assert minutes == pytest.approx(left / 60, abs=0.6)


@pytest.mark.parametrize(("a_round", "words"), [(3.0, "about 2 minutes"), (0.7, "about 30 seconds")])
def test_seeds_that_share_a_start_of_flower_pay_for_it_once(a_round, words):
    clock, said = Clock(), []
    pace = TrainingPace(5, 8, lambda kind, line: said.append((line, clock.now)), starts=1, clock=clock)
    whole = 16 + 40 * a_round + 5
    for tick in range(int(2 * whole)):
        clock.now = 100 + tick / 2
        done = min(40, max(0, int((tick / 2 - 16) // a_round)))
        pace.seen(min(4, done // 8), done - 8 * min(4, done // 8))
    ((line, at),) = said
    assert words in line
    assert 100 + whole - at == pytest.approx(120 if a_round == 3 else 30, rel=0.1)


def test_short_rounds_are_told_from_the_first_seed():
    ((line, left),) = training(5, 2, 16, 0.1, 5)
    assert line == "training takes about 90 seconds more, after 2 of 10 rounds; the attacks come after it"
    assert left == pytest.approx(85, abs=1)


def test_a_resumed_training_has_less_to_do():
    ((line, left),) = training(1, 100, 10, 2.0, 5, begun=60)
    assert "about 80 seconds more, after 3 of" in line
    assert left == pytest.approx(80, abs=6)


def test_nothing_is_said_of_what_ends_soon():
    assert training(1, 8, 16, 0.5, 5) == []


@pytest.mark.parametrize(
    ("each", "lines"), [(60, ["attack sia takes about 3 minutes more, after 1 of 4 seeds"]), (5, [])]
)
def test_an_attack_is_told_from_its_first_seed(each, lines):
    clock, said = Clock(), []
    pace = AttackPace("sia", 4, lambda kind, line: said.append(line), clock)
    for seed in range(4):
        pace.begins(seed)
        clock.now += each
    assert said == lines


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(3, "about 10 seconds"), (44, "about 40 seconds"), (91, "about 2 minutes"), (5400, "about 2 hours")],
)
def test_times_are_rough(seconds, words):
    assert roughly(seconds) == words
