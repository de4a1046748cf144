"""The models of the papers, and models of the user's own."""

from __future__ import annotations

import inspect
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from fedattack.base.errors import ModelError, short
from fedattack.learning.importing import import_callable, one_line
from fedattack.learning.torch_utils import shapes_of

Builder = Callable[[tuple[int, ...], int, int], nn.Module]
"""Takes the shape of one example, the number of classes, and the hidden width."""

SMALLEST_IMAGE = 16
"""Fewest rows and columns that two unpadded 5x5 convolutions with 2x2 poolings leave something of."""


def _lenet_mnist(input_shape: tuple[int, ...], classes: int, hidden: int) -> nn.Module:
    """Build PROLIN's LeNet for MNIST and Fashion-MNIST (section 6.2): 21,840 parameters on 1 x 28 x 28."""
    return _sequential(
        conv1=nn.Conv2d(input_shape[0], 10, 5),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(10, 20, 5),
        dropout1=nn.Dropout(0.5),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(_flat_size(20, input_shape), 50),
        relu3=nn.ReLU(),
        dropout2=nn.Dropout(0.5),
        fc2=nn.Linear(50, classes),
    )


def _lenet_cifar(input_shape: tuple[int, ...], classes: int, hidden: int) -> nn.Module:
    """Build PROLIN's LeNet for CIFAR-10 (section 6.2): 62,006 parameters on 3 x 32 x 32."""
    return _sequential(
        conv1=nn.Conv2d(input_shape[0], 6, 5),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(6, 16, 5),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(_flat_size(16, input_shape), 120),
        relu3=nn.ReLU(),
        fc2=nn.Linear(120, 84),
        relu4=nn.ReLU(),
        fc3=nn.Linear(84, classes),
    )


def _sia_cnn(input_shape: tuple[int, ...], classes: int, hidden: int) -> nn.Module:
    """Build the CNN of the SIA paper (Table II a) without its softmax, which the loss contains."""
    return _sequential(
        conv1=nn.Conv2d(input_shape[0], 32, 5),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(32, 64, 5),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(_flat_size(64, input_shape), 512),
        relu3=nn.ReLU(),
        fc2=nn.Linear(512, 128),
        relu4=nn.ReLU(),
        fc3=nn.Linear(128, classes),
    )


def _sia_mlp(input_shape: tuple[int, ...], classes: int, hidden: int) -> nn.Module:
    """Build the MLP of the SIA paper (Table II b), one hidden layer of 200, without its softmax."""
    return _mlp(input_shape, classes, hidden=200)


def _mlp(input_shape: tuple[int, ...], classes: int, hidden: int) -> nn.Module:
    """Build a network of one hidden layer; its input is flattened."""
    return _sequential(
        flatten=nn.Flatten(),
        fc1=nn.Linear(math.prod(input_shape), hidden),
        relu1=nn.ReLU(),
        fc2=nn.Linear(hidden, classes),
    )


