"""Ask somebody's app itself for losses, in a process of its own: it runs the app's code.

The app's own train handler is called with the weights that are asked about, up to its first step. Of this step there is
a tape, which is played with each of the targets in the place of the client's examples. Nothing is trained, and no state
of a client is there.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from flwr.supercore.object_ref import load_app
from numpy.typing import NDArray

from fedattack.apps.player import Along, Form, Handler, Player, form_of
from fedattack.attacks.replies import replied
from fedattack.audit.numbers import count_words
from fedattack.base.errors import DataError, FedAttackError, short
from fedattack.base.files import write_npz
from fedattack.learning.importing import one_line
from fedattack.record import Exchange, Observation, Record, Round, rewrite_record
from fedattack.record.format import Arrays

PROGRESS = "fedattack asked "
"""How a line of the output begins that says how many replies were asked about."""

SHADOWS = 8
"""Shadow models that the app trains in a round."""

# Rounds in which it does, from the last one back, and seconds after which no further one is begun.
_SHADOW_ROUNDS, _SHADOW_SECONDS = 3, 300

PLANTING_SECONDS = 300
"""After so long nothing is planted in a further round: the positive control is then of the rounds before."""


class Interview:
    """Asks an app about all replies of a record.

    Parameters
    ----------
    request
        As :class:`fedattack.apps.asking.Asker` writes it.

    Attributes
    ----------
    auxiliary
        (n, …), (n,): examples of the attacker's own; n is 0 where it has none.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._request = request
        self._record = Record(Path(request["record"])).read_as((), request["factors"])
        self._x, self._y = _read_examples(request["targets"])
        self.auxiliary = _read_examples(request["auxiliary"]) if request["auxiliary"] else (self._x[:0], self._y[:0])
        self._app = load_app(request["clientapp"], DataError, request["folder"])
        self._players: dict[Form, Player] = {}
        # By why they could not be asked about: the round and the node of each reply.
        self._left_out: dict[str, list[tuple[int, str]]] = {}
        self._without_gradients = ""

    def answer(self, say: Callable[[str], None]) -> dict[str, NDArray[Any]]:
        """Do what the request asks for, and return the arrays of the answer.

        Raises
        ------
        DataError
            If it cannot be done.
        """
        if self._request["together"]:
            return self.plant(say)
        if len(self.auxiliary[1]):
            return self.play(say)
        return self.hold(say)

    def hold(self, say: Callable[[str], None]) -> dict[str, NDArray[Any]]:
        """Ask, and return the arrays of :class:`~fedattack.attacks.knowledge.Answers` and ``notes``.

        Where something is planted, the names of the arrays of each strength end in ``@`` and the number of passes, and
        ``rounds`` says in how many rounds it was.

        Raises
        ------
        DataError
            If no reply can be asked about.
        """
        passes = self._request["passes"] or [0]
        found = [_AnswerArrays() for _ in passes]
        total, done = sum(1 for _ in _replies(self._record)), 0
        rounds, started = 0, time.monotonic()
        for round_ in self._record:
            if self._request["passes"] and rounds and time.monotonic() - started > PLANTING_SECONDS:
                break
            rounds += 1
            asked: dict[str, list[tuple[Arrays, NDArray[np.float64]]]] = {}
            for reply in filter(_has_arrays, round_.observations):
                say(f"{PROGRESS}{done} {total}")
                done += 1
                of_reply = self._try(round_.number, reply)
                if of_reply is not None:
                    asked[reply.node] = of_reply
            for group in _group_by_model([one for one in round_.observations if one.node in asked]):
                self._add(round_.seq, group, asked, found)
        if not found[0].losses:
            raise DataError("; ".join(self._left_out) or "no reply holds arrays")
        return {"rounds": np.array(rounds), **self._put_together(passes, found)}

    def _put_together(self, passes: Sequence[int], found: Sequence["_AnswerArrays"]) -> dict[str, NDArray[Any]]:
        arrays: dict[str, NDArray[Any]] = {"notes": np.array(self._notes(), dtype=np.str_)}
        for count, one in zip(passes, found, strict=True):
            if len(self._players) > 1:
                one.calibrate()
            for name, values in vars(one).items():
                arrays[f"{name}@{count}" if count else name] = np.array(values)
        return arrays

    def play(self, say: Callable[[str], None]) -> dict[str, NDArray[Any]]:
        """Let the app train shadow models, and return the arrays of ``ShadowLosses`` and ``notes``.

        Raises
        ------
        DataError
            If it cannot.
        """
        # The last one comes first: it is there whatever the time allows.
        backwards = reversed(self._record.rounds)
        common = (round_ for round_ in backwards if any(map(_is_common, round_.observations)))
        rounds = [*islice(common, _SHADOW_ROUNDS)]
        seqs: list[int] = []
        losses: list[list[NDArray[np.float64]]] = []
        started = time.monotonic()
        for done, round_ in enumerate(rounds):
            if done and time.monotonic() - started > _SHADOW_SECONDS:
                break
            losses.append([])
            seqs.append(round_.seq)
            for of_shadow in self._train_shadows(round_):
                say(f"{PROGRESS}{done * SHADOWS + len(losses[-1])} {len(rounds) * SHADOWS}")
                losses[-1].append(of_shadow)
        if not losses:
            raise DataError("no reply holds arrays, of a client that was sent what others were sent")
        notes = [f"the app trained {SHADOWS} shadow models on the attacker's examples in each of {len(seqs)} rounds"]
        return {"seqs": np.array(seqs), "losses": np.array(losses), "notes": np.array(notes, dtype=np.str_)}

    def plant(self, say: Callable[[str], None]) -> dict[str, NDArray[Any]]:
        """Write records in which clients send one plain step on a few of their own targets; return ``notes``.

        Raises
        ------
        DataError
            If the app's step cannot be taken.
        """
        together = self._request["together"]
        for done, count in enumerate(together):
            say(f"{PROGRESS}{done} {len(together)}")
            out = Path(self._request["planted"]) / str(count)
            rewrite_record(self._record, out, partial(self._plant_in, count))
        return {"notes": np.array(self._notes(), dtype=np.str_)}

    def _plant_in(self, count: int, round_: Round, exchange: Exchange) -> Exchange:
        """Put one plain step on this many of its own targets in the place of each client's reply."""
        replies = []
        for reply in exchange.replies:
            rows = self._request["owned"].get(reply.node, [])
            received = reply.received or exchange.common
            if reply.status == "ok" and reply.arrays is not None and received is not None and rows:
                player = self._player(received, reply.node)
                player.take(received)
                chosen = np.random.default_rng(round_.seq).permutation(rows)[:count]
                reply = replace(reply, arrays=player.step(chosen.tolist()))
            replies.append(reply)
        return replace(exchange, replies=replies)

    def _train_shadows(self, round_: Round) -> Iterator[NDArray[np.float64]]:
        """Yield losses (targets,) under each model that the app trains in a round on the attacker's examples."""
        replies = [reply for reply in round_.observations if _is_common(reply)]
        received = dict(replies[0].received or {})
        player = self._player(received, replies[0].node)
        x, y = self.auxiliary
        counts = [reply.num_examples for reply in replies if reply.num_examples]
        size = min(len(y) // 2, int(np.median(counts or [len(y)])))
        for seed in range(round_.seq * SHADOWS, (round_.seq + 1) * SHADOWS):
            rows = np.random.default_rng(seed).choice(len(y), size, replace=False)
            player.take(player.update(received, x[rows, ...], y[rows], seed))
            yield player.losses()

    def _add(
        self,
        seq: int,
        group: Sequence[Observation],
        asked: Mapping[str, Sequence[tuple[Arrays, NDArray[np.float64]]]],
        found: Sequence["_AnswerArrays"],
    ) -> None:
        """Add replies to one model, of each number of passes, with what gradients at this model say of them."""
        nodes = [reply.node for reply in group]
        models = []
        for at in range(len(found)):
            models.append([asked[node][at][0] for node in nodes])
        along = self._try_along(group[0], models)
        for at, one in enumerate(found):
            losses = np.stack([asked[node][at][1] for node in nodes])
            one.add(seq, nodes, losses, None if along is None else along[at])

    def _try(self, number: int, reply: Observation) -> list[tuple[Arrays, NDArray[np.float64]]] | None:
        """Ask about a reply; what the app's own code raises is a reason why it is left out."""
        try:
            return self._ask(reply)
        except FedAttackError as cause:
            self._left_out.setdefault(str(cause), []).append((number, reply.node))
        except Exception as cause:
            self._left_out.setdefault(one_line(cause), []).append((number, reply.node))
        return None

    def _try_along(self, reply: Observation, models: Sequence[Sequence[Arrays]]) -> list[Along] | None:
        """Take gradients; where the app's own code raises, there are losses alone."""
        try:
            return self._along(reply, models)
        except Exception as cause:
            self._without_gradients = one_line(cause)
            return None

    def _player(self, weights: Arrays, node: str) -> Player:
        """Return what plays weights of this form: a step of the client's own, or of the first that has such."""
        form = form_of(weights)
        if form not in self._players:
            handlers = self._request["handlers"]
            asked = handlers.get(node) or next(iter(handlers.values()))
            handler = Handler(self._app, self._request["run_config"], **asked)
            self._players[form] = Player(handler, weights, self._x, self._y)
        return self._players[form]

    def _ask(self, reply: Observation) -> list[tuple[Arrays, NDArray[np.float64]]]:
        """Return weights and losses (targets,): of the client's own model, or after each number of passes more."""
        weights = dict(reply.arrays or {})
        _check_form(weights, reply)
        player = self._player(weights, reply.node)
        player.take(weights)
        if not self._request["passes"]:
            return [(weights, player.losses())]
        rows = self._request["owned"].get(reply.node, [])
        return [(trained, player.losses()) for trained in player.train(rows, self._request["passes"])]

    def _along(self, reply: Observation, models: Sequence[Sequence[Arrays]]) -> list[Along]:
        """Hold the targets' gradients at the model that clients were sent against what became of it, in each case."""
        received = dict(reply.received or {})
        player = self._player(received, reply.node)
        player.take(received)
        updates = [_update(weights, received) for of_case in models for weights in of_case]
        products, norms, lengths = player.along(updates)
        count = len(models[0])
        return [(products[at : at + count], norms, lengths[at : at + count]) for at in range(0, len(updates), count)]

    def _notes(self) -> list[str]:
        notes = [_count_left_out(reason, replies) for reason, replies in self._left_out.items()]
        if self._without_gradients:
            notes.append(
                f"the app's step gives no gradients of single examples ({self._without_gradients}): losses alone"
            )
        if len(self._players) > 1:
            notes.append(
                f"clients send models of {len(self._players)} forms; the losses of each client's model were scaled to "
                "one median over the targets, so that they can be compared"
            )
        for player in self._players.values():
            notes += player.assumed()
        return [*dict.fromkeys(notes)]


@dataclass
class _AnswerArrays:
    """The arrays of :class:`~fedattack.attacks.knowledge.Answers`, reply by reply."""

    seqs: list[int] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    losses: list[NDArray[np.float64]] = field(default_factory=list)
    products: list[NDArray[np.float64]] = field(default_factory=list)
    norms: list[NDArray[np.float64]] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)

    def add(self, seq: int, nodes: Sequence[str], losses: NDArray[np.float64], along: Along | None) -> None:
        """Add replies to one model."""
        unknown = np.full(losses.shape, np.nan)
        products, norms, lengths = along or (unknown, unknown[0], unknown[:, 0])
        for row, node in enumerate(nodes):
            self.seqs.append(seq)
            self.nodes.append(node)
            self.losses.append(losses[row])
            self.products.append(products[row])
            self.norms.append(norms)
            self.lengths.append(float(lengths[row]))

    def calibrate(self) -> None:
        """Bring the losses of all models to one median: those of a small model are larger for all examples."""
        medians = [float(np.median(losses)) for losses in self.losses]
        common = float(np.median(medians))
        if min(medians) > 0:
            self.losses = [losses * common / median for losses, median in zip(self.losses, medians, strict=True)]


