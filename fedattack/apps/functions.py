"""Functions of the owner's own, for an app whose framework no witness knows: its examples, losses and updates.

Each is named as ``module:function`` of the app. They run in a copy of the app, in a process of their own; see
:mod:`fedattack.apps.calling`.

======== ========================================== ==================================================================
examples (partition, partitions)                    examples, labels; and, if there are, those held out: both again
losses   (arrays as sent, examples, labels)         a loss for each example
update   (arrays, examples, labels, seed)           arrays as a client would send that holds these examples
======== ========================================== ==================================================================
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from fedattack.base.errors import ConfigError, DataError, short
from fedattack.witness import SERVER, Witness
from fedattack.witness.node import NO_TRAINING

_SPEC = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class OwnFunctions:
    """The functions that the owner of an app gives; ``None`` for one that is not given."""

    examples: str | None = None
    losses: str | None = None
    update: str | None = None

    def check(self) -> None:
        """Refuse what cannot name a function.

        Raises
        ------
        ConfigError
            If one is not of the form ``module:function``, or ``update`` is there without ``losses``.
        """
        for option, spec in self.given().items():
            if not _SPEC.fullmatch(spec):
                raise ConfigError(
                    f"{option} {short(spec, 80)}: expected module:function of the app, such as my_app.audit:"
                    f"{option.removeprefix('--')}"
                )
        if self.update is not None and self.losses is None:
            raise ConfigError("--update trains models whose losses are then needed; add --losses module:function")

    def check_there(self, app: Path) -> None:
        """Look for the functions in an app's folder, before a run that takes minutes; nothing is imported.

        Raises
        ------
        ConfigError
            If there is no such module, or its file has no such name.
        """
        for option, spec in self.given().items():
            module, _, name = spec.partition(":")
            path = app.joinpath(*module.split("."))
            files = [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()]
            top = module.partition(".")[0]
            if not files and ((app / top).exists() or find_spec(top) is None):
                raise ConfigError(f"{option} {spec}: there is no module {module}; name it as the app imports it")
            # What a module imports whole may have further names.
            if files and not re.search(
                rf"\b{name}\b|import \*", files[0].read_text(encoding="utf-8", errors="replace")
            ):
                raise ConfigError(f"{option} {spec}: {module} has no function {name}; check the spelling")

    def given(self) -> dict[str, str]:
        """Return those that are given, by the options that name them."""
        return {f"--{name}": spec for name, spec in vars(self).items() if spec is not None}


NO_FUNCTIONS = OwnFunctions()


def list_partitions(witnesses: Sequence[Witness]) -> list[int]:
    """List the partitions of the clients whose examples are asked for.

    Those are the clients that were asked to train; all that were called where none was.

    Raises
    ------
    DataError
        If none of them has a ``partition-id``.
    """
    clients = [witness.client for witness in _list_asked(witnesses)]
    partitions = sorted({int(client) for client in clients if client.isdecimal()})
    if not partitions:
        raise DataError(
            "--examples is called with a client's partition-id, and no client that was called has one; set "
            "partition-id in its node config, or state examples by fedattack.witness.trained_on(x, y)"
        )
    return partitions


def put_examples(witnesses: Sequence[Witness], stated: Mapping[str, Witness]) -> list[Witness]:
    """Return the witnesses with the examples that are ``stated`` of each partition in the place of what hooks saw.

    A client of which nothing is stated keeps what was witnessed, and its note says why.
    """
    found = []
    asked = {witness.node for witness in _list_asked(witnesses)}
    for witness in witnesses:
        own = stated.get(witness.client)
        if witness.node not in asked:
            found.append(witness)
        elif own is None:
            note = "it has no partition-id, so --examples is not called for it"
            found.append(replace(witness, notes=(*witness.notes, note)))
        elif not len(own.trained):
            found.append(replace(witness, notes=(*witness.notes, *own.notes)))
        else:
            found.append(_put(witness, own))
    return found


def _put(witness: Witness, own: Witness) -> Witness:
    notes = [note for note in witness.notes if note != NO_TRAINING]
    seen, given = {*map(bytes, witness.trained.hashes)}, {*map(bytes, own.trained.hashes)}
    # A sample of either, where there are many, is one of the smallest hashes: such samples overlap if the examples do.
    if seen and not seen & given:
        notes.append(
            f"it was seen to train on {witness.trained.total:,} examples, and --examples returns none of them: "
            "return examples as the model takes them, after all scaling"
        )
    evaluated = own.evaluated if len(own.evaluated) else witness.evaluated
    return replace(witness, trained=own.trained, evaluated=evaluated, notes=(*notes, *own.notes))


def _list_asked(witnesses: Sequence[Witness]) -> list[Witness]:
    """List the clients that were asked to train; all that were called where none was."""
    clients = [witness for witness in witnesses if witness.node != SERVER]
    return [witness for witness in clients if witness.asked is not None] or clients
