"""What the owner of an app asks beside what every app is asked: a column, a class, groups; and what to leave out.

Each question becomes knowledge of the attacker and a truth, from what the witnesses noted. Where it cannot be asked of
this run, there is a reason in one line, and the other questions are asked all the same.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedattack.apps.functions import NO_FUNCTIONS, OwnFunctions
from fedattack.attacks.needs import UNKNOWN
from fedattack.base.errors import ConfigError, DataError, instead, short
from fedattack.base.reasons import Reason
from fedattack.base.structured import fields
from fedattack.base.untrusted import read_toml

if TYPE_CHECKING:
    from fedattack.apps.holding import Client, Holding
    from fedattack.attacks import Targets

WITHOUT: Mapping[str, str] = {
    "auxiliary": "examples of its own that nobody trained on",
    "training": "how clients train",
    "limits": "the least and the largest input of each channel, and how a table's columns are coded",
    "shares": "how common each value of the column is",
}
"""What an attacker may be left without, by name."""

MOST_VALUES = 20
"""Values of a column up to which it is asked which one an example has; of more it is asked as a number."""

# Steps of a grid between the least and the largest number, and shares of the examples between which further ones lie.
_STEPS, _SHARES = 50, 50

MOST_ASKED = 2000
"""Examples whose column is asked for, at most."""

NO_COLUMN = "none"
"""The word by which no column is asked for."""

_MOST_UNNAMED = 500
# Of a column that nobody named so many examples are asked for, of a table of so many columns at most. Of its values
# none may be that of a larger share of the examples.
_MOST_COLUMNS, _MOST_ALIKE = 1_000, 0.9

# What is added to the variance of each standardised column, so that columns which follow from others do no harm.
_RIDGE = 1e-6

_MOST_SAMPLED = 1000
_FEWEST_CLIENTS = 6
_COLUMN = re.compile(r"(?:(?P<name>[^=]+)=)?(?P<first>[0-9]{1,6})(?:-(?P<last>[0-9]{1,6}))?")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")


Groups = Mapping[str, Mapping[str, str]]
"""By attribute, then by client or node, the value."""


@dataclass(frozen=True)
class OneHotColumn:
    """Columns of a model's input that encode one attribute: those from ``first`` to before ``end``, counted from 0.

    ``is_chosen`` says that nobody named it.
    """

    name: str
    first: int
    end: int
    is_chosen: bool = False


@dataclass(frozen=True)
class Questions:
    """What is asked beyond what every app is asked.

    Attributes
    ----------
    column, label, groups
        What the server lacks of each example; the class of which it is asked who holds examples; and what clients of a
        group have in common.
    is_column_chosen
        Whether one column of a table is chosen, where none is named.
    without
        Names of :data:`WITHOUT` that this attacker does not know.
    model, loss, functions
        What the caller says of them, in the place of what was witnessed.
    """

    column: OneHotColumn | None = None
    is_column_chosen: bool = False
    label: int | None = None
    groups: Groups = field(default_factory=dict)
    without: frozenset[str] = frozenset()
    model: str | None = None
    loss: str | None = None
    functions: OwnFunctions = NO_FUNCTIONS

    @classmethod
    def of_words(
        cls, sensitive: str | None, holds: int | None, groups: Path | None, without: Sequence[str]
    ) -> "Questions":
        """Read them from the command line, before a run that takes minutes.

        Raises
        ------
        ConfigError
            If a word is unknown or of another form, or the file of groups does not say who belongs to which.
        """
        for word in without:
            if word not in WITHOUT:
                raise ConfigError(f"--without {short(word, 60)}: {instead(word, sorted(WITHOUT))}")
        if holds is not None and holds < 0:
            raise ConfigError(f"--property {holds}: classes are counted from 0; expected 0 or more")
        asked = cls(is_column_chosen=sensitive is None, label=holds, without=frozenset(without))
        if sensitive is not None and sensitive.strip() != NO_COLUMN:
            asked = replace(asked, column=_column(sensitive))
        if groups is not None:
            asked = replace(asked, groups=read_groups(groups))
        return asked


NOTHING_BESIDES = Questions()


def _column(text: str) -> OneHotColumn:
    match = _COLUMN.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"--sensitive {short(text, 60)}: a model's input has no names; expected a number from 1, such as 3; or "
            "3-5 for an attribute of several columns; you may name it, as in sex=3"
        )
    first = int(match["first"])
    last = int(match["last"] or first)
    if not 1 <= first <= last:
        raise ConfigError(
            f"--sensitive {text}: columns are counted from 1, and the last one must not come before the first"
        )
    name = f"columns {first}-{last}"
    if first == last:
        name = f"column {first}"
    # Counted from 1 by people, from 0 by NumPy; `end` is one behind the last.
    return OneHotColumn((match["name"] or name).strip(), first - 1, last)


def read_groups(path: Path) -> dict[str, dict[str, str]]:
    """Read who belongs to which group: by attribute, then by client (its ``partition-id``, or its node), the value.

    The file has a table for each attribute, and in it a list of clients for each value::

        [region]
        north = [0, 1, 2]
        south = [3, 4, 5]

    Raises
    ------
    ConfigError
        If the file is not there or not of that form, an attribute has one value alone, or a client two.
    """
    hint = "expected a table for each attribute, with lists of clients, such as north = [0, 1]"
    where = f"--groups {path}"
    try:
        tables = read_toml(path, ConfigError, hint)
    except ConfigError as cause:
        raise ConfigError(f"--groups {cause}") from None
    if not tables:
        raise ConfigError(f"{where} is empty; {hint}")
    return {name: _of_attribute(f"{where}: {short(name, 60)}", name, table, hint) for name, table in tables.items()}


def _of_attribute(where: str, name: str, table: Any, hint: str) -> dict[str, str]:
    if not _NAME.fullmatch(name) or not isinstance(table, dict):
        raise ConfigError(f"{where}: {hint}; names consist of letters, digits, - and _")
    if len(table) < 2:
        raise ConfigError(
            f"{where} has {len(table)} value; expected at least two, because one group cannot be told from another"
        )
    found: dict[str, str] = {}
    for value, clients in table.items():
        # `type` and not isinstance: true is no partition-id.
        if not isinstance(clients, list) or not all(type(client) in (int, str) for client in clients):
            raise ConfigError(f"{where}.{short(value, 60)}: {hint}")
        if not clients:
            raise ConfigError(f"{where}.{short(value, 60)} is empty; name its clients, or leave it out")
        # TOML's 0 and "0" are the same client.
        for client in map(str, clients):
            if client in found:
                raise ConfigError(f"{where}: client {short(client, 60)} is in two groups; expected it in one")
            found[client] = value
    return found


@dataclass(frozen=True)
class Scene:
    """What questions are posed from.

    Attributes
    ----------
    clients, counts
        Of the truth: names, and (clients, classes) of training examples.
    auxiliary, origins
        The attacker's examples, ``None`` if there are none; and for each the client from whose evaluation it comes.
    seed
        Of what is drawn.
    has_model
        Whether the attacker can build the clients' model.
    """

    holding: "Holding"
    clients: Sequence[str]
    counts: NDArray[np.int64]
    auxiliary: "Targets | None"
    origins: Sequence[str]
    seed: int
    has_model: bool = True

    def check_all_witnessed(self) -> None:
        """Refuse to speak of all clients where some were not seen to train."""
        strangers = [name for name in self.clients if name not in self.holding.clients]
        if strangers:
            raise DataError(f"{strangers[0]} was not seen to train, so the truth about it is not known")


@dataclass
class Further:
    """What further questions add: fields of the knowledge, and arguments of ``write_truth``.

    By what an attacker would know, ``reasons`` say why that question cannot be asked.
    """

    known: dict[str, Any] = field(default_factory=dict)
    true: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, Reason] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def pose_further(asked: Questions, scene: Scene) -> Further:
    """Turn what the owner declared into knowledge and truth."""
    further = Further()
    column = asked.column
    # Losses with each value of a column are those of a model.
    if column is None and asked.is_column_chosen and scene.has_model:
        column = choose_column(scene.holding)
    posing: Mapping[str, tuple[Any, Callable[..., None]]] = {
        "partial": (column, _pose_column),
        "property": (asked.label, _pose_class),
        "attributes": (asked.groups or None, _pose_groups),
    }
    for known, (declared, pose) in posing.items():
        if declared is None:
            continue
        try:
            # A question that cannot be asked leaves the others as they are.
            pose(declared, scene, asked.without, further)
        except DataError as cause:
            further.reasons[known] = Reason(
                str(cause), UNKNOWN, "another value of that option, or a run that is witnessed completely"
            )
    return further


def _pose_column(column: OneHotColumn, scene: Scene, without: Collection[str], further: Further) -> None:
    from fedattack.attacks.knowledge import PartialRecords
    from fedattack.audit.truth import Attributes

    holding = scene.holding
    if len(holding.shape) != 1:
        raise DataError(f"--sensitive is for tables, and the model takes examples of shape {holding.shape}")
    if column.end > holding.shape[0]:
        raise DataError(
            f"--sensitive: there is no column {column.end}; the model takes the columns 1 … {holding.shape[0]}"
        )
    columns = list(range(column.first, column.end))
    domain, counts, span = _read_values(column.name, columns, holding)
    if column.is_chosen:
        further.notes.append(
            f"no column was named, so {column.name} is asked for: among columns {_describe_kind(domain, span)} the "
            "other columns and the label say least about it; name another one by --sensitive NUMBER, or none by "
            "--sensitive none"
        )
    asked_of = _victims(
        holding.clients.values(), scene, further.notes, _MOST_UNNAMED if column.is_chosen else MOST_ASKED
    )
    if not asked_of:
        raise DataError("--sensitive: no example is certain to belong to a client that took part")
    # Examples of one client stand together, in the order of `asked_of`.
    keys = [key for own in asked_of.values() for key in own]
    x = np.array([holding.examples[key][0] for key in keys], dtype=np.float32)
    y = np.array([holding.examples[key][1] for key in keys], dtype={"i": np.int64}.get(holding.kind, np.float32))
    # (n, values): which value each example has in the asked columns.
    values = (x[:, None, columns] == domain[None]).all(axis=2).argmax(axis=1)
    numbers = None
    if span is not None:
        numbers = x[:, columns[0]].astype(np.float64)
        values = find_nearest(domain[:, 0], numbers)
    # What is asked for is taken out of what the attacker knows.
    x[:, columns] = 0
    sizes = list(map(len, asked_of.values()))
    names = tuple(", ".join(map("{:.9g}".format, value)) for value in domain)
    # The server knows nodes alone.
    nodes = [holding.clients[name].nodes[0] for name in asked_of]
    prior = None
    if "shares" not in without:
        prior = counts / counts.sum()
    partial = PartialRecords(x, y, np.repeat(nodes, sizes).astype(np.str_), tuple(columns), domain, names, prior, span)
    owners = tuple(np.repeat([*asked_of], sizes).tolist())
    further.known["partial"] = partial
    further.true["attributes"] = Attributes(values, names, owners, column.name, partial.fingerprint, numbers)
    further.notes.append(
        f"the attacker that asks for {column.name} is assumed to know the other columns and the label of "
        f"{len(keys)} examples of {len(asked_of)} clients, and whose they are; it uses no target records"
    )
    if scene.auxiliary is None:
        further.notes.append(
            f"the attacker has no auxiliary examples, so no classifier guesses {column.name} from the other "
            "columns: an attack's success may come from these columns alone"
        )


def _describe_kind(domain: NDArray[Any], span: NDArray[np.float64] | None) -> str:
    """Say among which columns one was chosen."""
    if span is not None:
        return "of numbers"
    return f"of two to {MOST_VALUES} values"


def choose_column(holding: "Holding") -> OneHotColumn | None:
    """Choose the column of a table that is asked for where nobody names one; ``None`` if there is none to choose.

    It is that which the other columns and the label tell least, as by them a server guesses it without any update. If
    there are columns of few values, it is one of these, and else a number. Only who holds what decides, and no attack.
    """
    from fedattack.attacks.coding import find_coding

    if len(holding.shape) != 1 or not holding.complete or fields(holding.sample):
        return None
    x = np.stack([x for x, _ in holding.complete.values()]).astype(np.float64)
    labels = np.array([label for _, label in holding.complete.values()], dtype=np.float64)
    coding = find_coding(x)
    if coding is None or len(coding.columns) > _MOST_COLUMNS or not np.isfinite(x).all():
        return None
    if holding.kind == "i":
        labels = (labels[:, None] == np.unique(labels)).astype(np.float64)
    told: dict[bool, dict[tuple[int, ...], float]] = {True: {}, False: {}}
    find_told = _explain_columns(x, labels)
    for inputs in coding.columns:
        _, counts = np.unique(x[:, inputs], axis=0, return_counts=True)
        is_number = len(inputs) == 1 and len(counts) > MOST_VALUES
        if len(counts) > 1 and (is_number or len(counts) <= MOST_VALUES) and counts.max() <= _MOST_ALIKE * len(x):
            told[is_number][inputs] = find_told(inputs)
    among = told[False] or told[True]
    if not among:
        return None
    inputs = min(among, key=among.__getitem__)
    column = _column(str(inputs[0] + 1) if len(inputs) == 1 else f"{inputs[0] + 1}-{inputs[-1] + 1}")
    return replace(column, is_chosen=True)


def _explain_columns(x: NDArray[np.float64], labels: NDArray[Any]) -> Callable[[Sequence[int]], float]:
    """Return what says which share of the variance of some inputs linear functions of all else explain.

    All else are the other inputs (n, d) and the labels, (n,) or (n, classes).
    """
    known = np.column_stack([x, labels])
    known = known - known.mean(axis=0)
    deviations = known.std(axis=0)
    known = known / np.where(deviations > 0, deviations, 1)
    covariance = known.T @ known / len(known)
    # Columns that follow from each other leave no inverse without a small addition.
    precision = np.linalg.inv(covariance + _RIDGE * np.eye(len(covariance)))

    def find_told(inputs: Sequence[int]) -> float:
        own = np.ix_(inputs, inputs)
        # The inverse of a block of the precision is the block's covariance given all else.
        left = np.linalg.inv(precision[own]).diagonal() * np.square(deviations[list(inputs)])
        return 1 - float(left.sum() / np.square(deviations[list(inputs)]).sum())

    return find_told


def _read_values(
    column: str, columns: Sequence[int], holding: "Holding"
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.float64] | None]:
    """Return the different values of a column, and how many examples have each; of a number a grid, and its span."""
    seen = np.array([x for x, _ in holding.complete.values()], dtype=np.float32)[:, columns]
    domain, counts = np.unique(seen, axis=0, return_counts=True)
    if len(domain) < 2:
        raise DataError(f"--sensitive: {column} is the same in all examples; take one that differs")
    if len(domain) > MOST_VALUES:
        if len(columns) > 1:
            raise DataError(
                f"--sensitive: {column} have {len(domain)} different values together, and fedattack can ask for at "
                f"most {MOST_VALUES}; take one column, which is asked for as a number, or let the app group its values"
            )
        return _lay_grid(seen[:, 0])
    return domain, counts, None


def _lay_grid(numbers: NDArray[np.float32]) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.float64]]:
    """Return numbers (v, 1) between the least and the largest, to how many examples each is nearest, and the ends.

    Some lie evenly, and some between equal shares of the examples, so that the grid is fine where many are.
    """
    ends = np.array([numbers.min(), numbers.max()], dtype=np.float64)
    evenly = np.linspace(ends[0], ends[1], _STEPS + 1)
    by_share = np.quantile(numbers.astype(np.float64), np.linspace(0, 1, _SHARES + 1))
    grid = np.unique(np.concatenate([evenly, by_share]).astype(np.float32))
    counts = np.bincount(find_nearest(grid, numbers), minlength=len(grid))
    return grid[:, None], counts, ends


def find_nearest(grid: NDArray[Any], numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Return which number of an ascending grid (v,) is nearest to each of others, (n,)."""
    above = np.clip(np.searchsorted(grid, numbers), 1, len(grid) - 1)
    is_below = numbers - grid[above - 1] <= grid[above] - numbers
    return np.asarray(above - is_below)


