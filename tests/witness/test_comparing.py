"""What each array of a reply is: known answers, with a model before and after training."""

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from torch import nn, optim
from torch.nn import functional as F  # noqa: N812

from fedattack.witness import WitnessedClientApp, read_witnesses
from fedattack.witness.comparing import find_outputs, kinds_of
from fedattack.witness.sent import SentArray, joined_kinds, summed_up
from tests.witness import test_flower
from tests.witness.test_flower import call_all

RNG = np.random.default_rng(0)
BEFORE = [("a.weight", RNG.normal(size=(6, 5)).astype(np.float32)), ("a.bias", RNG.normal(size=6).astype(np.float32))]
AFTER = [(name, value + 0.1 * RNG.normal(size=value.shape).astype(np.float32)) for name, value in BEFORE]
START, END = [value for _, value in BEFORE], [value for _, value in AFTER]
MOVED = [after - before for before, after in zip(START, END, strict=True)]


def kinds(sent, *, names=None, mods=(), before=BEFORE, after=AFTER, learns=("a.weight", "a.bias")):
    names = names or list(map(str, range(len(sent))))
    return kinds_of(names, sent, [START], before=before, after=after, learns=learns, mods=mods)


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (END, "weights"),
        ([value.astype(np.float64) for value in END], "weights"),
        (START, "as received"),
        ([np.zeros_like(value) for value in END], "zeros"),
        (MOVED, "difference"),
        ([-value for value in MOVED], "difference times a factor"),
        ([value.astype(np.complex64) for value in END], "no floats"),
        ([RNG.normal(size=value.shape).astype(np.float32) for value in END], "not understood"),
        ([value + 0.05 * RNG.normal(size=value.shape).astype(np.float32) for value in END], "weights, changed"),
        ([value.astype(np.float16) for value in END], "weights, changed"),
        ([value.view(np.int32) for value in END], "weights as the bytes of another type"),
        ([(value.view(np.uint32) >> 16).astype(np.uint16).view(np.int16) for value in END], "weights as the bytes of "),
        ([(value * 100).astype(np.int8) for value in END], "no floats"),
        ([END[0][:4, :3], END[1][:4]], "slice of a model's array"),
    ],
)
def test_each_kind_is_known(sent, kind):
    found = kinds(sent)[:2]
    assert [array.kind.startswith(kind) for array in found] == [True, True], found


def vector_of(arrays):
    return np.concatenate([array.reshape(-1) for array in arrays])


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (vector_of(END), "weights"),
        (vector_of(END).astype(np.float64), "weights"),
        (vector_of(START), "as received"),
        (-2 * vector_of(MOVED), "difference times a factor"),
        (vector_of(END) + 0.02 * RNG.normal(size=36).astype(np.float32), "weights, changed"),
        # Another order, and other numbers.
        (vector_of(END[::-1]), "not understood"),
        (RNG.normal(size=36).astype(np.float32), "not understood"),
    ],
)
def test_a_vector_of_all_arrays_is_compared_as_a_whole(sent, kind):
    steps = [("a.steps", np.array(3))]
    (found,) = kinds([sent], before=BEFORE + steps, after=AFTER + steps)
    assert found.kind == kind
    assert (found.parts, found.shapes) == (("a.weight", "a.bias"), ((6, 5), (6,)))
    parts = "" if kind == "not understood" else ", 2 arrays of the model in one vector"
    (row,) = summed_up([[found]])
    assert row["kind"] == kind + parts


def test_a_vector_of_another_length_or_of_what_is_trained_alone():
    (vector, *rest) = kinds([vector_of(END)[:-1]])
    assert (vector.kind, vector.parts, [array.kind for array in rest]) == ("not understood", (), ["not sent"] * 2)
    head = [*AFTER, ("b.weight", END[0] + 1)]
    vector, *rest = kinds([vector_of(END)], before=[*BEFORE, head[-1]], after=head)
    assert (vector.kind, vector.parts, rest) == ("weights", ("a.weight", "a.bias"), [])


OUTPUTS = [RNG.normal(size=(rows, 3)).astype(np.float32) for rows in (9, 4, 4, 2)]


def probabilities(outputs):
    powers = np.exp(outputs.astype(np.float64))
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (np.concatenate(OUTPUTS[1:]), "outputs of the model"),
        (OUTPUTS[0], "outputs of the model"),
        (probabilities(np.concatenate(OUTPUTS[1:3])), "outputs of the model"),
        (np.concatenate(OUTPUTS[1:]).argmax(axis=1), "outputs of the model"),
        (np.concatenate(OUTPUTS[1:])[::-1], "not understood"),
        (RNG.normal(size=(10, 3)), "not understood"),
        (OUTPUTS[3], "not understood"),
    ],
)
def test_what_a_model_returned_last_is_told_from_arrays_that_look_like_it(sent, kind):
    found = kinds_of(["0"], [sent], [START], before=BEFORE, after=AFTER, learns=(), outputs=lambda: OUTPUTS)
    assert found[0].kind == kind


def test_the_batches_of_outputs_are_named():
    assert find_outputs(np.concatenate(OUTPUTS[1:3]), OUTPUTS) == range(1, 3)
    assert find_outputs(probabilities(OUTPUTS[0]), OUTPUTS) == range(1)
    assert find_outputs(RNG.normal(size=(9, 3)), OUTPUTS) is None


def test_a_gradient_has_one_factor_for_all_arrays():
    found = kinds([-value / np.float32(0.3) for value in MOVED])
    assert [array.kind for array in found] == ["difference times a factor"] * 2
    assert found[0].least == found[0].most == pytest.approx(-1 / 0.3, rel=1e-5)
    other = kinds([-value / factor for value, factor in zip(MOVED, (0.3, 0.7), strict=True)])
    assert [array.kind for array in other] == ["difference times a factor", "not understood"]


