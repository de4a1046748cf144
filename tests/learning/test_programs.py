"""Described models compute what the models themselves compute, and hostile descriptions end in one line."""

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from fedattack.errors import DataError, ModelError
from fedattack.files import write_npz
from fedattack.learning import batched, example_gradients, losses_of_models, outputs_of, per_record_loss
from fedattack.learning.inputs import call
from fedattack.learning.losses import mean_loss
from fedattack.learning.operators import MAKING, OPERATORS
from fedattack.learning.programs import Program, check_program, read_program
from fedattack.learning.rows import LayerModel
from fedattack.learning.shadows import ShadowModel
from fedattack.learning.torch_utils import has_batch_norm, has_dropout
from fedattack.threats import Knowledge, ModelKnowledge, Targets, read_knowledge, write_knowledge
from fedattack.witness.torch_export import program_of
from tests.learning.test_batched import Shifting


class Residual(nn.Module):
    """Batch norm, dropout as a layer and as a function, in-place sums, a number of examples in its code."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.3)
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, padding="same", bias=False)
        self.register_buffer("scale", torch.tensor([2.0]), persistent=False)
        self.shift = torch.linspace(0, 1, 4)
        self.last = nn.Linear(64, 3)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)), inplace=True)
        x = x + self.second(x)
        x = F.max_pool2d(self.drop(x), 2)
        x += self.shift[:, None, None]
        x = F.dropout(x, 0.2, self.training).reshape(len(x), -1)
        return self.last(x) * self.scale + torch.zeros(x.shape[0], 3, device=x.device)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Conv2d(1, 4, 3), nn.Dropout(0.3), nn.Linear(36, 3)

    def forward(self, x):
        # On images with their channels last, only the first works.
        x = F.max_pool2d(self.first(x).relu(), 2)
        return self.last(self.drop(x.flatten(1).tanh()))


class Viewing(Plain):
    def forward(self, x):
        return self.last(self.drop(self.first(x)[:, :, ::2, ::2].contiguous().view(x.shape[0], -1).tanh()))


class Recurrent(nn.Module):
    def __init__(self, kind) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.through = kind(8, 6, num_layers=2, batch_first=True, dropout=0.2)
        self.last = nn.Linear(6, 3)

    def forward(self, ids):
        return self.last(self.through(self.words(ids))[0][:, -1])


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.last = nn.Linear(8, 20)
        self.last.weight = self.words.weight

    def forward(self, ids, attention_mask=None):
        seen = self.layer(self.words(ids), src_key_padding_mask=attention_mask == 0)
        return {"logits": self.last(seen.mean(1)), "hidden": [seen]}


def images(count=6):
    return np.random.default_rng(0).normal(size=(count, 1, 8, 8)).astype(np.float32)


def tokens(count=6):
    batch = np.zeros(count, np.dtype([("0", np.int64, (5,))]))
    batch["0"] = np.random.default_rng(0).integers(20, size=(count, 5))
    return batch


def sentences(count=6):
    batch = np.zeros(count, np.dtype([("ids", np.int64, (5,)), ("attention_mask", np.int64, (5,))]))
    batch["ids"] = np.random.default_rng(0).integers(20, size=(count, 5))
    batch["attention_mask"] = 1
    batch["attention_mask"][::2, 3:] = 0
    return batch


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.Tanh(), nn.Dropout(0.4), nn.Linear(9, 3))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[..., np.ndarray]]] = {
    "mlp": (mlp, images),
    "residual": (Residual, images),
    "plain": (Plain, images),
    "viewing": (Viewing, images),
    "lstm": (lambda: Recurrent(nn.LSTM), tokens),
    "gru": (lambda: Recurrent(nn.GRU), tokens),
    "rnn": (lambda: Recurrent(nn.RNN), tokens),
    "attention": (Attentive, sentences),
}


def made(name, folder=None) -> tuple[nn.Module, Program, np.ndarray]:
    """Make a model, and describe it; what is read of a file is what was written."""
    torch.manual_seed(3)
    make, data = MODELS[name]
    model, x = make(), data()
    program, why = program_of(model, x)
    assert program is not None, why
    if folder is not None:
        write_npz(folder / "program.npz", program.arrays())
        program = read_program(folder / "program.npz")
    return model, program, x


def leaves(x, count):
    if x.dtype.names is None:
        return {"0": torch.from_numpy(x[:count])}
    return {name: torch.from_numpy(x[name][:count].copy()) for name in x.dtype.names}


def logits(returned):
    return returned["logits"] if isinstance(returned, dict) else returned


def outputs(model, x, count, *, training):
    model.train(training)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(11)
    return logits(call(model, state, leaves(x, count))), state


@pytest.mark.parametrize("name", MODELS)
def test_a_described_model_is_the_model(name, tmp_path):
    model, program, x = made(name, tmp_path)
    built = program.build()
    shapes = {key: value.shape for key, value in model.state_dict().items()}
    assert {key: value.shape for key, value in built.state_dict().items()} == shapes
    assert [key for key, _ in built.named_parameters()] == [key for key, _ in model.named_parameters()]
    assert (has_batch_norm(built), has_dropout(built)) == (has_batch_norm(model), has_dropout(model))
    built.load_state_dict(model.state_dict())
    twins = [built, copy.deepcopy(built), pickle.loads(pickle.dumps(built))]  # noqa: S301 - it is this test's own
    for count, training in ((1, False), (2, False), (6, False), (2, True), (6, True)):
        wanted, after = outputs(model, x, count, training=training)
        for twin in twins:
            got, changed = outputs(twin, x, count, training=training)
            torch.testing.assert_close(got, wanted)
            # Batch norm follows its batches alike.
            for key, value in after.items():
                torch.testing.assert_close(changed[key], value)
    # Dropout is on in training alone.
    again = [outputs(built, x, 6, training=True)[0], outputs(built, x, 6, training=False)[0]]
    assert not torch.equal(*again)


def test_a_model_that_writes_into_its_input_is_described():
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    model, before = Shifting(), x.copy()
    program, why = program_of(model, x)
    assert program is not None, why
    np.testing.assert_array_equal(x, before)
    built = program.build()
    built.load_state_dict(model.state_dict())
    torch.testing.assert_close(built(torch.from_numpy(x.copy())), model(torch.from_numpy(x.copy())))


@pytest.mark.parametrize("name", ["mlp", "plain", "viewing"])
def test_attacks_see_the_same_layers_and_gradients(name):
    model, program, x = made(name)
    built, y = program.build(), np.arange(6) % 3
    arrays = {key: value.numpy().copy() for key, value in model.state_dict().items()}
    names, wanted = example_gradients(model, arrays, x, y)
    same_names, got = example_gradients(built, arrays, x, y)
    assert same_names == names
    # The same dropout masks are drawn from the same seed.
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)
    parts = []
    for each in (model, built):
        shadow = ShadowModel(each, x[0], mean_loss("cross-entropy"))
        layered = LayerModel(shadow, shadow.flatten(arrays), torch.from_numpy(x), torch.from_numpy(y))
        parts.append(([layer.name for layer in layered.layers], layered.together, shadow.random))
    assert parts[0] == parts[1]
    assert parts[1][0]
    # Images are laid out with their channels last.
    loss = per_record_loss("cross-entropy")
    torch.testing.assert_close(*(losses_of_models(each, [arrays], x, y, loss) for each in (model, built)))


def test_what_passes_through_a_batch_norm_of_a_batch_gives_the_same_gradient():
    model, program, x = made("residual")
    built = program.build()
    arrays = {key: value.numpy().copy() for key, value in model.state_dict().items()}
    found = []
    for each in (model, built):
        shadow = ShadowModel(each, x[0], mean_loss("cross-entropy"))
        # Of dropout as a function the masks cannot be given.
        torch.manual_seed(2)
        generator = torch.Generator().manual_seed(1)
        start = shadow.flatten(arrays)
        found.append(shadow.mean_gradient(start, torch.from_numpy(x), torch.arange(6) % 3, generator=generator))
        assert not shadow.separable
    torch.testing.assert_close(*found)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 3)

    def forward(self, x):
        x = x.flatten(1)
        return self.last(x if x.sum() > 0 else -x)


class Restless(Branching):
    def forward(self, x):
        return self.last(x.flatten(1)) * (1 if np.random.rand() < 0.5 else 2)  # noqa: NPY002


class Counting(Branching):
    def forward(self, x):
        return torch.cat([self.last(each.flatten()[None]) for each in x])


class Looking(Branching):
    """What it computes of a batch depends on how many there are, in a way that no line describes."""

    def forward(self, x):
        return self.last(x.flatten(1)) * len(x) ** 2


class Reading(Branching):
    def forward(self, x):
        return self.last(x.flatten(1).as_strided((len(x), 64), (64, 1)))


class Hooked(Branching):
    def __init__(self) -> None:
        super().__init__()
        self.last.register_forward_hook(lambda *_: None)

    def forward(self, x):
        return self.last(x.flatten(1))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Branching, "data-dependent"),
        (Restless, "comput"),
        (Counting, "depends on the number of examples"),
        (Looking, "computes something else"),
        (Reading, "as_strided"),
        (Hooked, "hooks"),
    ],
)
def test_what_no_program_describes_is_refused_with_the_reason(kind, why):
    program, reason = program_of(kind(), images())
    assert program is None
    assert why in reason
    assert "\n" not in reason


def test_no_operator_reads_files_or_memory_that_is_not_its_own():
    forbidden = {"from_file", "as_strided", "set_", "resize_", "embedding_bag", "_unsafe_view", "load", "save"}
    assert not {name.partition(".")[0] for name in OPERATORS} & forbidden
    assert OPERATORS["empty.memory_format"] is OPERATORS["zeros.default"]
    assert OPERATORS["new_empty.default"] is OPERATORS["new_zeros.default"]
    assert {name.partition(".")[0] for name in OPERATORS} >= MAKING


def changed(program: Program, **changes) -> Program:
    about = copy.deepcopy(json.loads(json.dumps(program.about)))
    return Program(about | changes, dict(program.constants))


def graph(*nodes, returns=None, kwargs=None):
    nodes = [{"op": op, "args": list(args), "kwargs": kwargs or {}} for op, *args in nodes]
    return {"train": {"nodes": nodes, "returns": returns or {"0": {"node": len(nodes) - 1}}}, "eval": None}


X = {"input": "0"}
LINEAR = {"name": "one", "kind": "Linear", "settings": {"in_features": 64, "out_features": 3}}
WEIGHTS = [
    {"name": "one.weight", "shape": [3, 64], "dtype": "float32", "kind": "parameter", "trains": True},
    {"name": "one.bias", "shape": [3], "dtype": "float32", "kind": "parameter", "trains": True},
]
WIDE = {"input_size": 1, "hidden_size": 10_000, "proj_size": 1}
WIDE_ARRAYS = [
    {"name": f"one.{name}_l0", "shape": shape, "dtype": "float32", "kind": "parameter", "trains": True}
    for name, shape in (
        ("weight_ih", [40_000, 1]),
        ("weight_hh", [40_000, 1]),
        ("bias_ih", [40_000]),
        ("bias_hh", [40_000]),
        ("weight_hr", [1, 10_000]),
    )
]
FINE = {"modules": [LINEAR], "arrays": WEIGHTS, "tied": {}}
NODE = {"node": 0}
SQUARE = [("zeros.default", [2000, 2000]), ("zeros.default", [2000]), ("flatten.using_ints", NODE)]
KERNEL = [SQUARE[0], ("reshape.default", NODE, [1, 1, 2000, 2000]), ("zeros.default", [1, 1, 1000, 1000])]
PAIRS = [
    SQUARE[0],
    ("reshape.default", NODE, [2000, 1, 1, 2000]),
    ("reshape.default", NODE, [1, 2000, 2000, 1]),
    ("reshape.default", NODE, [2000, 1, 2000]),
    ("reshape.default", NODE, [1, 2000, 2000]),
    ("reshape.default", NODE, [-1, 1]),
    ("reshape.default", NODE, [1, -1]),
]
DOUBLED = [("cat.default", [{"node": number}, {"node": number}]) for number in range(40)]


def test_a_layer_of_many_weights_is_taken():
    """They may be more than the numbers of an example: to multiply with them makes no further ones."""
    layer = LINEAR | {"settings": {"in_features": 64, "out_features": 2**18}}
    arrays = [WEIGHTS[0] | {"shape": [2**18, 64]}, WEIGHTS[1] | {"shape": [2**18]}]
    model = graph(("flatten.using_ints", X, 1), ("layer.one", {"node": 0}))
    check_program(changed(made("mlp")[1], **(FINE | model | {"modules": [layer], "arrays": arrays})))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (graph(("from_file.default", "/etc/passwd")), "no operator"),
        (graph(("__class__.default", X)), "no operator"),
        (graph(("layer.two", X)), "no layer"),
        (graph(("layer.forward", X)), "no layer"),
        (graph(("relu.default", {"node": 0})), "refers to nothing"),
        (graph(("relu.default", {"node": 1}), ("relu.default", {"node": 0})), "refers to nothing"),
        (graph(("relu.default", {"node": -1})), "refers to nothing"),
        (graph(("relu.default", {"array": "one.forward"})), "refers to nothing"),
        (graph(("relu.default", {"array": "one.__class__"})), "refers to nothing"),
        (graph(("relu.default", {"constant": "c0"})), "refers to nothing"),
        (graph(("relu.default", {"import": "os"})), "refers to nothing"),
        (graph(("relu.default", {"dtype": "object"}, X)), "no type of numbers"),
        (graph(("relu.default", X, X, X)), "cannot be computed"),
        (graph(("relu.default", X), returns={"0": {"node": 0}, "0/a": {"node": 0}}), "places"),
        (graph(("relu.default", X), returns={"9" * 1000: {"node": 0}}), "places"),
        (graph(("zeros.default", [2**40])), "numbers"),
        (graph(("zeros.default", [2**62, 2**62])), "cannot be computed"),
        (graph(("rand.default", [{"batch": [2**40, 0]}])), "numbers"),
        (graph(("alias.default", X), *DOUBLED), "numbers"),
        (graph(("expand.default", X, [2**20, 2, 1, 8, 8])), "cannot be computed"),
        (
            graph(("flatten.using_ints", X, 1), ("mT.default", {"node": 0}), ("mm.default", {"node": 0}, {"node": 1})),
            "grow faster",
        ),
        (graph(("new_full.default", X, [4], 1.0), kwargs={"device": "cpu"}), "where or how"),
        # Few numbers come of these, and many lie between.
        (graph(*SQUARE, ("einsum.default", "ij,ik,i->jk", [NODE, NODE, {"node": 1}])), "would take"),
        (graph(*PAIRS, ("matmul.default", {"node": 1}, {"node": 2})), "would take"),
        (graph(*PAIRS, ("cosine_similarity.default", {"node": 3}, {"node": 4}, 2)), "would take"),
        (graph(*PAIRS, ("mse_loss.default", {"node": 5}, {"node": 6})), "would take"),
        (graph(*PAIRS, ("l1_loss.default", {"node": 5}, {"node": 6})), "would take"),
        (graph(*KERNEL, ("conv2d.default", {"node": 1}, {"node": 2})), "would take"),
        (graph(*KERNEL, ("conv_transpose2d.input", {"node": 2}, {"node": 2})), "would take"),
        (graph(*SQUARE, ("unbind.int", {"node": 2}, 0)), "pieces"),
        (graph(*SQUARE, ("split.Tensor", {"node": 2}, 1)), "pieces"),
        (graph(*SQUARE, ("split_with_sizes.default", {"node": 2}, [0] * 20_001)), "pieces"),
        (graph(*SQUARE, ("chunk.default", {"node": 2}, 2**40)), "pieces"),
        (graph(("reshape.default", X, [1] * 9 + [[[[[[[[[[[[0]]]]]]]]]]]])), "nested"),
        (graph(("alias.default", X)) | {"inputs": [{"place": "a/b/", "shape": [64], "dtype": "float32"}]}, "places"),
        ({"modules": [LINEAR | {"kind": "Module"}]}, "not known"),
        ({"modules": [LINEAR | {"kind": "Transformer"}]}, "not known"),
        ({"modules": [LINEAR | {"settings": {"in_features": 64, "out_features": 2**31}}]}, "described as"),
        ({"modules": [LINEAR | {"settings": {"device": "cuda"}}]}, "cannot be made"),
        ({"modules": [LINEAR | {"settings": {"in_features": "a"}}]}, "cannot be made"),
        (
            {
                "modules": [
                    {
                        "name": "one",
                        "kind": "LSTM",
                        "settings": {"input_size": 1, "hidden_size": 1, "num_layers": 2**40},
                    }
                ]
            },
            "cannot be made",
        ),
        (
            {
                "inputs": [{"place": "0", "shape": [2000, 1], "dtype": "float32"}],
                "modules": [{"name": "one", "kind": "LSTM", "settings": WIDE}],
                "arrays": WIDE_ARRAYS,
            }
            | graph(("layer.one", X), ("item", {"node": 0}, 0)),
            "numbers",
        ),
        ({"modules": ["forward"]}, "no part"),
        ({"modules": ["one.__class__.two"]}, "no part"),
        ({"modules": ["one/two"]}, "no name"),
        ({"arrays": [WEIGHTS[0] | {"shape": [2**20, 2**20]}]}, "parameters"),
        ({"arrays": [*WEIGHTS, WEIGHTS[0] | {"name": "two", "shape": [0, *[2**31] * 6]}]}, "cannot be made"),
        ({"inputs": [{"place": "0", "shape": [2**31] * 6, "dtype": "float32"}]}, "cannot be computed"),
        ({"arrays": [*WEIGHTS, WEIGHTS[0] | {"name": "forward"}]}, "no part"),
        ({"tied": {"one.weight": "one.bias"}}, "one shape"),
        ({"tied": {"one.weight": "training"}}, "one shape"),
    ],
)
def test_a_hostile_program_ends_in_one_line(changes, says, tmp_path):
    program = changed(made("mlp")[1], **(FINE | graph(("flatten.using_ints", X, 1), ("layer.one", {"node": 0}))))
    check_program(program)
    program = changed(program, **changes)
    write_npz(tmp_path / "program.npz", program.arrays())
    with pytest.raises(ModelError, match=says) as caught:
        read_program(tmp_path / "program.npz")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({}, "no bytes"),
        ({"about": np.zeros(3, np.uint8)}, "no program"),
        ({"about": np.frombuffer(b"{}", np.uint8)}, "inputs is missing"),
        ({"about": np.frombuffer(b"[" * 10_000, np.uint8)}, "no program"),
        ({"about": np.zeros((2, 2), np.uint8)}, "no bytes"),
        ({"about": np.full(2**24 + 1, ord(" "), np.uint8)}, "at most"),
    ],
)
def test_a_file_that_is_no_program_ends_in_one_line(arrays, says, tmp_path):
    write_npz(tmp_path / "program.npz", arrays or {"other": np.zeros(1)})
    with pytest.raises(ModelError, match=says) as caught:
        read_program(tmp_path / "program.npz")
    assert "\n" not in str(caught.value)


def test_knowledge_holds_a_program_and_needs_no_trust(tmp_path):
    model, program, x = made("residual")
    known = ModelKnowledge("program", (1, 8, 8), 3, program=program)
    targets = Targets(x, np.arange(6) % 3)
    write_knowledge(tmp_path, Knowledge(model=known, targets=targets))
    read = read_knowledge(tmp_path)
    assert read.asks() == []
    built = read.model.build()
    built.load_state_dict(model.state_dict())
    wanted, _ = outputs(model, x, 6, training=False)
    torch.testing.assert_close(outputs(built, x, 6, training=False)[0], wanted)
    write_knowledge(tmp_path, Knowledge(model=replace(known, input_shape=(1, 8, 9))))
    with pytest.raises(DataError, match="takes examples of shape"):
        read_knowledge(tmp_path)
    write_knowledge(tmp_path / "other", Knowledge(model=replace(known, program=None)))
    with pytest.raises(DataError, match=r"program\.npz is not there"):
        read_knowledge(tmp_path / "other")
    with pytest.raises(ModelError, match=r"takes '0' of shape \[1, 8, 8\] an example; got \[1, 4, 4\]"):
        built(torch.zeros(2, 1, 4, 4))


def test_examples_are_evaluated_few_at_a_time_where_a_description_makes_much_of_each(monkeypatch):
    """It may hold all values until the end: of many examples together they would fill the memory."""
    _, program, x = made("mlp")
    model, seen = program.build(), []
    # As they are flattened, behind both layers, tanh and dropout.
    assert model.numbers == 64 + 9 + 9 + 9 + 3
    model.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    state, y = model.state_dict(), np.zeros(len(x), np.int64)
    wanted = losses_of_models(model, [state], x, y, per_record_loss("cross-entropy"))
    assert max(seen) == len(x)
    seen.clear()
    monkeypatch.setattr(batched, "_NUMBERS", 3 * model.numbers)
    got = losses_of_models(model, [state], x, y, per_record_loss("cross-entropy"))
    assert max(seen) == 3
    torch.testing.assert_close(got, wanted)
    monkeypatch.setattr(batched, "_NUMBERS", 1)
    seen.clear()
    assert len(outputs_of(model, x)) == len(x)
    assert {*seen} == {1}
