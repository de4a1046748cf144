from dataclasses import replace

from fedattack.report.strip import strip
from tests.report import example
from tests.report.test_figures import texts


def test_every_row_is_named_and_in_the_words():
    finding = example.findings()[0]
    plot = strip(finding, [("labels alone", 0.3)], "s")
    found = texts(plot.svg)
    for name in ("this attack", "nothing to find", "labels alone", "guessing 10.0%"):
        assert name in found
    for words in ("58.1%", "53.6–62.3%", "chance 10.0%", "9.9%", "labels alone 30.0%"):
        assert words in plot.svg


def test_a_small_rate_is_not_lost_on_a_long_axis():
    small = replace(example.findings()[0], value=0.02, low=0.01, high=0.03, chance=0.01, null=None)
    assert "80%" not in texts(strip(small, [], "s").svg)


def test_without_a_value_there_is_nothing_to_draw():
    assert (
        strip(replace(example.findings()[0], value=None, low=None, high=None, verdict="not applicable"), [], "s")
        is None
    )


def test_other_units_are_not_per_cent():
    svg = strip(example.findings()[6], [], "s").svg
    assert "nats" in texts(svg)
    assert not any("%" in text for text in texts(svg))
