"""What an audit judges by: of each seed its record, what the attacker knew, what is true, and the attacks' scores."""

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from fedattack.attacks import ATTACKS, Knowledge, Scores, read_knowledge
from fedattack.attacks.matching import as_models, complete_models, named_for
from fedattack.attacks.replies import without_canaries
from fedattack.audit.judge import judge_of
from fedattack.audit.truth import Truth, read_truth
from fedattack.base.errors import DataError, RecordError, in_command, short
from fedattack.base.failures import Failure, failing_alone
from fedattack.record import Record
from fedattack.record.folder import HOLDINGS, KNOWLEDGE, Part, find_parts, read_study
from fedattack.record.marks import explain_scores, explain_statement
from fedattack.record.nodes import NODES

UNANSWERED = "unanswered"
"""Key of a study: why no question could be answered, so that there are no scores."""

SENT, WITNESSED = "sent", "witnessed"
"""Keys of such a study, which has no truth: what clients send, and what their witnesses note."""


@dataclass(frozen=True)
class Evidence:
    """All that there is about one seed of a run.

    Attributes
    ----------
    part
        Where it lies in the run folder.
    index
        Which of the seeds it is.
    record
        What the server saw, without the replies of canaries.
    knowledge
        What the attacker knew.
    truth
        What is true; ``None`` if nobody says. Its nodes are those of clients that are no canaries.
    scores
        What each attack made of the record, by the attack's name.
    reached
        What the server saw as it came, in which arrays have the names and values that were sent; ``None`` for the same
        as ``record``.
    """

    part: Part
    index: int
    record: Record
    knowledge: Knowledge
    truth: Truth | None
    scores: Mapping[str, Scores]
    reached: Record | None = None

    @cached_property
    def seed(self) -> int:
        """The run's seed, or the number of the part for a record that names none."""
        if self.record.seed is None:
            return self.index
        return self.record.seed


def read_evidence(
    folder: Path, *, trusted: Collection[str] = (), failed: MutableMapping[str, Failure] | None = None
) -> list[Evidence]:
    """Read all seeds of a run folder.

    Parameters
    ----------
    trusted
        What of the folder's import paths and paths may be followed; see :func:`fedattack.attacks.read_knowledge`.
    failed
        Is told by attack why its scores cannot be read, while all others are; ``None`` to raise what went wrong.

    Returns
    -------
    list of Evidence
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
    parts = find_parts(folder)
    attacks = _attacks_of(folder, parts)
    # A record that cannot be judged is refused before anything else is read.
    records = [_record_of(part, allow_empty=not attacks) for part in parts]
    scores: dict[str, list[Scores]] = {}
    for name in attacks:
        with failing_alone(failed, name):
            scores[name] = [_load_scores(name, part, record) for part, record in zip(parts, records, strict=True)]
    evidence = []
    for index, (part, record) in enumerate(zip(parts, records, strict=True)):
        of_part = {name: of_parts[index] for name, of_parts in scores.items()}
        evidence.append(_of_part(index, part, record, of_part, trusted, attacked=bool(attacks)))
    return evidence


def _attacks_of(folder: Path, parts: Sequence[Part]) -> list[str]:
    """List the attacks that have scores for every seed, the one that the study is about first."""
    attacks = [name for name in ATTACKS if all(part.scores(name).exists() for part in parts)]
    if not attacks and UNANSWERED in read_study(folder):
        return []
    if not attacks:
        raise DataError(
            f"{folder / 'scores'} holds no scores for every record; run "
            f"`fedattack attack NAME {in_command(folder)}` first"
        )
    if not any(map(judge_of, attacks)):
        raise DataError(
            f"{folder / 'scores'} holds only the scores of {', '.join(attacks)}, with which the results of other "
            "attacks are compared, and which are not judged by themselves; run "
            f"`fedattack attack NAME {in_command(folder)}` with such an attack, too"
        )
    about = read_study(folder).get("attacks", ())[:1]
    return sorted(attacks, key=lambda name: name not in about)


def _record_of(part: Part, *, allow_empty: bool) -> Record:
    record = Record(part.record, skip_damaged=True, thinned=True).singled_out()
    if not len(record) and not allow_empty:
        why = next(iter(record.damage), "no round was recorded")
        raise RecordError(f"{record.path} holds no round that can be read, so that nothing can be judged: {why}")
    return record


def _load_scores(attack: str, part: Part, record: Record) -> Scores:
    """Read the scores of one seed, and refuse those of another record than lies beside them."""
    scores = ATTACKS[attack].load_scores(part.scores(attack))
    fault = explain_scores(part.scores(attack), scores.record, record)
    if fault:
        raise DataError(fault)
    return scores


def _of_part(
    index: int,
    part: Part,
    record: Record,
    scores: Mapping[str, Scores],
    trusted: Collection[str],
    *,
    attacked: bool,
) -> Evidence:
    truth, knowledge, reached = None, Knowledge(), record
    if (part.truth / HOLDINGS).exists():
        truth = read_truth(part.truth)
    # Without attacks nobody knew anything. All of their scores may have failed.
    if attacked:
        knowledge = read_knowledge(part.knowledge, trusted=trusted)
    record = as_models(without_canaries(record, knowledge), knowledge)
    if truth is not None:
        _check_nodes(part, knowledge, truth)
        # Without the truth no model is evaluated, and the project that it comes from need not be at hand.
        record = named_for(record, knowledge.model, knowledge.frozen or ())
        if knowledge.frozen is not None:
            record = complete_models(record, knowledge)
        clients_alone = {node: name for node, name in truth.nodes.items() if name not in truth.canaries}
        truth = replace(truth, nodes=clients_alone)
    _check_record(part, record, knowledge, truth)
    return Evidence(part, index, record, knowledge, truth, scores, reached)


def _check_record(part: Part, record: Record, knowledge: Knowledge, truth: Truth | None) -> None:
    """Refuse knowledge and truth of another record than lies beside them."""
    faults = [explain_statement(part.knowledge / KNOWLEDGE, knowledge.record, record)]
    if truth is not None:
        faults.append(explain_statement(part.truth / HOLDINGS, truth.record, record))
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
        odd = min({*knowledge.nodes.items()} ^ {*known.items()})[0]
        raise DataError(
            f"{part.knowledge / NODES} and {part.truth / NODES} do not say the same of node {short(odd, 60)}; put "
            "back the files as their clients wrote them"
        )
