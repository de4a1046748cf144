"""What a study of a sensitive column gives to clients and attacker, and what a run of it records."""

import numpy as np
import pytest

from fedattack.attacks import ATTACKS, Scores, read_knowledge
from fedattack.audit.isolation import judge_isolation
from fedattack.audit.opened import Run
from fedattack.audit.truth import read_truth
from fedattack.base.errors import ConfigError, DataError
from fedattack.learning import LocalSGD
from fedattack.record import Record, check_record
from fedattack.record.folder import find_parts
from fedattack.report import read_run, write_report
from fedattack.threats.attribute.ara import FilledInByMatching
from simulations.study import Study
from tests.refusals import refused
from tests.threats.attribute.filled import make_scores
from tests.worlds.attacked import audit_folder
from tests.worlds.reference import DEFAULTS, by_client, change, prepare_in, run_here

SMALL = {
    **DEFAULTS,
    "dataset": "diabetes",
    "sensitive": "sex",
    "clients": 5,
    "records-per-client": 30,
    "batch-size": 0,
    "lr": 0.05,
    "rounds": 4,
    "device": "cpu",
}
TRAINING = LocalSGD(epochs=1, batch_size=0, lr=0.05)


def study(**changes) -> Study:
    return Study.of(change(SMALL, changes))


def run(folder, **changes) -> Record:
    return run_here(folder, change(SMALL, changes))


@pytest.mark.parametrize("victims", [0, 2])
def test_the_attacker_gets_all_but_the_column_and_the_truth_is_the_column(tmp_path, victims):
    plan = study(victims=victims, seed=3)
    (known, truth), data = prepare_in(tmp_path, plan), plan.data
    rows = np.concatenate(plan.division.parts[: victims or 5])
    partial = known.partial
    assert not partial.x[:, 1].any()
    public = np.delete(np.arange(10), 1)
    np.testing.assert_array_equal(partial.x[:, public], data.x_train[rows][:, public])
    np.testing.assert_array_equal(partial.y, data.y_train[rows])
    np.testing.assert_array_equal(truth.attributes.values, data.x_train[rows, 1])
    assert partial.clients.tolist() == list(truth.attributes.owners) == sorted(map(str, [*range(victims or 5)] * 30))
    assert (partial.columns, partial.names, partial.domain.tolist()) == ((1,), ("1", "2"), [[0.0], [1.0]])
    assert partial.prior.sum() == pytest.approx(1)
    assert partial.prior[1] == pytest.approx(data.x_train[:, 1].mean())
    assert truth.targets == partial.fingerprint == known.asked()
    assert truth.attributes.column == "sex"
    assert known.training == TRAINING
    assert (known.model.spec, known.model.loss, known.model.classes) == ("linear", "mse", 1)
    held = {record.tobytes() for record in data.x_train[np.concatenate(plan.division.parts)]}
    assert not held & {record.tobytes() for record in known.auxiliary.x}
    assert not {record.tobytes() for record in data.x_test} & {record.tobytes() for record in known.auxiliary.x}
    assert len(known.auxiliary) > 100
    assert truth.counts.sum() == 150


def test_the_truth_is_in_no_file_of_the_knowledge(tmp_path):
    plan = study()
    prepare_in(tmp_path, plan)
    names = ["auxiliary.npz", "knowledge.json", "partial.npz"]
    assert sorted(path.name for path in (tmp_path / "knowledge").iterdir()) == names
    with np.load(tmp_path / "knowledge" / "partial.npz") as file:
        assert sorted(file.files) == ["clients", "columns", "domain", "names", "prior", "x", "y"]


def test_one_hot_columns_are_blanked_together(tmp_path):
    csv = "age,work,y\n" + "".join(f"{20 + i % 37},{'abc'[i * 7 % 3]},{(i * 5) % 11}\n" for i in range(200))
    (tmp_path / "t.csv").write_text(csv)
    toml = "file = 't.csv'\ntarget = 'y'\ntask = 'regression'\nsensitive = 'work'\n"
    (tmp_path / "t.toml").write_text(toml)
    plan = study(dataset=str(tmp_path / "t.toml"), sensitive="declared", records_per_client=10)
    known, truth = prepare_in(tmp_path, plan)
    partial = known.partial
    assert partial.columns == (1, 2, 3)
    assert not partial.x[:, 1:].any()
    np.testing.assert_array_equal(partial.domain, np.eye(3))
    completed = np.stack([partial.complete(value) for value in range(3)])
    own = completed[truth.attributes.values, np.arange(len(partial))]
    np.testing.assert_array_equal(own, plan.data.x_train[np.concatenate(plan.division.parts)])


