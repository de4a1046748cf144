"""What an attacker is assumed to know besides the record: declared, kept in files of its own, printed in the report."""

import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Required, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter, with_config
from torch import nn
from typing_extensions import TypedDict

from fedattack.attacks.answers import Answers, ShadowLosses, read_answers, read_shadow_losses
from fedattack.attacks.frozen import read_frozen
from fedattack.base.errors import DataError, short
from fedattack.base.files import make_private, write_npz, write_sealed
from fedattack.base.structured import fault, fields, finite, pack
from fedattack.base.untrusted import Text, check_folder, read_npz, read_sealed, validate, verify_files
from fedattack.learning import LOSSES, MODELS, LocalSGD, build_model
from fedattack.learning.importing import Asked, asked_unless, import_callable, trust_given
from fedattack.learning.losses import OWN
from fedattack.record.nodes import note_node, read_nodes

KNOWLEDGE = "knowledge.json"
TARGETS = "targets.npz"
AUXILIARY = "auxiliary.npz"
PUBLIC = "public.npz"
PARTIAL = "partial.npz"
ATTRIBUTES = "attributes.npz"
FROZEN = "frozen.npz"
ANSWERS = "answers.npz"
SHADOWS = "shadows.npz"


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

    spec: str | Asked
    input_shape: tuple[int, ...]
    classes: int
    hidden: int = 128
    loss: str | Asked = "cross-entropy"
    dropout: float = 0.0
    arguments: Mapping[str, Any] | None = field(default=None, hash=False)

    @property
    def predicts(self) -> bool:
        """Whether there is a right output for each example, which a model that only tells its loss does not show."""
        return self.loss != OWN or self.classes > 1

    def build(self) -> nn.Module:
        """Build the architecture; its parameters are arbitrary."""
        return build_model(
            trust_given(self.spec),
            input_shape=self.input_shape,
            classes=self.classes,
            hidden=self.hidden,
            dropout=self.dropout,
            arguments=self.arguments,
        )


@dataclass(frozen=True)
class Targets:
    """Labelled examples ``x`` (n, *shape), ``y`` (n,); target records in an order that says nothing of their owners.

    Labels are int64; for a regression the targets are float32. Where the model takes more than one array of numbers,
    ``x`` (n,) is of structured type; see :mod:`fedattack.base.structured`.
    """

    x: NDArray[Any]
    y: NDArray[Any]

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: NDArray[np.int64] | slice) -> "Targets":
        """Return some of the examples, in the order of ``rows``."""
        return Targets(self.x[rows], self.y[rows])

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the examples and labels, by which the truth and an attack's scores say what they speak of."""
        return _fingerprint(self.x, self.y)


@dataclass(frozen=True)
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
    """

    x: NDArray[np.float32]
    y: NDArray[Any]
    clients: NDArray[np.str_]
    columns: tuple[int, ...]
    domain: NDArray[np.float32]
    names: tuple[str, ...]
    prior: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the examples, labels and domain, by which the truth and scores say what they speak of."""
        return _fingerprint(self.x, self.y, self.domain)

    def completed(self, value: int, rows: NDArray[np.int64] | slice = slice(None)) -> NDArray[np.float32]:
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

    values: tuple[str, ...]
    codes: NDArray[np.int64]


Defend = Callable[..., Mapping[str, NDArray[np.float32]]]
"""What clients do to an update before they send it: (update, rng, model, x, y) → what is sent in its place. The model
is at the received parameters, x and y are the examples that the client trains on."""


BUILT_IN = "fedattack"
"""Names fedattack's own defences, which their settings choose among."""

# Attacks import no defence.
_BUILT_IN_AT = "fedattack.defences.known:known_defence"


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

    spec: str | Asked
    settings: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)

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
        if spec == BUILT_IN:
            spec = _BUILT_IN_AT
        made: Defend = import_callable(spec, what="defence", known=(BUILT_IN,))(self.settings)
        return made

    @property
    def paths(self) -> list[str]:
        """The files that it reads."""
        return [str(self.settings[key]) for key in _PATHS if self.settings.get(key)]


