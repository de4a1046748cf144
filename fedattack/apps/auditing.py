"""The walk of an audit of somebody's app, in seven stages; each returns a frozen value, and none is entered twice.

With an active server a run with an honest one comes first: it is another run, in a private folder, that is posed alone.

======= ===================================================== =====================================================
run     :func:`fedattack.apps.running.run_app`                 parts of a run folder: records, and what witnesses wrote
witness :func:`fedattack.apps.witnessing.check_readable`       what was witnessed of a run
hold    :func:`fedattack.apps.holding.hold`                    who holds which examples
pose    :func:`fedattack.apps.posing.pose`                     knowledge and truth, written beside the record
choose  :func:`fedattack.apps.choosing.choose`                 attacks, and why others are not made
attack  :func:`attack`                                         which attacks have scores
judge   :func:`judge`                                          findings and the page
======= ===================================================== =====================================================
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, StringConstraints, TypeAdapter, with_config
from typing_extensions import TypedDict

from fedattack.apps.app import App
from fedattack.apps.asking import Asker, Inquiry, ask_examples
from fedattack.apps.choosing import Chosen, choose, explain_failure, list_unasked
from fedattack.apps.control import control
from fedattack.apps.holding import hold, list_witness_notes
from fedattack.apps.order import Order
from fedattack.apps.posing import Posed, pose
from fedattack.apps.questions import NOTHING_BESIDES, Questions
from fedattack.apps.reading import find_adversary, read_sends
from fedattack.apps.running import run_app
from fedattack.apps.witnessing import check_readable, has_arrays_of_queries, list_code, witness_of, witnesses_of
from fedattack.attacks import ATTACKS, Attack, Scores
from fedattack.attacks.needs import UNKNOWN, InApps
from fedattack.attacks.registry import THREATS
from fedattack.attacks.roles import find_words
from fedattack.attacks.told_labels import list_told_labels
from fedattack.audit.control import Control
from fedattack.audit.finding import Finding
from fedattack.audit.opened import SENT, UNANSWERED, WITNESSED, Run, add_scores, open_records
from fedattack.base.errors import ConfigError, DataError, FedAttackError, NeedsError, TrustError, short
from fedattack.base.failures import Failure, failing_alone, is_unforeseen
from fedattack.base.files import FolderLock, write_sealed
from fedattack.base.reasons import NOTHING, Reason
from fedattack.base.untrusted import read_sealed, remove_inside
from fedattack.record import Record, project_record
from fedattack.record.folder import LEFT_OUT, Part, RunFolder
from fedattack.record.marks import RecordMark
from fedattack.report import read_run
from fedattack.report.sent import list_readable
from fedattack.runs.asked import known_to
from fedattack.runs.code import note_code, read_code
from fedattack.runs.pipeline import (
    attack_runs,
    judge_folder,
    judge_runs,
    list_unscored,
    remove_scores,
    say_unmade,
)
from fedattack.runs.private import private_folder
from fedattack.runs.running import lock_folder
from fedattack.runs.watch import Watch
from fedattack.witness import Witness

_COLUMNS_OF_EMBEDDINGS = "Can the embeddings that a party sends be turned back into its columns?"
_LABELS_OF_GRADIENTS = "Do the gradients that a party receives tell it the labels?"
"""What nobody asks of arrays in replies to queries; labels are read where closed forms tell them."""

# Beside the witnesses of a run: that its truth and knowledge are written, and what else was found out meanwhile.
_POSED = "posed.json"

CONTROL_SECONDS = 30.0
"""So long positive controls may take, whatever the app."""

# Characters of a reason that a page without an answer begins with.
_LONGEST_REASON = 1000

_Line = Annotated[str, StringConstraints(max_length=10_000)]


@with_config(ConfigDict(extra="forbid", strict=True))
class _ReasonEntry(TypedDict):
    what: _Line
    kind: _Line
    remedy: _Line


@with_config(ConfigDict(extra="forbid", strict=True))
class _PosedEntry(TypedDict):
    few: list[_Line]
    notes: list[_Line]
    reasons: dict[_Line, _ReasonEntry]
    means: _Line
    mods: list[_Line]
    optimizers: list[_Line]


_POSED_ENTRY: TypeAdapter[_PosedEntry] = TypeAdapter(_PosedEntry)


@dataclass(frozen=True)
class Attacked:
    """Runs that were attacked.

    Attributes
    ----------
    folder, runs
        The run folder, and its seeds with all their scores.
    scored, failed
        The attacks that were made; and by attack, why others failed.
    """

    folder: RunFolder
    runs: tuple[Run, ...]
    scored: tuple[str, ...]
    failed: Mapping[str, str]


@dataclass(frozen=True)
class Judged:
    """What an audit found, the file of its report, what was asked of each run, and parts of the page that failed."""

    findings: tuple[Finding, ...]
    page: Path
    posed: tuple[Posed, ...]
    unmade: Mapping[str, Failure]


def audit(order: Order, app: App, watch: Watch, run: Callable[[], tuple[Part, ...]] | None = None) -> Judged:
    """Run an app and find what its server could learn; a run that the same command began goes on.

    ``run`` gives the parts of a run that was made already, or raises why there is none.

    Raises
    ------
    FedAttackError
        If a stage fails; the run folder keeps what the stages before it made.
    """
    run = run or partial(run_app, app, order, plan=plan_departure, watch=watch)
    with explaining(order, watch):
        # Its own lock: the run is locked for as long as it trains, and the stages after it below.
        parts = run()
    # Filled below: a page without an answer trusts what was trusted until then.
    trusted: set[str] = set()
    with explaining(order, watch, trusted), lock_folder(order.out):
        # Witness, hold and pose, run by run.
        posed = tuple(pose_run(part, order.asked, app, watch) for part in parts)
        trusted |= list_trusted(posed)
        return _attack_and_judge(order, posed, trusted, watch, app)


def audit_gathered(order: Order, posed: Sequence[Posed], watch: Watch) -> Judged:
    """Do the last three stages, of a run that was gathered."""
    trusted: set[str] = set()
    with explaining(order, watch, trusted):
        trusted |= list_trusted(posed)
        return _attack_and_judge(order, posed, trusted, watch)


def _attack_and_judge(
    order: Order, posed: Sequence[Posed], trusted: Collection[str], watch: Watch, app: App | None = None
) -> Judged:
    """Do the stages after `pose`, on runs that are opened once; an app is asked for positive controls."""
    folder = RunFolder(order.out.expanduser().absolute())
    runs = open_records(folder, lambda part: known_to(part, trusted), truth=True)
    chosen = choose(runs, posed, order.make, watch)
    attacked = attack(folder, runs, posed, chosen, order.device, watch)
    if app is not None:
        attacked = attack_by_app(Asker(app, watch, order.asked.functions), posed, attacked)
        control_all(Asker(app, watch, order.asked.functions), attacked, watch, full=order.full_control)
    return judge(order, posed, attacked, watch)


def list_trusted(posed: Sequence[Posed]) -> set[str]:
    """List the import paths that the clients' own app gave."""
    models = [each.knowledge.model for each in posed if each.knowledge.model is not None]
    return {str(name) for model in models for name in (model.spec, model.loss)}


