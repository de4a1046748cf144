"""Datasets, and who holds which of their examples.

Torchvision, scikit-learn and flwr-datasets take seconds to import, so they are imported where they are used and not
with this package.
"""

from fedattack.data.dataset import Dataset
from fedattack.data.loading import data_root, download_dataset, load_dataset
from fedattack.data.partition import SCHEMES, label_counts, partition
from fedattack.data.sources import DATASETS

__all__ = [
    "DATASETS",
    "SCHEMES",
    "Dataset",
    "data_root",
    "download_dataset",
    "label_counts",
    "load_dataset",
    "partition",
]
