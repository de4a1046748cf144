"""A trade-off study in words and tables, as Markdown and as one HTML page."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedattack.audit.finding import PROPORTION, in_units
from fedattack.defences import NONE
from fedattack.report.html import Table, template
from fedattack.report.words import NOTHING, interval, level, markdown, markdown_table, printable_all, shown
from fedattack.reproduce.spec import shown as shown_value
from fedattack.tradeoff.cost import REFERENCE
from fedattack.tradeoff.picture import to_plots

LITTLE = 0.05
"""Share by which a learning loss may be above that without defence to count as hardly above it."""

_ATTACKERS = {False: "attackers who do not know of the defence", True: "attackers who know of it (adaptive)"}

Results = Mapping[str, Any]


def summarise(results: Results) -> list[str]:
    """Say in plain words what came out."""
    numbers = results["numbers"]
    lines = [line for name in results["fronts"] if (line := _for_little(results, name))]
    for number in numbers:
        if number["headline"] or number["adaptive"]:
            lines.append(_at_equal_loss(results, number))
    for adaptive, who in _ATTACKERS.items():
        of = [number["name"] for number in numbers if number["adaptive"] == adaptive]
        if of and (told := _mostly_lowest(results, of)):
            lines.append(f"Over more than half of the losses that it reaches, lowest against {who}: {told}.")
    lines += [
        f"On the Pareto front for {name}, that is no other cell has both less success and less loss (by point values; "
        f"intervals may overlap): {_on_front(results, cells)}."
        for name, cells in results["fronts"].items()
        if cells
    ]
    return lines


def sections_of(results: Results) -> list[Table]:
    """Make the tables."""
    done = [cell for cell in results["cells"] if cell["state"] == "done"]
    tables = [_cells(results, done), _attacks(results, done), _comparisons(results)] if done else []
    return [table for table in (*tables, _costs(results)) if table is not None]


def lacking(results: Results) -> list[str]:
    """Say in a line which cells are not there, for each defence and reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for cell in results["cells"]:
        if cell["state"] != "done":
            reasons.setdefault((cell["defence"], cell["reason"]), []).append(shown_value(cell["strength"]))
    return [f"{name} {', '.join(at)}: {reason}" for (name, reason), at in reasons.items()]


def to_markdown(results: Results, sections: Sequence[Table], *, pictures: Sequence[str]) -> str:
    """Write the page; `pictures` are the names of the files with figures."""
    blocks = [f"# {markdown(results['title'])}", markdown(_about(results))]
    blocks += ["\n".join(f"- {markdown(line)}" for line in results["summary"])] if results["summary"] else []
    blocks += [f"![{markdown(results['title'])}]({picture})" for picture in pictures]
    for table in sections:
        blocks += [f"## {table.title}", markdown_table(table.header, table.rows)]
        blocks += [markdown(table.caption)] if table.caption else []
    if lines := lacking(results):
        blocks += ["## Not there", "\n".join(f"- {markdown(line)}" for line in lines)]
    blocks.append(f"fedattack {results['fedattack']}:\n\n```\n" + "\n".join(_commands(results)) + "\n```")
    return "\n\n".join(blocks) + "\n"


def to_html(results: Results, sections: Sequence[Table]) -> str:
    """Write one self-contained page."""
    clean = printable_all(dict(results))
    return template("tradeoff.html.j2").render(
        title=clean["title"],
        about=_about(clean),
        summary=clean["summary"],
        plots=to_plots(clean),
        tables=sections,
        lacking=lacking(clean),
        commands=_commands(clean),
    )


def _about(results: Results) -> str:
    text = (
        "Each point is a run of the same preset with one defence at one strength. Learning loss is the global model's "
        "on held-out records after the last round; success is what the attacks reached in that run, against attackers "
        "who do not know of the defence unless they are called adaptive."
    )
    if results["changes"]:
        text += f" Changed in the preset: {', '.join(results['changes'])}."
    done = [cell for cell in results["cells"] if cell["state"] == "done"]
    if done and all(cell["loss"]["value"] is None for cell in done):
        text += " There is no model in common that stayed finite, and so no learning loss at which to compare."
    return f"{text} {len(done)} of {len(results['cells'])} cells are there."


def _commands(results: Results) -> list[str]:
    done = [cell for cell in results["cells"] if cell["state"] == "done"]
    return [results["command"], *(cell["command"] for cell in done[:1])]