def plan_departure(server: str, honest: Part, seed: int, file: Path) -> None:
    """Plan what an active server sends, from what an honest run shows of the clients' model.

    Raises
    ------
    ConfigError
        If that run does not show it, or the model does not allow it.
    """
    # It imports Flower, which an honest server's audit has imported in other processes alone.
    from fedattack.apps.departing import Plan

    try:
        posed = pose_run(honest)
    except FedAttackError as cause:
        raise ConfigError(f"--server {server} needs to know the clients' model: {cause}") from None
    Plan.of(server, Record(honest.record), posed.knowledge, seed).write(file)


def pose_run(
    part: Part,
    asked: Questions = NOTHING_BESIDES,
    app: App | None = None,
    watch: Watch | None = None,
) -> Posed:
    """Go from what was witnessed of a run to truth and knowledge; where that is done, they are read.

    Parameters
    ----------
    app
        Is asked for losses where the attacker can build no model.

    Raises
    ------
    FedAttackError
        If nothing was witnessed that can be asked about, or clients send no numbers.
    """
    noted = witness_of(part) / _POSED
    # Audits that go on take what was posed: asking the app again would take as long as the first time.
    if noted.exists():
        return _read_posed(part, {*read_code(part.folder), *filter(None, (asked.model, asked.loss))})
    # Half-written truth or knowledge of a stopped audit would be taken for whole.
    for half in (part.truth, part.knowledge):
        remove_inside(part.folder, half, ConfigError)
    notes: list[str] = []
    seen = witnesses_of(part)
    witnesses: Sequence[Witness] = seen
    if app is not None:
        witnesses = ask_examples(Asker(app, watch, asked.functions), part, seen, notes)
    try:
        check_readable(part, witnesses, is_stated=witnesses is not seen)
    except NeedsError as cause:
        # Why examples that the owner states are not known is a part of the reason.
        raise NeedsError("; ".join([str(cause), *notes])) from None
    holding = hold(witnesses, Record(part.record, thinned=True))
    posed = pose(part, holding, asked, notes=notes, app=app, watch=watch)
    note_code(part.folder, list_code([posed.knowledge.model]))
    # Written last: only then is the part posed.
    reasons = {key: vars(reason) for key, reason in posed.reasons.items()}
    entry = {"few": posed.few, "notes": posed.notes, "reasons": reasons, "means": posed.means}
    entry |= {"mods": posed.mods, "optimizers": posed.optimizers}
    write_sealed(noted, entry)
    return posed


