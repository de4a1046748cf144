from fedattack.data import DATASETS, sources

NEW = """
import numpy as np

from fedattack.data.source import Pool, Source


def read(seed, root):
    return Pool(np.eye(20), np.arange(20) % 2, classes=2)


SOURCES = (Source("eye", "the identity", read),)
"""


def test_datasets_are_in_the_order_of_their_positions_under_their_names():
    assert all(name == source.name for name, source in DATASETS.items())
    assert [*DATASETS][:3] == ["digits", "synthetic", "mnist"]
    assert len(DATASETS) == len(sources._find_built_in()), "two datasets have one name"


def test_a_new_dataset_is_one_new_file(tmp_path, monkeypatch):
    (tmp_path / "identity.py").write_text(NEW)
    monkeypatch.setattr(sources, "__path__", [*sources.__path__, str(tmp_path)])
    names = [source.name for source in sources._find_built_in()]
    assert names == [*DATASETS, "eye"]
