"""Sizes of groups are found where they add up, and held against lists of anybody's numbers."""

import itertools

import numpy as np
import pytest

from fedattack.attacks import ATTACKS
from fedattack.audit.finding import LEAK
from fedattack.threats.plaintext.arrays import make_sent
from fedattack.threats.plaintext.groups import SmallGroups, find_group_sizes
from fedattack.threats.plaintext.section import _explain
from tests.threats.plaintext.world import CLIENTS, EACH, judged_all, plain, write_plain_run


def sizes_of(vectors, counts, least=5):
    """Find what these vectors of each client, by one name, are; each client has so many examples."""
    sent = []
    for client, of_client in enumerate(vectors):
        sent += [(str(client), make_sent(str(client), "train", "sizes", np.asarray(one))) for one in of_client]
    found = find_group_sizes(sent, {str(client): count for client, count in enumerate(counts)})
    return SmallGroups.of_runs([found], least)


def deal(draw, clients, groups=6, rounds=1, each=30):
    """Deal the examples of clients to groups, anew in each round."""
    counts = each + draw.integers(-5, 6, size=clients)
    shares = draw.dirichlet(np.ones(groups), size=clients)
    return [
        [draw.multinomial(count, share) for _ in range(rounds)] for count, share in zip(counts, shares, strict=True)
    ], counts


def test_groups_are_counted_as_a_plain_loop_counts_them():
    vectors, counts = deal(np.random.default_rng(0), 5, rounds=3)
    # The numbers of one client do not add up in one of its replies.
    vectors[2][1] = vectors[2][1] + 1
    for least in (2, 5, 9):
        (sizes,) = sizes_of(vectors, counts, least).by_name["sizes", "train"]
        for client, of_client in enumerate(vectors):
            fits = all(one.sum() == counts[client] for one in of_client)
            assert sizes.add_up[client] == fits == (client != 2)
            small = [sum(0 < size < least for size in one) for one in of_client]
            filled = [sum(size > 0 for size in one) for one in of_client]
            shares = [few / of for few, of in zip(small, filled, strict=True)]
            assert sizes.share_small(least)[client] == pytest.approx(np.mean(shares) if fits else 0)
            assert sizes.count_small(least)[client] == (max(small) if fits else 0)
            assert sizes.filled[client] == (max(filled) if fits else 0)


def test_an_accident_is_as_likely_as_all_lists_of_anybodys_numbers_say():
    vectors = [[np.array([3, 1, 0])], [np.array([2, 2, 1])], [np.array([0, 1, 4])]]
    groups = sizes_of(vectors, [4, 5, 5])
    (sizes,) = groups.by_name["sizes", "train"]
    every = [sum(each) for each in itertools.product(*np.concatenate(vectors).T.tolist())]
    for client, count in enumerate([4, 5, 5]):
        assert 2.0 ** -sizes.bits[client] == pytest.approx(every.count(count) / len(every))
    shares = []
    for lists in itertools.product(itertools.product(*np.concatenate(vectors).T.tolist()), repeat=3):
        of_client = []
        for sizes_, count in zip(lists, [4, 5, 5], strict=True):
            filled = [size for size in sizes_ if size]
            fits = sum(sizes_) == count
            of_client.append(np.mean([size < 5 for size in filled]) if fits and filled else 0.0)
        shares.append(np.mean(of_client))
    assert groups.draw(np.random.default_rng(0), 40_000).mean() == pytest.approx(np.mean(shares), abs=0.01)


def test_many_that_add_up_are_certain_and_few_are_not():
    draw = np.random.default_rng(1)
    assert sizes_of(*deal(draw, 6, rounds=4)).is_certain(("sizes", "train"))
    assert not sizes_of(*deal(draw, 2)).is_certain(("sizes", "train"))
    # The same list for everybody adds up by itself.
    assert not sizes_of([[np.array([3, 7])]] * 9, [10] * 9).is_certain(("sizes", "train"))
    assert not sizes_of([[np.array([3, 8])]] * 9, [10] * 9).by_name


def test_of_numbers_that_add_up_by_accident_hardly_a_run_shows_a_leak():
    shown = certain = 0
    for run in range(200):
        draw = np.random.default_rng(run)
        vectors, counts = deal(draw, 6, each=12)
        # Everybody's numbers, shuffled group by group.
        shuffled = np.stack([draw.permutation(column) for column in np.concatenate(vectors).T], axis=1)
        groups = sizes_of([[one] for one in shuffled], counts)
        if groups.by_name:
            shown += groups.test(draw).p <= 0.05
            certain += groups.is_certain(("sizes", "train"))
    assert certain == 0
    # More than 16 of 200 would be met once in 30 times at a rate of 5 %.
    assert shown <= 16


def test_a_page_says_how_small_groups_are(tmp_path):
    draw = np.random.default_rng(5)

    def sizes(client, x, y):
        return {"sizes": np.append(draw.multinomial(EACH - 1, [0.5, 0.2, 0.1, 0.2]), 1)}

    folder = write_plain_run(tmp_path, plain, adds=sizes)
    found = judged_all(folder)
    groups = found["small-groups"]
    assert (groups.verdict, groups.is_certain, groups.read_off["clients"]) == (LEAK, True, CLIENTS)
    explained = _explain([found["own-examples"], groups])
    (said,) = [words for words in explained.words if words.startswith("sizes holds")]
    assert said.startswith("sizes holds sizes of groups, which add up to the number of examples of 6 of 6 clients: ")
    assert said.endswith("have one example; it is certain that these are such sizes.")
    assert explained.certain.endswith("groups of fewer than 5 examples, of 6 clients, are certain")
    below = judged_all(folder, smallest_group="2")["small-groups"]
    assert below.value < groups.value
    assert below.series["groups"][0]["least"] == 2


def test_a_control_plants_sizes_too(tmp_path):
    attack = ATTACKS["plaintext"]
    found = judged_all(write_plain_run(tmp_path, plain, adds=lambda client, x, y: attack.plant({}, x, 1)))
    assert found["small-groups"].series["groups"][0]["name"] == "planted-sizes"
    assert found["small-groups"].series["groups"][0]["clients"] == CLIENTS


def test_without_numbers_that_add_up_nothing_is_said(tmp_path):
    found = judged_all(write_plain_run(tmp_path, plain, adds=lambda client, x, y: {"odd": np.array([3, 1, 4])}))
    assert "small-groups" not in found
