"""The defender's model zoo of RecUP-FL: networks that mimic an adversary, for one private attribute each.

Cui et al. 2023, Sections 4.2 and 5.3. A zoo is a folder: ``zoo.json`` says what it was made for, ``zoo.safetensors``
holds the networks. Nothing is unpickled, and nothing is used that ``zoo.json`` does not announce.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import nn

from fedattack.defences.base import Update
from fedattack.errors import ConfigError, DataError
from fedattack.files import write_atomically, write_json
from fedattack.learning import LocalSGD
from fedattack.learning.attribute_updates import attribute_updates
from fedattack.learning.pooled_updates import FEATURES, Fit, Network, Pooling, check_labels, train_network
from fedattack.untrusted import read_bytes, read_json

FORMAT = 1
LAYERS = 3
WIDTHS = (128, 256, 512, 1024, 2048)
"""Of a defender's hidden layers (Section 5.3: 128 to 2,048 neurons)."""
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
        What is predicted.
    values : tuple of str
        Its values, in the order of the networks' outputs.
    pooling : Pooling
        Of what updates, and how they are pooled.
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
        n updates of one model, of data that the defender may use; at least one.
    labels : ndarray of int, shape (n,)
        Each client's value of the attribute, an index into ``values``.
    attribute, values
        As of :class:`Zoo`.
    seed : int
        Draws each network's two widths, its start and the order of its training.
    models : int
        How many networks.
    widths : sequence of int
        Widths to draw from.
    features : int
        Features that an update is pooled to, at most.
    fit : Fit, optional
        How networks are trained.

    Raises
    ------
    ConfigError
        If there are no networks or widths to make.
    DataError
        If updates and labels do not fit each other.
    """
    if models < 1 or not widths or min(widths) < 1:
        raise ConfigError(f"model zoo: expected at least one model and widths of 1 or more; got {models}, {[*widths]}")
    rows = list(updates)
    check_labels(np.empty(len(rows)), labels, len(values))
    pooling = Pooling.of(rows[0], features=features)
    pooled = pooling.pooled(rows)
    rng = np.random.default_rng(seed)
    networks = tuple(
        train_network(
            pooled,
            labels,
            values=len(values),
            hidden=[int(width) for width in rng.choice(widths, size=LAYERS - 1)],
            seed=int(rng.integers(2**31)),
            fit=fit,
        )
        for _ in range(models)
    )
    return Zoo(attribute, tuple(values), pooling, networks)


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
) -> Zoo:
    """Train a zoo from records alone, before a run: a small federation of clients made up from them is trained.

    The updates are of three stages, the first, the middle and the last round, because those of a model that has learnt
    differ from those of a new one.

    Parameters
    ----------
    model : nn.Module
        The clients' architecture.
    start : mapping
        The parameters from which the run will start.
    x, y, codes : ndarray, shape (n, …), (n,), (n,)
        Records that the defender may use, their labels, and their value of the attribute, an index into ``values``.
        Values of which there are fewer records than half of the others have are left out.
    training : LocalSGD
        How clients train.
    attribute, values
        As of :class:`Zoo`.
    records : int
        How many records a client has, at most.
    rounds : int
        Of the run.
    seed : int
        Of all draws.
    loss : str
        What clients minimise.
    gradients : bool
        Whether clients send −Δ/η, a gradient, in place of Δ.
    clients : int
        How many are made up at each stage.
    models, widths, fit
        As for :func:`train_zoo`.

    Raises
    ------
    ConfigError, DataError
        As :func:`train_zoo`.
    """
    _, counts = np.unique(codes, return_counts=True)
    own = max(min(records, int(np.median(counts))), 1) if len(counts) else 1
    rows = np.flatnonzero(np.bincount(codes, minlength=len(values))[codes] >= own)
    rng = np.random.default_rng(seed)
    state = {name: np.asarray(start[name], dtype=np.float32) for name, _ in model.named_parameters()}

    def made(count: int) -> tuple[list[dict[str, NDArray[np.float32]]], NDArray[np.int64]]:
        found = attribute_updates(
            model,
            state,
            x[rows],
            y[rows],
            codes[rows],
            training,
            clients=count,
            records=own,
            seed=int(rng.integers(2**31)),
            loss=loss,
        )
        return found.updates, found.values

    updates: list[dict[str, NDArray[np.float32]]] = []
    labels: list[NDArray[np.int64]] = []
    for number in range(1, rounds + 1):
        if number in (1, (rounds + 1) // 2, rounds):
            seen, held = made(clients)
            updates += seen
            labels.append(held)
        moves, _ = made(_FEDERATION)
        state = {name: state[name] + np.mean([move[name] for move in moves], axis=0) for name in state}
    if gradients:
        updates = [{name: -move / np.float32(training.lr) for name, move in update.items()} for update in updates]
    return train_zoo(
        updates,
        np.concatenate(labels),
        attribute=attribute,
        values=values,
        seed=int(rng.integers(2**31)),
        models=models,
        widths=widths,
        fit=fit,
    )


def save_zoo(zoo: Zoo, folder: Path) -> None:
    """Write a zoo into a folder, which is made; each file is whole or not there.

    Raises
    ------
    OSError
        If the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{model}.{layer}.{part}": array
        for model, network in enumerate(zoo.networks)
        for layer, arrays in enumerate(network.layers)
        for part, array in zip(("weight", "bias"), arrays, strict=True)
    }
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
        zoo, wanted = _described(described)
        digest = described["xxh3"]
    except (KeyError, TypeError, ValueError, AttributeError) as cause:
        raise DataError(f"{path} describes no model zoo ({type(cause).__name__}: {cause}); {_HINT}") from None
    tensors = _tensors(folder / "zoo.safetensors", digest)
    got = {name: tuple(array.shape) for name, array in tensors.items()}
    wrong = [name for name in {**wanted, **got} if wanted.get(name) != got.get(name)]
    wrong += [name for name, array in tensors.items() if array.dtype != np.float32 or not np.isfinite(array).all()]
    if wrong:
        name = wrong[0]
        raise DataError(
            f"{folder / 'zoo.safetensors'}: {name}: expected finite float32 of shape {wanted.get(name, 'none')}, got "
            f"{tensors[name].dtype if name in tensors else 'nothing'} of shape {got.get(name, 'none')}; {_HINT}"
        )
    networks = tuple(
        Network(
            tuple((tensors[f"{model}.{layer}.weight"], tensors[f"{model}.{layer}.bias"]) for layer in range(LAYERS))
        )
        for model in range(len(wanted) // (2 * LAYERS))
    )
    return Zoo(zoo.attribute, zoo.values, zoo.pooling, networks)


def _described(described: Mapping[str, Any]) -> tuple[Zoo, dict[str, tuple[int, ...]]]:
    """Return a zoo without its networks, and the shapes of the tensors that these must have."""
    if described["format"] != FORMAT:
        raise ValueError(f"expected format {FORMAT}, got {described['format']!r}")
    shapes = tuple(
        (str(item["name"]), tuple(_whole(side, 0) for side in item["shape"])) for item in described["parameters"]
    )
    if not sum(math.prod(shape) for _, shape in shapes):
        raise ValueError("expected parameters with entries")
    pooling = Pooling(shapes, _whole(described["window"], 1))
    values = tuple(str(value) for value in described["values"])
    if len(values) < 2 or not described["hidden"]:
        raise ValueError("expected at least two values and one network")
    # counted without laying the windows out: the file is not trusted
    features = sum(-(-math.prod(shape) // pooling.width) for _, shape in shapes)
    wanted: dict[str, tuple[int, ...]] = {}
    for model, hidden in enumerate(described["hidden"]):
        if len(hidden) != LAYERS - 1:
            raise ValueError(f"expected {LAYERS - 1} hidden widths a network, got {hidden}")
        widths = (features, *(_whole(width, 1) for width in hidden), len(values))
        for layer in range(LAYERS):
            wanted[f"{model}.{layer}.weight"] = (widths[layer + 1], widths[layer])
            wanted[f"{model}.{layer}.bias"] = (widths[layer + 1],)
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
        raise DataError(f"{path} is no safetensors file ({cause}); {_HINT}") from None
