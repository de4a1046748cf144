import itertools
import subprocess
import sys

import numpy as np
import pytest

from fedattack.base.errors import DataError
from fedattack.data import SCHEMES, label_counts, partition
from tests.refusals import refused

SORTED_LABELS = np.repeat(np.arange(10), 55)


def divide(scheme: str, seed: int = 0, y: np.ndarray = SORTED_LABELS, **options: object) -> list[np.ndarray]:
    sizes = [100, 50, 200, 120, 80] if scheme == "size" else None
    column = np.arange(len(y)) % 7 if scheme == "column" else None
    return partition(y, **{"scheme": scheme, "clients": 5, "seed": seed, "sizes": sizes, "column": column, **options})


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_record_goes_to_exactly_one_client(scheme):
    parts = divide(scheme)
    assert len(parts) == 5
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(550))
    for part in parts:
        assert part.dtype == np.int64
        assert (np.diff(part) > 0).all()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_seed_alone_decides(scheme):
    before = np.random.get_state()[1].copy()  # noqa: NPY002 (checks that the global state is left alone)
    labels = SORTED_LABELS.copy()
    first, again, other = divide(scheme, 4, labels), divide(scheme, 4, labels), divide(scheme, 5, labels)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    np.testing.assert_array_equal(labels, SORTED_LABELS)
    for part, same in zip(first, again, strict=True):
        np.testing.assert_array_equal(part, same)
    assert any(not np.array_equal(part, different) for part, different in zip(first, other, strict=True))


@pytest.mark.parametrize(
    ("scheme", "sizes"),
    [
        ("iid", [110] * 5),
        ("linear", [36, 73, 110, 146, 185]),
        ("square", [10, 40, 90, 160, 250]),
        ("exponential", [6, 17, 47, 128, 352]),
        ("size", [100, 50, 200, 120, 80]),
    ],
)
def test_sizes_follow_the_scheme(scheme, sizes):
    assert [len(part) for part in divide(scheme)] == sizes


@pytest.mark.parametrize("scheme", ["iid", "linear", "square", "size"])
def test_labels_in_order_are_shuffled_before_they_are_cut(scheme):
    largest = max(divide(scheme), key=len)
    assert len(np.unique(SORTED_LABELS[largest])) == 10


def test_which_records_of_a_class_a_dirichlet_client_gets_does_not_follow_the_file():
    first = divide("dirichlet", alpha=1e6)[0]
    positions = first[SORTED_LABELS[first] == 3]
    assert len(positions) >= 10
    assert (np.diff(positions) > 1).any()


def test_alpha_moves_dirichlet_from_one_class_a_client_to_equal_shares():
    even = label_counts(SORTED_LABELS, divide("dirichlet", alpha=1e6), 10)
    np.testing.assert_allclose(even, 11, atol=1)
    uneven = label_counts(SORTED_LABELS, divide("dirichlet", alpha=0.05), 10)
    assert (uneven.max(axis=0) / 55).mean() > 0.8  # nearly all of a class is with one client


def test_a_balanced_dirichlet_keeps_sizes_together_and_labels_apart():
    def spread(scheme):
        sizes = [len(part) for seed in range(10) for part in divide(scheme, seed, alpha=0.3)]
        return np.std(sizes) / np.mean(sizes)

    assert spread("dirichlet-balanced") < 0.6 * spread("dirichlet")
    shares = label_counts(SORTED_LABELS, divide("dirichlet-balanced", alpha=0.1), 10) / len(SORTED_LABELS) * 10
    assert shares.max(axis=1).mean() > 0.3


