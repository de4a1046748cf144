"""``canaries.toml``: which canaries a run had. It tells who they are: it belongs to the auditor, not to the server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
import tomli_w
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from fedattack.base.errors import ConfigError, DataError, short
from fedattack.base.files import make_private, write_atomically, write_npz
from fedattack.base.untrusted import fault, read_npz, read_toml, validate_value

CANARIES = "canaries.toml"
EXAMPLES = "canaries.npz"
"""File of canary examples, beside ``canaries.toml``."""

_HINT = "fedattack/claims/CANARIES.md has its keys"
_WRITE_AGAIN = "write it anew, with CanaryExamples.write"
_ARRAYS = ("x", "y", "included", "client")
_LEAST = 2

MOST_CLIENTS = 2000
"""Canary clients of a run at most."""


class Canaries(BaseModel):
    """The canaries of one run.

    Attributes
    ----------
    kind
        ``client``: extra clients that send a random direction. ``example``: examples that a coin put among a client's
        (also written ``record``).
    count
        How many; of examples those that were left out, too.
    seed
        Of the directions; of examples, of who may get which, and of the coins.
    clip
        Length of what a canary client sends: the clipping norm C.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    kind: Literal["client", "example", "record"] = "client"
    count: Annotated[int, Field(ge=_LEAST, le=100_000)]
    seed: Annotated[int, Field(ge=0)]
    clip: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _check_consistent(self) -> Self:
        if self.kind == "client" and self.clip is None:
            raise ValueError("clip is missing: the length of what a canary client sends")
        if self.kind == "client" and self.count > MOST_CLIENTS:
            # Inner products of so many directions, and of as many that nobody sent, in double precision.
            needed = 8 * (2 * self.count) ** 2 / 1e9
            raise ValueError(
                f"count = {self.count}: the inner products of so many canary clients alone take {needed:,.0f} GB of "
                f"memory; expected at most {MOST_CLIENTS:,}"
            )
        return self


_FORM = TypeAdapter(Canaries)


class CanaryExamples:
    """Canary examples, and what the coins said.

    Attributes
    ----------
    x, y
        (n, …), (n,): the examples and their labels.
    included
        (n,): whether its client trained on it.
    client
        (n,): name of the client that would, or did.
    """

    def __init__(self, x: NDArray, y: NDArray, included: NDArray[np.bool_], client: NDArray[np.str_]) -> None:
        self.x = x
        self.y = y
        self.included = included
        self.client = client

    @classmethod
    def drawn(cls, x: NDArray, y: NDArray, *, clients: int, seed: int) -> Self:
        """Deal examples to clients in turn, and throw a fair coin for each."""
        rng = np.random.default_rng(seed)
        client = (np.arange(len(y)) % clients).astype(np.str_)
        return cls(x, y, rng.random(len(y)) < 0.5, client)

    def added_to(self, x: NDArray, y: NDArray, client: str | int) -> tuple[NDArray, NDArray]:
        """Return a client's examples, followed by the canaries that the coins gave it."""
        mine = self.included & (self.client == str(client))
        more_x, more_y = self.x[mine].astype(x.dtype), self.y[mine].astype(y.dtype)
        return np.concatenate([x, more_x]), np.concatenate([y, more_y])

    def write(self, folder: Path, seed: int) -> None:
        """Write both files into a folder."""
        make_private(folder)
        arrays = {"x": self.x, "y": self.y, "included": self.included, "client": self.client}
        write_npz(folder / EXAMPLES, arrays)
        write_canaries(folder / CANARIES, Canaries(kind="example", count=len(self.y), seed=seed))


def with_canaries(x: NDArray, y: NDArray, *, client: str | int, folder: Path | str) -> tuple[NDArray, NDArray]:
    """Add canary examples to a client's own, where a project loads its data.

    A mod cannot do this: it sees messages, not data.

    Parameters
    ----------
    x, y
        The client's examples (n, …) and labels (n,).
    client
        Its name, such as its ``partition-id``.
    folder
        Where :meth:`CanaryExamples.write` wrote them.

    Raises
    ------
    DataError
        If the files are not there, damaged, or of another shape than the data.
    """
    examples = read_examples(Path(folder))
    if examples.x.shape[1:] != x.shape[1:]:
        raise DataError(
            f"{Path(folder) / EXAMPLES}: canaries of shape {examples.x.shape[1:]}, and examples of {x.shape[1:]}; "
            "make them of the same data"
        )
    return examples.added_to(x, y, client)


def write_canaries(path: Path, canaries: Canaries) -> None:
    """Write ``canaries.toml``."""
    write_atomically(path, tomli_w.dumps(canaries.model_dump(exclude_none=True)).encode())


def read_canaries(path: Path) -> Canaries:
    """Read ``canaries.toml``.

    Raises
    ------
    ConfigError
        In one line, if it is not there, is no TOML, or has a key or a value that it cannot have.
    """
    values = read_toml(path, ConfigError, _HINT)
    try:
        return validate_value(_FORM, values)
    except ValidationError as cause:
        first = cause.errors(include_url=False)[0]
        said = str(first["ctx"]["error"]) if first["type"] == "value_error" else fault(cause)
        raise ConfigError(f"{path}: {said}; {_HINT}") from None


def read_examples(folder: Path) -> CanaryExamples:
    """Read the canary examples beside a ``canaries.toml``.

    Raises
    ------
    DataError
        If the file is not there, damaged, or its arrays are of other kinds, do not fit together or are not finite.
    """
    path = folder / EXAMPLES
    arrays = read_npz(path, DataError, _WRITE_AGAIN, *_ARRAYS)
    _check_types(path, arrays)
    _check_shapes(path, arrays)
    for name in ("x", "y"):
        if not np.isfinite(arrays[name]).all():
            raise DataError(f"{path}: {name} holds numbers that are not finite; {_WRITE_AGAIN}")
    return CanaryExamples(*(arrays[name] for name in _ARRAYS))


def _check_types(path: Path, arrays: Mapping[str, NDArray]) -> None:
    x, y, included, client = (arrays[name] for name in _ARRAYS)
    if x.dtype.kind not in "biuf" or y.dtype.kind not in "iuf":
        raise DataError(
            f"{path}: expected examples and labels that are numbers, got the types {short(str(x.dtype), 40)} and "
            f"{short(str(y.dtype), 40)}; {_WRITE_AGAIN}"
        )
    if included.dtype != np.bool_ or client.dtype.kind != "U":
        raise DataError(
            f"{path}: expected coins that are true or false, and clients' names that are texts, got the types "
            f"{short(str(included.dtype), 40)} and {short(str(client.dtype), 40)}; {_WRITE_AGAIN}"
        )


def _check_shapes(path: Path, arrays: Mapping[str, NDArray]) -> None:
    x = arrays["x"]
    count = len(x) if x.ndim else 0
    if count < _LEAST or any(arrays[name].shape != (count,) for name in _ARRAYS[1:]):
        shapes = ", ".join(f"{name} {short(str(arrays[name].shape), 60)}" for name in _ARRAYS)
        raise DataError(
            f"{path}: expected {_LEAST} examples or more, and as many labels, coins and clients' names, got the shapes "
            f"{shapes}; {_WRITE_AGAIN}"
        )
