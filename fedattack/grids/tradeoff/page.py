"""A trade-off study in words and tables, as Markdown and as one HTML page."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedattack.audit.finding import PROPORTION, in_units
from fedattack.defences import NONE
from fedattack.grids.cell import group_by, write_value
from fedattack.grids.page import Results, list_commands, list_done, name_levels
from fedattack.grids.tradeoff.analysis import losses_of, measured_cells, success_of
from fedattack.grids.tradeoff.cost import REFERENCE
from fedattack.grids.tradeoff.picture import draw_results, list_plots
from fedattack.report.page import Page, Passage
from fedattack.report.section import PageTable
from fedattack.report.words import NOTHING, compact, printable_all, shown, with_interval

LITTLE = 0.05
"""Share by which a learning loss may be above that without defence to count as hardly above it."""

_ATTACKERS = {False: "attackers who do not know of the defence", True: "attackers who know of it (adaptive)"}


def write_pages(results: Results) -> dict[str, str]:
    """Write the page as Markdown and as HTML, and the picture, by the names of the files."""
    name, pages = f"tradeoff-{results['tradeoff']}", {}
    picture = draw_results(results)
    if picture:
        pages[f"{name}.svg"] = picture
    page = make_page(results, picture=next(iter(pages), ""))
    return {**pages, f"{name}.md": page.to_markdown(), f"{name}.html": page.to_html()}


def make_page(results: Results, *, picture: str = "") -> Page:
    """Make the page; `picture` is the file that shows all attacks."""
    clean = printable_all(dict(results))
    passages = [
        Passage("lines", "In short", "summary", clean["summary"]),
        Passage("picture", clean["title"], "", picture),
        Passage("figures", "What each defence costs and buys", "figures", list_plots(clean)),
    ]
    for number, table in enumerate(make_tables(clean), 1):
        passages.append(Passage("table", table.title, f"table-{number}", table))
    passages.append(Passage("lines", "Not there", "lacking", describe_lacking(clean)))
    departure = ""
    if clean["changes"]:
        departure = f"Changed in the preset: {', '.join(clean['changes'])}."
    return Page(
        kind="Trade-off study",
        title=clean["title"],
        about=_describe_points(clean),
        passages=passages,
        commands=list_commands(clean),
        version=clean["fedattack"],
        departure=departure,
    )


def summarise(results: Results) -> list[str]:
    """Say in plain words what came out."""
    lines = []
    for number, _ in _list_fronts(results):
        lines += _describe_cheapest(results, number)
    for number in results["numbers"]:
        if number["headline"] or number["adaptive"]:
            lines.append(_compare_at_equal_loss(results, number))
    for number, front in _list_fronts(results):
        if front:
            lines.append(
                f"On the Pareto front for {number['name']}, that is no other cell has both less success and less loss "
                f"(by point values; intervals may overlap): {_describe_front(results, front)}."
            )
    return lines


def _list_fronts(results: Results) -> list[tuple[Mapping[str, Any], Sequence[str]]]:
    """Return the numbers that have a Pareto front, each with the cells on it."""
    fronts = results["fronts"]
    return [(number, fronts[number["name"]]) for number in results["numbers"] if number["name"] in fronts]


def make_tables(results: Results) -> list[PageTable]:
    """Make the tables."""
    done = list_done(results)
    tables = [_tabulate_costs(results)]
    if done:
        compared = _tabulate_comparisons(results)
        tables = [_tabulate_cells(results, done), _tabulate_attacks(results, done), compared, *tables]
    return list(filter(None, tables))


def describe_lacking(results: Results) -> list[str]:
    """Say in a line which cells are not there, for each defence and reason."""
    lines = []
    by_reason = group_by(list_done(results, done=False), lambda cell: (cell["defence"], cell["reason"]))
    for (name, reason), cells in by_reason.items():
        lines.append(f"{name} {_list_strengths(cells)}: {reason}")
    return lines


def _list_strengths(cells: Sequence[Results]) -> str:
    return ", ".join(write_value(cell["strength"]) for cell in cells)


def _describe_points(results: Results) -> str:
    text = (
        "Each point is a run of the same preset with one defence at one strength, or a different value of one setting. "
        "Learning loss is the global model's on held-out examples after the last round; success is what the attacks "
        "reached in that run, against attackers who do not know of the defence, unless they are called adaptive."
    )
    done = list_done(results)
    if done and losses_of(done).count(None) == len(done):
        text += " There is no model in common that stayed finite, and so no learning loss at which to compare."
    return f"{text} {len(done)} of {len(results['cells'])} cells are there."


def _compare_at_equal_loss(results: Results, number: Mapping[str, Any]) -> str:
    compared = results["at_equal_loss"][number["name"]]
    attack = f"{number['name']} ({number['title']}; {_ATTACKERS[number['adaptive']]})"
    if not compared["losses"]:
        return f"{attack}: no two defences reach the same learning loss, so nothing can be compared."
    shares = sorted(compared["shares"].items(), key=lambda pair: -pair[1])
    texts = [f"{name} over {100 * share:.0f}% of what it reaches" for name, share in shares if share > 0]
    best = "highest error" if number["less_is_worse"] else "lowest success"
    losses = _write_range(compared["losses"])
    return f"{attack}: at equal learning loss, {losses}, the {best} is that of {'; '.join(texts)}."


def _write_range(losses: Sequence[float]) -> str:
    return f"{losses[0]:.3g}–{losses[1]:.3g}"


def _describe_cheapest(results: Results, number: Mapping[str, Any]) -> list[str]:
    """Say what each defence leaves an attack with a learning loss that is hardly above that without defence.

    Defences that cost nothing reach no loss at which others could be held against them.
    """
    best: dict[str, tuple[float, str]] = {}
    most = -math.inf
    for cell in list_done(results):
        if cell["defence"] == NONE and cell["loss"]["value"] is not None:
            # 5 % above the run without defence.
            most = (1 + LITTLE) * cell["loss"]["value"]
    for cell in measured_cells(results, number):
        if cell["defence"] != NONE and cell["loss"]["value"] <= most:
            # Tuples compare by success first.
            left = (success_of(cell, number), " ".join(_write_place(cell)))
            best[cell["defence"]] = min(best.get(cell["defence"], left), left)
    if not best:
        return []
    texts = [f"{defence} {in_units(abs(value), number['units'])}" for value, defence in sorted(best.values())]
    return [
        f"{number['name']} ({_ATTACKERS[number['adaptive']]}): with at most {100 * LITTLE:.0f}% more learning loss "
        f"than without defence, each defence at its best leaves {', '.join(texts)} (point values)."
    ]


def _describe_front(results: Results, front: Sequence[str]) -> str:
    texts = []
    for name, cells in group_by(results["cells"], lambda cell: cell["defence"]).items():
        on_front = [cell for cell in cells if cell["cell"] in front]
        if on_front:
            texts.append({NONE: "no defence"}.get(name, f"{name} {_list_strengths(on_front)}"))
    return "; ".join(texts)


def _tabulate_cells(results: Results, done: Sequence[Results]) -> PageTable:
    fronts, quality, units = _list_fronts(results), results["quality"] or "accuracy", ""
    if quality == "accuracy":
        units = PROPORTION
    header = ["defence", "strength", "learning loss", quality]
    for number, _ in fronts:
        header += [number["name"], "Pareto front"]
    header += ["ε promised", "seeds", "min"]
    rows, diverged, caption = [], [], ""
    strengths: dict[str, str] = {}
    measured: list[Results] = []
    for cell in done:
        measured += [cell["loss"], cell["accuracy"], *cell["attacks"].values()]
        row = [*_write_place(cell), with_interval(cell["loss"], ""), with_interval(cell["accuracy"], units)]
        for number, front in fronts:
            on_front = "yes" if cell["cell"] in front else ""
            row += [with_interval(cell["attacks"].get(number["name"]), number["units"]), on_front]
        epsilon = "none"
        if cell["epsilon"] is not None:
            epsilon = compact(cell["epsilon"])
        rows.append([*row, epsilon, str(len(cell["seeds"])), f"{cell['minutes']:.1f}"])
        if cell["defence"] in results["strengths"]:
            strengths[cell["defence"]] = f"{cell['defence']}: {results['strengths'][cell['defence']]}"
        if cell["diverged"]:
            diverged.append(" ".join(_write_place(cell)))
    if name_levels(measured):
        caption = f"In brackets: intervals at {name_levels(measured)}. "
    caption += "ε is for the whole run; none: no finite guarantee."
    if strengths:
        caption += f" Strengths: {'; '.join(strengths.values())}."
    if diverged:
        caption += f" Diverged, and so without a learning loss: {', '.join(diverged)}."
    return PageTable("Cells", caption, header, rows)


def _tabulate_attacks(results: Results, done: Sequence[Results]) -> PageTable | None:
    if not results["numbers"]:
        return None
    rows = list(map(_write_place, done))
    header, chance, null = ["defence", "strength"], ["chance", ""], ["null", ""]
    titles, late = [], []
    for number in results["numbers"]:
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
    return PageTable("Attacks", caption, header, [*rows, chance, null])


def _tabulate_comparisons(results: Results) -> PageTable | None:
    defences: dict[str, None] = {}
    for compared in results["at_equal_loss"].values():
        defences |= dict.fromkeys(compared["shares"])
    if not defences:
        return None
    rows = []
    for number in results["numbers"]:
        compared = results["at_equal_loss"][number["name"]]
        if compared["losses"]:
            adaptive = "yes" if number["adaptive"] else "no"
            row = [number["name"], adaptive, _write_range(compared["losses"])]
            for name in defences:
                share = compared["shares"].get(name)
                row.append(NOTHING if share is None else f"{100 * share:.0f}%")
            rows.append(row)
    caption = (
        "The share of the learning losses that a defence and another one both reach, over which it leaves the attack "
        "the least success. If the largest loss is more than 20 times the smallest, logarithms of losses count. "
        "Success is interpolated "
        "between neighbouring losses, from the run without defence on, by point values."
    )
    if results["limit"] is not None:
        caption += (
            f" Losses above {results['limit']:.3g}, that of giving every class the same probability, are left out."
        )
    return PageTable("At equal learning loss", caption, ["attack", "adaptive", "losses", *defences], rows)


def _tabulate_costs(results: Results) -> PageTable | None:
    cost = results["cost"]
    if not cost:
        return None
    if "reason" in cost:
        return PageTable("Cost", f"Not measured: {cost['reason']}", ["defence"], [])
    rows, refused = [], []
    for name, entry in cost["defences"].items():
        if "reason" in entry:
            refused.append(f" {name} cannot be applied: {entry['reason']}.")
            continue
        # Median, and the spread over turns.
        spread = f"{_write_time(entry['seconds'])} ({_write_time(entry['fastest'])}–{_write_time(entry['slowest'])})"
        memory = NOTHING
        if entry["memory"] is not None:
            memory = f"{entry['memory'] / 1e6:.1f} MB"
        ratios = [shown(entry.get("ratio"), ""), shown(entry.get("client_ratio"), "")]
        row = [
            name,
            write_value(entry["strength"]),
            spread,
            *ratios,
            memory,
            str(entry["turns"]),
        ]
        rows.append(row)
    records = f"{cost['records']:,} examples"
    if cost["records"] == 1:
        records = "1 example"
    return PageTable(
        "Cost",
        f"Each defence was applied once to an update of {cost['entries']:,} entries that a client of {records} "
        f"computed (its training took {_write_time(cost['training']['seconds'])}). Shown are the median time "
        f"(fastest–slowest), "
        f"measured in turn in one process on one CPU, its ratio to {REFERENCE}, that of training and defence together "
        "(as in Table 1 of Cui et al. 2023), and the most memory needed beyond what was there, to a page. "
        "For DP-SGD they are what training with it takes in addition." + "".join(refused),
        ["defence", "strength", "time", f"ratio to {REFERENCE}", "with training", "memory", "turns"],
        rows,
    )


def _write_place(cell: Results) -> list[str]:
    return [cell["defence"], write_value(cell["strength"])]


def _write_time(seconds: float) -> str:
    return f"{seconds:.3g} s" if abs(seconds) >= 1 else f"{1000 * seconds:.3g} ms"
