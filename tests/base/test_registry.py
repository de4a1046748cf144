"""What is found by itself; see also tests.attacks.test_registry, where a package is installed."""

from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest

from fedattack.base import registry
from fedattack.base.registry import Registry, installed_in, stated_in


@dataclass(frozen=True)
class Thing:
    name: str


OURS = Thing("ours")
ONE, TWO = Thing("one"), Thing("two")
SEVERAL = (ONE, TWO)
TAKEN = Thing("ours")
STRANGE = "a text"
NAMED_ODDLY = Thing("odd")


def entry(name: str, what: str, group: str = "fedattack.things") -> EntryPoint:
    return EntryPoint(name, f"tests.base.test_registry:{what}", group)


@pytest.fixture
def things(monkeypatch):
    """Make the registry of things that are installed."""

    def make(*entries: EntryPoint) -> Registry[Thing]:
        monkeypatch.setattr(registry, "_entry_points", lambda: set(entries))
        return Registry("fedattack.things", Thing, lambda: [OURS], lambda one, others: "is odd" * (one.name == "odd"))

    return make


def test_what_is_built_in_comes_first(things):
    found = things(entry("b", "TWO"), entry("a", "ONE"), entry("c", "ONE", "fedattack.others"))
    assert (list(found), found["one"], len(found), found.left_out) == (["ours", "one", "two"], ONE, 3, {})
    assert list(things(entry("a", "SEVERAL"))) == ["ours", "one", "two"]


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("TAKEN", "has the name 'ours', which is taken"),
        ("STRANGE", "is no tests.base.test_registry.Thing"),
        ("NAMED_ODDLY", "is odd"),
        ("MISSING", "cannot be imported: module 'tests.base.test_registry' has no attribute 'MISSING'"),
    ],
)
def test_what_cannot_be_used_is_left_out_with_its_reason(things, what, why):
    found = things(entry("a", what), entry("b", "ONE"))
    assert list(found) == ["ours", "one"]
    assert found.left_out == {"a": f"tests.base.test_registry:{what} {why}"}


def test_a_second_entry_point_of_a_name_is_told_from_the_first(things):
    things(entry("a", "ONE"), entry("a", "TWO"))
    assert list(installed_in("fedattack.things")) == ["a", "a (tests.base.test_registry:TWO)"]


def test_nothing_is_searched_for_before_somebody_asks(monkeypatch):
    asked = []
    monkeypatch.setattr(registry, "_entry_points", lambda: asked.append(1) or set())
    found = Registry("fedattack.things", Thing, lambda: asked.append(2) or [OURS])
    assert not asked
    assert [*found, *found] == ["ours", "ours"]
    assert asked == [2, 1]


def test_modules_that_state_nothing_are_passed_over():
    assert [source.name for source in stated_in("fedattack.data.sources", "SOURCES")]
    assert not [*stated_in("fedattack.data.sources", "NOTHING")]
