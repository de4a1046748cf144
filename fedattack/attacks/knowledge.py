"""What an attacker is assumed to know besides the record: declared, kept in files of its own, printed in the report.

:mod:`fedattack.attacks.knowledge_files` writes and reads it.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StringConstraints

from fedattack.attacks.answers import Answers, AskedOutputs, ShadowLosses
from fedattack.attacks.coding import TableCoding
from fedattack.attacks.roles import ArrayRole
from fedattack.base.errors import short
from fedattack.base.stored import ANY_KIND, APART, OPTIONAL, AsJson, Axes, Finite, OptionalKey, keys_of
from fedattack.base.structured import fields
from fedattack.base.untrusted import Text
from fedattack.learning.importing import Asked, import_callable, trust_given
from fedattack.learning.stated import OWN, LocalSGD
from fedattack.record.schema import RecordId
from fedattack.record.views import ChangedEntries, FlatVector

if TYPE_CHECKING:
    from torch import nn


_Size = Annotated[int, Field(ge=1, le=10**6)]
_Whole = Annotated[int, Field(ge=-(2**53), le=2**53)]
_Plain = Text | bool | _Whole | Finite | None
# A description of a model, such as the configuration that its library makes it by.
_Long = Annotated[str, StringConstraints(max_length=100_000, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
_Argument = _Plain | Annotated[list[_Plain], Field(max_length=1000)] | _Long
_Setting = Text | bool | _Whole | Finite | keys_of(LocalSGD)


@dataclass(frozen=True)
class ModelKnowledge:
    """The clients' architecture and loss, without any trained parameter.

    Attributes
    ----------
    spec
        A model of :data:`fedattack.learning.MODELS` or an import path ``module:function``; one that a folder asks for
        and nobody trusts is an :class:`~fedattack.learning.importing.Asked`, as is such a loss.
    input_shape, classes, hidden, dropout
        As for :func:`fedattack.learning.build_model`.
    loss
        A loss of :data:`fedattack.learning.LOSSES` or an import path.
    arguments
        All keyword arguments of what an import path names: numbers, texts, and lists of them. ``None`` where nobody
        knows them; see :func:`fedattack.learning.build_model`.
    """

    spec: Annotated[str | Asked, AsJson(Text, str)]
    input_shape: Annotated[tuple[_Size, ...], Field(max_length=8)]
    classes: _Size
    hidden: _Size = 128
    loss: Annotated[str | Asked, AsJson(Text, str)] = "cross-entropy"
    dropout: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0
    # hash=False: a mapping has no hash, and ModelKnowledge is a key of caches.
    arguments: Annotated[Mapping[str, Any] | None, AsJson(dict[Text, _Argument]), OPTIONAL] = field(
        default=None, hash=False
    )

    @property
    def predicts(self) -> bool:
        """Whether there is a right output for each example, which a model that only tells its loss does not show."""
        return self.loss != OWN or self.classes > 1

    def build(self) -> "nn.Module":
        """Build the architecture; its parameters are arbitrary."""
        # Who reads knowledge alone does not wait for torch.
        from fedattack.learning.models import build_model

        return build_model(
            trust_given(self.spec),
            input_shape=self.input_shape,
            classes=self.classes,
            hidden=self.hidden,
            dropout=self.dropout,
            arguments=self.arguments,
        )


@dataclass(frozen=True, eq=False)
class Targets:
    """Labelled examples ``x`` (n, *shape), ``y`` (n,); target records in an order that says nothing of their owners.

    Labels are int64; for a regression the targets are float32. Where the model takes more than one array of numbers,
    ``x`` (n,) is of structured type; see :mod:`fedattack.base.structured`.
    """

    x: Annotated[NDArray[Any], Axes("examples", rest=True, nan=True, kinds=ANY_KIND)]
    y: Annotated[NDArray[Any], Axes("examples", rest=True, nan=True)]

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: NDArray[np.int64] | slice) -> "Targets":
        """Return some of the examples, in the order of ``rows``."""
        return Targets(self.x[rows], self.y[rows])

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the examples and labels, by which the truth and an attack's scores say what they speak of."""
        return _fingerprint(self.x, self.y)


