"""What `defence` in the run config changes of a study, in every framework, and what is refused before the run."""

import math
from functools import lru_cache

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from clients.app import app
from fedattack.attacks import ATTACKS, read_knowledge
from fedattack.base.errors import ConfigError, FedAttackError
from fedattack.defences import DEFENCES, DP_SGD, NONE, update_privacy
from fedattack.defences.guarantee import NOISY
from fedattack.defences.zoo import save_zoo, train_zoo
from fedattack.learning.pooled_updates import Fit
from fedattack.report import read_run
from fedattack.runs.presets import load_preset, preset_names, resolve_settings
from simulations.defences import defence_notes, privacy_of
from simulations.frameworks import framework_of
from simulations.privacy import is_private
from simulations.study import Study
from strategies.fedmd import PREDICTIONS
from tests.refusals import refused
from tests.worlds.attacked import audit_folder
from tests.worlds.local_grid import FIRST_NODE, LocalGrid
from tests.worlds.reference import DEFAULTS, by_client, prepare_by_command, prepare_in, run_on_flower

CONFIG = {**DEFAULTS, "clients": 4, "rounds": 2, "lr": 0.1, "device": "cpu", "public-records": 50}
FEDSGD = {"framework": "fedsgd", "batch-size": 0}
CHOICES = [*DEFENCES, DP_SGD]


def reply(config, *, client: int = 1, server_round: int = 2, arrays=None) -> Message:
    """What the app's client replies, over the bridge."""
    LocalGrid(app, 1)  # messages exist only within a run
    study = Study.of(config)
    if arrays is None:
        arrays = {} if config["framework"] == "fedmd" else study.models.initial_arrays()
    content = RecordDict(
        {
            "arrays": ArrayRecord({name: Array(array) for name, array in arrays.items()}),
            "config": ConfigRecord({"server-round": server_round}),
        }
    )
    context = Context(
        run_id=7,
        node_id=FIRST_NODE,
        node_config={"partition-id": client},
        state=RecordDict(),
        run_config=dict(config),
    )
    return app(Message(content, FIRST_NODE, "train"), context)


def arrays_of(message: Message) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in message.content.array_records["arrays"].items()}


def write_zoo(folder, study) -> dict[str, str]:
    """A zoo for what the study's clients send, trained on noise; returns the settings that choose it."""
    shapes = {name: array.shape for name, array in study.models.initial_arrays().items()}
    if not study.framework.shares_model:
        shapes = {PREDICTIONS: (len(study.public_x), study.data.classes)}
    rng = np.random.default_rng(0)
    updates = [{name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()} for _ in range(4)]
    options = {"attribute": "colour", "values": ("red", "blue"), "seed": 0, "models": 5, "widths": (8,)}
    save_zoo(train_zoo(updates, np.arange(4) % 2, **options, fit=Fit(epochs=1)), folder / "colour")
    return {"recup-zoo": str(folder), "recup-attributes": "colour"}


@pytest.fixture(scope="module")
def somewhere(tmp_path_factory):
    """A folder with stand-ins for what is downloaded, and room for each preset's zoo."""
    folder = tmp_path_factory.mktemp("presets")
    rng = np.random.default_rng(0)
    x = rng.integers(256, size=(9000, 28, 28)).astype(np.uint8)
    np.savez(folder / "mnist.npz", x=x, y=np.arange(9000) % 10)
    colours = rng.integers(256, size=(6000, 32, 32, 3)).astype(np.uint8)
    np.savez(folder / "cifar100.npz", x=colours, y=np.arange(6000) % 100)
    return folder


@lru_cache(maxsize=1)
def preset_in(name: str, folder) -> tuple[dict, dict[str, str]]:
    """A preset's settings, and a zoo that fits it; the next defence of the same preset takes them again."""
    preset = load_preset(name)
    stand_in = folder / f"{preset.settings['dataset']}.npz"
    changes = [f"dataset={stand_in}"] if stand_in.exists() else []
    changes += ["size=5000", "clients=50"] if name == "sia-many" else []
    changes += ["nulls=500"] if name == "membership-paper" else []
    config = DEFAULTS | resolve_settings(preset, changes)
    study = Study.of(config)
    prepare_in(folder / name, study)
    return config, write_zoo(folder / name / "zoos", study)


@pytest.mark.parametrize(("name", "defence"), [(name, defence) for name in preset_names() for defence in CHOICES])
@pytest.mark.slow
def test_every_preset_takes_every_defence(somewhere, name, defence):
    """Each is prepared, and tried on an update of the preset's own model, but for what has nothing to change."""
    config, zoo = preset_in(name, somewhere)
    on = config | zoo | {"defence": defence, "defence-strength": 0.5}
    if not framework_of(config["framework"]).trains_model:
        reason = "needs defence = "
    elif defence == "soteria" and config["framework"] == "fedmd":
        reason = "clients send predictions"
    elif defence == "soteria" and config["model"] == "linear":
        reason = "no fully connected layer behind another"
    elif defence == "soteria" and config["model"] == "decoder":
        reason = "expected the defended layer to see .* once; .* name another by soteria-layer"
    else:
        defended = Study.of(on)
        privacy, notes = privacy_of(defended), defence_notes(defended)
        assert (privacy is not None) == (defence in {DP_SGD, *NOISY})
        assert is_private(defended.settings) == (defence == DP_SGD)
        assert any(f"defence {defence}: " in note for note in notes) or defence == DP_SGD
        return
    with refused(FedAttackError, reason):
        defence_notes(Study.of(on))