def _student_mlp(input_shape: tuple[int, ...], classes: int, hidden: int) -> nn.Module:
    """Build a small network, of which many students of FedMD's clients are trained at once.

    It is ``sia-mlp``, on images of 16 x 16 and more after a 2 x 2 pooling.
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < SMALLEST_IMAGE:
        return _sia_mlp(input_shape, classes, hidden)
    halved = (input_shape[0], *(side // 2 for side in input_shape[1:]))
    return _sequential(pool=nn.AvgPool2d(2), **dict(_sia_mlp(halved, classes, hidden).named_children()))


def _fedmd_cnn(*channels: int) -> Builder:
    """Return a builder of a CNN after Li & Wang 2019 (FedMD, Section 4), who give each client two or three layers.

    The widths are about a quarter of theirs, for CPUs. Padding keeps images of 4 x 4 and more. There is no batch
    normalisation, which DP-SGD does not allow, and dropout is left to the run.
    """

    def build(input_shape: tuple[int, ...], classes: int, hidden: int) -> nn.Module:
        if len(input_shape) != 3 or min(input_shape[1:]) < 4:
            raise ModelError(
                "this convolutional model needs images (channels, height, width) of at least 4 x 4; got examples of "
                f"shape {input_shape}; take one of the fedmd-mlp models"
            )
        layers: dict[str, nn.Module] = {}
        before, sides = input_shape[0], list(input_shape[1:])
        for number, width in enumerate(channels, start=1):
            layers[f"conv{number}"] = nn.Conv2d(before, width, 3, padding=1)
            layers[f"relu{number}"] = nn.ReLU()
            if number < 3:
                layers[f"pool{number}"] = nn.MaxPool2d(2)
                sides = [side // 2 for side in sides]
            before = width
        features = before * math.prod(sides)
        return _sequential(**layers, flatten=nn.Flatten(), fc=nn.Linear(features, classes))

    return build


def _fedmd_mlp(*widths: int) -> Builder:
    """Return a builder of a fully connected network with hidden layers of these widths."""

    def build(input_shape: tuple[int, ...], classes: int, hidden: int) -> nn.Module:
        layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
        before = math.prod(input_shape)
        for number, width in enumerate(widths, start=1):
            layers[f"fc{number}"] = nn.Linear(before, width)
            layers[f"relu{number}"] = nn.ReLU()
            before = width
        layers[f"fc{len(widths) + 1}"] = nn.Linear(before, classes)
        return _sequential(**layers)

    return build


def _linear(input_shape: tuple[int, ...], classes: int, hidden: int) -> nn.Module:
    """Build a linear model: a least-squares regression for one output, a multinomial logistic one for classes."""
    return _sequential(flatten=nn.Flatten(), fc1=nn.Linear(math.prod(input_shape), classes))


DECODER_WORDS = 256
"""Words that the built-in decoder knows, by their numbers from 0."""


class _TransformerBlock(nn.Module):
    """Self-attention that looks back only, and a network of one hidden layer; each adds to what it is given."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = math.gcd(width, 4)
        self.norm1 = nn.LayerNorm(width)
        self.attend = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        count, tokens, width = x.shape
        parts = self.attend(self.norm1(x)).reshape(count, tokens, 3 * self.heads, -1).transpose(1, 2)
        queries, keys, values = parts.chunk(3, dim=1)
        # softmax(QKᵀ/√d)V for each head, where a word sees those before it alone.
        scores = queries @ keys.transpose(2, 3) / math.sqrt(queries.shape[-1])
        later = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(later, -torch.inf).softmax(dim=-1) @ values
        x = x + self.project(mixed.transpose(1, 2).reshape(count, tokens, width))
        added: Tensor = self.fc2(nn.functional.gelu(self.fc1(self.norm2(x))))
        return x + added


