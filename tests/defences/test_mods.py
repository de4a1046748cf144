"""The mod on real messages of both generations and under SecAgg+, and the wrapper beside it.

Where there is no torch, as beside a Flower of another version, what needs it is skipped.
"""

import copy
from functools import partial

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import parameters_to_ndarrays
from flwr.server import LegacyContext, ServerConfig
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fedattack.base.errors import ConfigError, DataError, ModelError
from fedattack.defences import Batch, defence_of, hand_over, mods
from fedattack.defences.applying import defended_arrays
from fedattack.defences.hook import Handed, collecting
from fedattack.defences.mods import DefenceMod
from fedattack.defences.wrapper import defended
from fedattack.observe.bridge import numpy_client_bridge
from tests.observe import apps
from tests.refusals import refused
from tests.worlds.local_grid import FIRST_NODE, LocalGrid

SPARSE = {"defence": "sparsify", "defence-strength": 0.5}
NOISY = {"defence": "dp-gaussian", "defence-strength": 0.1, "defence-clip": 1.0}
INITIAL = apps.initial_arrays()
NODES = 4


def message_of(arrays=INITIAL, kind="train", legacy=False, config=None) -> Message:
    LocalGrid(lambda *_: None, 1)  # messages exist only within a run
    config = ConfigRecord({"server-round": 2} if config is None else config)
    if legacy:
        record = ArrayRecord({str(index): Array(array) for index, array in enumerate(arrays.values())})
        content = RecordDict({"fitins.parameters": record, "fitins.config": config})
    else:
        content = RecordDict({"arrays": ArrayRecord({k: Array(v) for k, v in arrays.items()}), "config": config})
    return Message(content, FIRST_NODE, kind)


def context_of(settings, partition: int = 1) -> Context:
    node = {"partition-id": partition}
    return Context(run_id=7, node_id=FIRST_NODE, node_config=node, state=RecordDict(), run_config=dict(settings))


CLIENTS = {
    "message": apps.message_client,
    "bridged": ClientApp(client_fn=apps.client_fn),
    "legacy": ClientApp(client_fn=apps.client_fn),
}


def answer(generation: str, settings, *, seed: int | None = 0, message: Message | None = None, **where) -> Message:
    """What a client of this generation replies under the mod."""
    legacy = generation == "legacy"
    mods = [DefenceMod(seed=seed), *([numpy_client_bridge] if generation == "bridged" else [])]
    function = CLIENTS[generation]
    for mod in reversed(mods):
        function = partial(mod, call_next=function)
    return function(message or message_of(legacy=legacy), context_of(settings, **where))


def arrays_of(reply: Message) -> list[np.ndarray]:
    (record,) = reply.content.array_records.values()
    return [array.numpy() for key, array in record.items() if key != "_empty"]


def same(left: Message, right: Message) -> bool:
    return left.content == right.content and all(
        one.tobytes() == other.tobytes() for one, other in zip(arrays_of(left), arrays_of(right), strict=True)
    )


@pytest.mark.parametrize("generation", CLIENTS)
def test_without_a_defence_the_reply_is_the_same_to_the_last_bit(generation):
    """Metrics included."""
    plain = answer(generation, {"defence": "none"}, seed=None)
    assert same(answer(generation, {"defence": "none"}), plain)
    clean = apps.train([*INITIAL.values()], 1, 2)
    assert all(a.tobytes() == np.asarray(b).tobytes() for a, b in zip(arrays_of(plain), clean, strict=True))
    told = str(plain.content)
    assert "train-loss" in told


@pytest.mark.parametrize("generation", CLIENTS)
def test_the_update_is_defended_and_not_the_weights(generation):
    got = arrays_of(answer(generation, NOISY))
    start, clean = [*INITIAL.values()], apps.train([*INITIAL.values()], 1, 2)
    floats = [0, 1]
    update = {str(index): np.asarray(clean[index] - start[index], dtype=np.float32) for index in floats}
    rng = np.random.default_rng((0, 0xDEFE, 1, 2))
    expected = defence_of(NOISY).apply(update, rng)
    for index in floats:
        np.testing.assert_allclose(got[index] - start[index], expected[str(index)], atol=1e-6)
        assert got[index].dtype == np.float32
    assert got[2] == clean[2]  # the counter, trained and untouched
    assert got[2].dtype == np.int64


