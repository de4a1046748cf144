"""What the extra lacks is said once for all commands."""

from importlib.metadata import PackageNotFoundError

import pytest

from fedattack.base import extra

REQUIRES = [
    "numpy>=2.0",
    "absent-base>=1",
    "flwr[simulation]<1.43,>=1.40; extra == 'audit'",
    'torch>=2.6; extra == "audit"',
    "torchvision>=0.21; extra == 'audit'",
    "some.thing-else; extra == 'audit'",
    "ruff; extra == 'dev'",
]


@pytest.fixture
def there(monkeypatch):
    """Says which distributions are installed."""
    installed = {"flwr"}

    def distribution(name):
        if name not in installed:
            raise PackageNotFoundError(name)

    monkeypatch.setattr(extra, "requires", lambda name: REQUIRES)
    monkeypatch.setattr(extra, "distribution", distribution)
    return installed


def test_what_is_missing_of_the_extra_alone_is_named(there):
    assert extra.missing() == ["some.thing-else", "torch"]
    assert extra.what_to_install("fedattack list").startswith(
        "fedattack list needs packages that are not installed (some.thing-else, torch); install them: pip install 'fed"
    )
    # Without torchvision all works but the datasets of images.
    there |= {"torch", "some.thing-else"}
    assert extra.missing() == []
    assert extra.what_to_install("fedattack list") == ""


def test_a_source_tree_that_was_never_installed_is_not_asked(monkeypatch):
    def requires(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extra, "requires", requires)
    assert extra.missing() == []


def test_a_module_that_is_missing_all_the_same_is_said_in_a_line(there, call, monkeypatch):
    def check(folder):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("fedattack.record.check.check_record", check)
    code, _, err = call("check", "anywhere")
    assert code == 2
    assert err.startswith("error: this command needs packages that are not installed (some.thing-else, torch)")
    assert len(err.splitlines()) == 1
