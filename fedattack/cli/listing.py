"""What there is to choose from: presets, threats, attacks, reproductions, datasets and settings."""

from collections.abc import Mapping
from typing import Any

from fedattack.attacks.needs import Needs
from fedattack.attacks.options import Options
from fedattack.attacks.registry import THREATS, declarations
from fedattack.base.registry import Registry
from fedattack.cli.console import show_table
from fedattack.data import DATASETS
from fedattack.defences import KINDS
from fedattack.grids.reproduce import load_reproduction, reproduction_names
from fedattack.runs.presets import load_preset, preset_names, presets_left_out
from fedattack.runs.settings import load_settings

_OPEN: tuple[Registry[Any], ...] = (THREATS, DATASETS, KINDS)
"""To what other packages may add, but for frameworks: these only a run's own processes import."""


def listing() -> dict[str, Any]:
    """Gather it, as JSON can hold it."""
    presets, reproductions, settings = {}, {}, {}
    for preset in map(load_preset, preset_names()):
        presets[preset.name] = {"help": preset.help, "settings": dict(preset.settings)}
    for each in map(load_reproduction, reproduction_names()):
        reproductions[each.name] = {"title": each.title, "paper": each.paper, "cells": len(each.cells)}
    for setting in load_settings().values():
        if not setting.internal:
            settings[setting.name] = {"default": setting.default, "help": setting.help}
    return {
        "presets": presets,
        "threats": {
            name: {"question": threat.question, "attacks": list(threat.attacks)} for name, threat in THREATS.items()
        },
        "left_out": {registry.group: registry.left_out for registry in _OPEN if registry.left_out},
        "presets_left_out": presets_left_out(),
        "attacks": {name: _attack(declaration) for name, declaration in declarations().items()},
        "reproductions": reproductions,
        "datasets": list(DATASETS),
        "settings": settings,
    }


def _attack(declaration: type[Options]) -> dict[str, Any]:
    return {
        "title": declaration.title,
        "paper": declaration.paper,
        "needs": _needs(declaration.needs),
        "options": {key: option.help for key, option in declaration.list_settings().items()},
    }


def _needs(needs: Needs) -> list[str]:
    needed = [*needs.views, *needs.protocols, *needs.knowledge]
    if needs.sgd:
        needed.append("clients of SGD")
    if needs.server:
        needed.append(f"server={needs.server}")
    return needed


def show_listing() -> None:
    """Show it as tables."""
    there = listing()
    _show("Presets", there["presets"], {"help": "what"})
    if there["presets_left_out"]:
        show_table("Presets that are left out", ("file", "why"), list(there["presets_left_out"].items()))
    show_table(
        "Threats",
        ("name", "what a server wants to know", "attacks"),
        [(name, threat["question"], ", ".join(threat["attacks"])) for name, threat in there["threats"].items()],
    )
    # By entry point's group: threats, datasets, defences.
    left_out = [(group, *entry) for group, entries in there["left_out"].items() for entry in entries.items()]
    if left_out:
        show_table("What other packages add, and is left out", ("where", "name", "why"), left_out, names=2)
    _show("Attacks", there["attacks"], {"title": "what", "needs": "needs", "paper": "paper"})
    options = []
    for name, attack in there["attacks"].items():
        options += [(name, option, help_) for option, help_ in attack["options"].items()]
    show_table("Options of attacks", ("attack", "--option", "what"), options, names=2)
    _show("Reproductions", there["reproductions"], {"title": "what", "paper": "paper", "cells": "cells"})
    datasets = [(name, source.description) for name, source in DATASETS.items()]
    datasets += [("PATH.npz", "your own arrays x and y"), ("PATH.toml", "your own table, or one of OpenML's, declared")]
    show_table("Datasets", ("name", "what"), datasets)
    _show("Settings", there["settings"], {"default": "default", "help": "what"}, "--set")


def _show(title: str, entries: Mapping[str, Any], columns: Mapping[str, str], first: str = "name") -> None:
    """Show a row for each entry: its name, and what it has under the keys of ``columns``, with their headings."""
    rows = []
    for name, entry in entries.items():
        row = [name]
        for key in columns:
            value = entry[key]
            row.append(" ".join(value) if isinstance(value, list) else str(value))
        rows.append(row)
    show_table(title, (first, *columns.values()), rows)
