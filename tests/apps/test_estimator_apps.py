"""Whole apps that fit estimators of scikit-learn: what clients send of them is asked for losses, and attacked."""

import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedattack.apps.app import App
from fedattack.record import Record, rewrite_record
from fedattack.record.folder import Part
from fedattack.runs.pipeline import judge_folder
from fedattack.runs.watch import Watch
from tests.apps.worlds import attack_all, importable_app, pose_all, run_here

CLIENTS = 6

# Each client fits an estimator anew, and evaluates on further examples.
APP = """
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from sklearn.cluster import KMeans
from sklearn.ensemble import IsolationForest
from sklearn.mixture import GaussianMixture
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

SIZE, WIDTH = 16, 5
client, server = ClientApp(), ServerApp()


def load(site):
    rng = np.random.default_rng(site)
    y = np.arange(2 * SIZE) % 2
    x = rng.normal(size=(2 * SIZE, WIDTH)) + y[:, None]
    return x[:SIZE], y[:SIZE], x[SIZE:], y[SIZE:]


def make(kind):
    if kind == "bayes":
        return GaussianNB(), ["theta_", "var_", "class_prior_"]
    if kind == "machine":
        return SVC(C=100.0, gamma=0.5), ["support_vectors_", "dual_coef_", "intercept_"]
    if kind == "mixture":
        return GaussianMixture(3, covariance_type="diag", random_state=0), ["weights_", "means_", "covariances_"]
    if kind == "centres":
        return KMeans(8, n_init=1, random_state=0), ["cluster_centers_"]
    if kind == "neighbours":
        return KNeighborsClassifier(1), []
    if kind == "outliers":
        return IsolationForest(n_estimators=5, contamination=0.1, random_state=0), ["offset_"]
    return make_pipeline(StandardScaler(), SVC(C=100.0, gamma=0.5)), ["support_vectors_", "dual_coef_", "intercept_"]


def sent(kind, x, y):
    estimator, names = make(kind)
    estimator.fit(x, y)
    last = estimator[-1] if kind == "pipeline" else estimator
    if not names:
        return estimator, {"rows": np.asarray(estimator._fit_X), "classes": np.asarray(estimator._y)}
    return estimator, {name: np.asarray(getattr(last, name)) for name in names}


@client.train()
def train(message, context):
    x, y, _, _ = load(context.node_config["partition-id"])
    _, arrays = sent(context.run_config["kind"], x, y)
    content = {"arrays": ArrayRecord({name: Array(value) for name, value in arrays.items()})}
    return Message(RecordDict(content | {"metrics": MetricRecord({"num-examples": len(y)})}), reply_to=message)


@client.evaluate()
def evaluate(message, context):
    x, y, further, labels = load(context.node_config["partition-id"])
    kind = context.run_config["kind"]
    estimator, _ = sent(kind, x, y)
    score = estimator.score if hasattr(estimator, "score") else estimator.score_samples
    values = score(further) if kind in ("mixture", "centres", "outliers") else score(further, labels)
    return Message(RecordDict({"metrics": MetricRecord({"score": float(np.mean(values))})}), reply_to=message)


@server.main()
def main(grid, context):
    content = RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(1))})})
    nodes = [*grid.get_node_ids()]
    for type_ in ("train", "evaluate"):
        grid.send_and_receive([Message(content, node, type_) for node in nodes])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with importable_app(tmp_path_factory.mktemp("app"), "fitting", APP) as where:
        yield where


def run(folder: Path, out: Path, kind: str) -> tuple[Part, App]:
    out.mkdir()
    part, app = Part(out, ""), importlib.import_module("fitting")
    run_here(part, app.server, app.client, {"kind": kind}, CLIENTS)
    return part, App(folder, {"kind": kind}, CLIENTS)


def judge(part: Part, posed) -> dict:
    attack_all([part], [posed])
    findings, _ = judge_folder(part.folder, device="cpu", watch=Watch())
    return {finding.name: finding for finding in findings}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bayes", "machine", "mixture", "centres", "neighbours", "pipeline"])
def test_what_clients_send_of_an_estimator_tells_who_trained_on_what(kind, tmp_path, folder, here):
    part, app = run(folder, tmp_path / "out", kind)
    (posed,) = pose_all([part], app=app)
    answers = posed.knowledge.answers
    assert answers is not None, posed.reasons
    assert not any("left out" in note for note in posed.notes)
    # The app itself trains shadow models.
    assert posed.knowledge.shadow_losses is not None
    targets = posed.knowledge.targets
    module = importlib.import_module("fitting")
    for node, losses in zip(answers.nodes, answers.losses, strict=True):
        # On what it trained a client's own estimator has smaller losses than on what it did not.
        site = int(node) - int(min(answers.nodes, key=int))
        own = module.load(site)[0]
        if kind == "pipeline":
            own = (own - own.mean(axis=0)) / own.std(axis=0)
        is_own = np.isclose(targets.x[:, None], own[None], atol=1e-5).all(axis=2).any(axis=1)
        assert is_own.sum() == module.SIZE
        assert losses[is_own].mean() < losses[~is_own].mean()
    found = judge(part, posed)
    assert found["membership.auc"].value > 0.5
    if kind in ("machine", "pipeline"):
        assert (found["sia.asr"].verdict, found["membership.auc"].verdict) == ("leak", "leak")
    if kind == "neighbours":
        assert found["plaintext.given-away"].read_off["certain"] == CLIENTS * module.SIZE


@pytest.mark.slow
def test_an_estimator_without_losses_is_named(tmp_path, folder, here):
    part, app = run(folder, tmp_path / "out", "outliers")
    (posed,) = pose_all([part], app=app)
    assert posed.knowledge.answers is None
    assert "IsolationForest" in posed.reasons["losses"].what
    assert "do not depend on the attributes that clients send" in posed.reasons["losses"].what
    assert "plaintext" in attack_all([part], [posed]).scored


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bayes", "neighbours"])
def test_nothing_is_found_where_clients_train_on_other_examples(kind, tmp_path, folder, here):
    """The null: what is sent was fitted to examples that are drawn alike, and are not those that are asked about."""
    part, app = run(folder, tmp_path / "out", kind)
    module = importlib.import_module("fitting")
    fresh = iter(range(1_000, 2_000))

    def change(round_, exchange):
        replies = []
        for reply in exchange.replies:
            x, y, _, _ = module.load(next(fresh))
            replies.append(replace(reply, arrays=module.sent(kind, x, y)[1]))
        return replace(exchange, replies=replies)

    record = Record(part.record)
    other = rewrite_record(record, tmp_path / "other", change)
    part.record.rename(tmp_path / "record")
    other.path.rename(part.record)
    (posed,) = pose_all([part], app=app)
    assert posed.knowledge.answers is not None
    found = judge(part, posed)
    for name in ("sia.asr", "membership.auc", "plaintext.given-away"):
        assert found[name].verdict != "leak", name
