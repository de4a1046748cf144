"""RecUP-FL: the least change of an update that misleads models which infer a private attribute from it.

Cui et al. 2023, Section 4.2 and Appendix E. The perturbation is an adversarial example against a zoo of defender
models, made to carry over to models outside of it as in MGAA (Yuan et al. 2021). Nothing is guaranteed but its size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import ConfigError
from fedattack.base.settings import SettingsModel, Words, setting
from fedattack.defences.base import Batch, DefenceKind, Settings, Update, as_float32, number, text, words

if TYPE_CHECKING:
    from fedattack.defences.zoo import Zoo
    from fedattack.learning.pooled_updates import Network

ITERATIONS = 10
MODELS = 5
"""T and n of Section 5.3."""

MOMENTUM = 1.0
"""Decay of the momentum variant. The paper states none; this is that of Dong et al. 2018, whom it follows."""

# How far λ may be from a sum of one: decimals such as 0.1 have no exact sum.
_SUM = 1e-6

Windows = NDArray[np.float32]


@dataclass(frozen=True)
class _PerturbationSearch:
    """One attribute of one update: what a variant looks for its perturbation with."""

    start: Windows
    zoo: Zoo
    value: int
    budget: float
    iterations: int
    models: int
    rng: np.random.Generator
    rows: NDArray[np.int64]

    def draw(self) -> list[Network]:
        # Without replacement: n different models.
        indices = self.rng.choice(len(self.zoo.networks), size=self.models, replace=False)
        return [self.zoo.networks[index] for index in indices]

    def ascent(self, windows: Windows, network: Network) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return which entry of each window the pooling takes, and the direction (features,) for these entries.

        The gradient of the other entries is 0: a maximum depends on one entry alone.
        """
        # Max pooling passes the gradient to the largest entry of a window alone.
        largest = windows.argmax(axis=1)
        return largest, network.ascent(windows[self.rows, largest], self.value)

    def step(self, windows: Windows, network: Network, size: float) -> None:
        """Move the largest entry of each window, in place."""
        largest, direction = self.ascent(windows, network)
        windows[self.rows, largest] += np.float32(size) * np.sign(direction)


def _meta(search: _PerturbationSearch) -> Windows:
    """Meta-train and meta-test (eqs. 5 to 8), α = β = ε/T."""
    # T steps of ε/T reach the budget at most.
    size = search.budget / search.iterations
    windows = search.start.copy()
    for _ in range(search.iterations):
        # The last model is the one of the meta-test, the others meta-train (eq. 5).
        *training, test = search.draw()
        ahead = windows.copy()
        for network in training:
            search.step(ahead, network, size)
        largest, direction = search.ascent(ahead, test)
        # The step starts at the entries before meta-training, at the gradient after it (eq. 7).
        moved = windows[search.rows, largest] + np.float32(size) * np.sign(direction)
        # Bounds are about the update itself: T steps cannot leave the ball.
        low, high = bounds(search.start[search.rows, largest], search.budget)
        windows[search.rows, largest] = np.clip(moved, low, high)
    return windows


def _one_step(search: _PerturbationSearch) -> Windows:
    """Step once by ε against one model (eq. 10)."""
    windows = search.start.copy()
    search.step(windows, search.draw()[0], search.budget)
    return windows


def _average(search: _PerturbationSearch) -> Windows:
    """Average the steps by ε against n models, each from the update itself (eq. 11)."""
    total = np.zeros(len(search.start), dtype=np.float32)
    for network in search.draw():
        largest, direction = search.ascent(search.start, network)
        total += np.sign(direction)
    windows = search.start.copy()
    windows[search.rows, largest] += np.float32(search.budget / search.models) * total
    return windows


def _iterative(search: _PerturbationSearch) -> Windows:
    """Step by ε/n against each of n models in turn (eq. 12)."""
    windows = search.start.copy()
    for network in search.draw():
        search.step(windows, network, search.budget / search.models)
    return windows


