"""Count the labels of each client in how the last layer moves: in single replies, or in sums over many rounds."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import nn

from fedattack.attacks.answers import AskedOutputs
from fedattack.attacks.base import Attack, Seen
from fedattack.attacks.knowledge import Knowledge
from fedattack.attacks.last_layer import (
    LastLayer,
    Outputs,
    are_labels,
    choose_examples,
    compute_outputs,
    draw_inputs,
    find_known_last_layer,
    find_last_by_form,
    interpolate,
    list_shares,
)
from fedattack.attacks.local_models import readable
from fedattack.attacks.matching import check_model, fits_model, is_finite
from fedattack.attacks.replies import MOST_EXAMPLES, list_updates, spread_replies, why_left_out
from fedattack.attacks.roles import ArrayRole, choose_form, list_forms
from fedattack.base.errors import FedAttackError, NeedsError, short
from fedattack.base.stored import Axes, Name, Number
from fedattack.learning import LocalSGD
from fedattack.learning.importing import Asked
from fedattack.record import Record, Round
from fedattack.record.format import Arrays
from fedattack.threats.labels.options import LabelsOptions
from fedattack.threats.labels.rules import (
    apply_llg,
    correct_together,
    count_lowest,
    find_terms,
    give_labels,
    mean_shares,
    round_counts,
    solve_shares,
    weigh_llg,
)
from fedattack.threats.labels.sums import separate

Floats = NDArray[np.float64]

RULES = ("solved", "llg-plus", "llg", "idlg")
"""What counts, the best first: that which can be applied counts for the headline."""

# Models between start and end that are looked at where it is not known how clients train.
_BETWEEN = (0.0, 0.5, 1.0)

# Gradients of examples that are compared with each other: of those that the attacker has, and of made ones.
_MOST_ROWS = 1_500

# The gradients of a bias, softmax minus label, have sizes of at most 2 in all; several local steps are only about that.
_LONGEST = 4.0


@dataclass(frozen=True, eq=False)
class CountedLabels:
    """How many examples of each label clients hold, by each rule.

    Attributes
    ----------
    clients
        Nodes of the record.
    rules
        Those of :data:`RULES` that could be applied, the best first.
    classes
        How many labels there are.
    rounds, targets
        Numbers of the rounds that were looked at, and the fingerprint of the targets that the attacker knows.
    drawn
        Whether the attacker has no labelled examples of its own.
    counts
        (rules, clients, classes): whole numbers that add up to the client's example count, or NaN for a client of which
        nothing was seen.
    prior
        (classes,): shares of the labels among the attacker's own examples; all alike where it has none.
    """

    clients: tuple[Name, ...]
    rules: Annotated[tuple[Name, ...], Field(min_length=1, max_length=len(RULES))]
    classes: Annotated[int, Field(ge=2)]
    rounds: tuple[Number, ...]
    drawn: bool
    targets: Name
    counts: Annotated[NDArray[np.floating], Axes("rules", "clients", "classes", low=0, high=MOST_EXAMPLES, nan=True)]
    prior: Annotated[NDArray[np.floating], Axes("classes", low=0, high=1)]

    def fault(self) -> str:
        """Expect as many labels in the arrays as there are classes."""
        if len(self.prior) == self.classes:
            return ""
        return f"expected counts of {self.classes} labels, got {len(self.prior)}"


class LabelCounting(Attack):
    """How many examples of each label a client holds, by four rules.

    The rules are, as far as what they need is known:

    - ``solved``: the mixture of labels that gives this gradient; from drawn inputs, or where nothing shows what enters
      the layer, what the gradient of the bias says of it, and what LLG says the more clients differ;
    - ``llg-plus``: LLG with impact and offset, from the attacker's examples (LLG+) or from drawn inputs (LLG*);
    - ``llg``: LLG from the update alone;
    - ``idlg``: labels taken one after another where the gradient of the bias is lowest.
    """

    options = LabelsOptions()
    found = CountedLabels
    knows: ClassVar[tuple[str, ...]] = (
        "the model's architecture and loss",
        "how clients train",
        "auxiliary examples, if there are any",
    )

    def unfit(self, record: Record, knowledge: Knowledge) -> list[str]:
        """Say where a model is no classifier that ends in a linear layer, one output a label."""
        known = knowledge.model
        if not knowledge.has("layers") or (known and isinstance(known.spec, Asked)):
            return []
        if known is not None and (known.loss != "cross-entropy" or known.classes < 2):
            wrong = f"the clients' loss is {known.loss} of {known.classes} outputs"
            return [f"it reads gradients of a cross-entropy, and {wrong}"]
        try:
            last = find_known_last_layer(knowledge)
        except FedAttackError as cause:
            return [str(cause)]
        reasons = []
        if last.weight in (knowledge.frozen or {}):
            reasons.append(f"it reads how the last layer moves, and {last.weight} is frozen")
        if known is not None and last.classes != known.classes:
            reasons.append(
                f"it needs a model that ends in a linear layer of {known.classes} outputs, one a label; the last one "
                f"here has {last.classes}"
            )
        return reasons

    def attack(self, seen: Seen) -> CountedLabels:
        """Count by each rule in every update, and keep the rules that most updates allow."""
        record, notes = seen.record, seen.notes
        model = None
        if seen.knowledge.model is not None:
            model = seen.knowledge.model.build()
            check_model(model, record)
        estimator = _Estimator.of(model, find_known_last_layer(seen.knowledge), seen)
        chosen = spread_replies(record, self.options.replies)
        updates: list[_Update] = []
        counted: list[dict[str, Floats]] = []
        for done, round_ in enumerate(record):
            of_round = list(_read_updates(round_, chosen.get(round_.seq, set()), estimator, notes))
            common = estimator.find_common(of_round)
            for update in of_round:
                shares = estimator.count(update, common)
                if shares:
                    updates.append(update)
                    counted.append(shares)
            seen.progress(done + 1, len(record))
        if not counted:
            raise NeedsError(
                f"attack {self.name} needs updates of a last layer with example counts, and {record.path} holds none "
                f"that can be used{why_left_out(notes)}"
            )
        rules = _choose_rules(counted)
        kept = [row for row, shares in enumerate(counted) if {*rules} <= shares.keys()]
        for row in sorted({*range(len(counted))} - {*kept}):
            whose = ", ".join(updates[row].sizes)
            notes.append(f"round {updates[row].number}, client {short(whose, 60)} left out: rules cannot be applied")
        updates, counted = [updates[row] for row in kept], [counted[row] for row in kept]
        return CountedLabels(
            clients=tuple(record.nodes),
            rules=rules,
            classes=estimator.last.classes,
            rounds=tuple(sorted({update.number for update in updates})),
            drawn=estimator.labels is None,
            targets=seen.knowledge.asked(),
            counts=_count_of_clients(seen, updates, counted, rules, estimator),
            prior=estimator.prior,
        )


def _count_of_clients(
    seen: Seen,
    updates: Sequence["_Update"],
    counted: Sequence[Mapping[str, Floats]],
    rules: Sequence[str],
    estimator: "_Estimator",
) -> Floats:
    """Separate the shares of labels in updates by client, and return counts (rules, clients, classes)."""
    nodes = list(seen.record.nodes)
    sizes = _list_sizes(updates, nodes)
    weights = np.zeros((len(updates), len(nodes)))
    for row, update in enumerate(updates):
        for node, share in estimator.weigh(update).items():
            weights[row, nodes.index(node)] = share
    counts = np.full((len(rules), len(nodes), estimator.last.classes), np.nan)
    for index, rule in enumerate(rules):
        shares = separate(weights, np.stack([of_update[rule] for of_update in counted]))
        if rule == RULES[0] and estimator.labels is None and seen.record.view == "individual" and (sizes > 0).sum() > 1:
            shares[sizes > 0] = correct_together(shares[sizes > 0], estimator.prior)
        for client in np.flatnonzero(sizes):
            counts[index, client] = round_counts(shares[client], int(sizes[client]))
    taking_part = weights[:, sizes > 0]
    if seen.record.view == "aggregate" and (rank := int(np.linalg.matrix_rank(taking_part))) < taking_part.shape[1]:
        seen.notes.append(
            f"the sums tell {rank} of {taking_part.shape[1]} clients apart: those that always appear together get the "
            "same shares"
        )
    return counts


@dataclass(frozen=True)
class _Update:
    """A reply, or the sum of several."""

    seq: int  # The position of its round, and the round's number.
    number: int
    sizes: Mapping[str, int]  # By node, how many examples each has that is in it.
    start: Arrays  # The model that was sent, and what came back: models, or gradients.
    sent: Arrays
    is_common: bool  # Whether others were sent the same model.
    last: LastLayer  # The last layer, of the form of model that the clients were sent.

    @property
    def examples(self) -> int:
        """How many examples all of them have."""
        return sum(self.sizes.values())


@dataclass(frozen=True)
class _Estimator:
    """What is needed to count the labels of an update."""

    model: nn.Module | None  # The architecture; ``None`` where the clients' own app was asked in its place.
    last: LastLayer
    # By form of model, where clients send models of several, what arrays are, and the last layers of as many classes.
    roles: Sequence[ArrayRole]
    of_forms: Mapping[int, LastLayer]
    asked: AskedOutputs | None  # What the app showed.
    x: NDArray[Any] | None  # Examples of the attacker's with their labels; drawn inputs have none.
    labels: NDArray[np.int64] | None
    prior: Floats  # (classes,): shares of the labels among them.
    training: LocalSGD | None  # How clients train; ``None`` where nobody knows, or where clients send gradients.
    gradients: bool  # Whether clients send gradients.

    @classmethod
    def of(cls, model: nn.Module | None, last: LastLayer, seen: Seen) -> "_Estimator":
        """Choose the attacker's examples, or draw inputs where it has none."""
        knowledge, notes = seen.knowledge, seen.notes
        auxiliary, gradients = knowledge.auxiliary, seen.record.protocol == "fedsgd"
        asked = knowledge.outputs
        prior = np.full(last.classes, 1 / last.classes)
        x, labels = None, None
        if auxiliary is not None and are_labels(auxiliary.y, last.classes):
            rows = choose_examples(len(auxiliary), seen.seed)
            if asked is not None:
                rows = asked.rows
            x, labels = auxiliary.x[rows], auxiliary.y[rows]
            counts = np.bincount(auxiliary.y, minlength=last.classes)
            prior = (counts + 1) / (counts + 1).sum()
        elif (knowledge.model is not None or asked is not None) and not knowledge.structure():
            if knowledge.model is not None:
                x = draw_inputs(knowledge.model.input_shape, seen.seed)
            notes.append("the attacker has no auxiliary examples: it uses random inputs instead, which reveal less")
        training = knowledge.training
        if gradients:
            training = None
        elif training is None:
            used = "only the rule LLG is used"
            if labels is not None:
                used = "iDLG and LLG with both terms are not used"
            notes.append(f"it is not known how clients train, so the length of a step is unknown: {used}")
        roles: Sequence[ArrayRole] = ()
        if model is None and len(list_forms(knowledge.roles)) > 1:
            roles = knowledge.roles
        of_forms = {}
        for form, of_form in find_last_by_form(roles).items():
            if of_form.classes == last.classes:
                of_forms[form] = of_form
        return cls(model, last, roles, of_forms, asked, x, labels, prior, training, gradients)

    def find_last(self, arrays: Arrays) -> LastLayer | None:
        """Return the last layer of the form of model that arrays have; ``None`` where that has none."""
        if not self.roles:
            return self.last
        return self.of_forms.get(choose_form(self.roles, arrays)[0].form)

    def weigh(self, update: _Update) -> dict[str, float]:
        """Say by node which share of an update is whose: by examples, and by the length of its training."""
        weights = {}
        for node, size in update.sizes.items():
            weights[node] = size * (1.0 if self.training is None else self.training.reach(size))
        total = sum(weights.values())
        return {node: weight / total for node, weight in weights.items()}

    def find_common(self, updates: Sequence[_Update]) -> Floats | None:
        """Return the mean gradient of the bias (classes,) in the updates of a round; ``None`` if it says nothing."""
        # Clients may be sent different models, such as slices of one: labels move the bias of each alike.
        moved = [self._gradient(update)[0][:, -1] for update in updates if update.last.bias is not None]
        # What no examples give, such as a hostile reply, says nothing of the others.
        moved = [one for one in moved if np.abs(one).sum() <= _LONGEST]
        if len(moved) < 2:
            return None
        return np.asarray(np.mean(moved, axis=0))

    def count(self, update: _Update, common: Floats | None) -> dict[str, Floats]:
        """Return by rule the shares of the labels (classes,) in an update; nothing if the update is zero.

        ``common`` is as :meth:`find_common` returns it.
        """
        gradient, is_scaled = self._gradient(update)
        if not gradient.any():
            return {}
        # Clients may have layers that are not equally wide.
        inputs = gradient.shape[1] - (update.last.bias is not None)
        sums = gradient[:, :inputs].sum(axis=1)
        examples = update.examples
        counts: dict[str, Any] = {"llg": apply_llg(sums, examples)}
        if is_scaled:
            counts["idlg"] = count_lowest(gradient, examples, has_bias=update.last.bias is not None)
        shares = {rule: count / examples for rule, count in counts.items()}
        path = self._path(update)
        if path and is_scaled:
            impact, offset = find_terms(path[0], self.labels, examples)
            shares["llg-plus"] = apply_llg(sums, examples, impact, offset) / examples
        if update.last.bias is None:
            common = None
        is_compared = is_scaled and common is not None
        if is_compared or (path and (is_scaled or self.labels is not None)):
            shares["solved"] = self._solve(update, gradient, common, path, shares)
        return shares

    def _solve(
        self,
        update: _Update,
        gradient: Floats,
        common: Floats | None,
        path: Sequence[Outputs],
        shares: Mapping[str, Floats],
    ) -> Floats:
        """Solve for the shares of the labels, as far as anything is known of what enters the layer."""
        labels, llg = self.labels, shares["llg"]
        if "idlg" not in shares:
            return solve_shares(path, labels, gradient, is_scaled=False)
        # Where nothing tells how much clients differ, LLG counts half, and what drawn inputs do not tell is by LLG.
        weight, other = 0.5, llg
        if common is not None:
            weight = weigh_llg(gradient[:, -1], common, self._find_travelled(update))
            other = weight * llg + (1 - weight) * shares["idlg"]
        if not path:
            return other
        # There is no time to compare all gradients of more examples.
        if labels is None or len(give_labels(labels, len(labels), len(gradient))[0]) > _MOST_ROWS:
            solved = mean_shares(path, gradient, other)
        else:
            solved = solve_shares(path, labels, gradient)
        if self.training is not None and self.training.epochs > 1:
            # By a second pass clients know their own examples better than models between start and end know
            # others. LLG asks no model; its errors are of another kind.
            solved = (1 - weight) * solved + weight * llg
        return solved

    def _find_travelled(self, update: _Update) -> float:
        """Return the learning rate times steps, on average over the update's examples; 0 of a gradient."""
        if self.training is None:
            return 0.0
        reach = 0.0
        for size in update.sizes.values():
            reach += size / update.examples * self.training.reach(size)
        return self.training.lr * reach

    def _gradient(self, update: _Update) -> tuple[Floats, bool]:
        """Return the mean gradient of the last layer, and whether its length is known."""
        if self.gradients:
            return update.last.join(update.sent), True
        start, end = update.last.join(update.start), update.last.join(update.sent)
        if self.training is None:
            return start - end, False
        # Weight decay moves clients, too, in proportion to the weights on the way, for which their middle stands.
        decay = self.training.weight_decay * (start + end) / 2
        return (start - end) / self._find_travelled(update) - decay, True

    def _path(self, update: _Update) -> list[Outputs]:
        """Compute the attacker's examples at models between start and end; nothing where that cannot be done."""
        path = []
        shares = list_shares(self.training, max(update.sizes.values()))
        if self.training is None and not self.gradients:
            shares = list(_BETWEEN)
        for share in shares:
            outputs = self._compute(update, share)
            if outputs is not None and is_finite([outputs.softmax, outputs.inputs]):
                path.append(outputs)
            elif self.model is not None or not share:
                return []
        return path

    def _compute(self, update: _Update, share: float) -> Outputs | None:
        """Compute the attacker's examples at one model between start and end, or read what the app showed of it."""
        if self.model is None:
            found = None
            if self.asked is not None and len(update.sizes) == 1:
                (node,) = update.sizes
                found = self.asked.find(update.seq, node, share, is_common=update.is_common)
            if found is None:
                return None
            softmax, inputs = found
            if inputs.shape[1] < update.last.inputs:
                return None
            # Beyond what enters the layer there are those of wider forms of model.
            inputs = inputs[:, : update.last.inputs]
            if update.start[update.last.weight].size != inputs.shape[1] * update.last.classes:
                return None
            return Outputs(softmax.astype(np.float64), inputs.astype(np.float64), update.last.bias is not None)
        if self.x is None:
            return None
        state = interpolate(update.start, update.sent, share) if share else dict(update.start)
        return compute_outputs(self.model, update.last, state, self.x)


