"""A reproduction's results as Markdown: ours beside the paper's."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar

from fedattack.audit.finding import PROPORTION
from fedattack.grids.reproduce.spec import Number, Reproduction, shown
from fedattack.report.words import NOTHING, level, markdown, markdown_table

T = TypeVar("T")
K = TypeVar("K")


def to_markdown(what: Reproduction, results: Mapping[str, Any], *, picture: bool) -> str:
    """Write results of :func:`fedattack.grids.reproduce.engine.reproduce`; `picture`: there is a ``NAME.svg``."""
    done = done_cells(results)
    blocks = [f"# {markdown(what.title)}", markdown(f"{what.paper}. {what.about}")]
    if results["changes"]:
        changes = ", ".join(results["changes"])
        blocks.append(f"**Departs from the paper's setting in: {markdown(changes)}.**")
    if done:
        blocks += [_table(what, done), _legend(done)]
    if picture:
        blocks.append(f"![{markdown(what.title)}]({what.name}.svg)")
    lacking = grouped(lacking_cells(results), itemgetter("reason"))
    if lacking:
        blocks.append("Not there:\n")
        for reason, entries in lacking.items():
            blocks[-1] += f"\n- {_describe_missing(what, reason, entries)}"
    words = f"fedattack {results['fedattack']}"
    if done:
        words += "; the second command makes the first cell alone"
    blocks.append(f"{words}:\n\n{commands_block(results)}")
    return "\n\n".join(blocks) + "\n"


def done_cells(results: Mapping[str, Any]) -> list[Any]:
    """Return the cells of a study that were run and judged."""
    return [entry for entry in results["cells"] if entry["state"] == "done"]


def lacking_cells(results: Mapping[str, Any]) -> list[Any]:
    """Return the others."""
    return [entry for entry in results["cells"] if entry["state"] != "done"]


def commands_of(results: Mapping[str, Any]) -> list[str]:
    """Return the command that makes all, and that of the first cell."""
    return list(map(itemgetter("command"), [results, *done_cells(results)[:1]]))


def commands_block(results: Mapping[str, Any]) -> str:
    """Write these commands as Markdown."""
    return "\n".join(["```", *commands_of(results), "```"])


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Gather items that have the same key, in the order in which they come."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


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
    for name, number in what.numbers.items():
        title = f"{number.title} (%)" if number.units == PROPORTION else f"{number.title} {number.units}".rstrip()
        with_paper = any(entry["numbers"][name]["paper"] for entry in done)
        header += [f"paper, {title}", f"ours, {title}", "difference"] if with_paper else [f"ours, {title}"]
        for row, entry in zip(rows, done, strict=True):
            ours = entry["numbers"][name]
            texts = [cell_text(number, ours)]
            if with_paper:
                texts = [_paper(number, ours), *texts, _plain(number, ours["difference"], signed=True)]
            row += texts
    first = what.first
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


def _describe_missing(what: Reproduction, reason: str, entries: Sequence[Mapping[str, Any]]) -> str:
    """Name cells that are not there for the same reason by what they have in common."""
    common = []
    for column in what.columns:
        choices = what.choices(column)
        there = {entry["place"][column] for entry in entries}
        values = list(filter(there.__contains__, choices))
        # Of a column of which they have all values there is nothing to say.
        if 0 < len(values) < len(choices):
            common.append(f"{column} {', '.join(map(shown, values))}")
    which = f" ({'; '.join(common)})" if common else ""
    text = f"{len(entries)} {'cell' if len(entries) == 1 else 'cells'}{which}: {reason}"
    # Reasons may have commands in them.
    return markdown(text).replace("\\`", "`")


def _spread(number: Number, mean: float, sd: float | None) -> str:
    return _plain(number, mean) + ("" if sd is None else f" ± {_plain(number, sd)}")


def _plain(number: Number, value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return NOTHING
    text = f"{number.scale * value:+z.1f}" if signed else f"{number.scale * value:.1f}"
    return text.replace("-", "−")
