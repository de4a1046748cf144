"""What to do about a leak: defences that apply, what they were measured to buy, and the command that tests each."""

import re
import shlex
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
# Options of a run that its repetition under a defence has, too; others, such as --fail-if, are left out.
_KEPT = ("--set", "--seed", "--seeds", "--option", "--on", "--device")
_SECAGG = "secagg"
# A run has at most one of these.
_DEFENDING = ("defence", "defence-strength", "dp-noise", "dp-epsilon")


@dataclass(frozen=True)
class Remedy:
    """One thing to do.

    Attributes
    ----------
    what
        What to do, in a few words.
    buys
        What was measured of it, with its cost in model quality, or why it helps.
    measured
        On what the numbers were measured; empty if there are none.
    settings
        The settings of a preset that try it; empty if none do.
    audit
        A preset that tries it in place of the run's own; empty for the run's own.
    helps
        Whether it is something to do. Of what was measured not to help, ``what`` says so in a whole sentence, and it is
        no step.
    """

    what: str
    buys: str
    measured: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    audit: str = ""
    helps: bool = True

    @property
    def way(self) -> str:
        """What it does, in whatever words: remedies of one way, also of several threats, are one step."""
        if self.audit or "secagg" in self.settings:
            return _SECAGG
        if "defence" in self.settings:
            return self.settings["defence"]
        return next(iter(self.settings), self.what)

    def applies_to(self, run: Mapping[str, Any]) -> bool:
        """Whether a run has something to gain: it does not do this already, and keeps to the protocol.

        Secure aggregation (``audit``) binds no server that departs from the protocol. A run that defends itself in
        the same way is not told to do so again, perhaps more weakly.
        """
        setting = run["setting"]
        model = run["threat_model"]
        is_hidden = model["server"].startswith("active") or model["view"] == "aggregate"
        # The setting of somebody's own app does not say secagg; what the server sees does.
        if self.way == _SECAGG and (self.audit or not setting.get("preset")):
            return not is_hidden
        for key, value in self.settings.items():
            # Only one kind of privacy in training is tried at a time.
            if key in ("dp-noise", "dp-epsilon") and (setting.get("dp-noise") or setting.get("dp-epsilon")):
                return False
            if key == "defence" and setting.get("defence", "none") == value:
                return False
            if key not in _DEFENDING and (key not in setting or str(setting[key]) == value):
                return False
            if key == "local-epochs" and setting.get("framework") != "fedavg":
                return False
        return True


def read_remedies(text: str) -> tuple[Remedy, ...]:
    """Read the remedies of a threat from the text of its ``remedies.toml``."""
    return tuple(Remedy(**entry) for entry in tomllib.loads(text)["remedy"])


def command_for(remedy: Remedy, run: Mapping[str, Any]) -> str:
    """Return the command that tries a remedy on a run like this one; empty if there is none.

    The run's own command is repeated with the remedy's settings. For a run without a preset, such as that of somebody's
    app, the command asks the same record what the remedy would have hidden; ``DIR`` is the run folder. What a folder
    says is data: of its command known options are taken, every word is quoted, and a command that names paths or code
    is not repeated.
    """
    preset = str(run["setting"].get("preset", ""))
    if not preset:
        return _alter_record(remedy)
    if remedy.audit:
        return f"fedattack audit {remedy.audit} --out {remedy.audit}"
    commands = run["provenance"].get("commands", ())
    words = _words_of(commands[0]) if commands else []
    if not remedy.settings or not _NAME.fullmatch(preset) or preset not in words:
        return ""
    replaced = {*remedy.settings, *(_DEFENDING if {*remedy.settings} & {*_DEFENDING} else ())}
    # What a command names outside, such as paths, cannot be repeated by a stranger.
    kept = _keep_options(words, replaced)
    if any(mark in word for word in kept for mark in ":/\\"):
        return ""
    changes = []
    for key, value in remedy.settings.items():
        changes += ["--set", f"{key}={value}"]
    out = "-".join([preset, *chain.from_iterable(remedy.settings.items())])
    return shlex.join(["fedattack", "audit", preset, "--out", out, *kept, *changes])


def _alter_record(remedy: Remedy) -> str:
    """Return the command that tries a remedy on copies of a record; empty if that takes another training."""
    strength = remedy.settings.get("defence-strength", "")
    if remedy.way == _SECAGG:
        return "fedattack what-if DIR --secagg --out what-if"
    if remedy.way == "dp-gaussian":
        return f"fedattack what-if DIR --noise {strength} --out what-if-noise"
    if remedy.way == "sparsify":
        # The strength is the share of entries that are set to 0.
        return f"fedattack what-if DIR --keep {1 - float(strength):g} --out what-if-keep"
    return ""


def _words_of(command: str) -> list[str]:
    # A command may have been typed with quotes that do not match.
    try:
        return shlex.split(command)
    except ValueError:
        return []


def _keep_options(words: Sequence[str], replaced: Collection[str]) -> list[str]:
    """Return the options of a command that its repetition has, too, without the settings that are replaced."""
    kept = []
    flat: list[str] = []
    for word in words:
        name, separator, value = word.partition("=")
        flat += [name, value] if separator and name in _KEPT else [word]
    # A flag without a value is followed by the next option, which is then no pair of ours.
    for option, value in pairwise(flat):
        if option in _KEPT and not (option == "--set" and value.partition("=")[0] in replaced):
            kept += [option, value]
    return kept
