"""Attack the records of a run folder, and judge what was found."""

from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedattack.attacks import ATTACKS, Attack, Knowledge, write_knowledge
from fedattack.attacks.registry import THREATS
from fedattack.audit.finding import Finding
from fedattack.audit.listing import Listing
from fedattack.audit.opened import Run, open_records, open_runs
from fedattack.audit.run import FINDINGS, audit_runs
from fedattack.base.cluster import chosen
from fedattack.base.errors import ConfigError
from fedattack.base.failures import Failure
from fedattack.base.imports import importing
from fedattack.record import Record
from fedattack.record.folder import LEFT_OUT, STUDY, Part, RunFolder
from fedattack.record.format import INDEX
from fedattack.record.marks import marked_otherwise
from fedattack.runs.asked import known_to
from fedattack.runs.checks import check_attacks, check_scores
from fedattack.runs.pace import Pace
from fedattack.runs.private import sweep
from fedattack.runs.watch import Watch


def choose_attacks(names: Sequence[str], options: Mapping[str, str]) -> list[Attack]:
    """Find attacks by name, and set in each the options that it has.

    Raises
    ------
    ConfigError
        If an attack is unknown, an option is none of any of them, or its value is refused.
    """
    check_attacks(names, options)
    for name in names:
        if name not in ATTACKS:
            raise ConfigError(f"the attack {name!r} cannot be used: {THREATS.left_out[name]}")
    chosen = []
    for attack in map(ATTACKS.__getitem__, names):
        known = attack.options.list_settings()
        chosen.append(attack.with_options({key: text for key, text in options.items() if key in known}))
    return chosen


def attack_folder(
    attack: Attack,
    folder: Path,
    *,
    seed: int = 0,
    device: str = "auto",
    skip_damaged: bool = False,
    knowledge: Callable[[Part], Knowledge] = known_to,
    watch: Watch,
) -> list[str]:
    """Attack every record in a run folder; returns the files of the scores.

    Raises
    ------
    RecordError
        If there is no record, or one is damaged.
    NeedsError
        If a record, or what `knowledge` gives for its part, lacks what the attack needs.
    """
    opened = RunFolder(folder)
    # Before anything reads the folder: private copies of a killed command are removed.
    sweep(folder)
    runs = open_records(opened, knowledge, skip_damaged=skip_damaged)
    for run in runs:
        for damage in run.sent.damage:
            watch.say("warning", f"{run.part.label}: left out as damaged: {damage}")
    files = []
    for run in attack_runs(attack, runs, seed=seed, device=device, watch=watch):
        files.append(str(run.part.scores(attack.name)))
    _forget_unmade(opened, attack.name)
    return files


def attack_runs(
    attack: Attack, runs: Sequence[Run], *, seed: int = 0, device: str = "auto", watch: Watch
) -> Iterator[Run]:
    """Attack the records of all seeds, and write the scores; yields each run with these among its scores.

    Raises
    ------
    NeedsError
        If a record, or what its attacker knows, lacks what the attack needs.
    """
    pace = Pace(f"attack {attack.name}", "seeds", len(runs), 1, watch.say)
    if chosen() and not attack.options.shares_work():
        watch.say("note", f"{attack.name} is made here, not on --cluster: it takes less time than its data's way there")
    for index, run in enumerate(runs):
        step = f"{attack.name} on {run.part.name or 'the record'}"
        watch.step(step, 0, len(run.sent))
        pace.seen(index)
        scores = attack.run(
            run.sent,
            run.knowledge,
            seed=seed,
            device=device,
            progress=lambda done, total, step=step: watch.step(step, done, total),  # type: ignore[misc]
        )
        scores.save(run.part.scores(attack.name))
        if not (run.part.folder / STUDY).exists():
            # A record from elsewhere: what this attack was told is kept for the report.
            write_knowledge(run.part.knowledge, replace(run.knowledge, record=run.sent.origin))
        for note in scores.notes:
            watch.say("note", note)
        yield run.with_scores({**run.scores, attack.name: scores})


