"""How attribute inference is shown: the column, its values, and an excess as people say it."""

from dataclasses import replace

import pytest

from fedattack.threats.attribute.section import SECTION, excess, roc, scores
from tests.report import example

ASKED = {"column": "sex", "values": ["female", "male"]}


def finding(value, low=None, high=None, **series):
    parts = {"attack": "ara", "metric": "excess", "units": "points", "headline": True, "series": series, "chance": 0.0}
    bare = {"here_low": None, "here_high": None, "null": None, "baselines": {}}
    return replace(example.findings()[0], value=value, low=low, high=high, **parts, **bare)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((19.8, 14.0, 25.3), "was right more often by 19.8 points (95% interval 14 to 25.3) than"),
        ((-27.0, -34.9, -20.2), "was right less often by 27 points (95% interval 20.2 to 34.9) than"),
        ((-3.0, -9.0, 4.0), "was right less often by 3 points (95% interval 9 less to 4 more) than"),
        ((0.0, -2.0, 2.0), "was right more often by 0 points (95% interval 2 less to 2 more) than"),
        ((5.0, None, None), "was right more often by 5 points than"),
    ],
)
def test_an_excess_is_said_as_people_do(numbers, words):
    sentence = excess(finding(*numbers, asked=ASKED))
    assert words in sentence
    assert "-" not in sentence
    assert SECTION.sentences["excess"] is excess


def test_the_column_and_its_values_are_named():
    assert "the column sex (female or male)" in excess(finding(1.0, asked=ASKED))
    many = {"column": "age", "values": [str(age) for age in range(20)]}
    assert "the column age (0, 1, 2, 3, 4 or 15 others)" in excess(finding(1.0, asked=many))
    assert "was right" in excess(finding(1.0)), "the series may not say what was asked"


def test_scores_and_curve_are_about_the_rarest_value():
    found = finding(
        1.0,
        asked={**ASKED, "rarest": "male"},
        roc={"fpr": [0.01, 0.1], "value": [0.5, 1.0]},
        scores={"edges": [0.0, 1.0], "positive": [3], "negative": [4]},
    )
    found = replace(found, label="Values of sex recovered by cos")
    assert roc(found, "x").title == "How many examples with sex male cos finds at each rate of false alarms"
    assert scores(found, "x").title == "How sure cos is of sex male, by what is true"
    assert scores(found, "x").header == ["score", "sex is male", "another value"]
