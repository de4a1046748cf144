"""Golden facts of the Markdown and the picture."""

from xml.etree import ElementTree

import pytest

from fedattack.grids.cell import Number
from fedattack.grids.measure import measure
from fedattack.grids.reproduce.design import make_page
from fedattack.grids.reproduce.picture import draw_results
from fedattack.grids.reproduce.spec import Reproduction
from tests.grids.reproduce.test_spec import SPEC

OURS = measure(Number("asr", "rate", finding="sia.asr"), [], {}) | {
    "value": 0.25,
    "seed_mean": 0.24,
    "seed_sd": 0.012,
    "low": 0.213,
    "high": 0.286,
    "level": 0.95,
    "comparisons": 1,
    "chance": 0.1,
    "null": {"value": 0.099, "low": 0.08, "high": 0.12, "n": 3000},
    "n": 3000,
}
PAPER = {"mean": 0.285, "sd": 0.014}


def cell(place, asr, **facts):
    return {
        "cell": "name",
        "place": dict(zip(("who", "dataset", "alpha"), place, strict=True)),
        "state": "done",
        "data": "digits",
        "training_records": 8000,
        "seeds": [0, 1, 2],
        "minutes": 5.25,
        "command": "fedattack audit one",
        "numbers": {"asr": asr},
        "per_round": {
            "rounds": [1, 2],
            "value": [0.2, 0.3],
            "low": [0.1, 0.2],
            "high": [0.3, 0.4],
            "null": [0.1, None],
        },
    } | facts


def missing(place, reason):
    return {
        "cell": "name",
        "place": dict(zip(("who", "dataset", "alpha"), place, strict=True)),
        "state": "not run",
        "reason": reason,
        "numbers": {"asr": {"paper": PAPER}},
    }


def results(*cells, changes=()):
    return {"fedattack": "0.1.0", "command": "fedattack reproduce some --out DIR", "changes": changes, "cells": cells}


@pytest.fixture
def what(tmp_path) -> Reproduction:
    (tmp_path / "some.toml").write_text(SPEC)
    return Reproduction.read(tmp_path / "some.toml")


def test_ours_and_the_papers_stand_side_by_side(what):
    page = make_page(
        what,
        results(
            cell(("us", "digits", 1.0), OURS | {"paper": PAPER, "difference": -0.045}),
            cell(("us", "digits", 0.1), OURS | {"paper": PAPER, "difference": -0.0002}, data="mine_10.npz"),
            cell(("them", "digits", 0.1), OURS),
            missing(("us", "synthetic", 1.0), "needs `fedattack download synthetic`, or --data synthetic=PATH.npz"),
            missing(("us", "synthetic", 0.1), "needs `fedattack download synthetic`, or --data synthetic=PATH.npz"),
            changes=["rounds=3"],
        ),
        picture="some.svg",
    ).to_markdown()
    lines = page.splitlines()
    header = (
        "| who | dataset | alpha | paper, rate (%) | ours, rate (%) | difference | chance | null | n | seeds | min |"
    )
    place = lines.index(header)
    assert lines[place + 1] == "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    assert lines[place + 2] == (
        "| us | digits (8,000 training examples) | 1 | 28.5 ± 1.4 | 24.0 ± 1.2 (21.3–28.6) | −4.5 | 10.0 | 9.9 | 3,000 "
        "| 3 | 5.2 |"
    )
    assert r"| digits (mine\_10.npz, 8,000 training examples) | 0.1 | 28.5 ± 1.4 |" in lines[place + 3]
    assert "| +0.0 | 10.0 |" in lines[place + 3], "a rounded difference of nothing has no sign of its own"
    assert "| 0.1 | – | 24.0 ± 1.2 (21.3–28.6) | – |" in lines[place + 4]
    assert "**Departs from the paper's setting in: rounds=3.**" in lines
    assert "3 cells took 16 minutes." in page
    assert "- 2 cells (dataset synthetic): needs `fedattack download synthetic`, or --data synthetic=PATH.npz" in lines
    assert "![t](some.svg)" in lines
    assert "fedattack reproduce some --out DIR\nfedattack audit one\n```" in page


def test_without_the_papers_numbers_there_are_no_columns_for_them(what):
    page = make_page(what, results(cell(("us", "digits", 1.0), OURS))).to_markdown()
    assert "| who | dataset | alpha | ours, rate (%) | chance |" in page
    assert "svg" not in page


def test_with_nothing_done_there_is_a_list_alone(what):
    lacking = results(missing(("us", "digits", 1.0), "not reached yet"))
    page = make_page(what, lacking).to_markdown()
    assert "| us |" not in page
    assert "- 1 cell (dataset digits; alpha 1): not reached yet" in page
    assert draw_results(what, lacking) == ""


def texts(svg: str) -> set[str]:
    root = ElementTree.fromstring(svg)  # noqa: S314 our own
    return {element.text for element in root.iter() if element.tag.endswith("text") and element.text}


@pytest.mark.parametrize(
    ("figure", "there"),
    [
        ('kind = "points"\npanels = ["dataset"]', {"digits", "ours", "paper ± sd", "chance", "us · 1", "us · 0.1"}),
        (
            'kind = "curves"\npanels = ["who"]\nlines = "dataset"\nx = "alpha"\ninverse = true',
            {"us", "digits", "1/alpha"},
        ),
        ('kind = "curves"\npanels = ["who"]\nlines = "dataset"\nx = "alpha"', {"us", "digits", "alpha"}),
        ('kind = "curves"\npanels = ["who"]\nlines = "dataset"\nx = "asr"', {"us", "digits", "rate (%)"}),
        (
            'kind = "rounds"\npanels = ["who", "alpha"]\nlines = "dataset"',
            {"us · alpha 1", "us · alpha 0.1", "Round", "digits"},
        ),
    ],
)
def test_pictures_name_what_they_show(tmp_path, figure, there):
    (tmp_path / "some.toml").write_text(SPEC.replace('kind = "points"\npanels = ["dataset"]', figure))
    spec = Reproduction.read(tmp_path / "some.toml")
    done = [cell(("us", "digits", alpha), OURS | {"paper": PAPER}) for alpha in (1.0, 0.1)]
    svg = draw_results(spec, results(*done))
    assert there <= texts(svg)
    assert "us · digits · 1: 24.0 ± 1.2 (21.3–28.6)" in svg, "the numbers in words"


def test_several_numbers_are_drawn_in_one_panel_and_far_places_on_a_logarithmic_axis(tmp_path):
    other = '[[numbers]]\nname = "other"\ntitle = "another rate"\nfinding = "sia.other"\n'
    drawn = 'kind = "curves"\npanels = ["who"]\nx = "alpha"\nbeside = ["other"]'
    text = SPEC.replace("[figure]", f"{other}[figure]").replace('kind = "points"\npanels = ["dataset"]', drawn)
    (tmp_path / "some.toml").write_text(text)
    done = [cell(("us", "digits", alpha), OURS | {"paper": None}) for alpha in (1.0, 0.01)]
    for entry in done:
        entry["numbers"]["other"] = entry["numbers"]["asr"] | {"value": None if entry is done[0] else 0.5}
    found = texts(draw_results(Reproduction.read(tmp_path / "some.toml"), results(*done)))
    assert {"rate", "another rate", "alpha", "1", "0.01"} <= found
