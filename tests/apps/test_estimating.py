"""What clients fit with scikit-learn gives the losses that their own estimators give."""

from itertools import combinations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from sklearn.cluster import KMeans
from sklearn.covariance import EllipticEnvelope
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.ensemble import IsolationForest, RandomForestClassifier
from sklearn.linear_model import Lasso, LogisticRegression
from sklearn.mixture import GaussianMixture
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KernelDensity, KNeighborsClassifier, NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR, LinearSVC, OneClassSVM

from fedattack.apps.asking import BY_ESTIMATOR
from fedattack.apps.estimating import EstimatorPlayer, meets_fit
from fedattack.apps.fitted import Attribute, Attributes, Rows, losses_of
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
    "components": (lambda: IncrementalPCA(2), ("mean_", "components_")),
    "ellipse": (lambda: EllipticEnvelope(random_state=0), ("location_", "covariance_")),
    "kernel machine": (lambda: SVC(gamma=0.3), ("support_vectors_", "dual_coef_", "intercept_", "n_support_")),
    "polynomial": (
        lambda: SVC(kernel="poly", gamma=0.5, coef0=1.0),
        ("support_vectors_", "dual_coef_", "intercept_", "n_support_"),
    ),
    "linear machine": (lambda: SVC(kernel="linear"), ("coef_", "intercept_")),
    "kernel regression": (lambda: SVR(gamma=0.3), ("support_vectors_", "dual_coef_", "intercept_")),
    "outliers": (lambda: OneClassSVM(gamma=0.3), ("support_vectors_", "dual_coef_", "intercept_")),
} | {
    f"{kind} mixture": (
        lambda kind=kind: GaussianMixture(2, covariance_type=kind, random_state=0),
        ("weights_", "means_", "covariances_"),
    )
    for kind in ("full", "tied", "diag", "spherical")
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
    if isinstance(fitted, SVC):
        return [least_margin(fitted, row, label) for row, label in zip(x, y, strict=True)]
    if isinstance(fitted, IncrementalPCA):
        return [np.linalg.norm(row) ** 2 for row in x - fitted.inverse_transform(fitted.transform(x))]
    if isinstance(fitted, LinearSVC):
        scores = zip(fitted.decision_function(x), y, strict=True)
        return [np.log1p(np.exp(max(np.delete(row, label)) - row[label])) for row, label in scores]
    if isinstance(fitted, Lasso | SVR):
        return (fitted.predict(x) - y) ** 2
    return -fitted.score_samples(x)


def least_margin(fitted, row, label):
    """Pair by pair, by scikit-learn's own decisions."""
    fitted.set_params(decision_function_shape="ovo")
    pairs = zip(combinations(fitted.classes_, 2), fitted.decision_function(row[None])[0], strict=True)
    return np.log1p(
        np.exp(-min(value if label == one else -value for (one, other), value in pairs if label in (one, other)))
    )


@pytest.mark.parametrize("kind", SENT)
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
        check_named(player, "GaussianNB")


def check_named(player, name):
    assert f"the attributes of {name} that no client sends were fitted to the target records" in [
        *player.list_assumptions()
    ]


@pytest.mark.parametrize(
    ("make", "names", "message"),
    [
        (GaussianNB, ("theta_", "theta_"), "more than once"),
        (SVC, ("support_vectors_",), "clients send support_vectors_ of SVC, and not its dual_coef_, intercept_, n_sup"),
        (
            SVC,
            ("support_vectors_", "dual_coef_", "intercept_"),
            "clients send support_vectors_, dual_coef_, intercept_ of SVC, and not its n_support_: no loss follows",
        ),
        (
            lambda: SVC(kernel=lambda a, b: a @ b.T),
            ("support_vectors_", "dual_coef_", "intercept_", "n_support_"),
            "SVC has a kernel of its owner's own, which only its client can compute",
        ),
        (
            lambda: IsolationForest(contamination=0.1),
            ("offset_",),
            "the losses of IsolationForest do not depend on the attributes that clients send",
        ),
        (
            RandomForestClassifier,
            ("feature_importances_",),
            "no array of a reply is an unchanged fitted attribute of RandomFor",
        ),
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


def test_of_two_classes_a_machine_tells_one_margin():
    x, y = X.astype(float), Y % 2
    fitted = SVC(gamma=0.2).fit(x, y)
    signed = np.where(y == 1, 1, -1) * fitted.decision_function(x)
    np.testing.assert_allclose(losses_of(fitted, x, y), np.log1p(np.exp(-signed)), rtol=1e-9)


def test_a_kernel_whose_width_follows_the_examples_is_that_of_the_targets():
    names = ("support_vectors_", "dual_coef_", "intercept_", "n_support_")
    check_named(EstimatorPlayer(handler_of(SVC, names), W, X, Y), "SVC")


KEPT = {
    "classes": (lambda: KNeighborsClassifier(3), lambda fitted, x, y: fitted.predict_proba(x)[np.arange(len(y)), y]),
    "distances": (NearestNeighbors, lambda fitted, x, y: fitted.kneighbors(x, 1)[0][:, 0]),
    "density": (KernelDensity, lambda fitted, x, y: -fitted.score_samples(x)),
}


@pytest.mark.parametrize("kind", KEPT)
def test_where_the_rows_themselves_are_sent_the_estimator_is_fitted_to_them(kind):
    make, expect = KEPT[kind]
    app, given = ClientApp(), []

    class Keeping(type(make())):
        def fit(self, X, y=None):
            given[:] = [X, y]
            return super().fit(X, y)

    @app.train()
    def train(message, context):
        Keeping(**make().get_params()).fit(OWN, LABELS)
        arrays = {"rows": Array(np.asarray(given[0])), "classes": Array(np.asarray(given[1]))}
        return Message(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=message)

    player = EstimatorPlayer(Handler(app, {}, {}, "train", {"arrays": ["w"]}, {}), W, X, Y)
    rows = np.array([[0.0] * 4, [1.0] * 4, [2.0] * 4, [0.5] * 4, [1.5] * 4, [3.0] * 4])
    labels = np.arange(6) % 3
    player.take({"rows": rows, "classes": labels})
    found = expect(make().fit(rows, labels), X.astype(float), Y)
    if kind == "classes":
        found = -np.log(np.maximum(found, 1e-12))
    np.testing.assert_allclose(player.losses(), found, rtol=1e-9)
    assert any("clients send the rows that Keeping is fitted to, as rows" in line for line in player.list_assumptions())


def test_the_last_step_of_a_pipeline_takes_examples_as_witnesses_see_them():
    """Those are what the steps before it made; nothing scales them again."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        pipeline = make_pipeline(StandardScaler(), PCA(3), LogisticRegression()).fit(RNG.normal(size=(30, 7)), LABELS)
        arrays = {"w": pipeline[-1].coef_, "b": pipeline[-1].intercept_, "m": pipeline[0].mean_}
        return Message(
            RecordDict({"arrays": ArrayRecord({name: Array(value) for name, value in arrays.items()})}),
            reply_to=message,
        )

    handler = Handler(app, {}, {}, "train", {"arrays": ["w"]}, {})
    assert meets_fit(handler, W)
    x = X[:, :3].astype(float)
    player = EstimatorPlayer(handler, W, x, Y)
    fitted = LogisticRegression().fit(RNG.normal(size=(24, 3)), np.arange(24) % 3)
    player.take({"w": fitted.coef_, "b": fitted.intercept_, "m": np.zeros(7)})
    np.testing.assert_allclose(player.losses(), -np.log(fitted.predict_proba(x)[np.arange(60), Y]), rtol=1e-6)
    said = [*player.list_assumptions()]
    assert "m, which clients also send, is not an attribute of LogisticRegression" in said
    assert any(line.startswith("LogisticRegression is the last step of a pipeline") for line in said)


def test_what_an_estimator_says_of_its_losses_names_the_means():
    """The page says by which means losses were found, by how these notes begin."""
    for content in (Attributes({"w": Attribute("coef_")}), Rows("x", "y")):
        assert content.describe("LinearSVC").startswith(BY_ESTIMATOR)
