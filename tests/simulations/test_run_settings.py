"""The run config has one reader, which knows every key and its type."""

import ast
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from fedattack.runs.settings import load_settings
from simulations.frameworks import FRAMEWORKS
from simulations.run_settings import RunSettings

ROOT = Path(__file__).parents[2]
DEFAULTS = {name: setting.default for name, setting in load_settings().items()}
APP = [file for folder in ("clients", "simulations", "strategies") for file in sorted((ROOT / folder).rglob("*.py"))]


def test_every_key_is_a_field_of_its_type():
    read = RunSettings.of(DEFAULTS).by_key(DEFAULTS)
    assert read == DEFAULTS
    assert {key: type(value) for key, value in read.items()} == {key: type(value) for key, value in DEFAULTS.items()}
    assert len(fields(RunSettings)) == len(DEFAULTS)


def test_folders_may_be_left_out_and_nothing_else():
    folders = ("dealt", "zoo", "record", "truth", "knowledge", "resume")
    settings = RunSettings.of({key: value for key, value in DEFAULTS.items() if key not in folders})
    assert set(settings.by_key(folders).values()) == {""}
    for key in set(DEFAULTS) - {*folders}:
        with pytest.raises(KeyError, match=key):
            RunSettings.of({name: value for name, value in DEFAULTS.items() if name != key})


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


@dataclass(frozen=True, kw_only=True)
class Later(RunSettings):
    """As under ``from __future__ import annotations``, where types are texts."""

    more: "int" = 0


def test_a_type_that_is_written_as_a_text_is_the_same_type():
    assert Later.of(DEFAULTS | {"more": "3"}).more == 3
