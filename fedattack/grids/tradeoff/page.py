"""A trade-off study in words and tables, as Markdown and as one HTML page."""

from collections.abc import Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

from fedattack.audit.finding import PROPORTION, in_units
from fedattack.defences import NONE
from fedattack.grids.reproduce.page import commands_block, commands_of, done_cells, grouped, lacking_cells
from fedattack.grids.reproduce.spec import shown as shown_value
from fedattack.grids.tradeoff.analysis import losses_of, measured_cells
from fedattack.grids.tradeoff.cost import REFERENCE
from fedattack.grids.tradeoff.picture import to_plots
from fedattack.report.html import Table, template
from fedattack.report.words import (
    NOTHING,
    compact,
    level,
    markdown,
    markdown_table,
    printable_all,
    shown,
    with_interval,
)

LITTLE = 0.05
"""Share by which a learning loss may be above that without defence to count as hardly above it."""

_ATTACKERS = {False: "attackers who do not know of the defence", True: "attackers who know of it (adaptive)"}

Results = Mapping[str, Any]


def summarise(results: Results) -> list[str]:
    """Say in plain words what came out."""
    lines = []
    for number, _ in _fronts(results):
        lines += _for_little(results, number)
    for number in results["numbers"]:
        if number["headline"] or number["adaptive"]:
            lines.append(_at_equal_loss(results, number))
    for adaptive, who in _ATTACKERS.items():
        lowest = _mostly_lowest(results, adaptive)
        if lowest:
            lines.append(f"Over more than half of the losses that it reaches, lowest against {who}: {lowest}.")
    for number, front in _fronts(results):
        if front:
            lines.append(
                f"On the Pareto front for {number['name']}, that is no other cell has both less success and less loss "
                f"(by point values; intervals may overlap): {_on_front(results, front)}."
            )
    return lines


def _fronts(results: Results) -> list[tuple[Mapping[str, Any], Sequence[str]]]:
    """Return the numbers that have a Pareto front, each with the cells on it."""
    fronts = results["fronts"]
    return [(number, fronts[number["name"]]) for number in results["numbers"] if number["name"] in fronts]


def sections_of(results: Results) -> list[Table]:
    """Make the tables."""
    done = done_cells(results)
    tables = [_cells(results, done), _attacks(results, done), _comparisons(results)] if done else []
    return list(filter(None, (*tables, _costs(results))))


def lacking(results: Results) -> list[str]:
    """Say in a line which cells are not there, for each defence and reason."""
    lines = []
    for (name, reason), cells in grouped(lacking_cells(results), itemgetter("defence", "reason")).items():
        lines.append(f"{name} {_strengths(cells)}: {reason}")
    return lines


def _strengths(cells: Sequence[Results]) -> str:
    return ", ".join(shown_value(cell["strength"]) for cell in cells)


def to_markdown(results: Results, sections: Sequence[Table], *, pictures: Sequence[str]) -> str:
    """Write the page; `pictures` are the names of the files with figures."""
    blocks = [f"# {markdown(results['title'])}", markdown(_describe_points(results))]
    if results["summary"]:
        blocks.append(_write_list(results["summary"]))
    for picture in pictures:
        blocks.append(f"![{markdown(results['title'])}]({picture})")
    for table in sections:
        blocks += [f"## {table.title}", markdown_table(table.header, table.rows)]
        if table.caption:
            blocks.append(markdown(table.caption))
    absent = lacking(results)
    if absent:
        blocks += ["## Not there", _write_list(absent)]
    blocks.append(f"fedattack {results['fedattack']}:\n\n{commands_block(results)}")
    return "\n\n".join(blocks) + "\n"


def _write_list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {markdown(line)}" for line in lines)


def to_html(results: Results, sections: Sequence[Table]) -> str:
    """Write one self-contained page."""
    clean = printable_all(dict(results))
    return template("tradeoff.html.j2").render(
        title=clean["title"],
        about=_describe_points(clean),
        summary=clean["summary"],
        plots=to_plots(clean),
        tables=sections,
        lacking=lacking(clean),
        commands=commands_of(clean),
    )


def _describe_points(results: Results) -> str:
    text = (
        "Each point is a run of the same preset with one defence at one strength. Learning loss is the global model's "
        "on held-out examples after the last round; success is what the attacks reached in that run, against attackers "
        "who do not know of the defence unless they are called adaptive."
    )
    if results["changes"]:
        text += f" Changed in the preset: {', '.join(results['changes'])}."
    done = done_cells(results)
    if done and losses_of(done).count(None) == len(done):
        text += " There is no model in common that stayed finite, and so no learning loss at which to compare."
    return f"{text} {len(done)} of {len(results['cells'])} cells are there."


