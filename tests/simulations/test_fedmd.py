"""FedMD from the study to the findings, with Flower's own strategy and clients in this process."""

import json

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict

import clients.app
import simulations.server
from clients.fedmd import MODEL, FedMDClient
from fedattack.attacks import ATTACKS, Knowledge, read_knowledge
from fedattack.audit.truth import NOBODY, read_truth
from fedattack.base.errors import ConfigError, DataError, ModelError, NeedsError
from fedattack.learning import Distillation, distil, outputs_of, train_local
from fedattack.record import Record, check_record
from fedattack.threats.source.case import credits_of
from simulations.prepare import prepare_run
from simulations.records import singles
from simulations.study import Study
from tests.refusals import refused
from tests.worlds.attacked import audit_folder
from tests.worlds.local_grid import FIRST_NODE, LocalGrid
from tests.worlds.reference import DEFAULTS, change, prepare_in

CONFIG = {
    **DEFAULTS,
    "framework": "fedmd",
    "partition": "dirichlet-balanced",
    "local-epochs": 3,
    "batch-size": 16,
    "lr": 0.01,
    "momentum": 0.9,
    "rounds": 3,
    "targets": 40,
    "device": "cpu",
}


def study(**changes) -> Study:
    return Study.of(change(CONFIG, changes))


def simulate(folder, **changes) -> LocalGrid:
    """Prepare and run in this process, and return the Grid, whose contexts are the clients' states."""
    paths = {key: str(folder / key) for key in ("record", "truth", "knowledge")}
    config = change(CONFIG, changes) | paths
    prepare_run(config)
    grid = LocalGrid(clients.app.app, config["clients"])
    grid.configure(config)
    simulations.server.app(grid, Context(run_id=7, node_id=0, node_config={}, state=RecordDict(), run_config=config))
    return grid


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fedmd")
    return folder, simulate(folder)


def state_of(grid, client) -> dict[str, np.ndarray]:
    records = grid._contexts[FIRST_NODE + client].state.array_records
    return {name: array.numpy() for name, array in records[MODEL].items()}


def test_public_records_are_set_aside_from_all_clients_and_occur_once():
    plan = study(seed=1)
    assert len(plan.public_x) == len(plan.data.y_train) // 4
    held = {plan.data.x_train[row].tobytes() for part in plan.division.parts for row in part}
    public = {record.tobytes() for record in plan.public_x}
    assert len(public) == len(plan.public_x)
    assert not public & held
    assert sum(map(len, plan.division.parts)) == len(plan.data.y_train) - len(public)
    assert len(study(public_records=50).public_x) == 50
    assert len(study(framework="fedavg").data.y_train) == sum(map(len, study(framework="fedavg").division.parts))
    assert singles(plan.data)[0].size >= len(public)


def test_clients_get_architectures_in_turn():
    names = study().models.client_names
    assert len(set(names)) >= 4
    shapes = [[tuple(value.shape) for value in study().models.build_for(client).parameters()] for client in range(8)]
    assert shapes[:4] == shapes[4:]
    assert len({str(item) for item in shapes[:4]}) == 4
    own = study(models="mlp, sia-mlp")
    assert own.models.client_names == ("mlp", "sia-mlp")
    first, third = (own.models.build_for(client).state_dict()["fc1.weight"] for client in (0, 2))
    assert first.shape == third.shape
    assert not torch.equal(first, third)


def test_records_that_are_no_images_get_networks_that_take_them(tmp_path):
    draw = np.random.default_rng(0)
    np.savez(tmp_path / "table.npz", x=draw.normal(size=(400, 9)), y=np.arange(400) % 3)
    plan = study(dataset=str(tmp_path / "table.npz"), clients=4)
    for client in range(4):
        assert plan.models.build_for(client)(torch.zeros(2, 9)).shape == (2, 3)


def test_a_client_s_rounds_are_digest_then_revisit_from_where_it_was(run):
    """The slow, obvious way: one client's three rounds by hand, from the consensus that the record has."""
    folder, grid = run
    plan, record = study(), Record(folder / "record")
    for client in (0, 3):
        rows = plan.division.parts[client]
        model = plan.models.build_for(client)
        for item in record:
            seed = plan.client_seed(client, item.number)
            if item.common is not None:
                how = Distillation(epochs=1, batch_size=256)
                distil(model, plan.public_x, item.common["predictions"], how, seed=seed)
            train_local(
                model,
                plan.data.x_train[rows],
                plan.data.y_train[rows],
                epochs=3,
                batch_size=16,
                lr=0.01,
                momentum=0.9,
                seed=seed,
            )
            seen = next(seen for seen in item.observations if seen.node == str(FIRST_NODE + client))
            np.testing.assert_array_equal(seen.arrays["predictions"], outputs_of(model, plan.public_x))
        for name, value in model.state_dict().items():
            np.testing.assert_array_equal(state_of(grid, client)[name], value.numpy())