def say_unmade(name: str, why: str) -> str:
    """Say that an attack was not made, as a study notes it among what is left out."""
    return f"{name} was not made: {why}"


def _forget_unmade(folder: RunFolder, name: str) -> None:
    """Forget that an attack failed before, now that it is made."""
    left_out = folder.study.get(LEFT_OUT, [])
    others = [line for line in left_out if not line.startswith(say_unmade(name, ""))]
    if others != left_out:
        folder.note({**folder.study, LEFT_OUT: others})


def list_unscored(records: Mapping[Part, Record], names: Sequence[str]) -> list[str]:
    """List the attacks that lack scores of a record as it is, or whose scores are older than it or the knowledge.

    `records` are by their places in a run folder.
    """
    return [name for name in names if not all(_has_scores(*seed, name) for seed in records.items())]


def remove_scores(parts: Sequence[Part], name: str) -> None:
    """Remove the scores of an attack that failed: of some records alone they are none, and no report takes them.

    Findings that were made of them go, too: they are made anew without this attack.
    """
    for part in parts:
        if part.scores(name).exists():
            part.scores(name).unlink()
            (part.folder / FINDINGS).unlink(missing_ok=True)


def _has_scores(part: Part, record: Record, name: str) -> bool:
    scores = part.scores(name)
    if not scores.exists():
        return False
    # Whether its rounds are whole is not looked at: that takes as long as reading all of them.
    # A record that has grown, or is another's, makes scores old, whatever their time says.
    if marked_otherwise(scores, record):
        return False
    written = scores.stat().st_mtime
    sources = [part.record / INDEX, *part.knowledge.rglob("*")]
    return all(source.stat().st_mtime <= written for source in sources if source.is_file())


def judge_folder(
    folder: Path,
    *,
    device: str = "auto",
    watch: Watch,
    trusted: Collection[str] = (),
    unmade: MutableMapping[str, Failure] | None = None,
) -> tuple[list[Finding], Path]:
    """Judge all scores in a run folder; see :func:`judge_runs`.

    Parameters
    ----------
    trusted
        What of the folder's import paths and paths may be followed; see :func:`fedattack.attacks.read_knowledge`.
    """
    return judge_runs(RunFolder(folder), device=device, watch=watch, trusted=trusted, unmade=unmade)


def judge_runs(
    folder: RunFolder,
    runs: Sequence[Run] | None = None,
    *,
    device: str = "auto",
    watch: Watch,
    trusted: Collection[str] = (),
    unmade: MutableMapping[str, Failure] | None = None,
) -> tuple[list[Finding], Path]:
    """Judge all scores in a run folder; returns the findings and the path of the report.

    The folder then has ``findings.json``, ``run.json``, ``report.html``, and ``tables`` for reviewers.

    Parameters
    ----------
    runs
        The folder's seeds with all their scores, where they are open already.
    unmade
        Is told which parts of the page could not be made, and why. Then each attack fails alone, too: ``run.json`` says
        which, and all else is written. ``None`` to raise what goes wrong first.

    Raises
    ------
    TrustError
        If a model is needed for that, and the folder names code for it that is not trusted.
    DataError
        If there are no scores, some are gone, none can be judged, or the truth is damaged.
    """
    # Drawing takes a second to import, and most commands draw nothing.
    with importing():
        from fedattack.report.html import write_page
        from fedattack.report.tables import write_tables
        from fedattack.report.validate import check_findings, list_found

    sweep(folder.path)
    # What findings.json speaks of must still have its scores, or the report would silently lose it.
    check_scores(folder, list_found(folder.path))
    failed = None if unmade is None else dict[str, Failure]()
    if runs is None:
        runs = open_runs(folder, trusted=trusted, failed=failed)
    written: dict[str, str] = {}

    # Called back: tables are made while the judges still hold what they list.
    def list_scores(listings: Sequence[Listing]) -> None:
        written.update(write_tables(folder.path, listings))

    findings, facts = audit_runs(
        folder,
        runs,
        device=device,
        progress=watch.step,
        listed=list_scores,
        failed=failed,
        check=check_findings,
    )
    return findings, write_page(folder.path, findings, facts, written, unmade)
