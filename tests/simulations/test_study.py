import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from clients.fedavg import FedAvgClient, dump_arrays
from fedattack.audit.truth import NOBODY
from fedattack.base.errors import ConfigError
from fedattack.learning import LocalSGD, build_model, train_local
from fedattack.runs.presets import load_preset, preset_names, resolve_settings
from fedattack.runs.settings import load_settings
from simulations.seeds import derive_seed
from simulations.study import Study
from tests.worlds.reference import DEFAULTS, prepare_in

ROOT = Path(__file__).parents[2]
TRAINING = LocalSGD(epochs=1, batch_size=64, lr=0.01)


def study(**changes) -> Study:
    return Study.of({**DEFAULTS, **changes})


def test_records_is_short_for_records_per_client():
    preset = load_preset("quickstart")
    assert resolve_settings(preset, ["records=20"]) == resolve_settings(preset, ["records-per-client=20"])
    assert "records" not in resolve_settings(preset, ["records=20"])
    with pytest.raises(ConfigError, match="records-per-client=many: expected a whole number"):
        resolve_settings(preset, ["records=many"])


def test_paths_of_data_are_made_absolute():
    for name in ("mine.npz", "mine.toml"):
        values = resolve_settings(load_preset("quickstart"), [f"dataset={name}"])
        assert Path(str(values["dataset"])).is_absolute()
    assert resolve_settings(load_preset("quickstart"), ["dataset=diabetes"])["dataset"] == "diabetes"


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_sound(name):
    preset = load_preset(name)
    values = resolve_settings(preset, [])
    assert set(values) == {key for key, setting in load_settings().items() if not setting.internal}
    assert preset.seeds
    assert preset.help


def test_the_same_seed_gives_the_same_study_and_another_another():
    first, again, other = study(seed=3), study(seed=3), study(seed=4)
    for left, right in zip(first.division.parts, again.division.parts, strict=True):
        np.testing.assert_array_equal(left, right)
    for left, right in zip(dump_arrays(first.models.build()), dump_arrays(again.models.build()), strict=True):
        np.testing.assert_array_equal(left, right)
    assert any(len(left) != len(right) for left, right in zip(first.division.parts, other.division.parts, strict=True))
    seeds = {derive_seed(0, 2, client, number) for client in range(50) for number in range(50)}
    assert len(seeds) == 2500


def test_the_client_trains_on_its_own_records_and_nothing_else():
    config = {**DEFAULTS, "seed": 1, "local-epochs": 2, "lr": 0.1, "device": "cpu"}
    plan = Study.of(config)
    start = dump_arrays(plan.models.build())
    sent, count, metrics = FedAvgClient(plan, 4).fit(start, {"server-round": 3})
    rows = plan.division.parts[4]
    model = build_model("sia-mlp", input_shape=(1, 8, 8), classes=10, seed=derive_seed(1, 1))
    trained = train_local(
        model,
        plan.data.x_train[rows],
        plan.data.y_train[rows],
        epochs=2,
        batch_size=64,
        lr=0.1,
        seed=plan.client_seed(4, 3),
    )
    for left, right in zip(sent, dump_arrays(model), strict=True):
        np.testing.assert_array_equal(left, right)
    assert count == len(rows)
    assert metrics == {"train-loss": trained.loss}


@pytest.fixture
def prepared(tmp_path):
    plan = study(seed=2, alpha=0.5, targets=20)
    return plan, *prepare_in(tmp_path, plan), tmp_path


def test_knowledge_and_truth_name_the_record_that_is_to_come(tmp_path):
    known, truth = prepare_in(tmp_path, study(clients=3, **{"record-id": "ab" * 16}))
    assert known.record == truth.record == "ab" * 16


def test_targets_belong_to_whom_the_truth_says(prepared):
    plan, known, truth, _ = prepared
    train = {record.tobytes(): index for index, record in enumerate(plan.data.x_train)}
    test = {record.tobytes() for record in plan.data.x_test}
    holder = {index: client for client, part in enumerate(plan.division.parts) for index in part.tolist()}
    for record, label, owner in zip(known.targets.x, known.targets.y, truth.owners.tolist(), strict=True):
        if owner == NOBODY:
            assert record.tobytes() in test
            assert record.tobytes() not in train
        else:
            index = train[record.tobytes()]
            assert holder[index] == int(owner)
            assert plan.data.y_train[index] == label
    counts = {client: truth.owners.tolist().count(str(client)) for client in range(10)}
    for client, part in enumerate(plan.division.parts):
        assert counts[client] == min(20, len(part))
    assert truth.counts.sum() == len(plan.data.x_train)


