"""What the extras install: ``fedattack[audit]``, which an observed server does not need, and those of trackers."""

import re
from importlib.metadata import PackageNotFoundError, distribution, requires
from importlib.util import find_spec

from fedattack.base.errors import ConfigError

# Lines such as: torch>=2; extra == 'audit'.
_REQUIREMENT = re.compile(r"""([\w.-]+).*;.*extra == ['"]audit['"]""")

# Without it all works but the datasets of images.
_SPARED = "torchvision"

_FEW = 3


def missing() -> list[str]:
    """List the packages of the extra that are not installed; none in a source tree that was never installed."""
    try:
        wanted = requires("fedattack") or []
    except PackageNotFoundError:
        return []
    names = []
    for line in wanted:
        match = _REQUIREMENT.match(line)
        if match and match[1] != _SPARED and not _is_there(match[1]):
            names.append(match[1])
    return sorted(names)


def what_to_install(what: str) -> str:
    """Say in a line that ``what`` lacks the extra, and how it is installed; empty if nothing is missing."""
    names = missing()
    if not names:
        return ""
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return (
        f"{what} needs packages that are not installed ({', '.join(names[:_FEW])}{more}); install them: "
        "pip install 'fedattack[audit]', or in a clone pip install '.[audit]'"
    )


def check_extra(what: str, module: str) -> None:
    """Refuse ``what`` if the extra that is named as its module is not installed.

    Raises
    ------
    ConfigError
        Says how it is installed.
    """
    if find_spec(module) is None:
        raise ConfigError(
            f"{what} needs a package that is not installed ({module}); install it: pip install 'fedattack[{module}]', "
            f"or in a clone pip install '.[{module}]'"
        )


def _is_there(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