@pytest.mark.parametrize("framework", [{}, FEDSGD, {"framework": "fedmd"}])
@pytest.mark.parametrize("defence", CHOICES)
def test_a_defence_changes_what_is_sent_and_without_a_strength_nothing_is_sent(tmp_path, framework, defence):
    config = CONFIG | framework
    config |= write_zoo(tmp_path, Study.of(config)) if defence == "recup" else {}
    plain = reply(config)
    with pytest.raises(ConfigError, match="would change nothing"):
        reply(config | {"defence": defence})
    if (framework.get("framework"), defence) == ("fedmd", "soteria"):
        return
    on = reply(config | {"defence": defence, "defence-strength": 0.5})
    before, after = arrays_of(plain), arrays_of(on)
    assert [(k, v.shape, v.dtype) for k, v in before.items()] == [(k, v.shape, v.dtype) for k, v in after.items()]
    assert any((before[name] != after[name]).any() for name in before)
    assert "train-loss" in plain.content.metric_records["metrics"]
    assert [*on.content.metric_records["metrics"]] == ["num-examples"]
    again = reply(config | {"defence": defence, "defence-strength": 0.5})
    assert on.content == again.content


def test_predictions_have_one_name_in_all_rounds(tmp_path):
    """RecUP-FL's zoo goes by it, and there is no consensus yet, and so no name, in the first round."""
    config = CONFIG | {"framework": "fedmd"}
    config |= write_zoo(tmp_path, Study.of(config)) | {"defence": "recup", "defence-strength": 0.5}
    first = reply(config, server_round=1)
    assert not first.has_error()
    consensus = {PREDICTIONS: next(iter(arrays_of(first).values()))}
    assert not reply(config, arrays=consensus).has_error()


def test_fedsgd_s_gradients_are_pruned_themselves():
    sent = arrays_of(reply(CONFIG | FEDSGD | {"defence": "sparsify", "defence-strength": 0.9}))
    size = sum(array.size for array in sent.values())
    assert sum((array == 0).sum() for array in sent.values()) == round(0.9 * size)


def test_dp_sgd_by_this_name_is_the_one_by_dp_noise():
    named = reply(CONFIG | {"defence": "dp-sgd", "defence-strength": 0.7})
    assert named.content == reply(CONFIG | {"dp-noise": 0.7}).content
    config = CONFIG | {"defence": "dp-sgd", "defence-strength": 0.7}
    assert privacy_of(Study.of(config)).noise == (0.7,) * 4


@pytest.mark.parametrize("defence", NOISY)
def test_the_truth_has_what_the_noise_guarantees(tmp_path, defence):
    config = CONFIG | {"defence": defence, "defence-strength": 3.0, "defence-clip": 0.5}
    study = Study.of(config)
    privacy = privacy_of(study)
    _, truth = prepare_in(tmp_path, study, privacy=privacy, notes=defence_notes(study))
    assert truth.privacy == privacy
    assert truth.privacy.mechanism == defence
    spent = update_privacy(config, rounds=2)
    assert truth.privacy.epsilon_run == (spent.epsilon_run,) * 4
    assert truth.notes == (
        f"defence {defence}: ε = {spent.epsilon_round:.3g} a round, ε = {spent.epsilon_run:.3g} for "
        "the whole run, δ = 1e-05",
    )
    unclipped = config | {"defence-clip": 0.0}
    if defence != "flower-localdp":
        assert privacy_of(Study.of(unclipped)).epsilon_run == (math.inf,) * 4
        assert defence_notes(Study.of(unclipped)) == [f"defence {defence}: no finite guarantee"]


def test_the_report_says_who_does_not_know_of_the_defence():
    config = CONFIG | {"property": "ascent", "records-per-client": 10, "positives": 0.25}
    assert defence_notes(Study.of(config)) == []
    for change in ({"defence": "sparsify", "defence-strength": 0.5}, {"dp-noise": 1.0}):
        notes = defence_notes(Study.of(config | change))
        assert "shadow updates do not model the clients' defence" in notes[-1]
    assert defence_notes(Study.of(CONFIG | {"defence": NONE})) == []


