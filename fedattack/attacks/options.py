"""Options of attacks: settings that ``--option KEY=VALUE`` sets, in a model that also declares the attack.

``restarts: int = setting(1, "searches from different starts", ge=1)`` is an option that ``--option restarts=5`` sets.
Nothing here imports torch, so that a listing is quick, and a wrong option is refused at once.
"""

import math
from collections.abc import Callable, Collection, Mapping
from typing import ClassVar, Self

from pydantic import ConfigDict

from fedattack.attacks.needs import InApps, Needs
from fedattack.attacks.replies import choose_rounds
from fedattack.base.errors import ConfigError
from fedattack.base.machine import MEMORY, read_size
from fedattack.base.settings import SettingsModel, setting


class Options(SettingsModel):
    """What declares an attack, and what may be chosen about how it computes: one field an option.

    Attributes
    ----------
    name, title, paper
        What the attack is called by commands and by people, and who described it.
    finds
        The metrics that its judge measures, the headline first; ``*`` stands for what depends on the data. ``None`` if
        only the judge says so, which is then imported where somebody asks.
    needs
        What it needs of a record and of knowledge.
    in_apps
        How it is made where an app is audited.
    is_baseline
        Whether it has no judge: the judges of other attacks of its threat compare these with it.
    """

    # An option is called as its field is.
    model_config = ConfigDict(alias_generator=str)

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    finds: ClassVar[tuple[str, ...] | None] = None
    needs: ClassVar[Needs]
    in_apps: ClassVar[InApps] = InApps()
    is_baseline: ClassVar[bool] = False

    @classmethod
    def shares_work(cls) -> bool:
        """Whether the attack shares its work among processes, and on a cluster."""
        return "workers" in cls.list_settings()

    def choose(self, choices: Mapping[str, str]) -> Self:
        """Return these options with some changed, which are texts by name.

        Raises
        ------
        ConfigError
            If one is unknown or cannot be taken.
        """
        known = self.list_settings()
        changes = {}
        for key, text in choices.items():
            if key not in known:
                raise ConfigError(f"attack {self.name} has no option {key!r}; it has {', '.join(known) or 'none'}")
            try:
                changes[key] = known[key].read(text)
            except ConfigError as cause:
                raise ConfigError(f"option {key}={text}: {cause}") from None
        return self.replace(**changes)


class MemoryOptions(Options):
    """How much memory an attack takes."""

    memory: int = setting(
        MEMORY,
        "memory that a process may use, in addition to the examples and the 0.4 GiB of Python and torch (2GiB)",
        read=read_size,
    )


class WorkersOptions(Options):
    """How many processes share an attack's work on this machine."""

    workers: int = setting(0, "processes; 0 for as many as cores and memory allow", ge=0)


def read_rounds(text: str) -> str:
    """Read which rounds are used; see :func:`fedattack.attacks.replies.choose_rounds`."""
    choose_rounds(text, [])
    return text


def interval_reader(known: Collection[str]) -> Callable[[str], str | tuple[float, float]]:
    """Make what reads two numbers, the first below the second, or one of some words."""
    expected = f"expected {', '.join(known)}, or two numbers, the lower one first, such as 0,1"

    def read(text: str) -> str | tuple[float, float]:
        if text in known:
            return text
        try:
            low, high = map(float, text.split(","))
        except ValueError:
            raise ConfigError(expected) from None
        # Written so that NaN fails each comparison.
        if not -math.inf < low < high < math.inf:
            raise ConfigError(expected)
        return low, high

    return read
