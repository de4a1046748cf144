import sys

import pytest
import torch
from torch import nn

from fedattack.base.errors import ModelError
from fedattack.learning import MODELS, build_model, check_parameters


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """A module of the user's own on the import path."""
    (tmp_path / "their_models.py").write_text(
        "from torch import nn\n"
        "def plain():\n    return nn.Linear(3, 2)\n"
        "def sized(classes, bias=False):\n    return nn.Linear(3, classes, bias=bias)\n"
        "def anything(**options):\n    return nn.Linear(options['input_shape'][0], options['classes'])\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, *, input_shape, classes):\n"
        "        super().__init__()\n        self.fc = nn.Linear(input_shape[0], classes)\n"
        "def needy(width):\n    return nn.Linear(width, 2)\n"
        "def dropping(classes, dropout=0.0):\n"
        "    return nn.Sequential(nn.Linear(4, classes), nn.Dropout(dropout))\n"
        "class Wide(Net):\n    def __init__(self, **rest):\n        super().__init__(**rest)\n"
        "class Deep(nn.Linear):\n"
        "    def __init__(self, classes=2, **rest):\n        super().__init__(3, classes, **rest)\n"
        "def wrong():\n    return 3\n"
        "number = 3\n"
    )
    (tmp_path / "their_broken.py").write_text("raise KeyError('two\\nlines')\n")
    monkeypatch.syspath_prepend(tmp_path)


def shapes(model: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(parameter.shape) for parameter in model.parameters()]


@pytest.mark.parametrize(
    ("name", "input_shape", "classes", "parameters"),
    [
        ("lenet-mnist", (1, 28, 28), 10, 21_840),
        ("lenet-cifar", (3, 32, 32), 10, 62_006),
        ("sia-cnn", (1, 28, 28), 10, 832 + 51_264 + 524_800 + 65_664 + 1_290),
        ("sia-cnn", (3, 32, 32), 100, 2_432 + 51_264 + 819_712 + 65_664 + 12_900),
        ("sia-mlp", (60,), 10, 60 * 200 + 200 + 200 * 10 + 10),
        ("student-mlp", (60,), 10, 60 * 200 + 200 + 200 * 10 + 10),
        ("student-mlp", (1, 8, 8), 10, 64 * 200 + 200 + 200 * 10 + 10),
        ("student-mlp", (3, 32, 32), 10, 768 * 200 + 200 + 200 * 10 + 10),
        ("fedmd-cnn-1", (1, 4, 4), 10, 320 + 18_496 + 64 * 10 + 10),
        ("fedmd-cnn-1", (1, 8, 8), 10, 320 + 18_496 + 256 * 10 + 10),
        ("fedmd-cnn-2", (1, 28, 28), 10, 160 + 9_280 + 64 * 49 * 10 + 10),
        ("fedmd-cnn-3", (3, 32, 32), 100, 448 + 4_640 + 13_872 + 48 * 64 * 100 + 100),
        ("fedmd-mlp-3", (60,), 10, 61 * 128 + 129 * 64 + 65 * 10),
        ("mlp", (1, 8, 8), 10, 64 * 128 + 128 + 128 * 10 + 10),
        ("linear", (1, 8, 8), 10, 64 * 10 + 10),
        ("linear", (10,), 1, 11),
    ],
)
def test_models_have_the_papers_sizes(name, input_shape, classes, parameters):
    model = build_model(name, input_shape=input_shape, classes=classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert model(torch.zeros(3, *input_shape)).shape == (3, classes)


def test_hidden_sets_the_width_of_the_mlp():
    assert shapes(build_model("mlp", input_shape=(446,), classes=30, hidden=7)) == [(7, 446), (7,), (30, 7), (30,)]


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("lenet-cifar", ["relu3_dropout", "relu4_dropout"]),
        ("sia-cnn", ["relu3_dropout", "relu4_dropout"]),
        ("sia-mlp", ["relu1_dropout"]),
        ("mlp", ["relu1_dropout"]),
        ("fedmd-mlp-3", ["relu1_dropout", "relu2_dropout"]),
        ("fedmd-cnn-1", ["relu1_dropout", "relu2_dropout"]),  # no hidden layer is fully connected
    ],
)
def test_dropout_follows_the_hidden_fully_connected_layers_and_changes_no_parameter(name, places):
    plain = build_model(name, input_shape=(1, 16, 16), classes=4, seed=3)
    model = build_model(name, input_shape=(1, 16, 16), classes=4, seed=3, dropout=0.3)
    layers = dict(model.named_children())
    assert [key for key, layer in layers.items() if isinstance(layer, nn.Dropout)] == places
    assert {layers[place].p for place in places} == {0.3}
    for (left, value), (right, other) in zip(model.state_dict().items(), plain.state_dict().items(), strict=True):
        assert left == right
        assert torch.equal(value, other)
    x = torch.ones(2, 1, 16, 16)
    assert not torch.equal(model(x), model(x))
    assert torch.equal(model.eval()(x), plain.eval()(x))


def test_dropout_is_passed_to_a_model_of_the_users_own(user_module):
    model = build_model("their_models:dropping", input_shape=(4,), classes=5, dropout=0.25)
    assert model[1].p == 0.25
    assert build_model("their_models:dropping", input_shape=(4,), classes=5)[1].p == 0.0