class _Decoder(nn.Module):
    """Two blocks of self-attention on words, whose mean tells the class."""

    def __init__(self, places: int, classes: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(DECODER_WORDS, width)
        self.places = nn.Embedding(places, width)
        self.blocks = nn.ModuleList([_TransformerBlock(width), _TransformerBlock(width)])
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        # Examples come as floats, like those of all built-in models. What is no word of its list is the nearest one.
        ids = x.flatten(1).long().clamp(0, DECODER_WORDS - 1)
        hidden = self.words(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.out(self.norm(hidden).mean(dim=1))
        return logits


def _decoder(input_shape: tuple[int, ...], classes: int, hidden: int) -> nn.Module:
    """Build a small decoder of texts, whose examples are numbers of words."""
    return _Decoder(math.prod(input_shape), classes, hidden)


MAX_ENTRIES = 2**25
"""Parameters of the largest built-in model, which take 134 MB; attacks hold several copies, some in float64."""

MODELS: Mapping[str, Builder] = {
    "lenet-mnist": _lenet_mnist,
    "lenet-cifar": _lenet_cifar,
    "sia-cnn": _sia_cnn,
    "sia-mlp": _sia_mlp,
    "mlp": _mlp,
    "student-mlp": _student_mlp,
    "fedmd-cnn-1": _fedmd_cnn(32, 64),
    "fedmd-cnn-2": _fedmd_cnn(16, 64),
    "fedmd-cnn-3": _fedmd_cnn(16, 32, 48),
    "fedmd-mlp-1": _fedmd_mlp(100),
    "fedmd-mlp-2": _fedmd_mlp(300),
    "fedmd-mlp-3": _fedmd_mlp(128, 64),
    "linear": _linear,
    "decoder": _decoder,
}
"""Builders of the built-in models by name."""


def build_model(
    spec: str,
    *,
    input_shape: tuple[int, ...],
    classes: int,
    seed: int | None = None,
    hidden: int = 128,
    dropout: float = 0.0,
    arguments: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Build a model; the global random state is left as it was.

    Parameters
    ----------
    spec : str
        A name in :data:`MODELS`, or the import path ``package.module:function`` of a function (or class) that returns
        an :class:`torch.nn.Module`. It is called with ``arguments``; without these, with those of the keyword arguments
        ``input_shape`` and ``classes`` that it accepts, and with ``dropout`` if that is not 0, which it must then
        accept.
    input_shape : tuple of int
        Shape of one example, (channels, height, width) for images.
    classes : int
        Number of outputs.
    seed : int, optional
        Seed of the initial parameters. Without one they are arbitrary, for when others will be loaded.
    hidden : int
        Width of the hidden layer of ``mlp``, and of ``decoder``. Other models do not use it.
    dropout : float
        Probability, in [0, 1), with which each activation of the built-in models' hidden fully connected layers (of all
        layers where there are none, as in FedMD's) is dropped in training. Names and initial values of the parameters
        stay as they are without.
    arguments : mapping, optional
        All keyword arguments of a function that an import path names, where they are known: nothing is added.

    Returns
    -------
    nn.Module
        On the CPU, in training mode.

    Raises
    ------
    ModelError
        If the model is unknown, cannot be imported or called, does not fit the shape, or is asked for dropout and has
        its own (``lenet-mnist``) or accepts none.
    """
    if not 0 <= dropout < 1:
        raise ModelError(f"model {spec!r}: expected dropout of at least 0 and less than 1; got {dropout}")
    # An example of several tensors has no one shape; only a user's own model takes such.
    shaped = bool(input_shape) or spec not in MODELS
    if classes < 1 or hidden < 1 or not shaped or min(input_shape, default=1) < 1:
        raise ModelError(
            f"model {spec!r}: expected at least 1 class, 1 hidden unit and an example that is not empty; got {classes} "
            f"classes, {hidden} hidden units, examples of shape {tuple(input_shape)}"
        )
    if spec in MODELS:
        _check_size(spec, tuple(input_shape), classes, hidden)
    with torch.random.fork_rng(devices=[]):
        if seed is not None:
            # torch.manual_seed would seed the GPUs as well, whose states are not put back
            torch.default_generator.manual_seed(seed)
        if spec not in MODELS:
            offered: dict[str, Any] = {}
            if arguments is None:
                offered |= {"input_shape": tuple(input_shape), "classes": classes}
            if dropout:
                offered["dropout"] = dropout
            return _build_imported(spec, offered, arguments or {})
        model = MODELS[spec](tuple(input_shape), classes, hidden)
        if dropout:
            model = _with_dropout(spec, model, dropout)
        return model


def _check_size(spec: str, input_shape: tuple[int, ...], classes: int, hidden: int) -> None:
    """Refuse a built-in model that is too large, before memory is taken. Its size may come from a stranger's file."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        # On the meta device tensors have shapes and no memory.
        state = MODELS[spec](input_shape, classes, hidden).state_dict()
    size = sum(value.numel() for value in state.values())
    if size > MAX_ENTRIES:
        raise ModelError(
            f"model {spec!r} with examples of shape {short(str(input_shape), 60)}, {classes} classes and "
            f"{hidden} hidden units has {size:,} parameters; expected at most {MAX_ENTRIES:,}: "
            "name a function of your own that makes a larger one"
        )


def check_parameters(model: nn.Module, names_shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that names and shapes of parameters and buffers, such as a record's, are those of a model.

    Raises
    ------
    ModelError
        If names are missing or unexpected, or shapes differ.
    """
    expected = shapes_of(model.state_dict())
    got = {name: tuple(shape) for name, shape in names_shapes.items()}
    missing = [f"{name} {shape}" for name, shape in expected.items() if name not in got]
    unexpected = [f"{name} {shape}" for name, shape in got.items() if name not in expected]
    reshaped = []
    for name, shape in expected.items():
        if got.get(name, shape) != shape:
            reshaped.append(f"{name} (model {shape}, parameters {got[name]})")
    faults = []
    for fault, names in (("missing", missing), ("unexpected", unexpected), ("of another shape", reshaped)):
        if names:
            faults.append(f"{fault}: {_first(names)}")
    if faults:
        raise ModelError(
            f"the parameters are not those of this model ({'; '.join(faults)}); give the model that was trained"
        )


def _first(names: Sequence[str], most: int = 2) -> str:
    """List the first names, and how many more there are."""
    listed = ", ".join(names[:most])
    if len(names) > most:
        listed += f" and {len(names) - most} more"
    return listed


def _sequential(**layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


def _with_dropout(spec: str, model: nn.Module, dropout: float) -> nn.Module:
    """Put dropout after each activation that follows a fully connected layer; without such, after all activations."""
    # FedMD's convolutions end in one linear layer without an activation behind it.
    kinds = map(type, model.children())
    hidden = (nn.Linear, nn.ReLU) in pairwise(kinds)
    layers: dict[str, nn.Module] = {}
    last: nn.Module | None = None
    for name, layer in model.named_children():
        if isinstance(layer, nn.Dropout):
            raise ModelError(
                f"model {spec!r} has dropout of its own ({layer.p}); set dropout to 0, or take another model"
            )
        layers[name] = layer
        if isinstance(layer, nn.ReLU) and (isinstance(last, nn.Linear) or not hidden):
            layers[f"{name}_dropout"] = nn.Dropout(dropout)
        last = layer
    return _sequential(**layers)


def _flat_size(channels: int, input_shape: tuple[int, ...]) -> int:
    """Return the number of features that two unpadded 5x5 convolutions, each with a 2x2 pooling, leave."""
    if len(input_shape) != 3 or min(input_shape[1:]) < SMALLEST_IMAGE:
        raise ModelError(
            f"this convolutional model needs images (channels, height, width) of at least {SMALLEST_IMAGE} x "
            f"{SMALLEST_IMAGE}; got examples of shape {input_shape}; take the model mlp, or one of your own"
        )
    height, width = [((side - 4) // 2 - 4) // 2 for side in input_shape[1:]]
    return channels * height * width


def _build_imported(spec: str, offered: Mapping[str, Any], demanded: Mapping[str, Any]) -> nn.Module:
    """Call a user's function with those of the offered arguments that it accepts, and with all that are demanded."""
    function = import_callable(spec, what="model", known=MODELS)
    try:
        # What a user's function does not name it is not given: one without arguments makes its own sizes.
        arguments = _choose_accepted(function, offered) | dict(demanded)
        model = function(**arguments)
    except Exception as error:  # the user's code may raise anything
        given = " and ".join([*offered, *demanded])
        only = f"no other arguments than {given}" if given else "no arguments"
        raise ModelError(f"model {spec!r}: calling it failed ({one_line(error)}); it must work with {only}") from error
    if "dropout" in offered and "dropout" not in arguments:
        raise ModelError(
            f"model {spec!r} accepts no dropout, and {offered['dropout']} is asked for; give the function an argument "
            "of that name, or set dropout to 0"
        )
    if not isinstance(model, nn.Module):
        raise ModelError(f"model {spec!r}: expected it to return a torch.nn.Module; got {type(model).__name__}")
    return model


def _choose_accepted(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the offered arguments that a function takes by keyword."""
    accepted: set[str] = set()
    for parameter in inspect.signature(function).parameters.values():
        # ``**kwargs`` takes all.
        if parameter.kind is parameter.VAR_KEYWORD:
            return dict(offered)
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            accepted.add(parameter.name)
    return {name: value for name, value in offered.items() if name in accepted}