def _read_posed(part: Part, trusted: Collection[str]) -> Posed:
    """Read what was posed before the audit was stopped."""
    entry = read_sealed(witness_of(part) / _POSED, _POSED_ENTRY, DataError, "delete it, and run the command again")
    known = known_to(part, trusted)
    for asked in known.asks():
        # A model that the folder names now, and that no witness on this machine named, is not imported.
        raise asked.refuse()
    reasons = {key: Reason(**reason) for key, reason in entry["reasons"].items()}
    few, notes, mods, optimizers = (tuple(entry[key]) for key in ("few", "notes", "mods", "optimizers"))
    return Posed(known, few, notes, reasons, entry["means"], mods, optimizers)


def attack(
    folder: RunFolder, runs: Sequence[Run], posed: Sequence[Posed], chosen: Chosen, device: str, watch: Watch
) -> Attacked:
    """Make the attacks that were chosen, and note for the report what was asked and what was not.

    Raises
    ------
    NeedsError
        If none could be made.
    """
    why = dict(chosen.refused)
    failed = {name: reason.what for name, reason in why.items()}
    scored = []
    for each in chosen.attacks:
        # A text says why the attack cannot be made.
        made = _make(each, runs, device, watch)
        if isinstance(made, str):
            failed[each.name] = made
            why[each.name] = explain_failure(made)
        else:
            runs = made
            scored.append(each.name)
    if not scored:
        raise NeedsError(f"no attack on {runs[0].sent.path} could be made: {_join_reasons(failed)}")
    # The report begins with the first of them.
    unasked = list_unasked(scored, why, runs[0], posed)
    study = {**folder.study, "attacks": scored, "means": posed[0].means, **_note_unasked(unasked)}
    study |= {"mods": list(posed[0].mods), "optimizers": list(posed[0].optimizers)}
    if study.pop(LEFT_OUT, None):
        # Positive controls may be among what was left out: they are tried again.
        study.pop("controls", None)
    # A page of before may have said that nothing could be answered.
    for key in (UNANSWERED, SENT, WITNESSED):
        study.pop(key, None)
    # What nobody foresaw keeps a report from being whole; a need that is not met does not.
    if faults := [say_unmade(name, why) for name, why in failed.items() if is_unforeseen(why)]:
        study[LEFT_OUT] = faults
    # Whoever attacks the run again does so likewise, and asks about the same clients.
    options: dict[str, str] = {}
    for name in scored:
        options |= chosen.spared.get(name, {})
    options |= study.get("options", {})
    searching = [name for name in scored if ATTACKS[name].in_apps.of_few]
    others = {key for name in scored if name not in searching for key in ATTACKS[name].options.list_settings()}
    # An option of that name that another attack has is about something else.
    if searching and "clients" not in others:
        options["clients"] = ",".join(posed[0].few)
    if options:
        study["options"] = options
    folder.note(study)
    return Attacked(folder, tuple(add_scores(folder, runs, {})), tuple(scored), failed)