def _fingerprint(x: NDArray[Any], y: NDArray[Any], *others: NDArray[Any]) -> str:
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
    """

    arrays: tuple[str, ...] = ()
    factors: Mapping[str, float] | None = None


@dataclass(frozen=True)
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
    """

    model: ModelKnowledge | None = None
    targets: Targets | None = None
    prior: str = "uniform"
    auxiliary: Targets | None = None
    training: LocalSGD | None = None
    property: str | Asked | None = None
    positive_share: float = 0.1
    public: NDArray[np.float32] | None = None
    partial: PartialRecords | None = None
    nodes: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, AuxiliaryAttribute] | None = None
    defence: KnownDefence | None = None
    limits: tuple[tuple[float, float], ...] | None = None
    frozen: Mapping[str, NDArray[Any]] | None = None
    canaries: tuple[str, ...] = ()
    answers: Answers | None = None
    shadow_losses: ShadowLosses | None = None
    sends: Sends | None = None

    def asked(self) -> str:
        """Return the fingerprint of the examples that are asked about; empty where none are."""
        if self.targets is not None:
            return self.targets.fingerprint
        if self.partial is not None:
            return self.partial.fingerprint
        return ""

    def asks(self) -> list[Asked]:
        """List what a folder asks for and nobody has trusted."""
        held: list[object] = [self.property]
        if self.model is not None:
            held += [self.model.spec, self.model.loss]
        if self.defence is not None:
            held += [self.defence.spec, *self.defence.settings.values()]
        return [asked for asked in held if isinstance(asked, Asked)]

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
        """Whether a piece of knowledge is there; losses come from a model, or from the clients' own app."""
        if need == "losses":
            return self.model is not None or self.answers is not None
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
    found = _HOLDING.fullmatch(name)
    if found is None or not 1 <= int(found[2]) <= 100:
        return None
    return int(found[1]), int(found[2]) / 100


_HINT = "expected what `fedattack simulate` or fedattack.attacks.write_knowledge leaves there"
_STRICT = ConfigDict(extra="forbid", strict=True)

