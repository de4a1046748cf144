"""The form of the record's JSON: types, ranges and lengths of all that stands in the manifest and in the index.

Nothing of a record is used before it has this form. FORMAT.md says what the keys mean.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Literal, NotRequired

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, TypeAdapter, with_config
from typing_extensions import TypeAliasType, TypedDict

MAX_NAME = 1024
"""Characters of the longest name: of an array, a metric, a node."""

MAX_VALUE = 2**20
"""Characters of the longest text among what came in plaintext; what is longer is not kept."""

Protocol = Literal["fedavg", "fedsgd", "fedmd"]

Server = Literal["passive", "isolating", "inconsistent", "imprint", "fishing", "canary"]

_STRICT = ConfigDict(extra="forbid", strict=True)

Name = Annotated[str, StringConstraints(max_length=MAX_NAME)]
Value = Annotated[str, StringConstraints(max_length=MAX_VALUE)]
RecordId = Annotated[str, StringConstraints(pattern="^[0-9a-f]{32}$")]
Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
Xxh3 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{32}$")]
# Whole groups of four characters, the last one padded: what `b64decode` takes without guessing.
_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
Base64 = Annotated[str, StringConstraints(pattern=_BASE64, max_length=2 * MAX_VALUE)]
OTHERS_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
"""Types of the arrays beside training that are kept."""

# Far beyond any run, and small enough that sums and products of some fit into 64 bits.
Count = Annotated[int, Field(ge=0, le=2**50)]
# JSON has no largest number, and NumPy and torch have.
Whole = Annotated[int, Field(ge=-(2**63), lt=2**64)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


def _each_once(names: Sequence[str]) -> Sequence[str]:
    if len(set(names)) != len(names):
        raise ValueError("a name occurs twice")
    return names


Names = Annotated[list[Name], AfterValidator(_each_once)]


@with_config(_STRICT)
class Bytes(TypedDict):
    """Bytes in plaintext."""

    base64: Base64


@with_config(_STRICT)
class Special(TypedDict):
    """A number that JSON has not."""

    float: Literal["nan", "inf", "-inf"]


@with_config(_STRICT)
class Other(TypedDict):
    """What is of no kind that JSON has, in Python's words."""

    repr: Value


# Recursive: a list of metrics may hold lists. A TypeAliasType lets pydantic refer to it by its name.
Metric = TypeAliasType("Metric", "bool | Whole | Finite | Value | list[Metric] | Bytes | Special | Other | None")
"""What may stand beside the arrays, as :func:`fedattack.record.format.encode_metric` writes it."""


@with_config(_STRICT)
class Stored(TypedDict):
    """A common model in the round's own file."""

    source: Literal["stored"]
    names: Names


class StoredFinal(Stored):
    """The last common model in a file of its own."""

    bytes: Count
    xxh3: Xxh3
    sha256: NotRequired[Sha256]


@with_config(_STRICT)
class Mean(TypedDict):
    """A common model that is the mean of a round's replies."""

    source: Literal["mean"]
    of: Count
    recipe: Literal["message", "legacy"]
    xxh3: Xxh3


Same = TypedDict("Same", {"source": Literal["same"], "as": Count})  # `as` is a keyword
with_config(_STRICT)(Same)

# The discriminator chooses the one form to check, so that a message names the key that is wrong.
Source = Annotated[Stored | Mean | Same, Field(discriminator="source")]
FinalSource = Annotated[StoredFinal | Mean | Same, Field(discriminator="source")]


@with_config(_STRICT)
class ReplyEntry(TypedDict):
    """One node in one round."""

    node: Name
    status: Literal["ok", "failed", "missing", "late"]
    arrays: NotRequired[Names]
    received: NotRequired[Names]
    num_examples: NotRequired[Whole | Finite | Special]
    count_key: NotRequired[Name]
    metrics: NotRequired[dict[Name, Metric]]
    reason: NotRequired[Value]
    of_round: NotRequired[Whole | None]


@with_config(_STRICT)
class OthersArray(TypedDict):
    """An array beside the training of a round: the base64 of its numbers in their order in C, little-endian."""

    name: Name
    shape: Annotated[list[Count], Field(max_length=32)]
    dtype: Literal[OTHERS_DTYPES]  # type: ignore[valid-type]
    base64: Base64


