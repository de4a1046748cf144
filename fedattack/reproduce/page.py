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
    done = done_cells(results)
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


def done_cells(results: Mapping[str, Any]) -> list[Any]:
    """Return the cells of a study that were run and judged."""
    return [entry for entry in results["cells"] if entry["state"] == "done"]


def cell_text(number: Number, measured: Mapping[str, Any]) -> str:
    """Write a measured number, such as ``25.0 ± 1.2 (21.3–28.6)``."""
    if measured["value"] is None:
        return NOTHING
    middle = measured["value"] if measured["seed_mean"] is None else measured["seed_mean"]
    text = _spread(number, middle, measured["seed_sd"])
    if measured["low"] is None or measured["high"] is None:
        return text
    return f"{text} ({_plain(number, measured['low'])}–{_plain(number, measured['high'])})"


def _table(what: Reproduction, done: Sequence[Mapping[str, Any]]) -> str:
    header: list[str] = [*what.columns]
    rows: list[list[str]] = []
    for entry in done:
        rows.append([_value(entry, column) for column in what.columns])
    for number in what.numbers:
        title = f"{number.title} (%)" if number.units == PROPORTION else f"{number.title} {number.units}".rstrip()
        measured = [entry["numbers"][number.name] for entry in done]
        with_paper = any(ours["paper"] for ours in measured)
        header += [f"paper, {title}", f"ours, {title}", "difference"] if with_paper else [f"ours, {title}"]
        for row, ours in zip(rows, measured, strict=True):
            texts = [cell_text(number, ours)]
            if with_paper:
                texts = [_paper(number, ours), *texts, _plain(number, ours["difference"], signed=True)]
            row += texts
    first = what.numbers[0]
    header += ["chance", "null", "n", "seeds", "min"]
    for row, entry in zip(rows, done, strict=True):
        ours = entry["numbers"][first.name]
        null = ours["null"]["value"] if ours["null"] else None
        row += [_plain(first, ours["chance"]), _plain(first, null), f"{ours['n']:,}" if ours["n"] else NOTHING]
        row += [str(len(entry["seeds"])), f"{entry['minutes']:.1f}"]
    return markdown_table(header, rows, texts=len(what.columns))


def _paper(number: Number, measured: Mapping[str, Any]) -> str:
    stated = measured["paper"]
    return _spread(number, stated["mean"], stated["sd"]) if stated else NOTHING


def _value(entry: Mapping[str, Any], column: str) -> str:
    """Name a cell's value in a column, and for data what they really were."""
    text = shown(entry["place"][column])
    if column != "dataset":
        return text
    facts = []
    if entry["data"] and entry["data"] != text:
        facts.append(entry["data"])
    if entry["training_records"] is not None:
        facts.append(f"{entry['training_records']:,} training examples")
    return f"{text} ({', '.join(facts)})" if facts else text


def _legend(done: Sequence[Mapping[str, Any]]) -> str:
    levels, corrected = set(), False
    for entry in done:
        for measured in entry["numbers"].values():
            if measured["low"] is not None:
                levels.add(level(measured["level"]))
                corrected = corrected or measured["comparisons"] > 1
    text = "Ours: mean ± sd over seeds"
    if levels:
        wider = ", wider for what was chosen among several after seeing the results" if corrected else ""
        text += f" (interval at {' and '.join(sorted(levels))}{wider})"
    minutes = sum(entry["minutes"] for entry in done)
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
        common = list(filter(None, (_narrowed(what, entries, column) for column in what.columns)))
        which = f" ({'; '.join(common)})" if common else ""
        text = f"{len(entries)} {'cell' if len(entries) == 1 else 'cells'}{which}: {reason}"
        # Reasons may have commands in them.
        lines.append("- " + markdown(text).replace("\\`", "`"))
    return lines


def _narrowed(what: Reproduction, entries: Sequence[Mapping[str, Any]], column: str) -> str:
    """Name the values that some cells have in a column, unless they have all of them."""
    values = {shown(entry["place"][column]) for entry in entries}
    choices = list(map(shown, what.choices(column)))
    names = [choice for choice in choices if choice in values]
    return f"{column} {', '.join(names)}" if 0 < len(names) < len(choices) else ""


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
