"""Ask somebody's app itself for losses, in a process of its own: it runs the app's code.

The app's own train handler is called with the weights that are asked about, up to its first step. Of this step there is
a tape, which is played with each of the targets in the place of the client's examples. Nothing is trained, and no state
of a client is there.
"""

import json
import math
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from flwr.supercore.object_ref import load_app
from numpy.typing import NDArray

from fedattack.apps.calling import FunctionPlayer, OwnFunction, limit_memory, write_examples
from fedattack.apps.discriminating import DiscriminatorPlayer
from fedattack.apps.generating import GeneratorPlayer
from fedattack.apps.player import UPDATES_MEMORY, Along, Form, Handler, Player, WeightsPlayer, form_of
from fedattack.apps.predicting import PredictingClient
from fedattack.apps.probing import (
    EXAMPLES,
    ask_outputs,
    ask_roles,
    ask_touched,
    describe_roles,
    join_outputs,
    join_touched,
)
from fedattack.attacks import Scores, read_knowledge
from fedattack.attacks.answers import AskedOutputs
from fedattack.attacks.knowledge import Knowledge, Targets
from fedattack.attacks.last_layer import LastLayer, find_last_by_form
from fedattack.attacks.replies import replied
from fedattack.attacks.roles import ArrayRole, FoundRoles
from fedattack.attacks.tables import find_tables_by_roles
from fedattack.audit.numbers import count_words
from fedattack.base.cluster import chosen
from fedattack.base.errors import DataError, FedAttackError, short
from fedattack.base.files import write_npz
from fedattack.base.machine import usable_cpus
from fedattack.base.stored import split
from fedattack.base.structured import fields
from fedattack.defences.checked import digest_of
from fedattack.learning.importing import one_line
from fedattack.learning.stated import LocalSGD
from fedattack.record import Exchange, Observation, Record, Round, rewrite_record
from fedattack.record.format import Arrays
from fedattack.record.views import ChangedEntries, FlatVector
from fedattack.witness.seen import DISCRIMINATOR, GENERATOR

PROGRESS = "fedattack asked "
"""How a line of the output begins that says how many replies were asked about."""

TOUCHED = "touched."
"""How the names of the arrays begin that say which rows of tables have a gradient from clients' examples."""

SHOWN = "outputs."
"""How the names of the arrays begin that say what enters and leaves the last layer."""

SHADOWS = 8
"""Shadow models that the app trains in a round."""

# Losses that move by less than this part of their range are the same: examples are float32 here, and variances small.
_SAME = 1e-4

# Forms of models of which it is asked what their arrays are.
_MOST_FORMS = 4

# Rounds in which it does, from the last one back, and seconds after which no further one is begun.
_SHADOW_ROUNDS, _SHADOW_SECONDS = 3, 300

_Piece = TypeVar("_Piece")
_Result = TypeVar("_Result")


class _Group(NamedTuple):
    """Clients of a round who were sent one model."""

    seq: int
    nodes: tuple[str, ...]


class _Shadow(NamedTuple):
    """A shadow model: of which round, by which seed."""

    seq: int
    seed: int


@dataclass(frozen=True)
class _FormOfModel:
    """A form of models: what plays the app's own step, the first and the last model of it, and who was sent one."""

    player: Player
    received: Arrays
    later: Arrays
    nodes: set[str] = field(default_factory=set)


