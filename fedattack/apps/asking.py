"""Ask the clients' own app which losses examples have under the models that clients sent.

An app that trains knows its own loss, whatever it trains. See :mod:`fedattack.apps.answering`, which runs in another
process: the app's code is as trusted as in the run itself, and what it leaves behind goes with the process.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.common.config import flatten_dict
from numpy.typing import NDArray

from fedattack.apps.answering import PROGRESS, SHOWN, TOUCHED
from fedattack.apps.app import App
from fedattack.apps.functions import NO_FUNCTIONS, OwnFunctions, list_partitions, put_examples
from fedattack.apps.outside import read_app
from fedattack.apps.place import copy_files
from fedattack.apps.player import ENDED_BY_ALARM, LONGEST
from fedattack.apps.reading import find_adversary
from fedattack.attacks import ATTACKS, Scores
from fedattack.attacks.answers import (
    Answers,
    AskedOutputs,
    ShadowLosses,
    check_answers,
    check_outputs,
    check_shadow_losses,
)
from fedattack.attacks.knowledge import Knowledge, Sends, Targets
from fedattack.attacks.roles import ArrayRole, FoundRoles
from fedattack.base.errors import DataError, FedAttackError, RunError, short
from fedattack.base.files import write_npz
from fedattack.base.stored import check_arrays
from fedattack.base.untrusted import read_npz
from fedattack.record import Record
from fedattack.record.folder import Part
from fedattack.record.marks import RecordMark
from fedattack.runs import reaper
from fedattack.runs.bundle import copy_app
from fedattack.runs.private import private_folder, working_in
from fedattack.runs.watch import Watch
from fedattack.witness import SERVER, Witness, read_witnesses

NOTHING_KNOWN = Knowledge()
"""What an attacker knows that was told nothing."""

# Bytes of a line that the app prints, and of its last words, that are read.
_LONGEST_LINE, _LAST_WORDS = 10_000, 100_000

_WHERE = "the app's answers"
_HINT = "expected a file that fedattack.apps.answering writes"

# By ``-m`` the module would be named __main__, and other processes that it begins could not import it.
_ANSWER = """
from fedattack.base.imports import importing
with importing():
    from fedattack.apps.answering import main
main()
"""

BY_ESTIMATOR = ("losses come from the app's own ", "clients send the rows that ")
"""How notes begin that losses are an estimator's."""


@dataclass(frozen=True)
class Inquiry:
    """What an app is asked about: targets, by replies that are read as ``sends`` says, where they are no models.

    It reads the record of the run ``part``, whose ``witnesses`` say how clients were asked to train.
    """

    part: Part
    witnesses: Sequence[Witness]
    targets: Targets
    sends: Sends | None = None


class Learned(NamedTuple):
    """What an app that was asked said.

    Attributes
    ----------
    answers, notes
        The losses of the targets, and what a reader must know of them.
    roles
        What arrays are to the examples; none where its step gives no gradients.
    touched
        The rows of tables that have a gradient from clients' examples, as
        :attr:`fedattack.attacks.held_examples.HeldByClients.touched`; ``None`` where nothing says so.
    outputs
        What enters and leaves the last layer; ``None`` where the gradients show none.
    """

    answers: Answers
    notes: list[str]
    roles: tuple[ArrayRole, ...]
    touched: Mapping[str, NDArray[Any]] | None
    outputs: AskedOutputs | None


class Share(NamedTuple):
    """In how many replies something is planted, of how many of clients that have targets of their own."""

    replies: int
    of: int


