"""The report as one self-contained HTML page."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from fedattack.audit.finding import LEAK, NO_EVIDENCE, NOT_APPLICABLE, Finding
from fedattack.files import write_atomically
from fedattack.report import attribute_figures, figures, inversion_figures, property_figures
from fedattack.report.drawing import Plot
from fedattack.report.validate import read_findings, read_run, validate_findings, validate_run
from fedattack.report.words import NOTHING, interval, interval_title, level, printable_all, shown, spread, with_interval

_VERDICTS = {
    LEAK: "Leak",
    NO_EVIDENCE: "No evidence of a leak",
    NOT_APPLICABLE: "Not applicable",
}
# What a finding says about the world, for those whose measure allows a plainer sentence than its label.
_SENTENCES = {
    "sia.asr": "Given a record from the training data, the server named the client that holds it in {value} of cases"
    "{interval}{chance}.",
    "sia.asr-shared": "Given a record that several clients hold, the server named one of them in {value} of cases"
    "{interval}{chance}.",
    "sia.asr-last-round": "Given a record from the training data, the server named the client that holds it in {value} "
    "of cases from what it saw in the last round{interval}{chance}.",
    "prolin.f1": "Which clients have the property? From sums alone the server's answer had an F1 score of {value}"
    "{interval}{chance}.",
    "prolin.false-alarms": "Of the clients that do not have the property, the server wrongly named {value} from sums "
    "alone{interval}{chance}.",
}
_EXCESS = (
    "Against the best guess without any update, what the server filled in from clients' updates was right more often "
    "by {value}{interval}; below zero is less often."
)
_SENTENCES |= dict.fromkeys(("aia.excess", "ara.excess"), _EXCESS)
_SENTENCES["inversion.recognised"] = (
    "Of the records that clients trained on, the server reconstructed {value}{interval} so well that they can be "
    "recognised, from what the clients sent{chance}."
)
_SENTENCE = "{label}: {value}{interval}{chance}."
_SERIES_PLOTS: tuple[tuple[str, Callable[[Finding, str], Plot | None]], ...] = (
    ("per_round", figures.per_round),
    ("attributes", attribute_figures.accuracies),
    ("pictures", inversion_figures.pictures),
    ("per_client", figures.per_client),
    ("reliability", figures.reliability),
    ("methods", property_figures.f1),
    ("methods", property_figures.precision_and_recall),
    ("posteriors", property_figures.posteriors),
    ("overlap", property_figures.overlap),
    ("distributions", property_figures.distributions),
    ("stability", property_figures.stability),
)
_MOST_EXPOSED = 10
_OBSERVED = {
    "rounds": "rounds",
    "replies": "replies that arrived whole",
    "failed": "replies that reported a failure",
    "missing": "replies that never came",
    "late": "replies that came too late",
}


@dataclass(frozen=True)
class Table:
    """A table with its words: a title, what to know when reading it, and texts."""

    title: str
    caption: str
    header: list[str]
    rows: list[list[str]]


def write_report(folder: Path) -> Path:
    """Render ``findings.json`` and ``run.json`` of a run folder to its ``report.html``.

    Parameters
    ----------
    folder
        The run folder.

    Returns
    -------
    Path
        Path of the page, which replaces an older one only when it is complete.

    Raises
    ------
    ReportError
        If one of the two files is missing, is not JSON, or does not fit its schema.
    """
    page = Path(folder) / "report.html"
    write_atomically(page, render_html(read_findings(folder), read_run(folder)).encode())
    return page


def render_html(findings: Sequence[Finding], run: Mapping[str, Any]) -> str:
    """Render findings and facts of the run to one HTML page that loads nothing from anywhere.

    The same input gives the same text.

    Parameters
    ----------
    findings
        The findings, in the order in which they are shown.
    run
        Facts of the run, as ``run.schema.json`` describes them.

    Raises
    ------
    ReportError
        If the input does not fit the schemas.
    """
    findings = validate_findings(printable_all([finding.to_dict() for finding in findings]))
    run = validate_run(printable_all(dict(run)))
    return template("template.html.j2").render(
        run=run,
        cards=[
            {"finding": f, "sentence": _sentence(f), "strip": figures.result_strip(f, f"card-{i}")}
            for i, f in enumerate(findings)
            if f.headline
        ],
        others=[f for f in findings if not f.headline],
        own_setting=lambda f: {k: v for k, v in f.setting.items() if run["setting"].get(k) != v},
        interval_title=interval_title(findings),
        details=_of_findings(findings),
        tables=_tables(findings),
        pictures=_of_run(run),
        observed={_OBSERVED.get(k, k): v for k, v in run.get("observed", {}).items() if k != "in_plaintext"},
        papers=list(dict.fromkeys(f.paper for f in findings if f.paper)),
    )


def template(name: str) -> Template:
    """Load a page's template, which escapes all that it is given and fails on what it was not given."""
    environment = Environment(
        loader=PackageLoader("fedattack.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "shown": shown,
        "level": level,
        "stopped": _stopped,
        "words": _words,
        "scalar": scalar,
        "spread": spread,
    }
    environment.globals |= {"interval": interval, "with_interval": with_interval, "verdicts": _VERDICTS}
    return environment.get_template(name)


def _of_findings(findings: Sequence[Finding]) -> list[Plot]:
    plots = [
        draw(finding, f"finding-{i}-{draw.__name__.replace('_', '-')}")
        for i, finding in enumerate(findings)
        for name, draw in _SERIES_PLOTS
        if finding.series.get(name)
    ]
    return [plot for plot in plots if plot is not None]


def _of_run(run: Mapping[str, Any]) -> list[Plot]:
    plots = []
    if "holdings" in run:
        plots.append(figures.who_holds_what(run["holdings"], "holdings"))
    if "accuracy" in run:
        plots.append(figures.training(run["accuracy"], run.get("overfitting"), "training"))
    return plots


def _tables(findings: Sequence[Finding]) -> list[Table]:
    return [make(finding) for finding in findings for name, make in _SERIES_TABLES if finding.series.get(name)]


def _exposed(finding: Finding) -> Table:
    listed = finding.series["most_exposed"]
    rows = [[str(target["record"]), target["client"], shown(target["posterior"])] for target in listed[:_MOST_EXPOSED]]
    return Table(
        f"{finding.label}: most exposed records",
        f"Of whose owner the server was most sure, right or wrong; the first {len(rows)} of {len(listed)} listed.",
        ["record", "client", "confidence"],
        rows,
    )


def _combining(finding: Finding) -> Table:
    return Table(
        "Does combining rounds help?",
        "The same targets, named from one round or from all. A single round has fewer clients to choose from where not "
        "all take part in it, which its chance says; targets count where their owner was seen.",
        ["named from", "result", f"{level(finding.level)} interval", "chance", "× chance", "null run", "targets"],
        [
            [
                item["way"],
                shown(item["value"]),
                interval(item["low"], item["high"]),
                shown(item["chance"]),
                shown(item["value"] / item["chance"], "") if item["chance"] else NOTHING,
                shown(item["null"]["value"] if item["null"] else None),
                f"{item['n']:,}",
            ]
            for item in finding.series["combining"]
        ],
    )


def _targets(finding: Finding) -> Table:
    return Table(
        "Targets",
        "Those that one client holds are the main measure, those that nobody holds its null run; those that several "
        "hold are judged apart. No answer about a client that was never seen can be right or wrong.",
        ["records that", "targets"],
        [[kind, f"{count:,}"] for kind, count in finding.series["targets"].items()],
    )


def _plaintext(finding: Finding) -> Table:
    return Table(
        "What each number that is sent in plaintext tells by itself",
        "How well one of the numbers that are sent beside the encrypted update separates by itself the clients with "
        "the property from the others: 1 always, 0.5 no better than a coin, 0 always but the other way round.",
        ["metric", "area under the ROC curve", f"{level(finding.level)} interval"],
        [
            [item["metric"], shown(item["auc"], ""), interval(item["low"], item["high"], "")]
            for item in finding.series["plaintext"]
        ],
    )


def _attributes(finding: Finding) -> Table:
    series = finding.series["attributes"]
    rare = series["rarest"]
    imputed = f" Imputed by: {', '.join(series['imputed_by'])}." if series["imputed_by"] else ""
    return Table(
        f"Every way to fill in {series['column']}, on the same records",
        f"The values are {', '.join(series['values'])}; at random {shown(series['random'])} would be right. The "
        f"excess, in points, is over the best baseline ({series['best_baseline']}), with its paired interval.{imputed}",
        ["method", "accuracy", "interval", "balanced accuracy", f"recall of {rare}", "excess", "interval"],
        [
            [
                row["method"] + (" (baseline)" if row["baseline"] else ""),
                shown(row["accuracy"]),
                interval(row["low"], row["high"]),
                shown(row["balanced"]),
                shown(row["rare_recall"]),
                shown(row["excess"], ""),
                interval(row["excess_low"], row["excess_high"], ""),
            ]
            for row in series["methods"]
        ],
    )


_SERIES_TABLES = (
    ("combining", _combining),
    ("targets", _targets),
    ("most_exposed", _exposed),
    ("plaintext", _plaintext),
    ("attributes", _attributes),
)


def _sentence(finding: Finding) -> str:
    if finding.value is None:
        return _stopped(finding.reason)
    ends = interval(finding.low, finding.high, finding.units)
    return _SENTENCES.get(finding.name, _SENTENCE).format(
        label=finding.label,
        value=shown(finding.value, finding.units),
        interval="" if ends == NOTHING else f" ({level(finding.level)} interval {ends})",
        chance="" if finding.chance is None else f"; guessing gives {shown(finding.chance, finding.units)}",
    )


def _stopped(text: str) -> str:
    """Text as a sentence, whether or not it was written as one."""
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _words(key: str) -> str:
    return key.replace("-", " ").replace("_", " ")


def scalar(value: Any) -> str:
    """Scalar, or list of them, as people write it."""
    if isinstance(value, Iterable) and not isinstance(value, str | Mapping):
        return ", ".join(map(scalar, value)) or NOTHING
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