@pytest.mark.parametrize("generation", CLIENTS)
def test_the_clean_update_leaves_no_trace_in_the_metrics(generation):
    reply = answer(generation, NOISY)
    numbers = {key: value for record in reply.content.metric_records.values() for key, value in record.items()}
    assert set(numbers) <= {"num-examples", "num_examples"}
    assert [*numbers.values()] == [13]
    others = {key: dict(record) for key, record in reply.content.config_records.items()}
    if generation == "legacy":
        assert others.pop("fitres.metrics") == {}
        assert others.pop("fitres.status") == {"code": 0, "message": "Success"}
    assert others == {}


@pytest.mark.parametrize("generation", CLIENTS)
def test_sparse_entries_are_sent_as_they_came_and_the_others_as_they_were_trained(generation):
    start, clean = [*INITIAL.values()], apps.train([*INITIAL.values()], 1, 2)
    got = arrays_of(answer(generation, SPARSE))
    kept = np.concatenate([(got[i] == clean[i]).ravel() for i in (0, 1)])
    zero = np.concatenate([(got[i] == start[i]).ravel() for i in (0, 1)])
    assert zero.sum() == round(0.5 * 9)
    assert (kept ^ zero).all()


@pytest.mark.parametrize("kind", ["evaluate", "query", "get_properties"])
def test_other_messages_pass_untouched(kind):
    message, seen = message_of(kind=kind), []

    def inner(message, context):
        seen.append(message)
        return Message(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), reply_to=message)

    reply = DefenceMod()(message, context_of(NOISY), inner)
    assert seen == [message]
    assert dict(reply.content.metric_records["metrics"]) == {"loss": 1.0}


def test_a_training_message_of_an_action_is_defended():
    message, sent = message_of(kind="train.warmup"), {key: array + 1 for key, array in INITIAL.items()}
    reply = DefenceMod(SPARSE | {"defence-strength": 1.0})(message, context_of({}), replying(arrays=record_of(sent)))
    assert [array.tolist() for array in arrays_of(reply)[:2]] == [array.tolist() for array in [*INITIAL.values()][:2]]


def test_an_error_passes():
    reply = DefenceMod()(
        message_of(), context_of(NOISY), lambda message, _: Message(Error(code=3, reason="no"), reply_to=message)
    )
    assert reply.has_error()


def test_settings_are_read_at_each_call():
    mod = DefenceMod(seed=0)
    replies = [
        mod(message_of(), context_of(settings), apps.message_client) for settings in (NOISY, {"defence": "none"}, NOISY)
    ]
    assert same(replies[0], replies[2])
    assert not same(replies[0], replies[1])
    own = DefenceMod(NOISY, seed=0)(message_of(), context_of({"defence": "none"}), apps.message_client)
    assert same(own, replies[0])


def test_noise_follows_from_seed_client_and_round():
    def noise(seed=0, partition=1, server_round=2):
        message = message_of(config={"server-round": server_round})
        reply = DefenceMod(seed=seed)(message, context_of(NOISY, partition), constant)
        return np.concatenate([array.ravel() for array in arrays_of(reply)[:2]])

    def constant(message, context):
        arrays = ArrayRecord({key: Array(array) for key, array in INITIAL.items()})
        return Message(RecordDict({"arrays": arrays}), reply_to=message)

    first = noise()
    np.testing.assert_array_equal(first, noise())
    for change in ({"seed": 1}, {"partition": 2}, {"server_round": 3}, {"seed": None}):
        assert np.abs(noise(**change) - first).max() > 1e-3
    assert np.abs(noise(seed=None) - noise(seed=None)).max() > 1e-3


def test_a_seeded_defence_without_a_round_would_repeat_its_noise():
    with pytest.raises(ConfigError, match="send server-round with the training config"):
        answer("message", NOISY, message=message_of(config={"lr": 0.1}))


def test_the_received_arrays_are_those_before_a_client_trains_in_them():
    def in_place(message, context):
        record = message.content.array_records.pop("arrays")
        return Message(
            RecordDict({"model": record_of({key: array.numpy() + 1 for key, array in record.items()})}),
            reply_to=message,
        )

    reply = DefenceMod(SPARSE | {"defence-strength": 1.0})(message_of(), context_of({}), in_place)
    for got, start in zip(arrays_of(reply)[:2], INITIAL.values(), strict=False):
        np.testing.assert_array_equal(got, start)


def test_arrays_that_come_back_in_another_order_are_told_by_their_names():
    initial = {"a": np.zeros(2, np.float32), "b": np.full(2, 9, np.float32)}
    sent = {"b": np.array([9, 12], np.float32), "a": np.array([0, 1], np.float32)}
    reply = DefenceMod(SPARSE)(message_of(initial), context_of({}), replying(arrays=record_of(sent)))
    assert [array.tolist() for array in arrays_of(reply)] == [[9, 12], [0, 1]]


