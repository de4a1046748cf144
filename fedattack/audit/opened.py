"""A run folder, opened once: of each seed its record, what the attacker knows, what is true, and the scores."""

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from fedattack.attacks import ATTACKS, Knowledge, Scores, read_knowledge
from fedattack.attacks.matching import as_models, complete_models, named_for
from fedattack.attacks.replies import without_canaries
from fedattack.audit.truth import Truth, read_truth
from fedattack.base.errors import DataError, RecordError, in_command, short
from fedattack.base.failures import Failure, failing_alone
from fedattack.record import Record
from fedattack.record.folder import HOLDINGS, KNOWLEDGE, Part, RunFolder
from fedattack.record.marks import explain_scores, explain_statement
from fedattack.record.nodes import NODES

UNANSWERED = "unanswered"
"""Key of a study: why no question could be answered, so that there are no scores."""

SENT, WITNESSED = "sent", "witnessed"
"""Keys of such a study, which has no truth: what clients send, and what their witnesses note."""


@dataclass(frozen=True)
class Run:
    """One seed of a run folder, opened once: all that attacks, controls, judges and pages read of it.

    Attributes
    ----------
    part
        Where it lies in the run folder.
    index
        Which of the seeds it is.
    sent
        What the server saw as it came: arrays have the names and values that were sent.
    knowledge
        What the attacker knows. Attacks are given this and :attr:`sent`, and nothing else.
    truth
        What is true; ``None`` if nobody says. Its nodes are those of clients that are no canaries.
    scores
        What each attack made of the record, by the attack's name.
    """

    part: Part
    index: int
    sent: Record
    knowledge: Knowledge
    truth: Truth | None = None
    scores: Mapping[str, Scores] = field(default_factory=dict)

    @cached_property
    def seed(self) -> int:
        """The run's seed, or the number of the part for a record that names none."""
        if self.sent.seed is None:
            return self.index
        # A record of another tool may name no seed.
        return self.sent.seed

    @cached_property
    def record(self) -> Record:
        """What the server saw as judges read it: without canaries, and where the truth is known, with whole models."""
        record = as_models(without_canaries(self.sent, self.knowledge), self.knowledge)
        # Without the truth no model is evaluated, and the project that it comes from need not be at hand.
        if self.truth is not None:
            record = named_for(record, self.knowledge.model, self.knowledge.frozen or ())
            if self.knowledge.frozen is not None:
                record = complete_models(record, self.knowledge)
        return record

    def with_scores(self, scores: Mapping[str, Scores]) -> "Run":
        """Return the run with other scores; what was made of its record stays open."""
        changed = replace(self, scores=scores)
        # The cached record depends on neither scores nor attack; `replace` does not copy what is cached.
        if "record" in vars(self):
            vars(changed)["record"] = self.record
        return changed


def open_records(
    folder: RunFolder, knowledge: Callable[[Part], Knowledge], *, skip_damaged: bool = False, truth: bool = False
) -> list[Run]:
    """Open all seeds of a run folder for attacks.

    Parameters
    ----------
    knowledge
        Reads what the attacker knows of a seed.
    skip_damaged
        Whether damaged rounds are left out; the record's ``damage`` says which.
    truth
        Whether the truth is read, too, for a caller that judges what the attacks find.

    Raises
    ------
    RecordError
        If a record is missing, damaged or not that of its seed.
    DataError
        If the truth is damaged.
    """
    runs = []
    for index, part in enumerate(folder.parts):
        # `singled_out` takes a client out of sums that hold nobody else; a thinned record is read as far as it goes.
        record = Record(part.record, skip_damaged=skip_damaged, thinned=True).singled_out()
        run = Run(part, index, record, knowledge(part))
        if truth:
            run = _add_truth(run)
        runs.append(run)
    return runs


def open_runs(
    folder: RunFolder, *, trusted: Collection[str] = (), failed: MutableMapping[str, Failure] | None = None
) -> list[Run]:
    """Open all seeds of a run folder that was attacked.

    Parameters
    ----------
    trusted
        What of the folder's import paths and paths may be followed; see :func:`fedattack.attacks.read_knowledge`.
    failed
        Is told by attack why its scores cannot be read, while all others are; ``None`` to raise what went wrong.

    Returns
    -------
    list of Run
        At least one. The attack that the study is about comes first among the scores. There are no scores where the
        study says why no question could be answered.

    Raises
    ------
    DataError
        If there are no scores, the truth is damaged, or something is of another record than lies beside it. Scores of
        another record fail alone, as those that cannot be read.
    RecordError
        If a record is missing, is damaged, is not that of its seed, or holds no round.
    """
    attacks = _attacks_of(folder)
    # A record that cannot be judged is refused before anything else is read.
    runs = []
    for index, part in enumerate(folder.parts):
        runs.append(Run(part, index, _record_of(part, allow_empty=not attacks), Knowledge()))
    scored = _add_scores(attacks, runs, failed)
    if attacks:
        # Without attacks nobody knew anything. All of their scores may have failed.
        scored = [replace(run, knowledge=read_knowledge(run.part.knowledge, trusted=trusted)) for run in scored]
    opened = list(map(_add_truth, scored))
    for run in opened:
        _check_record(run)
    return opened


