"""Targets that nobody trained on come from a client's data wherever that can be said."""

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from fedattack.audit.truth import NOBODY
from fedattack.data import label_counts
from simulations.goals import membership, source
from simulations.origins import deal_origins
from simulations.study import Study
from tests.worlds.reference import DEFAULTS, change, prepare_in

DRAWS = 300


def study(**changes) -> Study:
    return Study.of(change(DEFAULTS, changes) | {"device": "cpu"})


def places_of_tests(plan: Study) -> np.ndarray:
    """Where the test examples stand: after the training examples."""
    return len(plan.data.y_train) + np.arange(len(plan.data.y_test))


def dealt(plan: Study) -> np.ndarray:
    """Origins of the test examples, (DRAWS, n)."""
    return np.array(deal_origins(plan, np.tile(places_of_tests(plan), DRAWS))).reshape(DRAWS, -1)


def assert_shared(origins: np.ndarray, counts: np.ndarray) -> None:
    """Each has an origin, and clients have as many of them as their counts (clients,) say, but for chance."""
    found = Counter(origins.reshape(-1).tolist())
    seen = np.array([found[str(client)] for client in range(len(counts))])
    assert not seen[counts == 0].any()
    assert seen.sum() == origins.size
    if np.count_nonzero(counts) > 1:
        expected = counts * seen.sum() / counts.sum()
        assert chisquare(seen[counts > 0], expected[counts > 0]).pvalue > 1e-4


BY_LABEL = [
    {"partition": "dirichlet", "alpha": 0.3},
    {"partition": "dirichlet-balanced", "alpha": 0.3},
    {"partition": "linear"},
    {"partition": "square"},
    {"partition": "exponential", "clients": 4},
    {"partition": "iid"},
    {"records_per_client": 20},
    {"dataset": "diabetes", "partition": "dirichlet", "alpha": 0.3, "clients": 4},
]


@pytest.mark.parametrize("changes", BY_LABEL, ids=str)
def test_an_origin_is_as_likely_as_the_client_holds_examples_of_the_label(changes):
    plan = study(**changes)
    labels, names = plan.data.labels
    counts = label_counts(labels, plan.division.parts, len(names))
    origins, of_test = dealt(plan), plan.data.test_labels
    for label in range(len(names)):
        assert_shared(origins[:, of_test == label], counts[:, label])


def test_a_label_that_no_client_holds_has_no_origin():
    plan = study(records_per_client=2, clients=2)
    held = plan.data.y_train[plan.division.everyone]
    origins = dealt(plan)
    assert 0 < np.isin(plan.data.y_test, held).mean() < 1
    np.testing.assert_array_equal(origins != "", np.tile(np.isin(plan.data.y_test, held), (DRAWS, 1)))


def table(folder, sites, extra=""):
    """Write a table of patients whose feature ``which`` is their site, with labels that say nothing of it."""
    draw = np.random.default_rng(0)
    lines = [f"{draw.normal():.6f},{site},{draw.integers(2)},{site}" for site in sites]
    (folder / "t.csv").write_text("\n".join(["age,which,y,site", *lines]))
    (folder / "t.toml").write_text(f"file = 't.csv'\ntarget = 'y'\ngroups = ['site']\ncategorical = ['which']\n{extra}")
    return str(folder / "t.toml")


def sites_of(plan) -> tuple[np.ndarray, np.ndarray]:
    """Read the sites off the features."""
    column = plan.data.column("which")
    return column.codes(plan.data.x_train), column.codes(plan.data.x_test)


@pytest.mark.parametrize("records", [0, 30])
@pytest.mark.parametrize("column", ["site", "which", "site,which"])
def test_by_a_column_the_origin_is_the_client_of_the_example_s_value(tmp_path, column, records):
    sites = ["ab", "cd", "ef"] * 100
    plan = study(dataset=table(tmp_path, sites), partition=f"column:{column}", clients=3, records_per_client=records)
    train, test = sites_of(plan)
    client_of = {train[part[0]]: str(client) for client, part in enumerate(plan.division.parts)}
    assert len(client_of) == 3
    expected = np.array([client_of[site] for site in test])
    np.testing.assert_array_equal(dealt(plan), np.tile(expected, (DRAWS, 1)))


def test_clients_of_one_value_share_its_examples_by_their_labels(tmp_path):
    plan = study(dataset=table(tmp_path, ["ab", "ab", "cd"] * 100), partition="column:site", clients=5)
    train, test = sites_of(plan)
    counts = label_counts(plan.data.y_train, plan.division.parts, 2)
    site_of = np.array([train[part[0]] for part in plan.division.parts])
    assert sorted(np.bincount(site_of)) == [2, 3]
    origins = dealt(plan)
    for site in range(2):
        for label in range(2):
            within = (test == site) & (plan.data.y_test == label)
            assert_shared(origins[:, within], counts[:, label] * (site_of == site))


def test_a_site_that_is_cut_in_two_goes_to_both_and_the_others_to_their_own(tmp_path):
    """A client of several sites: its own is not mixed with what it has of the shared one."""
    plan = study(dataset=table(tmp_path, ["ab", "cd", "ef"] * 100), partition="column:site", clients=2)
    train, test = sites_of(plan)
    assert [np.unique(train[part]).tolist() for part in plan.division.parts] == [[0, 1], [1, 2]]
    origins = dealt(plan)
    assert {*origins[:, test == 0].flat} == {"0"}
    assert {*origins[:, test == 2].flat} == {"1"}
    for label in range(2):
        own = [((train[part] == 1) & (plan.data.y_train[part] == label)).sum() for part in plan.division.parts]
        assert_shared(origins[:, (test == 1) & (plan.data.y_test == label)], np.array(own))


