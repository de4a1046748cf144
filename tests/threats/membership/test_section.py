"""How membership inference is shown: the ROC on logarithmic axes, tables, and the whole page."""

import re
from dataclasses import replace

import numpy as np
import pytest

from fedattack.attacks import ATTACKS, read_knowledge
from fedattack.record import Record
from fedattack.report import read_findings, validate_findings, write_report
from fedattack.threats.membership.section import SECTION, roc
from tests.report import example
from tests.report.test_figures import parsed, texts
from tests.report.test_html import Page
from tests.threats.property.test_section import lines
from tests.worlds.attacked import audit_folder
from tests.worlds.federation import write_run

CURVE = {
    "fpr": [0.001, 0.01, 0.1],
    "value": [0.0, 0.1, 1.0],
    "low": [0.0, 0.05, 0.9],
    "high": [0.2, 0.3, 1.0],
}
ESTIMATE = {"value": 0.5, "low": 0.25, "high": 0.75}


def finding(**series):
    return replace(example.findings()[0], attack="membership", metric="tpr-at-1pct-fpr", series=series)


@pytest.mark.filterwarnings("error")
def test_the_curve_is_drawn_on_logarithmic_axes_and_all_of_it_is_in_the_table():
    plot = roc(finding(roc=CURVE), "x")
    parsed(plot.svg)
    assert "nan" not in plot.svg.lower()
    assert plot.header == ["false positives", "members found", "interval"]
    assert plot.rows == [["0.1%", "0%", "0–20.0%"], ["1.0%", "10.0%", "5.0–30.0%"], ["10.0%", "100%", "90.0–100%"]]
    assert "at 0.1% false positives 0% of the members are found" in plot.svg
    (drawn,) = lines(plot.svg, 1)
    assert np.allclose(np.diff(drawn[:, 0], 2), 0, atol=0.05), "tenfold steps are of one width"
    # From 0.05, the least that is drawn, to 10 and to 100 per cent; the SVG's y grows downwards.
    steps = -np.diff(drawn[:, 1])
    assert steps[0] / steps[1] == pytest.approx(np.log10(10 / 0.05), rel=0.01)
    assert any("False positives: non-members" in text for text in texts(plot.svg))


def test_tables_hold_each_method_and_what_targets_there_were():
    tables = dict(SECTION.tabulates)
    methods = [{"method": "FedMIA", "tpr_1pct": ESTIMATE, "tpr_01pct": ESTIMATE, "auc": ESTIMATE}]
    table = tables["membership_methods"](finding(membership_methods=methods))
    assert table.rows == [["FedMIA", "50.0%", "25.0–75.0%", "50.0%", "25.0–75.0%", "0.500 (0.250 to 0.750)"]]
    assert {len(row) for row in table.rows} == {len(table.header)}
    counts = {"a seen client holds": 1200, "nobody holds": 3, "several clients hold": 0}
    table = tables["membership_targets"](finding(membership_targets=counts))
    assert table.rows == [["a seen client holds", "1,200"], ["nobody holds", "3"], ["several clients hold", "0"]]


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ({"roc": {**CURVE, "low": [0.1]}}, "its lists differ in length"),
        ({"roc": {key: CURVE[key] for key in ("fpr", "value", "high")}}, "'low' is a dependency of 'high'"),
        ({"scores": {"edges": [0, 1], "positive": [1, 2], "negative": [1]}}, "its lists differ in length"),
        ({"scores": {"edges": [0, 1], "positive": [-1], "negative": [1]}}, "-1 is less than the minimum"),
        ({"roc": {**CURVE, "value": [0, 0, 2]}}, "2 is greater than the maximum"),
        ({"membership_methods": [{"method": "x"}]}, "is a required property"),
        ({"membership_targets": {"nobody holds": -1}}, "-1 is less than the minimum"),
    ],
)
def test_series_of_another_form_are_refused(series, message):
    with pytest.raises(Exception, match=message):
        validate_findings([finding(**series).to_dict()])


def test_the_page_tells_the_headline_and_shows_curve_and_tables(tmp_path):
    folder = write_run(tmp_path, rounds=2, epochs=10)
    scores = ATTACKS["membership"].run(Record(folder / "record"), read_knowledge(folder / "knowledge"), device="cpu")
    scores.save(folder / "scores" / "membership.npz")
    audit_folder(folder, device="cpu")
    found = {item.metric: item for item in read_findings(folder)}
    text = Page(write_report(folder).read_text()).text
    assert re.search(r"The server found \d+(\.\d+)?% of the examples on which a client trained", text)
    assert "while it accused 1% of the examples on which it did not" in text
    assert "How many members are found at each rate of false alarms" in text
    assert "Scores of members and non-members" in text
    for words in ("How else could the server ask?", "loss of the last model", "several clients hold"):
        assert words in text
    for item in found.values():
        assert item.label in text