def test_the_record_holds_predictions_and_the_consensus_that_is_their_plain_mean(run):
    folder, _ = run
    record = Record(folder / "record")
    assert (record.protocol, record.view, record.status) == ("fedmd", "individual", "complete")
    assert not check_record(folder / "record").problems
    (parameter,) = record.parameters
    assert (parameter.name, parameter.shape) == ("predictions", (len(study().public_x), 10))
    assert record.rounds[0].common is None
    for item in record:
        sent = np.stack([seen.arrays["predictions"] for seen in item.observations]).astype(np.float64)
        np.testing.assert_allclose(item.after["predictions"], sent.mean(axis=0), rtol=1e-6, atol=1e-6)
    assert "model" not in record.facts


def test_students_trace_records_far_above_chance_and_a_null_at_it(run):
    folder, _ = run
    scores = ATTACKS["sia"].run(Record(folder / "record"), read_knowledge(folder / "knowledge"), device="cpu")
    truth = read_truth(folder / "truth")
    client_of = [int(truth.nodes[node]) for node in scores.facts["clients"]]
    held = truth.owners != NOBODY
    owner = np.array([client_of.index(int(name)) for name in truth.owners[held]])
    credit = credits_of(scores.arrays["combined"])
    assert credit[held][np.arange(len(owner)), owner].mean() > 0.18
    draw = np.random.default_rng(0)
    dealt = draw.integers(len(client_of), size=int((~held).sum()))
    assert abs(credit[~held][np.arange(len(dealt)), dealt].mean() - 0.1) < 0.05
    assert scores.notes == ()


def test_the_audit_reports_the_local_models_that_clients_noted(run):
    folder, grid = run
    scores = ATTACKS["sia"].run(Record(folder / "record"), read_knowledge(folder / "knowledge"), device="cpu")
    scores.save(folder / "scores" / "sia.npz")
    findings = {finding.metric: finding for finding in audit_folder(folder, device="cpu")}
    assert findings["asr"].low > 0.1
    facts = json.loads((folder / "run.json").read_text())
    assert facts["accuracy"]["what"] == "mean of the local models on the test split"
    (accuracy,) = facts["accuracy"]["seeds"].values()
    plan = study()
    hits = []
    for client in range(10):
        model = plan.models.build_for(client)
        model.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in state_of(grid, client).items()})
        hits.append(np.mean(outputs_of(model, plan.data.x_test).argmax(axis=1) == plan.data.y_test))
    assert accuracy[-1] == pytest.approx(np.mean(hits), abs=1e-9)
    assert len(facts["overfitting"]["rounds"]) == 3


def test_a_client_that_was_not_sampled_keeps_its_model(tmp_path):
    changes = {"clients": 3, "fraction": 0.3, "rounds": 6, "targets": 5, "public_records": 40, "local_epochs": 1}
    grid = simulate(tmp_path, **changes)
    plan, record = study(**changes), Record(tmp_path / "record")
    noted = read_truth(tmp_path / "truth").accuracy
    skipped = 0
    for client in range(3):
        sampled = [item for item in record if str(FIRST_NODE + client) in item.sampled]
        if not sampled:
            continue
        skipped += sampled[-1].number - sampled[0].number + 1 - len(sampled)
        assert [number for number, pairs in noted.items() if str(client) in pairs] == [item.number for item in sampled]
        last = sampled[-1].observations[0].arrays["predictions"]
        model = plan.models.build_for(client)
        model.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in state_of(grid, client).items()})
        np.testing.assert_array_equal(outputs_of(model, plan.public_x), last)
    assert skipped > 0


