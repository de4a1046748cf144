"""Find what computes losses for the attacker: a model that it builds, or the clients' own app."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.apps.asking import BY_ESTIMATOR, NOTHING_KNOWN, Asker, Inquiry
from fedattack.apps.discriminating import BY_DISCRIMINATOR
from fedattack.apps.generating import BY_GENERATOR
from fedattack.apps.holding import Holding, find_unasked
from fedattack.apps.questions import Questions
from fedattack.apps.reading import Reading
from fedattack.attacks import Knowledge, ModelKnowledge, Targets
from fedattack.attacks.answers import Answers, AskedOutputs
from fedattack.attacks.frozen import read_frozen
from fedattack.attacks.matching import as_models
from fedattack.attacks.needs import UNKNOWN
from fedattack.attacks.registry import find_content
from fedattack.attacks.roles import ArrayRole
from fedattack.base.errors import ConfigError, DataError, FedAttackError, NeedsError, short
from fedattack.base.reasons import Reason
from fedattack.base.structured import finite
from fedattack.learning import losses_of_models, per_record_loss
from fedattack.learning.importing import trust_given
from fedattack.record import Record
from fedattack.record.folder import Part
from fedattack.witness import SERVER, Witness, WitnessedModel
from fedattack.witness.seen import ONLY_APP

_LINEAR = "torch.nn:Linear"
_UNSEEN = WitnessedModel(None, {}, (), 0, None, "none was seen")
_NAME_THEM = "if a loss of one example exists, name it and the model by --loss and --model"
_ASK_IT = "or give the clients' app by --app PATH; fedattack then asks it for losses"
_GIVE_THEM = "or give a function of your own by --losses module:function"

_REMEDIES = {
    _NAME_THEM: "the model and the loss of one example, by --model and --loss",
    _ASK_IT: "the clients' app, which is asked for losses: --app PATH",
    _GIVE_THEM: "a function of three lines in the app that gives losses: --losses module:function",
}
"""By the hint with which an error ends, the same as a noun."""

# By which means losses are found.
_BUILT, _OWN_STEP, _OWN_FUNCTIONS, _ESTIMATOR, _GENERATOR, _DISCRIMINATOR = (
    "a model that the attacker builds",
    "the clients' own app",
    "functions of the app's owner",
    "the app's own estimator of scikit-learn",
    "outputs of the generators that clients send",
    "scores of the discriminators that clients send",
)


@dataclass(frozen=True)
class Computing:
    """What computes losses for the attacker: one of both, or nothing where clients send trees.

    ``model`` is one that it builds, with the weights ``frozen`` that nobody sends; ``answers`` are of the clients' own
    app. ``why_none`` says why there is neither; ``None`` where there is one, or none is needed. ``means`` names what
    it is; empty where there is nothing.
    """

    model: ModelKnowledge | None = None
    frozen: Mapping[str, NDArray[Any]] | None = None
    answers: Answers | None = None
    roles: tuple[ArrayRole, ...] = ()
    touched: Mapping[str, NDArray[Any]] | None = None
    outputs: AskedOutputs | None = None
    notes: Sequence[str] = field(default_factory=tuple)
    why_none: Reason | None = None
    means: str = ""

    def known(self) -> dict[str, Any]:
        """Return what the attacker knows by it, by the names of :class:`fedattack.attacks.Knowledge`."""
        of_app = {"answers": self.answers, "roles": self.roles, "outputs": self.outputs}
        return {"model": self.model, "frozen": self.frozen, **of_app}

    def tells(self, targets: Targets, incomplete: NDArray[np.bool_]) -> bool:
        """Say whether targets with values that are not finite, (n,), have finite losses, where losses are asked at all.

        An app that trains on missing cells fills them in, or its models are not finite either.
        """
        if not incomplete.any():
            return True
        if self.answers is not None:
            losses = self.answers.losses
            # Answers of a reply that are not finite for whole examples say nothing of incomplete ones.
            usable = np.isfinite(losses[:, ~incomplete]).all(axis=1)
            return bool(np.isfinite(losses[usable][:, incomplete]).all())
        if self.model is None:
            return True
        rows = np.flatnonzero(incomplete)
        try:
            model = self.model.build()
            loss = per_record_loss(trust_given(self.model.loss))
            # Under the model as it is made: whether a missing value gives NaN does not depend on weights.
            found = losses_of_models(model, [model.state_dict()], targets.x[rows], targets.y[rows], loss)
        except FedAttackError:
            return False
        return bool(found.isfinite().all())


def find_computing(
    part: Part,
    holding: Holding,
    reading: Reading,
    targets: Targets,
    asked: Questions,
    *,
    ask: Asker | None,
    besides: Knowledge = NOTHING_KNOWN,
    check: Callable[[ModelKnowledge], None] | None = None,
) -> Computing:
    """Ask the app where no model can be built of what was witnessed; else build the model.

    ``besides`` is what the attacker knows already: examples of its own, and how clients train.

    Raises
    ------
    DataError
        If clients keep a part of what they train, and the app cannot be asked.
    ConfigError
        If no model is known, or its loss does not fit the labels, and the app cannot be asked.
    """
    witnesses = holding.witnesses
    # Records of some rounds are enough to see which arrays clients send.
    record = Record(part.record, thinned=True)
    if asked.model is None and (content := find_content(record)):
        return Computing(
            notes=(f"clients send {content}: no model gives losses, so questions that need losses are not asked",)
        )
    unanswered = ""
    are_predictions = reading.public is not None
    if ask is not None and (why := _why_ask(asked, witnesses, reading, record, check)):
        try:
            inquiry = Inquiry(part, witnesses, targets, reading.known)
            learned = ask.learn(inquiry, _list_whole(holding), besides)
        except FedAttackError as cause:
            unanswered = f"the app itself gives no losses: {cause}"
        else:
            assumed = f"the attacker is assumed to run the clients' own app, which computes the losses: {why}"
            return Computing(
                answers=learned.answers,
                roles=learned.roles,
                touched=learned.touched,
                outputs=learned.outputs,
                notes=(assumed, *learned.notes),
                means=_name_means(asked, learned.notes),
            )
    _refuse_unasked(asked, witnesses, unanswered)
    notes: list[str] = []
    try:
        if not are_predictions:
            _refuse_personal(witnesses)
        built = _build_model(holding, record, asked, notes)
    except ConfigError as cause:
        if unanswered:
            # The app was asked since no model is known: why it gives no losses is the cause, and is said whole.
            raise ConfigError(f"{unanswered}; {_NAME_THEM}") from None
        raise ConfigError(f"{cause}; {_GIVE_THEM if ask is not None else _ASK_IT}") from None
    except FedAttackError as cause:
        # The same kind of error, with the other reason behind it.
        raise type(cause)("; ".join(filter(None, (str(cause), unanswered)))) from None
    if unanswered:
        notes.append(unanswered)
    if check is not None:
        check(built)
    frozen = None
    if not are_predictions:
        frozen = _read_frozen(witnesses, notes)
    return Computing(built, frozen, notes=notes, means=_BUILT)


def explain_none(cause: FedAttackError) -> Reason:
    """Say why nothing computes losses, and what would."""
    what, remedy = str(cause), _REMEDIES[_GIVE_THEM]
    for hint, of_hint in _REMEDIES.items():
        if what.endswith(f"; {hint}"):
            what, remedy = what.removesuffix(f"; {hint}"), of_hint
    return Reason(what, UNKNOWN, remedy)


def _name_means(asked: Questions, said: Sequence[str]) -> str:
    """Name what gave the losses, by the notes on how it did."""
    if asked.functions.losses is not None:
        return _OWN_FUNCTIONS
    if any(note.startswith(BY_ESTIMATOR) for note in said):
        return _ESTIMATOR
    if any(note.startswith(BY_GENERATOR) for note in said):
        return _GENERATOR
    if any(note.startswith(BY_DISCRIMINATOR) for note in said):
        return _DISCRIMINATOR
    return _OWN_STEP


def _list_whole(holding: Holding) -> dict[str, Targets]:
    """Return the examples of the clients of which all are known, and all of whose values are finite."""
    found = {}
    for client in holding.clients.values():
        trained = client.trained
        is_whole = len(trained) == trained.total > 0 and holding.fits(trained.x)
        if is_whole and finite(trained.x).all() and np.isfinite(trained.y).all():
            found[client.name] = Targets(trained.x, trained.y)
    return found


def _why_ask(
    asked: Questions,
    witnesses: Sequence[Witness],
    reading: Reading,
    record: Record,
    check: Callable[[ModelKnowledge], None] | None,
) -> str:
    """Say why losses are asked of the app itself, and not of a model that the attacker builds; empty if not."""
    if asked.functions.losses is not None:
        return f"--losses {asked.functions.losses} of its owner"
    # A model that the caller names is never replaced by the app's answers.
    # Predictions are no weights that the app could be asked with: students of them are built.
    if asked.model is not None or reading.public is not None:
        return ""
    models = _find_trained_models(witnesses)
    for model in models:
        if model.spec is None or model.loss is None:
            return model.why
        if model.personal:
            return f"clients do not send {short(', '.join(model.personal), 100)}"
    if models and (misfit := _misfit(models[0], as_models(record, Knowledge(sends=reading.known)), check)):
        return misfit
    # One model for all is what attackers compute losses with; different ones need the app for each.
    for round_ in record:
        if any(reply.singled_out for reply in round_.observations):
            return "the server sends different models to clients"
    return ""


def _find_trained_models(witnesses: Sequence[Witness]) -> list[WitnessedModel]:
    """Return the models that clients were seen to train."""
    found = []
    for witness in witnesses:
        # The server's process may evaluate, and its model may be another one.
        if witness.node != SERVER and witness.trained.total and witness.model is not None:
            found.append(witness.model)
    return found


def _misfit(model: WitnessedModel, record: Record, check: Callable[[ModelKnowledge], None] | None) -> str:
    """Say what of the record's arrays is not an array of the clients' model as it is; empty if all are."""
    if model.frozen is not None:
        # A part of the model travels, such as an adapter; what it must fit is checked where it is put together.
        return ""
    known = ModelKnowledge(str(model.spec), model.input_shape, max(model.classes, 1), arguments=model.arguments)
    if check is not None:
        check(known)
    try:
        state = known.build().state_dict()
    except FedAttackError:
        return ""
    # In order, as arrays of most apps have no names of the model's.
    parameters = record.parameters
    if len(parameters) != len(state):
        return f"clients send {len(parameters)} arrays, but their model has {len(state)}"
    for parameter, (name, tensor) in zip(parameters, state.items(), strict=True):
        # By name where the record has it, else by position.
        entry = state.get(parameter.name, tensor)
        sent = np.dtype(parameter.dtype).kind
        # Complex numbers have no place in a model; a mask of whole numbers may stand for floats.
        if sent == "c" or (sent == "f") != entry.is_floating_point():
            kind = str(entry.dtype).partition(".")[2]
            return f"clients send {short(name, 60)} as {parameter.dtype}, but the model has it as {kind}"
    return ""


def _refuse_unasked(asked: Questions, witnesses: Sequence[Witness], unanswered: str) -> None:
    """Refuse a run whose clients train what has no weights, unless the caller says what computes losses.

    ``unanswered`` says why the app gives none; empty if it was not asked.
    """
    if asked.model is not None or asked.functions.losses is not None:
        return
    reasons = [each.why for each in _find_trained_models(witnesses)]
    if reasons and all(why.endswith(ONLY_APP) for why in reasons):
        why = find_unasked(witnesses) or reasons[0]
        raise NeedsError(f"{'; '.join(filter(None, (why, unanswered)))}; {_GIVE_THEM}")


def _refuse_personal(witnesses: Sequence[Witness]) -> None:
    """Refuse a run of whose models no attack has a whole one, since each client trains a part that it keeps."""
    kept = [model.personal for model in _find_trained_models(witnesses)]
    # If some clients send whole models, these can be asked.
    if kept and all(kept):
        raise DataError(
            f"clients train {short(', '.join(kept[0]), 100)} and do not send it: no reply holds a whole model, and "
            "no attack can use a part of one; the record is kept"
        )


def _build_model(holding: Holding, record: Record, asked: Questions, notes: list[str]) -> ModelKnowledge:
    """Return the model that the caller names, or most witnesses saw; else a linear layer, if the arrays fit one."""
    model = _find_model(holding.witnesses, notes)
    arguments: Mapping[str, Any] | None = model.arguments
    if asked.model is not None:
        # With which arguments the caller's own is made, nobody saw.
        model, arguments = replace(model, spec=asked.model), None
    elif model.spec is None:
        model = _as_linear(model, record, holding, notes)
        arguments = model.arguments
    # Without integer labels it is a regression: one output, and squared errors.
    most = max((y for _, y in holding.examples.values()), default=0)
    classes, default = model.classes or 1, "mse"
    if holding.kind == "i":
        classes, default = model.classes or int(most) + 1, "cross-entropy"
    loss = asked.loss or model.loss
    if loss is None:
        loss = default
        notes.append(f"the clients' loss is not known ({model.why}); it is assumed to be {loss}")
    # An index beyond the outputs would end in an error of torch's, on a GPU without a word.
    if loss == "cross-entropy" and (holding.kind != "i" or most >= classes):
        raise ConfigError(
            f"the clients' loss is not known: labels go up to {most:g}, and the model has {classes} outputs; name "
            "it by --loss package.module:function: it takes outputs and labels, and returns one loss for each "
            "example"
        )
    return ModelKnowledge(str(model.spec), holding.shape, classes, loss=loss, arguments=arguments)


def _find_model(witnesses: Sequence[Witness], notes: list[str]) -> WitnessedModel:
    """Return the model that most clients train; who only evaluates says nothing of how clients train."""
    everybody = [witness.model for witness in witnesses if witness.model is not None]
    clients = [witness.model for witness in witnesses if witness.node != SERVER and witness.model is not None]
    models = _find_trained_models(witnesses) or clients or everybody
    # Each machine has a file of its own for what is frozen.
    seen = [replace(model, frozen=None) for model in models]
    if not seen:
        return _UNSEEN
    # One witness that could import it is enough: all run the same app.
    known = [model for model in seen if model.spec is not None]
    found: WitnessedModel = most_frequent(known or seen, notes, "models")
    return found


def _as_linear(model: WitnessedModel, record: Record, holding: Holding, notes: list[str]) -> WitnessedModel:
    """Take a model that nobody can import for a linear layer, if the record's arrays are those of one."""
    outputs = _outputs_of_linear(record, holding)
    if outputs is None:
        raise ConfigError(f"the clients' model is not known ({model.why}): name it by --model package.module:function")
    notes.append(f"the record's arrays are those of a linear layer, so the model is assumed to be one ({model.why})")
    sizes = {"in_features": holding.shape[0], "out_features": outputs}
    return replace(model, spec=_LINEAR, arguments=sizes, classes=outputs)


