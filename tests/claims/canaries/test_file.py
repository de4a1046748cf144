"""``canaries.toml``, and the examples beside it."""

import numpy as np
import pytest

from fedattack.base.errors import ConfigError, DataError
from fedattack.claims.canaries import (
    CANARIES,
    Canaries,
    CanaryExamples,
    read_canaries,
    read_examples,
    with_canaries,
    write_canaries,
)


def drawn(count=40, clients=4):
    rng = np.random.default_rng(0)
    return CanaryExamples.drawn(rng.normal(size=(count, 3)), rng.integers(0, 2, count), clients=clients, seed=1)


def test_a_file_is_read_as_it_was_written(tmp_path):
    canaries = Canaries(count=20, seed=7, clip=0.5)
    write_canaries(tmp_path / CANARIES, canaries)
    assert read_canaries(tmp_path / CANARIES) == canaries


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("count = 20\nseed = 7", "clip is missing"),
        ("count = 1\nseed = 7\nclip = 1.0", "count"),
        ("count = 20\nseed = 7\nclip = nan", "clip"),
        ("count = 20\nseed = 7\nclip = 1.0\nwho = 3", "who"),
        ("count = 100000\nseed = 7\nclip = 1.0", "expected at most 2,000"),
        ('kind = "bird"\ncount = 20\nseed = 7', "kind"),
        ("count = ", "cannot be read as TOML"),
        pytest.param(f"count = {'9' * 5000}", "cannot be read as TOML", id="digits"),
        pytest.param(f"count = {'[' * 5000}", "cannot be read as TOML", id="lists"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path, text, fault):
    path = tmp_path / CANARIES
    path.write_text(text)
    with pytest.raises(ConfigError, match=fault) as caught:
        read_canaries(path)
    assert str(path) in str(caught.value)
    assert "CANARIES.md" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is not there"):
        read_canaries(tmp_path / CANARIES)
    with pytest.raises(DataError, match="is not there"):
        read_examples(tmp_path)


def test_examples_go_to_their_clients_by_coins(tmp_path):
    examples = drawn()
    examples.write(tmp_path, seed=1)
    assert read_canaries(tmp_path / CANARIES) == Canaries(kind="example", count=40, seed=1)
    own = np.zeros((5, 3), np.float32), np.zeros(5, np.int64)
    total = 0
    for client in range(4):
        x, y = with_canaries(*own, client=client, folder=tmp_path)
        mine = examples.included & (examples.client == str(client))
        assert np.array_equal(x[5:], examples.x[mine].astype(np.float32))
        assert np.array_equal(y[5:], examples.y[mine])
        assert (x.dtype, y.dtype) == (np.float32, np.int64)
        total += len(y) - 5
    assert total == examples.included.sum()
    assert 10 < total < 30
    assert np.array_equal(drawn().included, examples.included)


def test_examples_of_other_data_are_refused(tmp_path):
    drawn().write(tmp_path, seed=1)
    with pytest.raises(DataError, match="make them of the same data"):
        with_canaries(np.zeros((5, 4)), np.zeros(5), client=0, folder=tmp_path)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"x": np.full((40, 3), "a")}, r"x: expected numbers \(canaries, …\), got <U1"),
        ({"y": np.zeros(40, complex)}, r"y: expected numbers \(40,\), got complex128"),
        ({"included": np.zeros(40)}, r"included: expected yes or no \(40,\), got float64"),
        ({"client": np.zeros(40)}, r"client: expected texts \(40,\), got float64"),
        ({"x": np.array(3.0)}, r"x: expected numbers \(canaries, …\), got float64 \(\)"),
        ({"y": np.zeros(3)}, r"y: expected numbers \(40,\), got float64 \(3,\)"),
        ({"included": np.array(True)}, r"included: expected yes or no \(40,\), got bool \(\)"),
        ({name: array[:1] for name, array in vars(drawn()).items()}, "2 examples or more"),
        ({"x": np.full((40, 3), np.nan)}, "x holds numbers that are not finite"),
        ({"y": np.full(40, np.inf)}, "y holds numbers that are not finite"),
    ],
)
def test_damaged_examples_are_refused(tmp_path, change, fault):
    arrays = vars(drawn()) | change
    np.savez(tmp_path / "canaries.npz", **arrays)
    with pytest.raises(DataError, match=fault) as caught:
        read_examples(tmp_path)
    assert str(caught.value).endswith("write it again with CanaryExamples.write")
    assert "\n" not in str(caught.value)


def test_a_file_without_all_arrays_is_refused(tmp_path):
    np.savez(tmp_path / "canaries.npz", x=np.zeros(3))
    with pytest.raises(DataError, match="expected the arrays"):
        read_examples(tmp_path)


def test_more_clients_than_memory_holds_are_refused():
    assert Canaries(count=2000, seed=1, clip=1.0).count == 2000
    with pytest.raises(ValueError, match=r"take 320 GB of memory; expected at most 2,000"):
        Canaries(count=100_000, seed=1, clip=1.0)
    assert Canaries(kind="example", count=100_000, seed=1).count == 100_000