def replying(**records):
    def inner(message, context):
        return Message(RecordDict(records), reply_to=message)

    return inner


def record_of(arrays) -> ArrayRecord:
    return ArrayRecord({key: Array(np.asarray(array)) for key, array in arrays.items()})


@pytest.mark.parametrize(
    ("inner", "settings", "error", "message"),
    [
        (replying(), {}, ConfigError, 'lack "defence".*add defence = "none"'),
        (replying(), {"defence": "prayer"}, ConfigError, "defence = 'prayer': expected one of none, dp-gaussian"),
        (replying(), {"defence": "dp-sgd", "defence-strength": 1.0}, ConfigError, "call fedattack.learning.train_priv"),
        (replying(), {"defence": "none", "defence-strength": 1.0}, ConfigError, "strength = 1 without a defence"),
        (replying(a=record_of(INITIAL), b=record_of(INITIAL)), NOISY, DataError, r"got 2 \(a, b\)"),
        (replying(a=record_of({"x": np.zeros(3)})), NOISY, DataError, "got 1 for 3 arrays"),
        (
            replying(a=record_of({**INITIAL, "layer.bias": np.ones(3, dtype=np.complex64)})),
            NOISY,
            DataError,
            "layer.bias holds complex64, which would go undefended",
        ),
        (
            replying(a=record_of({**INITIAL, "layer.bias": np.full(3, np.nan, dtype=np.float32)})),
            NOISY,
            ModelError,
            "the update of layer.bias has values that are not finite",
        ),
        (
            replying(a=record_of(INITIAL)),
            {"defence": "soteria", "defence-strength": 0.5},
            DataError,
            "call fedattack.defences.hand_over",
        ),
        (
            replying(a=record_of(INITIAL)),
            {"defence": "sparsify"},
            ConfigError,
            "defence = 'sparsify' with defence-strength = 0 would change nothing; give a strength above 0",
        ),
    ],
)
def test_what_cannot_be_defended_is_not_sent(inner, settings, error, message):
    with refused(error, message):
        DefenceMod()(message_of(), context_of(settings), inner)


@pytest.mark.parametrize("received", [{"w": np.full(4, 7.0, dtype=np.float32)}, {}], ids=["gradient", "predictions"])
def test_a_gradient_is_an_update_itself_whatever_was_received(received):
    sent = {"w": np.array([3.0, -0.1, 2.0, 0.2], dtype=np.float32)}
    mod = DefenceMod(SPARSE, sends="update")
    reply = mod(message_of(received), context_of({}), replying(arrays=record_of(sent)))
    assert arrays_of(reply)[0].tolist() == [3.0, 0.0, 2.0, 0.0]


def network():
    torch = pytest.importorskip("torch")
    nn = torch.nn
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))


X = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
Y = np.arange(9) % 2


class Handing(NumPyClient):
    """A user's client, with buffers, that trains with torch and hands over what Soteria needs."""

    def __init__(self, when: str = "before", calls: int = 1) -> None:
        self.when, self.calls = when, calls

    def fit(self, parameters, config):
        model = network()
        import torch

        arrays = zip(model.state_dict(), parameters, strict=True)
        model.load_state_dict({name: torch.tensor(array) for name, array in arrays})
        if self.when == "before":
            for _ in range(self.calls):
                hand_over(model, torch.from_numpy(X), Y)
        torch.nn.functional.cross_entropy(model(torch.from_numpy(X)), torch.from_numpy(Y)).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        if self.when == "after":
            hand_over(model, X, Y)
        return [value.detach().numpy() for value in model.state_dict().values()], 9, {"update-norm": 0.5}

    def evaluate(self, parameters, config):
        return 1.5, 9, {"accuracy": 0.5}


def state() -> list[np.ndarray]:
    return [value.detach().numpy().copy() for value in network().state_dict().values()]


SOTERIA = {"defence": "soteria", "defence-strength": 0.5}


def masked_by_hand() -> list[np.ndarray]:
    """What Soteria sends for the client above, in the order of the state dict."""
    start, clean = state(), Handing().fit(state(), {})[0]
    names = [*network().state_dict()]
    update = {n: c - s for n, c, s in zip(names, clean, start, strict=True) if c.dtype.kind == "f"}
    result = defence_of(SOTERIA).apply(update, np.random.default_rng(0), Batch(X, Y, network()))
    return [start[i] + result[n] if n in result else clean[i] for i, n in enumerate(names)]


