"""What clients fit with scikit-learn gives the losses that their own estimators give."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.linear_model import Lasso
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import SVC, LinearSVC

from fedattack.apps.estimating import EstimatorPlayer, meets_fit
from fedattack.apps.player import Handler
from fedattack.base.errors import DataError

RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
X[:, 0] += Y
OWN, LABELS = RNG.normal(size=(30, 4)) + 0.3, np.arange(30) % 3
SENT = {
    "bayes": (GaussianNB, ("class_count_", "theta_", "var_", "class_prior_")),
    "centres": (lambda: KMeans(3, n_init=1, random_state=0), ("cluster_centers_",)),
    "margins": (LinearSVC, ("coef_", "intercept_")),
    "regression": (lambda: Lasso(0.01), ("coef_", "intercept_")),
    "density": (lambda: PCA(2), ("mean_", "components_", "explained_variance_", "noise_variance_")),
}


def sends(fitted, names):
    return {f"a{index}": np.array(getattr(fitted, name)) for index, name in enumerate(names)}


def handler_of(make, names) -> Handler:
    app = ClientApp()

    @app.train()
    def train(message, context):
        arrays = {name: Array(value) for name, value in sends(make().fit(OWN, LABELS), names).items()}
        return Message(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=message)

    return Handler(app, {}, {}, "train", {"arrays": ["w"]}, {})


W = {"w": np.zeros(1)}


def expected(fitted, x, y):
    """The obvious way, by the client's own estimator."""
    if isinstance(fitted, GaussianNB):
        return [-np.log(max(p[label], 1e-12)) for p, label in zip(fitted.predict_proba(x), y, strict=True)]
    if isinstance(fitted, KMeans):
        return [min(np.linalg.norm(row - centre) for centre in fitted.cluster_centers_) for row in x]
    if isinstance(fitted, LinearSVC):
        scores = zip(fitted.decision_function(x), y, strict=True)
        return [np.log1p(np.exp(max(np.delete(row, label)) - row[label])) for row, label in scores]
    if isinstance(fitted, Lasso):
        return (fitted.predict(x) - y) ** 2
    return -fitted.score_samples(x)


@pytest.mark.parametrize("kind", ["bayes", "centres", "margins", "regression", "density"])
def test_losses_are_those_of_the_clients_own_estimator(kind):
    make, names = SENT[kind]
    handler = handler_of(make, names)
    assert meets_fit(handler, W)
    player = EstimatorPlayer(handler, W, X, Y)
    fitted = make().fit(RNG.normal(size=(24, 4)), np.arange(24) % 3)
    player.take(sends(fitted, names))
    np.testing.assert_allclose(player.losses(), expected(fitted, X.astype(float), Y), rtol=1e-6, atol=1e-9)
    assert not any("fitted to the target records" in line for line in player.list_assumptions())
    # Nothing of the client's own examples has a part in it, and an update is a fit on what is given.
    rows = [0, 1, 2, 3, 4, 5, 9, 10, 11]
    update = player.update(W, X[rows], Y[rows], 0)
    for name, array in sends(make().fit(X[rows].astype(float), Y[rows]), names).items():
        np.testing.assert_allclose(update[name], array)


def test_what_clients_do_not_send_is_fitted_to_the_targets_and_named():
    # Without shares of classes, too, which follow from the counts in the app alone.
    for names in (("theta_",), ("class_count_", "theta_", "var_")):
        player = EstimatorPlayer(handler_of(GaussianNB, names), W, X, Y)
        check_named(player)


def check_named(player):
    assert "the attributes of GaussianNB that no client sends were fitted to the target records" in [
        *player.list_assumptions()
    ]


@pytest.mark.parametrize(
    ("make", "names", "message"),
    [
        (GaussianNB, ("theta_", "theta_"), "more than once"),
        (SVC, ("support_vectors_", "dual_coef_"), "SVC"),
        (SVC, ("_probA",), "no array of a reply is an unchanged fitted attribute of SVC"),
    ],
)
def test_what_cannot_be_put_in_is_refused_in_one_line(make, names, message):
    with pytest.raises(DataError, match=message) as caught:
        EstimatorPlayer(handler_of(make, names), W, X, Y)
    assert "\n" not in str(caught.value)


def test_the_source_of_what_nobody_trained_on_is_found_as_often_as_by_chance():
    make, names = SENT["bayes"]
    rng = np.random.default_rng(8)
    x, y, clients = rng.normal(size=(600, 4)), np.arange(600) % 3, 4
    player = EstimatorPlayer(handler_of(make, names), W, x, y)
    held = np.arange(480).reshape(clients, -1)
    losses = []
    for rows in held:
        # Of 120 rows 12 train, so that a client's own examples are told from others'.
        player.take(sends(make().fit(x[rows[:12]], y[rows[:12]]), names))
        losses.append(player.losses())
    guesses = np.argmin(losses, axis=0)
    owners = np.repeat(np.arange(clients), 120)
    trained = np.arange(480) % 120 < 12
    # Three standard deviations of chance, and more where the rows trained.
    null = np.mean(guesses[:480][~trained] == owners[~trained])
    assert abs(null - 0.25) < 3 * np.sqrt(0.25 * 0.75 / (~trained).sum())
    assert np.mean(guesses[:480][trained] == owners[trained]) > 0.25 + 2 * np.sqrt(0.25 * 0.75 / trained.sum())