def _at_equal_loss(results: Results, number: Mapping[str, Any]) -> str:
    stretches = results["at_equal_loss"][number["name"]]["stretches"]
    what = f"{number['name']} ({number['title']}; {_ATTACKERS[number['adaptive']]})"
    if not stretches:
        return f"{what}: no two defences reach the same learning loss, so that nothing can be compared."
    by: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for stretch in stretches:
        by.setdefault(tuple(stretch["lowest"]), []).append(stretch)
    ranked = sorted(by.items(), key=lambda item: -sum(stretch["share"] for stretch in item[1]))
    told = [
        f"{' and '.join(names)} over {100 * sum(stretch['share'] for stretch in own):.0f}% of that range ("
        + ", ".join(f"{stretch['low']:.3g}–{stretch['high']:.3g}" for stretch in own)
        + ")"
        for names, own in ranked
    ]
    ends = f"{stretches[0]['low']:.3g} to {stretches[-1]['high']:.3g}"
    measure = "highest error" if number["less_is_worse"] else "lowest success"
    return f"{what}: at equal learning loss, {ends}, the {measure} is that of {'; '.join(told)}."


def _mostly_lowest(results: Results, names: Sequence[str]) -> str:
    """Name the defences that are lowest over more than half of what they reach, and against which attacks."""
    shares = {name: results["at_equal_loss"][name]["shares"] for name in names}
    told = []
    for defence in dict.fromkeys(defence for own in shares.values() for defence in own):
        beaten = [name for name, own in shares.items() if own.get(defence, 0) > 0.5]
        there = sum(defence in own for own in shares.values())
        if beaten:
            told.append(f"{defence} in {len(beaten)} of {there} ({', '.join(beaten)})")
    others = "no other one" if told else "none"
    return "; ".join([*told, others]) if any(shares.values()) else ""


def _for_little(results: Results, name: str) -> str:
    """Say what each defence leaves an attack with a learning loss that is hardly above that without defence.

    Defences that cost nothing reach no loss at which others could be held against them.
    """
    number = next(item for item in results["numbers"] if item["name"] == name)
    cells = [cell for cell in results["cells"] if cell["state"] == "done" and cell["loss"]["value"] is not None]
    start = next((cell["loss"]["value"] for cell in cells if cell["defence"] == NONE), None)
    best: dict[str, tuple[float, str]] = {}
    for cell in cells:
        found = cell["attacks"].get(name, {}).get("value")
        if found is None or start is None or cell["defence"] == NONE or cell["loss"]["value"] > (1 + LITTLE) * start:
            continue
        left = (-found if number["less_is_worse"] else found, f"{cell['defence']} {shown_value(cell['strength'])}")
        best[cell["defence"]] = min(best.get(cell["defence"], left), left)
    if not best:
        return ""
    told = [f"{who} {in_units(abs(value), number['units'])}" for value, who in sorted(best.values())]
    return (
        f"{name} ({_ATTACKERS[number['adaptive']]}): with at most {100 * LITTLE:.0f}% more learning loss than without "
        f"defence, each defence at its best leaves {', '.join(told)} (point values)."
    )


def _on_front(results: Results, front: Sequence[str]) -> str:
    named: dict[str, list[str]] = {}
    for cell in results["cells"]:
        if cell["cell"] in front:
            named.setdefault(cell["defence"], []).append(shown_value(cell["strength"]))
    return "; ".join("no defence" if name == NONE else f"{name} {', '.join(at)}" for name, at in named.items())


def _cells(results: Results, done: Sequence[Results]) -> Table:
    units = {number["name"]: number["units"] for number in results["numbers"]}
    quality = results["quality"] or "accuracy"
    header = ["defence", "strength", "learning loss", quality]
    header += [title for name in results["fronts"] for title in (name, "Pareto front")]
    header += ["ε promised", "seeds", "min"]
    rows = []
    for cell in done:
        row = [*_place(cell), _measured(cell["loss"], ""), _quality(cell, quality)]
        for name, front in results["fronts"].items():
            row += [_measured(cell["attacks"].get(name), units[name]), "yes" if cell["cell"] in front else ""]
        rows.append([*row, _epsilon(cell["epsilon"]), str(len(cell["seeds"])), f"{cell['minutes']:.1f}"])
    strengths = [
        f"{name}: {results['strengths'][name]}"
        for name in dict.fromkeys(cell["defence"] for cell in done)
        if name in results["strengths"]
    ]
    intervals = _levels(results, done)
    diverged = [" ".join(_place(cell)) for cell in done if cell["diverged"]]
    caption = f"{intervals}ε is for the whole run; none: no finite guarantee."
    caption += f" Strengths: {'; '.join(strengths)}." if strengths else ""
    if diverged:
        caption += f" Diverged, and so without a learning loss: {', '.join(diverged)}."
    return Table("Cells", caption, header, rows)


