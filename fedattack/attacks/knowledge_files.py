"""Knowledge on the disk: a JSON file, examples as ``.npz`` beside it, and a file for each node.

A folder of it is data that somebody else may have written: nothing that it names is imported or followed.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Required, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from fedattack.attacks.answers import read_answers, read_outputs, read_shadow_losses
from fedattack.attacks.coding import TableCoding
from fedattack.attacks.frozen import read_frozen
from fedattack.attacks.knowledge import (
    BUILT_IN,
    PATHS,
    PROPERTY_NAMES,
    AuxiliaryAttribute,
    Knowledge,
    KnownDefence,
    ModelKnowledge,
    PartialRecords,
    Targets,
    class_asked,
)
from fedattack.base.errors import ConfigError, DataError, short
from fedattack.base.files import make_private, write_npz
from fedattack.base.stored import Finite, check_arrays, keys_of, read_with_files, split, typed_dict, write_with_files
from fedattack.base.structured import fault, fields, finite, pack
from fedattack.base.untrusted import Text, check_folder, read_npz, validate
from fedattack.defences.kinds import FIELDS
from fedattack.learning.importing import Asked, asked_unless
from fedattack.learning.stated import LOSS_NAMES, MODEL_NAMES, LocalSGD
from fedattack.record.folder import KNOWLEDGE
from fedattack.record.nodes import note_node, read_nodes

TARGETS = "targets.npz"
AUXILIARY = "auxiliary.npz"
PUBLIC = "public.npz"
PARTIAL = "partial.npz"
ATTRIBUTES = "attributes.npz"
FROZEN = "frozen.npz"
ANSWERS = "answers.npz"
SHADOWS = "shadows.npz"
OUTPUTS = "outputs.npz"

# Numbers that beliefs about partial records have, and codes of values: so many, and as many as the file has bytes.
_BELIEFS = 2**21


_HINT = "expected what `fedattack simulate` or fedattack.attacks.write_knowledge leaves there"
_STRICT = ConfigDict(extra="forbid", strict=True)

_Count = Annotated[int, Field(ge=1, le=10**6)]
_Rate = Annotated[float, Field(gt=0, le=10**6, allow_inf_nan=False)]

# The settings of fedattack's own defences, with the keys of the run config; only the first kind changes the training.
_PrivateTraining = typed_dict(
    "_PrivateTraining",
    {"defence": Literal["dp-sgd"], "noise": Finite, "dp-clip": _Rate, "loss": Text, "training": keys_of(LocalSGD)},
)
_OfUpdates = TypedDict(
    "_OfUpdates",
    {
        "defence": Required[Text],
        "defence-strength": Finite,
        "defence-clip": Finite,
        "dp-delta": Finite,
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
    write_with_files(folder / KNOWLEDGE, knowledge, files)


def _arrays_by_file(knowledge: Knowledge) -> dict[str, dict[str, NDArray[Any]]]:
    files: dict[str, dict[str, NDArray[Any]]] = {}
    examples = {
        TARGETS: knowledge.targets,
        AUXILIARY: knowledge.auxiliary,
        ANSWERS: knowledge.answers,
        SHADOWS: knowledge.shadow_losses,
        OUTPUTS: knowledge.outputs,
    }
    files |= {name: split(known)[1] for name, known in examples.items() if known is not None}
    if knowledge.public is not None:
        files[PUBLIC] = {"x": knowledge.public}
    if knowledge.partial is not None:
        files[PARTIAL] = split(knowledge.partial)[1]
    if knowledge.frozen is not None:
        files[FROZEN] = dict(knowledge.frozen)
    if knowledge.attributes is not None:
        arrays = {name: split(attribute)[1] for name, attribute in knowledge.attributes.items()}
        # One file for all attributes: codes.NAME and values.NAME.
        files[ATTRIBUTES] = {f"{kind}.{name}": of[kind] for name, of in arrays.items() for kind in of}
    return files


def read_knowledge(folder: Path, *, trusted: Collection[str] = ()) -> Knowledge:
    """Read what :func:`write_knowledge` wrote.

    ``trusted`` are import paths and paths that the caller trusts. All others are an
    :class:`~fedattack.learning.importing.Asked` that whoever needs it refuses.

    Raises
    ------
    DataError
        If a file is missing, damaged, or does not fit the model: targets of another shape, labels out of range; if a
        link leaves the folder.
    """
    check_folder(folder, DataError)
    where = folder / KNOWLEDGE
    # What the folder names, such as a model's import path, becomes an `Asked` unless it is built in or trusted.
    stated, _ = read_with_files(Knowledge, where, DataError, _HINT)
    model = _trust_model(stated["model"], where, trusted)
    targets = _read_if_there(_read_asked, folder / TARGETS, model)
    auxiliary = _read_if_there(read_targets, folder / AUXILIARY, model)
    # The limits are of channels, which the model's input shape names first.
    _check_limits(stated.get("limits"), where, model)
    _check_coding(stated.get("coding"), where, model)
    further = {
        "model": model,
        "targets": targets,
        "auxiliary": auxiliary,
        "property": _trust_property(stated.get("property"), where, trusted),
        "public": _read_if_there(read_public, folder / PUBLIC, model),
        "partial": _read_if_there(read_partial, folder / PARTIAL, model),
        "nodes": read_nodes(folder, DataError, _HINT),
        "attributes": _read_if_there(read_attributes, folder / ATTRIBUTES, auxiliary),
        "defence": _trust_defence(stated.get("defence"), folder, trusted),
        "frozen": _read_if_there(read_frozen, folder / FROZEN, None),
        "answers": _read_if_there(read_answers, folder / ANSWERS, targets),
        "outputs": _read_if_there(read_outputs, folder / OUTPUTS, auxiliary),
        "shadow_losses": _read_if_there(read_shadow_losses, folder / SHADOWS, targets),
    }
    # Fields of the JSON file first, then those that lie in files of their own.
    return Knowledge(**{**stated, **further})


def _trust_property(name: str | None, where: Path, trusted: Collection[str]) -> str | Asked | None:
    if name is None:
        return None
    known = [*PROPERTY_NAMES]
    if class_asked(name):
        known.append(name)
    return asked_unless(name, known=known, trusted=trusted, what="property", where=str(where))


def _check_limits(limits: tuple[tuple[float, float], ...] | None, where: Path, model: ModelKnowledge | None) -> None:
    if limits is None:
        return
    channels = len(limits)
    if model is not None:
        channels = (model.input_shape or (0,))[0]
    if not limits or len(limits) != channels or any(low > high for low, high in limits):
        raise DataError(
            f"{where}: limits are {short(str([*map(list, limits)]))}; expected the least and the largest input of each "
            f"of {channels} channels"
        )


def _check_coding(coding: TableCoding | None, where: Path, model: ModelKnowledge | None) -> None:
    if coding is not None and model is not None and model.input_shape != (len(coding.low),):
        raise DataError(
            f"{where}: the coding is of examples of shape ({len(coding.low)},), and the model takes "
            f"{model.input_shape}; state the coding of the model's inputs, or none"
        )


def _read_if_there(read: Callable[[Path, Context], Content], path: Path, context: Context) -> Content | None:
    if not path.exists():
        return None
    return read(path, context)


def _trust_model(model: ModelKnowledge | None, where: Path, trusted: Collection[str]) -> ModelKnowledge | None:
    if model is None:
        return None
    spec = _trust_name("model", str(model.spec), MODEL_NAMES, trusted, where)
    loss = _trust_name("loss", str(model.loss), LOSS_NAMES, trusted, where)
    return replace(model, spec=spec, loss=loss)


def _trust_name(what: str, name: str, known: Collection[str], trusted: Collection[str], where: Path) -> str | Asked:
    """Read what is built in or an import path."""
    if name not in known and ":" not in name:
        raise DataError(
            f"{where}: {what} is {short(name, 80)!r}; expected one of {', '.join(known)} or module:function"
        )
    return asked_unless(name, known=known, trusted=trusted, what=what, where=str(where))


def _trust_defence(known: KnownDefence | None, folder: Path, trusted: Collection[str]) -> KnownDefence | None:
    if known is None:
        return None
    where = folder / KNOWLEDGE
    spec = str(known.spec)
    # resolve: a link in the folder must not lead out of the run folder unnoticed.
    run = _run_folder(folder).resolve()
    settings = dict(known.settings)
    if spec == BUILT_IN:
        settings = _read_built_in_settings(settings, where, trusted)
    # What is a path among the settings is one of the files, or leads outside.
    for key in PATHS:
        if settings.get(key):
            settings[key] = asked_unless(str(settings[key]), known=(), trusted=trusted, what=key, where=str(where))
    for key, relative in known.files.items():
        # A relative path may hold "..": it is resolved before it is compared.
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
    own = {key: value for key, value in settings.items() if not _is_of_another_package(key)}
    checked = dict(validate(form, own, f"{where}: the defence", DataError, _HINT))
    for key in settings.keys() - own.keys():
        try:
            checked[key] = FIELDS[key].check(settings[key])
        except ConfigError as cause:
            raise DataError(f"{where}: the defence: {cause}; {_HINT}") from None
    if "loss" in checked:
        checked["loss"] = _trust_name("loss", checked["loss"], LOSS_NAMES, trusted, where)
    return checked


def _is_of_another_package(key: str) -> bool:
    """Whether a setting is of a defence of another package, which is installed here and states what it may be."""
    return key in FIELDS and key not in _OfUpdates.__annotations__


def _run_folder(folder: Path) -> Path:
    """Find the run folder of a folder of knowledge, ``DIR/knowledge`` or ``DIR/knowledge/seed-0``."""
    absolute = folder.absolute()
    for knowledge in (absolute, absolute.parent):
        if knowledge.name == "knowledge":
            return knowledge.parent
    return absolute


def read_attributes(path: Path, auxiliary: Targets | None) -> dict[str, AuxiliaryAttribute]:
    """Read attributes of the auxiliary records from an ``.npz`` with ``values.NAME`` and ``codes.NAME`` for each."""
    hint = "expected values.NAME, its values, and codes.NAME, an index into them for each auxiliary record"
    arrays = read_npz(path, DataError, hint)
    names = [key.removeprefix("codes.") for key in arrays if key.startswith("codes.")]
    if not names:
        raise DataError(f"{path} has no attribute; {hint}")
    attributes = {}
    for name in names:
        parts = {"codes": arrays[f"codes.{name}"], "values": arrays.get(f"values.{name}", np.zeros(0))}
        # As many codes as there are auxiliary examples, by the axis that both share.
        where, sizes = f"{path}: {short(name, 60)}", {"examples": len(auxiliary or ())}
        attributes[name] = check_arrays(AuxiliaryAttribute, parts, where, DataError, hint, sizes=sizes)
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
    return _read_labelled(path, model, incomplete=False)


def _read_asked(path: Path, model: ModelKnowledge | None) -> Targets:
    """Read the targets of a run: a model that fills in missing cells has losses of such examples, too."""
    return _read_labelled(path, model, incomplete=True)


def _read_labelled(path: Path, model: ModelKnowledge | None, *, incomplete: bool) -> Targets:
    x, y = _examples_in(path)
    if x.ndim < 1 or y.ndim < 1 or len(x) != len(y) or not y.size:
        raise DataError(f"{path}: expected as many labels as examples, at least one, got x {x.shape} and y {y.shape}")
    if y.dtype.kind not in "iuf" or not np.isfinite(y).all():
        raise DataError(f"{path}: y holds values that are not finite numbers (dtype {y.dtype})")
    _check_records(path, x, model, "target", incomplete=incomplete)
    if model is not None and model.loss == "cross-entropy":
        _check_classes(path, y, model.classes)
    if not fields(x):
        # Contiguous float32 is what torch takes without a copy.
        x = np.ascontiguousarray(x, dtype=np.float32)
    return Targets(x, y=_labels(y))


def _examples_in(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    hint = "target records go into x, their labels into y; what a model takes by name into x.NAME"
    arrays = read_npz(path, DataError, hint)
    parts = {name.removeprefix("x."): array for name, array in arrays.items() if name.startswith("x.")}
    needed = ["y"]
    if not parts:
        needed = ["x", "y"]
    if not {*needed} <= {*arrays}:
        # It says which one is not there.
        arrays |= read_npz(path, DataError, hint, *needed)
    if not parts:
        return arrays["x"], arrays["y"]
    try:
        return pack(parts), arrays["y"]
    except (TypeError, ValueError) as cause:
        raise DataError(f"{path}: {short(str(cause), 100)}; {hint}") from None


def read_public(path: Path, model: ModelKnowledge | None = None) -> NDArray[np.float32]:
    """Read FedMD's public records ``x`` (n, *shape) from an ``.npz``, in the order of the clients' predictions."""
    x = read_npz(path, DataError, "public records go into x", "x")["x"]
    if x.ndim < 2 or not len(x):
        raise DataError(f"{path}: expected at least one public record, with one feature or more, got x {x.shape}")
    _check_records(path, x, model, "public")
    return np.ascontiguousarray(x, dtype=np.float32)


def _check_records(
    path: Path, x: NDArray[Any], model: ModelKnowledge | None, what: str, *, incomplete: bool = False
) -> None:
    if wrong := fault(x):
        raise DataError(f"{path}: x holds {short(wrong, 200)}")
    if not incomplete and not finite(x).all():
        raise DataError(f"{path}: x holds values that are not finite numbers (dtype {short(str(x.dtype), 100)})")
    # Structured examples have their shapes in the type: x.shape[1:] is ().
    if model is not None and x.shape[1:] != model.input_shape:
        raise DataError(f"{path}: {what} records have shape {x.shape[1:]}, but the model takes {model.input_shape}")


def _check_classes(path: Path, y: NDArray[Any], classes: int) -> None:
    if not np.issubdtype(y.dtype, np.integer) or y.min() < 0 or y.max() >= classes:
        raise DataError(f"{path}: expected integer labels in 0 … {classes - 1}, got {y.dtype} in {y.min()} … {y.max()}")


def _labels(y: NDArray[Any]) -> NDArray[Any]:
    if np.issubdtype(y.dtype, np.integer):
        return y.astype(np.int64)
    return y


def read_partial(path: Path, model: ModelKnowledge | None = None) -> PartialRecords:
    """Read clients' examples without one attribute from an ``.npz``, without pickle.

    Its arrays are those of :class:`PartialRecords`; ``names``, ``prior`` and ``span`` may be left out.

    Raises
    ------
    DataError
        If arrays are missing or do not fit each other or the model.
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
    # Zeros: what is to be inferred must not stand in the knowledge.
    if x[:, columns].any():
        raise DataError(
            f"{path}: x is not zero in the columns {columns.tolist()}, which are to be inferred; blank them"
        )
    _check_beliefs(path, len(domain), max(x.shape))
    # Names for people, made of the values where the file has none.
    names = arrays.get("names", np.array([_name_of_value(value) for value in domain]))
    prior = arrays.get("prior")
    if names.shape != (len(domain),) or (prior is not None and prior.shape != (len(domain),)):
        raise DataError(f"{path}: expected one name and one share for each of {len(domain)} values")
    if prior is not None and not (np.all(prior >= 0) and abs(prior.sum() - 1) < 1e-6):
        raise DataError(f"{path}: prior is {prior.tolist()}; expected shares that sum to one")
    span = arrays.get("span")
    if span is not None:
        _check_span(path, span, domain)
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
        span=span,
    )


