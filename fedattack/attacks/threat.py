"""What a threat is: one question that a server may ask, and what belongs to it."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedattack.attacks.options import Options
from fedattack.base.errors import ConfigError, short
from fedattack.base.imports import importing

if TYPE_CHECKING:
    from fedattack.attacks.base import Attack
    from fedattack.attacks.held_examples import HeldByClients
    from fedattack.record import Record
    from fedattack.record.format import Arrays

ADAPTIVE = "-adaptive"
"""How the name of a metric ends whose attacker knows of the clients' defence."""


class Threat(ABC):
    """One question that a server may ask of its clients.

    A folder declares its threat in ``__init__.py`` as ``THREAT``, one of a subclass. What it states is there without
    torch, so that a listing is quick and a wrong option is refused at once. Its methods import the rest, when somebody
    asks for it. Presets of its own may lie in the folder ``presets``.

    Attributes
    ----------
    name
        Name of letters a-z, digits and hyphens.
    question
        The question, in one sentence.
    options
        What declares each of its attacks.
    """

    name: ClassVar[str]
    question: ClassVar[str]
    options: ClassVar[tuple[type[Options], ...]]

    @abstractmethod
    def load_attacks(self) -> tuple[type["Attack"], ...]:
        """Import the attacks."""

    @abstractmethod
    def load_judges(self) -> Mapping[str, type[Any]]:
        """Import a subclass of :class:`fedattack.audit.judge.Judge` by the name of each attack that is no baseline."""

    def load_section(self) -> Any:
        """Import a :class:`fedattack.report.section.Section`; ``None`` if titles and common figures are enough."""
        return None

    def find_truth(self, held: "HeldByClients") -> "Arrays | None":
        """Return what its judges ask for in what clients hold, besides the usual truth; ``None`` if there is nothing.

        Presets ask before the run, and audits of apps after it. It is what ``Truth.answers`` has by the threat's name.
        """
        return None

    def find_content(self, record: "Record") -> str:
        """Say what replies hold in the place of a model's arrays, if this threat is about that; empty for arrays."""
        return ""

    def find_judge(self, attack: str) -> type[Any] | None:
        """Import what judges one of its attacks; ``None`` for a baseline.

        Raises
        ------
        ConfigError
            If that cannot be imported, and is of another package.
        """
        if attack not in self.judged:
            return None
        with self.contained("load its judges"), importing():
            return self.load_judges()[attack]

    @contextmanager
    def contained(self, task: str) -> Iterator[None]:
        """Raise a ConfigError that says what another package cannot do: its code may fail in any way."""
        try:
            yield
        except Exception as cause:
            # A fault of this package's own is to be seen with its traceback.
            if self.built_in:
                raise
            raise ConfigError(f"{self.package} cannot {task}: {short(str(cause), 200)}") from None

    @property
    def attacks(self) -> tuple[str, ...]:
        """Names of its attacks."""
        return tuple(options.name for options in self.options)

    @property
    def judged(self) -> tuple[str, ...]:
        """Names of its attacks that have a judge; the others are baselines of these."""
        return tuple(options.name for options in self.options if not options.is_baseline)

    @property
    def package(self) -> str:
        """The folder's name as a package."""
        module = sys.modules[type(self).__module__]
        return module.__package__ or module.__name__

    @property
    def built_in(self) -> bool:
        """Whether it is one of this package's own."""
        return self.package.startswith("fedattack.")

    @property
    def presets(self) -> list[Path]:
        """Files of the presets in the folder."""
        return sorted((self._folder / "presets").glob("*.toml"))

    def read_text(self, name: str) -> str:
        """Read a file of the folder; empty where there is none."""
        file = self._folder / name
        if not file.exists():
            return ""
        return file.read_text(encoding="utf-8")

    @property
    def _folder(self) -> Path:
        return Path(str(resources.files(self.package)))