@pytest.mark.parametrize(
    ("spec", "dropout", "message"),
    [
        ("lenet-mnist", 0.2, "has dropout of its own .0.5.; set dropout to 0"),
        ("their_models:sized", 0.2, "accepts no dropout, and 0.2 is asked for"),
        ("mlp", 1.0, "dropout of at least 0 and less than 1; got 1.0"),
        ("mlp", -0.1, "got -0.1"),
        ("mlp", float("nan"), "got nan"),
    ],
)
def test_dropout_that_cannot_be_had_is_refused(user_module, spec, dropout, message):
    with pytest.raises(ModelError, match=message) as caught:
        build_model(spec, input_shape=(1, 16, 16), classes=5, dropout=dropout)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", MODELS)
def test_the_seed_alone_decides_the_initial_parameters(name):
    def build(seed: int) -> dict[str, torch.Tensor]:
        return build_model(name, input_shape=(1, 16, 20), classes=4, seed=seed).state_dict()

    before = torch.get_rng_state()
    first, again, other = build(1), build(1), build(2)
    build_model(name, input_shape=(1, 16, 20), classes=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[key], again[key]) for key in first)
    drawn = [key for key, value in first.items() if len(value.unique()) > 1]
    assert drawn
    assert not any(torch.equal(first[key], other[key]) for key in drawn)


@pytest.mark.parametrize(
    ("name", "least"), [("lenet-mnist", 16), ("lenet-cifar", 16), ("sia-cnn", 16), ("fedmd-cnn-1", 4)]
)
@pytest.mark.parametrize("input_shape", [(1, 3, 8), (1, 28, 3), (60,), (28, 28)])
def test_records_that_a_cnn_cannot_take_are_refused(name, least, input_shape):
    with pytest.raises(ModelError, match=f"at least {least} x {least}; got examples of shape") as caught:
        build_model(name, input_shape=input_shape, classes=10)
    assert str(input_shape) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{"classes": 0}, {"hidden": 0}, {"input_shape": ()}, {"input_shape": (3, 0)}])
def test_sizes_below_one_are_refused(options):
    with pytest.raises(ModelError, match="model 'mlp': expected at least 1"):
        build_model("mlp", **{"input_shape": (3,), "classes": 2, **options})


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("plain", [(2, 3), (2,)]),
        ("sized", [(5, 3)]),
        ("anything", [(5, 4), (5,)]),
        ("Net", [(5, 4), (5,)]),
    ],
)
def test_a_model_by_import_path_gets_what_it_accepts(user_module, function, expected):
    model = build_model(f"their_models:{function}", input_shape=(4,), classes=5, seed=0)
    assert shapes(model) == expected


@pytest.mark.parametrize(
    ("function", "arguments", "expected"),
    [
        ("plain", {}, [(2, 3), (2,)]),
        # Neither an argument that the rest would pass on, nor one that is left at its default.
        ("Deep", {}, [(2, 3), (2,)]),
        ("Deep", {"bias": False}, [(2, 3)]),
        ("Wide", {"input_shape": (3,), "classes": 2}, [(2, 3), (2,)]),
    ],
)
def test_to_arguments_that_are_known_nothing_is_added(user_module, function, arguments, expected):
    model = build_model(f"their_models:{function}", input_shape=(4,), classes=5, arguments=arguments)
    assert shapes(model) == expected


def test_a_call_without_arguments_that_fails_says_so(user_module):
    with pytest.raises(ModelError, match="it must work with no arguments"):
        build_model("their_models:needy", input_shape=(4,), classes=5, arguments={})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("lenet", "unknown model 'lenet'; expected one of lenet-mnist, .*, or package.module:function"),
        ("their_models:", "unknown model 'their_models:'"),
        ("their_absent:plain", "cannot import 'their_absent' .ModuleNotFoundError: .*project's folder"),
        ("their_broken:plain", "cannot import 'their_broken' .KeyError: "),
        ("their_models:absent", "module 'their_models' has no function 'absent'"),
        ("their_models:number", "module 'their_models' has no function 'number'"),
        ("their_models:needy", "calling it failed .TypeError: .*'width'.*than input_shape and classes"),
        ("their_models:wrong", "expected it to return a torch.nn.Module; got int"),
    ],
)
def test_a_model_that_cannot_be_had_is_refused_in_one_line(user_module, spec, message):
    with pytest.raises(ModelError, match=message) as caught:
        build_model(spec, input_shape=(4,), classes=5)
    assert "\n" not in str(caught.value)


def test_check_parameters_passes_a_models_own_table():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    check_parameters(model, {name: tuple(value.shape) for name, value in model.state_dict().items()})


def test_check_parameters_shows_every_fault():
    with pytest.raises(ModelError) as caught:
        check_parameters(nn.Linear(3, 2), {"weight": (2, 4), "scale": ()})
    message = str(caught.value)
    assert "missing: bias (2,)" in message
    assert "unexpected: scale ()" in message
    assert "of another shape: weight (model (2, 3), parameters (2, 4))" in message


def test_a_model_in_the_working_directory_is_found_and_overrides_nothing_that_is_installed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "model_in_this_folder.py").write_text("from torch import nn\ndef net(): return nn.Linear(4, 5)\n")
    (tmp_path / "xxhash.py").write_text("raise RuntimeError('not the installed one')\n")
    assert shapes(build_model("model_in_this_folder:net", input_shape=(4,), classes=5)) == [(5, 4), (5,)]
    assert sys.path[-1] == str(tmp_path)
