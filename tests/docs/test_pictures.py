"""Pictures that are drawn of numbers or by code are those that stand beside the guides."""

import re

import pytest

from tests.docs import charts, drawings


def rounded(svg: str) -> str:
    return re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.1f}", svg)


@pytest.mark.parametrize("name", charts.CHARTS)
def test_a_picture_shows_the_numbers_of_its_page(name):
    drawn = (charts.RESULTS / f"{name}.svg").read_text(encoding="utf-8")
    assert rounded(drawn) == rounded(charts.draw(name, charts.CHARTS[name])), "run python -m tests.docs.charts"


@pytest.mark.parametrize("place", drawings.DRAWINGS)
def test_a_drawing_is_as_drawn(place):
    drawn = (drawings.PACKAGE / f"{place}.svg").read_text(encoding="utf-8")
    assert drawn == drawings.draw(drawings.DRAWINGS[place]), "run python -m tests.docs.drawings"


def test_every_threat_has_a_drawing_in_its_guide():
    for guide in (drawings.PACKAGE / "threats").glob("*/README.md"):
        assert "](works.svg)" in guide.read_text(encoding="utf-8"), guide
        assert f"threats/{guide.parent.name}/works" in drawings.DRAWINGS


def test_points_are_read_with_their_intervals():
    assert charts.read_point("1.00 (65–100 %)", 100) == charts.Point(100, 65, 100)
    assert charts.read_point("−0.8 (−3.7 to 2.0)", 1) == charts.Point(-0.8, -3.7, 2)
    assert charts.read_point("**.86**", 100) == charts.Point(86, 86, 86)
    assert charts.read_point("–", 1) is None
    rows = charts.read_rows("| a | b |\n|---|---|\n| `x` | 1 |\n| | 2 |\n\nmore", "| a | b")
    assert rows == [["x", "1"], ["x", "2"]]
