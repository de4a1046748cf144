"""The library in brief, as a notebook uses it."""

import subprocess
import sys

import numpy as np
import pytest

import fedattack as fa
from fedattack.errors import ConfigError, NeedsError, ReportError
from tests.worlds.federation import write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("library") / "run")


def test_cells_of_a_notebook(run):
    record = fa.open_record(run / "record")
    knowledge = fa.read_knowledge(run / "knowledge")
    scores = fa.attack("sia", record, knowledge, seed=0, device="cpu")
    assert scores.arrays["combined"].shape == (len(knowledge.targets), len(record.nodes))
    assert not (run / "scores").exists(), "an attack on a record leaves folders as they are"

    (file,) = fa.attack_folder("sia", str(run), device="cpu")
    assert file == run / "scores" / "sia.npz"
    findings = fa.judge(run, device="cpu")
    frame = findings.frame()
    assert frame.loc[0, "name"] == "sia.asr"
    assert frame.loc[0, "value"] == findings[0].value
    assert frame["null"].notna().any()
    assert list(frame["headline"]).count(True) == 1
    assert [finding.name for finding in fa.read_findings(run)] == list(frame["name"])

    report = fa.show(run)
    shown = report._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert "sandbox" in shown
    assert "<script" not in shown
    assert "Source inference" in shown
    assert str(run / "report.html") in repr(report)


def test_a_frame_of_nothing_has_its_columns():
    assert list(fa.Findings().frame()["value"]) == []


def test_what_cannot_be_done_is_refused_by_name(run, tmp_path):
    record, knowledge = fa.open_record(run / "record"), fa.read_knowledge(run / "knowledge")
    with pytest.raises(ConfigError, match="unknown attack 'guess'"):
        fa.attack("guess", record, knowledge)
    with pytest.raises(NeedsError, match="attack prolin needs a record in the view aggregate"):
        fa.attack("prolin", record, knowledge)
    with pytest.raises(ReportError, match=r"findings\.json"):
        fa.show(tmp_path)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fa.nothing


def test_the_same_seed_gives_the_same_scores(run):
    record, knowledge = fa.open_record(run / "record"), fa.read_knowledge(run / "knowledge")
    one, two = (fa.attack("sia", record, knowledge, seed=3, device="cpu") for _ in range(2))
    assert np.array_equal(one.arrays["combined"], two.arrays["combined"], equal_nan=True)


def test_importing_the_package_alone_imports_nothing_heavy():
    script = "import sys, fedattack; print(*({'torch', 'flwr', 'numpy', 'pandas'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
