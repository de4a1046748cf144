"""What there is to choose from: presets, threats, attacks, reproductions, datasets and settings."""

from collections.abc import Mapping
from typing import Any

from fedattack.attacks.needs import Needs
from fedattack.attacks.options import Options
from fedattack.attacks.registry import THREATS, declarations, threat_of
from fedattack.base.registry import Registry
from fedattack.cli.console import out_console, show_table
from fedattack.data import DATASETS
from fedattack.defences import KINDS
from fedattack.grids.reproduce import load_reproduction, reproduction_names
from fedattack.runs.presets import Preset, load_presets
from fedattack.runs.settings import load_settings

TOPICS = {
    "presets": ("presets", "presets_left_out", "reproductions", "left_out"),
    "attacks": ("threats", "attacks", "left_out"),
    "data": ("datasets", "left_out"),
    "settings": ("settings", "left_out"),
}
"""What a person can ask for, and the keys of :func:`listing` that say it."""

_OPEN: tuple[Registry[Any], ...] = (THREATS, DATASETS, KINDS)
"""What other packages may add to, except frameworks: only a run's own processes import these."""

_BUNDLED, _DOWNLOAD, _BY_HAND, _FILE = "bundled", "download", "by hand", "a file"


def listing() -> dict[str, Any]:
    """Gather it, as JSON can hold it."""
    presets, presets_left_out = load_presets()
    reproductions, settings = {}, {}
    for each in map(load_reproduction, reproduction_names()):
        reproductions[each.name] = {"title": each.title, "paper": each.paper, "cells": len(each.cells)}
    for setting in load_settings().values():
        if not setting.internal:
            settings[setting.name] = {"default": setting.default, "help": setting.help}
    return {
        "presets": {name: _describe_preset(preset) for name, preset in presets.items()},
        "threats": {
            name: {"question": threat.question, "attacks": list(threat.attacks)} for name, threat in THREATS.items()
        },
        "left_out": {registry.group: registry.left_out for registry in _OPEN if registry.left_out},
        "presets_left_out": presets_left_out,
        "attacks": {name: _attack(declaration) for name, declaration in declarations().items()},
        "reproductions": reproductions,
        "datasets": list(DATASETS),
        "settings": settings,
    }


def _describe_preset(preset: Preset) -> dict[str, Any]:
    threat = threat_of(preset.attacks[0])
    question = ""
    if threat is not None:
        question = threat.question
    return {
        "help": preset.help,
        "question": question,
        "takes": preset.takes,
        "data": _describe_data(str(preset.settings.get("dataset", ""))),
        "settings": dict(preset.settings),
    }


def _describe_data(name: str) -> str:
    """Name a dataset, and say how it gets onto this machine."""
    if name not in DATASETS:
        return f"{name}, {_FILE}".removeprefix(", ")
    return f"{name}, {_find_origin(name)}"


def _find_origin(name: str) -> str:
    source = DATASETS[name]
    if source.by_hand:
        return _BY_HAND
    return _DOWNLOAD if source.download is not None else _BUNDLED


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


def show_listing(topic: str | None) -> None:
    """Show one of :data:`TOPICS` as tables; presets, and where to read on, if none is asked for."""
    there = listing()
    show = {"presets": _show_presets, "attacks": _show_attacks, "data": _show_data, "settings": _show_settings}
    show[topic or "presets"](there)
    # By entry point's group: threats, datasets, defences.
    left_out = [(group, *entry) for group, entries in there["left_out"].items() for entry in entries.items()]
    if left_out:
        show_table("Left out of what other packages add", ("where", "name", "why"), left_out, names=2)
    if topic is None:
        others = ", ".join(f"fedattack list {word}" for word in TOPICS if word != "presets")
        out_console.print(f"Begin with: fedattack audit quickstart --out runs/first\nMore: {others}", soft_wrap=True)


def _show_presets(there: Mapping[str, Any]) -> None:
    """Show the presets below the questions that they ask; the widths of columns are the same for all."""
    rows = [(name, each["takes"], each["data"]) for name, each in there["presets"].items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    out_console.print("Presets: name, time on two cores, data, and what is run", style="bold")
    for question in dict.fromkeys(each["question"] for each in there["presets"].values()):
        group = []
        for name, takes, data in rows:
            preset = there["presets"][name]
            if preset["question"] == question:
                first = [text.ljust(width) for text, width in zip((name, takes, data), widths, strict=True)]
                group.append((*first, preset["help"]))
        show_table(question, ("name", "time", "data", "what"), group, names=3, header=False)
    if there["presets_left_out"]:
        show_table("Presets that are left out", ("file", "why"), list(there["presets_left_out"].items()))
    _show(
        "Tables and figures of papers: fedattack reproduce NAME",
        there["reproductions"],
        {"title": "what", "paper": "paper", "cells": "cells"},
    )


def _show_attacks(there: Mapping[str, Any]) -> None:
    show_table(
        "Threats",
        ("name", "what a server may want to know", "attacks"),
        [(name, threat["question"], ", ".join(threat["attacks"])) for name, threat in there["threats"].items()],
    )
    _show("Attacks", there["attacks"], {"title": "what", "needs": "needs", "paper": "paper"})
    options = []
    for name, attack in there["attacks"].items():
        options += [(name, option, help_) for option, help_ in attack["options"].items()]
    show_table("Options of attacks", ("attack", "--option", "what"), options, names=2)


def _show_data(there: Mapping[str, Any]) -> None:
    rows = [(name, _find_origin(name), DATASETS[name].description) for name in there["datasets"]]
    rows += [
        ("PATH.npz", _FILE, "your own arrays x and y"),
        ("PATH.toml", _FILE, "your own table, or one from OpenML, with a declaration"),
    ]
    show_table("Datasets: --set dataset=NAME", ("name", "where from", "what"), rows, names=2)


def _show_settings(there: Mapping[str, Any]) -> None:
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