@pytest.mark.parametrize("legacy", [True, False])
def test_the_hook_gives_soteria_what_it_needs_in_both_generations(legacy):
    """Legacy arrays are nameless; the model that is handed over has their names."""
    arrays = dict(zip(network().state_dict(), state(), strict=True))
    app = ClientApp(client_fn=lambda _: Handing().to_client(), mods=[DefenceMod(SOTERIA), numpy_client_bridge])
    got = arrays_of(app(message_of(arrays, legacy=legacy), context_of({})))
    clean = Handing().fit(state(), {})[0]
    for left, right in zip(got, masked_by_hand(), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-7)
    changed = [index for index, (left, right) in enumerate(zip(got, clean, strict=True)) if (left != right).any()]
    assert changed == [[*network().state_dict()].index("4.weight")]


@pytest.mark.parametrize(
    ("client", "message"),
    [
        (Handing("after"), "call it after they are loaded and before the training"),
        (Handing("never"), "needs the batch and the model"),
        (Handing(calls=2), "hand_over was called twice in a round"),
    ],
)
def test_a_hand_over_that_is_amiss_is_refused(client, message):
    with pytest.raises(DataError, match=message):
        defended(client, SOTERIA).fit(state(), {})


def test_handing_over_costs_nothing_where_nobody_asks():
    model = network()
    hand_over(model, X, Y)
    with collecting(False) as handed:
        hand_over(model, X, Y)
    assert handed == Handed(False, tuple(model.state_dict()))
    with collecting(True) as handed:
        hand_over(model, X, Y)
    assert handed.batch.model is not model
    with pytest.raises(DataError, match="a label for each of at least one example; got 9 and 0"), collecting(True):
        hand_over(model, X[:0], Y)


class InPlace(NumPyClient):
    def fit(self, parameters, config):
        for array in parameters:
            array += 1
        return parameters, 3, {"train-loss": 0.1}


@pytest.mark.parametrize("name", ["dp-gaussian", "dp-laplace", "sparsify", "flower-localdp"])
def test_the_wrapper_sends_what_the_mod_sends(name):
    settings = {"defence": name, "defence-strength": 0.5}
    start = [*INITIAL.values()]
    client = apps.TrainingClient(1)
    sent, count, metrics = defended(client, settings, rng=np.random.default_rng((0, 0xDEFE, 1, 2))).fit(
        copy.deepcopy(start), {"server-round": 2}
    )
    for left, right in zip(sent, arrays_of(answer("legacy", settings)), strict=True):
        np.testing.assert_array_equal(left, right)
    assert (count, metrics) == (13, {})
    assert type(client) is apps.TrainingClient
    assert "_fedattack" not in vars(client)


def test_what_is_no_numpy_client_is_not_wrapped():
    for wrong in (Handing().to_client(), Handing):
        with pytest.raises(ConfigError, match=r"expected a NumPyClient, got .* before to_client\(\)"):
            defended(wrong, NOISY)


def test_the_running_statistics_of_a_batch_norm_are_defended_and_make_no_root_of_a_negative_number(monkeypatch):
    """They are statistics of the client's records. A counter passes untouched."""
    # The noise is the operating system's; one time in twenty none of six variances would fall below 0.
    draw = np.random.default_rng(0)
    monkeypatch.setattr(mods.np.random, "default_rng", lambda *_: draw)
    arrays = dict(zip(network().state_dict(), state(), strict=True))
    strong = NOISY | {"defence-strength": 3.0}
    app = ClientApp(client_fn=lambda _: Handing().to_client(), mods=[DefenceMod(strong), numpy_client_bridge])
    got = dict(zip(arrays, arrays_of(app(message_of(arrays), context_of({}))), strict=True))
    clean = dict(zip(arrays, Handing().fit(state(), {})[0], strict=True))
    assert (got["2.running_mean"] != clean["2.running_mean"]).all()
    variance = got["2.running_var"]
    assert (variance != clean["2.running_var"]).all()
    assert variance.min() == 0 < variance.max()
    assert got["2.num_batches_tracked"] == clean["2.num_batches_tracked"] == 1
    assert min(array.min() for name, array in got.items() if name != "2.running_var") < -1
    model = network()
    import torch

    model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in got.items()})
    assert torch.isfinite(model.eval()(torch.from_numpy(X))).all()


def test_the_wrapper_leaves_all_else_as_it_was():
    client = defended(Handing(), NOISY)
    assert isinstance(client, Handing)
    assert client.evaluate([], {}) == (1.5, 9, {"accuracy": 0.5})
    flower = client.to_client()
    assert "evaluate" in vars(type(flower))
    assert "get_parameters" not in vars(type(flower))
    assert "evaluate" not in vars(type(defended(InPlace(), NOISY).to_client()))
    plain = defended(Handing(), {"defence": "none"}).fit(state(), {})
    assert plain[2] == {"update-norm": 0.5}
    for left, right in zip(plain[0], Handing().fit(state(), {})[0], strict=True):
        assert left.tobytes() == right.tobytes()


