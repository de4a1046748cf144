"""wards: what the server releases, for whoever tests it without a run."""

import logging
from types import SimpleNamespace

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

logging.getLogger("flwr").setLevel(logging.ERROR)


def released(update):
    """Return the new model where one ward sends this update, and nine send none; the old model was zeros."""
    strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 2.0, 1.0, num_sampled_clients=10)
    zeros = {name: np.zeros_like(array) for name, array in update.items()}
    strategy.current_arrays = record_of(zeros)
    arrays, _ = strategy.aggregate_train(1, [reply_of(update), *(reply_of(zeros) for _ in range(9))])
    return {name: array.numpy() for name, array in arrays.items()}


def record_of(arrays):
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def reply_of(arrays):
    # Flower divides by the norm of each update: none may be zero.
    moved = {name: array + np.float32(1e-12) for name, array in arrays.items()}
    content = RecordDict({"arrays": record_of(moved), "metrics": MetricRecord({"num-examples": 120})})
    return SimpleNamespace(content=content, has_error=lambda: False)