def _read_frozen(witnesses: Sequence[Witness], notes: list[str]) -> dict[str, NDArray[Any]] | None:
    """Return the weights that no client sends, if all clients have the same."""
    # A file is named by what is in it, and each machine has its own.
    files: dict[str, Path] = {}
    for witness in witnesses:
        if witness.node != SERVER and witness.model is not None and witness.model.frozen is not None:
            files.setdefault(witness.model.frozen.name, witness.model.frozen)
    if len(files) > 1:
        notes.append("the parts of their models that clients do not send differ from client to client")
    if len(files) != 1:
        return None
    notes.append("the attacker is assumed to have the weights that no client sends or trains")
    return read_frozen(*files.values())


def _outputs_of_linear(record: Record, holding: Holding) -> int | None:
    """Return how many outputs the record's model has, if it is a matrix and a vector that fit the examples."""
    shapes = [parameter.shape for parameter in record.parameters]
    # A linear model of scikit-learn, for instance, sends its coefficients and intercepts.
    if len(shapes) != 2 or len(shapes[0]) != 2 or len(holding.shape) != 1:
        return None
    outputs, inputs = shapes[0]
    if shapes[1] != (outputs,) or inputs != holding.shape[0] or (outputs > 1) != (holding.kind == "i"):
        return None
    return outputs


def most_frequent(seen: Sequence[Any], notes: list[str], things: str) -> Any:
    """Return what is there most often; a note tells of others."""
    # By their texts: mappings have no hash.
    counts = Counter(map(repr, seen))
    most = counts.most_common(1)[0][0]
    if len(counts) > 1:
        notes.append(f"clients were seen with {len(counts)} different {things}; the one that most have is used")
    return next(each for each in seen if repr(each) == most)