@dataclass(frozen=True, eq=False)
class PartialRecords:
    """Clients' examples without one attribute.

    Attributes
    ----------
    x
        (n, d) float32: model inputs, zero in those that encode the attribute.
    y
        (n,): labels, int64, or float32 targets of a regression.
    clients
        (n,) str: whose example each is.
    columns
        Which inputs encode the attribute: one for a number, several for one-hot.
    domain
        (v, len(columns)) float32: how each possible value is encoded.
    names
        The values for people, in the order of ``domain``.
    prior
        (v,): shares of the values in the population; ``None`` if the attacker does not know them.
    span
        (2,): the least and the largest number, where the attribute is a number; the domain is then a grid between
        these. ``None`` where it is one of some values.
    """

    x: Annotated[NDArray[np.float32], Axes("examples", "inputs")]
    y: Annotated[NDArray[Any], Axes("examples")]
    clients: Annotated[NDArray[np.str_], Axes("examples")]
    columns: Annotated[tuple[int, ...], Axes("columns")]
    domain: Annotated[NDArray[np.float32], Axes("values", "columns")]
    names: Annotated[tuple[str, ...], Axes("values")]
    prior: Annotated[NDArray[np.float64] | None, Axes("values")] = None
    span: Annotated[NDArray[np.float64] | None, Axes("ends")] = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the examples, labels and domain, by which the truth and scores say what they speak of."""
        return _fingerprint(self.x, self.y, self.domain)

    def complete(self, value: int, rows: NDArray[np.int64] | slice = slice(None)) -> NDArray[np.float32]:
        """Return examples (n, d), or those of ``rows``, with the attribute at ``domain[value]`` throughout."""
        x = self.x[rows].copy()
        x[:, list(self.columns)] = self.domain[value]
        return x


@dataclass(frozen=True, eq=False)
class AuxiliaryAttribute:
    """What the auxiliary records' owners have of an attribute that is no input.

    Attributes
    ----------
    values
        The values for people.
    codes
        (n,) int64: each auxiliary record's value, an index into ``values``.
    """

    values: Annotated[tuple[str, ...], Axes("values", nan=True, kinds="biufU")]
    codes: Annotated[NDArray[np.int64], Axes("examples")]

    def fault(self) -> str:
        """Say what does not fit together of an attribute that was read, or nothing."""
        if len(self.values) < 2:
            return f"expected at least two values, got {len(self.values)}"
        if len(self.codes) and not 0 <= self.codes.min() <= self.codes.max() < len(self.values):
            return f"expected indices 0 … {len(self.values) - 1}, got others"
        return ""


Defend = Callable[..., Mapping[str, NDArray[np.float32]]]
"""What clients do to an update before they send it: (update, rng, model, x, y) → what is sent in its place. The model
is at the received parameters, x and y are the examples that the client trains on."""


BUILT_IN = "fedattack"
"""Names fedattack's own defences, which their settings choose among."""

PATHS = ("recup-zoo",)
"""Settings of defences that are paths."""

# Attacks import no defence.
_BUILT_IN_AT = "fedattack.defences.known:known_defence"


def _without_asked(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if not isinstance(value, Asked)}


