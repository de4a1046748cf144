"""Canaries in records: clients of a central mechanism, examples of DP-SGD."""

import numpy as np
import pytest
import torch
from scipy import stats

from fedattack.base.errors import ConfigError, ModelError, NeedsError, RecordError
from fedattack.claims import make_claim
from fedattack.claims.accounting import compute_epsilon
from fedattack.claims.canaries import Canaries, CanaryExamples, gradients, measure_canaries
from fedattack.claims.canaries.bounds import KnownNull
from fedattack.learning import build_model, private_gradient
from fedattack.privacy.gaussian import epsilon_of
from fedattack.record import Exchange, Record, RecordWriter, Reply
from tests.claims.canaries.worlds import CLIP, DELTA, central_claim, central_run, model

CANARIES = Canaries(count=20, seed=3, clip=CLIP)
CLAIM = central_claim(1.5, 30, 5)


def test_clients_bound_what_is_configured_from_below(tmp_path):
    found = measure_canaries(central_run(tmp_path / "run", noise=1.5, canaries=CANARIES, seed=1), CANARIES, CLAIM)
    true = epsilon_of(np.sqrt(5) / 1.5, DELTA)
    assert found.accountant == pytest.approx(true)
    assert 0.3 * true < found.bound_run <= true
    assert 0 < found.bound_message <= epsilon_of(1 / 1.5, DELTA)
    # All rounds give away the same, and their shifts add up in squares.
    by_shape = KnownNull(2000 - 20).find_shift(np.array(found.scores["in"]))
    assert found.bound_message == pytest.approx(epsilon_of(by_shape / np.sqrt(5), DELTA))
    assert 0.5 * true < found.estimate < 1.7 * true
    assert (found.kind, found.count, found.confidence) == ("client", 20, 0.95)
    assert len(found.scores["in"]) == len(found.scores["out"]) == 20
    assert np.mean(found.scores["in"]) > 1 > abs(np.mean(found.scores["out"]))
    assert found.cost["share"] == pytest.approx(2 / 3)
    assert found.cost["moved_by_canaries"] == pytest.approx(np.sqrt(20) / 30)


@pytest.mark.slow
def test_bounds_are_rarely_above_on_calibrated_runs(tmp_path):
    true, above, runs = epsilon_of(np.sqrt(3) / 1.5, DELTA), 0, 30
    for seed in range(runs):
        canaries = Canaries(count=10, seed=seed, clip=CLIP)
        record = central_run(tmp_path / str(seed), noise=1.5, canaries=canaries, clients=4, rounds=3, seed=seed)
        above += measure_canaries(record, canaries, central_claim(1.5, 14, 3)).bound_run > true
    assert above <= stats.binom.isf(1e-3, runs, 0.05)


def test_a_tenth_of_the_noise_is_more_than_what_is_declared(tmp_path):
    found = measure_canaries(central_run(tmp_path / "run", noise=0.15, canaries=CANARIES), CANARIES, CLAIM)
    assert found.bound_run > 2 * found.accountant


def test_those_who_do_not_know_the_seed_find_nothing(tmp_path):
    record = central_run(tmp_path / "run", noise=0.0, canaries=CANARIES)
    other = Canaries(count=20, seed=4, clip=CLIP)
    assert measure_canaries(record, other, CLAIM).bound_run < 0.5
    assert measure_canaries(record, CANARIES, CLAIM).bound_run > 100


def test_sums_tell_as_much_as_replies(tmp_path):
    each = measure_canaries(central_run(tmp_path / "one", noise=1.5, canaries=CANARIES), CANARIES, CLAIM)
    record = central_run(tmp_path / "sum", noise=1.5, canaries=CANARIES, view="aggregate")
    assert measure_canaries(record, CANARIES, CLAIM).bound_run == pytest.approx(each.bound_run, rel=1e-3)


def test_a_claim_about_fewer_rounds_is_told(tmp_path):
    record = central_run(tmp_path / "run", noise=1.5, canaries=CANARIES)
    notes = measure_canaries(record, CANARIES, central_claim(1.5, 30, 2)).notes
    assert "the record has 5 rounds, and the claim is for 2" in notes[1]
    assert len(measure_canaries(record, CANARIES, CLAIM).notes) == 1


def test_a_sampled_run_has_no_bound_of_a_message(tmp_path):
    record = central_run(tmp_path / "run", noise=1.5, canaries=CANARIES)
    assert measure_canaries(record, CANARIES, central_claim(1.5, 30, 5, sampling=0.5)).bound_message is None


def test_a_claim_about_something_else_is_refused(tmp_path):
    record = central_run(tmp_path / "run", noise=1.5, canaries=CANARIES, rounds=1)
    examples = make_claim("x", mechanism="dp-sgd", epsilon=1, delta=DELTA, rounds=1)
    with pytest.raises(ConfigError, match="canaries are clients, and the claim is about one example"):
        measure_canaries(record, CANARIES, examples)
    coins = Canaries(kind="example", count=4, seed=1)
    with pytest.raises(ConfigError, match="for add-remove is needed"):
        measure_canaries(record, coins, examples.model_copy(update={"neighbours": "replace"}))
    with pytest.raises(NeedsError, match="need the examples themselves, and the model"):
        measure_canaries(record, coins, examples)