def _count_left_out(reason: str, replies: Sequence[tuple[int, str]]) -> str:
    """Say which replies were left out for a reason."""
    rounds = dict.fromkeys(str(number) for number, _ in replies)
    nodes = dict.fromkeys(node for _, node in replies)
    of_rounds = f"{'round' if len(rounds) == 1 else 'rounds'} {short(', '.join(rounds), 60)}"
    of_nodes = f"{'client' if len(nodes) == 1 else 'clients'} {short(', '.join(nodes), 60)}"
    return f"{count_words(len(replies), 'reply', 'replies')} of {of_nodes} in {of_rounds} left out: {reason}"


def _update(sent: Arrays, received: Arrays) -> Arrays:
    """Return Δ = sent − received, in float32, of what are numbers with a point."""
    update = {}
    for name, after in sent.items():
        if np.asarray(after).dtype.kind != "f":
            continue
        update[name] = (np.asarray(after, np.float64) - np.asarray(received[name], np.float64)).astype(np.float32)
    return update


def _group_by_model(replies: Sequence[Observation]) -> Iterator[list[Observation]]:
    """Yield the replies to one model together."""
    together = [reply for reply in replies if not reply.singled_out]
    if together:
        yield together
    for reply in replies:
        if reply.singled_out:
            yield [reply]