class Interview:
    """Asks an app about all replies of a record; ``request`` is as :class:`fedattack.apps.asking.Asker` writes it.

    Other processes do a part of a large one. Each has an interview of its own on the same request.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._request = request
        entries = None
        if request["sparse"]:
            entries = ChangedEntries(**request["sparse"])
        # Owners' functions are given arrays as they are sent; all else plays the model that stands in a vector.
        self._flat = None
        if request["flat"] and not request["functions"]:
            flat = request["flat"]
            self._flat = FlatVector(flat["vector"], tuple(flat["names"]), tuple(map(tuple, flat["shapes"])))
        record = Record(Path(request["record"]))
        self._record = record.read_as((), request["factors"], entries=entries, flat=self._flat)
        self._x, self._y = _read_examples(request["targets"])
        # What the attacker has of its own.
        self.auxiliary = self._x[:0], self._y[:0]
        if request["auxiliary"]:
            self.auxiliary = _read_examples(request["auxiliary"])
        self._app = load_app(request["clientapp"], DataError, request["folder"])
        # In the place of the app's own step, by the options that name them.
        self._functions: Mapping[str, str] = request["functions"]
        self._players: dict[Form, WeightsPlayer] = {}
        # In how many replies something is planted, how many of these it changed, and until when it is in further ones.
        self._planted, self._changed, self._until = 0, 0, math.inf
        if request["seconds"] is not None:
            self._until = time.monotonic() + request["seconds"]
        # Why replies could not be asked about, and how many.
        self._left_out: Counter[str] = Counter()
        self._without_gradients = ""
        # What plays where clients fit an estimator of scikit-learn, or why nothing does.
        self._fitted: WeightsPlayer | None = None
        self._why_unfitted = ""
        # Says how far it is: how many replies were asked about, of how many.
        self._say: Callable[[str], object] = _say_nothing
        self._done = self._total = 0
        # In another process, the forms of which the first reply was looked for.
        self._looked_for: set[Form] | None = None

    def follow_another(self) -> None:
        """Begin where another process began: with the first models of the whole interview."""
        self._looked_for = set()

    def __reduce__(self) -> tuple[Any, ...]:
        # An app cannot be pickled.
        return _interview_elsewhere, (json.dumps(self._request),)

    def answer(self, say: Callable[[str], None]) -> dict[str, NDArray[Any]]:
        """Do what the request asks for, and return the arrays of the answer.

        Raises
        ------
        DataError
            If it cannot be done.
        """
        if not self._functions and "sklearn" in sys.modules:
            self._try_fitted()
        if self._request["together"]:
            return self.plant(say)
        if self._request["planted"]:
            return self.plant_predictions(say)
        if self._request["inverted"]:
            return self.invert()
        if self._request["sequences"]:
            return self.read_sequences()
        if len(self.auxiliary[1]):
            return self.play(say)
        return self.hold(say)

    def _try_fitted(self) -> None:
        """Find out whether clients fit an estimator of scikit-learn, by the first that was sent something."""
        # It imports scikit-learn, which apps of other frameworks may lack.
        from fedattack.apps.estimating import EstimatorPlayer, meets_fit

        for reply in (reply for round_ in self._record for reply in _list_replies(round_)):
            if reply.received is None:
                continue
            handler, received = self._handler(reply.node), dict(reply.received)
            try:
                if meets_fit(handler, received):
                    self._fitted = self._players[()] = EstimatorPlayer(handler, received, self._x, self._y)
            except DataError as cause:
                self._why_unfitted = str(cause)
            return

    def _handler(self, node: str) -> Handler:
        """Return the training of a client; one of which no step is known takes that of the first that has one."""
        handlers = self._request["handlers"]
        asked = handlers.get(node) or next(iter(handlers.values()))
        return Handler(self._app, self._request["run_config"], **asked, flat=self._flat)

    def hold(self, say: Callable[[str], None]) -> dict[str, NDArray[Any]]:
        """Ask, and return the arrays of :class:`~fedattack.attacks.knowledge.Answers` and ``notes``.

        Where something is planted, the names of the arrays of each strength end in ``@`` and the number of passes, and
        ``replies`` says in how many replies it is, ``of`` how many.
        """
        passes = self._request["passes"] or [0]
        found = [_AnswerArrays() for _ in passes]
        groups = [*self._list_groups()]
        self._say, self._total = say, sum(len(group.nodes) for group in groups)
        left_out: Counter[str] = Counter()
        assumptions: dict[Form, list[str]] = {}
        done, without_gradients = 0, ""
        pieces = self._spread(self._ask_group, self._begin_groups(groups), len(groups))
        # There are fewer pieces than groups where the time is over.
        for group, piece in zip(groups, pieces, strict=False):
            done += len(group.nodes)
            self._say_done(done)
            for one, of_group in zip(found, piece.found, strict=True):
                one.extend(of_group)
            left_out += piece.left_out
            without_gradients = piece.without_gradients or without_gradients
            for form, said in piece.assumptions.items():
                assumptions.setdefault(form, []).extend(said)
        if not found[0].losses:
            raise DataError(self._why_unfitted or "; ".join(left_out) or "no reply holds arrays")
        notes = _write_notes(left_out, without_gradients, assumptions)
        arrays: dict[str, NDArray[Any]] = {**self._count_planted(self._changed), "notes": notes}
        for count, one in zip(passes, found, strict=True):
            if len(assumptions) > 1:
                one.calibrate()
            ending = f"@{count}" if count else ""
            for name, values in vars(one).items():
                arrays[f"{name}{ending}"] = np.array(values)
        if self._request["held"]:
            arrays |= self._learn_roles(notes)
        return arrays

    def _learn_roles(self, known: NDArray[np.str_]) -> dict[str, NDArray[Any]]:
        """Find by gradients what arrays are, which rows clients' examples move, and what the last layer computes.

        Models of each form are asked, up to :data:`_MOST_FORMS`, and share the time.
        """
        roles: list[ArrayRole] = []
        touched: list[Mapping[str, NDArray[Any]]] = []
        outputs: list[AskedOutputs] = []
        notes = []
        forms = self._list_forms()
        share = 1 / max(1, min(len(forms), _MOST_FORMS))
        for number, form in enumerate(forms[:_MOST_FORMS]):
            player, received = form.player, form.received
            whose = f" of models of form {number + 1}, {_describe_form(received)}," if len(forms) > 1 else ""
            of_form: list[ArrayRole] = []
            try:
                for role in ask_roles(player, [received, form.later], self._x, self._y, share):
                    of_form.append(replace(role, form=number))
                tables = find_tables_by_roles(of_form, Knowledge(targets=Targets(self._x, self._y)))
                rows = ask_touched(player, tables, self._find_held(form, forms), share)
                touched += [rows] if rows is not None else []
                for last in find_last_by_form(of_form).values():
                    found = self._ask_outputs(player, last, share)
                    outputs += [found] if found is not None else []
            except Exception as cause:  # the app's own code may raise anything
                notes.append(f"the roles of the arrays{whose} are not known, or only in part: {one_line(cause)}")
            roles += of_form
            if said := describe_roles(of_form):
                notes.append(
                    f"gradients of up to {EXAMPLES} single examples, computed by the app's own step, show the roles of "
                    f"arrays{whose.rstrip(',')}: {said}"
                )
        if len(forms) > _MOST_FORMS:
            notes.append(
                f"clients send models of {len(forms)} forms; the roles of arrays were asked of the first {_MOST_FORMS}"
            )
        arrays: dict[str, NDArray[Any]] = {}
        if touched:
            arrays |= {f"{TOUCHED}{name}": array for name, array in join_touched(touched).items()}
        if outputs:
            arrays |= {f"{SHOWN}{name}": array for name, array in vars(join_outputs(outputs)).items()}
        entry, _ = split(FoundRoles(tuple(roles)))
        return {**arrays, "roles": np.array(json.dumps(entry)), "notes": np.append(known, notes).astype(np.str_)}

    def _ask_outputs(self, player: Player, last: LastLayer, share: float) -> AskedOutputs | None:
        own = training = None
        if self._request["own"]:
            own = Targets(*_read_examples(self._request["own"]))
        if self._request["training"]:
            training = LocalSGD(**self._request["training"])
        if own is None and fields(self._x):
            return None
        return ask_outputs(player, last, self._record, own, training, self._x.shape[1:], share)

    def _list_forms(self) -> list["_FormOfModel"]:
        """List the forms of models of which the app's own step is played, in their order in the record."""
        players = {form: player for form, player in self._players.items() if isinstance(player, Player)}
        found: dict[Form, _FormOfModel] = {}
        for round_ in self._record:
            for reply in _list_replies(round_):
                # Where there is one form, nobody asks who has it.
                if reply.received is None or len(found) == len(players) == 1:
                    continue
                received = dict(reply.received)
                form = form_of(received)
                if form in players and form not in found:
                    found[form] = _FormOfModel(players[form], received, self._find_last(form))
                if form in found:
                    found[form].nodes.add(reply.node)
        return [*found.values()]

    def _find_last(self, form: Form) -> Arrays:
        """Return the last model of a form that a client was sent."""
        for round_ in reversed(self._record.rounds):
            for reply in _list_replies(round_):
                if reply.received is not None and form_of(reply.received) == form:
                    return dict(reply.received)
        raise AssertionError("a model of the form was found before")

    def _find_held(
        self, form: "_FormOfModel", forms: Sequence["_FormOfModel"]
    ) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
        """Return the examples of clients, by name, but for those that were sent models of other forms."""
        held = _read_held(self._request["held"])
        others = {self._name_of(node) for other in forms if other is not form for node in other.nodes - form.nodes}
        return {name: examples for name, examples in held.items() if name not in others}

    def _name_of(self, node: str) -> str:
        """Return what the client of a node is called: its partition, where it has one."""
        config = self._request["handlers"].get(node, {}).get("node_config", {})
        return str(config.get("partition-id", node))

    @cached_property
    def _rounds(self) -> list[Round]:
        """The rounds that are asked about."""
        seqs = self._request["seqs"]
        return [round_ for round_ in self._record if not seqs or round_.seq in seqs]

    def _list_groups(self) -> Iterator[_Group]:
        """List whom to ask about together: they share the gradients at the model that they were sent."""
        for round_ in self._rounds:
            for group in _group_by_model(_list_replies(round_), len(self._request["passes"]) or 1):
                yield _Group(round_.seq, tuple(reply.node for reply in group))

    def _begin_groups(self, groups: Sequence[_Group]) -> Iterator[_Group]:
        """Yield groups up to the round before which the time is over."""
        for _, of_round in groupby(groups, attrgetter("seq")):
            if self._is_over:
                return
            yield from of_round

    def _spread(self, work: Callable[[_Piece], _Result], pieces: Iterator[_Piece], count: int) -> Iterable[_Result]:
        """Do pieces side by side where there are more than cores; else one after another, each on all cores."""
        # Owners' functions and estimators share the cores by themselves, and one process counts what it plants.
        alone = self._functions or self._fitted is not None or self._request["passes"]
        # On another machine there is no app.
        if alone or chosen() or torch.accelerator.is_available() or count <= usable_cpus():
            return map(work, pieces)
        # It imports what a small interview does without.
        from fedattack.attacks._fan_out import fan_out

        return fan_out(work, pieces, workers=0, memory=UPDATES_MEMORY, count=count)

    def _ask_group(self, group: _Group) -> "_Asked":
        """Ask about the replies of a group."""
        self._left_out, self._without_gradients = Counter(), ""
        found = [_AnswerArrays() for _ in self._request["passes"] or [0]]
        asked: dict[str, list[_Model]] = {}
        replies = [reply for reply in _list_replies(self._find_round(group.seq)) if reply.node in group.nodes]
        for reply in replies:
            self._say_done(self._done)
            self._done += 1
            if models := self._try(reply):
                asked[reply.node] = models
        if asked:
            self._add(group.seq, [reply for reply in replies if reply.node in asked], asked, found)
        assumptions = {form: [*player.list_assumptions()] for form, player in self._players.items()}
        return _Asked(found, self._left_out, self._without_gradients, assumptions)

    def _find_round(self, seq: int) -> Round:
        return next(round_ for round_ in self._record if round_.seq == seq)

    def _say_done(self, done: int) -> None:
        self._done = done
        self._say(f"{PROGRESS}{done} {self._total}")

    @property
    def _is_over(self) -> bool:
        """Whether nothing more is to be planted; in one reply it always is."""
        return self._planted > 0 and time.monotonic() > self._until

    def _count_planted(self, planted: int) -> dict[str, NDArray[Any]]:
        """Return in how many ``replies`` something is planted, ``of`` how many of clients that have own targets."""
        owned, count = self._request["owned"], 0
        for round_ in self._record:
            count += sum(bool(owned.get(reply.node)) for reply in _list_replies(round_))
        return {"replies": np.array(planted), "of": np.array(count)}

    def play(self, say: Callable[[str], None]) -> dict[str, NDArray[Any]]:
        """Let the app train shadow models, and return the arrays of ``ShadowLosses`` and ``notes``."""
        rounds = self._shadow_rounds
        if not rounds:
            raise DataError("no reply with arrays comes from a client that received the same as others")
        seqs = [round_.seq for round_ in rounds]
        shadows = [_Shadow(seq, seed) for seq in seqs for seed in range(seq * SHADOWS, (seq + 1) * SHADOWS)]
        losses: list[NDArray[np.float64]] = []
        for of_shadow in self._spread(self._train_shadow, _begin_shadows(shadows), len(shadows)):
            losses.append(of_shadow)
            say(f"{PROGRESS}{len(losses)} {len(shadows)}")
        made = len(losses) // SHADOWS
        note = f"the app trained {SHADOWS} shadow models on the attacker's examples in each of {made} rounds"
        return {
            "seqs": np.array(seqs[:made]),
            "losses": np.array(losses).reshape(made, SHADOWS, -1),
            "notes": np.array([note], dtype=np.str_),
        }

    @cached_property
    def _shadow_rounds(self) -> list[Round]:
        """The rounds in which shadow models are trained."""
        # The last one comes first: it is there whatever the time allows.
        backwards = reversed(self._record.rounds)
        return [*islice((round_ for round_ in backwards if _list_common(round_)), _SHADOW_ROUNDS)]

    def plant(self, say: Callable[[str], None]) -> dict[str, NDArray[Any]]:
        """Write records in which clients send one plain step on a few of their own targets, and count these replies."""
        together = self._request["together"]
        # Each record has its part of the time.
        seconds, counts = (self._until - time.monotonic()) / len(together), []
        for done, count in enumerate(together):
            say(f"{PROGRESS}{done} {len(together)}")
            out = Path(self._request["planted"]) / str(count)
            self._planted, self._until = 0, time.monotonic() + seconds
            rewrite_record(self._record, out, partial(self._plant_in, count))
            counts.append(self._planted)
        return self._count_planted(min(counts))

    def plant_predictions(self, say: Callable[[str], None]) -> dict[str, NDArray[Any]]:
        """Write records in which clients predict after further training on their own targets; count these replies."""
        passes = self._request["passes"]
        clients: dict[str, PredictingClient] = {}
        # By round and node, what the client sends after each number of passes.
        planted: dict[tuple[int, str], list[Arrays]] = {}
        replies = [(round_.seq, reply) for round_ in self._record for reply in _list_replies(round_)]
        for done, (seq, reply) in enumerate(replies):
            say(f"{PROGRESS}{done} {len(replies)}")
            rows = self._request["owned"].get(reply.node, [])
            if not rows or reply.received is None or self._is_over:
                continue
            if reply.node not in clients:
                clients[reply.node] = PredictingClient(self._handler(reply.node), self._x, self._y)
            received, sent = dict(reply.received), dict(reply.arrays or {})
            try:
                planted[seq, reply.node] = [*clients[reply.node].train(received, sent, rows, passes, seq)]
                self._planted += 1
            except FedAttackError as cause:
                self._left_out[str(cause)] += 1
            except Exception as cause:  # the app's own code may raise anything
                self._left_out[one_line(cause)] += 1
        if not planted:
            raise DataError("; ".join(self._left_out) or "no reply comes from a client with its own targets")
        for index, count in enumerate(passes):
            of_count = {key: arrays[index] for key, arrays in planted.items()}
            rewrite_record(
                self._record, Path(self._request["planted"]) / str(count), partial(_replace_arrays, of_count)
            )
        return self._count_planted(sum(client.changed for client in clients.values()))

    def invert(self) -> dict[str, NDArray[Any]]:
        """Search for the examples of a few clients, write the scores, and return ``notes`` on them."""
        # It imports what searches, which no other question needs.
        from fedattack.apps.inverting import invert_replies

        began = time.process_time()
        knowledge = read_knowledge(Path(self._request["knowledge"]))
        planted = {node: rows[0] for node, rows in self._request["owned"].items()}
        found, notes = invert_replies(
            self._record, knowledge, self._request["few"], (self._x, self._y), self._play_step, planted
        )
        seconds = time.process_time() - began
        scores = Scores.of("inversion", found, notes, seconds)
        scores.save(Path(self._request["inverted"]))
        return {"notes": np.array(notes, dtype=np.str_)}

    def read_sequences(self) -> dict[str, NDArray[Any]]:
        """Read sequences of tokens off updates, write the scores, and return ``notes`` on them."""
        # It imports what searches, which no other question needs.
        from fedattack.apps.sequencing import read_sequences

        began = time.process_time()
        knowledge = read_knowledge(Path(self._request["knowledge"]))
        found, notes = read_sequences(self._record, knowledge, (self._x, self._y), self._play_step)
        scores = Scores.of("dager", found, notes, time.process_time() - began)
        scores.save(Path(self._request["sequences"]))
        return {"notes": np.array(notes, dtype=np.str_)}

    def _play_step(self, weights: Arrays, node: str) -> Player:
        """Return what plays the step of PyTorch that a client makes."""
        player = self._player(weights, node)
        if not isinstance(player, Player):
            raise DataError("the app makes no PyTorch step that could be replayed")
        return player

    def _plant_in(self, count: int, round_: Round, exchange: Exchange) -> Exchange:
        """Put one plain step on this many of its own targets, 0 for all, in the place of each client's reply."""
        replies = []
        for reply in exchange.replies:
            rows = self._request["owned"].get(reply.node, [])
            received = reply.received or exchange.common
            has_model = reply.status == "ok" and reply.arrays is not None
            if has_model and received is not None and rows and not self._is_over:
                player = self._player(received, reply.node)
                player.take(received)
                chosen = np.random.default_rng(round_.seq).permutation(rows)[: count or None]
                reply = replace(reply, arrays=player.step(chosen.tolist()))
                self._planted += 1
            replies.append(reply)
        return replace(exchange, replies=replies)

    def _train_shadow(self, shadow: _Shadow) -> NDArray[np.float64]:
        """Return losses (targets,) under a model that the app trains on some of the attacker's examples."""
        replies = _list_common(self._find_round(shadow.seq))
        received = dict(replies[0].received or {})
        player = self._player(received, replies[0].node)
        x, y = self.auxiliary
        counts = [reply.num_examples for reply in replies if reply.num_examples]
        size = min(len(y) // 2, int(np.median(counts or [len(y)])))
        rows = np.random.default_rng(shadow.seed).choice(len(y), size, replace=False)
        player.take(player.update(received, x[rows, ...], y[rows], shadow.seed))
        return player.losses()

    def _add(
        self,
        seq: int,
        group: Sequence[Observation],
        asked: Mapping[str, Sequence["_Model"]],
        found: Sequence["_AnswerArrays"],
    ) -> None:
        """Add replies to one model, of each number of passes, with what gradients at this model say of them."""
        nodes = [reply.node for reply in group]
        # By the number of passes, the models of all replies.
        cases = [*zip(*map(asked.__getitem__, nodes), strict=True)]
        try:
            along = self._along(group[0], cases)
        except Exception as cause:
            # Where the app's own code raises, there are losses alone.
            self._without_gradients = one_line(cause)
            along = [None] * len(found)
        for one, models, of_case in zip(found, cases, along, strict=True):
            one.add(seq, nodes, np.stack([losses for _, losses in models]), of_case)

    def _try(self, reply: Observation) -> list["_Model"]:
        """Ask about a reply; what the app's own code raises is a reason why it is left out."""
        try:
            return self._ask(reply)
        except FedAttackError as cause:
            self._left_out[str(cause)] += 1
        except Exception as cause:
            self._left_out[one_line(cause)] += 1
        return []

    def _player(self, weights: Arrays, node: str) -> WeightsPlayer:
        """Return what plays weights of this form: the owner's functions, or a fit or step of the client's own."""
        if self._fitted is not None:
            return self._fitted
        form = form_of(weights)
        if form not in self._players and self._functions:
            losses, update = self._own_functions
            self._players[form] = FunctionPlayer(losses, update, self._x, self._y)
        elif form not in self._players:
            self._begin_with_first(form)
            if form not in self._players:
                self._players[form] = self._make_player(weights, node)
        return self._players[form]

    @cached_property
    def _own_functions(self) -> tuple[OwnFunction, OwnFunction | None]:
        """What gives losses, and what updates, if anything does: models of all forms share the time of each."""
        update = None
        if "--update" in self._functions:
            update = OwnFunction.load("--update", self._functions["--update"])
        return OwnFunction.load("--losses", self._functions["--losses"]), update

    def _make_player(self, weights: Arrays, node: str) -> WeightsPlayer:
        """Return what plays weights of a new form by a client's own training."""
        makers: Mapping[str, Callable[..., WeightsPlayer]] = {
            GENERATOR: GeneratorPlayer,
            DISCRIMINATOR: DiscriminatorPlayer,
            "": Player,
        }
        make = makers[self._request["adversary"]]
        return make(self._handler(node), weights, self._x, self._y)

    def _begin_with_first(self, form: Form) -> None:
        """Begin with the first model of a form where another process did, too: some of an app stays as it is then."""
        if self._looked_for is None or form in self._looked_for:
            return
        self._looked_for.add(form)
        for weights, node in self._list_models():
            if form_of(weights) == form:
                with suppress(Exception):
                    self._players[form] = self._make_player(weights, node)
                    return

    def _list_models(self) -> Iterator[tuple[Arrays, str]]:
        """List the models that are played, in the order of the whole interview, with whose they are."""
        if len(self.auxiliary[1]):
            for round_ in self._shadow_rounds:
                first = _list_common(round_)[0]
                yield dict(first.received or {}), first.node
            return
        for round_ in self._rounds:
            for reply in _list_replies(round_):
                yield dict(reply.arrays or {}), reply.node

    def _ask(self, reply: Observation) -> list["_Model"]:
        """Return weights and losses (targets,): of the client's own model, or after each number of passes more."""
        weights = dict(reply.arrays or {})
        # What is fitted anew need not have the form of what was sent.
        if not self._functions and self._fitted is None:
            _check_form(weights, reply)
        player = self._player(weights, reply.node)
        player.take(weights)
        if not self._request["passes"]:
            return [(weights, player.losses())]
        rows = self._request["owned"].get(reply.node, [])
        # What the time does not allow is asked about as it is.
        if self._is_over:
            rows = []
        # A step leaves a model as it is where its loss does not follow the examples, which its weights show.
        before = None if isinstance(player, Player) or not rows else player.losses()
        models = [(trained, player.losses()) for trained in player.train(rows, self._request["passes"])]
        if not rows:
            return models
        self._planted += 1
        if before is None:
            self._changed += any(_differ(weights, trained) for trained, _ in models)
        else:
            # What is fitted anew to the same examples each time is the same, but for rounding.
            moved = max(float(np.abs(losses - before).max()) for _, losses in models)
            self._changed += moved > _SAME * float(np.ptp(before))
        return models

    def _along(self, reply: Observation, cases: Sequence[Sequence["_Model"]]) -> list[Along | None]:
        """Hold the targets' gradients at the model that clients were sent against what became of it, in each case."""
        received = dict(reply.received or {})
        player = self._player(received, reply.node)
        if not player.gives_gradients:
            return [None] * len(cases)
        player.take(received)
        updates = [_update(weights, received) for models in cases for weights, _ in models]
        products, norms, lengths = player.along(updates)
        split = np.split(products, len(cases)), np.split(lengths, len(cases))
        return [(of_case, norms, its_lengths) for of_case, its_lengths in zip(*split, strict=True)]


def _replace_arrays(arrays: Mapping[tuple[int, str], Arrays], round_: Round, exchange: Exchange) -> Exchange:
    """Put other arrays, by round and node, into the place of those of replies."""
    replies = []
    for reply in exchange.replies:
        replies.append(replace(reply, arrays=arrays.get((round_.seq, reply.node), reply.arrays)))
    return replace(exchange, replies=replies)


def _describe_form(arrays: Arrays) -> str:
    """Say how large the arrays of a model are, of which others have other forms."""
    return short(", ".join(f"{name} {np.shape(array)}" for name, array in arrays.items()), 60)


def _say_nothing(line: str) -> None:
    """Take what a process that does a part of the work need not say."""


@cache
def _interview_elsewhere(request: str) -> Interview:
    """Begin an interview in a process that does a part of the work, once."""
    interview = Interview(json.loads(request))
    interview.follow_another()
    return interview


def _begin_shadows(shadows: Sequence[_Shadow]) -> Iterator[_Shadow]:
    """Yield shadow models up to the round before which the time is over; those of the first round always."""
    started = time.monotonic()
    for seq, of_round in groupby(shadows, attrgetter("seq")):
        if seq != shadows[0].seq and time.monotonic() - started > _SHADOW_SECONDS:
            return
        yield from of_round


def _write_notes(
    left_out: Mapping[str, int], without_gradients: str, assumptions: Mapping[Form, Sequence[str]]
) -> NDArray[np.str_]:
    """Say what a reader must know of the answers; ``assumptions`` are by the form of models."""
    notes = []
    for reason, count in left_out.items():
        notes.append(f"{count_words(count, 'reply', 'replies')} left out: {reason}")
    if without_gradients:
        notes.append(
            f"the app's step gives no gradients of single examples ({without_gradients}); only losses are used"
        )
    if len(assumptions) > 1:
        notes.append(
            f"clients send models of {len(assumptions)} forms; the losses of each client's model were scaled to one "
            "median over the targets, so that they can be compared"
        )
    for said in assumptions.values():
        notes += said
    return np.array([*dict.fromkeys(notes)], dtype=np.str_)


_Model = tuple[Arrays, NDArray[np.float64]]
"""Weights, and losses (targets,) under them."""


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

    def extend(self, other: "_AnswerArrays") -> None:
        """Add all replies of another."""
        for name, values in vars(other).items():
            getattr(self, name).extend(values)

    def calibrate(self) -> None:
        """Bring the losses of all models to one median: those of a small model are larger for all examples."""
        medians = [float(np.median(losses)) for losses in self.losses]
        common = float(np.median(medians))
        if min(medians) > 0:
            self.losses = [losses * common / median for losses, median in zip(self.losses, medians, strict=True)]


@dataclass(frozen=True)
class _Asked:
    """What was found of a group, by the number of passes; why replies are left out, and what is assumed of models."""

    found: Sequence[_AnswerArrays]
    left_out: Counter[str]
    without_gradients: str
    assumptions: Mapping[Form, Sequence[str]]


def _update(sent: Arrays, received: Arrays) -> Arrays:
    """Return Δ = sent − received, in float32, of what are numbers with a point."""
    update = {}
    for name, after in sent.items():
        # Owners' functions may be told of replies that hold more than what was sent to clients.
        is_moved = name in received and np.shape(received[name]) == np.shape(after)
        if is_moved and np.asarray(after).dtype.kind == "f":
            update[name] = (np.asarray(after, np.float64) - np.asarray(received[name], np.float64)).astype(np.float32)
    return update


def _group_by_model(replies: Sequence[Observation], cases: int) -> Iterator[list[Observation]]:
    """Yield the replies to one model together, also where it was sent to a few clients alone.

    Each reply becomes an update in so many ``cases``. As many replies to what a few were sent stand in a group as have
    updates that fit into memory.
    """
    together = [reply for reply in replies if not reply.singled_out]
    if together:
        yield together
    groups: dict[tuple[Form, str], list[Observation]] = {}
    for reply in replies:
        if reply.singled_out:
            received = reply.received or {}
            groups.setdefault((form_of(received), digest_of([*received.values()])), []).append(reply)
    for (form, _), group in groups.items():
        numbers = sum(math.prod(shape) for _, shape in form)
        size = max(1, UPDATES_MEMORY // max(1, 4 * cases * numbers))
        for start in range(0, len(group), size):
            yield group[start : start + size]


def _read_examples(file: str) -> tuple[NDArray[Any], NDArray[Any]]:
    with np.load(file, allow_pickle=False) as arrays:
        return arrays["x"], arrays["y"]


def _read_held(file: str) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    """Return the examples of clients, by name."""
    with np.load(file, allow_pickle=False) as arrays:
        names, ends = arrays["names"].tolist(), np.cumsum(arrays["lengths"])
        if not names:
            return {}
        parts = zip(np.split(arrays["x"], ends[:-1]), np.split(arrays["y"], ends[:-1]), strict=True)
        return dict(zip(names, parts, strict=True))


def _list_replies(round_: Round) -> list[Observation]:
    """List the replies that hold arrays."""
    return [reply for reply in round_.observations if replied(reply) and reply.arrays is not None]


def _list_common(round_: Round) -> list[Observation]:
    """List those of clients that were sent what others were sent."""
    return [reply for reply in _list_replies(round_) if not reply.singled_out and reply.received is not None]


def _check_form(weights: Arrays, reply: Observation) -> None:
    """Refuse a reply that is not of the form of what the client was sent."""
    if reply.received is None:
        raise DataError("the record does not hold the model that it was sent")
    sent, before = dict(form_of(weights)), dict(form_of(reply.received))
    faults = []
    for how, names in (
        ("appeared", sent.keys() - before.keys()),
        ("vanished", before.keys() - sent.keys()),
        ("have another shape", {name for name in sent.keys() & before.keys() if sent[name] != before[name]}),
    ):
        if names:
            faults.append(f"{short(', '.join(sorted(names)), 80)} {how}")
    if faults:
        raise DataError(f"its reply does not hold the arrays that it was sent: {'; '.join(faults)}")


def answer(request: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Do what a request asks for, and write the answers where it says."""
    if request["functions"]:
        limit_memory()
    found: Mapping[str, NDArray[Any]] = {"notes": np.array([], dtype=np.str_)}
    if request["partitions"]:
        sys.path.insert(0, request["folder"])
        write_examples(request, lambda done, total: say(f"{PROGRESS}{done} {total}"))
    else:
        found = Interview(request).answer(say)
    write_npz(Path(request["answers"]), found)


def main() -> None:
    """Read a request, answer it, and end the process: threads that the app began would keep it."""
    code = 0
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        answer(request, _say_line)
    except FedAttackError as cause:
        # The app may have put something in the stream's place, or left a line without an end.
        print(f"\n{short(str(cause), 500)}", file=sys.__stderr__, flush=True)
        code = 2
    except SystemExit as cause:
        print(f"\nthe app's own code ended the process: sys.exit({cause.code!r})", file=sys.__stderr__, flush=True)
        code = 2
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        code = 1
    for stream in (sys.stdout, sys.stderr, sys.__stderr__):
        # The app may have closed it, or put none in its place.
        with suppress(OSError, ValueError):
            if stream is not None:
                stream.flush()
    os._exit(code)


def _differ(some: Arrays, others: Arrays) -> bool:
    """Say whether an array that both have is not the same in both."""
    return any(not np.array_equal(some[name], others[name]) for name in some.keys() & others.keys())


def _say_line(line: str) -> None:
    # The app may have closed it.
    with suppress(OSError, ValueError):
        print(line, file=sys.__stdout__, flush=True)