def _check_span(path: Path, span: NDArray[Any], domain: NDArray[Any]) -> None:
    is_span = span.shape == (2,) and span.dtype.kind == "f" and np.isfinite(span).all() and span[0] < span[1]
    if not is_span or domain.shape[1] != 1:
        raise DataError(
            f"{path}: span is {short(str(span.tolist()), 60)} of {domain.shape[1]} columns; expected the least and the "
            "largest number of one column"
        )


def _check_columns(path: Path, columns: NDArray[Any], inputs: int) -> None:
    # Python takes negative indices: they are refused before they are used.
    positions = columns.dtype.kind in "iu" and columns.ndim == 1 and len(columns)
    if not positions or columns.min() < 0 or columns.max() >= inputs:
        raise DataError(f"{path}: columns are {columns.tolist()}; expected inputs among 0 … {inputs - 1}")


def _check_domain(path: Path, domain: NDArray[Any], columns: int) -> None:
    if domain.ndim != 2 or domain.shape[1] != columns or len(np.unique(domain, axis=0)) != len(domain):
        raise DataError(f"{path}: domain has shape {domain.shape}; expected different values of {columns} inputs")
    if len(domain) < 2 or domain.dtype.kind not in "biuf" or not np.isfinite(domain).all():
        raise DataError(f"{path}: domain: expected at least two values of finite numbers; got {len(domain)}")


def _check_beliefs(path: Path, values: int, length: int) -> None:
    """Refuse what a few bytes of a deflated file make much of: a belief in each value for each example."""
    most = _BELIEFS + path.stat().st_size
    if values * length > most:
        raise DataError(
            f"{path}: {values:,} values for {length:,} examples or inputs are {values * length:,} numbers; expected at "
            f"most {most:,}: put values together, or ask about fewer examples"
        )


def _name_of_value(value: NDArray[Any]) -> str:
    return ", ".join(f"{part:g}" for part in value)