_Count = Annotated[int, Field(ge=1, le=10**6)]
_Rate = Annotated[float, Field(gt=0, le=10**6, allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


_Whole = Annotated[int, Field(ge=-(2**53), le=2**53)]
_Number = Annotated[float, Field(allow_inf_nan=False)]
_Plain = Text | bool | _Whole | _Number | None
# A description of a model, such as the configuration that its library makes it by.
_Long = Annotated[str, StringConstraints(max_length=100_000, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
_Argument = _Plain | Annotated[list[_Plain], Field(max_length=1000)] | _Long


@with_config(_STRICT)
class _ModelEntry(TypedDict):
    spec: Text
    input_shape: Annotated[list[_Count], Field(max_length=8)]
    classes: _Count
    hidden: _Count
    loss: Text
    dropout: _Share
    arguments: NotRequired[dict[Text, _Argument]]


@with_config(_STRICT)
class _TrainingEntry(TypedDict):
    epochs: Annotated[int, Field(ge=1, le=10_000)]
    batch_size: Annotated[int, Field(ge=0, le=10**9)]
    lr: _Rate
    momentum: _Share
    weight_decay: Annotated[float, Field(ge=0, le=10**6, allow_inf_nan=False)]
    optimizer: NotRequired[Literal["SGD", "Adam", "AdamW"]]


_Setting = Text | bool | _Whole | _Number | _TrainingEntry


@with_config(_STRICT)
class _DefenceEntry(TypedDict):
    spec: Text
    settings: dict[Text, _Setting]
    files: dict[Text, Text]


# The settings of fedattack's own defences, with the keys of the run config; only the first kind changes the training.
_PrivateTraining = TypedDict(
    "_PrivateTraining",
    {"defence": Literal["dp-sgd"], "noise": _Number, "dp-clip": _Rate, "loss": Text, "training": _TrainingEntry},
)
_OfUpdates = TypedDict(
    "_OfUpdates",
    {
        "defence": Required[Text],
        "defence-strength": _Number,
        "defence-clip": _Number,
        "dp-delta": _Number,
        "soteria-layer": Text,
        "recup-zoo": Text,
        "recup-attributes": Text,
        "recup-weights": Text,
        "recup-values": Text,
        "recup-variant": Text,
        "recup-iterations": _Count,
        "recup-models": _Count,
    },
    total=False,
)
with_config(_STRICT)(_PrivateTraining)
with_config(_STRICT)(_OfUpdates)
_PRIVATE_TRAINING: TypeAdapter[Any] = TypeAdapter(_PrivateTraining)
_OF_UPDATES: TypeAdapter[Any] = TypeAdapter(_OfUpdates)


@with_config(_STRICT)
class _SendsEntry(TypedDict):
    arrays: Annotated[list[Text], Field(max_length=10_000)]
    factors: NotRequired[dict[Text, _Number]]


@with_config(_STRICT)
class _KnowledgeEntry(TypedDict):
    model: _ModelEntry | None
    prior: Literal["uniform", "examples"]
    training: NotRequired[_TrainingEntry]
    property: NotRequired[Text]
    positive_share: NotRequired[Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]]
    defence: NotRequired[_DefenceEntry]
    limits: NotRequired[list[Annotated[list[_Number], Field(min_length=2, max_length=2)]]]
    canaries: NotRequired[list[Text]]
    sends: NotRequired[_SendsEntry]
    files: NotRequired[dict[Text, Text]]


_ENTRY: TypeAdapter[_KnowledgeEntry] = TypeAdapter(_KnowledgeEntry)

Context = TypeVar("Context")
Content = TypeVar("Content")


def write_knowledge(folder: Path, knowledge: Knowledge) -> None:
    """Write ``knowledge`` to ``folder``: a JSON file, examples as ``.npz`` beside it, and a file for each node."""
    make_private(folder)
    files = {}
    for name, arrays in _arrays_by_file(knowledge).items():
        files[name] = write_npz(folder / name, arrays)
    for node, client in knowledge.nodes.items():
        note_node(folder, node=node, client=client)
    entry: dict[str, Any] = {"model": _entry_of_model(knowledge.model), "prior": knowledge.prior}
    if knowledge.training is not None:
        entry["training"] = knowledge.training.keywords()
    if knowledge.property is not None:
        entry["property"] = str(knowledge.property)
        entry["positive_share"] = knowledge.positive_share
    if knowledge.defence is not None:
        entry["defence"] = _entry_of_defence(knowledge.defence)
    if knowledge.limits is not None:
        entry["limits"] = [list(limits) for limits in knowledge.limits]
    if knowledge.canaries:
        entry["canaries"] = list(knowledge.canaries)
    if knowledge.sends is not None:
        entry["sends"] = _entry_of_sends(knowledge.sends)
    entry["files"] = files
    write_sealed(folder / KNOWLEDGE, entry)


def _arrays_by_file(knowledge: Knowledge) -> dict[str, dict[str, NDArray[Any]]]:
    files: dict[str, dict[str, NDArray[Any]]] = {}
    for name, records in ((TARGETS, knowledge.targets), (AUXILIARY, knowledge.auxiliary)):
        if records is not None:
            files[name] = {"x": records.x, "y": records.y}
    if knowledge.public is not None:
        files[PUBLIC] = {"x": knowledge.public}
    if knowledge.partial is not None:
        files[PARTIAL] = _arrays_of_partial(knowledge.partial)
    if knowledge.frozen is not None:
        files[FROZEN] = dict(knowledge.frozen)
    if knowledge.answers is not None:
        files[ANSWERS] = dict(vars(knowledge.answers))
    if knowledge.shadow_losses is not None:
        files[SHADOWS] = dict(vars(knowledge.shadow_losses))
    if knowledge.attributes is not None:
        files[ATTRIBUTES] = _arrays_of_attributes(knowledge.attributes)
    return files


def _entry_of_sends(sends: Sends) -> dict[str, Any]:
    entry: dict[str, Any] = {"arrays": [*sends.arrays]}
    if sends.factors is not None:
        entry["factors"] = dict(sends.factors)
    return entry


def _entry_of_model(model: ModelKnowledge | None) -> dict[str, Any] | None:
    if model is None:
        return None
    texts = {"spec": str(model.spec), "loss": str(model.loss)}
    entry = vars(model) | texts | {"input_shape": [*model.input_shape]}
    if model.arguments is None:
        del entry["arguments"]
    return entry


def read_knowledge(folder: Path, *, trusted: Collection[str] = ()) -> Knowledge:
    """Read what :func:`write_knowledge` wrote.

    Parameters
    ----------
    folder
        The folder, which is data: what it asks to import is not imported, and where it points outside is not read.
    trusted
        Import paths and paths that the caller trusts; all others are an
        :class:`~fedattack.learning.importing.Asked` that whoever needs it refuses.

    Raises
    ------
    DataError
        If a file is missing, damaged, or does not fit the model: targets of another shape, labels out of range; if a
        link leaves the folder.
    """
    check_folder(folder, DataError)
    where = folder / KNOWLEDGE
    entry = read_sealed(where, _ENTRY, DataError, _HINT)
    model = _read_model(entry["model"], where, trusted)
    verify_files(folder, entry.get("files", {}), DataError, where)
    targets = _read_if_there(read_targets, folder / TARGETS, model)
    auxiliary = _read_if_there(read_targets, folder / AUXILIARY, model)
    public = _read_if_there(read_public, folder / PUBLIC, model)
    partial = _read_if_there(read_partial, folder / PARTIAL, model)
    attributes = _read_if_there(read_attributes, folder / ATTRIBUTES, auxiliary)
    return Knowledge(
        model=model,
        targets=targets,
        prior=entry["prior"],
        auxiliary=auxiliary,
        training=_read_training(entry.get("training")),
        property=_read_property(entry.get("property"), where, trusted),
        positive_share=entry.get("positive_share", Knowledge.positive_share),
        public=public,
        partial=partial,
        nodes=read_nodes(folder, DataError, _HINT),
        attributes=attributes,
        defence=_read_defence(entry.get("defence"), folder, trusted),
        limits=_read_limits(entry.get("limits"), where, model),
        frozen=_read_if_there(read_frozen, folder / FROZEN, None),
        canaries=tuple(entry.get("canaries", ())),
        answers=_read_if_there(read_answers, folder / ANSWERS, targets),
        shadow_losses=_read_if_there(read_shadow_losses, folder / SHADOWS, targets),
        sends=_read_sends(entry.get("sends"), where),
    )


def _read_training(entry: _TrainingEntry | None) -> LocalSGD | None:
    if entry is None:
        return None
    return LocalSGD(**entry)


def _read_property(name: str | None, where: Path, trusted: Collection[str]) -> str | Asked | None:
    if name is None:
        return None
    known = [*PROPERTY_NAMES]
    if class_asked(name):
        known.append(name)
    return asked_unless(name, known=known, trusted=trusted, what="property", where=str(where))


def _read_sends(entry: _SendsEntry | None, where: Path) -> Sends | None:
    if entry is None:
        return None
    factors = entry.get("factors")
    for node, factor in (factors or {}).items():
        if not factor:
            raise DataError(f"{where}: sends: the factor of node {short(node, 60)} is 0; expected another number")
    return Sends(tuple(entry["arrays"]), factors)


def _read_limits(
    limits: list[list[float]] | None, where: Path, model: ModelKnowledge | None
) -> tuple[tuple[float, float], ...] | None:
    if limits is None:
        return None
    channels = len(limits)
    if model is not None:
        channels = (model.input_shape or (0,))[0]
    if not limits or len(limits) != channels or any(low > high for low, high in limits):
        raise DataError(
            f"{where}: limits are {short(str(limits))}; expected the least and the largest input of each of {channels} "
            "channels"
        )
    return tuple((low, high) for low, high in limits)


def _read_if_there(read: Callable[[Path, Context], Content], path: Path, context: Context) -> Content | None:
    if not path.exists():
        return None
    return read(path, context)


def _read_model(value: _ModelEntry | None, where: Path, trusted: Collection[str]) -> ModelKnowledge | None:
    if value is None:
        return None
    return ModelKnowledge(
        spec=_read_name("model", value["spec"], MODELS, trusted, where),
        input_shape=tuple(value["input_shape"]),
        classes=value["classes"],
        hidden=value["hidden"],
        loss=_read_name("loss", value["loss"], LOSSES, trusted, where),
        dropout=value["dropout"],
        arguments=value.get("arguments"),
    )


def _read_name(what: str, name: str, known: Collection[str], trusted: Collection[str], where: Path) -> str | Asked:
    """Read what is built in or an import path."""
    if name not in known and ":" not in name:
        raise DataError(
            f"{where}: {what} is {short(name, 80)!r}; expected one of {', '.join(known)} or module:function"
        )
    return asked_unless(name, known=known, trusted=trusted, what=what, where=str(where))


def _read_defence(value: _DefenceEntry | None, folder: Path, trusted: Collection[str]) -> KnownDefence | None:
    if value is None:
        return None
    where = folder / KNOWLEDGE
    spec = value["spec"]
    run = _run_folder(folder).resolve()
    settings: dict[str, Any] = dict(value["settings"])
    if spec == BUILT_IN:
        settings = _read_built_in_settings(settings, where, trusted)
    # What is a path among the settings is one of the files, or leads outside.
    for key in _PATHS:
        if settings.get(key):
            settings[key] = asked_unless(str(settings[key]), known=(), trusted=trusted, what=key, where=str(where))
    for key, relative in value["files"].items():
        path = (folder / relative).resolve()
        if path.is_relative_to(run) or str(path) in trusted:
            settings[key] = str(path)
        else:
            settings[key] = Asked(key, str(path), str(where))
    asked = asked_unless(spec, known=(BUILT_IN,), trusted=trusted, what="defence", where=str(where))
    return KnownDefence(asked, settings)


def _read_built_in_settings(settings: dict[str, Any], where: Path, trusted: Collection[str]) -> dict[str, Any]:
    form = _OF_UPDATES
    if settings.get("defence") == "dp-sgd":
        form = _PRIVATE_TRAINING
    checked = dict(validate(form, settings, f"{where}: the defence", DataError, _HINT))
    if "loss" in checked:
        checked["loss"] = _read_name("loss", checked["loss"], LOSSES, trusted, where)
    return checked


# Settings of defences that are paths.
_PATHS = ("recup-zoo",)


def _run_folder(folder: Path) -> Path:
    """Find the run folder of a folder of knowledge, ``DIR/knowledge`` or ``DIR/knowledge/seed-0``."""
    absolute = folder.absolute()
    for knowledge in (absolute, absolute.parent):
        if knowledge.name == "knowledge":
            return knowledge.parent
    return absolute


def _entry_of_defence(defence: KnownDefence) -> dict[str, Any]:
    settings = {key: value for key, value in defence.settings.items() if not isinstance(value, Asked)}
    return {"spec": str(defence.spec), "settings": settings, "files": dict(defence.files)}


def _arrays_of_attributes(attributes: Mapping[str, AuxiliaryAttribute]) -> dict[str, NDArray[Any]]:
    """Give two arrays for each attribute, of its values and of the examples' codes."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, attribute in attributes.items():
        arrays |= {f"values.{name}": np.array(attribute.values), f"codes.{name}": attribute.codes}
    return arrays


def read_attributes(path: Path, auxiliary: Targets | None) -> dict[str, AuxiliaryAttribute]:
    """Read attributes of the auxiliary records from an ``.npz`` with ``values.NAME`` and ``codes.NAME`` for each.

    Raises
    ------
    DataError
        If the file cannot be read without pickle, there is no attribute, or codes do not fit values or examples.
    """
    hint = "expected values.NAME, its values, and codes.NAME, an index into them for each auxiliary record"
    arrays = read_npz(path, DataError, hint)
    names = [key.removeprefix("codes.") for key in arrays if key.startswith("codes.")]
    if not names:
        raise DataError(f"{path} has no attribute; {hint}")
    count = 0
    if auxiliary is not None:
        count = len(auxiliary)
    attributes = {}
    for name in names:
        codes, values = arrays[f"codes.{name}"], arrays.get(f"values.{name}", np.zeros(0))
        if codes.shape != (count,) or codes.dtype.kind not in "iu" or values.ndim != 1 or len(values) < 2:
            raise DataError(
                f"{path}: {name}: got {codes.dtype} {codes.shape} for {count} auxiliary records, and {values.size} "
                f"values of at least two; {hint}"
            )
        if count and not 0 <= codes.min() <= codes.max() < len(values):
            raise DataError(f"{path}: {name}: expected indices 0 … {len(values) - 1}, got others; {hint}")
        attributes[name] = AuxiliaryAttribute(tuple(map(str, values.tolist())), codes.astype(np.int64))
    return attributes


def read_targets(path: Path, model: ModelKnowledge | None = None) -> Targets:
    """Read target records from an ``.npz`` with ``x`` (n, *shape) and ``y`` (n,).

    Where a model takes several tensors, each is an array ``x.PLACE``, such as ``x.input_ids``, or ``x`` is of
    structured type; see :mod:`fedattack.base.structured`.

    Raises
    ------
    DataError
        If the file cannot be read without pickle, arrays are missing or not finite, or they do not fit the model.
    """
    x, y = _examples_in(path)
    if x.ndim < 1 or y.ndim < 1 or len(x) != len(y) or not y.size:
        raise DataError(f"{path}: expected as many labels as examples, at least one, got x {x.shape} and y {y.shape}")
    if y.dtype.kind not in "iuf" or not np.isfinite(y).all():
        raise DataError(f"{path}: y holds values that are not finite numbers (dtype {y.dtype})")
    _check_records(path, x, model, "target")
    if model is not None and model.loss == "cross-entropy":
        _check_classes(path, y, model.classes)
    if not fields(x):
        x = np.ascontiguousarray(x, dtype=np.float32)
    return Targets(x, y=_labels(y))


def _examples_in(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    hint = "target records go into x, their labels into y; what a model takes by name into x.NAME"
    arrays = read_npz(path, DataError, hint)
    parts = {name.removeprefix("x."): array for name, array in arrays.items() if name.startswith("x.")}
    if not parts:
        arrays = read_npz(path, DataError, hint, "x", "y")
        return arrays["x"], arrays["y"]
    try:
        return pack(parts), read_npz(path, DataError, hint, "y")["y"]
    except (TypeError, ValueError) as cause:
        raise DataError(f"{path}: {short(str(cause), 100)}; {hint}") from None


def read_public(path: Path, model: ModelKnowledge | None = None) -> NDArray[np.float32]:
    """Read FedMD's public records from an ``.npz`` with ``x`` (n, *shape), in the order of the clients' predictions.

    Raises
    ------
    DataError
        If the file cannot be read without pickle, examples are missing or not finite, or they do not fit the model.
    """
    x = read_npz(path, DataError, "public records go into x", "x")["x"]
    if x.ndim < 2 or not len(x):
        raise DataError(f"{path}: expected at least one public record, with one feature or more, got x {x.shape}")
    _check_records(path, x, model, "public")
    return np.ascontiguousarray(x, dtype=np.float32)


def _check_records(path: Path, x: NDArray[Any], model: ModelKnowledge | None, what: str) -> None:
    if wrong := fault(x):
        raise DataError(f"{path}: x holds {short(wrong, 200)}")
    if not finite(x).all():
        raise DataError(f"{path}: x holds values that are not finite numbers (dtype {short(str(x.dtype), 100)})")
    if model is not None and x.shape[1:] != model.input_shape:
        raise DataError(f"{path}: {what} records have shape {x.shape[1:]}, but the model takes {model.input_shape}")


def _check_classes(path: Path, y: NDArray[Any], classes: int) -> None:
    if not np.issubdtype(y.dtype, np.integer) or y.min() < 0 or y.max() >= classes:
        raise DataError(f"{path}: expected integer labels in 0 … {classes - 1}, got {y.dtype} in {y.min()} … {y.max()}")


def _labels(y: NDArray[Any]) -> NDArray[Any]:
    if np.issubdtype(y.dtype, np.integer):
        return y.astype(np.int64)
    return y


def _arrays_of_partial(partial: PartialRecords) -> dict[str, NDArray[Any]]:
    arrays = vars(partial) | {"columns": np.array(partial.columns), "names": np.array(partial.names, dtype=np.str_)}
    return {name: array for name, array in arrays.items() if array is not None}


def read_partial(path: Path, model: ModelKnowledge | None = None) -> PartialRecords:
    """Read clients' examples without one attribute from an ``.npz``.

    Its arrays are those of :class:`PartialRecords`; ``names`` and ``prior`` may be left out.

    Raises
    ------
    DataError
        If the file cannot be read without pickle, or arrays are missing or do not fit each other or the model.
    """
    records = read_targets(path, model)
    hint = "expected x, y, clients, columns and domain, as PartialRecords describes them"
    arrays = read_npz(path, DataError, hint)
    for name in ("clients", "columns", "domain"):
        if name not in arrays:
            raise DataError(f"{path} lacks the array {name}; {hint}")
    x, clients, columns, domain = records.x, arrays["clients"], arrays["columns"], arrays["domain"]
    if x.ndim != 2 or clients.shape != (len(x),):
        raise DataError(f"{path}: expected examples (n, d) with a client for each; got {x.shape} and {clients.shape}")
    _check_columns(path, columns, x.shape[1])
    _check_domain(path, domain, len(columns))
    if x[:, columns].any():
        raise DataError(
            f"{path}: x is not zero in the columns {columns.tolist()}, which are to be inferred; blank them"
        )
    names = arrays.get("names", np.array([_name_of_value(value) for value in domain]))
    prior = arrays.get("prior")
    if names.shape != (len(domain),) or (prior is not None and prior.shape != (len(domain),)):
        raise DataError(f"{path}: expected one name and one share for each of {len(domain)} values")
    if prior is not None and not (np.all(prior >= 0) and abs(prior.sum() - 1) < 1e-6):
        raise DataError(f"{path}: prior is {prior.tolist()}; expected shares that sum to one")
    y = records.y
    if y.dtype != np.int64:
        y = y.astype(np.float32)
    return PartialRecords(
        x=x,
        y=y,
        clients=clients.astype(np.str_),
        columns=tuple(map(int, columns)),
        domain=domain.astype(np.float32),
        names=tuple(map(str, names)),
        prior=prior,
    )


def _check_columns(path: Path, columns: NDArray[Any], inputs: int) -> None:
    positions = columns.dtype.kind in "iu" and columns.ndim == 1 and len(columns)
    if not positions or columns.min() < 0 or columns.max() >= inputs:
        raise DataError(f"{path}: columns are {columns.tolist()}; expected inputs among 0 … {inputs - 1}")


def _check_domain(path: Path, domain: NDArray[Any], columns: int) -> None:
    if domain.ndim != 2 or domain.shape[1] != columns or len(np.unique(domain, axis=0)) != len(domain):
        raise DataError(f"{path}: domain has shape {domain.shape}; expected different values of {columns} inputs")
    if len(domain) < 2 or domain.dtype.kind not in "biuf" or not np.isfinite(domain).all():
        raise DataError(f"{path}: domain: expected at least two values of finite numbers; got {len(domain)}")


def _name_of_value(value: NDArray[Any]) -> str:
    return ", ".join(f"{part:g}" for part in value)
