"""What scikit-learn fits is seen as it is."""

import numpy as np
from sklearn.linear_model import LinearRegression, LogisticRegression

from tests.witness.apps import hashes_of, seen, witness_of

X = np.random.default_rng(0).normal(size=(30, 4))


def test_whole_numbers_are_classes_of_a_classifier_and_no_classes_of_a_regressor(tmp_path):
    prices = np.arange(30) % 3 * 1000
    for model, folder, kind, counts in (
        (LinearRegression(), tmp_path / "regressor", "f", {}),
        (LogisticRegression(), tmp_path / "classifier", "i", {0: 10, 1000: 10, 2000: 10}),
    ):
        witness = witness_of(lambda model=model: model.fit(X, prices), folder)
        assert seen(witness.trained) == hashes_of(X)
        assert witness.trained.y.dtype.kind == kind
        assert sorted(witness.trained.y) == sorted(prices)
        assert witness.trained.counts == counts