def test_the_order_of_targets_says_nothing_of_their_owners(prepared):
    _, _, truth, _ = prepared
    place = np.arange(len(truth.owners))
    held = truth.owners != NOBODY
    owner = truth.owners[held].astype(int)
    assert abs(np.corrcoef(place[held], owner)[0, 1]) < 0.2
    assert abs(np.corrcoef(place, held)[0, 1]) < 0.2


def test_knowledge_says_nothing_of_owners(prepared):
    _, known, _, folder = prepared
    assert sorted(path.name for path in (folder / "knowledge").iterdir()) == ["knowledge.json", "targets.npz"]
    assert known.training == TRAINING
    with np.load(folder / "knowledge" / "targets.npz") as file:
        assert sorted(file.files) == ["x", "y"]
    assert set(json.loads((folder / "knowledge" / "knowledge.json").read_text())) == {
        *("model", "prior", "training", "limits"),
        *("files", "check"),
    }


def test_records_that_occur_twice_have_no_single_owner(tmp_path):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(200, 5)).astype(np.float32)
    x[100:] = x[:100]
    x[150:] = draw.normal(size=(50, 5))
    np.savez(tmp_path / "twice.npz", x=x, y=np.arange(200) % 2)
    plan = study(dataset=str(tmp_path / "twice.npz"), clients=2, alpha=100.0, targets=1000)
    known, _ = prepare_in(tmp_path, plan)
    targets = [record.tobytes() for record in known.targets.x]
    rows = [record.tobytes() for record in x]
    assert len(targets) == 100
    assert all(rows.count(target) == 1 for target in targets)


DEALT = [
    {"clients": 3},
    {"clients": 4, "property": "membership", "targets": 2, "positives": 0.5, "records-per-client": 20},
    {"clients": 3, "framework": "fedmd", "public-records": 50},
    {"dataset": "diabetes", "clients": 3, "sensitive": "sex", "permute-sensitive": True, "records-per-client": 20},
]


@pytest.mark.parametrize("changes", DEALT, ids=["owners", "membership", "fedmd", "permuted"])
def test_what_was_dealt_is_what_a_client_would_find_itself(changes, tmp_path):
    itself, dealt = study(**changes), study(**changes, dealt=str(tmp_path / "dealt" / "run.safetensors"))
    dealt.deal()
    reader = study(**changes, dealt=dealt.settings.dealt)
    for client in range(itself.settings.clients):
        for own, read in zip(itself.records_of(client), reader.records_of(client), strict=True):
            np.testing.assert_array_equal(read, own)
            assert (read.dtype, read.flags.writeable) == (own.dtype, True)
    assert reader.sizes == itself.sizes
    assert reader.models.task == itself.models.task
    for name in ("name", "loss", "client_names"):
        assert getattr(reader.models, name) == getattr(itself.models, name)
    for name, array in itself.models.initial_arrays().items():
        np.testing.assert_array_equal(reader.models.initial_arrays()[name], array)
    assert (tmp_path / "dealt").stat().st_mode & 0o077 == 0


def test_what_was_dealt_for_another_study_is_not_taken(tmp_path):
    file = str(tmp_path / "run.safetensors")
    study(clients=3, dealt=file).deal()
    np.testing.assert_array_equal(
        study(clients=3, seed=1, dealt=file).records_of(0)[1], study(clients=3, seed=1).records_of(0)[1]
    )
    absent = study(clients=3, dealt=str(tmp_path / "elsewhere.safetensors"))
    np.testing.assert_array_equal(absent.records_of(2)[1], study(clients=3).records_of(2)[1])


@pytest.mark.slow
def test_a_client_that_was_dealt_its_records_imports_little(tmp_path):
    file = str(tmp_path / "run.safetensors")
    study(clients=3, dealt=file).deal()
    config = json.dumps({**DEFAULTS, "clients": 3, "dealt": file, "device": "cpu"})
    code = (
        "import json, sys, clients.app as app\n"
        "from flwr.app import Context, RecordDict\n"
        f"config = json.loads({config!r})\n"
        "client = app.client_fn(Context(0, 1, {'partition-id': 1}, RecordDict(), config)).numpy_client\n"
        "client.fit([value for value in client._study.models.initial_arrays().values()], {'server-round': 1})\n"
        "heavy = ['sklearn', 'pandas', 'matplotlib', 'datasets', 'torch._dynamo', 'opacus']\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
