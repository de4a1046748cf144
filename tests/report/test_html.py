import json
import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from itertools import pairwise

import pytest

from fedattack.base.errors import ReportError
from fedattack.report import render_html, write_report
from fedattack.report.template import as_command
from tests.report import example


class Page(HTMLParser):
    """Elements, attributes and texts of a page."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.texts = [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(scope="module")
def html():
    return render_html(example.findings(), example.run())


def test_the_headline_is_told_in_words_and_numbers(html):
    text = Page(html).text
    assert (
        "Given an example from the training data, the server named the client that holds it in 58.1% of cases "
        "(95% interval 53.6–62.3%); guessing gives 10.0%." in text
    )
    for words in ("9.9% (8.9–11.0%)", "size prior 14.3%", "targets (n) 3,000", "3 (0, 1, 2)", "58.1% ± 1.0%"):
        assert words in text
    assert "Why “leak shown”? 58.1% is above chance (10.0%)" in text


def test_everything_in_the_two_files_is_on_the_page(html):
    text, run = Page(html).text, example.run()
    for finding in example.findings():
        assert finding.label in text
        assert finding.reason[1:] in text
    threat, provenance = run["threat_model"], run["provenance"]
    said = [*(v for v in threat.values() if isinstance(v, str)), *threat["knows"], *run["notes"]]
    said += [*provenance["commands"], *provenance["record_sha256"], provenance["config_sha256"], provenance["flwr"]]
    said += ["num-examples", "train_loss", "599", "batch size 12", "lr 0.01", "defence –", "temperature: 0.5"]
    said += [example.findings()[0].paper, "99.996%", run["accuracy"]["what"]]
    for words in said:
        assert words in text


@pytest.mark.slow
def test_the_guarantee_of_private_training_is_on_the_page(html):
    assert "Differential privacy" not in Page(html).text
    run = {**example.run(), "privacy": example.privacy()}
    text = Page(render_html(example.findings(), run)).text
    for words in (
        "Differential privacy ε of one round 5.55–6.35 ε of the whole run 40–1,234 δ 1e-05 noise multiplier σ 0.5",
        "clipping norm C 1 rounds, at most 20",
        "Numbers sent with the update: checked Without noise pass: train_loss.",
        "Floating point: not checked ε speaks of real numbers.",
        *(value for value in run["privacy"].values() if isinstance(value, str)),
    ):
        assert words in text
    run["privacy"]["epsilon_run"] = {"low": None, "high": None}
    assert "ε of the whole run no finite guarantee" in Page(render_html(example.findings(), run)).text
    run["privacy"]["epsilon_run"] = {"low": 7.0, "high": None}
    assert "ε of the whole run 7 to no finite guarantee" in Page(render_html(example.findings(), run)).text


def test_numbers_chosen_after_the_fact_are_marked(html):
    rows = re.findall(r'<tr role="row">.*?</tr>', html, re.DOTALL)
    marked = {label: "Selected after the fact" in row for row in rows for label in re.findall(r'row">([^<]+)<?', row)}
    late = {f.label for f in example.findings() if f.selected_after_the_fact}
    assert len(late) == 2
    assert {label.strip() for label, mark in marked.items() if mark} == late
    assert "Selected after the fact, from 20" in html


def test_a_headline_without_a_value_says_why():
    absent = replace(example.findings()[5], headline=True)
    text = Page(render_html([absent], example.run())).text
    assert "Not applicable" in text
    assert "The attack needs each client's update, and an aggregate view does not hold them." in text


def test_the_page_loads_nothing(html):
    page = Page(html)
    assert not {"script", "link", "iframe", "object", "embed", "base", "form", "img"} & set(page.tags)
    for name, value in page.attributes:
        assert not name.startswith("on")
        if name in ("src", "href", "xlink:href", "action", "srcset", "data"):
            assert value.startswith("#")
    assert not re.search(r"@import|url\((?!#)", html)
    policy = dict(page.attributes)["http-equiv"]
    assert policy == "Content-Security-Policy"
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in html


def test_ids_are_unique_and_references_lead_somewhere(html):
    page = Page(html)
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    for name, value in page.attributes:
        if name in ("aria-labelledby", "aria-describedby"):
            assert set(value.split()) <= set(ids)


def test_headings_leave_out_no_level(html):
    levels = [int(tag[1]) for tag in Page(html).tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))


HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'{{ 7*7 }}&amp;"


def test_text_from_outside_stays_text():
    findings, run = example.findings(), example.run()
    series = json.loads(json.dumps(findings[0].series))
    series["per_client"][0]["client"] = series["most_exposed"][0]["client"] = HOSTILE
    findings[0] = replace(findings[0], label=HOSTILE, reason=HOSTILE, baselines={HOSTILE: 0.1}, series=series)
    findings[1] = replace(findings[1], label=HOSTILE, paper=HOSTILE, setting={HOSTILE: HOSTILE})
    run["title"] = HOSTILE
    run["threat_model"] = dict.fromkeys(run["threat_model"], HOSTILE) | {"knows": [HOSTILE]}
    run["setting"][HOSTILE] = HOSTILE
    run["training"] = {"by": HOSTILE, "facts": {HOSTILE: HOSTILE}, "config": {HOSTILE: 1}}
    run["provenance"] |= {HOSTILE: HOSTILE, "record_sha256": HOSTILE, "commands": [HOSTILE]}
    run["holdings"]["clients"][0] = run["holdings"]["classes"][0] = HOSTILE
    run["accuracy"]["what"] = run["overfitting"]["what"] = HOSTILE
    run["observed"] |= {HOSTILE: HOSTILE, "in_plaintext": [HOSTILE]}
    run["notes"] = [HOSTILE]
    page = Page(render_html(findings, run))
    assert not {"script", "img"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.text.count(HOSTILE) > 20


def test_property_inference_is_told_in_words_figures_and_tables():
    text = Page(render_html(example.prolin_findings(), example.prolin_run())).text
    assert "From sums alone, the server named the clients with the property with an F1 score of 95.7%" in text
    for words in (
        "F1 score of each method",
        "Precision and recall of each method",
        "Posterior of each client",
        "Detector of each round",
        "Feature with and without the property",
        "How soon decisions are final",
        "train_loss 0.981 0.95 to 0.997",
        "num-examples 0.5 –",
        "aggregate",
        "One client never took part in seed 2",
    ):
        assert words in text


def test_a_null_run_tells_of_false_alarms():
    score, alarms, _ = example.prolin_findings()
    score = replace(score, value=None, low=None, high=None, null=None, verdict="not applicable", headline=True)
    score = replace(score, reason="no client that took part has the property", series={})
    text = Page(render_html([score, replace(alarms, headline=True, low=None, high=None)], example.prolin_run())).text
    assert "No client that took part has the property." in text
    assert "From sums alone, the server wrongly named 2.2% of the clients without the property." in text
    assert "Why “not applicable”? A rate of false alarms is no leak by itself" in text
    assert "Results in detail" not in text
    assert "result with 95% interval" not in text


def test_empty_series_make_no_sections():
    findings = [replace(example.prolin_findings()[0], series={"posteriors": [], "distributions": [], "plaintext": []})]
    html = render_html(findings, {k: v for k, v in example.prolin_run().items() if k != "holdings"})
    assert "Results in detail" not in html
    assert "<figure" not in html


def test_control_characters_and_lone_surrogates_are_replaced():
    run = {**example.run(), "notes": ["a\x00b\x1b[31mc\ud800d\u202ee"]}
    findings = [replace(example.findings()[0], label="x\x08y")]
    html = render_html(findings, run)
    html.encode()
    assert "a\ufffdb\ufffd[31mc\ufffdd\ufffde" in html
    assert "x\ufffdy" in html


def test_any_findings_make_a_page():
    run = {key: example.run()[key] for key in ("title", "threat_model", "setting", "provenance")}
    bare = [replace(f, headline=False, series={}) for f in example.findings()]
    for findings in ([], bare, [replace(f, headline=not f.selected_after_the_fact) for f in example.findings()]):
        text = Page(render_html(findings, run)).text
        assert all(finding.label in text for finding in findings)
    assert "There are no findings." in Page(render_html([], run)).text


@pytest.mark.slow
def test_write_report_does_not_depend_on_where_it_runs(folder, tmp_path_factory, monkeypatch):
    page = write_report(folder)
    assert page == folder / "report.html"
    first = page.read_bytes()
    assert first.decode() == render_html(example.findings(), example.run())
    monkeypatch.chdir(folder.parent)
    write_report(folder.relative_to(folder.parent))
    assert page.read_bytes() == first
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    write_report(folder)
    assert page.read_bytes() == first
    assert {path.name for path in folder.iterdir()} == {"findings.json", "run.json", "report.html"}


def test_a_damaged_file_leaves_the_old_report_alone(folder):
    page = write_report(folder)
    before = page.read_bytes()
    (folder / "run.json").write_text("{}")
    with pytest.raises(ReportError, match=r"run\.json"):
        write_report(folder)
    assert page.read_bytes() == before


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_have_the_contrast_that_wcag_aa_asks_for(theme):
    css = resources.files("fedattack.report").joinpath("style.css").read_text()
    light, dark = re.findall(r":root \{([^}]*--page[^}]*)\}", css)
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", light if theme == "light" else dark))

    def contrast(one, other):
        high, low = sorted((luminance(colours[one]), luminance(colours[other])), reverse=True)
        return (high + 0.05) / (low + 0.05)

    for ground in ("page", "surface", "faint"):
        for ink in ("ink", "muted", "link"):
            assert contrast(ink, ground) >= 4.5
    for badge in ("leak", "quiet", "none", "late"):
        assert contrast(f"{badge}-ink", f"{badge}-fill") >= 4.5
    for series in range(1, 6):
        assert contrast(f"series-{series}", "surface") >= 3


@pytest.mark.slow
def test_the_page_links_the_tables_that_it_is_given_and_no_others():
    files = {"tables/sia-records.csv": "one row for each example that was asked about"}
    page = render_html(example.findings(), example.run(), files)
    assert '<a href="tables/sia-records.csv" download>' in page
    assert "one row for each example that was asked about." in Page(page).text
    assert "CSV files" not in render_html(example.findings(), example.run())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("fedattack audit quickstart --set 'a=b c' --fail-if 'sia.asr > 0.3'", None),
        ("fedattack check a; touch PWNED #", "fedattack check 'a;' touch PWNED '#'"),
        ("fedattack check $(touch PWNED)", "fedattack check '$(touch' 'PWNED)'"),
        ("rm -r ~", "'rm -r ~'"),
        ("fedattack 'open", "'fedattack '\"'\"'open'"),
    ],
)
def test_what_a_folder_says_was_run_does_no_more_than_it_says(text, shown):
    assert as_command(text) == (shown or text)
    assert shlex.split(as_command(text))
