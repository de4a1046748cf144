import json
import re
from dataclasses import replace

import numpy as np
import pytest

from fedattack.base.errors import ReportError
from fedattack.report import compare, compare_runs
from tests.report import example
from tests.report.test_figures import texts
from tests.report.test_html import HOSTILE, Page


def write(folder, findings, run):
    folder.mkdir()
    (folder / "findings.json").write_text(json.dumps([finding.to_dict() for finding in findings]))
    (folder / "run.json").write_text(json.dumps(run))
    return folder


@pytest.fixture
def prolin(tmp_path):
    """Runs with 200, 50 and 100 clients."""
    return [
        write(tmp_path / f"n{n}", example.prolin_findings(n, rounds=100), example.prolin_run(n)) for n in (200, 50, 100)
    ]


@pytest.fixture
def source(tmp_path):
    runs = []
    for name, alpha in (("b", 1.0), ("a", 0.1)):
        run = example.run()
        run["setting"]["alpha"] = alpha
        runs.append(write(tmp_path / name, example.findings(), run))
    return runs


def table(markdown, heading):
    """Cells of the rows of the table below a heading."""
    part = markdown.split(f"## {heading}\n")[1].split("\n##")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    return [re.split(r" (?<!\\)\| ", line.strip("| ")) for line in lines if not line.startswith("| ---")]


@pytest.mark.slow
def test_runs_are_compared_by_what_they_differ_in(prolin, tmp_path):
    out = tmp_path / "new" / "out"
    assert compare_runs(prolin, out) == out / "compare.html"
    assert {path.name for path in out.iterdir()} == {"compare.html", "compare.json", "compare.md"}
    compared = json.loads((out / "compare.json").read_text())
    assert compared["by"] == ["clients"]
    assert compared["headline"] == "prolin.f1"
    assert [run["run"] for run in compared["runs"]] == ["n50", "n100", "n200"]
    assert [run["settings"] for run in compared["runs"]] == [{"clients": n} for n in (50, 100, 200)]
    for run, n in zip(compared["runs"], (50, 100, 200), strict=True):
        for finding, expected in zip(run["findings"], example.prolin_findings(n, rounds=100), strict=True):
            assert finding["name"] == expected.name
            assert {key: finding[key] for key in ("value", "low", "high", "chance", "null", "n", "verdict")} == {
                key: getattr(expected, key) for key in ("value", "low", "high", "chance", "null", "n", "verdict")
            }
    rows = table(
        (out / "compare.md").read_text(), "Clients named although they do not have the property (prolin.false-alarms)"
    )
    assert rows == [
        ["clients", "value", "interval", "chance", "null run (interval)", "n", "verdict"],
        *([str(n), "2.2%", "0.5–6.4%", "–", "–", f"{3 * (n - 5):,}", "not applicable"] for n in (50, 100, 200)),
    ]


def test_runs_are_drawn_in_one_figure_and_sorted(source, tmp_path):
    page = compare_runs(source, tmp_path / "out").read_text()
    (by_setting,) = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert [text for text in texts(by_setting) if text in ("0.1", "1")] == ["0.1", "1"]
    text = Page(page).text
    for finding in example.findings():
        assert finding.label in text
    assert "loss-gap" in text
    assert "0.371 to 0.455 nats" in text
    # Settings that all share are told once.
    assert text.count("sia-mlp") == 1
    assert not re.search(r"<script|<link|@import|src=|url\((?!#)", page)


@pytest.fixture
def many(tmp_path):
    """Source inference at 10, 1,000 and 100 clients: twice as often right as guessing."""
    runs = []
    for clients in (10, 1000, 100):
        run = example.run()
        run["setting"]["clients"] = clients
        finding = replace(
            example.findings()[0],
            value=2 / clients,
            low=1.5 / clients,
            high=2.5 / clients,
            chance=1 / clients,
            null={"value": 1 / clients, "low": 0.5 / clients, "high": 1.2 / clients, "n": 500},
            baselines={"always naming the largest client": 1.1 / clients},
        )
        runs.append(write(tmp_path / f"k{clients}", [finding], run))
    return runs