def _note_unasked(unasked: Mapping[str, Reason]) -> dict[str, dict[str, str]]:
    """Return, for the study, why questions were not asked, and what would help."""
    return {
        "untried": {question: reason.what for question, reason in unasked.items()},
        "remedies": {question: reason.remedy for question, reason in unasked.items()},
    }


def _join_reasons(failed: Mapping[str, str]) -> str:
    """Say why the attacks that come first in a report could not be made, or all if these were none of them."""
    by_place = sorted(failed, key=lambda name: ATTACKS[name].in_apps.place)
    tried = [name for name in by_place if ATTACKS[name].in_apps.place < InApps().place] or by_place
    return "; ".join(f"{name}: {failed[name]}" for name in tried)


def _make(attack: Attack, runs: Sequence[Run], device: str, watch: Watch) -> Sequence[Run] | str:
    """Attack all runs, unless that was done before the audit was stopped; returns why it cannot be done, if so."""
    # Scores that are newer than record and knowledge are those of the stopped audit.
    if not list_unscored({run.part: run.sent for run in runs}, [attack.name]):
        return runs
    failed: dict[str, Failure] = {}
    with failing_alone(failed, attack.name):
        if runs[0].sent.view in attack.needs.views:
            return list(attack_runs(attack, runs, device=device, watch=watch))
        return _attack_sums(attack, runs, device, watch)
    # Scores of some seeds alone would be judged as if they were all.
    remove_scores([run.part for run in runs], attack.name)
    why = failed[attack.name].why
    watch.say("warning", say_unmade(attack.name, why))
    return why


def _attack_sums(attack: Attack, runs: Sequence[Run], device: str, watch: Watch) -> list[Run]:
    """Attack what a server behind secure aggregation would have seen of the same runs."""
    scored = []
    for run in runs:
        step = f"{attack.name} on {run.part.name or 'the record'}"
        # A copy of the record as sums: it goes with the private folder.
        with private_folder(run.part.folder) as folder:
            scores = attack.run(
                project_record(Record(run.part.record), folder / "record"),
                run.knowledge,
                device=device,
                progress=lambda done, total, step=step: watch.step(step, done, total),  # type: ignore[misc]
            )
        note = f"{attack.name} was given only sums, computed from the replies as if secure aggregation had been on"
        # The sums are gone; what they were computed from stays.
        of_replies = RecordMark.of(run.sent)
        scores = replace(scores, notes=(note, *scores.notes), record=of_replies)
        scores.save(run.part.scores(attack.name))
        scored.append(run.with_scores({**run.scores, attack.name: scores}))
    return scored


def attack_by_app(asker: Asker, posed: Sequence[Posed], attacked: Attacked) -> Attacked:
    """Make attacks through the app's own step, where that is the only way to compute what clients send."""
    known = posed[0].knowledge
    if known.answers is None or known.model is not None or asker.functions.losses is not None:
        return attacked
    attacked = invert_by_app(asker, posed, attacked)
    return read_sequences_by_app(asker, posed, attacked)


def invert_by_app(asker: Asker, posed: Sequence[Posed], attacked: Attacked) -> Attacked:
    """Search for examples through the app's own step."""
    known, few = posed[0].knowledge, posed[0].few
    if known.targets is None or known.training is None:
        return attacked
    # As of other apps: clients of few examples, in one run.
    if not few or len(posed) > 1:
        return attacked
    # A generator takes no example, and the step of a discriminator takes more: there is no step to search through.
    if find_adversary(witnesses_of(attacked.runs[0].part)):
        return attacked

    def search(run: Run, inquiry: Inquiry) -> Scores:
        return asker.invert(inquiry, few)

    return _make_by_app(attacked, "inversion", search, "no example could be searched for")


