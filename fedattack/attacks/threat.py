"""What a threat is: one question that a server may ask, and where its parts are."""

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from fedattack.base.errors import ConfigError, short

ADAPTIVE = "-adaptive"
"""How the name of a metric ends whose attacker knows of the clients' defence."""


@dataclass(frozen=True, kw_only=True)
class Threat:
    """One question that a server may ask of its clients.

    A folder declares its threat in ``__init__.py`` as ``THREAT``. Each part is named by where it is in that folder,
    ``module:Name``, and imported only when it is needed: most of them need torch. Presets of its own may lie in the
    folder ``presets``.

    Attributes
    ----------
    package
        The folder's name as a package, ``__name__`` where it declares its threat.
    name
        Name of letters a-z, digits and hyphens.
    question
        The question, in one sentence.
    attacks
        By the attack's name, a subclass of :class:`fedattack.attacks.base.Attack`.
    judges
        By the attack's name, a subclass of :class:`fedattack.audit.judge.Judge`. An attack without a judge is a
        baseline of others.
    options
        By the attack's name, the class that declares it: title, paper, needs and options. The attack is a subclass of
        it. It is imported without torch, so that a listing is quick and a wrong option is refused at once. An attack
        that is not named is looked at itself.
    section
        A :class:`fedattack.report.section.Section`; empty if titles and common figures are enough.
    """

    package: str
    name: str
    question: str
    attacks: Mapping[str, str]
    judges: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    section: str = ""

    def load(self, part: str) -> Any:
        """Import a part, such as ``sia:SourceInference``.

        Raises
        ------
        ConfigError
            If it is a part of another package, which may fail in any way.
        """
        where = f"{self.package}.{part}"
        try:
            return pkgutil.resolve_name(where)
        except Exception as cause:
            if self.built_in:
                raise
            raise ConfigError(f"{where} cannot be loaded: {short(str(cause), 200)}") from None

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
