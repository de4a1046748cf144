"""What clients send, and what reached their server, in words."""

from collections.abc import Mapping
from typing import Any

_FEW = 3

# Names in replies that the terminal lists.
_MOST_READABLE = 5


def sent_kind(row: Mapping[str, Any]) -> str:
    """Return what an array is, with the factor of a difference."""
    if "least" not in row:
        return str(row["kind"])
    least, most = f"{row['least']:.4g}", f"{row['most']:.4g}"
    return f"{row['kind']}: " + " … ".join(dict.fromkeys([least, most]))


def sent_in_short(sent: Mapping[str, Any]) -> str:
    """Name a few arrays of each kind."""
    names: dict[str, list[str]] = {}
    for row in sent["arrays"]:
        arrays = names.setdefault(row["kind"], [])
        if row["array"] not in arrays:
            arrays.append(row["array"])
    said = []
    for kind, arrays in names.items():
        few = ", ".join(arrays[:_FEW])
        if len(arrays) > _FEW:
            few += f" and {len(arrays) - _FEW} more"
        said.append(f"{few}: {kind}")
    text = "; ".join(said)
    if sent["unread"]:
        text += ". No attack can read this"
    return text


def reached_kind(row: Mapping[str, Any]) -> str:
    """Return what stands under a name in replies, with its shape and type."""
    if not row.get("shape"):
        size = ""
    elif row["kind"].startswith("array"):
        size = " × ".join(map(str, row["shape"]))
    else:
        size = f"of {row['shape'][0]:,}"
    return " ".join(filter(None, [row["kind"], size, row.get("dtype", "")]))


def list_readable(run: Mapping[str, Any]) -> list[str]:
    """Say what in replies shows itself without an attack, such as labels and sizes of groups."""
    rows = [row for row in run.get("reached", {}).get("rows", ()) if row["holds"]]
    return [f"replies to {row['type']} hold {row['name']}: {row['holds']}" for row in rows[:_MOST_READABLE]]
