"""The library in brief: open a record, attack it, judge a run folder, look at the findings.

Folders that somebody else made are data: fedattack imports what they ask for only if you name it in ``trusted``.
"""

import html
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedattack.attacks import Knowledge, Scores
from fedattack.attacks.knowledge_files import read_knowledge as read_knowledge_at
from fedattack.audit.card import line_of, table_of
from fedattack.audit.finding import Finding
from fedattack.base.failures import Failure
from fedattack.record import Record
from fedattack.report import read_claim, read_run, render_html
from fedattack.report import read_findings as read_file
from fedattack.report.html import PAGE
from fedattack.report.lacking import list_lacking
from fedattack.runs.asked import known_to
from fedattack.runs.pipeline import attack_folder as attack_all
from fedattack.runs.pipeline import choose_attacks, judge_folder
from fedattack.runs.watch import Watch

if TYPE_CHECKING:
    import pandas

_COLUMNS = (
    "name",
    "attack",
    "metric",
    "label",
    "view",
    "value",
    "low",
    "high",
    "here_low",
    "here_high",
    "level",
    "units",
    "chance",
    "null",
    "null_low",
    "null_high",
    "p",
    "p_adjusted",
    "verdict",
    "reason",
    "n",
    "seeds",
    "seed_mean",
    "seed_sd",
    "headline",
    "selected_after_the_fact",
    "comparisons",
)


class Findings(list[Finding]):
    """Findings, in the order of the report. A notebook shows them as a table, and a single one as a card.

    ``print(findings)`` prints one line for each.
    """

    def __repr__(self) -> str:
        return "\n".join(map(line_of, self)) or "There are no findings."

    def _repr_html_(self) -> str:
        return table_of(self)

    def frame(self) -> "pandas.DataFrame":
        """Return a table with one row for each finding.

        Its columns are the fields of :class:`~fedattack.audit.finding.Finding` that hold a number or a text, and
        ``seeds``. ``null``, ``null_low`` and ``null_high`` are the null run's value and its interval.
        """
        import pandas

        rows = []
        for finding in self:
            null = finding.null or {"value": None, "low": None, "high": None}
            nulls = {"null": null["value"], "null_low": null["low"], "null_high": null["high"]}
            row = {name: getattr(finding, name) for name in _COLUMNS if name not in nulls}
            rows.append(row | nulls)
        return pandas.DataFrame(rows, columns=[*_COLUMNS])


class Report:
    """A report's page. A notebook shows it if it is the last value of a cell.

    Attributes
    ----------
    path
        Path of the page's file.
    page
        The page, made from the findings and the facts of the run, because a file in somebody's folder may say anything.
    """

    def __init__(self, path: Path, page: str) -> None:
        self.path, self.page = path, page

    def __repr__(self) -> str:
        return f"Report({str(self.path)!r})"

    def _repr_html_(self) -> str:
        # In a frame of its own, so that neither page's style reaches the other.
        page = html.escape(self.page, quote=True)
        # sandbox without allowances: no script of the page runs in the notebook.
        return f'<iframe srcdoc="{page}" sandbox style="width: 100%; height: 45rem; border: 0"></iframe>'


def open_record(folder: Path | str, *, skip_damaged: bool = False, thinned: bool = False) -> Record:
    """Open what a server saw.

    Parameters
    ----------
    folder
        The record's folder: ``record`` in a run folder, or ``record/seed-0`` if there are several seeds.
    skip_damaged
        Whether to leave out damaged rounds instead of refusing the record.
    thinned
        Whether to accept a record that does not hold everything that the server saw.

    Raises
    ------
    RecordError
        If there is no record, or it is damaged.
    """
    return Record(Path(folder), skip_damaged=skip_damaged, thinned=thinned)


def read_knowledge(folder: Path | str, *, trusted: Collection[str] = ()) -> Knowledge:
    """Read what an attacker knows besides the record; see :func:`fedattack.attacks.knowledge_files.read_knowledge`.

    Raises
    ------
    DataError
        If a file is missing, damaged, or does not fit the others.
    """
    return read_knowledge_at(Path(folder), trusted=trusted)


def attack(
    name: str,
    record: Record,
    knowledge: Knowledge,
    *,
    options: Mapping[str, str] | None = None,
    seed: int = 0,
    device: str = "auto",
) -> Scores:
    """Attack one record, and change no folder.

    Parameters
    ----------
    name
        Name of an attack; ``fedattack list`` shows them.
    record, knowledge
        What the server saw, and what else the attacker knows.
    options
        Options of the attack, by name.
    seed
        Seed of the attack's random draws.
    device
        ``auto``, ``cpu`` or ``cuda``.

    Raises
    ------
    ConfigError
        If the attack or an option is unknown.
    NeedsError
        If the record or the knowledge lacks what the attack needs.
    """
    (chosen,) = choose_attacks([name], options or {})
    return chosen.run(record, knowledge, seed=seed, device=device)


def attack_folder(
    name: str,
    folder: Path | str,
    *,
    options: Mapping[str, str] | None = None,
    seed: int = 0,
    device: str = "auto",
    trusted: Collection[str] = (),
) -> list[Path]:
    """Attack every seed of a run folder, and write the scores there.

    Parameters
    ----------
    name, options, seed, device
        As for :func:`attack`.
    folder
        The run folder: the one that holds ``record``.
    trusted
        Import paths and file paths in the folder that fedattack may follow.

    Returns
    -------
    list of Path
        Files of the scores, one for each seed.
    """
    (chosen,) = choose_attacks([name], options or {})
    files = attack_all(
        chosen,
        Path(folder),
        seed=seed,
        device=device,
        knowledge=lambda part: known_to(part, trusted),
        watch=Watch(),
    )
    return [Path(file) for file in files]


def judge(folder: Path | str, *, device: str = "auto", trusted: Collection[str] = ()) -> Findings:
    """Compare all scores of a run folder with the truth; write findings, facts of the run, tables and report there.

    Parameters
    ----------
    folder
        The run folder, with scores.
    device
        Where models are evaluated.
    trusted
        Import paths and file paths in the folder that fedattack may follow.

    Warns
    -----
    UserWarning
        For each thing that the report leaves out, such as a damaged round, or an attack that cannot be judged.

    Raises
    ------
    DataError
        If there are no scores, none of them can be judged, or the truth is damaged.
    """
    unmade: dict[str, Failure] = {}
    findings, _ = judge_folder(Path(folder), device=device, watch=Watch(), trusted=trusted, unmade=unmade)
    for line in list_lacking(read_run(Path(folder)), unmade):
        # stacklevel 2: the warning points to the caller's line.
        warnings.warn(line, stacklevel=2)
    return Findings(findings)


def read_findings(folder: Path | str) -> Findings:
    """Read the findings that were written to a run folder.

    Raises
    ------
    ReportError
        If there are none, or they do not fit the schema.
    """
    return Findings(read_file(Path(folder)))


def show(folder: Path | str) -> Report:
    """Return the report of a judged run folder; a notebook shows it.

    Raises
    ------
    ReportError
        If there is none.
    """
    page = render_html(read_file(Path(folder)), read_run(Path(folder)), claim=read_claim(Path(folder)))
    return Report(Path(folder) / PAGE, page)