def _read_updates(round_: Round, nodes: set[str], estimator: _Estimator, notes: list[str]) -> Iterator[_Update]:
    """Yield the replies of a round that are looked at, or its sum; a note says why one cannot be used."""
    for replies, sent_out, sent, where in list_updates(round_, nodes):
        start, sizes = readable(sent_out), {reply.node: int(reply.count or 0) for reply in replies}
        total = sum(sizes.values())
        if not total or not all(sizes.values()):
            notes.append(f"{where}: an example count is not known")
        elif total > MOST_EXAMPLES:
            notes.append(f"{where}: {total:,} examples are more than {MOST_EXAMPLES:,}")
        elif start is None or sent is None:
            notes.append(f"{where}: what model was sent, or what came back, is not in the record")
        elif (last := estimator.find_last(start)) is None:
            notes.append(f"{where}: in models of its form, no array is a last layer of as many labels")
        elif _fits(estimator, last, start, f"{where}: what was sent", notes) and _fits(
            estimator, last, dict(sent), where, notes
        ):
            if is_finite([*start.values(), *sent.values()]):
                is_common = not any(reply.singled_out for reply in replies)
                yield _Update(round_.seq, round_.number, sizes, start, dict(sent), is_common, last)
            else:
                notes.append(f"{where}: numbers are not finite")


