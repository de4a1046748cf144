"""The library in brief, as a notebook uses it."""

import subprocess
import sys

import numpy as np
import pytest

import fedattack as fa
from fedattack.audit.finding import Finding
from fedattack.base.errors import ConfigError, NeedsError, ReportError
from tests.report import example
from tests.worlds.federation import write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("library") / "run")


@pytest.mark.slow
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

    assert next(iter(frame["seeds"])) == [0]
    row, null = frame.iloc[0], findings[0].null
    assert [row["null"], row["null_low"], row["null_high"]] == [null["value"], null["low"], null["high"]]
    fields = {"p", "p_adjusted", "here_low", "here_high", "level", "comparisons", "seed_sd", "attack", "metric"}
    assert fields <= {*frame}


def test_a_frame_has_the_names_of_its_findings():
    findings = fa.Findings(example.findings())
    assert list(findings.frame()["name"]) == [finding.name for finding in findings]


def test_a_frame_of_nothing_has_its_columns():
    assert list(fa.Findings().frame()["value"]) == []
    assert fa.Findings()._repr_html_() == "<p>There are no findings.</p>"
    assert repr(fa.Findings()) == "There are no findings."


HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m"


def finding(**changes):
    parts = {
        "attack": "sia",
        "metric": "asr",
        "label": "Owner named",
        "view": "individual",
        "value": 0.3,
        "low": 0.25,
        "high": 0.35,
        "n": 1200,
        "seeds": [0, 1],
        "verdict": "leak",
        "reason": "so it is",
        "chance": 0.1,
        "null": {"value": 0.11, "low": 0.09, "high": 0.13, "n": 1200},
        "p_adjusted": 0.0004,
    }
    return Finding(**{**parts, **changes})


def test_a_finding_is_a_card_and_a_line():
    card = finding(here_low=0.27, here_high=0.33)._repr_html_()
    for words in ("Owner named", "sia.asr", ">leak<", ">30.0%<", "25.0–35.0%", "27.0–33.0%", "10.0%", "11.0%"):
        assert words in card
    for words in ("0.0004", "1,200", "0, 1", "so it is"):
        assert words in card
    assert repr(finding()) == "<sia.asr: 30.0% (25.0–35.0%), chance 10.0%, n = 1,200: leak>"
    bare = finding(value=None, low=None, high=None, chance=None, null=None, verdict="not applicable", p_adjusted=None)
    assert "chance" not in bare._repr_html_()
    assert repr(bare) == "<sia.asr: –, n = 1,200: not applicable>"
    chosen = finding(selected_after_the_fact=True, comparisons=8)
    assert "chosen after the fact among 8" in chosen._repr_html_()
    assert "†" in fa.Findings([chosen])._repr_html_()
    assert finding(low=None).__repr__().startswith("<sia.asr: 30.0% (≤ 35.0%)")


def test_what_a_client_sent_stays_text_in_a_notebook():
    hostile = finding(label=HOSTILE, reason=HOSTILE, units=HOSTILE)
    for page in (hostile._repr_html_(), fa.Findings([hostile])._repr_html_()):
        assert "<img" not in page
        assert "&lt;img" in page
        assert "\x1b" not in page
    assert "\x1b" not in repr(hostile)
    assert "\x1b" not in repr(fa.Findings([hostile]))


def test_what_cannot_be_done_is_refused_by_name(run, tmp_path):
    record, knowledge = fa.open_record(run / "record"), fa.read_knowledge(run / "knowledge")
    with pytest.raises(ConfigError, match="unknown attack 'guess'"):
        fa.attack("guess", record, knowledge)
    with pytest.raises(NeedsError, match=r"attack prolin cannot be made of .*: it is about sums of updates"):
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