def test_success_against_the_number_of_clients_stands_beside_chance_and_the_size_prior(many, tmp_path):
    page = compare_runs(many, tmp_path / "out").read_text()
    header, *rows = table((tmp_path / "out" / "compare.md").read_text(), f"{example.findings()[0].label} (sia.asr)")
    assert header[:5] == ["clients", "value", "interval", "chance", "always naming the largest client"]
    assert [row[:5] for row in rows] == [
        ["10", "20.0%", "15.0–25.0%", "10.0%", "11.0%"],
        ["100", "2.0%", "1.5–2.5%", "1.0%", "1.1%"],
        ["1000", "0.2%", "0.1–0.2%", "0.1%", "0.1%"],
    ]
    compared = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert compared["runs"][2]["findings"][0]["baselines"] == {"always naming the largest client": 0.0011}
    (drawing,) = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert {"10", "100", "1000", "always naming the largest client", "chance"} <= set(texts(drawing))
    assert "evenly spaced" not in page


def joined(page):
    """Lines of more than one point that are drawn through results or baselines, by their colours."""
    (by_setting, *_) = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    paths = re.findall(r'<path d="([^"]*)" clip-path[^>]*style="fill: none;[^"]*stroke: var\(--series-(\d)', by_setting)
    # A bar of an interval is as wide as it is coloured; lines have a point for each run.
    return {colour for path, colour in paths if path.count("L") >= 2}


def test_runs_that_differ_in_one_number_alone_are_joined_by_lines_to_scale(many, tmp_path):
    assert joined(compare_runs(many, tmp_path / "out").read_text()) == {"1", "2"}


@pytest.mark.parametrize("by", ["clients", None])
def test_runs_that_are_unlike_are_never_joined(many, tmp_path, by):
    path = many[0] / "run.json"
    run = json.loads(path.read_text())
    path.write_text(json.dumps(run | {"setting": run["setting"] | {"lr": 7}}))
    page = compare_runs(many, tmp_path / "out", by).read_text()
    assert joined(page) == set()
    assert ("The runs differ in lr, too." in page) == (by is not None)


def test_a_label_names_no_baseline_where_the_runs_have_different_ones(many):
    runs = [compare.read_compared(folder) for folder in many]
    for run, baseline in zip(runs, ("majority", "majority", "prior"), strict=True):
        run.findings[0] = replace(run.findings[0], label=f"Accuracy above the best baseline ({baseline})")
    assert compare.table_of(runs, ["clients"], "sia.asr").title == "Accuracy above the best baseline"
    assert compare.table_of(runs[:2], ["clients"], "sia.asr").title == "Accuracy above the best baseline (majority)"


def test_findings_about_another_column_are_never_joined(many):
    runs = [compare.read_compared(folder) for folder in many]
    for run, column in zip(runs, ("sex", "sex", "age"), strict=True):
        run.findings[0].series["asked"] = {"column": column, "values": ["a", "b"]}
    assert not compare._is_ordered(runs, ["clients"], "sia.asr")
    label = replace(runs[0].findings[0], label="Values of sex: accuracy")
    runs[0].findings[0] = label
    assert compare._title(runs, "sia.asr", ["clients"]) == "Values of different columns: accuracy, by clients"
    runs[2].findings[0].series["asked"]["column"] = "sex"
    assert compare._title(runs, "sia.asr", ["clients"]) == "Values of sex: accuracy, by clients"
    assert compare._is_ordered(runs, ["clients"], "sia.asr")


def test_runs_that_differ_in_much_go_by_their_folders_names(source, tmp_path):
    path = source[0] / "run.json"
    run = json.loads(path.read_text())
    path.write_text(json.dumps(run | {"setting": {**run["setting"], "rounds": 77, "lr": 7}}))
    page = compare_runs(source, tmp_path / "out").read_text()
    assert f"{example.findings()[0].label}, run by run" in Page(page).text
    (drawing,) = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert {"a", "b"} <= set(texts(drawing))
    rows = table((tmp_path / "out" / "compare.md").read_text(), f"{example.findings()[0].label} (sia.asr)")
    assert [row[0] for row in rows] == ["run", "a", "b"]
    assert compare._labels([compare.read_compared(source[0])] * 2, ["a", "b", "c"]) == ["1: b", "2: b"]