def _check_numbers(array: OthersArray) -> OthersArray:
    """Refuse an array of which there are more numbers or fewer than its shape says."""
    # Base64 has four characters for three bytes, and "=" where bytes are missing to three.
    length = len(array["base64"]) // 4 * 3 - array["base64"].count("=")
    if length != np.dtype(array["dtype"]).itemsize * math.prod(array["shape"]):
        raise ValueError(f"it has not the numbers of its shape {array['shape']}")
    return array


@with_config(_STRICT)
class OthersEntry(TypedDict):
    """What messages beside the training of a round hold in plaintext."""

    type: Name
    way: Literal["sent", "reply"]
    nodes: Annotated[list[Name], Field(min_length=1)]
    metrics: dict[Name, Metric]
    arrays: NotRequired[Annotated[list[Annotated[OthersArray, AfterValidator(_check_numbers)]], Field(max_length=64)]]
    reason: NotRequired[Value]


@with_config(_STRICT)
class UnrecordedArray(TypedDict):
    """An array that is not in the record, as it was first seen."""

    name: Name
    shape: Annotated[list[Count], Field(max_length=64)]
    dtype: Name


@with_config(_STRICT)
class UnrecordedEntry(TypedDict):
    """Messages of which something is not in the record."""

    type: Name
    way: Literal["sent", "reply"]
    messages: Annotated[int, Field(ge=1, le=2**50)]
    arrays: Annotated[list[UnrecordedArray], Field(max_length=64)]
    metrics: Annotated[list[Name], Field(max_length=64)]


@with_config(_STRICT)
class RoundLine(TypedDict):
    """One round."""

    seq: Count
    round: Whole
    file: Annotated[str, StringConstraints(pattern=r"^rounds/[0-9]{6,12}\.safetensors$")]
    bytes: Count
    xxh3: Xxh3
    sha256: NotRequired[Sha256]
    config: dict[Name, Metric]
    common: Source | None
    replies: list[ReplyEntry]
    aggregate: Names | None
    others: NotRequired[list[OthersEntry]]
    started: Name
    ended: Name
    previous: Name
    check: Name


@with_config(_STRICT)
class ParameterEntry(TypedDict):
    """One array of the model."""

    name: Name
    shape: Annotated[list[Count], Field(max_length=64)]
    dtype: Name
    role: Literal["parameter", "buffer"]


@with_config(_STRICT)
class Kept(TypedDict):
    """What of the run is in the record."""

    every: Annotated[int, Field(ge=1, le=2**50)]
    clients: Annotated[Finite, Field(gt=0, le=1)] | list[Name]
    seed: Annotated[int, Field(ge=0, lt=2**63)]


@with_config(_STRICT)
class Resumed(TypedDict):
    """A time at which a stopped run was gone on with."""

    after: Whole
    at: Name
    versions: dict[Name, Name]


# Keys of a user's own may stand beside those that attacks compute with.
@with_config(ConfigDict(extra="allow", strict=True))
class Aggregation(TypedDict):
    """What an aggregate is."""

    kind: NotRequired[Name]
    weight: NotRequired[Name]
    by: NotRequired[Name]
    max_weight: NotRequired[Annotated[Finite, Field(gt=0)]]
    clipping: NotRequired[Annotated[Finite, Field(gt=0)]]
    steps: NotRequired[Annotated[int, Field(gt=0, lt=2**63)]]


@with_config(_STRICT)
class Manifest(TypedDict):
    """A run; where nothing was left out, ``kept`` is not there."""

    format: Name
    version: Count
    view: Literal["individual", "aggregate"]
    protocol: Protocol
    server: Server
    aggregation: Aggregation | None
    status: Literal["open", "complete", "cut short"]
    error: Value | None
    rounds: Count | None
    parameters: list[ParameterEntry] | None
    final: FinalSource | None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None
    facts: dict[Name, Metric]
    versions: dict[Name, Name]
    started: Name
    ended: Name | None
    resumed: NotRequired[list[Resumed]]
    id: RecordId
    origin: NotRequired[RecordId]
    head: Name | None
    signer: Base64 | None
    kept: NotRequired[Kept]
    others: NotRequired[list[OthersEntry]]
    unrecorded: NotRequired[Annotated[list[UnrecordedEntry], Field(max_length=64)]]


LINE_FORM: TypeAdapter[RoundLine] = TypeAdapter(RoundLine)
"""The form of a line of the index."""

MANIFEST_FORM: TypeAdapter[Manifest] = TypeAdapter(Manifest)
"""The form of the manifest."""
