"""What there is to choose from: presets, threats, attacks, reproductions, datasets and settings."""

from typing import Any

from fedattack.cli.console import show_table
from fedattack.data import DATASETS
from fedattack.reproduce import load_reproduction, reproduction_names
from fedattack.runs.presets import load_preset, preset_names, presets_left_out
from fedattack.runs.settings import load_settings
from fedattack.threats import ATTACKS
from fedattack.threats.registry import left_out, threats


def listing() -> dict[str, Any]:
    """Gather it, as JSON can hold it."""
    reproductions = [load_reproduction(name) for name in reproduction_names()]
    presets = [load_preset(name) for name in preset_names()]
    settings = [setting for setting in load_settings().values() if not setting.internal]
    return {
        "presets": {preset.name: {"help": preset.help, "settings": dict(preset.settings)} for preset in presets},
        "threats": {
            name: {"question": threat.question, "attacks": list(threat.attacks)} for name, threat in threats().items()
        },
        "left_out": left_out(),
        "presets_left_out": presets_left_out(),
        "attacks": {name: _attack(name) for name in ATTACKS},
        "reproductions": {
            each.name: {"title": each.title, "paper": each.paper, "cells": len(each.cells)} for each in reproductions
        },
        "datasets": list(DATASETS),
        "settings": {setting.name: {"default": setting.default, "help": setting.help} for setting in settings},
    }


def _attack(name: str) -> dict[str, Any]:
    attack = ATTACKS[name]
    return {
        "title": attack.title,
        "paper": attack.paper,
        "needs": [*attack.needs.views, *attack.needs.protocols, *attack.needs.knowledge],
        "options": {key: option.help for key, option in attack.options.items()},
    }


def show_listing() -> None:
    """Show it as tables."""
    there = listing()
    show_table("Presets", ("name", "what"), [(name, preset["help"]) for name, preset in there["presets"].items()])
    if there["presets_left_out"]:
        show_table("Presets that are left out", ("file", "why"), list(there["presets_left_out"].items()))
    show_table(
        "Threats",
        ("name", "what a server wants to know", "attacks"),
        [(name, threat["question"], ", ".join(threat["attacks"])) for name, threat in there["threats"].items()],
    )
    if there["left_out"]:
        show_table("Threats that are left out", ("name", "why"), list(there["left_out"].items()))
    attacks = there["attacks"].items()
    show_table(
        "Attacks",
        ("name", "what", "needs", "paper"),
        [(name, attack["title"], " ".join(attack["needs"]), attack["paper"]) for name, attack in attacks],
    )
    options = []
    for name, attack in attacks:
        options += [(name, option, help_) for option, help_ in attack["options"].items()]
    show_table("Options of attacks", ("attack", "--option", "what"), options)
    reproductions = there["reproductions"].items()
    show_table(
        "Reproductions",
        ("name", "what", "paper", "cells"),
        [(name, each["title"], each["paper"], str(each["cells"])) for name, each in reproductions],
    )
    datasets = [(name, source.description) for name, source in DATASETS.items()]
    datasets += [("PATH.npz", "your own arrays x and y"), ("PATH.toml", "your own table, or one of OpenML's, declared")]
    show_table("Datasets", ("name", "what"), datasets)
    settings = there["settings"].items()
    show_table(
        "Settings",
        ("--set", "default", "what"),
        [(name, str(setting["default"]), setting["help"]) for name, setting in settings],
    )