def read_sequences_by_app(asker: Asker, posed: Sequence[Posed], attacked: Attacked) -> Attacked:
    """Read sequences of tokens off updates, where the gradients of examples show words and attention."""
    attack, known = ATTACKS["dager"], posed[0].knowledge
    # What is not known is the model alone, and the app is asked in its place.
    lacks = [lack for lack in attack.needs.find_lacks(attacked.runs[0].sent, known) if lack.kind != UNKNOWN]
    if known.targets is None or lacks or any({attack.name, "sequences"} & {*each.reasons} for each in posed):
        return attacked
    # Where the step gives no gradients, nobody can say what the model lacks.
    if not known.roles:
        return attacked
    try:
        find_words(known.roles)
    except NeedsError as cause:
        study = dict(attacked.folder.study)
        untried = {**study["untried"], "sequences": str(cause)}
        remedies = {**study.get("remedies", {}), "sequences": f"{NOTHING}the question is about {attack.needs.about}"}
        attacked.folder.note({**study, "untried": untried, "remedies": remedies})
        return attacked

    def read(run: Run, inquiry: Inquiry) -> Scores:
        return asker.read_sequences(inquiry, run.sent)

    return _make_by_app(attacked, attack.name, read, "no sequence could be read")


def _make_by_app(attacked: Attacked, name: str, make: Callable[[Run, Inquiry], Scores], nothing: str) -> Attacked:
    """Make an attack of all runs; where one fails, the study says that ``nothing`` could be found, and why."""
    threat = next(threat.name for threat in THREATS.values() if name in threat.attacks)
    study = dict(attacked.folder.study)
    untried, remedies = dict(study["untried"]), dict(study.get("remedies", {}))
    runs: list[Run] = []
    failed: dict[str, Failure] = {}
    with failing_alone(failed, name):
        for run in attacked.runs:
            known = run.knowledge
            if known.targets is None:
                raise DataError(f"nobody knows an example of {run.part.label}")
            scores = make(run, Inquiry(run.part, witnesses_of(run.part), known.targets, known.sends))
            scores.save(run.part.scores(name))
            runs.append(run.with_scores({**run.scores, name: scores}))
    if failed:
        # Scores of some seeds alone would be judged as if they were all.
        remove_scores([run.part for run in attacked.runs], name)
        untried[threat] = f"{nothing} through the app's own step: {failed[name].why}"
    else:
        untried.pop(threat, None)
        remedies.pop(threat, None)
        attacked = replace(attacked, runs=tuple(runs), scored=(*attacked.scored, name))
    noted = {"untried": untried, "remedies": remedies, "attacks": list(attacked.scored)}
    attacked.folder.note({**study, **noted})
    return attacked


def control_all(asker: Asker, attacked: Attacked, watch: Watch, *, full: bool = False) -> None:
    """Find out whether attacks that show nothing would have seen a leak, and note it for the report, once.

    If it is not ``full``, that takes no longer than the app's own run, or :data:`CONTROL_SECONDS`.
    """
    runs, study = attacked.runs, dict(attacked.folder.study)
    # Whoever goes on with an audit has them already: they take as long as the attacks.
    if "controls" in study:
        return
    found: dict[str, Control] = {}
    failed: dict[str, Failure] = {}
    left_out = list(study.get(LEFT_OUT, ()))
    seconds = None
    if not full:
        seconds = max(CONTROL_SECONDS, _count_seconds(study))
    with failing_alone(failed, "control"):
        found = control(asker, runs, [witnesses_of(run.part) for run in runs], watch, left_out, seconds)
    for failure in failed.values():
        watch.say("warning", f"no positive control was made: {failure.why}")
        left_out.append(f"the positive controls: {failure.why}")
    study["controls"] = {name: vars(each) for name, each in found.items()}
    if left_out:
        study[LEFT_OUT] = left_out
    attacked.folder.note(study)


def _count_seconds(study: Mapping[str, Any]) -> float:
    """Return how long the app's own run took; 0 where it is not known."""
    started, finished = study.get("started"), study.get("finished")
    if started is None or finished is None:
        return 0.0
    return (datetime.fromisoformat(finished) - datetime.fromisoformat(started)).total_seconds()


