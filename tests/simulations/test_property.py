"""What a study with a property gives to clients, targets and attacker, and what a run of it records."""

import numpy as np
import pytest

from fedattack.base.errors import ConfigError, DataError, FedAttackError
from fedattack.learning import LocalSGD
from fedattack.record import Record, check_record
from fedattack.record.nodes import read_nodes
from fedattack.runs.presets import load_preset, preset_names, resolve_settings
from fedattack.runs.settings import PROPERTIES
from simulations.records import singles
from simulations.study import Study
from strategies.secure_aggregation import SecAggPlan
from tests.refusals import refused
from tests.strategies.rounding import rmse
from tests.worlds.reference import DEFAULTS, change, prepare_by_command, prepare_in, run_app

SMALL = {**DEFAULTS, "clients": 20, "records-per-client": 10, "positives": 0.2, "targets": 3, "device": "cpu"}
TRAINING = LocalSGD(epochs=2, batch_size=5, lr=0.1, momentum=0.5, weight_decay=0.01)


def study(**changes) -> Study:
    return Study.of(change(SMALL, changes))


def keys(records) -> list[bytes]:
    return [record.tobytes() for record in records]


@pytest.mark.parametrize("name", PROPERTIES)
@pytest.mark.parametrize("seed", [0, 1])
def test_clients_targets_and_auxiliary_records_are_disjoint_parts_of_the_training_split(name, seed):
    plan = study(property=name, seed=seed)
    everyone = np.concatenate(plan.division.parts)
    assert [len(part) for part in plan.division.parts] == [10] * 20
    assert all(len(set(part.tolist())) == 10 for part in plan.division.parts)
    own = [row for row in everyone.tolist() if row not in set(plan.division.targets.tolist())]
    assert len(own) == len(set(own))
    assert not {*everyone.tolist(), *plan.division.targets.tolist()} & set(plan.division.auxiliary.tolist())
    # All that is left over, but for records that occur twice in the data.
    single = set(singles(plan.data)[0].tolist())
    assert set(plan.division.auxiliary.tolist()) == single - set(everyone.tolist()) - set(
        plan.division.targets.tolist()
    )
    assert everyone.max() < len(plan.data.y_train)


@pytest.mark.parametrize("seed", range(5))
def test_held_targets_are_with_their_positive_clients_and_null_targets_with_nobody(seed):
    plan = study(property="membership", seed=seed)
    assert plan.positives.shape == (6, 20)
    assert plan.positives.sum(axis=1).tolist() == [4] * 3 + [0] * 3
    for row, target in enumerate(plan.division.targets.tolist()):
        assert plan.positives[row].tolist() == [target in part for part in plan.division.parts]
    assert len(set(plan.division.targets.tolist())) == 6
    # Drawn independently for each target: not all three are with the same clients.
    assert len({tuple(row) for row in plan.positives[:3].tolist()}) > 1


def test_a_null_run_is_the_same_run_but_for_the_property():
    for name in PROPERTIES:
        plan, null = study(property=name), study(property=name, positives=0.0)
        assert not null.positives.any()
        assert null.positives.shape == plan.positives.shape
        np.testing.assert_array_equal(plan.division.targets, null.division.targets)
        held = set(null.division.targets.tolist())
        for left, right in zip(plan.division.parts, null.division.parts, strict=True):
            assert not held & set(right.tolist())
            assert set(left.tolist()) - held <= set(right.tolist())
            assert len(left) == len(right)


def test_every_target_displaces_a_record_and_never_another_target():
    plan = study(property="membership", positives=0.9, targets=10)
    assert plan.positives.sum(axis=0).max() == 10
    for client, part in enumerate(plan.division.parts):
        assert len(set(part.tolist())) == 10
        assert len(set(part.tolist()) & set(plan.division.targets.tolist())) == plan.positives[:, client].sum()


def test_poisoners_are_one_set_and_their_records_nobody_s_targets():
    for name in ("inversion", "ascent"):
        plan = study(property=name)
        assert plan.positives.shape == (1, 20)
        assert plan.positives.sum() == 4
        assert len(plan.division.targets) == 0


def test_the_same_seed_gives_the_same_study_and_another_another():
    first, again, other = (study(property="membership", seed=seed) for seed in (3, 3, 4))
    for one in (again, other):
        same = [
            np.array_equal(left, right) for left, right in zip(first.division.parts, one.division.parts, strict=True)
        ]
        same += [
            np.array_equal(first.division.targets, one.division.targets),
            np.array_equal(first.division.auxiliary, one.division.auxiliary),
            np.array_equal(first.positives, one.positives),
        ]
        assert all(same) if one is again else not any(same)