def _read_examples(file: str) -> tuple[NDArray[Any], NDArray[Any]]:
    with np.load(file, allow_pickle=False) as arrays:
        return arrays["x"], arrays["y"]


def _is_common(reply: Observation) -> bool:
    """Say whether a reply holds arrays, of a client that was sent what others were sent."""
    return _has_arrays(reply) and not reply.singled_out and reply.received is not None


def _has_arrays(reply: Observation) -> bool:
    return replied(reply) and reply.arrays is not None


def _replies(record: Record) -> Iterator[Observation]:
    for round_ in record:
        yield from filter(_has_arrays, round_.observations)


def _check_form(weights: Arrays, reply: Observation) -> None:
    """Refuse a reply that is not of the form of what the client was sent.

    Raises
    ------
    DataError
        If it is not.
    """
    received = reply.received
    if received is None:
        raise DataError("what model it was sent is not in the record")
    sent, before = dict(form_of(weights)), dict(form_of(received))
    appeared = [name for name in sent if name not in before]
    vanished = [name for name in before if name not in sent]
    reshaped = [name for name in sent if name in before and sent[name] != before[name]]
    if appeared or vanished or reshaped:
        parts = (("appeared", appeared), ("vanished", vanished), ("are of another shape", reshaped))
        faults = [f"{short(', '.join(names), 80)} {how}" for how, names in parts if names]
        raise DataError(f"it replied other arrays than it was sent: {'; '.join(faults)}")


def main() -> int:
    """Read a request, answer it, and write the answers where it says."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        interview = Interview(request)
        found = interview.answer(lambda line: print(line, file=sys.__stdout__, flush=True))
    except FedAttackError as cause:
        print(short(str(cause), 500), file=sys.stderr)
        return 2
    write_npz(Path(request["answers"]), found)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that the app began would keep the process.
    os._exit(code)