def _momentum(search: _PerturbationSearch) -> Windows:
    """Step by ε/n along the accumulated gradients of n models in turn, each over its L1 norm (eqs. 13 and 14)."""
    size = np.float32(search.budget / search.models)
    windows = search.start.copy()
    accumulated = np.zeros_like(windows)
    for network in search.draw():
        largest, direction = search.ascent(windows, network)
        # A gradient of zero has no direction: it is left as it is.
        norm = np.abs(direction).sum() or np.float32(1)
        accumulated *= np.float32(MOMENTUM)
        accumulated[search.rows, largest] += direction / norm
        windows += size * np.sign(accumulated)
    return windows


VARIANTS: Mapping[str, Callable[[_PerturbationSearch], Windows]] = {
    "recup": _meta,
    "one-step": _one_step,
    "average": _average,
    "iterative": _iterative,
    "momentum": _momentum,
}
"""RecUP-FL, and the four FGSM variants with which Section 6.5 compares it."""


def bounds(values: NDArray[np.float32], budget: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the least and the largest float32 that are not further than ``budget`` from each of ``values``.

    Rounding to the nearest would step over the budget for about half of them.
    """
    wide = values.astype(np.float64)
    low, high = (wide - budget).astype(np.float32), (wide + budget).astype(np.float32)
    # Rounding to float32 may put a bound outside: then the next number inside is taken.
    low = np.where(wide - low > budget, np.nextafter(low, np.float32(np.inf)), low)
    high = np.where(high - wide > budget, np.nextafter(high, np.float32(-np.inf)), high)
    return low, high


@dataclass(frozen=True)
class RecUP:
    """The defence, for one or several attributes.

    Attributes
    ----------
    zoos : sequence of Zoo
        One zoo for each attribute to protect, all made for the same updates and pooling.
    budget : float
        ε, the most by which an entry of an update changes; 0 changes nothing.
    weights : sequence of float
        λ_k, how much each attribute is protected (eq. 9); they sum to one. Equal by default.
    values : sequence of int or None
        The client's own value of each attribute, an index into the zoo's; ``None`` for the value that the zoo's models
        together find likeliest, as an adversary would. All ``None`` by default.
    variant : str
        A name in :data:`VARIANTS`.
    iterations, models : int
        T, and n, the number of models that are drawn for each iteration.

    Raises
    ------
    ConfigError
        If weights are negative or do not sum to one, the budget is negative, the zoos do not fit together, or a zoo has
        fewer than n models.
    """

    name = "recup"
    needs_batch = False

    zoos: Sequence[Zoo]
    budget: float
    weights: Sequence[float] = ()
    values: Sequence[int | None] = ()
    variant: str = "recup"
    iterations: int = ITERATIONS
    models: int = MODELS
    _plan: tuple[tuple[Zoo, float, int | None], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.zoos:
            raise ConfigError("RecUP-FL: expected an attribute to protect, and a model zoo for it; got none")
        weights = list(self.weights) or [1 / len(self.zoos)] * len(self.zoos)
        values = list(self.values) or [None] * len(self.zoos)
        if not 0 <= self.budget < np.inf:
            raise ConfigError(f"RecUP-FL: expected a budget of at least 0; got {self.budget}; 0 is no defence")
        self._check_weights(weights, len(values))
        if self.variant not in VARIANTS:
            raise ConfigError(f"RecUP-FL: unknown variant {self.variant!r}; expected one of {', '.join(VARIANTS)}")
        least = min(self.zoos, key=lambda zoo: len(zoo.networks))
        if self.iterations < 1 or not 1 <= self.models <= len(least.networks):
            raise ConfigError(
                f"RecUP-FL: expected at least 1 iteration, and 1 to {len(least.networks)} models for each, as many as "
                f"the zoo of {least.attribute!r} has; got {self.iterations} and {self.models}"
            )
        self._check_values(values)
        object.__setattr__(self, "_plan", tuple(zip(self.zoos, weights, values, strict=True)))

    def _check_weights(self, weights: Sequence[float], values: int) -> None:
        names = ", ".join([zoo.attribute for zoo in self.zoos])
        for title, count in (("weights", len(weights)), ("values", values)):
            if count != len(self.zoos):
                raise ConfigError(f"RecUP-FL: expected {len(self.zoos)} {title}, one for each of {names}; got {count}")
        if not np.greater_equal(weights, 0).all() or not abs(sum(weights) - 1) <= _SUM:
            raise ConfigError(
                f"RecUP-FL: expected weights of {names} of at least 0 that sum to one; got {weights}, whose sum is "
                f"{sum(weights):g}; divide each by that"
            )

    def _check_values(self, values: Sequence[int | None]) -> None:
        for zoo, value in zip(self.zoos, values, strict=True):
            if zoo.pooling != self.zoos[0].pooling:
                raise ConfigError(
                    f"RecUP-FL: the zoos of {self.zoos[0].attribute!r} and {zoo.attribute!r} were made for other "
                    "updates or pool them otherwise; expected zoos trained on the same updates; train them again"
                )
            if value is not None and not 0 <= value < len(zoo.values):
                raise ConfigError(
                    f"RecUP-FL: value of {zoo.attribute!r}: expected 0 to {len(zoo.values) - 1}, for "
                    f"{', '.join(zoo.values)}; got {value}"
                )

    def apply(
        self, update: Update, rng: np.random.Generator, batch: Batch | None = None
    ) -> dict[str, NDArray[np.float32]]:
        """Return the misleading update, with no entry further than the budget from ``update``.

        Parameters
        ----------
        update : mapping of str to ndarray of float32
            Stays unchanged.
        rng : Generator
            Draws the models.
        batch : Batch, optional
            Not used.

        Raises
        ------
        ModelError
            If the zoos were made for other parameters.
        DataError
            If the update is not finite.
        """
        pooling = self.zoos[0].pooling
        if self.budget == 0:
            pooling.check(update)
            return as_float32(update)
        whole = pooling.windows(update)
        # No step takes a smaller entry than these: each of T · n steps changes the largest of a window.
        columns = _largest(whole, self.iterations * self.models)
        start = np.take_along_axis(whole, columns, axis=1)
        parts = [(weight, self._perturb(start, zoo, value, rng)) for zoo, weight, value in self._plan if weight]
        # Windows that no attribute moved keep their bits.
        changed = np.any([windows != start for _, windows in parts], axis=0)
        before = start[changed]
        # Weighted in double precision: the weights sum up to one.
        moves = [weight * (windows[changed].astype(np.float64) - before) for weight, windows in parts]
        moved = (before + np.sum(moves, axis=0)).astype(np.float32)
        low, high = bounds(before, self.budget)
        start[changed] = np.clip(moved, low, high)
        np.put_along_axis(whole, columns, start, axis=1)
        arrays = pooling.unlaid(whole)
        return {name: arrays[name] for name in update}

    def _perturb(self, start: Windows, zoo: Zoo, value: int | None, rng: np.random.Generator) -> Windows:
        if value is None:
            value = _likeliest(zoo, start)
        rows = np.arange(len(start))
        search = _PerturbationSearch(start, zoo, value, self.budget, self.iterations, self.models, rng, rows)
        return VARIANTS[self.variant](search)


def _largest(windows: Windows, count: int) -> NDArray[np.int64]:
    """Return the columns (features, count) of each window's largest entries, ascending; among equals of the first ones.

    A step moves the largest entry of a window. So a search of ``count`` steps meets no other entries than these, and
    need not hold the others.
    """
    width = windows.shape[1]
    count = min(count, width)
    columns = np.empty((len(windows), count), dtype=np.int64)
    for window, into in zip(windows, columns, strict=True):
        # The smallest entry that is taken; partition needs no full sort.
        least = np.partition(window, width - count)[width - count]
        above = np.flatnonzero(window > least)
        equal = np.flatnonzero(window == least)[: count - len(above)]
        into[:] = np.sort(np.concatenate([above, equal]))
    return columns


def _likeliest(zoo: Zoo, windows: Windows) -> int:
    pooled = windows.max(axis=1)
    beliefs = [network.beliefs(pooled) for network in zoo.networks]
    return int(np.sum(beliefs, axis=0).argmax())


def make(settings: Settings) -> RecUP:
    """Make the defence from a run's settings.

    - ``defence-strength``: the budget ε.
    - ``recup-zoo``: a folder with a zoo for each attribute, in a subfolder of the attribute's name.
    - ``recup-attributes``: those to protect, separated by commas; empty for all.
    - ``recup-weights``: their λ, in the same order; may be empty.
    - ``recup-values``: the client's own values, in the same order; may be empty. ``?`` is the one that the zoo finds
      likeliest.
    - ``recup-variant``, ``recup-iterations`` and ``recup-models``: the paper's by default.

    Raises
    ------
    ConfigError
        If a setting is missing or invalid, or an attribute has no zoo.
    DataError
        If a zoo cannot be read.
    """
    folder = text(settings, "recup-zoo")
    attributes = words(settings, "recup-attributes") or _zoos_in(Path(folder))
    if not attributes or not folder:
        raise ConfigError(
            "RecUP-FL: expected recup-zoo, a folder with a model zoo for each attribute; got none; train some with "
            "fedattack.defences.zoo.train_zoo"
        )
    zoos = [_zoo(Path(folder), attribute) for attribute in attributes]
    names = words(settings, "recup-values")
    if names and len(names) != len(zoos):
        raise ConfigError(f"recup-values: expected {len(zoos)}, one for each attribute, ? if unknown; got {len(names)}")
    return RecUP(
        zoos=zoos,
        budget=number(settings, "defence-strength"),
        weights=list(map(_weight, words(settings, "recup-weights"))),
        values=[_value(zoo, name) for zoo, name in zip(zoos, names, strict=False)],
        variant=text(settings, "recup-variant"),
        iterations=int(number(settings, "recup-iterations")),
        models=int(number(settings, "recup-models")),
    )


def _zoo(folder: Path, attribute: str) -> Zoo:
    known = _zoos_in(folder)
    # An attribute is the name of a zoo in the folder, and never a path that leads elsewhere.
    if attribute not in known:
        raise ConfigError(
            f"attribute {attribute!r} has no model zoo in {folder}: expected {attribute}/zoo.json; there are "
            f"{', '.join(known) or 'none'}; "
            "train one with fedattack.defences.zoo.train_zoo, or leave the attribute out of recup-attributes"
        )
    stamps = []
    for name in ("zoo.json", "zoo.safetensors"):
        file = folder / attribute / name
        if file.is_file():
            stamps.append((file.stat().st_mtime_ns, file.stat().st_size))
    # Time and size are a part of the key: a zoo that is trained anew is read anew.
    return _read_cached(folder / attribute, tuple(stamps))


@lru_cache(maxsize=8)
def _read_cached(folder: Path, stamps: tuple[tuple[int, int], ...]) -> Zoo:
    """Keep zoos in memory: settings are read at each call, and a zoo may have a hundred megabytes."""
    from fedattack.defences.zoo import load_zoo  # it imports torch, which clients with other defences may lack

    return load_zoo(folder)


def _zoos_in(folder: Path) -> list[str]:
    return [path.parent.name for path in sorted(folder.glob("*/zoo.json"))]


def _value(zoo: Zoo, name: str) -> int | None:
    if name == "?":
        return None
    if name not in zoo.values:
        raise ConfigError(f"recup-values: {zoo.attribute!r} is one of {', '.join(zoo.values)}, or ?; got {name!r}")
    return zoo.values.index(name)


def _weight(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ConfigError(f"recup-weights: expected numbers separated by commas; got {word!r}") from None


class RecupSettings(SettingsModel):
    """Settings of RecUP-FL."""

    recup_zoo: str = setting(
        "",
        "recup: folder of model zoos; empty to train some before the run, on the attacker's auxiliary records or, "
        "without such, on test examples",
    )
    recup_attributes: str = setting(
        "",
        "recup: attributes to protect, separated by commas; empty for all that there are zoos of, or that the run "
        "is about: private, sensitive, or else label",
    )
    recup_weights: str = setting(
        "", "recup: how much each of them is protected, λ separated by commas, with sum one; empty for equal weights"
    )
    recup_values: str = setting(
        "", "recup: the client's own value of each, separated by commas; ? or empty for what the zoo finds likeliest"
    )
    recup_variant: str = setting(
        "recup",
        "recup: how the perturbation is found: recup, one-step, average, iterative or momentum",
        words=Words(tuple(VARIANTS)),
    )
    recup_iterations: int = setting(10, "recup: iterations T", ge=1)
    recup_models: int = setting(5, "recup: models drawn from the zoo in each iteration", ge=1)


KIND = DefenceKind(
    name="recup",
    make=make,
    settings=RecupSettings,
    artefacts=("recup-zoo",),
    strength="most that an entry is changed, ε in L∞",
)