def test_more_canaries_than_a_model_has_room_for_are_refused(tmp_path):
    record = central_run(tmp_path / "run", noise=1.5, canaries=CANARIES, rounds=1)
    with pytest.raises(ConfigError, match="use 200 at most"):
        measure_canaries(record, Canaries(count=300, seed=3, clip=CLIP), CLAIM)


def test_a_record_without_models_is_refused(tmp_path):
    writer = RecordWriter(tmp_path / "record")
    writer.write(Exchange(1, None, [Reply("a", "ok", model(np.random.default_rng(0)), 3)]))
    writer.close()
    with pytest.raises(NeedsError, match="no round of the record has both"):
        measure_canaries(Record(tmp_path / "record"), CANARIES, CLAIM)


def moved_once(folder, **changes):
    """Write a record of one round, after which some arrays are others."""
    writer = RecordWriter(folder)
    before = model(np.random.default_rng(0))
    writer.write(Exchange(1, before, [Reply("a", "ok", before, 3)]))
    writer.close(final=before | changes)
    return Record(folder)


@pytest.mark.parametrize("number", [np.nan, 1e200])
def test_a_model_of_nan_is_refused(tmp_path, number):
    with pytest.raises(RecordError, match=r"round 1: .* not finite"):
        measure_canaries(moved_once(tmp_path / "record", b=np.full(200, number)), CANARIES, CLAIM)


def test_a_model_that_never_moves_is_refused(tmp_path):
    with pytest.raises(NeedsError, match="the same before and after all of 1 rounds"):
        measure_canaries(moved_once(tmp_path / "record"), CANARIES, CLAIM)


def examples_run(folder, *, noise, count=120, clients=3, rounds=3, seed=0):
    """Clients that send one step of DP-SGD over all of their examples; returns record, canaries, nodes and public."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(40 * clients + 60, 1, 8, 8)).astype(np.float32), rng.integers(0, 4, 40 * clients + 60)
    x[:, :, 0] += y[:, None, None]
    strange = rng.normal(size=(count, 1, 8, 8)).astype(np.float32)
    examples = CanaryExamples.drawn(strange, rng.integers(0, 4, count), clients=clients, seed=seed)
    net = build_model("mlp", input_shape=(1, 8, 8), classes=4, hidden=32, seed=seed)
    writer = RecordWriter(folder, seed=seed)
    for number in range(1, rounds + 1):
        common = {name: value.numpy().copy() for name, value in net.state_dict().items()}
        sent = []
        for client in range(clients):
            own = slice(40 * client, 40 * client + 40)
            mine = examples.added_to(x[own], y[own], client)
            step = private_gradient(net, *mine, noise=noise, clip=1.0, seed=1000 * seed + 10 * number + client)
            sent.append({name: common[name] - 0.5 * step[name] for name in common})
        writer.write(Exchange(number, common, [Reply(f"n{c}", "ok", a, 40) for c, a in enumerate(sent)]))
        after = {name: np.mean([arrays[name] for arrays in sent], axis=0) for name in common}
        net.load_state_dict({name: torch.from_numpy(array) for name, array in after.items()})
    writer.close(final={name: value.numpy().copy() for name, value in net.state_dict().items()})
    nodes = {f"n{client}": str(client) for client in range(clients)}
    return {"record": Record(folder), "examples": examples, "model": net, "nodes": nodes, "public": (x[-60:], y[-60:])}


def example_claim(noise, rounds=3):
    values = {"epsilon": 1, "delta": DELTA, "clip": 1.0, "noise_multiplier": noise, "steps": 1, "rounds": rounds}
    return make_claim("x", mechanism="dp-sgd", **values)


def test_examples_bound_what_is_configured_from_below(tmp_path):
    canaries = Canaries(kind="example", count=120, seed=0)
    claim = example_claim(2.0)
    run = examples_run(tmp_path / "run", noise=2.0)
    found = measure_canaries(canaries=canaries, claim=claim, **run)
    true = compute_epsilon(claim).run.high
    assert found.accountant == true
    assert found.kind == "record"
    assert found.bound_message is None
    assert 0 < found.bound_run <= true
    assert len(found.scores["in"]) == run["examples"].included.sum()
    assert "coins can show no more than" in found.notes[-1]
    # Without knowing who is which node, the common model has to do, which tells less.
    less = measure_canaries(canaries=canaries, claim=claim, **(run | {"nodes": {}}))
    assert 0 <= less.bound_run < found.bound_run


def test_examples_in_a_tenth_of_the_noise_are_told_apart(tmp_path):
    canaries = Canaries(kind="example", count=120, seed=0)
    declared = compute_epsilon(example_claim(2.0)).run.high
    found = measure_canaries(canaries=canaries, claim=example_claim(2.0), **examples_run(tmp_path / "run", noise=0.2))
    assert found.bound_run > declared


def test_coins_that_nobody_followed_show_nothing(tmp_path):
    """The same run, judged by other coins."""
    run = examples_run(tmp_path / "run", noise=0.2)
    others = run["examples"]
    run["examples"] = CanaryExamples(others.x, others.y, np.random.default_rng(9).random(120) < 0.5, others.client)
    found = measure_canaries(canaries=Canaries(kind="example", count=120, seed=0), claim=example_claim(2.0), **run)
    assert found.bound_run < 0.5


COINS = Canaries(kind="example", count=24, seed=0)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return examples_run(tmp_path_factory.mktemp("world") / "run", noise=0.2, count=24, clients=2, rounds=1)


def measured(world, **changes):
    return measure_canaries(canaries=COINS, claim=example_claim(2.0), **(world | changes))


def test_doubled_and_empty_public_examples_change_little(world):
    x, y = world["public"]
    x, y = x[:20], y[:20]
    plain = measured(world, public=(x, y))
    empty = np.zeros((0, *x.shape[1:]), np.float32), np.zeros(0, np.int64)
    doubled = measured(world, public=(np.concatenate([x, x]), np.concatenate([y, y])))
    assert doubled.scores["in"] == pytest.approx(plain.scores["in"], rel=1e-3)
    assert measured(world, public=empty).bound_run == measured(world, public=None).bound_run


def test_blocks_of_gradients_change_nothing(world, monkeypatch):
    plain = measured(world)
    monkeypatch.setattr(gradients, "_NUMBERS", 20_000)
    monkeypatch.setattr(gradients, "_AT_ONCE", 3000)
    assert measured(world).scores["in"] == pytest.approx(plain.scores["in"], rel=1e-4)
    # In groups, canaries of a client are taken out of one another no more.
    monkeypatch.setattr(gradients, "_TOGETHER", 5)
    assert np.mean(measured(world).scores["in"]) > 3


def rewritten(world, folder, change):
    """Write the record of a world again; ``change`` may change a reply's arrays, given the round and the node."""
    old = world["record"]
    writer = RecordWriter(folder)
    for round_ in old:
        replies = []
        for reply in round_.observations:
            replies.append(Reply(reply.node, "ok", change(reply.node, dict(reply.arrays)), 40))
        writer.write(Exchange(round_.number, round_.common, replies))
    writer.close(final=change("final", dict(old.final)))
    return world | {"record": Record(folder)}


