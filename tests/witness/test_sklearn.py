"""What scikit-learn fits is seen as it is."""

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.cluster import KMeans
from sklearn.linear_model import LinearRegression, LogisticRegression, SGDOneClassSVM
from sklearn.naive_bayes import GaussianNB
from sklearn.preprocessing import StandardScaler

from fedattack.witness import WitnessedClientApp, read_witnesses
from tests.witness.apps import hashes_of, seen, witness_of
from tests.witness.test_flower import call_all

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


def notes_of(fit, folder):
    """Call one client that replies what ``fit`` returns, by names, and return what was noted."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        arrays = ArrayRecord({name: Array(value) for name, value in fit().items()})
        return Message(RecordDict({"arrays": arrays, "m": MetricRecord({"num-examples": 30})}), reply_to=message)

    call_all(WitnessedClientApp(app, folder), nodes=1)
    (witness,) = read_witnesses(folder)
    return witness


def test_what_has_no_weights_is_noted_with_its_statistics_that_are_sent(tmp_path):
    def cluster():
        fitted = KMeans(3, n_init=1, random_state=0).fit(X)
        return {"middles": fitted.cluster_centers_, "sizes": np.bincount(fitted.labels_).astype(float)}

    witness = notes_of(cluster, tmp_path / "clusters")
    assert witness.notes == (
        "KMeans was fitted, which has no weights that follow a loss, and replies hold its cluster_centers_ as middles: "
        "no attack asks about such training",
    )

    def bayes():
        fitted = GaussianNB().partial_fit(X, np.arange(30) % 2, classes=[0, 1, 2])
        return {"n": fitted.class_count_, "mean": np.nan_to_num(fitted.theta_)}

    witness = notes_of(bayes, tmp_path / "bayes")
    assert witness.notes == (
        "GaussianNB was fitted, which has no weights that follow a loss, and replies hold its class_count_ as n, its "
        "theta_ as mean: no attack asks about such training",
    )
    assert witness.model.why == "GaussianNB has no weights that follow a loss: no attack asks about such training"

    def outliers():
        return {"w": SGDOneClassSVM().fit(X).coef_}

    (note,) = notes_of(outliers, tmp_path / "outliers").notes
    assert note.startswith(
        "SGDOneClassSVM was fitted, which is neither a classifier nor a regressor, and replies hold i"
    )


def test_what_is_fitted_beside_a_model_is_noted_where_it_is_sent(tmp_path):
    y = np.arange(30) % 2

    def scaled(**further):
        scaler = StandardScaler().fit(X)
        model = LogisticRegression().fit(scaler.transform(X), y)
        return {"w": model.coef_, "b": model.intercept_} | {name: getattr(scaler, name) for name in further}

    assert notes_of(scaled, tmp_path / "model").notes == ()
    note = notes_of(lambda: scaled(mean_=True), tmp_path / "both").notes[-1]
    assert note.startswith(
        "StandardScaler was fitted, which has no weights that follow a loss, and replies hold its me"
    )