@pytest.mark.parametrize("kind", ["membership", "inversion", "ascent"])
def test_a_property_and_dp_sgd_go_together(kind):
    """A client with the property is as private as the others, and still has it. The attack does not model the noise."""
    config = CONFIG | {"property": kind, "records-per-client": 10, "positives": 0.25, "targets": 3}
    config |= {"batch-size": 0, "dp-clip": 1e-2}
    study = Study.of(config)
    client = int(np.flatnonzero([study.is_positive(client) for client in range(4)])[0])
    assert min(privacy_of(Study.of(config | {"dp-noise": 1e-6})).epsilon_run) > 1e10
    loud, quiet = (reply(config | {"dp-noise": noise}, client=client) for noise in (1.0, 1e-6))
    assert [*quiet.content.metric_records["metrics"]] == ["num-examples"]
    start = study.models.initial_arrays()
    steps = [{name: array - start[name] for name, array in arrays_of(sent).items()} for sent in (loud, quiet)]
    noisy, clean = (np.concatenate([step.ravel() for step in each.values()]) for each in steps)
    # One step by the mean of ten clipped gradients; those of clients that invert or climb go the other way.
    assert 0 < np.linalg.norm(clean) <= config["lr"] * config["dp-clip"] * (1 + 1e-3)
    honest = reply(config | {"property": "", "dp-noise": 1e-6}, client=client)
    told = np.concatenate([(array - start[name]).ravel() for name, array in arrays_of(honest).items()])
    sign = 1 if kind == "membership" else -1
    assert sign * np.dot(clean, told) > 0
    assert np.std(noisy - clean) == pytest.approx(config["lr"] * config["dp-clip"] / 10, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"defence": "prayer"}, "defence = 'prayer': expected one of none, dp-gaussian"),
        ({"defence-strength": 0.5}, "defence-strength = 0.5 without a defence"),
        ({"defence": "sparsify", "defence-strength": 2.0}, "defence-strength = 2.0"),
        ({"defence": "dp-gaussian"}, "defence = 'dp-gaussian' with defence-strength = 0 would change nothing"),
        ({"defence": "dp-sgd"}, "defence = 'dp-sgd' without noise would change nothing; set dp-noise"),
        ({"defence": "sparsify", "defence-strength": 1e-9}, "changes nothing of an update of this model"),
        ({"defence": "dp-laplace", "defence-strength": 1e-30, "defence-clip": 0.0}, "changes nothing of an update"),
        ({"defence": "flower-localdp", "defence-clip": 0.0}, "defence-clip = 0.0: expected more than 0"),
        ({"defence": "soteria", "defence-strength": 0.5, "model": "linear"}, "no fully connected layer behind another"),
        ({"defence": "soteria", "defence-strength": 0.5, "soteria-layer": "fc9"}, "soteria-layer = 'fc9'"),
        ({"defence": "soteria", "defence-strength": 0.5, "framework": "fedmd"}, "clients send predictions"),
        ({"defence": "dp-laplace", "defence-strength": 0.1, "dp-noise": 1.0}, "expected one defence"),
        (
            {"defence": "recup", "defence-strength": 0.5},
            "expected recup-zoo, a folder with a model zoo for each attribute",
        ),
    ],
)
def test_what_cannot_be_applied_is_refused_before_the_training(tmp_path, capsys, changes, message):
    with pytest.raises(SystemExit) as stop:
        prepare_by_command(tmp_path, CONFIG | changes)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_zoo_for_another_model_is_refused_before_the_training(tmp_path):
    zoo = write_zoo(tmp_path, Study.of(CONFIG | {"model": "linear"}))
    config = CONFIG | zoo | {"defence": "recup", "defence-strength": 0.5}
    with refused(FedAttackError, "has shape"):
        defence_notes(Study.of(config))


@pytest.mark.flower
@pytest.mark.parametrize("secagg", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.slow
def test_a_defended_run_on_flower_is_recorded_and_audited(tmp_path, secagg):
    noise = {"defence": "dp-gaussian", "defence-strength": 0.02, "defence-clip": 0.5}
    config = CONFIG | noise | {"secagg": secagg, "targets": 20}
    study, record = Study.of(config), run_on_flower(tmp_path, config)
    first = record.rounds[0]
    assert [len(item.observations) for item in record.rounds] == [4, 4]
    assert not any(seen.metrics for item in record.rounds for seen in item.observations)
    sent = {client: arrays_of(reply(config | {"secagg": False}, client=client, server_round=1)) for client in range(4)}
    counts = np.array([len(part) for part in study.division.parts])
    if secagg:
        for name, array in first.aggregate.items():
            mean = sum(count * sent[client][name] for client, count in enumerate(counts)) / counts.sum()
            np.testing.assert_allclose(array, mean, atol=1e-4)
        return
    for client, seen in by_client(record)[0].items():
        for name, array in seen.arrays.items():
            np.testing.assert_allclose(array, sent[int(client)][name], atol=1e-6)
    scores = ATTACKS["sia"].run(record, read_knowledge(tmp_path / "knowledge"), device="cpu")
    scores.save(tmp_path / "scores" / "sia.npz")
    audit_folder(tmp_path, device="cpu")
    run = read_run(tmp_path)
    assert run["observed"]["in_plaintext"] == ["num-examples"]
    spent = update_privacy(config, rounds=2)
    assert run["privacy"]["epsilon_run"] == {"low": spent.epsilon_run, "high": spent.epsilon_run}
    assert run["privacy"]["name"] == "DP-Gaussian"
    assert any("defence dp-gaussian: ε = " in note for note in run["notes"])