def test_a_null_run_shuffles_the_column_for_the_training_alone(tmp_path):
    plan, null = study(), study(permute_sensitive=True)
    shuffled, real = [], []
    for client in range(5):
        (x, y), (other, labels) = plan.records_of(client), null.records_of(client)
        np.testing.assert_array_equal(np.delete(x, 1, axis=1), np.delete(other, 1, axis=1))
        np.testing.assert_array_equal(y, labels)
        shuffled.append(other[:, 1])
        real.append(x[:, 1])
    assert sorted(np.concatenate(shuffled)) == sorted(np.concatenate(real))
    assert 0.35 < (np.concatenate(shuffled) == np.concatenate(real)).mean() < 0.65
    left, right = (prepare_in(tmp_path / str(place), one)[1].attributes for place, one in enumerate((plan, null)))
    np.testing.assert_array_equal(left.values, right.values)
    assert plan.data.x_train[:, 1].tolist() == null.data.x_train[:, 1].tolist(), "the data stay as they are"


def test_dirichlet_divides_a_regression_by_fifths_of_its_targets():
    plan = study(partition="dirichlet", alpha=0.1, records_per_client=0, auxiliary=60)
    spread = [plan.data.y_train[part].std() for part in plan.division.parts]
    assert min(spread) < 0.7 * plan.data.y_train.std()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sensitive": "wealth"}, "diabetes: no column 'wealth'; expected one of age, sex"),
        ({"sensitive": "bmi"}, "'bmi' has more than 100 values, too many to enumerate"),
        ({"dataset": "digits"}, r"digits: its examples have shape \(1, 8, 8\) and so no columns"),
        ({"dataset": "digits", "sensitive": "declared"}, "digits declares no sensitive column"),
        ({"records_per_client": 0}, "sensitive = 'sex' leaves no examples to the attacker"),
        ({"property": "ascent"}, "sensitive and property"),
        ({"sensitive": "", "permute_sensitive": True}, "permute-sensitive without sensitive"),
        ({"sensitive": "", "victims": 2}, "victims = 2 without sensitive, server=isolating"),
        ({"victims": 6}, "victims = 6: expected at most the 5 clients"),
        ({"sensitive": "", "property": "ascent", "server": "isolating"}, "and property: the property"),
        ({"partition": "column:wealth", "records_per_client": 0, "auxiliary": 9}, "no column 'wealth'"),
        ({"partition": "column:sex", "records_per_client": 99}, "records-per-client = 99: by column:sex a client has"),
    ],
)
def test_a_study_that_cannot_be_is_refused_in_one_line(tmp_path, changes, message):
    with refused((ConfigError, DataError), message):
        prepare_in(tmp_path, study(**changes))
    assert not (tmp_path / "knowledge").exists()


def models(record) -> list[dict]:
    """What each client got and sent in each round."""
    found = []
    for seen_of in by_client(record):
        found.append({int(name): (dict(seen.received), dict(seen.arrays)) for name, seen in seen_of.items()})
    return found


def test_an_isolating_server_sends_victims_their_own_model_and_others_their_average(tmp_path):
    record = run(tmp_path, server="isolating", victims=2)
    assert record.server == "isolating"
    assert check_record(record.path).whole
    before, *later = models(record)
    assert len({received["fc1.weight"].tobytes() for received, _ in before.values()}) == 1
    for now in later:
        for client, (received, _) in now.items():
            if client < 2:
                np.testing.assert_array_equal(received["fc1.weight"], before[client][1]["fc1.weight"])
            else:
                mean = np.mean([before[other][1]["fc1.weight"] for other in (2, 3, 4)], axis=0)
                np.testing.assert_allclose(received["fc1.weight"], mean, rtol=1e-5, atol=1e-6)
        before = now


