"""Change what fedattack has written and sealed, as whoever owns a folder may do by hand."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedattack.base.files import write_sealed


def unsealed(path: Path) -> dict[str, Any]:
    """Read a JSON object without its checksum, and without those of the files beside it."""
    value = json.loads(path.read_text(encoding="utf-8"))
    return {key: item for key, item in value.items() if key not in ("check", "files")}


def edit(path: Path, change: Callable[[dict[str, Any]], None] | Mapping[str, Any]) -> None:
    """Change an object, by a function or with new values, and seal it again, without the checksums of other files."""
    value = unsealed(path)
    if callable(change):
        change(value)
    else:
        value |= change
    write_sealed(path, value)