def test_in_a_doubled_list_the_second_half_is_no_weights():
    found = kinds([*END, *[RNG.normal(size=value.shape).astype(np.float32) for value in END]])
    assert [(array.kind, array.of) for array in found] == [
        ("weights", "a.weight"),
        ("weights", "a.bias"),
        ("not understood", "a.weight"),
        ("not understood", "a.bias"),
    ]


def test_weights_of_another_model_are_told_from_those_of_the_model_that_has_such_shapes():
    """As of a generator, of which a layer is as large as one of the discriminator."""
    other = [
        ("0.weight", RNG.normal(size=(3, 2)).astype(np.float32)),
        ("0.bias", RNG.normal(size=6).astype(np.float32)),
    ]
    strange = RNG.normal(size=(3, 2)).astype(np.float32)
    names = ["g.weight", "g.bias", "d.weight", "d.bias", "strange"]
    sent = [*(value for _, value in other), *END, strange]
    found = kinds_of(names, sent, [START], before=BEFORE, after=AFTER, learns=(), others=lambda: [other])
    assert [(array.name, array.kind, array.of) for array in found] == [
        ("g.weight", "weights of another model", ""),
        ("g.bias", "weights of another model", ""),
        ("d.weight", "weights", "a.weight"),
        ("d.bias", "weights", "a.bias"),
        ("strange", "not understood", ""),
    ]


def test_what_is_trained_and_not_sent_is_listed():
    assert [(array.name, array.kind) for array in kinds(END[:1])] == [("0", "weights"), ("a.bias", "not sent")]
    assert len(kinds(END[:1], learns=["a.weight"])) == 1


def test_whatever_a_known_mod_does_to_weights_they_are_weights_that_were_changed():
    noisy = [value + 50 * RNG.normal(size=value.shape).astype(np.float32) for value in END]
    assert {array.kind for array in kinds(noisy)} == {"not understood"}
    assert {array.kind for array in kinds(noisy, mods=["LocalDpMod(epsilon=1)"])} == {"weights, changed"}
    differences = [value + 0.01 * RNG.normal(size=value.shape).astype(np.float32) for value in MOVED]
    assert {array.kind for array in kinds(differences, mods=["DefenceMod"])} == {"difference, changed"}


def test_calls_are_joined_by_what_is_understood_least_and_the_spread_of_factors():
    one = SentArray("0", (2,), "float32", "difference times a factor", "w", -2.0, -2.0)
    other = SentArray("0", (2,), "float32", "difference times a factor", "w", -4.0, -4.0)
    (joined,) = joined_kinds([one], [other])
    assert (joined.kind, joined.least, joined.most) == ("difference times a factor", -4.0, -2.0)
    weights = SentArray("0", (2,), "float32", "weights", "w")
    assert joined_kinds([weights], [one])[0].kind == "not understood"
    assert joined_kinds([SentArray("0", (2,), "float32", "zeros", "w")], [weights])[0].kind == "weights"
    assert joined_kinds([weights], [SentArray("0", (3,), "float32", "weights", "w")])[0].kind == "not understood"


def test_a_table_counts_clients_by_array_and_kind():
    weights = SentArray("0", (2,), "float32", "weights", "w")
    gradient = SentArray("0", (2,), "float32", "difference times a factor", "w", -2.0, -1.0)
    rows = summed_up([[weights], [weights], [gradient]])
    assert rows == [
        {"array": "0", "shape": [2], "dtype": "float32", "kind": "weights", "clients": 2},
        {
            "array": "0",
            "shape": [2],
            "dtype": "float32",
            "kind": "difference times a factor",
            "clients": 1,
            "least": -2.0,
            "most": -1.0,
        },
    ]


def make_app(reply):
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = nn.Linear(5, 3)
        start = message.content["arrays"].to_torch_state_dict()
        model.load_state_dict(start)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.rand(8, 5)), torch.arange(8) % 3).backward()
            optimizer.step()
        arrays = reply(start, {name: value.detach() for name, value in model.state_dict().items()})
        return Message(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=message)

    return app


def gradients(start, end):
    return [((start[name] - end[name]) / 0.2).numpy() for name in end]


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (lambda start, end: end, {("weight", "weights"), ("bias", "weights")}),
        (gradients, {("0", "difference times a factor"), ("1", "difference times a factor")}),
        (
            lambda start, end: [end["weight"].numpy(), end["bias"].numpy(), np.ones((3, 5), np.float32)],
            {("0", "weights"), ("1", "weights"), ("2", "not understood")},
        ),
    ],
    ids=["weights", "gradients", "doubled"],
)
def test_a_witness_notes_what_its_client_sends(reply, expected, tmp_path):
    call_all(WitnessedClientApp(make_app(reply), tmp_path), nodes=1, rounds=2)
    (witness,) = read_witnesses(tmp_path)
    assert {(array.name, array.kind) for array in witness.sends} == expected
    factors = [factor for array in witness.sends for factor in (array.least, array.most) if factor is not None]
    assert factors == pytest.approx([-5] * len(factors), rel=1e-3)


def test_weights_that_a_mod_noises_are_weights_that_were_changed(tmp_path):
    app = test_flower.make_app(mods=[LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-5)])
    call_all(WitnessedClientApp(app, tmp_path), nodes=1)
    (witness,) = read_witnesses(tmp_path)
    assert {array.kind for array in witness.sends} == {"weights, changed"}


def test_of_a_reply_without_arrays_nothing_is_noted(tmp_path):
    call_all(WitnessedClientApp(make_app(lambda start, end: {}), tmp_path), nodes=1)
    (witness,) = read_witnesses(tmp_path)
    assert witness.sends == ()