def test_a_setting_that_one_run_lacks_is_compared_too(source, tmp_path):
    path = source[0] / "run.json"
    run = json.loads(path.read_text())
    run["setting"]["alpha"] = 0.1
    path.write_text(json.dumps(run | {"setting": run["setting"] | {"secagg": True}}))
    compare_runs(source, tmp_path / "out")
    compared = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert compared["by"] == ["secagg"]
    assert [run["settings"]["secagg"] for run in compared["runs"]] == [True, None]
    assert [
        row[0]
        for row in table(
            (tmp_path / "out" / "compare.md").read_text(), "Source inference, last round (sia.asr-last-round)"
        )[1:]
    ] == ["yes", "–"]


def test_several_settings_name_a_run_together_unless_one_is_chosen(source, tmp_path):
    for name, preset in (("a", "x"), ("b", "y")):
        path = tmp_path / name / "run.json"
        run = json.loads(path.read_text())
        path.write_text(json.dumps(run | {"setting": run["setting"] | {"preset": preset}}))
    compare_runs(source, tmp_path / "out")
    compared = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert compared["by"] == ["preset", "alpha"]
    assert [run["run"] for run in compared["runs"]] == ["b", "a"]  # not all are numbers: as they were given
    compare_runs(source, tmp_path / "out", by="alpha")
    assert json.loads((tmp_path / "out" / "compare.json").read_text())["by"] == ["alpha"]


def test_only_common_findings_are_compared(source, tmp_path):
    findings = [f for f in example.findings() if f.metric in ("asr-last-round", "loss-gap")]
    (source[1] / "findings.json").write_text(json.dumps([finding.to_dict() for finding in findings]))
    page = compare_runs(source, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "compare.json").read_text())["headline"] == "sia.asr-last-round"
    assert "Source inference, all rounds combined" not in page.read_text()


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("colour", "no run has a setting 'colour'; they differ in: alpha"),
        ("lr", "lr is 0.01 in b and a alike; they differ in: alpha"),
    ],
)
def test_a_setting_that_does_not_tell_runs_apart_is_refused(source, tmp_path, by, message):
    with pytest.raises(ReportError, match=f"^{re.escape(message)}$"):
        compare_runs(source, tmp_path / "out", by=by)
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_compared_is_refused_in_one_line(source, prolin, tmp_path):
    out, empty, file = tmp_path / "out", tmp_path / "empty", tmp_path / "file"
    empty.mkdir()
    file.touch()
    for folders, where, message in (
        ([], out, "cannot compare 0 run folder"),
        (source[:1], out, "cannot compare 1 run folder"),
        ([source[0], source[0]], out, "the settings of b and b differ in nothing"),
        ([*source, source[0]], out, "alpha is 1 in b and b alike"),
        ([source[0], empty], out, r"empty.findings\.json is not there"),
        ([source[0], prolin[0]], out, r"no finding in common \(b: sia\.asr, .*; n200: prolin\.f1, "),
        (source, file, "file cannot be created"),
    ):
        with pytest.raises(ReportError, match=message) as caught:
            compare_runs(folders, where)
        assert "\n" not in str(caught.value)
    assert not out.exists()


def test_text_from_outside_stays_text(tmp_path):
    runs = []
    for name, value in (("a", HOSTILE), ("b", "| x |\n<b>y</b>")):
        findings = [replace(f, label=HOSTILE) for f in example.prolin_findings(20, 60)]
        run = example.prolin_run(20)
        run["title"] = HOSTILE
        run["setting"]["note"] = value
        run["provenance"]["commands"] = [HOSTILE]
        runs.append(write(tmp_path / name, findings, run))
    page = Page(compare_runs(runs, tmp_path / "out").read_text())
    assert not {"script", "img", "b"} & set(page.tags)
    assert page.text.count(HOSTILE) > 5
    markdown = (tmp_path / "out" / "compare.md").read_text()
    assert "<" not in markdown
    heads = [line for line in markdown.splitlines() if line.startswith("|")]
    # The markup's and the table's own bars are escaped, so each row has as many cells as its head.
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in heads} == {8}


@pytest.mark.parametrize(("largest", "end"), [(0.008, 0.8), (0.3, 30), (0.6, 100), (0.0, 100)])
def test_an_axis_of_rates_ends_where_there_is_nothing_more_to_see(largest, end):
    drawn = [np.array([np.nan, 100 * largest]), np.array([np.nan, np.nan])]
    assert compare._limits(*drawn) == pytest.approx((-0.04 * end, 1.04 * end))