def test_an_isolated_client_s_record_is_gradient_descent_on_its_records_alone(tmp_path):
    record = run(tmp_path, server="isolating", victims=1)
    x, y = Study.of(SMALL).records_of(0)
    design, target = np.c_[x, np.ones(len(x))].astype(np.float64), y.astype(np.float64)
    rounds = models(record)
    start = rounds[0][0][0]
    theta = np.r_[start["fc1.weight"][0], start["fc1.bias"]].astype(np.float64)
    for of_round in rounds:
        theta = theta - 0.05 * 2 / 30 * design.T @ (design @ theta - target)
        sent = of_round[0][1]
        np.testing.assert_allclose(np.r_[sent["fc1.weight"][0], sent["fc1.bias"]], theta, rtol=1e-4, atol=1e-5)


def test_all_clients_can_be_isolated_and_a_passive_server_isolates_nobody(tmp_path):
    record = run(tmp_path / "all", server="isolating")
    before, after, *_ = models(record)
    for client, (received, _) in after.items():
        np.testing.assert_array_equal(received["fc1.weight"], before[client][1]["fc1.weight"])
    passive = run(tmp_path / "passive", rounds=2)
    assert passive.server == "passive"
    assert len({r["fc1.weight"].tobytes() for r, _ in models(passive)[1].values()}) == 1


def findings_of(folder, record):
    known, truth = read_knowledge(folder / "knowledge"), read_truth(folder / "truth")
    evidence = [Run(find_parts(folder)[0], 0, record, known, truth, {})]
    return {item.metric: item for item in judge_isolation(evidence, setting={}, provenance={}, device="cpu")}


def test_what_isolation_costs_and_who_could_notice_is_stated(tmp_path):
    record = run(tmp_path / "one", server="isolating", victims=2)
    found = findings_of(tmp_path / "one", record)
    assert (found["noticed"].value, found["noticed"].n) == (1.0, 2 * 3)
    truth = read_truth(tmp_path / "one" / "truth")
    x, y = truth.evaluation
    last = models(record)[-1]
    r2 = [
        1 - np.mean((x @ sent["fc1.weight"][0] + sent["fc1.bias"] - y) ** 2) / y.var()
        for _, sent in (last[client] for client in (0, 1))
    ]
    assert found["accuracy"].value == pytest.approx(np.mean(r2), rel=1e-5)
    assert found["accuracy"].units == "R²"
    assert list(found["accuracy"].baselines) == ["the others' common model"]
    passive = run(tmp_path / "passive")
    assert findings_of(tmp_path / "passive", passive) == {}, "nobody ever gets the model that it sent"


class Perfect:
    """An attack that knows the truth, or nothing."""

    name = "ara"
    title = paper = "An attack for tests"
    knows = ("everything",)
    needs = ATTACKS["ara"].needs
    options = ATTACKS["ara"].options
    asks_peers = False
    found = FilledInByMatching
    load_scores = staticmethod(Scores.load)


@pytest.mark.parametrize("server", ["isolating", "passive"])
@pytest.mark.slow
def test_a_run_is_audited_and_rendered(tmp_path, monkeypatch, server):
    monkeypatch.setitem(ATTACKS._loaded, "ara", Perfect())
    isolate = server == "isolating"
    run(tmp_path, server=server, victims=2)
    known, truth = read_knowledge(tmp_path / "knowledge"), read_truth(tmp_path / "truth")
    assert set(known.nodes.values()) == {str(client) for client in range(5)}
    assert known.nodes == truth.nodes
    decisions = {"cos": truth.attributes.values, "nothing": np.zeros(60, dtype=int)}
    (part,) = find_parts(tmp_path)
    make_scores("ara", decisions, targets=known.partial.fingerprint).save(part.scores("ara"))
    findings = {finding.name: finding for finding in audit_folder(tmp_path, device="cpu")}
    assert findings["ara.excess"].verdict == "leak"
    assert findings["ara.accuracy"].value == 1.0
    assert set(findings["ara.accuracy"].baselines) == {"majority", "imputation without the model"}
    assert findings["ara.accuracy-nothing"].verdict == "no evidence"
    facts = read_run(tmp_path)
    assert facts["accuracy"]["measure"] == "R²"
    assert facts["threat_model"]["server"].startswith("active" if isolate else "passive")
    assert facts["title"].endswith("active server") == isolate
    assert ("isolation.noticed" in findings) == isolate
    page = write_report(tmp_path).read_text()
    assert "How often sex was filled in right" in page
    assert "R² (%)" in page
    assert ("active: it isolates" in page) == isolate
    make_scores("ara", decisions, targets="others").save(part.scores("ara"))
    with pytest.raises(DataError, match="about other target records than the truth"):
        audit_folder(tmp_path, device="cpu")
