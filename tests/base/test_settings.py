"""Settings and options of attacks are declared alike: type, bounds, default and help in one line."""

from typing import Literal

import pytest

from fedattack.attacks.options import Options, read_rounds
from fedattack.base.errors import ConfigError
from fedattack.base.settings import Words, setting


class ToldOptions(Options):
    name = "told"

    starts: int | None = setting(None, "starts", ge=1)
    share: float = setting(0.5, "share", gt=0, lt=1)
    order: Literal["fixed", "free"] | None = setting(None, "order")
    quietly: bool = setting(False, "quietly")
    some: tuple[str, ...] = setting(("a", "b"), "some", words=Words(("a", "b", "c")))
    others: tuple[Literal["x", "y"], ...] = setting(("x", "y"), "others")
    all_names: tuple[str, ...] = setting((), "any")
    updates: str = setting("pre1", "rounds", read=read_rounds)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("starts", "3", 3),
        ("share", "0.25", 0.25),
        ("order", "free", "free"),
        ("quietly", "TRUE", True),
        ("some", "c, a", ("c", "a")),
        ("others", "y", ("y",)),
        ("all_names", "x,y", ("x", "y")),
        ("updates", "1,2", "1,2"),
    ],
)
def test_an_option_is_read_from_a_text(key, text, value):
    before = ToldOptions()
    after = before.choose({key: text})
    assert getattr(after, key) == value
    assert {name for name in ToldOptions.model_fields if getattr(before, name) != getattr(after, name)} == {key}
    assert before == ToldOptions()


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("starts", "0", "a whole number, 1 or more"),
        ("starts", "1.5", "a whole number, 1 or more"),
        ("share", "1", "a number above 0, below 1"),
        ("share", "nan", "a number above 0, below 1"),
        ("order", "other", "one of fixed, free"),
        ("quietly", "maybe", "true or false"),
        ("some", "a,,b", "some of a, b, c"),
        ("others", "x,z", "some of x, y"),
    ],
)
def test_what_was_expected_is_said(key, text, expected):
    with pytest.raises(ConfigError) as refusal:
        ToldOptions().choose({key: text})
    assert str(refusal.value) == f"option {key}={text}: expected {expected}"


def test_an_option_that_is_unknown_is_refused_with_those_that_there_are():
    with pytest.raises(ConfigError, match=r"^attack told has no option 'speed'; it has starts, share, order"):
        ToldOptions().choose({"speed": "1"})
    with pytest.raises(ConfigError, match=r"has no option 'speed'; it has none$"):
        type("Bare", (Options,), {"name": "bare"})().choose({"speed": "1"})


def test_values_are_held_against_the_same_bounds():
    assert ToldOptions.of({"some": ("c",), "share": 0.1}).some == ("c",)
    with pytest.raises(ConfigError, match=r"share = 2.0: expected less than 1"):
        ToldOptions.of({"share": 2.0})
    with pytest.raises(ConfigError, match=r"^some = 'd': "):
        ToldOptions.of({"some": ("d",)})