def _at_equal_loss(results: Results, number: Mapping[str, Any]) -> str:
    stretches = results["at_equal_loss"][number["name"]]["stretches"]
    what = f"{number['name']} ({number['title']}; {_ATTACKERS[number['adaptive']]})"
    if not stretches:
        return f"{what}: no two defences reach the same learning loss, so that nothing can be compared."
    texts = []
    by_lowest = grouped(stretches, lambda stretch: tuple(stretch["lowest"]))
    for names, group in sorted(by_lowest.items(), key=lambda pair: -_share(pair[1])):
        ranges = ", ".join(map(_range, group))
        texts.append(f"{' and '.join(names)} over {100 * _share(group):.0f}% of that range ({ranges})")
    ends = f"{stretches[0]['low']:.3g} to {stretches[-1]['high']:.3g}"
    measure = "highest error" if number["less_is_worse"] else "lowest success"
    return f"{what}: at equal learning loss, {ends}, the {measure} is that of {'; '.join(texts)}."


def _share(stretches: Sequence[Mapping[str, Any]]) -> float:
    return float(sum(stretch["share"] for stretch in stretches))


def _range(stretch: Mapping[str, Any]) -> str:
    return f"{stretch['low']:.3g}–{stretch['high']:.3g}"


def _mostly_lowest(results: Results, adaptive: bool) -> str:
    """Name the defences that are lowest over more than half of what they reach, and against which attacks."""
    compared: dict[str, list[tuple[str, float]]] = {}
    for number in filter(lambda number: number["adaptive"] == adaptive, results["numbers"]):
        for defence, share in results["at_equal_loss"][number["name"]]["shares"].items():
            compared.setdefault(defence, []).append((number["name"], share))
    texts = []
    for defence, shares in compared.items():
        attacks = [name for name, share in shares if share > 0.5]
        if attacks:
            texts.append(f"{defence} in {len(attacks)} of {len(shares)} ({', '.join(attacks)})")
    if not compared:
        return ""
    return "; ".join([*texts, "no other one"]) if texts else "none"


def _for_little(results: Results, number: Mapping[str, Any]) -> list[str]:
    """Say what each defence leaves an attack with a learning loss that is hardly above that without defence.

    Defences that cost nothing reach no loss at which others could be held against them.
    """
    undefended = grouped(done_cells(results), itemgetter("defence")).get(NONE)
    usual = undefended[0]["loss"]["value"] if undefended else None
    if usual is None:
        return []
    best: dict[str, tuple[float, str]] = {}
    for cell in measured_cells(results, number):
        if cell["defence"] != NONE and cell["loss"]["value"] <= (1 + LITTLE) * usual:
            success = cell["attacks"][number["name"]]["value"]
            left = (-success if number["less_is_worse"] else success, " ".join(_place(cell)))
            best[cell["defence"]] = min(best.get(cell["defence"], left), left)
    if not best:
        return []
    texts = [f"{defence} {in_units(abs(value), number['units'])}" for value, defence in sorted(best.values())]
    return [
        f"{number['name']} ({_ATTACKERS[number['adaptive']]}): with at most {100 * LITTLE:.0f}% more learning loss "
        f"than without defence, each defence at its best leaves {', '.join(texts)} (point values)."
    ]


def _on_front(results: Results, front: Sequence[str]) -> str:
    cells = filter(lambda cell: cell["cell"] in front, results["cells"])
    texts = []
    for name, group in grouped(cells, itemgetter("defence")).items():
        texts.append("no defence" if name == NONE else f"{name} {_strengths(group)}")
    return "; ".join(texts)


def _cells(results: Results, done: Sequence[Results]) -> Table:
    fronts, quality = _fronts(results), results["quality"] or "accuracy"
    units = PROPORTION if quality == "accuracy" else ""
    header = ["defence", "strength", "learning loss", quality]
    for number, _ in fronts:
        header += [number["name"], "Pareto front"]
    header += ["ε promised", "seeds", "min"]
    rows, diverged = [], []
    strengths: dict[str, str] = {}
    for cell in done:
        row = [*_place(cell), with_interval(cell["loss"], ""), with_interval(cell["accuracy"], units)]
        for number, front in fronts:
            row.append(with_interval(cell["attacks"].get(number["name"]), number["units"]))
            row.append("yes" if cell["cell"] in front else "")
        epsilon = "none" if cell["epsilon"] is None else compact(cell["epsilon"])
        rows.append([*row, epsilon, str(len(cell["seeds"])), f"{cell['minutes']:.1f}"])
        if cell["defence"] in results["strengths"]:
            strengths[cell["defence"]] = f"{cell['defence']}: {results['strengths'][cell['defence']]}"
        if cell["diverged"]:
            diverged.append(" ".join(_place(cell)))
    caption = f"{_levels(done)}ε is for the whole run; none: no finite guarantee."
    if strengths:
        caption += f" Strengths: {'; '.join(strengths.values())}."
    if diverged:
        caption += f" Diverged, and so without a learning loss: {', '.join(diverged)}."
    return Table("Cells", caption, header, rows)


