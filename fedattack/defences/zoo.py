"""The defender's model zoo of RecUP-FL: networks that mimic an adversary, for one private attribute each.

Cui et al. 2023, Sections 4.2 and 5.3. A zoo is a folder: ``zoo.json`` says what it was made for, ``zoo.safetensors``
holds the networks. Nothing is unpickled, and only what ``zoo.json`` announces is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import nn

from fedattack.base.errors import ConfigError, DataError
from fedattack.base.files import write_atomically, write_json
from fedattack.base.machine import MEMORY
from fedattack.base.untrusted import read_bytes, read_json
from fedattack.defences.base import Update
from fedattack.learning import LocalSGD
from fedattack.learning.attribute_updates import AttributeUpdates, attribute_updates
from fedattack.learning.pooled_updates import FEATURES, Fit, Network, Pooling, check_labels, train_network
from fedattack.learning.torch_utils import different, shapes_of

FORMAT = 1
LAYERS = 3
WIDTHS = (128, 256, 512, 1024, 2048)
"""Widths of a defender's hidden layers (Section 5.3: 128 to 2,048 neurons)."""
MODELS = 20
"""Networks in a zoo; the paper studies 5 to 20."""

SHADOWS = 300
"""Clients made up at each stage of the training that a zoo is prepared for."""

# As many take part in each round of it; its course matters little, and each costs a local training.
_FEDERATION = 10

_HINT = "train the zoo again with fedattack.defences.zoo.train_zoo, or ask whom you have it from"


@dataclass(frozen=True, eq=False)
class Zoo:
    """Defender models that predict one attribute from max-pooled updates of one model.

    Attributes
    ----------
    attribute : str
        Name of the attribute that is predicted.
    values : tuple of str
        Its values, in the order of the networks' outputs.
    pooling : Pooling
        Which updates it is for, and how they are pooled.
    networks : tuple of Network
        Three layers each.
    """

    attribute: str
    values: tuple[str, ...]
    pooling: Pooling
    networks: tuple[Network, ...]


def train_zoo(
    updates: Iterable[Update],
    labels: NDArray[np.int64],
    *,
    attribute: str,
    values: Sequence[str],
    seed: int,
    models: int = MODELS,
    widths: Sequence[int] = WIDTHS,
    features: int = FEATURES,
    fit: Fit | None = None,
) -> Zoo:
    """Train a zoo from updates whose clients' attribute is known.

    Parameters
    ----------
    updates : iterable of mapping
        n updates of one model, from data that the defender may use; at least one.
    labels : ndarray of int, shape (n,)
        Each client's value of the attribute, an index into ``values``.
    attribute, values
        As for :class:`Zoo`.
    seed : int
        Draws each network's two widths, its start and the order of its training.
    models : int
        Number of networks.
    widths : sequence of int
        Widths to draw from.
    features : int
        Largest number of features to which an update is pooled.
    fit : Fit, optional
        How networks are trained.

    Raises
    ------
    ConfigError
        If ``models`` or a width is below 1, or there are no widths.
    DataError
        If updates and labels do not fit each other.
    """
    _check_sizes(models, widths)
    return _train(*_pool(updates, features), labels, attribute, values, seed, models, widths, fit)


def _check_sizes(models: int, widths: Sequence[int]) -> None:
    if models < 1 or not widths or min(widths) < 1:
        raise ConfigError(f"model zoo: expected at least one model and widths of 1 or more; got {models}, {[*widths]}")


def _pool(updates: Iterable[Update], features: int) -> tuple[Pooling, NDArray[np.float32]]:
    """Pool updates one after another; of each its features (n, features) alone are kept."""
    rest = iter(updates)
    first = next(rest, None)
    if first is None:
        raise DataError("model zoo: expected at least one update; got none; make some with clients of known values")
    pooling = Pooling.of(first, features=features)
    return pooling, pooling.pool(chain([first], rest))


def _train(
    pooling: Pooling,
    pooled: NDArray[np.float32],
    labels: NDArray[np.int64],
    attribute: str,
    values: Sequence[str],
    seed: int,
    models: int,
    widths: Sequence[int],
    fit: Fit | None,
) -> Zoo:
    check_labels(pooled, labels, len(values))
    rng = np.random.default_rng(seed)
    networks = []
    for _ in range(models):
        # Widths are drawn for each network, so that the zoo's models differ (Section 5.3).
        hidden = rng.choice(widths, size=LAYERS - 1).tolist()
        network_seed = int(rng.integers(2**31))
        network = train_network(pooled, labels, values=len(values), hidden=hidden, seed=network_seed, fit=fit)
        networks.append(network)
    return Zoo(attribute, tuple(values), pooling, tuple(networks))