@dataclass(frozen=True)
class Asker:
    """Asks an app, of which a copy is run, and says how far it is, if there is whom to tell."""

    app: App
    watch: Watch | None = None
    functions: OwnFunctions = NO_FUNCTIONS

    def examples(self, part: Part, witnesses: Sequence[Witness]) -> list[Witness]:
        """Return witnesses with the examples that the owner's function states in the place of those that hooks saw.

        Raises
        ------
        DataError
            If it states none of any client.
        """
        partitions = list_partitions(witnesses)
        with private_folder(part.folder) as folder:
            stated = {"partitions": partitions, "of": self.app.supernodes, "stated": str(folder / "stated")}
            request = {**stated, "keep": self.app.keep, "functions": self.functions.given()}
            self._run(part, folder, request, f"read the examples of {part.label}")
            found = {witness.client: witness for witness in read_witnesses(folder / "stated")}
        if not any(len(each.trained) for each in found.values()):
            # All for the same reason, mostly.
            raise DataError(next(note for each in found.values() for note in each.notes))
        return put_examples(witnesses, found)

    def losses(self, inquiry: Inquiry) -> tuple[Answers, list[str]]:
        """Return the losses of the targets under the model of each reply, and what a reader must know of them.

        Raises
        ------
        DataError
            If the app cannot be asked.
        RunError
            If its process ended without an answer.
        """
        arrays = self._ask(inquiry, f"ask the app about {inquiry.part.label}")
        return check_answers(arrays, inquiry.targets, _WHERE), arrays["notes"].tolist()

    def learn(self, inquiry: Inquiry, held: Mapping[str, Targets], besides: Knowledge) -> Learned:
        """Return losses, and what the gradients of single examples show; raises as :meth:`losses` does.

        Parameters
        ----------
        held
            All examples of clients, by name.
        besides
            What the attacker knows already: examples of its own, and how clients train.
        """
        step = f"ask the app about {inquiry.part.label}"
        try:
            arrays = self._ask(inquiry, step, held=held, besides=besides)
        except FedAttackError as cause:
            if self.functions.update is None or "--losses" in str(cause):
                raise
            # Losses need no updates, which may be what ended the process.
            alone = replace(self, functions=replace(self.functions, update=None))
            learned = alone.learn(inquiry, held, besides)
            return learned._replace(notes=[*learned.notes, f"only losses are used: {cause}"])
        answers = check_answers(arrays, inquiry.targets, _WHERE)
        roles = check_arrays(FoundRoles, {}, _WHERE, DataError, _HINT, entry=json.loads(str(arrays["roles"])))
        touched = {name.removeprefix(TOUCHED): array for name, array in arrays.items() if name.startswith(TOUCHED)}
        outputs = None
        shown = {name.removeprefix(SHOWN): array for name, array in arrays.items() if name.startswith(SHOWN)}
        if shown:
            outputs = check_outputs(shown, _WHERE, besides.auxiliary)
        return Learned(answers, arrays["notes"].tolist(), roles.roles, touched or None, outputs)

    def plant(
        self,
        inquiry: Inquiry,
        owned: Mapping[str, Sequence[int]],
        passes: Sequence[int],
        *,
        seqs: Sequence[int] = (),
        seconds: float | None = None,
    ) -> tuple[dict[int, Answers], Share]:
        """Ask the same of replies in which something is planted: each client trains further on its own targets.

        Parameters
        ----------
        owned
            By node, which targets are its own.
        passes
            How often a client goes over them, in ascending order.
        seqs
            The rounds that are asked about, by their positions in the record; all where it is empty.
        seconds
            After these nothing is planted in a further reply; ``None`` for no limit.

        Returns
        -------
        dict of int to Answers, Share
            By the number of passes; and in how many of the record's replies something is planted.
        """
        step = f"plant in {inquiry.part.label}"
        arrays = self._ask(inquiry, step, owned=owned, passes=passes, seqs=seqs, seconds=seconds)
        found = {}
        for count in passes:
            of_case = {name.partition("@")[0]: array for name, array in arrays.items() if name.endswith(f"@{count}")}
            found[count] = check_answers(of_case, inquiry.targets, _WHERE)
        return found, _share_of(arrays)

    def plant_steps(
        self,
        inquiry: Inquiry,
        owned: Mapping[str, Sequence[int]],
        together: Sequence[int],
        out: Path,
        *,
        seconds: float | None = None,
    ) -> tuple[dict[int, Record], Share]:
        """Let clients send one plain step on a few of their own targets in the place of their replies.

        After ``seconds`` replies stay as they are. Returned are, by how many targets at most, of ``together``, the
        record in the empty folder ``out``, and in how many of its replies there is a step.
        """
        step = f"plant steps in {inquiry.part.label}"
        arrays = self._ask(inquiry, step, owned=owned, together=together, out=out, seconds=seconds)
        return {count: Record(out / str(count)) for count in together}, _share_of(arrays)

    def plant_predictions(
        self,
        inquiry: Inquiry,
        owned: Mapping[str, Sequence[int]],
        passes: Sequence[int],
        out: Path,
        *,
        seconds: float | None = None,
    ) -> tuple[dict[int, Record], Share]:
        """Let clients predict after further training on their own targets, where they send predictions.

        After ``seconds`` replies stay as they are. Returned are, by the number of passes, the record in the empty
        folder ``out``, and in how many of its replies something is planted.
        """
        step = f"plant in the predictions of {inquiry.part.label}"
        arrays = self._ask(inquiry, step, owned=owned, passes=passes, out=out, seconds=seconds)
        return {count: Record(out / str(count)) for count in passes}, _share_of(arrays)

    def invert(
        self, inquiry: Inquiry, nodes: Sequence[str], planted: Mapping[str, Sequence[int]] | None = None
    ) -> Scores:
        """Return the scores of a search for the examples of these nodes' clients, through the app's own step.

        Where one target is ``planted`` at each of them, its client sends one plain step on that alone.
        """
        with private_folder(inquiry.part.folder) as folder:
            file = folder / "inverted.npz"
            self._ask(inquiry, f"search for examples of {inquiry.part.label}", few=nodes, inverted=file, owned=planted)
            scores = Scores.load(file)
        # A process that runs the app's code wrote it: what it holds is checked before it is kept.
        scores.as_found(ATTACKS["inversion"].found, _WHERE)
        return replace(scores, record=RecordMark.of(Record(inquiry.part.record)))

    def read_sequences(self, inquiry: Inquiry, record: Record) -> Scores:
        """Return the scores of a search for sequences of tokens, through the app's own step, in a record of the run."""
        with private_folder(inquiry.part.folder) as folder:
            file = folder / "sequences.npz"
            self._ask(inquiry, f"read sequences of {inquiry.part.label}", sequences=file, record=record.path)
            scores = Scores.load(file)
        # As above.
        scores.as_found(ATTACKS["dager"].found, _WHERE)
        return replace(scores, record=RecordMark.of(record))

    def shadows(self, inquiry: Inquiry, auxiliary: Targets) -> tuple[ShadowLosses, list[str]]:
        """Return the losses of the targets under models that the app trains on ``auxiliary``, and notes on them."""
        arrays = self._ask(inquiry, f"train shadow models of {inquiry.part.label}", auxiliary=auxiliary)
        return check_shadow_losses(arrays, inquiry.targets, _WHERE), arrays["notes"].tolist()

    def _ask(
        self,
        inquiry: Inquiry,
        step: str,
        *,
        auxiliary: Targets | None = None,
        held: Mapping[str, Targets] | None = None,
        besides: Knowledge = NOTHING_KNOWN,
        owned: Mapping[str, Sequence[int]] | None = None,
        passes: Sequence[int] = (),
        together: Sequence[int] = (),
        out: Path | str = "",
        seqs: Sequence[int] = (),
        seconds: float | None = None,
        few: Sequence[str] = (),
        inverted: Path | str = "",
        sequences: Path | str = "",
        record: Path | None = None,
    ) -> dict[str, NDArray[Any]]:
        app, part, sends = self.app, inquiry.part, inquiry.sends
        handlers = _handlers(inquiry.witnesses, app)
        if not handlers:
            raise DataError("no client was seen to be asked to train")
        # Losses are what functions are asked for, and all else of them.
        functions = self.functions.given()
        if self.functions.losses is None:
            functions = {}
        with private_folder(part.folder) as folder:
            flower = read_app(app.folder)["tool"]["flwr"]["app"]
            request = {
                "record": str((record or part.record).resolve()),
                "targets": _write_examples(folder / "targets.npz", inquiry.targets),
                "auxiliary": _write_examples(folder / "auxiliary.npz", auxiliary),
                "held": _write_held(folder / "held.npz", held),
                "own": _write_examples(folder / "own.npz", besides.auxiliary),
                "training": besides.training and vars(besides.training),
                "clientapp": flower["components"]["clientapp"],
                "run_config": {**flatten_dict(flower.get("config", {})), **app.config},
                "handlers": handlers,
                "factors": sends and sends.factors and dict(sends.factors),
                "sparse": sends and sends.sparse and vars(sends.sparse),
                "flat": sends and sends.flat and vars(sends.flat),
                "seqs": list(seqs),
                "seconds": seconds,
                "owned": {node: list(rows) for node, rows in (owned or {}).items()},
                "passes": list(passes),
                "together": list(together),
                "planted": str(out and Path(out).resolve()),
                "functions": functions,
                "adversary": find_adversary(inquiry.witnesses),
                "partitions": [],
                "few": list(few),
                "inverted": str(inverted),
                "sequences": str(sequences),
                "knowledge": str(part.knowledge.resolve()),
            }
            return self._run(part, folder, request, step)

    def _run(self, part: Part, folder: Path, request: Mapping[str, Any], step: str) -> dict[str, NDArray[Any]]:
        """Put a copy of the app into a private folder, ask it there, and return the arrays of the answer."""
        app = self.app
        copy, place, answers = folder / app.folder.name, folder / "cwd", folder / "answers.npz"
        copy_app(app.folder, copy, without=part.folder.resolve())
        copy_files(app.folder, place, without=part.folder.resolve())
        file = folder / "request.json"
        file.write_text(json.dumps({**request, "answers": str(answers), "folder": str(copy)}), encoding="utf-8")
        _run(file, answers, place, partial(self._say, step))
        return read_npz(answers, RunError, _HINT)

    def _say(self, step: str, done: int, total: int) -> None:
        if self.watch is not None:
            self.watch.step(step, done, total)