def broken(*names):
    def change(node, arrays):
        if node in names:
            arrays["fc1.weight"] = np.full_like(arrays["fc1.weight"], np.nan)
        return arrays

    return change


def test_an_update_that_is_not_finite_is_left_out_and_named(world, tmp_path):
    found = measured(rewritten(world, tmp_path / "one", broken("n0")))
    assert "not finite are left out: that of client 0 in round 1" in found.notes[1]
    scores = np.concatenate([found.scores["in"], found.scores["out"]])
    assert np.count_nonzero(scores) == 12
    with pytest.raises(NeedsError, match="client 0 in round 1, that of client 1 in round 1"):
        measured(rewritten(world, tmp_path / "all", broken("n0", "n1")))


def test_a_last_model_of_other_arrays_is_refused(world, tmp_path):
    def change(node, arrays):
        if node == "final":
            del arrays["fc1.weight"]
        return arrays

    with pytest.raises(RecordError, match="round 1: the model after it lacks arrays"):
        measured(rewritten(world, tmp_path / "run", change), nodes={})
    with pytest.raises(NeedsError, match="the common model of round 1"):
        measured(rewritten(world, tmp_path / "nan", broken("final")), nodes={})


def with_examples(**changes):
    def changed(examples):
        return CanaryExamples(**(vars(examples) | {name: make(vars(examples)[name]) for name, make in changes.items()}))

    return changed


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (with_examples(**dict.fromkeys(("x", "y", "included", "client"), lambda a: a[:9])), "24 canaries, .* holds 9"),
        (with_examples(x=lambda x: x[:, :, :4]), r"the shape \(1, 4, 8\), and examples of the data \(1, 8, 8\)"),
        (with_examples(y=lambda y: y + 0.5), "labels of type float32 from 0 to 3.5, do not go through the model"),
        (with_examples(y=lambda y: y + 90), "from 0 to 93, do not go through"),
        (with_examples(y=lambda y: y - 100), "do not go through the model"),
    ],
)
def test_examples_that_do_not_fit_are_refused(world, change, fault):
    with pytest.raises(ConfigError, match=fault):
        measured(world, examples=change(world["examples"]))


def test_examples_of_other_types_are_taken(world):
    plain = measured(world)
    other = with_examples(x=lambda x: x.astype(">f8"), y=lambda y: y.astype(np.uint8))(world["examples"])
    assert measured(world, examples=other).bound_run == pytest.approx(plain.bound_run)


def test_a_model_with_more_parameters_is_refused(world):
    net = build_model("mlp", input_shape=(1, 8, 8), classes=4, hidden=9)
    with pytest.raises(ModelError, match="not those of this model"):
        measured(world, model=net)