def test_records_per_client_work_without_a_property_and_a_property_without_them():
    plain = study()
    assert [len(part) for part in plain.division.parts] == [10] * 20
    assert len(set(np.concatenate(plain.division.parts).tolist())) == 200
    assert len(plain.division.auxiliary) == len(plain.division.targets) == 0
    rest = study(property="membership", records_per_client=0, auxiliary=300, partition="iid")
    assert len(rest.division.auxiliary) == 300
    everyone = set(np.concatenate(rest.division.parts).tolist())
    assert not everyone & set(rest.division.auxiliary.tolist())
    assert sum(map(len, rest.division.parts)) == len(rest.data.y_train) - 300 - 6


def test_records_that_occur_twice_are_neither_targets_nor_auxiliary(tmp_path):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(400, 5)).astype(np.float32)
    x[200:300] = x[:100]
    np.savez(tmp_path / "twice.npz", x=x, y=np.arange(400) % 2)
    plan = study(dataset=str(tmp_path / "twice.npz"), property="membership", targets=5, clients=10)
    times = keys(x)
    for row in (*plan.division.targets.tolist(), *plan.division.auxiliary.tolist()):
        assert times.count(plan.data.x_train[row].tobytes()) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"property": "gender"}, "property = 'gender': expected one of membership, inversion, ascent"),
        (
            {"property": "ascent", "positives": 1.0},
            "20 clients is 20: expected some clients with the property and some",
        ),
        ({"property": "ascent", "positives": 0.01}, "20 clients is 0: expected some"),
        ({"property": "ascent", "records_per_client": 0}, "leaves no examples to the attacker"),
        ({"records_per_client": 100}, "20 clients of 100 examples do not fit into 1437 training examples"),
        ({"property": "ascent", "auxiliary": 1300}, "1237 examples are left for the attacker, who needs 1300"),
        ({"property": "membership", "targets": 1000}, "2000 target records, held and not held, do not fit"),
        ({"property": "membership", "targets": 100}, r"client \d+ would hold \d+ targets but has 10 examples"),
    ],
)
def test_a_study_that_cannot_be_is_refused_in_one_line(changes, message):
    with refused((ConfigError, DataError), message):
        len(study(**changes).division.parts)


@pytest.fixture(params=PROPERTIES)
def prepared(request, tmp_path):
    plan = study(property=request.param, seed=2, local_epochs=2, batch_size=5, lr=0.1, momentum=0.5, weight_decay=0.01)
    return plan, *prepare_in(tmp_path, plan)


def test_knowledge_and_truth_say_what_the_study_is(prepared):
    plan, known, truth = prepared
    data = plan.data
    assert known.property == plan.settings.client_property
    assert known.positive_share == 0.2
    assert known.training == TRAINING
    assert keys(known.auxiliary.x) == keys(data.x_train[plan.division.auxiliary])
    np.testing.assert_array_equal(known.auxiliary.y, data.y_train[plan.division.auxiliary])
    assert truth.counts.tolist() == [
        np.bincount(data.y_train[part], minlength=10).tolist() for part in plan.division.parts
    ]
    assert {*keys(truth.evaluation[0])} <= {*keys(data.x_test)}
    assert len(truth.owners) == 0
    assert truth.data == data.fingerprint
    if plan.settings.client_property == "membership":
        holders = [{*keys(data.x_train[part])} for part in plan.division.parts]
        for record, label, row in zip(known.targets.x, known.targets.y, truth.positives, strict=True):
            assert row.tolist() == [record.tobytes() in held for held in holders]
            assert data.y_train[keys(data.x_train).index(record.tobytes())] == label
        assert sorted(truth.positives.any(axis=1).tolist()) == [False] * 3 + [True] * 3
        assert truth.targets == known.targets.fingerprint
    else:
        assert known.targets is None
        assert truth.targets == ""
        np.testing.assert_array_equal(truth.positives, plan.positives)


def test_null_targets_are_mixed_with_held_ones(tmp_path):
    orders = set()
    for seed in range(6):
        _, truth = prepare_in(tmp_path / str(seed), study(property="membership", seed=seed))
        orders.add(tuple(truth.positives.any(axis=1).tolist()))
    assert len(orders) > 2


def test_in_a_null_run_the_attacker_still_expects_the_usual_share(tmp_path):
    known, truth = prepare_in(tmp_path, study(property="inversion", positives=0.0))
    assert known.positive_share == 0.1
    assert not truth.positives.any()