def test_a_client_that_trains_in_the_received_arrays_is_defended_all_the_same():
    got, _, _ = defended(InPlace(), SPARSE | {"defence-strength": 1.0}).fit([np.zeros(4, dtype=np.float32)], {})
    assert got[0].tolist() == [0.0] * 4


def test_a_wrapped_client_has_noise_that_nobody_can_repeat():
    first, second = (defended(InPlace(), NOISY).fit([np.zeros(4, dtype=np.float32)], {})[0][0] for _ in range(2))
    assert np.abs(first - second).max() > 0


def test_half_precision_and_double_keep_their_types():
    start = [np.zeros(5, dtype=kind) for kind in (np.float16, np.float64)]
    sent = [array + np.arange(5).astype(array.dtype) for array in start]
    got = defended_arrays(
        defence_of(SPARSE),
        received=start,
        sent=sent,
        names=["a", "b"],
        handed=Handed(False),
        rng=np.random.default_rng(),
    )
    assert [array.dtype for array in got] == [np.float16, np.float64]
    assert sum((array == 0).sum() for array in got) == 5


def test_under_secagg_the_sum_is_that_of_the_defended_updates():
    """The mask comes last: the server unmasks the mean of what the defence made, and gets no metric."""
    results, clear = {}, {}

    def note(message, context, call_next):
        reply = call_next(message, context)
        if "fitres.parameters" in reply.content.array_records:
            clear[context.node_id] = (arrays_of(reply), dict(reply.content.config_records["fitres.metrics"]))
        return reply

    class Floats(apps.TrainingClient):
        def fit(self, parameters, config):
            sent, _, metrics = super().fit(parameters, config)
            return sent, 10, metrics

    def client_fn(context):
        return Floats(int(context.node_config["partition-id"])).to_client()

    app = ClientApp(client_fn=client_fn, mods=[secaggplus_mod, note, DefenceMod(NOISY, seed=0)])
    server = ServerApp()

    @server.main()
    def main(grid, context):
        strategy = apps.legacy_fedavg(results)
        legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=1), strategy=strategy)
        DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(3, 2, max_weight=10.0))(grid, legacy)

    server(LocalGrid(app, NODES), context_of({}))
    assert len(clear) == NODES
    assert all(metrics == {} for _, metrics in clear.values())
    means = [np.mean(arrays, axis=0) for arrays in zip(*(arrays for arrays, _ in clear.values()), strict=True)]
    for got, mean in zip(parameters_to_ndarrays(results["final"]), means, strict=True):
        np.testing.assert_allclose(got, mean, atol=1e-4)
    plain = apps.train([array for array in INITIAL.values() if array.dtype.kind == "f"], 0, 1)
    assert max(np.abs(left - right).max() for left, right in zip(clear[FIRST_NODE][0], plain, strict=True)) > 0.05


def test_a_mod_that_would_come_after_the_mask_says_so():
    def masked(message, context):
        return Message(RecordDict({"secaggplus_configs": ConfigRecord({"pk1": b"key"})}), reply_to=message)

    with pytest.raises(ConfigError, match="put secaggplus_mod before DefenceMod"):
        DefenceMod()(message_of(legacy=True), context_of(NOISY), masked)


def test_a_message_run_with_evaluation_goes_on_under_a_defence():
    """App-wide mods see evaluation messages, too. The server sends the mean of the counters in double precision."""
    mods, final, server = [DefenceMod(SOTERIA, seed=0), numpy_client_bridge], {}, ServerApp()
    app = ClientApp(client_fn=lambda _: Handing().to_client(), mods=mods)

    @server.main()
    def main(grid, context):
        initial = record_of(dict(zip(network().state_dict(), state(), strict=True)))
        done = FedAvg().start(grid, initial, num_rounds=2, timeout=30)
        final.update(
            arrays=done.arrays, evaluated=done.evaluate_metrics_clientapp, trained=done.train_metrics_clientapp
        )

    server(LocalGrid(app, NODES), context_of({}))
    assert [dict(final["evaluated"][number])["accuracy"] for number in (1, 2)] == [0.5, 0.5]
    assert [set(record) for record in final["trained"].values()] == [set(), set()]
    assert final["arrays"]["2.num_batches_tracked"].numpy() == 2