def train_zoo_on_records(
    model: nn.Module,
    start: Mapping[str, NDArray[np.float32]],
    x: NDArray[np.float32],
    y: NDArray[Any],
    codes: NDArray[np.int64],
    training: LocalSGD,
    *,
    attribute: str,
    values: Sequence[str],
    records: int,
    rounds: int,
    seed: int,
    loss: str = "cross-entropy",
    gradients: bool = False,
    clients: int = SHADOWS,
    models: int = MODELS,
    widths: Sequence[int] = WIDTHS,
    fit: Fit | None = None,
    memory: float = MEMORY,
) -> Zoo:
    """Train a zoo from examples only, before a run, by training a small shadow federation on them.

    The updates come from its first, middle and last round, because a model that has learnt has other updates than a
    new one.

    Parameters
    ----------
    model : nn.Module
        The clients' architecture.
    start : mapping
        The parameters from which the run will start.
    x, y, codes : ndarray, shape (n, …), (n,), (n,)
        Examples that the defender may use, their labels, and their value of the attribute, an index into ``values``.
        Values with fewer examples than half of the other values have are left out.
    training : LocalSGD
        How clients train.
    attribute, values
        As for :class:`Zoo`.
    records : int
        Largest number of examples of a client.
    rounds : int
        Number of rounds of the run.
    seed : int
        Seed of all draws.
    loss : str
        The loss that clients minimise.
    gradients : bool
        Whether clients send −Δ/η, a gradient, instead of Δ.
    clients : int
        Number of shadow clients at each stage.
    models, widths, fit
        As for :func:`train_zoo`.
    memory : float
        Bytes that clients which are trained together may take. Their updates are pooled one by one, and freed.

    Raises
    ------
    ConfigError, DataError
        As :func:`train_zoo`.
    """
    _check_sizes(models, widths)
    _, counts = np.unique(codes, return_counts=True)
    records_each = 1
    # The median group can fill a client; values with fewer examples make none.
    if len(counts):
        records_each = max(min(records, int(np.median(counts))), 1)
    rows = np.flatnonzero(np.bincount(codes, minlength=len(values))[codes] >= records_each)
    rng = np.random.default_rng(seed)
    labels: list[NDArray[np.int64]] = []

    def shadow_updates(state: Update, count: int) -> AttributeUpdates:
        return attribute_updates(
            model,
            state,
            x[rows],
            y[rows],
            codes[rows],
            training,
            clients=count,
            records=records_each,
            seed=int(rng.integers(2**31)),
            loss=loss,
            memory=memory,
        )

    def updates() -> Iterator[Update]:
        state = {name: np.asarray(start[name], dtype=np.float32) for name, _ in model.named_parameters()}
        for round_ in range(1, rounds + 1):
            # At the first, the middle and the last round: updates differ along the training.
            if round_ in (1, (rounds + 1) // 2, rounds):
                shadows = shadow_updates(state, clients)
                labels.append(shadows.values)
                for update in shadows:
                    yield _as_gradient(update, training.lr) if gradients else update
            # The federation goes on by shadow clients of its own.
            state = _average(state, shadow_updates(state, _FEDERATION))

    pooling, pooled = _pool(updates(), FEATURES)
    # Labels are complete only after `updates` was used up.
    of_all = np.concatenate(labels)
    return _train(pooling, pooled, of_all, attribute, values, int(rng.integers(2**31)), models, widths, fit)


def _average(state: Update, updates: AttributeUpdates) -> dict[str, NDArray[np.float32]]:
    """Return the model of the next round: the state plus the mean of the updates."""
    total = {name: np.zeros_like(values) for name, values in state.items()}
    for update in updates:
        for name, values in update.items():
            total[name] += values
    return {name: values + total[name] / np.float32(len(updates.values)) for name, values in state.items()}


def _as_gradient(update: Update, lr: float) -> dict[str, NDArray[np.float32]]:
    return {name: -move / np.float32(lr) for name, move in update.items()}


def save_zoo(zoo: Zoo, folder: Path) -> None:
    """Write a zoo into a folder, which is created; each file is whole or absent.

    Raises
    ------
    OSError
        If the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for model, network in enumerate(zoo.networks):
        for layer, (weight, bias) in enumerate(network.layers):
            tensors[f"{model}.{layer}.weight"] = weight
            tensors[f"{model}.{layer}.bias"] = bias
    data = save(tensors)
    write_atomically(folder / "zoo.safetensors", data)
    write_json(
        folder / "zoo.json",
        {
            "format": FORMAT,
            "attribute": zoo.attribute,
            "values": list(zoo.values),
            "parameters": [{"name": name, "shape": list(shape)} for name, shape in zoo.pooling.shapes],
            "window": zoo.pooling.width,
            "hidden": [list(network.hidden) for network in zoo.networks],
            "xxh3": xxhash.xxh3_128(data).hexdigest(),
        },
    )


def load_zoo(folder: Path) -> Zoo:
    """Read a zoo, without pickle.

    Raises
    ------
    DataError
        If a file is missing, damaged, of another format, or is not what ``zoo.json`` announces.
    """
    path = folder / "zoo.json"
    described = read_json(path, DataError, _HINT)
    try:
        zoo, wanted = _read_description(described)
        digest = described["xxh3"]
    except (KeyError, TypeError, ValueError, AttributeError) as cause:
        raise DataError(f"{path} describes no model zoo ({type(cause).__name__}: {cause}); {_HINT}") from None
    tensors = _tensors(folder / "zoo.safetensors", digest)
    # Names and shapes before any network is made: the file is anybody's.
    _check_tensors(folder / "zoo.safetensors", tensors, wanted)
    networks = []
    for model in range(len(wanted) // (2 * LAYERS)):
        layers = []
        for layer in range(LAYERS):
            layers.append((tensors[f"{model}.{layer}.weight"], tensors[f"{model}.{layer}.bias"]))
        networks.append(Network(tuple(layers)))
    return Zoo(zoo.attribute, zoo.values, zoo.pooling, tuple(networks))


def _check_tensors(path: Path, tensors: Mapping[str, NDArray[Any]], wanted: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse tensors of other names, shapes or types than ``zoo.json`` announces, and those that are not finite."""
    got = shapes_of(tensors)
    wrong = different(wanted, got)
    wrong += [name for name, array in tensors.items() if array.dtype != np.float32 or not np.isfinite(array).all()]
    if wrong:
        name = wrong[0]
        kind = tensors[name].dtype if name in tensors else "nothing"
        raise DataError(
            f"{path}: {name}: expected finite float32 of shape {wanted.get(name, 'none')}, got "
            f"{kind} of shape {got.get(name, 'none')}; {_HINT}"
        )


def _read_description(described: Mapping[str, Any]) -> tuple[Zoo, dict[str, tuple[int, ...]]]:
    """Return a zoo without its networks, and the shapes of the tensors that these must have."""
    if described["format"] != FORMAT:
        raise ValueError(f"expected format {FORMAT}, got {described['format']!r}")
    shapes = []
    for parameter in described["parameters"]:
        name = str(parameter["name"])
        shapes.append((name, tuple(_whole(side, 0) for side in parameter["shape"])))
    if not any(math.prod(shape) for _, shape in shapes):
        raise ValueError("expected parameters with entries")
    pooling = Pooling(tuple(shapes), _whole(described["window"], 1))
    values = tuple(map(str, described["values"]))
    if len(values) < 2 or not described["hidden"]:
        raise ValueError("expected at least two values and one network")
    wanted: dict[str, tuple[int, ...]] = {}
    for model, hidden in enumerate(described["hidden"]):
        if len(hidden) != LAYERS - 1:
            raise ValueError(f"expected {LAYERS - 1} hidden widths for each network, got {hidden}")
        # The features are counted without laying the windows out: the file is not trusted.
        widths = [pooling.features, *(_whole(width, 1) for width in hidden), len(values)]
        for layer, (inputs, outputs) in enumerate(pairwise(widths)):
            wanted[f"{model}.{layer}.weight"] = (outputs, inputs)
            wanted[f"{model}.{layer}.bias"] = (outputs,)
    return Zoo(str(described["attribute"]), values, pooling, ()), wanted


def _whole(number: Any, least: int) -> int:
    if type(number) is not int or number < least:
        raise ValueError(f"expected a whole number of at least {least}, got {number!r}")
    return number


MAX_ZOO = 2**31
"""Bytes of the largest zoo that is read."""


def _tensors(path: Path, digest: str) -> dict[str, NDArray[Any]]:
    data = read_bytes(path, DataError, _HINT, limit=MAX_ZOO)
    if xxhash.xxh3_128(data).hexdigest() != digest:
        raise DataError(f"{path} is not the file that zoo.json describes: expected the checksum {digest}; {_HINT}")
    try:
        return dict(load(data))
    except (SafetensorError, ValueError, TypeError, KeyError) as cause:
        raise DataError(f"{path} is not a safetensors file ({cause}); {_HINT}") from None
