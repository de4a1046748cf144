import dataclasses
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from fedattack.base.errors import DataError
from fedattack.data import DATASETS, data_root, download_dataset, load_dataset
from tests.data.files import write_mnist_family
from tests.refusals import refused


def test_same_seed_gives_the_same_records_and_fingerprint_and_another_seed_others():
    first, again, other = (load_dataset("digits", seed=seed) for seed in (0, 0, 1))
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint != other.fingerprint
    changed = dataclasses.replace(first, y_test=first.y_test[::-1].copy())
    assert changed.fingerprint != first.fingerprint


def test_size_draws_a_subsample_of_the_pool():
    data = load_dataset("digits", seed=0, size=100)
    assert (len(data.y_train), len(data.y_test)) == (80, 20)
    assert load_dataset("digits", seed=1, size=100).fingerprint != data.fingerprint


def test_test_fraction_is_the_share_of_test_records():
    assert len(load_dataset("digits", size=100, test_fraction=0.35).y_test) == 35


@pytest.mark.parametrize("size", [9, 1798])
def test_size_outside_the_pool_is_refused(size):
    with pytest.raises(DataError, match=f"between 10 and its 1797 examples; got {size}"):
        load_dataset("digits", size=size)


@pytest.mark.parametrize("fraction", [0.0, 1.0, float("nan")])
def test_test_fraction_outside_its_range_is_refused(fraction):
    with pytest.raises(DataError, match="between 0 and 1"):
        load_dataset("digits", test_fraction=fraction)


def test_unknown_name_lists_the_known_ones_and_the_npz_form():
    with pytest.raises(DataError, match=r"'mnits': did you mean mnist\?.*\.npz"):
        load_dataset("mnits")


def test_data_root_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDATTACK_DATA", str(tmp_path / "data"))
    assert data_root() == tmp_path / "data"
    monkeypatch.delenv("FEDATTACK_DATA")
    assert data_root() == tmp_path / "cache" / "fedattack"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_root() == Path.home() / ".cache" / "fedattack"


def test_size_keeps_the_proportion_of_a_datasets_own_test_set(tmp_path):
    write_mnist_family(tmp_path / "MNIST" / "raw", "train", "t10k")
    data = load_dataset("mnist", root=tmp_path, size=12)
    assert (len(data.y_train), len(data.y_test)) == (8, 4)


def test_missing_files_name_the_folder_and_the_command(tmp_path):
    for name in ("mnist", "fashion-mnist", "emnist", "cifar10", "cifar100"):
        with pytest.raises(DataError, match=f"{tmp_path}.*run `fedattack download {name}`"):
            load_dataset(name, root=tmp_path)


@pytest.mark.parametrize("name", [name for name, source in DATASETS.items() if source.download])
@pytest.mark.slow
def test_download_without_a_network_is_one_clear_line(tmp_path, monkeypatch, name):
    def offline(*args: object, **kwargs: object) -> None:
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(urllib.request, "urlopen", offline)
    monkeypatch.setattr("sklearn.datasets._openml.urlopen", offline)
    with refused(DataError, f"could not download '{name}' into .*no route to host.*network"):
        download_dataset(name, root=tmp_path)


def test_download_of_what_is_bundled_or_unknown_is_refused():
    with pytest.raises(DataError, match="'digits' needs no download"):
        download_dataset("digits")
    with pytest.raises(DataError, match="unknown dataset 'imagenet'"):
        download_dataset("imagenet")


@pytest.mark.parametrize("name", [name for name, source in DATASETS.items() if source.by_hand])
def test_what_a_user_has_to_fetch_is_said_by_download_and_by_reading(tmp_path, name):
    for call in (download_dataset, load_dataset):
        with refused(DataError, f"'{name}' is not .*fetch .* into a folder {name}"):
            call(name, root=tmp_path)