def test_dirichlet_redraws_until_everyone_has_the_minimum():
    poor = min(len(part) for seed in range(20) for part in divide("dirichlet", seed, alpha=0.3))
    assert poor < 40
    for seed in range(20):
        assert min(len(part) for part in divide("dirichlet", seed, alpha=0.3, min_size=40)) >= 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheme": "even"}, "unknown partition scheme 'even'; expected one of iid, dirichlet"),
        ({"scheme": "iid", "clients": 551}, "550 examples among 551 clients"),
        ({"scheme": "iid", "clients": 0}, "among 0 clients"),
        ({"scheme": "dirichlet", "alpha": 0}, "above 0; got 0"),
        ({"scheme": "dirichlet", "alpha": float("nan")}, "above 0; got nan"),
        ({"scheme": "iid", "min_size": 0}, "min_size must be at least 1; got 0"),
        ({"scheme": "iid", "sizes": [550]}, "only with it; got scheme 'iid'"),
        ({"scheme": "size", "sizes": None}, "got scheme 'size' and sizes None"),
        ({"scheme": "size", "sizes": [100, 450]}, "5 positive numbers.*got 2 numbers with sum 550"),
        ({"scheme": "size", "sizes": [100, 50, 200, 120, 79]}, "sum 550; got 5 numbers with sum 549"),
        ({"scheme": "size", "sizes": [100, 50, 200, 201, -1]}, "5 positive numbers"),
        ({"scheme": "exponential", "clients": 20}, "'exponential' so that each gets at least 1; use fewer clients"),
        ({"scheme": "iid", "min_size": 111}, "'iid' so that each gets at least 111"),
        ({"scheme": "dirichlet", "alpha": 0.01, "min_size": 100}, "'dirichlet' with alpha 0.01 .* at least 100"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_in_one_line(options, message, recwarn):
    with refused(DataError, message):
        divide(**options)
    assert not [warning for warning in recwarn if "partition" in str(warning.message)]


def test_labels_must_be_integers_in_one_axis():
    with pytest.raises(DataError, match=r"got float64, shape \(3,\)"):
        partition([0.0, 1.0, 0.0], scheme="iid", clients=2, seed=0)
    with pytest.raises(DataError, match=r"shape \(1, 3\)"):
        partition([[0, 1, 0]], scheme="iid", clients=2, seed=0)


def test_label_counts_of_a_known_partition():
    counts = label_counts([0, 0, 1, 3, 1], [np.array([0, 2, 4]), np.array([1, 3])], classes=5)
    np.testing.assert_array_equal(counts, [[1, 2, 0, 0, 0], [1, 0, 0, 1, 0]])


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, fedattack.data; print(*{'torch', 'sklearn', 'datasets', 'flwr_datasets'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


def by_column(values, clients: int, seed: int = 0) -> list[np.ndarray]:
    values = np.asarray(values)
    labels = np.zeros(len(values), dtype=int)
    return [values[part] for part in partition(labels, scheme="column", clients=clients, seed=seed, column=values)]


def test_a_value_of_a_column_is_a_client_s_own():
    airlines = np.repeat(["x", "y", "z"], [30, 50, 20])
    assert [set(own.tolist()) for own in by_column(airlines, 3)] == [{"x"}, {"y"}, {"z"}]


def test_a_value_is_divided_where_there_are_more_clients_than_values():
    parts = by_column(np.repeat(["few", "many"], [20, 80]), 5)
    assert [set(own.tolist()) for own in parts] == [{"few"}] + [{"many"}] * 4
    assert [len(own) for own in parts] == [20] * 5


def test_numbers_are_divided_by_their_order():
    ages = np.random.default_rng(0).integers(18, 90, size=503)
    parts = by_column(ages, 10)
    assert {len(own) for own in parts} <= {50, 51}
    for younger, older in itertools.pairwise(parts):
        assert younger.max() <= older.min()


@pytest.mark.parametrize("clients", [2, 100])
def test_two_to_a_hundred_clients(clients):
    assert len(by_column(np.arange(1000) % 250, clients)) == clients


@pytest.mark.parametrize("options", [{"scheme": "column"}, {"scheme": "iid", "column": SORTED_LABELS}])
def test_a_column_goes_with_its_scheme(options):
    with pytest.raises(DataError, match="a column goes with the scheme 'column' and only with it"):
        partition(SORTED_LABELS, clients=2, seed=0, **options)