def _victims(clients: Iterable["Client"], scene: Scene, notes: list[str], most: int) -> dict[str, list[bytes]]:
    """Choose whose examples are asked for, at most so many: clients of whom all are known; else a sample of each's."""
    from fedattack.apps.targets import even

    known: dict[str, list[bytes]] = {}
    whole: list[str] = []
    for client in clients:
        examples = client.own(scene.holding.complete)
        if examples:
            known[client.name] = examples
        if len(examples) == client.trained.total:
            whole.append(client.name)
    chosen: dict[str, list[bytes]] = {}
    for name in sorted(whole, key=lambda name: len(known[name])):
        if sum(map(len, chosen.values())) + len(known[name]) <= most:
            chosen[name] = known[name]
    # All examples of enough clients: attacks that need all of them then apply.
    if len(chosen) >= min(len(known), _FEWEST_CLIENTS):
        # In the order of the clients, and not of their sizes.
        return {name: chosen[name] for name in known if name in chosen}
    # A stream of its own, so that other draws of the seed do not move with it.
    rng = np.random.default_rng((scene.seed, 2))
    sample: dict[str, list[bytes]] = {}
    shares = even([len(examples) for examples in known.values()], min(_MOST_SAMPLED, most))
    for (name, examples), count in zip(known.items(), shares, strict=True):
        sample[name] = [examples[index] for index in rng.permutation(len(examples))[:count]]
    notes.append("attacks ask about a sample of the clients' examples, so attacks that need all of them find less")
    return sample


