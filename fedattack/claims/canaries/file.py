"""``canaries.toml``: which canaries a run had. It tells who they are: it belongs to the auditor, not to the server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import tomli_w
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from fedattack.base.errors import ConfigError, DataError
from fedattack.base.files import make_private, write_atomically, write_npz
from fedattack.base.stored import Axes, read_arrays, split
from fedattack.base.untrusted import fault, read_toml, validate_value

CANARIES = "canaries.toml"
EXAMPLES = "canaries.npz"
"""File of canary examples, beside ``canaries.toml``."""

_HINT = "fedattack/claims/CANARIES.md has its keys"
_WRITE_AGAIN = "write it again with CanaryExamples.write"
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
                f"count = {self.count}: the inner products of this many canary clients take {needed:,.0f} GB of "
                f"memory; expected at most {MOST_CLIENTS:,}"
            )
        return self


_FORM = TypeAdapter(Canaries)


@dataclass(frozen=True, eq=False)
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

    x: Annotated[NDArray[Any], Axes("canaries", rest=True, nan=True)]
    y: Annotated[NDArray[Any], Axes("canaries", nan=True, kinds="iuf")]
    included: Annotated[NDArray[np.bool_], Axes("canaries")]
    client: Annotated[NDArray[np.str_], Axes("canaries")]

    def fault(self) -> str:
        """Say what is wrong with canaries that were read, or nothing."""
        if len(self.y) < _LEAST:
            return f"expected {_LEAST} examples or more, got {len(self.y)}"
        for name, numbers in (("x", self.x), ("y", self.y)):
            if not np.isfinite(numbers).all():
                return f"{name} holds numbers that are not finite"
        return ""

    @classmethod
    def drawn(cls, x: NDArray, y: NDArray, *, clients: int, seed: int) -> Self:
        """Deal examples to clients in turn, and throw a fair coin for each."""
        rng = np.random.default_rng(seed)
        # In turn, so that each client has as many as the others.
        client = (np.arange(len(y)) % clients).astype(np.str_)
        return cls(x, y, rng.random(len(y)) < 0.5, client)

    def added_to(self, x: NDArray, y: NDArray, client: str | int) -> tuple[NDArray, NDArray]:
        """Return a client's examples, followed by the canaries that the coins gave it."""
        # client is a text, as names in files are.
        mine = self.included & (self.client == str(client))
        more_x, more_y = self.x[mine].astype(x.dtype), self.y[mine].astype(y.dtype)
        return np.concatenate([x, more_x]), np.concatenate([y, more_y])

    def write(self, folder: Path, seed: int) -> None:
        """Write both files into a folder."""
        make_private(folder)
        write_npz(folder / EXAMPLES, split(self)[1])
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
    return read_arrays(CanaryExamples, folder / EXAMPLES, DataError, _WRITE_AGAIN)
