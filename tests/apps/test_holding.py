"""Who holds what is what a plain loop over all that clients have says, or it is not said."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from fedattack.apps.holding import Holding, count_classes, hold
from fedattack.apps.targets import choose_targets as choose
from fedattack.apps.targets import even
from fedattack.base.errors import DataError
from fedattack.witness import SeenExamples, Witness, WitnessedModel
from fedattack.witness.seen import ONLY_APP
from tests.apps.worlds import CLASSES, FEATURES, TRAINING, hash_of, pool, seen, server, witness

X, Y = pool(400)


def rows(*where) -> tuple[np.ndarray, np.ndarray]:
    picked = np.concatenate([np.arange(*place) for place in where])
    return X[picked], Y[picked]


class World:
    """Three clients that overlap, one of which evaluates on its own training examples and on what others train on."""

    trains: ClassVar = {"0": rows((0, 60)), "1": rows((50, 130)), "2": rows((130, 300))}
    evaluates: ClassVar = {
        "0": rows((300, 320), (0, 5)),
        "1": rows((320, 340), (130, 135)),
        "2": rows((340, 360), (310, 315)),
    }
    central = rows((350, 380), (60, 65))

    @classmethod
    def witnesses(cls, keep: int) -> list[Witness]:
        clients = [witness(name, cls.trains[name], cls.evaluates[name], keep=keep) for name in cls.trains]
        return [*clients, server(cls.central)]

    @classmethod
    def owners(cls, x: np.ndarray) -> list[str]:
        return [name for name, (theirs, _) in cls.trains.items() if any(np.array_equal(x, each) for each in theirs)]

    @classmethod
    def origin(cls, x: np.ndarray) -> str:
        """The only one who evaluated on it."""
        there = {"": cls.central, **cls.evaluates}
        names = [name for name, (theirs, _) in there.items() if any(np.array_equal(x, each) for each in theirs)]
        return names[0] if len(names) == 1 else ""


@pytest.mark.parametrize("keep", [10**6, 40, 15])
def test_holders_and_origins_are_those_of_a_plain_loop(keep):
    holding = hold(World.witnesses(keep))
    chosen = choose(holding, most=100, seed=3)
    assert len(chosen.targets) > 10
    kinds = {"sole": 0, "shared": 0, "nobody": 0, "origin": 0}
    for key in chosen.targets:
        x, y = holding.examples[key]
        assert hash_of(x) == key
        assert Y[np.flatnonzero((x == X).all(axis=1))[0]] == y
        owners = World.owners(x)
        assert sorted(holding.holders.get(key, [])) == owners
        kinds[("nobody", "sole", "shared")[min(len(owners), 2)]] += 1
        if not owners and holding.origins[key]:
            # Where not all is known, nothing is said.
            assert holding.origins[key] == World.origin(x)
            kinds["origin"] += 1
        if not owners and keep > 400:
            assert holding.origins[key] == World.origin(x)
    for key in chosen.evaluation:
        assert not World.owners(holding.examples[key][0])
    assert not {*chosen.evaluation} & {*chosen.targets}
    assert chosen.evaluation
    if keep > 400:
        assert all(kinds.values()), kinds


def test_targets_are_balanced_limited_and_in_no_order():
    holding = hold(World.witnesses(10**6))
    chosen = choose(holding, most=60, seed=0)
    holders = [tuple(holding.holders.get(key, ())) for key in chosen.targets]
    assert [holders.count((name,)) for name in "012"] == [10, 10, 10]
    assert sum(len(names) > 1 for names in holders) == 6
    assert holders.count(()) == 30
    # All of nobody's would be at one end, were they not mixed.
    places = np.flatnonzero([not names for names in holders])
    assert places.min() < 10
    assert places.max() > 50
    assert choose(holding, most=60, seed=0) == chosen
    assert choose(holding, most=60, seed=1).targets != chosen.targets


def test_where_nobody_has_any_all_targets_are_of_clients():
    holding = hold([witness(name, World.trains[name]) for name in "012"])
    chosen = choose(holding, most=60, seed=0)
    holders = [tuple(holding.holders[key]) for key in chosen.targets]
    assert [holders.count((name,)) for name in "012"] == [20, 20, 20]
    assert not chosen.evaluation


def test_even_shares():
    for sizes, total in (([1, 9, 9], 11), ([5, 0, 2], 100), ([4, 4, 4], 9), ([], 3)):
        shares = even(sizes, total)
        # One at a time goes to whoever has least of those that have something left.
        plain = [0] * len(sizes)
        for _ in range(min(total, sum(sizes))):
            free = [index for index in range(len(sizes)) if plain[index] < sizes[index]]
            plain[min(free, key=plain.__getitem__)] += 1
        assert sorted(shares) == sorted(plain)
        assert all(share <= size for share, size in zip(shares, sizes, strict=True))


def test_copies_are_listed_with_the_labels_that_their_holders_give_them():
    first, second = witness("0", rows((0, 4))), witness("1", rows((3, 6)))
    # The last example of the first client is the second's, too, who gives it another label.
    labels = second.trained.y.copy()
    shared = [bytes(row) for row in second.trained.hashes].index(hash_of(X[3]))
    labels[shared] = (Y[3] + 1) % CLASSES
    second = replace(second, trained=replace(second.trained, y=labels))
    index = [bytes(row) for row in first.trained.hashes].index(hash_of(X[0]))
    again = {"again": np.array([index, index]), "again_y": np.array([Y[0], (Y[0] + 1) % CLASSES])}
    first = replace(first, trained=replace(first.trained, **again))
    holding = hold([first, second])
    copies = holding.list_copies()
    assert copies[hash_of(X[0]), Y[0]] == ["0", "0"]
    assert copies[hash_of(X[0]), (Y[0] + 1) % CLASSES] == ["0"]
    assert (copies[hash_of(X[3]), Y[3]], copies[hash_of(X[3]), (Y[3] + 1) % CLASSES]) == (["0"], ["1"])
    assert sum(map(len, copies.values())) == 4 + 2 + 3
    assert count_classes(holding.clients, CLASSES).sum() == 4 + 2 + 3


def test_an_unlabelled_copy_is_held_all_the_same():
    """One client's witness saw no label; the example is not the other one's alone."""
    x, y = rows((0, 10))
    holding = hold([witness("0", (x, y)), witness("1", (x, np.full(10, -1)))])
    assert {tuple(holding.holders[key]) for key in holding.examples} == {("0", "1")}


def test_two_nodes_of_one_client_are_one():
    before, after = witness("0", rows((0, 10)), node="11"), witness("0", rows((5, 25)), node="12")
    holding = hold([before, after, witness("1", rows((30, 40)))])
    assert holding.clients["0"].nodes == ["12", "11"]
    assert {tuple(names) for names in holding.holders.values()} == {("0",), ("1",)}
    assert len(holding.holders) == 35


def test_what_changes_each_time_says_nothing_of_what_nobody_trains_on():
    augmented = replace(TRAINING, augmented=True)
    holding = hold([witness("0", rows((0, 10)), rows((10, 20)), training=augmented), server(rows((50, 60)))])
    assert not holding.origins
    assert any("clients change their training examples each time" in note for note in holding.notes)


def test_of_an_example_that_came_as_several_inputs_one_is_asked_about():
    seen = witness("0", rows((0, 10)))
    holding = hold(
        [replace(seen, trained=replace(seen.trained, places=np.arange(10) // 2)), witness("1", rows((20, 30)))]
    )
    own = [key for key, names in holding.holders.items() if names == ["0"]]
    assert len(own) == 10
    assert [key for key in holding.examples if key in own] == own[::2]


@pytest.mark.parametrize("augmented", [None, False])
def test_that_examples_may_change_each_time_is_told(augmented):
    training = replace(TRAINING, augmented=augmented)
    holding = hold([witness("0", rows((0, 10)), rows((10, 20)), training=training)])
    assert len(holding.origins) == 10
    assert any("train on its examples unchanged" in note for note in holding.notes) == (augmented is None)


def test_what_the_server_trained_on_is_nobodys_no_more():
    central = replace(server(rows((50, 60))), trained=seen(*rows((50, 55))))
    holding = hold([witness("0", rows((0, 10))), central])
    assert len(holding.origins) == 5


def test_notes_of_witnesses_say_whose_they_are():
    clients = [
        replace(witness(name, rows((0, 5))), notes=("workers", *own)) for name, own in (("0", ("odd",)), ("1", ()))
    ]
    assert hold([*clients, replace(server(rows((7, 9))), notes=("late",))]).notes == (
        "clients 0, 1: workers",
        "client 0: odd",
        "server: late",
    )


@pytest.mark.parametrize(
    ("witnesses", "message"),
    [
        ([], "no client's training was witnessed"),
        ([server(rows((0, 5)))], "no client's training was witnessed"),
        ([witness("0", rows((0, 0)), rows((0, 5)))], "no client's training was witnessed"),
        (
            [replace(witness("0", rows((0, 0))), notes=(f"KMeans was fitted: {ONLY_APP}",))],
            f"^KMeans was fitted: {ONLY_APP}; the page lists what reached the server$",
        ),
        ([witness("0", (X[:5], np.full(5, -1)))], "no training example was seen with a label of one number"),
        (
            [witness("0", rows((0, 5))), replace(witness("1", rows((5, 9))), trained=seen(*rows((5, 9)), keep=0))],
            "fedattack is not certain of the owner of any training example",
        ),
        (
            [
                replace(
                    witness("0", rows((0, 5))),
                    trained=SeenExamples(
                        np.zeros((1, 0), np.float32), np.zeros(1, np.int64), np.zeros((1, 16), np.uint8), 1, {}
                    ),
                )
            ],
            "of shape",
        ),
    ],
)
def test_what_cannot_be_asked_about_is_said_in_one_line(witnesses, message):
    with pytest.raises(DataError, match=message) as caught:
        hold(witnesses)
    assert "\n" not in str(caught.value)


def of_evaluation(x, y) -> Holding:
    return hold([witness("0", rows((0, 10)), training=replace(TRAINING, augmented=False)), server((x, y))])


def test_why_nobody_evaluated_on_what_nobody_trained_on_is_said_as_it_is():
    x, y = rows((20, 40))
    assert of_evaluation(x, y).why_none == ""
    assert (
        of_evaluation(x[:0], y[:0]).why_none
        == "no client or server was seen to evaluate on examples that nobody trained on"
    )
    none = "none of 20 examples that were only evaluated on can be asked about: "
    for seen_so, why in (
        ((x, np.full(20, -1)), "they were seen without labels, or with labels unlike those of training examples"),
        ((x, y.astype(np.float32)), "they were seen without labels, or with labels unlike those of training examples"),
        ((x[:, :3], y), "their form differs from that of the training examples"),
    ):
        assert of_evaluation(*seen_so).why_none == none + why
    changed = [witness("0", rows((0, 10)), rows((20, 40)), training=replace(TRAINING, augmented=True))]
    assert hold(changed).why_none.endswith(
        "clients change their examples each time, so nobody knows whether they trained on them"
    )
    others = hold([witness("0", rows((0, 10)), rows((20, 40))), witness("1", rows((20, 40)))])
    assert others.why_none == f"{none}somebody trained on them, or may have done so"


def test_clients_whose_examples_are_of_another_form_are_named():
    x, y = rows((60, 80))
    halves = witness("3", (x[:, :3], y))
    numbers = witness("4", (x, y.astype(np.float32)))
    holding = hold([*World.witnesses(10**6), halves, numbers])
    assert holding.shape == (FEATURES,)
    told = "\n".join(holding.notes)
    assert (
        f"client 3 trains on examples of float32 of shape (3,), and most clients on float32 of shape ({FEATURES},)"
        in told
    )
    assert "client 4 has labels of a different type from most" in told
    # These are the true reasons, and no other is given.
    assert not any("certain" in note for note in holding.notes)


def test_labels_that_the_model_of_most_has_no_output_for_are_one_clients_own():
    """Cross-entropy refuses them: one client that states them takes nobody else's page."""
    model = WitnessedModel("torch.nn:Linear", {}, (FEATURES,), CLASSES, "cross-entropy", "")
    clients = [replace(each, model=model) for each in World.witnesses(10**6)]
    x, _ = rows((380, 400))
    labels = np.concatenate([np.zeros(5, np.int64), np.full(15, 10**6)])
    holding = hold([*clients, replace(witness("3", (x, labels)), model=model)])
    assert f"client 3 has labels up to 1e+06, and the model that most clients train has {CLASSES} outputs" in "\n".join(
        holding.notes
    )
    assert max(y for _, y in holding.examples.values()) < CLASSES
    assert len(holding.clients["3"].own(holding.examples)) == 5
    # Where most have such labels they are no slip of one client's.
    everybody = [replace(each, trained=replace(each.trained, y=each.trained.y + CLASSES)) for each in clients]
    assert max(y for _, y in hold(everybody).examples.values()) >= CLASSES