def add_scores(folder: RunFolder, runs: Sequence[Run], failed: MutableMapping[str, Failure] | None = None) -> list[Run]:
    """Give runs all scores that lie in their folder; those that they have already are not read again.

    On ``failed`` and what is raised see :func:`open_runs`.
    """
    return _add_scores(_attacks_of(folder), runs, failed)


def _add_scores(attacks: Sequence[str], runs: Sequence[Run], failed: MutableMapping[str, Failure] | None) -> list[Run]:
    scores: dict[str, list[Scores]] = {}
    for name in attacks:
        with failing_alone(failed, name):
            scores[name] = [run.scores.get(name) or _load_scores(name, run.part, run.sent) for run in runs]
    scored = []
    for index, run in enumerate(runs):
        scored.append(run.with_scores({name: of_runs[index] for name, of_runs in scores.items()}))
    return scored


def _attacks_of(folder: RunFolder) -> list[str]:
    """List the attacks that have scores for every seed, the one that the study is about first."""
    path, study = folder.path, folder.study
    # An attack with scores for some seeds alone cannot be judged over all of them.
    attacks = [name for name in ATTACKS if all(part.scores(name).exists() for part in folder.parts)]
    if not attacks and UNANSWERED in study:
        return []
    if not attacks:
        raise DataError(
            f"{path / 'scores'} holds no scores for every record; run `fedattack attack NAME {in_command(path)}` first"
        )
    if all(ATTACKS[name].options.is_baseline for name in attacks):
        raise DataError(
            f"{path / 'scores'} holds only the scores of {', '.join(attacks)}, which only serve as a comparison for "
            "other attacks; also run "
            f"`fedattack attack NAME {in_command(path)}` with another attack"
        )
    # Stable: the others stay in the order of the registry.
    about = study.get("attacks", ())[:1]
    return sorted(attacks, key=lambda name: name not in about)


def _record_of(part: Part, *, allow_empty: bool) -> Record:
    # Damage is noted on the record, and shown; only a record in which clients answered nothing ends the audit.
    record = Record(part.record, skip_damaged=True, thinned=True).singled_out()
    if not len(record) and not allow_empty and (record.damage or not record.has_contents):
        why = next(iter(record.damage), "no round was recorded")
        raise RecordError(f"{record.path} holds no readable round, so nothing can be judged: {why}")
    return record


def _load_scores(attack: str, part: Part, record: Record) -> Scores:
    """Read the scores of one seed, and refuse those of another record than lies beside them."""
    scores = ATTACKS[attack].load_scores(part.scores(attack))
    fault = explain_scores(part.scores(attack), scores.record, record)
    if fault:
        raise DataError(fault)
    return scores


def _add_truth(run: Run) -> Run:
    """Read who holds what, if somebody says so."""
    if not (run.part.truth / HOLDINGS).exists():
        return run
    truth = read_truth(run.part.truth)
    _check_nodes(run.part, run.knowledge, truth)
    # Canaries are the auditor's own clients: the truth that judges see has none of them.
    clients_alone = {node: name for node, name in truth.nodes.items() if name not in truth.canaries}
    return replace(run, truth=replace(truth, nodes=clients_alone))


def _check_record(run: Run) -> None:
    """Refuse knowledge and truth of another record than lies beside them."""
    faults = [explain_statement(run.part.knowledge / KNOWLEDGE, run.knowledge.record, run.record)]
    if run.truth is not None:
        faults.append(explain_statement(run.part.truth / HOLDINGS, run.truth.record, run.record))
    for fault in filter(None, faults):
        raise DataError(fault)


def _check_nodes(part: Part, knowledge: Knowledge, truth: Truth) -> None:
    """Check that both folders say the same of nodes: clients note themselves in both, so that neither is sealed."""
    if {*knowledge.canaries} != {*truth.canaries}:
        raise DataError(
            f"{part.knowledge} names {len(knowledge.canaries)} canaries, and {part.truth} {len(truth.canaries)}; "
            "expected the same ones in both, so that attacks leave out whom the audit leaves out"
        )
    known = dict(truth.nodes)
    if knowledge.canaries and not {*knowledge.nodes.values()} - {*truth.canaries}:
        # A server that does not know its customers is told the auditor's own.
        known = {node: name for node, name in truth.nodes.items() if name in truth.canaries}
    if knowledge.nodes and knowledge.nodes != known:
        # One example of a node that differs is enough for the message.
        odd = min({*knowledge.nodes.items()} ^ {*known.items()})[0]
        raise DataError(
            f"{part.knowledge / NODES} and {part.truth / NODES} do not say the same of node {short(odd, 60)}; put "
            "back the files as their clients wrote them"
        )
