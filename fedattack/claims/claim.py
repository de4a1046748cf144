"""A privacy claim as a declared thing: what a team says about its run, in a file ``claim.toml``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from fedattack.base.errors import ConfigError, instead, short
from fedattack.base.untrusted import fault, read_toml, validate_value

UPDATE = ("gaussian", "laplace", "flower-localdp")
"""Mechanisms that clip a client's update, and add noise to it before it leaves the client."""

CENTRAL = ("central-gaussian", "central-adaptive")
"""Mechanisms of a server that adds noise to the mean of clipped updates."""

DP_SGD = "dp-sgd"

SHUFFLED = "shuffled"
IN_BATCHES = (SHUFFLED, "in-order")
"""Ways to draw by which a unit is in one step of each pass over the data, so that its part in it is sure."""

Mechanism = Literal["gaussian", "laplace", "flower-localdp", "dp-sgd", "central-gaussian", "central-adaptive"]
MOST = 2**53
"""The largest count: up to it all whole numbers are numbers of floating point."""

SMALL, LARGE = 1e-40, 1e40
"""Amounts are 0, or between these: squares of their quotients are then numbers, too."""


def computable(value: float) -> float:
    """Return an amount as it is.

    Raises
    ------
    ValueError
        If it is too small or too large to compute with.
    """
    if value and not SMALL <= value <= LARGE:
        raise ValueError(f"expected 0, or from {SMALL:g} to {LARGE:g}")
    return value


Amount = Annotated[float, Field(ge=0), AfterValidator(computable)]
Positive = Annotated[float, Field(gt=0)]
Size = Annotated[Amount, Field(gt=0)]
Rate = Annotated[float, Field(ge=1e-15, le=1)]
Count = Annotated[int, Field(ge=1, le=MOST)]

# Keys that mean something for some mechanisms alone.
_OF = {
    "steps": (DP_SGD,),
    "learning-rate": (DP_SGD,),
    "batch-size": (DP_SGD,),
    "entries": ("laplace",),
    "clients": CENTRAL,
    "weights": CENTRAL,
    "largest-share": CENTRAL,
    "count-noise": ("central-adaptive",),
    "clip-falls": ("central-adaptive",),
    "epochs": (DP_SGD,),
    "skipped": (DP_SGD,),
    "sampling": (DP_SGD, *CENTRAL),
    "sampling-method": (DP_SGD, *CENTRAL),
}
_HINT = "fedattack/claims/README.md has the keys of a claim"

# People write σ and noise multipliers with three or four digits.
_ROUNDING = 5e-3


def _write_key(field: str) -> str:
    return field.replace("_", "-")