def test_a_client_is_all_the_sites_that_its_few_examples_are_drawn_from(tmp_path):
    sites = [f"s{number:02}" for number in range(20)] * 20
    plan = study(dataset=table(tmp_path, sites), partition="column:site", clients=2, records_per_client=6)
    train, test = sites_of(plan)
    assert {*plan.data.y_train[plan.division.parts[0]]} == {*plan.data.y_train[plan.division.parts[1]]} == {0, 1}
    assert len(np.unique(train[plan.division.everyone])) <= 12
    origins = dealt(plan)
    assert {*origins[:, test < 8].flat} == {"0"}
    assert {*origins[:, test > 12].flat} == {"1"}


def test_an_example_of_a_site_that_no_client_has_comes_from_no_client(tmp_path):
    rare = [f"r{number:02}" for number in range(20)]
    plan = study(dataset=table(tmp_path, ["ab"] * 150 + rare + ["zz"] * 150), partition="column:site", clients=3)
    train, test = sites_of(plan)
    unseen = ~np.isin(test, train)
    assert 0 < unseen.sum() < len(rare)
    origins = dealt(plan)
    assert {*origins[:, unseen].flat} == {""}
    common = (test == test.min()) | (test == test.max())
    assert "" not in origins[:, common]


def test_numbers_come_from_the_client_within_whose_examples_they_lie():
    plan = study(dataset="diabetes", partition="column:bmi", clients=4)
    column = plan.data.column("bmi").inputs[0]
    parts = [plan.data.x_train[part, column] for part in plan.division.parts]
    within = [(plan.data.x_test[:, column] > bmi.min()) & (plan.data.x_test[:, column] < bmi.max()) for bmi in parts]
    (origins,) = {tuple(row) for row in dealt(plan).tolist()}
    for client, inside in enumerate(within):
        assert inside.sum() > 10
        assert {*np.array(origins)[inside]} == {str(client)}
    beyond = plan.data.x_test[:, column] > parts[-1].max()
    assert {*np.array(origins)[beyond]} <= {""}


def test_what_records_per_client_leave_over_comes_from_the_site_that_it_is_of(tmp_path):
    """But not from a client that trains on no example of its label."""
    plan = study(dataset=table(tmp_path, ["ab", "cd"] * 150), partition="column:site", clients=2, records_per_client=1)
    train, _ = sites_of(plan)
    free = np.setdiff1d(np.arange(len(train)), plan.division.everyone)
    client_of = {train[part[0]]: client for client, part in enumerate(plan.division.parts)}
    (label_of,) = plan.data.y_train[np.array(plan.division.parts)].T
    for place, origin in zip(free, deal_origins(plan, free), strict=True):
        client = client_of[train[place]]
        assert origin == (str(client) if label_of[client] == plan.data.y_train[place] else "")


GOALS = [(source, {}), (membership, {"nulls": 500, "records_per_client": 60}), (source, {"partition": "iid"})]


@pytest.mark.parametrize(("goal", "changes"), GOALS)
def test_the_truth_says_the_origins_of_the_targets_in_their_order(tmp_path, goal, changes):
    """In a division by colour the picture tells the origin."""
    if changes.get("partition") is None:
        changes = changes | {"dataset": "colour-digits", "partition": "column:colour", "clients": 3}
    plan = study(targets=40, **changes)
    known, truth = prepare_in(tmp_path, plan)
    nobody = truth.owners == NOBODY
    assert {*truth.origins[~nobody]} == {""}
    assert {*truth.origins[nobody]} == {str(client) for client in range(plan.settings.clients)}
    if plan.settings.dataset == "colour-digits":
        brightest = known.targets.x.max(axis=(2, 3)).argmax(axis=1)
        held = {truth.owners[row]: brightest[row] for row in np.flatnonzero(~nobody)}
        assert sorted(held.values()) == [0, 1, 2]
        for row in np.flatnonzero(nobody):
            assert held[truth.origins[row]] == brightest[row]


@pytest.mark.parametrize(("goal", "changes"), GOALS)
def test_origins_shift_no_other_draw(tmp_path, monkeypatch, goal, changes):
    plan = study(targets=40, **changes)
    with_origins = prepare_in(tmp_path / "with", plan)
    monkeypatch.setattr(goal, "deal_origins", lambda study, places: [""] * len(places))
    known, truth = prepare_in(tmp_path / "without", plan)
    assert {*truth.origins} == {""} != {*with_origins[1].origins}
    assert known.asked() == with_origins[0].asked()
    assert truth.owners.tolist() == with_origins[1].owners.tolist()
    np.testing.assert_array_equal(truth.evaluation[0], with_origins[1].evaluation[0])


def test_the_seed_decides_the_origins():
    first, other = study(seed=1), study(seed=2)
    places = places_of_tests(first)
    assert deal_origins(first, places) == deal_origins(study(seed=1), places)
    assert deal_origins(first, places) != deal_origins(other, places)
