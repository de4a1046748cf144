"""A reproduction's results as Markdown: ours beside the paper's."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedattack.audit.finding import PROPORTION
from fedattack.report.words import NOTHING, level, markdown, markdown_table
from fedattack.reproduce.spec import Number, Reproduction, shown


def to_markdown(what: Reproduction, results: Mapping[str, Any], *, picture: bool) -> str:
    """Write results as :func:`fedattack.reproduce.engine.reproduce` gives them.

    Parameters
    ----------
    what
        The reproduction.
    results
        What its JSON file holds.
    picture
        Whether there is a ``NAME.svg`` to show.
    """
    done = [entry for entry in results["cells"] if entry["state"] == "done"]
    blocks = [f"# {markdown(what.title)}", markdown(f"{what.paper}. {what.about}")]
    if results["changes"]:
        changes = ", ".join(results["changes"])
        blocks.append(f"**Departs from the paper's setting in: {markdown(changes)}.**")
    if done:
        blocks += [_table(what, done), _legend(done)]
    if picture:
        blocks.append(f"![{markdown(what.title)}]({what.name}.svg)")
    lacking = _lacking(what, results["cells"])
    if lacking:
        blocks.append("Not there:\n\n" + "\n".join(lacking))
    blocks.append(_commands(results, done))
    return "\n\n".join(blocks) + "\n"


def cell_text(number: Number, found: Mapping[str, Any]) -> str:
    """Write a measured number, such as ``25.0 ± 1.2 (21.3–28.6)``."""
    if found["value"] is None:
        return NOTHING
    middle = found["value"] if found["seed_mean"] is None else found["seed_mean"]
    text = _spread(number, middle, found["seed_sd"])
    if found["low"] is None or found["high"] is None:
        return text
    return f"{text} ({_plain(number, found['low'])}–{_plain(number, found['high'])})"


def _table(what: Reproduction, done: Sequence[Mapping[str, Any]]) -> str:
    header, texts = [*what.columns], [[_place(entry, column) for column in what.columns] for entry in done]
    for number in what.numbers:
        found = [entry["numbers"][number.name] for entry in done]
        title = f"{number.title} (%)" if number.units == PROPORTION else f"{number.title} {number.units}".rstrip()
        columns = {f"ours, {title}": [cell_text(number, item) for item in found]}
        if any(item["paper"] for item in found):
            paper = [
                _spread(number, item["paper"]["mean"], item["paper"]["sd"]) if item["paper"] else "" for item in found
            ]
            columns = {
                f"paper, {title}": paper,
                **columns,
                "difference": [_plain(number, item["difference"], signed=True) for item in found],
            }
        for name, column in columns.items():
            header.append(name)
            for row, text in zip(texts, column, strict=True):
                row.append(text or NOTHING)
    first = what.numbers[0]
    header += ["chance", "null", "n", "seeds", "min"]
    for row, entry in zip(texts, done, strict=True):
        found = entry["numbers"][first.name]
        null = found["null"]["value"] if found["null"] else None
        row += [_plain(first, found["chance"]), _plain(first, null), f"{found['n']:,}" if found["n"] else NOTHING]
        row += [str(len(entry["seeds"])), f"{entry['minutes']:.1f}"]
    return markdown_table(header, texts, texts=len(what.columns))


def _place(entry: Mapping[str, Any], column: str) -> str:
    """Name a cell's place in a column, and for data what they really were."""
    text = shown(entry["place"][column])
    if column != "dataset":
        return text
    records = f"{entry['training_records']:,} training records" if entry["training_records"] is not None else ""
    facts = [fact for fact in (entry["data"] if entry["data"] != text else "", records) if fact]
    return f"{text} ({', '.join(facts)})" if facts else text


def _legend(done: Sequence[Mapping[str, Any]]) -> str:
    found = [item for entry in done for item in entry["numbers"].values() if item["low"] is not None]
    levels = " and ".join(sorted({level(item["level"]) for item in found}))
    minutes = sum(entry["minutes"] for entry in done)
    text = f"Ours: mean ± sd over seeds (interval at {levels}" if found else "Ours: mean ± sd over seeds"
    if found:
        chosen = any(item["comparisons"] > 1 for item in found)
        text += ", wider for what was chosen among several after seeing the results)" if chosen else ")"
    return (
        f"{text}. Difference: ours less the paper's. Null: the same attack where there is nothing to find. "
        f"{len(done)} cells took {minutes:.0f} minutes."
    )


def _lacking(what: Reproduction, cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name the cells that are not there, by reason, and by what they have in common."""
    reasons: dict[str, list[Mapping[str, Any]]] = {}
    for entry in cells:
        if entry["state"] != "done":
            reasons.setdefault(entry["reason"], []).append(entry)
    lines = []
    for reason, entries in reasons.items():
        there = {column: {shown(entry["place"][column]) for entry in entries} for column in what.columns}
        told = [
            f"{column} {', '.join(names)}"
            for column in what.columns
            if (names := [shown(value) for value in what.choices(column) if shown(value) in there[column]])
            and len(names) < len(what.choices(column))
        ]
        which = f" ({'; '.join(told)})" if told else ""
        text = f"{len(entries)} {'cell' if len(entries) == 1 else 'cells'}{which}: {reason}"
        # Reasons may have commands in them.
        lines.append("- " + markdown(text).replace("\\`", "`"))
    return lines


def _commands(results: Mapping[str, Any], done: Sequence[Mapping[str, Any]]) -> str:
    lines = [results["command"]]
    words = f"fedattack {results['fedattack']}"
    if done:
        lines.append(done[0]["command"])
        words += "; the second command makes the first cell alone"
    return f"{words}:\n\n```\n" + "\n".join(lines) + "\n```"


def _spread(number: Number, mean: float, sd: float | None) -> str:
    return _plain(number, mean) + ("" if sd is None else f" ± {_plain(number, sd)}")


def _plain(number: Number, value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return NOTHING
    text = f"{number.scale * value:+z.1f}" if signed else f"{number.scale * value:.1f}"
    return text.replace("-", "−")
