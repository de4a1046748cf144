"""What scikit-learn fits is seen as it is."""

import numpy as np
import pandas as pd
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from scipy.sparse import csr_matrix
from sklearn.cluster import DBSCAN, KMeans, MiniBatchKMeans
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.ensemble import IsolationForest, RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression, SGDOneClassSVM
from sklearn.mixture import GaussianMixture
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import LabelEncoder, StandardScaler
from sklearn.svm import SVC, SVR

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
        "KMeans takes no labels: 0 stands for the label of each example",
        "KMeans, which has no weights that follow a loss, was fitted, and replies hold its cluster_centers_ as "
        "middles: only the app can give losses",
    )

    def bayes():
        fitted = GaussianNB().partial_fit(X, np.arange(30) % 2, classes=[0, 1, 2])
        return {"n": fitted.class_count_, "mean": np.nan_to_num(fitted.theta_)}

    witness = notes_of(bayes, tmp_path / "bayes")
    assert witness.notes == (
        "GaussianNB, which has no weights that follow a loss, was fitted, and replies hold its class_count_ as n, its "
        "theta_ as mean: only the app can give losses",
    )
    assert witness.model.why == "GaussianNB has no weights that follow a loss: only the app can give losses"

    def outliers():
        return {"w": SGDOneClassSVM().fit(X).coef_}

    _, note = notes_of(outliers, tmp_path / "outliers").notes
    assert note.startswith(
        "SGDOneClassSVM, which is neither a classifier nor a regressor, was fitted, and replies hold i"
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
        "StandardScaler, which has no weights that follow a loss, was fitted, and replies hold its me"
    )


Y = np.arange(30) % 2
FITTED = {
    "clusters": lambda: {"c": KMeans(3, n_init=1, random_state=0).fit(X).cluster_centers_},
    "clusters in batches": lambda: {"c": _in_batches(MiniBatchKMeans(3, n_init=1, random_state=0)).cluster_centers_},
    "clusters by fit_predict": lambda: {"labels": DBSCAN().fit_predict(X)},
    "scaler": lambda: {"m": StandardScaler().fit(X).mean_},
    "scaler in batches": lambda: {"m": _in_batches(StandardScaler()).mean_},
    "components": lambda: {"c": PCA(2).fit(X).components_},
    "components by fit_transform": lambda: {"z": PCA(2).fit_transform(X)},
    "sparse": lambda: {"c": TruncatedSVD(2).fit(csr_matrix(X)).components_},
    "mixture": lambda: {"m": GaussianMixture(2, random_state=0).fit(X).means_},
    "neighbours": lambda: {"x": NearestNeighbors().fit(X)._fit_X},
    "outliers": lambda: {"o": IsolationForest(n_estimators=3, random_state=0).fit(X).offset_ * np.ones(1)},
    "naive Bayes": lambda: {"m": GaussianNB().fit(X, Y).theta_},
    "support vectors": lambda: {"v": SVC().fit(X, Y).support_vectors_},
    "support vectors of a regression": lambda: {"v": SVR().fit(X, Y * 0.5).support_vectors_},
    "neighbours of a class": lambda: {"x": KNeighborsClassifier().fit(X, Y)._fit_X},
    "trees": lambda: {"i": RandomForestClassifier(3, random_state=0).fit(X, Y).feature_importances_},
    "frame": lambda: {"c": LogisticRegression().fit(pd.DataFrame(X), Y).coef_},
}


def _in_batches(estimator):
    for rows in (X[:10], X[10:20], X[20:]):
        estimator.partial_fit(rows)
    return estimator


@pytest.mark.parametrize("kind", FITTED)
def test_examples_of_all_kinds_of_estimators_are_seen(kind, tmp_path):
    witness = notes_of(FITTED[kind], tmp_path)
    assert seen(witness.trained) == hashes_of(X)
    assert witness.trained.y.min() >= 0
    assert not len(witness.evaluated)


def test_the_last_step_of_a_pipeline_is_seen_with_what_it_takes(tmp_path):
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())

    def fit():
        pipeline.fit(X, Y)
        return {"w": pipeline[-1].coef_, "b": pipeline[-1].intercept_}

    witness = notes_of(fit, tmp_path)
    assert seen(witness.trained) == hashes_of(pipeline[0].transform(X))
    assert witness.trained.counts == {0: 15, 1: 15}
    assert witness.model.loss == "cross-entropy"


def test_what_a_client_only_asks_an_estimator_about_is_evaluated(tmp_path):
    other = X + 1

    def fit():
        fitted = KMeans(3, n_init=1, random_state=0).fit(X)
        fitted.predict(other)
        fitted.score(X)
        return {"c": fitted.cluster_centers_}

    witness = notes_of(fit, tmp_path)
    assert seen(witness.trained) == hashes_of(X)
    assert seen(witness.evaluated) == hashes_of(other)


def test_of_an_encoder_of_labels_nothing_is_an_example(tmp_path):
    witness = notes_of(lambda: {"c": LabelEncoder().fit(Y).classes_}, tmp_path)
    assert not len(witness.trained)


def test_beside_a_model_what_is_fitted_for_it_is_no_example(tmp_path):
    """A scaler takes examples as they are, and the model as it is scaled: those of the model count."""

    def fit():
        scaler = StandardScaler().fit(X)
        model = LogisticRegression().fit(scaler.transform(X), Y)
        return {"w": model.coef_, "b": model.intercept_, "m": scaler.mean_}

    assert seen(notes_of(fit, tmp_path).trained) == hashes_of(StandardScaler().fit_transform(X))


def test_equal_examples_that_are_fitted_are_counted(tmp_path):
    labels = np.arange(30) % 3
    rows = [*range(30), 4, 4, 9]
    witness = witness_of(lambda: GaussianNB().fit(X[rows], labels[rows]), tmp_path)
    assert (witness.trained.total, len(witness.trained)) == (30, 30)
    again = witness.trained.x[witness.trained.again]
    assert sorted(map(tuple, again.tolist())) == sorted(map(tuple, X[[4, 4, 9]].tolist()))
    assert sorted(witness.trained.again_y) == sorted(labels[[4, 4, 9]])