def test_predictions_that_are_not_finite_are_recorded_left_out_and_named(tmp_path, monkeypatch):
    honest = FedMDClient.fit

    def broken(self, parameters, config):
        sent, count, metrics = honest(self, parameters, config)
        if self._client == 1:
            sent[0][3, 2] = np.nan
        return [sent[0][:, :4]] if self._client == 2 else sent, count, metrics

    monkeypatch.setattr(FedMDClient, "fit", broken)
    simulate(tmp_path, clients=4, rounds=2, targets=5, public_records=40, local_epochs=1)
    record = Record(tmp_path / "record")
    for item in record:
        sent = {seen.node: seen.arrays["predictions"] for seen in item.observations}
        assert np.isnan(sent[str(FIRST_NODE + 1)]).sum() == 1
        usable = np.stack([sent[str(FIRST_NODE + client)] for client in (0, 3)])
        np.testing.assert_allclose(item.after["predictions"], usable.mean(axis=0), rtol=1e-6, atol=1e-6)
    scores = ATTACKS["sia"].run(record, read_knowledge(tmp_path / "knowledge"), device="cpu")
    assert len(scores.notes) == 4
    assert sum("its predictions are not finite" in note for note in scores.notes) == 2
    assert sum("expected predictions of shape (40, 10)" in note and "got (40, 4)" in note for note in scores.notes) == 2
    for client, there in enumerate((True, False, False, True)):
        column = scores.arrays["combined"][:, scores.facts["clients"].index(str(FIRST_NODE + client))]
        assert np.isfinite(column).all() == there


def test_without_public_records_the_attack_refuses_by_name(run):
    folder, _ = run
    known = read_knowledge(folder / "knowledge")
    lacking = Knowledge(**{**vars(known), "public": None})
    with refused(NeedsError, "need knowledge of public, and there is none; give the public records"):
        ATTACKS["sia"].run(Record(folder / "record"), lacking, device="cpu")


def overlapping(tmp_path, shape, dtype):
    """A private dataset, and a public one of which a fifth is the private one's first records."""
    draw = np.random.default_rng(1)
    private, other = (draw.integers(0, 255, size=(count, *shape)) for count in (200, 160))
    np.savez(tmp_path / "private.npz", x=private.astype(dtype), y=np.arange(200) % 4)
    np.savez(tmp_path / "public.npz", x=np.concatenate([private[:40], other]).astype(dtype), y=np.arange(200) % 4)
    np.savez(tmp_path / "apart.npz", x=other.astype(dtype), y=np.arange(160) % 4)
    return {"dataset": str(tmp_path / "private.npz"), "clients": 2, "alpha": 100.0, "targets": 5}


@pytest.mark.parametrize(("shape", "dtype"), [((6, 6), np.uint8), ((6, 6, 3), np.uint8), ((5,), np.float32)])
@pytest.mark.slow
def test_a_public_set_that_overlaps_private_data_is_counted(shape, dtype, tmp_path):
    changes = overlapping(tmp_path, shape, dtype)
    plan = study(**changes, public=str(tmp_path / "public.npz"))
    _, truth = prepare_in(tmp_path / "overlapping", plan)
    # the slow way: by the records' numbers in the files, before anything was scaled
    private, public = (
        np.moveaxis(np.load(tmp_path / name)["x"], 3 if len(shape) == 3 else 1, 1).astype(np.float64).reshape(200, -1)
        for name in ("private.npz", "public.npz")
    )

    def numbers(records, raw):
        flat = records.reshape(len(records), -1)
        return [int(np.argmax([np.corrcoef(row, other)[0, 1] for other in raw])) for row in flat]

    held = set(numbers(plan.data.x_train[np.concatenate(plan.division.parts)], private))
    expected = sum(number in held for number in numbers(plan.public_x, public) if number < 40)
    assert expected > 10
    (note,) = truth.notes
    assert note == f"public set: {expected} of {len(plan.public_x)} examples are also some client's training data"
    apart = study(**changes, public=str(tmp_path / "apart.npz"))
    known, truth = prepare_in(tmp_path / "apart", apart)
    assert truth.notes == ()
    np.testing.assert_array_equal(known.public, apart.public_x)


def test_settings_that_do_not_go_together_are_refused(tmp_path):
    np.savez(tmp_path / "wide.npz", x=np.zeros((40, 7), dtype=np.float32), y=np.arange(40) % 2)
    with pytest.raises(DataError, match=r"its examples have shape \(7,\), expected \(1, 8, 8\) as in digits"):
        _ = study(public=str(tmp_path / "wide.npz")).public_x
    with pytest.raises(ConfigError, match="framework = 'fedmd' needs secagg = false"):
        study(secagg=True)
    with pytest.raises(ConfigError, match="framework = 'fedmd' needs property = "):
        study(property="ascent")
    with pytest.raises(ConfigError, match="models = 'no-such-model': expected one of"):
        study(models="mlp,no-such-model")
    with pytest.raises(ModelError, match="at least 16 x 16"):
        prepare_in(tmp_path, study(student="sia-cnn"))