def _levels(results: Results, done: Sequence[Results]) -> str:
    found = [cell[key] for cell in done for key in ("loss", "accuracy")]
    found += [item for cell in done for item in cell["attacks"].values()]
    known = [item for item in found if item.get("low") is not None]
    levels = " and ".join(sorted({level(item["level"]) for item in known}))
    return f"In brackets: intervals at {levels}. " if levels else ""


def _attacks(results: Results, done: Sequence[Results]) -> Table | None:
    numbers = results["numbers"]
    if not numbers:
        return None
    rows = [
        [*_place(cell), *(_measured(cell["attacks"].get(number["name"]), number["units"]) for number in numbers)]
        for cell in done
    ]
    for title, read in (
        ("chance", lambda found: found["chance"]),
        ("null", lambda found: found["null"] and found["null"]["value"]),
    ):
        first = [done[0]["attacks"].get(number["name"]) for number in numbers]
        texts = [
            shown(read(found), number["units"]) if found else NOTHING
            for number, found in zip(numbers, first, strict=True)
        ]
        rows.append([title, "", *texts])
    what = "; ".join(f"{number['name']}: {number['title']}" for number in numbers)
    late = [number["name"] for number in numbers if number["selected_after_the_fact"]]
    caption = f"{what}. Chance and null (the same attack where there is nothing to find) are those of the first row."
    if late:
        caption += f" Chosen after seeing the results, with wider intervals for it: {', '.join(late)}."
    return Table("Attacks", caption, ["defence", "strength", *(number["name"] for number in numbers)], rows)


def _comparisons(results: Results) -> Table | None:
    compared = {name: found for name, found in results["at_equal_loss"].items() if found["stretches"]}
    if not compared:
        return None
    names = list(dict.fromkeys(name for found in compared.values() for name in found["shares"]))
    knows = {number["name"]: "yes" if number["adaptive"] else "no" for number in results["numbers"]}
    rows = [
        [
            name,
            knows[name],
            f"{found['stretches'][0]['low']:.3g}–{found['stretches'][-1]['high']:.3g}",
            *(f"{100 * found['shares'][kind]:.0f}%" if kind in found["shares"] else NOTHING for kind in names),
        ]
        for name, found in compared.items()
    ]
    limit = results["limit"]
    worse = f" Losses above {limit:.3g}, that of finding every class alike, are left out." if limit is not None else ""
    return Table(
        "At equal learning loss",
        "Over which share of the learning losses that a defence and another one reach it leaves the attack the least "
        "success; of their logarithms where the largest is more than 20 times the smallest. Success is interpolated "
        f"between neighbouring losses, from the run without defence on, by point values.{worse}",
        ["attack", "adaptive", "losses", *names],
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
        ratios = [f"{entry[key]:.3g}" if key in entry else NOTHING for key in ("ratio", "client_ratio")]
        rows.append(
            [name, shown_value(entry["strength"]), spread, *ratios, _memory(entry["memory"]), str(entry["turns"])]
        )
    records = "1 record" if cost["records"] == 1 else f"{cost['records']:,} records"
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


def _measured(found: Mapping[str, Any] | None, units: str) -> str:
    if found is None or found["value"] is None:
        return NOTHING
    ends = interval(found["low"], found["high"], units)
    return in_units(found["value"], units) + (f" ({ends})" if ends != NOTHING else "")


def _quality(cell: Results, quality: str) -> str:
    return _measured(cell["accuracy"], PROPORTION if quality == "accuracy" else "")


def _epsilon(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if abs(seconds) >= 1 else f"{1000 * seconds:.3g} ms"


def _memory(size: int | None) -> str:
    return NOTHING if size is None else f"{size / 1e6:.1f} MB"