@dataclass(frozen=True)
class KnownDefence:
    """The defence that this attacker knows clients to have; it need not be the one that they have.

    Attributes
    ----------
    spec
        :data:`BUILT_IN` for fedattack's own defences, or an import path ``module:function``: what makes, from the
        settings, a function of the kind :data:`Defend`.
    settings
        What the defence is set to.
    files
        Settings that are paths, relative to the folder of the knowledge.
    """

    spec: Annotated[str | Asked, AsJson(Text, str)]
    settings: Annotated[Mapping[str, Any], AsJson(dict[Text, _Setting], _without_asked)]
    files: Mapping[Text, Text] = field(default_factory=dict)

    def build(self) -> Defend:
        """Make the defence.

        Raises
        ------
        TrustError
            If a folder asks for it, or for a file outside of it, and nobody trusts the folder.
        ModelError
            If the import path does not lead to a function.
        FedAttackError
            Whatever the defence refuses.
        """
        for value in self.settings.values():
            if isinstance(value, Asked):
                raise value.refuse()
        spec = self.spec
        # Code that a folder names is refused before it is imported.
        if spec == BUILT_IN:
            spec = _BUILT_IN_AT
        made: Defend = import_callable(spec, what="defence", known=(BUILT_IN,))(self.settings)
        return made

    @property
    def paths(self) -> list[str]:
        """The files that it reads."""
        return [str(self.settings[key]) for key in PATHS if self.settings.get(key)]


def _fingerprint(x: NDArray[Any], y: NDArray[Any], *others: NDArray[Any]) -> str:
    # Shape and type first: other arrays may have the same bytes.
    digest = hashlib.sha256(f"{x.shape}{y.dtype}".encode())
    for array in (x, y, *others):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Sends:
    """What replies hold, where they are not plainly the local models.

    Attributes
    ----------
    arrays
        The record's names of those arrays that are the model's; empty for all.
    factors
        By node, by what a reply multiplies how far training moved the model: a reply is that, and no model. ``None``
        where replies are models.
    sparse
        How replies of indices and values are put back into the model; ``None`` for other replies.
    flat
        Which arrays of the model stand in the one vector that is sent; ``None`` for other replies.
    protocol
        ``fedmd`` where replies are predictions on public records though the record was not written as one of these;
        else empty.
    """

    arrays: Annotated[tuple[Text, ...], Field(max_length=10_000)] = ()
    factors: Annotated[Mapping[Text, Finite] | None, OPTIONAL] = None
    sparse: Annotated[ChangedEntries | None, OPTIONAL] = None
    flat: Annotated[FlatVector | None, OPTIONAL] = None
    protocol: Annotated[Literal["", "fedmd"], OPTIONAL] = ""

    def fault(self) -> str:
        """Say which factor that was read is none, or nothing."""
        for node, factor in (self.factors or {}).items():
            if not factor:
                return f"the factor of node {short(node, 60)} is 0; expected another number"
        return ""