def run(folder, **changes) -> Record:
    return run_app(folder, SMALL | {"batch-size": 10, "lr": 0.1, "fraction": 0.5, "rounds": 4} | changes)


@pytest.mark.parametrize("name", PROPERTIES)
@pytest.mark.slow
def test_secagg_and_projected_records_of_a_seed_agree_within_quantisation(name, tmp_path):
    # Flower rounds at random, by NumPy's own generator; now and then that turns a ReLU on, which moves a model further.
    np.random.seed(0)  # noqa: NPY002
    secure = run(tmp_path / "secure", property=name, secagg=True)
    plain = run(tmp_path / "plain", property=name)
    assert [record.manifest["aggregation"]["by"] for record in (secure, plain)] == ["secagg+", "projection"]
    assert {check_record(record.path).whole for record in (secure, plain)} == {True}
    step = rmse(SecAggPlan(10, 10.0), np.full(10, 10))
    for left, right in zip(secure, plain, strict=True):
        assert left.number == right.number
        assert len(left.participants) == 10
        assert set(left.participants) == set(right.participants)
        assert left.config == right.config
        assert list(left.aggregate) == list(right.aggregate)
        told = [{seen.node: seen.num_examples for seen in item.observations} for item in (left, right)]
        assert told[0] == told[1]
        error = np.concatenate([(left.aggregate[key] - right.aggregate[key]).ravel() for key in right.aggregate])
        moved = np.concatenate([(right.aggregate[key] - right.common[key]).ravel() for key in right.aggregate])
        # The models drift apart by the errors of the rounds before, and no further.
        assert np.sqrt(np.mean(error**2)) < 1.5 * step * np.sqrt(left.number)
        assert np.sqrt(np.mean(error**2)) < 0.02 * np.sqrt(np.mean(moved**2))
    assert {*read_nodes(tmp_path / "plain" / "truth", DataError, "").values()} == {*map(str, range(20))}


def test_the_property_is_in_the_sums(tmp_path):
    """Aggregates of runs with and without inverting clients differ by exactly twice these clients' updates."""
    null = run(tmp_path / "null", property="inversion", positives=0.0, rounds=1).rounds[0]
    poisoned = run(tmp_path / "poisoned", property="inversion", rounds=1).rounds[0]
    honest = run(tmp_path / "honest", rounds=1).rounds[0]
    assert set(null.participants) == set(honest.participants)
    plan = study(property="inversion")
    nodes = read_nodes(tmp_path / "honest" / "truth", DataError, "")
    shift = {name: np.zeros_like(array) for name, array in null.aggregate.items()}
    turned = 0
    for seen in honest.observations:
        if plan.is_positive(int(nodes[seen.node])):
            turned += 1
            for name, update in seen.update().items():
                shift[name] -= 2 * update.astype(np.float64) / 10
    assert turned > 0
    for name, array in null.aggregate.items():
        np.testing.assert_allclose(poisoned.aggregate[name] - array, shift[name], atol=1e-7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"fraction": 0.1}, "needs 3 to 1023"), ({"model": "tests.clients.test_clients:normed"}, "holds int64")],
)
def test_what_secagg_cannot_do_is_refused_before_the_training(changes, message, tmp_path):
    with pytest.raises(SystemExit) as stop:
        prepare_by_command(tmp_path, SMALL | {"secagg": True} | changes)
    assert stop.value.code == 2
    with pytest.raises(FedAttackError, match=message):
        run(tmp_path, secagg=True, **changes)


PROLIN = [name for name in preset_names() if name.startswith("prolin-")]


@pytest.mark.parametrize("name", PROLIN)
def test_prolin_presets_are_the_paper_s_federation(name):
    preset = load_preset(name)
    settings = resolve_settings(preset, [])
    assert preset.attacks == ("prolin",)
    assert settings["property"] == name.split("-")[1]
    assert (settings["clients"], settings["fraction"], settings["positives"]) == (50, 0.2, 0.1)
    assert settings["rounds"] >= 100
    assert settings["secagg"] == (not name.endswith("-paper"))
    if name.endswith("-paper"):
        assert (settings["dataset"], settings["model"], settings["lr"]) == ("mnist", "lenet-mnist", 0.01)
        assert (settings["rounds"], settings["auxiliary"]) == (300, 6000)
    else:
        plan = Study.of(settings | {"seed": 0, "dealt": ""})
        assert {len(part) for part in plan.division.parts} == {10}
        assert len(plan.division.auxiliary) > 900