def _pose_class(label: int, scene: Scene, without: Collection[str], further: Further) -> None:
    counts = scene.counts
    _check_class(label, scene)
    scene.check_all_witnessed()
    has = counts[:, label] > 0
    for name, holds in zip(scene.clients, has, strict=True):
        seen = scene.holding.clients[name].trained
        # A class that was not seen in a part of the examples may be in the rest.
        if not holds and sum(seen.counts.values()) < seen.total:
            raise DataError(
                f"client {name} has examples without a label, so fedattack does not know which classes it has"
            )
    _check_divides(label, counts > 0)
    if scene.auxiliary is None or not (scene.auxiliary.y == label).any():
        raise DataError(f"--property {label}: the attacker has no auxiliary examples of that class")
    # The share of the class among those who hold it that fits how common it is.
    share = float(np.mean(scene.auxiliary.y == label)) / float(has.mean())
    percent = min(max(round(100 * share), 1), 100)
    further.known |= {"property": f"class-{label}-at-{percent}", "positive_share": float(has.mean())}
    # (1, clients): one question.
    further.true["positives"] = has[None]
    further.notes.append(
        f"the attacker that asks which clients hold examples of class {label} is given only sums, as if secure "
        f"aggregation had been on; it is assumed to know that {has.sum()} of {len(has)} clients hold some, and "
        f"that these are about {percent} % of what such a client holds"
    )