def _levels(done: Sequence[Results]) -> str:
    levels = set()
    for cell in done:
        for measured in (cell["loss"], cell["accuracy"], *cell["attacks"].values()):
            if measured.get("low") is not None:
                levels.add(level(measured["level"]))
    return f"In brackets: intervals at {' and '.join(sorted(levels))}. " if levels else ""


def _attacks(results: Results, done: Sequence[Results]) -> Table | None:
    numbers = results["numbers"]
    if not numbers:
        return None
    rows = list(map(_place, done))
    header, chance, null = ["defence", "strength"], ["chance", ""], ["null", ""]
    titles, late = [], []
    for number in numbers:
        name, units = number["name"], number["units"]
        header.append(name)
        for row, cell in zip(rows, done, strict=True):
            row.append(with_interval(cell["attacks"].get(name), units))
        first = done[0]["attacks"].get(name, {})
        chance.append(shown(first.get("chance"), units))
        null.append(shown((first.get("null") or {}).get("value"), units))
        titles.append(f"{name}: {number['title']}")
        if number["selected_after_the_fact"]:
            late.append(name)
    caption = "; ".join(titles)
    caption += ". Chance and null (the same attack where there is nothing to find) are those of the first row."
    if late:
        caption += f" Chosen after seeing the results, with wider intervals for it: {', '.join(late)}."
    return Table("Attacks", caption, header, [*rows, chance, null])


def _comparisons(results: Results) -> Table | None:
    compared = {name: entry for name, entry in results["at_equal_loss"].items() if entry["stretches"]}
    if not compared:
        return None
    defences = list(dict.fromkeys(chain.from_iterable(map(itemgetter("shares"), compared.values()))))
    rows = []
    for number in results["numbers"]:
        if number["name"] in compared:
            shares, stretches = compared[number["name"]]["shares"], compared[number["name"]]["stretches"]
            losses = _range({"low": stretches[0]["low"], "high": stretches[-1]["high"]})
            texts = [f"{100 * shares[name]:.0f}%" if name in shares else NOTHING for name in defences]
            rows.append([number["name"], "yes" if number["adaptive"] else "no", losses, *texts])
    limit = results["limit"]
    worse = f" Losses above {limit:.3g}, that of finding every class alike, are left out." if limit is not None else ""
    return Table(
        "At equal learning loss",
        "Over which share of the learning losses that a defence and another one reach it leaves the attack the least "
        "success; of their logarithms where the largest is more than 20 times the smallest. Success is interpolated "
        f"between neighbouring losses, from the run without defence on, by point values.{worse}",
        ["attack", "adaptive", "losses", *defences],
        rows,
    )


def _costs(results: Results) -> Table | None:
    cost = results["cost"]
    if not cost:
        return None
    if "reason" in cost:
        return Table("Cost", f"Not measured: {cost['reason']}", ["defence"], [])
    rows, refused = [], []
    for name, entry in cost["defences"].items():
        if "reason" in entry:
            refused.append(f" {name} cannot be applied: {entry['reason']}.")
            continue
        spread = f"{_time(entry['seconds'])} ({_time(entry['fastest'])}–{_time(entry['slowest'])})"
        ratios = [shown(entry.get("ratio"), ""), shown(entry.get("client_ratio"), "")]
        row = [name, shown_value(entry["strength"]), spread, *ratios, _memory(entry["memory"]), str(entry["turns"])]
        rows.append(row)
    records = "1 example" if cost["records"] == 1 else f"{cost['records']:,} examples"
    return Table(
        "Cost",
        f"Of applying each once to an update of {cost['entries']:,} entries that a client of {records} "
        f"computed (its training took {_time(cost['training']['seconds'])}): median time (fastest–slowest), "
        f"measured in turn in one process on one CPU, its ratio to {REFERENCE}, that of training and defence together "
        "(as in Table 1 of Cui et al. 2023), and the most memory needed beyond what was there, to a page. "
        "DP-SGD's are those of a training with it beyond one without." + "".join(refused),
        ["defence", "strength", "time", f"ratio to {REFERENCE}", "with training", "memory", "turns"],
        rows,
    )


def _place(cell: Results) -> list[str]:
    return [cell["defence"], shown_value(cell["strength"])]


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if abs(seconds) >= 1 else f"{1000 * seconds:.3g} ms"


def _memory(size: int | None) -> str:
    return NOTHING if size is None else f"{size / 1e6:.1f} MB"
