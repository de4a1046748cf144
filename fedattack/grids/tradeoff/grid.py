"""The grid of a trade-off study: no defence, and each defence at each strength of its ladder.

A setting of the run may stand for a defence, such as ``batch-size``: its values are the strengths.
"""

import math
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fedattack.base.errors import ConfigError, instead
from fedattack.base.settings import SettingField, Value
from fedattack.defences import NONE
from fedattack.grids.cell import Cell, Number, check_changes
from fedattack.runs.app import app_folder
from fedattack.runs.presets import Preset, resolve_settings
from fedattack.runs.settings import open_settings

LOSS = Number(name="loss", title="learning loss", curve="loss", units="")
ACCURACY = Number(name="accuracy", title="accuracy", curve="accuracy")

SETTING, STRENGTH = "defence", "defence-strength"
"""The settings that make the grid."""


@dataclass(frozen=True)
class Ladder:
    """Strengths of a defence.

    Attributes
    ----------
    what
        What a strength is, for people.
    strengths
        In ascending order, above 0.
    most
        The largest that there is.
    """

    what: str
    strengths: Sequence[float]
    most: float = math.inf


def load_ladders() -> dict[str, Ladder]:
    """Read the default strengths of every defence."""
    text = (app_folder() / "simulations" / "tradeoff.toml").read_text(encoding="utf-8")
    return {name: Ladder(**entry) for name, entry in tomllib.loads(text).items()}


def choose_strengths(preset: Preset, wanted: Sequence[str]) -> dict[str, list[Value]]:
    """Choose defences, and their strengths in ascending order: those of `wanted`, else the preset's, else the usual.

    `wanted` are ``NAME`` or ``NAME=s1,s2,…``; those of one name add up. All defences if there are none. Values of a
    setting stay in the order in which they are given.
    """
    ladders, settings = load_ladders(), _list_settings()
    for name in preset.tradeoff:
        _check_name(f"preset {preset.name}, [tradeoff]", name, ladders)
    chosen: dict[str, list[Value]] = {}
    # Without words the names of the ladders are the words.
    for text in wanted or ladders:
        name, separator, strengths = text.partition("=")
        if name in settings:
            if not separator:
                raise ConfigError(f"--defence {name} is a setting: expected its values too, such as {name}=V1,V2")
            chosen.setdefault(name, []).extend(map(settings[name].parse, strengths.split(",")))
            continue
        _check_name(f"--defence {text}", name, ladders)
        values = preset.tradeoff.get(name, ladders[name].strengths)
        if separator:
            values = _read_numbers(text, strengths)
        for value in values:
            _check_strength(name, ladders[name], value)
        # A defence that is named twice has both lists.
        chosen[name] = sorted({*chosen.get(name, ()), *values})
    return {name: list(dict.fromkeys(values)) for name, values in chosen.items()}


def describe_strengths() -> dict[str, str]:
    """Say of each defence, and of each setting that may stand for one, what its strengths are."""
    described = {name: setting.help for name, setting in _list_settings().items()}
    return described | {name: ladder.what for name, ladder in load_ladders().items()}


def _list_settings() -> dict[str, SettingField]:
    return {name: setting for name, setting in open_settings().items() if name not in (SETTING, STRENGTH)}


def check_words(
    preset: Preset, wanted: Sequence[str], changes: Sequence[str]
) -> tuple[dict[str, list[Value]], dict[str, Value]]:
    """Check what a caller asks of a study; returns strengths by defence, and the settings without a defence."""
    check_changes(changes, (SETTING, STRENGTH), "--defence NAME=S1,S2,…")
    # Whatever the preset has: the grid sets the defence of each cell.
    undefended = [*changes, f"{SETTING}={NONE}", f"{STRENGTH}=0"]
    return choose_strengths(preset, wanted), resolve_settings(preset, undefended)


def make_cells(preset: str, strengths: Mapping[str, Sequence[Value]]) -> list[Cell]:
    """Make the cells: without defence, then each defence from weak to strong."""
    settings, cells = _list_settings(), []
    first: dict[str, Sequence[Value]] = {NONE: [0.0]}
    for name, values in {**first, **strengths}.items():
        for value in values:
            changed: dict[str, Value] = {SETTING: name, STRENGTH: value}
            if name in settings:
                # A setting that stands for a defence is changed itself, and there is no defence beside it.
                changed = {SETTING: NONE, STRENGTH: 0.0, name: value}
            cells.append(Cell(preset, changed, {"defence": name, "strength": value}))
    return cells


def _check_name(where: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise ConfigError(f"{where}: unknown defence {name!r}: {instead(name, known)}")


def _check_strength(name: str, ladder: Ladder, value: float) -> None:
    if not (math.isfinite(value) and 0 < value <= ladder.most):
        most = f" and at most {ladder.most:g}" if math.isfinite(ladder.most) else ""
        raise ConfigError(
            f"--defence {name}: a strength ({ladder.what}) is a finite number above 0{most}, got {value:g}; what no "
            "defence gives is measured in any case"
        )


def _read_numbers(text: str, strengths: str) -> list[float]:
    try:
        return list(map(float, strengths.split(",")))
    except ValueError:
        raise ConfigError(
            f"--defence {text}: expected NAME or NAME=S1,S2,… with numbers, such as sparsify=0.5,0.9"
        ) from None