def _check_class(label: int, scene: Scene) -> None:
    """Refuse a class that there is not."""
    there = "labels are not classes"
    classes = scene.counts.shape[1]
    if scene.holding.kind == "i" and classes > 1:
        if 0 <= label < classes:
            return
        there = f"classes are 0 … {classes - 1}"
    raise DataError(f"--property {label}: there is no such class, {there}")


def _check_divides(label: int, has: NDArray[np.bool_]) -> None:
    """Refuse a class that all clients have, or none; ``has`` is (clients, classes)."""
    holders = has.sum(axis=0)
    divides = (holders > 0) & (holders < len(has))
    if divides[label]:
        return
    who, other = "no", "no class divides the clients"
    if holders[label]:
        who = "all"
    if divides.any():
        some = ", ".join(map(str, np.flatnonzero(divides)))
        other = f"these divide the clients: {short(some, 60)}"
    raise DataError(f"--property {label}: {who} clients hold examples of it; {other}")


def _pose_groups(groups: Groups, scene: Scene, without: Collection[str], further: Further) -> None:
    from fedattack.attacks.knowledge import AuxiliaryAttribute
    from fedattack.audit.truth import ClientAttribute

    scene.check_all_witnessed()
    if scene.auxiliary is None:
        raise DataError("--groups: no client evaluates on examples of its own that nobody trains on")
    attributes, private = {}, {}
    for name, of_client in groups.items():
        values = tuple(dict.fromkeys(of_client.values()))
        group_of = {client: _group_of(scene.holding.clients[client], of_client) for client in scene.clients}
        missing = [client for client, value in group_of.items() if value is None]
        if missing:
            raise DataError(f"--groups: {name} does not say which group client {missing[0]} is in")
        # Whose evaluation examples they are says of which group each is.
        codes = np.array([values.index(str(group_of[origin])) for origin in scene.origins], dtype=np.int64)
        # A group without an example of the attacker's cannot be learned.
        alone = [value for index, value in enumerate(values) if index not in codes]
        if alone:
            raise DataError(f"--groups: no client of {name} {alone[0]} evaluates on examples that nobody trains on")
        attributes[name] = AuxiliaryAttribute(values, codes)
        private[name] = ClientAttribute(tuple(values.index(str(value)) for value in group_of.values()), values)
    further.known["attributes"] = attributes
    further.true["private"] = private
    further.notes.append(
        f"the attacker that asks for {', '.join(attributes)} is assumed to know to which group each auxiliary "
        "example belongs"
    )


def _group_of(client: "Client", of_client: Mapping[str, str]) -> str | None:
    """Return the group of a client, by its name or one of its nodes."""
    for name in (client.name, *client.nodes):
        if name in of_client:
            return of_client[name]
    return None
