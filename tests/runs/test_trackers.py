"""Reports in a real MLflow and in TensorBoard's own files, read back by these."""

import json
import re
import socket
from pathlib import Path

import mlflow
import pytest
from mlflow.exceptions import MlflowException
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugin_util import markdown_to_safe_html

from fedattack.base import extra
from fedattack.runs import trackers
from tests.report import example
from tests.report.test_compare import write

ASR = example.findings()[0]
ACCURACY = example.run()["accuracy"]


@pytest.fixture
def reported(tmp_path):
    folder = write(tmp_path / "nightly", example.findings(), example.run())
    (folder / "report.html").write_text("<title>page</title>")
    return folder


@pytest.fixture
def offline(monkeypatch):
    def refuse(self, address):
        raise AssertionError(f"connects to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.slow
def test_a_run_is_added_to_a_local_mlflow(call, reported, tmp_path, offline):
    for _ in range(2):
        code, out, err = call("export", reported, "--mlflow", tmp_path / "tracked", "--json")
        assert (code, err) == (0, "")
    client = mlflow.MlflowClient(json.loads(out)["mlflow"])
    experiment = client.get_experiment_by_name("fedattack")
    run, earlier = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status, earlier.info.status) == ("nightly", "FINISHED", "FINISHED")
    assert run.data.metrics["sia.asr"] == ASR.value
    assert run.data.metrics["sia.asr.low"] == ASR.low
    assert run.data.tags["sia.asr.verdict"] == ASR.verdict
    assert "Can the server tell which client holds an example?" in run.data.tags["mlflow.note.content"]
    assert run.data.params == {key: str(value) for key, value in example.run()["setting"].items()}
    curve = client.get_metric_history(run.info.run_id, "by-round/sia.asr")
    assert [point.step for point in curve] == ASR.series["per_round"]["rounds"]
    assert [point.value for point in curve] == ASR.series["per_round"]["value"]
    for seed, values in ACCURACY["seeds"].items():
        points = client.get_metric_history(run.info.run_id, f"by-round/accuracy.seed-{seed}")
        assert [point.value for point in points] == values
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {
        "report.html",
        "findings.json",
        "run.json",
    }
    page = Path(client.download_artifacts(run.info.run_id, "report.html", str(tmp_path)))
    assert page.read_text() == "<title>page</title>"


@pytest.mark.slow
def test_a_run_that_mlflow_refuses_midway_is_marked_as_failed(call, reported, tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise MlflowException("disk full")

    monkeypatch.setattr(mlflow.MlflowClient, "log_text", refuse)
    code, _, err = call("export", reported, "--mlflow", tmp_path / "tracked", "--json")
    assert code == 2
    assert "MLflow says: disk full" in err
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'tracked' / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("fedattack").experiment_id])
    assert run.info.status == "FAILED"


def test_events_are_read_by_tensorboard(call, reported, tmp_path, offline):
    folder = tmp_path / "events" / "nightly"
    assert call("export", reported, "--tensorboard", folder)[0] == 0
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    assert events.Scalars("sia.asr")[0].value == pytest.approx(ASR.value)
    curve = events.Scalars("by-round/sia.asr")
    assert [point.step for point in curve] == ASR.series["per_round"]["rounds"]
    assert [point.value for point in curve] == pytest.approx(ASR.series["per_round"]["value"])
    (text,) = events.Tensors("report/text_summary")
    said = text.tensor_proto.string_val[0].decode()
    assert f"sia.asr: {ASR.verdict}" in said
    assert (reported / "report.html").as_uri() in said
    code, _, err = call("export", reported, "--tensorboard", folder)
    assert (code, "it already exists" in err) == (2, True)


def test_what_a_name_says_is_no_markdown_of_ours(reported, monkeypatch, tmp_path):
    bad = "![x](http://evil.example/x.png) [update](http://evil.example/)"
    monkeypatch.setattr(trackers, "in_short", lambda _: [(None, f"Who is {bad}?", f"Yes: {bad}")])
    report = trackers.read_report(reported)
    assert not re.search(r"(?<!\\)\]\(", report.answers)
    trackers.write_tensorboard(report, tmp_path / "events")
    events = EventAccumulator(str(tmp_path / "events")).Reload()
    (text,) = events.Tensors("report/text_summary")
    page = markdown_to_safe_html(text.tensor_proto.string_val[0].decode())
    assert 'http://evil.example"' not in page
    assert "<img" not in page


@pytest.mark.parametrize("name", ["mlflow", "tensorboard"])
def test_a_package_that_is_missing_is_named(call, reported, tmp_path, monkeypatch, name):
    monkeypatch.setattr(extra, "find_spec", lambda module: None)
    code, _, err = call("export", reported, f"--{name}", tmp_path / "tracked")
    assert code == 2
    assert err.startswith(f"error: --{name} needs a package that is not installed ({name}); install it: ")
    assert f"'fedattack[{name}]'" in err
    assert not (tmp_path / "tracked").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "there is nowhere to export to; expected --mlflow, --tensorboard or both"),
        (("--mlflow", "nonsense://x"), "--mlflow nonsense://x: MLflow says: "),
    ],
)
def test_what_cannot_be_exported_is_one_line(call, reported, words, message):
    code, _, err = call("export", reported, *words)
    assert code == 2
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(("leads_out", "message"), [(False, "is not there; write it"), (True, "is a link that leaves")])
def test_a_page_that_is_not_there_or_is_a_link_is_refused(call, reported, tmp_path, leads_out, message):
    (reported / "report.html").unlink()
    if leads_out:
        (tmp_path / "secret").write_text("secret")
        (reported / "report.html").symlink_to(tmp_path / "secret")
    code, _, err = call("export", reported, "--mlflow", tmp_path / "tracked")
    assert (code, f"report.html {message}" in err) == (2, True)
    assert not (tmp_path / "tracked").exists()
