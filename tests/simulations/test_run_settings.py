"""The run config has one reader, which knows every key and its type."""

import ast
import tomllib
from pathlib import Path

import pytest

from fedattack.base.errors import ConfigError
from fedattack.base.settings import SettingsModel, setting
from fedattack.defences import DefenceKind
from fedattack.record.format import SERVERS
from fedattack.runs import settings
from fedattack.runs.settings import RunSettings, load_settings, read_settings
from simulations.frameworks import FRAMEWORKS
from tests.worlds.reference import DEFAULTS

ROOT = Path(__file__).parents[2]
APP = [file for folder in ("clients", "simulations", "strategies") for file in sorted((ROOT / folder).rglob("*.py"))]


def test_the_run_config_that_flower_reads_is_the_models():
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert config == DEFAULTS
    assert {key: type(value) for key, value in config.items()} == {key: type(value) for key, value in DEFAULTS.items()}
    assert read_settings(config).by_key(DEFAULTS) == DEFAULTS


def test_the_servers_that_settings_name_are_those_that_a_record_knows():
    """They stand twice, since settings are read where no record is, and quickly."""
    assert load_settings()["server"].values == SERVERS


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("clients", 1, "clients = 1: expected at least 2 (number of clients)"),
        ("clients", 10**9, "clients = 1000000000: expected at most 100000 (number of clients)"),
        ("clients", "4", "clients = '4': expected a whole number (number of clients)"),
        ("clients", True, "clients = True: expected a whole number (number of clients)"),
        ("lr", 0, "lr = 0: expected more than 0.0 (learning rate"),
        ("dropout", 1.0, "dropout = 1.0: expected less than 1.0 (dropout"),
        ("secagg", 1, "secagg = 1: expected true or false (run"),
        ("dataset", 7, "dataset = 7: expected a text (a name"),
        ("framework", "fedawg", "framework = 'fedawg': did you mean fedavg? expected one of fedavg, fedsgd, fedmd"),
        ("client", 4, "unknown setting 'client': did you mean clients? `fedattack list settings` shows all"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(key, value, message):
    with pytest.raises(ConfigError) as caught:
        read_settings(DEFAULTS | {key: value})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_defence_without_zoos_of_its_own_uses_those_of_the_preparation():
    config = DEFAULTS | {"zoo": "trained"}
    assert RunSettings.of(config).defence_settings["recup-zoo"] == "trained"
    assert RunSettings.of(config | {"recup-zoo": "mine"}).defence_settings["recup-zoo"] == "mine"


@pytest.mark.parametrize("file", APP, ids=lambda file: "/".join(file.parts[-2:]))
def test_nothing_else_reads_keys_or_compares_with_the_name_of_a_framework(file):
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Constant):
            assert node.slice.value not in DEFAULTS, f"line {node.lineno} reads {node.slice.value}"
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                assert getattr(side, "value", None) not in FRAMEWORKS, f"line {node.lineno} compares with a name"


class ScaleSettings(SettingsModel):
    scale_power: float = setting(1.0, "scale: power", ge=0)


def test_settings_that_a_further_defence_declares_are_settings_of_the_run(monkeypatch):
    kind = DefenceKind("scale", None, ScaleSettings)
    monkeypatch.setattr(settings, "KINDS", {**settings.KINDS, kind.name: kind})
    settings.settings_model.cache_clear()
    try:
        assert load_settings()["scale-power"].help == "scale: power"
        read = read_settings(DEFAULTS | {"scale-power": 2})
        assert isinstance(read, RunSettings)
        assert read.by_key(["scale-power", "clients"]) == {"scale-power": 2.0, "clients": DEFAULTS["clients"]}
        with pytest.raises(ConfigError, match=r"scale-power = -1: expected at least 0.0 \(scale: power\)"):
            read_settings(DEFAULTS | {"scale-power": -1})
    finally:
        settings.settings_model.cache_clear()