def judge(order: Order, posed: Sequence[Posed], attacked: Attacked, watch: Watch) -> Judged:
    """Judge all scores of a run folder, and write its page."""
    unmade: dict[str, Failure] = {}
    findings, page = judge_runs(attacked.folder, attacked.runs, device=order.device, watch=watch, unmade=unmade)
    return Judged(tuple(findings), page, tuple(posed), unmade)


@contextmanager
def explaining(order: Order, watch: Watch, trusted: Collection[str] = ()) -> Iterator[None]:
    """Write a page, too, where no question can be answered: it says what was tried, and what reached the server.

    `trusted` are import paths that the app itself gave, as far as they are known when that turns out.
    """
    try:
        yield
    except Exception as cause:
        failed: dict[str, Failure] = {}
        # Whatever fails here is told beside the reason that brought us here, which is raised again below.
        try:
            with failing_alone(failed, "page"):
                _write_unanswered(order, watch, Failure.of(cause).why, trusted)
        except TrustError as refused:
            # Why there is no page must not hide why there is no answer.
            failed["page"] = Failure.of(refused)
        for failure in failed.values():
            watch.say("warning", f"no page was written, either: {failure.why}")
        raise


def _write_unanswered(order: Order, watch: Watch, why: str, trusted: Collection[str]) -> None:
    """Write the page of a run of which no question could be answered, if there is one."""
    try:
        lock = FolderLock(order.out)
    except OSError:
        # There is no folder, or another command is at work in it, which writes a page of its own.
        return
    with lock:
        if not note_unanswered(order.out, why):
            return
        findings, page = judge_folder(order.out, device=order.device, watch=watch, trusted=trusted, unmade={})
        if findings:
            # The command was given before, and the page shows what was found then.
            return
        watch.say("note", f"no question was answered; {page} says what was tried and what reached the server")
        for line in list_readable(read_run(order.out)):
            watch.say("note", line)


def note_unanswered(out: Path, why: str) -> bool:
    """Note, for the page, why no question could be answered; returns whether there is a run that it can be said of.

    What witnesses saw of the first run is noted with it: what clients send, and what a reader must know.
    """
    try:
        folder = RunFolder(out)
        records = [Record(part.record, thinned=True) for part in folder.parts]
    except FedAttackError:
        return False
    study = folder.study
    untried = dict.fromkeys(THREATS, "no attack was made; the reason is above")
    # What would help is that of the reason above.
    remedies: dict[str, str] = {}
    if study.get("attacks"):
        # Attacks were made, and the study says why others were not.
        untried, remedies = study.get("untried", {}), study.get("remedies", {})
    if any(map(has_arrays_of_queries, records)):
        untried[_COLUMNS_OF_EMBEDDINGS] = "the order of the rows that each party sends is not known"
        remedies[_COLUMNS_OF_EMBEDDINGS] = (
            "the examples of each party in the order of the rows that it sends: --examples module:function"
        )
        # Labels that gradients do tell are among the notes.
        if not any(True for record in records for _ in list_told_labels(record)):
            untried[_LABELS_OF_GRADIENTS] = (
                "here neither the sign of a gradient nor its negative entry reveals labels; it is not known whether "
                "its norm does"
            )
            remedies[_LABELS_OF_GRADIENTS] = "the labels in the order of the rows: --examples module:function"
    noted = {
        "attacks": [],
        "untried": untried,
        "remedies": remedies,
        UNANSWERED: short(why, _LONGEST_REASON),
    } | _read_witnessed(folder.parts[0])
    folder.note({**study, **noted})
    return True


def _read_witnessed(part: Part) -> dict[str, Any]:
    """Return what a page without an answer says of what witnesses saw; nothing where they cannot be read."""
    try:
        witnesses = witnesses_of(part)
    except FedAttackError:
        return {}
    reading = read_sends(witnesses, Record(part.record, thinned=True))
    noted: dict[str, Any] = {WITNESSED: [*list_witness_notes(witnesses), *reading.notes]}
    if reading.rows:
        unread = reading.unread
        if reading.predictions:
            # There is an attack on these, of records of another protocol.
            unread = ""
        noted[SENT] = {"arrays": list(map(dict, reading.rows)), "unread": unread}
    return noted