@dataclass(frozen=True, eq=False)
class Knowledge:
    """Everything that an attack may use besides the record.

    Attributes
    ----------
    model, targets
        ``None`` where this attacker knows none; an attack that needs it refuses by name.
    prior
        What the attacker believes before it looks: ``uniform`` over clients, or ``examples``, in proportion to the
        example counts that clients send in plaintext.
    auxiliary
        Records of about the clients' distribution that no client holds.
    training
        How the clients train.
    property
        What is asked of each client: a name of :data:`fedattack.threats.property.properties.PROPERTIES` or an import
        path ``module:function``.
    positive_share
        The share of clients that the attacker expects to have the property.
    public
        (n, *shape): in FedMD the public records, in the order in which clients send their predictions for them. The
        model is then the architecture of the attacker's own students: clients' architectures are not known to it.
    partial
        Records of clients without one attribute, which the attacker wants to know.
    attributes
        By name, what the owners of the auxiliary records have of attributes that are no inputs.
    defence
        What clients do to their updates, where this attacker knows of it.
    limits
        Least and largest model input of each channel of images, as the app's own scaling gives them.
    coding
        Which model inputs encode each column of a table.
    frozen
        By the model's names, weights that no client changes and that the record does not hold.
    nodes
        Which client hides behind each node id, as far as the server knows its customers; a node that is not named
        here is a client of that name.
    canaries
        Names of clients that an auditor put among the others to measure ε, and that nobody would meet otherwise:
        attacks do not see their replies.
    answers
        In the place of a model that this attacker could build, what the clients' own app says of the targets.
    shadow_losses
        What shadow models lose that the clients' own app trained, where this attacker cannot imitate its training.
    sends
        How replies are read, where they are not plainly the local models.
    roles
        What arrays are to the examples, as the gradients of a few showed it that the clients' own app gave.
    outputs
        What enters and leaves the last layer of clients' models of the auxiliary examples, as that app's gradients
        showed it.
    record
        The id of the record that the server wrote; empty where nobody says of which record this is knowledge.
    """

    model: ModelKnowledge | None = None
    targets: Annotated[Targets | None, APART] = None
    prior: Annotated[str, AsJson(Literal["uniform", "examples"])] = "uniform"
    auxiliary: Annotated[Targets | None, APART] = None
    training: Annotated[LocalSGD | None, OPTIONAL] = None
    property: Annotated[str | Asked | None, AsJson(Text, str), OPTIONAL] = None
    positive_share: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False), OptionalKey("property")] = 0.1
    public: Annotated[NDArray[np.float32] | None, APART] = None
    partial: Annotated[PartialRecords | None, APART] = None
    nodes: Annotated[Mapping[str, str], APART] = field(default_factory=dict)
    attributes: Annotated[Mapping[str, AuxiliaryAttribute] | None, APART] = None
    defence: Annotated[KnownDefence | None, OPTIONAL] = None
    limits: Annotated[tuple[tuple[Finite, Finite], ...] | None, OPTIONAL] = None
    coding: Annotated[TableCoding | None, OPTIONAL] = None
    frozen: Annotated[Mapping[str, NDArray[Any]] | None, APART] = None
    canaries: Annotated[tuple[Text, ...], OPTIONAL] = ()
    answers: Annotated[Answers | None, APART] = None
    shadow_losses: Annotated[ShadowLosses | None, APART] = None
    sends: Annotated[Sends | None, OPTIONAL] = None
    roles: Annotated[tuple[ArrayRole, ...], Field(max_length=10_000), OPTIONAL] = ()
    outputs: Annotated[AskedOutputs | None, APART] = None
    record: Annotated[str, AsJson(RecordId), OPTIONAL] = ""

    def asked(self) -> str:
        """Return the fingerprint of the examples that are asked about; empty where none are."""
        if self.targets is not None:
            return self.targets.fingerprint
        if self.partial is not None:
            return self.partial.fingerprint
        return ""

    def asks(self) -> list[Asked]:
        """List what a folder asks for and nobody has trusted."""
        named: list[object] = [self.property]
        if self.model is not None:
            named += [self.model.spec, self.model.loss]
        if self.defence is not None:
            named += [self.defence.spec, *self.defence.settings.values()]
        return [asked for asked in named if isinstance(asked, Asked)]

    def structure(self) -> str:
        """Return what the examples are made of, such as ids and a mask; empty where each is one array."""
        for examples in (self.targets, self.auxiliary):
            if examples is not None and fields(examples.x):
                return short(", ".join(fields(examples.x)), 80)
        return ""

    def client_of(self, node: str) -> str:
        """Return the name of the client that hides behind a node."""
        return self.nodes.get(node, node)

    def has(self, need: str) -> bool:
        """Whether a piece of knowledge is there; losses and layers come from a model, or from the clients' own app."""
        if need == "losses":
            return self.model is not None or self.answers is not None
        if need == "layers":
            return self.model is not None or bool(self.roles)
        # Knowledge has a field for each need, but for those that two fields meet.
        return getattr(self, need) is not None


PROPERTY_NAMES = ("membership", "inversion", "ascent")
"""What PROLIN can ask of clients; :data:`fedattack.threats.property.properties.PROPERTIES` has the questions."""

_HOLDING = re.compile(r"class-([0-9]{1,6})-at-([0-9]{1,3})")


def class_asked(name: str) -> tuple[int, float] | None:
    """Read a property ``class-LABEL-at-PERCENT``: of which class clients hold examples, and their share of a holder's.

    Returns
    -------
    tuple of int and float, or None
        The label and the share in 0 … 1; ``None`` if it is another property.
    """
    match = _HOLDING.fullmatch(name)
    if match is None or not 1 <= int(match[2]) <= 100:
        return None
    return int(match[1]), int(match[2]) / 100
