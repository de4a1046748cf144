"""Ask the clients' own app which losses examples have under the models that clients sent.

An app that trains knows its own loss, whatever it trains. See :mod:`fedattack.apps.answering`, which runs in another
process: the app's code is as trusted as in the run itself, and what it leaves behind goes with the process.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.common.config import flatten_dict
from numpy.typing import NDArray

from fedattack.apps.answering import PROGRESS
from fedattack.apps.app import App
from fedattack.apps.outside import read_app
from fedattack.apps.place import copy_files
from fedattack.attacks.knowledge import Answers, Sends, Targets, check_answers
from fedattack.base.errors import DataError, RunError, short
from fedattack.base.files import write_npz
from fedattack.base.untrusted import read_npz
from fedattack.record.folder import Part
from fedattack.runs.bundle import copy_app
from fedattack.runs.watch import Watch
from fedattack.witness import SERVER, Witness

_HINT = "expected what fedattack.apps.answering writes"


Say = Callable[[int, int], None]
"""Is told how many replies were asked about, and how many there are."""

Asking = Callable[[Part, Sequence[Witness], Targets, Sends | None], tuple[Answers, list[str]]]
"""Asks for the losses of targets, given how replies are read; returns them, and what a reader must know of them."""


def asker(app: App | None, watch: Watch | None = None) -> Asking | None:
    """Return what asks an app, and says how far it is; ``None`` where there is no app."""
    if app is None:
        return None

    def ask_about(
        part: Part, witnesses: Sequence[Witness], targets: Targets, sends: Sends | None
    ) -> tuple[Answers, list[str]]:
        def say(done: int, total: int) -> None:
            if watch is not None:
                watch.step(f"ask the app about {part.label}", done, total)

        return ask(app, part, witnesses, targets, sends, say)

    return ask_about


def ask(
    app: App,
    part: Part,
    witnesses: Sequence[Witness],
    targets: Targets,
    sends: Sends | None = None,
    say: Say | None = None,
) -> tuple[Answers, list[str]]:
    """Ask an app for the losses of targets under the model of each reply.

    Parameters
    ----------
    app
        The app; a copy of it is run.
    part
        A run of it, of which the record is read.
    witnesses
        What its clients did: how they were asked to train.
    targets
        The examples.
    sends
        How replies are read, where they are no models.

    Returns
    -------
    tuple of Answers and list of str
        The answers, and what a reader must know of them.

    Raises
    ------
    DataError
        If the app cannot be asked.
    RunError
        If its process ended without an answer.
    """
    arrays = _ask(app, part, witnesses, targets, sends, say)
    return check_answers(arrays, targets, "the app's answers"), arrays["notes"].tolist()


def ask_planted(
    app: App,
    part: Part,
    witnesses: Sequence[Witness],
    targets: Targets,
    owned: Mapping[str, Sequence[int]],
    passes: Sequence[int],
    sends: Sends | None = None,
    say: Say | None = None,
) -> dict[int, Answers]:
    """Ask the same of replies in which something is planted: each client trains further on its own targets.

    Parameters
    ----------
    owned
        By node, which targets are its own.
    passes
        How often it goes over them, in ascending order; each is a case of its own.

    Returns
    -------
    dict of int to Answers
        By the number of passes.
    """
    arrays = _ask(app, part, witnesses, targets, sends, say, owned, passes)
    found = {}
    for count in passes:
        of_case = {name.partition("@")[0]: array for name, array in arrays.items() if name.endswith(f"@{count}")}
        found[count] = check_answers(of_case, targets, "the app's answers")
    return found


def _ask(
    app: App,
    part: Part,
    witnesses: Sequence[Witness],
    targets: Targets,
    sends: Sends | None,
    say: Say | None,
    owned: Mapping[str, Sequence[int]] | None = None,
    passes: Sequence[int] = (),
) -> dict[str, NDArray[Any]]:
    handlers = _handlers(witnesses, app)
    if not handlers:
        raise DataError("no client was seen to be asked to train")
    with tempfile.TemporaryDirectory(prefix="fa-") as folder:
        copy, place = Path(folder) / app.folder.name, Path(folder) / "cwd"
        copy_app(app.folder, copy, without=part.folder.resolve())
        copy_files(app.folder, place, without=part.folder.resolve())
        flower = read_app(app.folder)["tool"]["flwr"]["app"]
        request = {
            "record": str(part.record.resolve()),
            "targets": str(Path(folder) / "targets.npz"),
            "answers": str(Path(folder) / "answers.npz"),
            "folder": str(copy),
            "clientapp": flower["components"]["clientapp"],
            "run_config": {**flatten_dict(flower.get("config", {})), **app.config},
            "handlers": handlers,
            "factors": None if sends is None or sends.factors is None else dict(sends.factors),
            "owned": {node: list(rows) for node, rows in (owned or {}).items()},
            "passes": list(passes),
        }
        write_npz(Path(request["targets"]), {"x": targets.x, "y": targets.y})
        file = Path(folder) / "request.json"
        file.write_text(json.dumps(request), encoding="utf-8")
        _run(file, Path(request["answers"]), place, say or (lambda done, total: None))
        return read_npz(Path(request["answers"]), RunError, _HINT)


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


def _run(request: Path, answers: Path, place: Path, say: Say) -> None:
    """Run the process that asks.

    Raises
    ------
    DataError
        If it refuses.
    RunError
        If it crashes, or ends without answers.
    """
    command = [sys.executable, "-m", "fedattack.apps.answering", str(request)]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        subprocess.Popen(
            command,
            cwd=place,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
        ) as process,
    ):
        try:
            for line in process.stdout or ():
                # The app may print what begins alike.
                if found := re.fullmatch(rf"{PROGRESS}(\d{{1,9}}) (\d{{1,9}})", line.rstrip("\n")):
                    say(int(found[1]), int(found[2]))
        except BaseException:
            process.kill()
            raise
        code = process.wait()
        errors.seek(0)
        lines = errors.read().strip().splitlines()
    if code == 2 and lines:
        raise DataError(lines[-1])
    if code or not answers.exists():
        raise RunError(
            f"the process that asks the app ended with {code}: {short(lines[-1] if lines else 'no word', 300)}"
        )
