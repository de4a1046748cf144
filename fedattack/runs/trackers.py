"""Copies what a report says into MLflow and TensorBoard, which are imported where they are used alone."""

import logging
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedattack.audit.finding import Finding
from fedattack.base.errors import ConfigError, ReportError, short
from fedattack.base.extra import check_extra
from fedattack.base.files import make_private
from fedattack.base.untrusted import read_text
from fedattack.report.answer import in_short
from fedattack.report.html import PAGE
from fedattack.report.lacking import list_lacking
from fedattack.report.validate import read_findings, read_run
from fedattack.report.words import markdown

_NEXT = "write it with `fedattack report`"

# The numbers of a finding, and of its series by round.
_NUMBERS = ("value", "low", "high", "chance")
# Keys of run.json: what the models were like, seed by seed.
_CURVES = ("accuracy", "loss", "train_accuracy", "overfitting")
# MLflow takes so many parameters in a call, and more metrics.
_AT_ONCE = 100

Point = tuple[str, float, int]
"""Name, value and round; round 0 for what is no curve."""


@dataclass(frozen=True)
class TrackedReport:
    """What trackers are given of a report.

    Attributes
    ----------
    folder
        The run folder.
    points
        Numbers and curves, such as ``sia.asr`` and ``by-round/sia.asr``.
    verdicts
        By finding.
    settings
        What was run.
    answers
        The questions with their answers, as Markdown.
    texts
        The page, and what it was made of, by the names of the files.
    lacking
        What the report leaves out.
    """

    folder: Path
    points: list[Point]
    verdicts: dict[str, str]
    settings: dict[str, str]
    answers: str
    texts: dict[str, str]
    lacking: list[str]


def check_trackers(mlflow: str | None, folder: Path | None) -> None:
    """Refuse to export before anything is written: to nowhere, without a package, or beside another run's events.

    Raises
    ------
    ConfigError
        Says what to do.
    """
    if not mlflow and folder is None:
        raise ConfigError("there is nowhere to export to; expected --mlflow, --tensorboard or both")
    if mlflow:
        check_extra("--mlflow", "mlflow")
    if folder is None:
        return
    check_extra("--tensorboard", "tensorboard")
    # TensorBoard shows all events of a folder as one run.
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--tensorboard {folder}: it already exists; choose a folder that is new or empty")


def read_report(folder: Path) -> TrackedReport:
    """Read a report.

    Raises
    ------
    ReportError
        If a file of it is missing or damaged.
    """
    findings, run = read_findings(folder), read_run(folder)
    texts = {name: read_text(folder / name, ReportError, _NEXT) for name in (PAGE, "findings.json", "run.json")}
    points: list[Point] = []
    for finding in findings:
        points += _list_points(finding)
    for name in _CURVES:
        for seed, values in run.get(name, {"seeds": {}})["seeds"].items():
            points += _list_curve(f"{name}.seed-{seed}", run[name]["rounds"], values)
    verdicts = {finding.name: finding.verdict for finding in findings}
    settings = {key: short(str(value)) for key, value in run["setting"].items()}
    lines = [f"- {markdown(question)} **{markdown(answer)}**" for _, question, answer in in_short(findings)]
    lacking = list_lacking(run)
    lines += [f"- left out: {markdown(line)}" for line in lacking]
    return TrackedReport(Path(folder), points, verdicts, settings, "\n".join(lines), texts, lacking)


def _list_points(finding: Finding) -> list[Point]:
    points: list[Point] = []
    by_round = finding.series.get("per_round", {})
    for key in _NUMBERS:
        name = finding.name if key == "value" else f"{finding.name}.{key}"
        value = getattr(finding, key)
        # Curves are drawn over rounds; a single number stands at round 0.
        if value is not None:
            points.append((name, value, 0))
        if by_round.get(key) is not None:
            points += _list_curve(name, by_round["rounds"], by_round[key])
    return points


def _list_curve(name: str, rounds: Sequence[int], values: Sequence[float | None]) -> list[Point]:
    known = zip(rounds, values, strict=True)
    return [(f"by-round/{name}", value, number) for number, value in known if value is not None]


def write_mlflow(report: TrackedReport, where: str) -> str:
    """Add a run to a folder or to what a tracking URI leads to; returns the URI.

    Raises
    ------
    ReportError
        If MLflow refuses something, or does not answer.
    """
    # MLflow would tell its makers of its use.
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    # Its default of many retries would take minutes where a server is not up.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    import mlflow
    from mlflow.exceptions import MlflowException

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    uri, artifacts = where, None
    # A folder: MLflow's own database goes into it, and files beside.
    if "://" not in where:
        folder = Path(where).resolve()
        make_private(folder)
        uri, artifacts = f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()
    experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedattack")
    try:
        client = mlflow.MlflowClient(uri)
        known = client.get_experiment_by_name(experiment)
        number = known.experiment_id if known else client.create_experiment(experiment, artifacts)
        run = client.create_run(number, run_name=report.folder.resolve().name, tags=_name_tags(report)).info.run_id
        try:
            _fill_run(client, run, report)
        # A run that is half written must not look like a finished one.
        except BaseException:
            # The first fault is the one to tell, whatever closing says.
            with suppress(MlflowException):
                client.set_terminated(run, "FAILED")
            raise
        client.set_terminated(run)
    except MlflowException as cause:
        raise ReportError(f"--mlflow {where}: MLflow says: {short(str(cause), 150)}; look at the URI") from None
    return uri


def _fill_run(client: Any, run: str, report: TrackedReport) -> None:
    from mlflow.entities import Metric, Param

    # Milliseconds since 1970.
    now = int(1000 * time.time())
    metrics = [Metric(name, value, now, step) for name, value, step in report.points]
    params = [Param(key, value) for key, value in report.settings.items()]
    # Both lists in steps of one size; slices beyond the end are empty.
    for start in range(0, max(len(metrics), len(params)), _AT_ONCE):
        end = start + _AT_ONCE
        client.log_batch(run, metrics=metrics[start:end], params=params[start:end])
    for name, text in report.texts.items():
        client.log_text(run, text, name)


def _name_tags(report: TrackedReport) -> dict[str, Any]:
    verdicts = {f"{name}.verdict": verdict for name, verdict in report.verdicts.items()}
    return {**verdicts, "mlflow.note.content": report.answers}


def write_tensorboard(report: TrackedReport, folder: Path) -> str:
    """Write events into a folder; returns it."""
    from torch.utils.tensorboard import SummaryWriter

    make_private(folder)
    verdicts = [f"- {markdown(name)}: {markdown(verdict)}" for name, verdict in report.verdicts.items()]
    page = f"[The page]({(report.folder / PAGE).resolve().as_uri()})"
    with SummaryWriter(str(folder)) as writer:
        for name, value, step in report.points:
            writer.add_scalar(name, value, step)
        writer.add_text("report", "\n".join([report.answers, "", page, "", *verdicts]))
    return str(folder)
