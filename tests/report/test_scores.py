from fedattack.report.scores import canary_scores
from tests.report import claims
from tests.report.test_figures import texts


def test_both_kinds_of_canaries_have_a_row():
    found = claims.canaries()
    plot = canary_scores(found, "c")
    assert {"in the run", "not in the run"} <= set(texts(plot.svg))
    assert [row[:2] for row in plot.rows] == [["in the run", "20"], ["not in the run", "20"]]
    assert plot.rows[0][2] == f"{min(found['scores']['in']):.3g}"


def test_a_null_that_is_known_by_analysis_has_none():
    plot = canary_scores({"scores": {"in": [0.5] * 2000, "out": []}}, "c")
    assert [row[0] for row in plot.rows] == ["in the run"]
    assert plot.svg.count("<use") < 600
    assert canary_scores({"scores": {"in": [], "out": []}}, "c") is None