HOLES = X.copy()
HOLES[::2, 1] = np.nan


def test_examples_with_a_missing_value_are_counted_and_may_be_asked_about_and_nothing_else():
    """Half of all have one, held or not: that an example has one tells nothing of who trained on it."""
    clients = [witness(str(each), (HOLES[60 * each :][:60], Y[60 * each :][:60])) for each in range(3)]
    holding = hold([*clients, server((HOLES[200:], Y[200:]))])
    assert (
        "90 of the 180 training examples that were seen hold a value that is not finite, such as a missing cell (by "
        in (" ".join(holding.notes))
    )
    assert "0: 30, 1: 30, 2: 30" in " ".join(holding.notes)
    chosen = choose(holding, most=160, seed=3)
    for owned in (True, False):
        asked = [key for key in chosen.targets if (key in holding.holders) == owned]
        share = np.mean([key in holding.incomplete for key in asked])
        assert 0.3 < share < 0.7
    for key in (*chosen.evaluation, *chosen.auxiliary):
        assert np.isfinite(holding.examples[key][0]).all()
    assert len(chosen.evaluation)
    assert len(chosen.auxiliary)
    left = holding.leave_out_incomplete("nobody asks")
    assert {*left.examples} == {*holding.complete}
    assert all(np.isfinite(x).all() for x, _ in left.examples.values())
    assert left.notes[-1].endswith("a value that is not finite: nobody asks")


def test_where_all_training_examples_lack_a_value_that_cannot_be_asked_about_it_is_said():
    empty = np.full((9, FEATURES), np.nan, np.float32)
    empty[:, 0] = np.arange(9)
    holding = hold([witness("0", (empty, Y[:9])), server(rows((20, 40)))])
    with pytest.raises(DataError, match="all training examples hold a value that is not finite, and why: no attack"):
        holding.leave_out_incomplete("why")