class Claim(BaseModel):
    """What is said about the privacy of a run. Its file has these keys with hyphens.

    Attributes
    ----------
    mechanism
        ``gaussian``, ``laplace``: noise on a client's clipped update. ``flower-localdp``: the same, where Flower's
        ``LocalDpMod`` finds σ from `sensitivity`, `epsilon` and `delta`. ``dp-sgd``: noise on the sum of clipped
        gradients of examples. ``central-gaussian``, ``central-adaptive``: noise on the mean of clipped updates, by a
        server with a fixed clipping norm, or one that it adapts (Andrew et al. 2021).
    epsilon, delta
        What is claimed: ε above 0 and finite, δ between 0 and 1.
    epsilon_of
        What ε speaks of: one ``message`` of a client (one released model, in the central case), or the whole ``run``.
    unit
        Whose data may differ: one ``example``, or all of a ``client``. For ``dp-sgd`` an example, else a client.
    neighbours
        ``replace``: the unit may be another one. ``add-remove``: it may be missing, and counts as zeros; how many
        there are is known. By default ``replace`` for noise on an update, where a server sees who sends, and
        ``add-remove`` elsewhere.
    clip
        C, the largest L2 norm: of an update, or of the gradient of an example.
    sensitivity
        How far the unit is said to move what the noise is added to.
    sigma
        The standard deviation of the noise, or Laplace's scale b, in units of what it is added to: an update, a sum of
        gradients, a mean of updates.
    noise_multiplier
        σ / C; in the central case σ · clients / C.
    sampling
        The share of units that a step, or a round, draws; 1 for all.
    sampling_method
        ``poisson``: each by a coin of its own. ``fixed-size``: so many, without replacement, anew in each step.
        ``shuffled``, ``in-order``: each is in one batch of every epoch, in an order that is drawn or is the same each
        time. ``unknown``: nobody knows, nor the share. Without it, the share alone is known.
    steps
        Of DP-SGD in one round; without it nothing bounds ε from above.
    epochs
        Passes over the data that DP-SGD begins in one round, which ``shuffled`` and ``in-order`` need.
    skipped
        Batches of a round that were drawn and made no step, such as empty ones. No noise covers that they were empty.
    learning_rate, batch_size
        Of the last step of a round's DP-SGD; the batch size is the expected one, by which the sum of gradients is
        divided. A record's updates are held against them. The optimizer is SGD, with momentum or without.
    rounds
        In which a client takes part, at most. An ε of the run needs it.
    trusted_server
        Whether ε speaks only of those who see what the server releases. In the central case it sees all updates.
    clients
        Replies that the server's mean is over.
    weights
        ``equal``, or ``examples``: clients with more examples count for more. None: nobody knows.
    largest_share
        Of one client in a weighted mean.
    count_noise
        Of adaptive clipping: the standard deviation of the noise on the number of clipped updates; 0 for none.
    clip_falls
        Of adaptive clipping: by what factor the norm may fall between clipping and noise; 1 if both use the same.
    entries
        Numbers in an update, for Laplace.
    """

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, alias_generator=_write_key, populate_by_name=True
    )

    mechanism: Mechanism
    epsilon: Size
    delta: Annotated[float, Field(gt=0, lt=1)]
    epsilon_of: Literal["message", "run"] = "run"
    unit: Literal["example", "record", "client"] | None = None
    neighbours: Literal["add-remove", "replace"] | None = None
    clip: Size | None = None
    sensitivity: Size | None = None
    sigma: Amount | None = None
    noise_multiplier: Amount | None = None
    sampling: Rate = 1.0
    sampling_method: Literal["poisson", "fixed-size", "shuffled", "in-order", "unknown"] | None = None
    steps: Count | None = None
    epochs: Count | None = None
    skipped: Annotated[int, Field(ge=0, le=MOST)] = 0
    learning_rate: Positive | None = None
    batch_size: Annotated[float, Field(gt=0, le=MOST)] | None = None
    rounds: Count = 1
    trusted_server: bool | None = None
    clients: Count | None = None
    weights: Literal["equal", "examples"] | None = None
    largest_share: Rate | None = None
    count_noise: Amount | None = None
    clip_falls: Rate | None = None
    entries: Count | None = None

    @model_validator(mode="after")
    def _check_consistent(self) -> Self:
        # Pydantic makes one line of a ValueError.
        self._check_keys()
        self._check_noise()
        if self.central:
            self._check_shares()
        return self

    def _check_keys(self) -> None:
        for key in sorted(map(_write_key, self.model_fields_set)):
            # Keys of another mechanism would be ignored silently otherwise.
            mechanisms = _OF.get(key, (self.mechanism,))
            if self.mechanism not in mechanisms:
                raise ValueError(f"{key} is a key of {', '.join(mechanisms)}, and the mechanism is {self.mechanism}")
        if self.epsilon_of == "run" and "rounds" not in self.model_fields_set:
            raise ValueError('rounds is missing, which the ε of a run needs; or write epsilon-of = "message"')
        if self.mechanism == DP_SGD and self.unit == "client":
            raise ValueError(
                'unit = "client" contradicts dp-sgd, which clips each example by itself; write unit = "example"'
            )
        if self.sampling_method in IN_BATCHES and self.mechanism != DP_SGD:
            raise ValueError(
                f"sampling-method = {self.sampling_method!r} belongs to dp-sgd, but the mechanism is {self.mechanism}"
            )
        if self.sampling_method in IN_BATCHES and self.epochs is None:
            raise ValueError(
                f"epochs is missing, which {self.sampling_method} batches need: passes over the data in a round"
            )
        if self.epochs is not None and self.sampling_method not in IN_BATCHES:
            raise ValueError(
                "epochs needs batches that are shuffled or in order; write sampling-method, or leave it out"
            )
        if self.mechanism == "flower-localdp" and (self.clip is None or self.sensitivity is None):
            raise ValueError("flower-localdp needs clip and sensitivity, the first two numbers of LocalDpMod")

    def _check_noise(self) -> None:
        implied = self._implied_deviation()
        if self.mechanism == "flower-localdp" and self.noise_multiplier is not None:
            raise ValueError("noise-multiplier is not a key of flower-localdp, which computes σ itself")
        if self.sigma is None or implied is None:
            return
        # People round: within 0.5 % both say the same.
        if not math.isclose(self.sigma, implied, rel_tol=_ROUNDING):
            raise ValueError(
                f"sigma = {self.sigma:g}, and the other keys imply {implied:.4g}; leave one out, or correct it"
            )

    def _check_shares(self) -> None:
        if self.largest_share is None:
            return
        if self.clients is None:
            raise ValueError("largest-share needs clients, the number of replies that the mean is over")
        if self.largest_share * self.clients < 1 - _ROUNDING:
            raise ValueError(
                f"largest-share = {self.largest_share:g} is below 1/{self.clients}, and shares of clients add up to 1"
            )
        if self.weights == "equal" and self.largest_share * self.clients > 1 + _ROUNDING:
            raise ValueError(f"largest-share = {self.largest_share:g} of {self.clients} contradicts equal weights")

    def _implied_deviation(self) -> float | None:
        if self.mechanism == "flower-localdp" and self.sensitivity is not None:
            return classical_sigma(self.sensitivity, self.epsilon, self.delta)
        if self.noise_multiplier is None or self.clip is None:
            return None
        if not self.central:
            return self.noise_multiplier * self.clip
        if self.clients is None:
            return None
        return self.noise_multiplier * self.clip / self.clients

    @property
    def central(self) -> bool:
        """Whether the server adds the noise."""
        return self.mechanism in CENTRAL

    @property
    def protects(self) -> str:
        """The unit: ``example`` or ``client``."""
        if self.unit is None:
            return "example" if self.mechanism == DP_SGD else "client"
        return "example" if self.unit == "record" else self.unit

    @property
    def relation(self) -> str:
        """What neighbours are: ``replace`` or ``add-remove``."""
        if self.neighbours is not None:
            return self.neighbours
        if self.mechanism in UPDATE:
            return "replace"
        return "add-remove"

    @property
    def draws(self) -> bool:
        """Whether chance decides in which steps a unit takes part."""
        if self.sampling_method == "unknown":
            return True
        if self.sampling_method == "in-order":
            return False
        return self.sampling < 1

    @property
    def uses(self) -> int:
        """Steps of a round in which a unit may take part; one where the claim does not say how many there are."""
        if self.epochs is not None:
            return self.epochs
        return self.steps or 1

    @property
    def deviation(self) -> float | None:
        """σ, or Laplace's b, in units of what the noise is added to; None if the claim does not say."""
        if self.sigma is not None:
            return self.sigma
        return self._implied_deviation()

    @property
    def multiplier(self) -> float | None:
        """σ / C, in the central case σ · clients / C; None if the claim does not say."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        if self.deviation is None or self.clip is None:
            return None
        if not self.central:
            return self.deviation / self.clip
        if self.clients is None:
            return None
        return self.deviation * self.clients / self.clip


def classical_sigma(sensitivity: float, epsilon: float, delta: float) -> float:
    """Return Δ · √(2 ln(1.25 / δ)) / ε, which is enough for ε up to 1 (Dwork & Roth 2014, Theorem 3.22)."""
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


_CLAIM = TypeAdapter(Claim)


def make_claim(where: str, /, **values: Any) -> Claim:
    """Check the keys of a claim, with hyphens or underscores, and their values.

    Raises
    ------
    ConfigError
        In one line, which begins with ``where``.
    """
    try:
        return validate_value(_CLAIM, values)
    except ValidationError as cause:
        raise ConfigError(f"{where}: {_describe_fault(cause)}; {_HINT}") from None


def _describe_fault(cause: ValidationError) -> str:
    first = cause.errors(include_url=False)[0]
    # An error of our own validators has no location, and says all by itself.
    if first["type"] == "value_error" and not first["loc"]:
        return str(first["ctx"]["error"])
    if first["type"] == "extra_forbidden":
        key = str(first["loc"][0])
        known = list(map(_write_key, Claim.model_fields))
        return f"{short(key, 40)} is not a key of a claim: {instead(key, known)}"
    return fault(cause)


def read_claim(path: Path) -> Claim:
    """Read a ``claim.toml``.

    Raises
    ------
    ConfigError
        In one line, if it is not there, is no TOML, has a key or a value that it cannot have, or contradicts itself.
    """
    return make_claim(str(path), **read_toml(path, ConfigError, _HINT))