def _fits(estimator: _Estimator, last: LastLayer, arrays: Arrays, where: str, notes: list[str]) -> bool:
    """Say whether arrays are those of the model, or hold its last layer where that is all that is known of it."""
    if estimator.model is not None:
        return fits_model(estimator.model, arrays, where, notes)
    if last.fits(arrays):
        return True
    notes.append(f"{where}: {last.weight} is not in it, or has another shape")
    return False


def _choose_rules(counted: Sequence[Mapping[str, Floats]]) -> tuple[str, ...]:
    """Return the rules that can be applied to most updates; of as many the more rules."""
    counts = Counter(tuple(rule for rule in RULES if rule in shares) for shares in counted)
    return max(counts, key=lambda rules: (counts[rules], len(rules)))


def _list_sizes(updates: Sequence[_Update], nodes: Sequence[str]) -> NDArray[np.int64]:
    """Return (nodes,) example counts: the median of what each said, 0 for a node that is in no update."""
    said: dict[str, list[int]] = {}
    for update in updates:
        for node, size in update.sizes.items():
            said.setdefault(node, []).append(size)
    sizes = np.zeros(len(nodes), dtype=np.int64)
    for index, node in enumerate(nodes):
        if node in said:
            sizes[index] = round(float(np.median(said[node])))
    return sizes