def _end_with(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Wait for a process, and end those that it left behind: they would keep open what its words come by.

    They are of the private ``folder``, and some may have sessions of their own.
    """
    process.wait()
    reaper.reap(folder.resolve())


def ask_examples(asker: Asker, part: Part, witnesses: Sequence[Witness], notes: list[str]) -> Sequence[Witness]:
    """Return witnesses with the examples that the owner's function states, if there is one, and note what that means.

    Where it fails they stay as they are, and a note says why.
    """
    function = asker.functions.examples
    if function is None:
        return witnesses
    try:
        found = asker.examples(part, witnesses)
    except FedAttackError as cause:
        notes.append(f"the clients' examples are those that the witness saw: {short(str(cause), 300)}")
        return witnesses
    notes.append(
        f"--examples {function}, called with each client's partition-id, says which examples the client trains on"
    )
    return found


def _share_of(arrays: Mapping[str, NDArray[Any]]) -> Share:
    return Share(int(arrays["replies"]), int(arrays["of"]))


def _write_examples(file: Path, examples: Targets | None) -> str:
    if examples is None:
        return ""
    write_npz(file, {"x": examples.x, "y": examples.y})
    return str(file)


def _write_held(file: Path, held: Mapping[str, Targets] | None) -> str:
    """Write the examples of clients one after the other, and how many each has; empty where none are asked about."""
    if held is None:
        return ""
    arrays = {
        "names": np.array([*held], dtype=np.str_),
        "lengths": np.array([len(examples) for examples in held.values()], dtype=np.int64),
    }
    if held:
        arrays["x"] = np.concatenate([examples.x for examples in held.values()])
        arrays["y"] = np.concatenate([examples.y for examples in held.values()])
    write_npz(file, arrays)
    return str(file)


def _handlers(witnesses: Sequence[Witness], app: App) -> dict[str, Mapping[str, Any]]:
    """Return by node how its client is asked to train."""
    found: dict[str, Mapping[str, Any]] = {}
    for witness in witnesses:
        if witness.node == SERVER or witness.asked is None:
            continue
        node: dict[str, Any] = {}
        if witness.client.isdecimal():
            node = {"partition-id": int(witness.client), "num-partitions": app.supernodes}
        found[witness.node] = {**vars(witness.asked), "node_config": node}
    return found


def _list_lines(process: "subprocess.Popen[bytes]") -> Iterator[bytes]:
    """Yield what a process prints, line by line; a line without an end comes in pieces."""
    while process.stdout is not None and (line := process.stdout.readline(_LONGEST_LINE)):
        yield line


def _run(request: Path, answers: Path, place: Path, say: Callable[[int, int], None]) -> None:
    """Run the process that asks; ``say`` is told how many replies were asked about, and how many there are.

    It works in the private folder of the ``request``, and ends with it.

    Raises
    ------
    DataError
        If it refuses.
    RunError
        If it crashes, or ends without answers.
    """
    command = [sys.executable, "-c", _ANSWER, str(request)]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command,
            cwd=place,
            env={
                **working_in(request.parent),
                "PYTHONDONTWRITEBYTECODE": "1",
                # What further processes are given goes with the private folder, too.
                "JOBLIB_TEMP_FOLDER": str(request.parent),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        ) as process,
    ):
        threading.Thread(target=_end_with, args=[process, request.parent], daemon=True).start()
        try:
            for line in _list_lines(process):
                # The app may print what begins alike.
                if found := re.fullmatch(rf"{PROGRESS}(\d{{1,9}}) (\d{{1,9}})\n", line.decode(errors="replace")):
                    say(int(found[1]), int(found[2]))
        except BaseException:
            process.kill()
            raise
        code = process.wait()
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - _LAST_WORDS))
        last = (errors.read().decode(errors="replace").strip().splitlines() or ["no word"])[-1]
    if code == ENDED_BY_ALARM:
        raise DataError(f"the app's code took too long and could not be stopped; if it takes longer, set {LONGEST}")
    if code == 2:
        raise DataError(last)
    if code < 0:
        killed = f"was ended by signal {-code} ({signal.strsignal(-code)}), often for lack of memory"
        raise RunError(f"the process that asks the app {killed}: {short(last, 200)}")
    if code or not answers.exists():
        raise RunError(f"the process that asks the app ended with {code}: {short(last, 300)}")
