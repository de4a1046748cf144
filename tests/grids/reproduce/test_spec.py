"""The reproductions that come with fedattack say what their papers say."""

import re
from pathlib import Path

import pytest

from fedattack.base.errors import ConfigError
from fedattack.grids.cell import Stated, write_value
from fedattack.grids.reproduce.spec import Reproduction, load_reproduction, reproduction_names
from fedattack.runs.pipeline import choose_attacks
from fedattack.runs.presets import load_preset, preset_names
from fedattack.runs.settings import load_settings

PAPERS = Path(__file__).parents[4] / "shared" / "papers"
PAPER = PAPERS / "sia.txt"

SPEC = """
title = "t"
paper = "p"
about = "a"
columns = ["who", "dataset", "alpha"]
[[numbers]]
name = "asr"
title = "rate"
finding = "sia.asr"
[figure]
kind = "points"
panels = ["dataset"]
y = "asr"
[[groups]]
preset = "quickstart"
place = { who = "us" }
settings = { rounds = 2 }
grid = { dataset = ["digits", "synthetic"], alpha = [1.0, 0.1] }
with.synthetic = { lr = 0.5 }
paper.asr = { digits = "12.5±0.5 | –" }
"""


@pytest.fixture
def read(tmp_path):
    def of(text: str, name: str = "some") -> Reproduction:
        (tmp_path / f"{name}.toml").write_text(text)
        return Reproduction.read(tmp_path / f"{name}.toml")

    return of


def test_a_grid_is_every_combination_in_order(read):
    what = read(SPEC)
    assert [tuple(cell.place.values()) for cell in what.cells] == [
        ("us", "digits", 1.0),
        ("us", "digits", 0.1),
        ("us", "synthetic", 1.0),
        ("us", "synthetic", 0.1),
    ]
    assert what.cells[0].settings == {"rounds": 2, "dataset": "digits", "alpha": 1.0}
    assert what.cells[2].settings == {"rounds": 2, "dataset": "synthetic", "alpha": 1.0, "lr": 0.5}
    assert what.cells[0].paper == {"asr": Stated(0.125, 0.005)}
    assert what.cells[1].paper == what.cells[2].paper == {}
    assert what.cells[3].name == "quickstart_synthetic_alpha-0.1_lr-0.5_rounds-2"
    assert what.choices("alpha") == [1.0, 0.1]


def test_options_of_attacks_are_part_of_the_grid_and_of_a_cell_s_name(read):
    text = SPEC.replace('columns = ["who", "dataset", "alpha"]', 'columns = ["dataset", "alpha", "updates"]')
    text = text.replace("alpha = [1.0, 0.1] }", 'alpha = [1.0], "--updates" = ["pre1", "last5"] }')
    what = read(text)
    assert [cell.options for cell in what.cells] == [{"updates": "pre1"}, {"updates": "last5"}] * 2
    assert [cell.place["updates"] for cell in what.cells] == ["pre1", "last5"] * 2
    assert not any("--updates" in cell.settings for cell in what.cells)
    assert len({cell.name for cell in what.cells}) == 4


def test_rows_are_sorted_by_columns_not_by_groups(read):
    group = SPEC[SPEC.index("[[groups]]") :]
    other = (
        group.replace("rounds = 2", "rounds = 3")
        .replace("[1.0, 0.1]", "[0.1, 5.0]")
        .replace("digits = ", "synthetic = ")
    )
    what = read(SPEC + other)
    assert [(cell.place["dataset"], cell.place["alpha"], cell.settings["rounds"]) for cell in what.cells] == [
        (dataset, alpha, rounds)
        for dataset in ("digits", "synthetic")
        for alpha, rounds in ((1.0, 2), (0.1, 2), (0.1, 3), (5.0, 3))
    ]


def test_cells_are_taken_over_from_another_table(read):
    read(SPEC, "first")
    head = SPEC[: SPEC.index("[[groups]]")].replace('"who", ', "")
    second = read(head + '[[like]]\nof = "first"\nwhere = { alpha = [1.0] }', "second")
    assert [dict(cell.place) for cell in second.cells] == [
        {"dataset": "digits", "alpha": 1.0},
        {"dataset": "synthetic", "alpha": 1.0},
    ]
    assert second.cells[0].paper == {"asr": Stated(0.125, 0.005)}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("12.5±0.5 | –", "12.5", "are 1; expected 2"),
        ("12.5±0.5", "12.5+0.5", "expected mean±sd"),
        ('digits = "12.5±0.5', 'mnist = "12.5±0.5', "'mnist' is none of the values digits, synthetic"),
        ("with.synthetic", "with.nothing", "'nothing' is none of the values"),
        ('finding = "sia.asr"', 'finding = "sia.asr"\ncurve = "accuracy"', "needs one of finding, curve and fact"),
        ('place = { who = "us" }', 'plaice = { who = "us" }', "unknown keys plaice"),
        ('title = "t"\n', "", "title"),
        ('columns = ["', 'columns = "[', "is not a reproduction"),
    ],
)
def test_a_damaged_file_is_named(read, old, new, message):
    assert old in SPEC
    with pytest.raises(ConfigError, match=r"some\.toml is not a reproduction") as caught:
        read(SPEC.replace(old, new, 1))
    assert message in str(caught.value)


def test_an_unknown_name_is_refused():
    with pytest.raises(ConfigError, match="unknown reproduction 'sia-table9': did you mean sia-table"):
        load_reproduction("sia-table9")


@pytest.mark.parametrize("name", reproduction_names())
def test_those_that_come_along_are_whole(name):
    what = load_reproduction(name)
    assert len({cell.name for cell in what.cells}) == len(what.cells), "two cells would share a folder"
    assert len({tuple(cell.place.values()) for cell in what.cells}) == len(what.cells)
    assert what.figure.y in what.numbers
    assert {*what.figure.panels, *filter(None, [what.figure.lines])} <= {*what.columns}
    assert what.figure.x in {"", *what.numbers, *what.columns}
    assert any(cell.paper for cell in what.cells) or "no numbers" in what.about
    for number in what.numbers.values():
        assert not number.finding or re.fullmatch(r"[a-z-]+\.[a-z0-9-]+", number.finding)


@pytest.mark.parametrize("name", [name for name in reproduction_names() if name.startswith("sia-fig")])
def test_figures_share_the_runs_of_table_3(name):
    table = {cell.name for cell in load_reproduction("sia-table3").cells}
    assert {cell.name for cell in load_reproduction(name).cells} <= table


@pytest.mark.parametrize("name", reproduction_names())
def test_settings_are_known(name):
    known = load_settings()
    cells = [cell for cell in load_reproduction(name).cells if cell.preset in preset_names()]
    assert cells
    for cell in cells:
        for key, value in cell.settings.items():
            known[key].parse(write_value(value))
        choose_attacks(load_preset(cell.preset).attacks, cell.options)


PRINTED = re.compile(r"(\d+\.\d)±(\d+\.\d)plus-or-minus")
DATASETS = {"Synthetic": "synthetic", "Purchase": "purchase", "MNIST": "mnist", "CIFAR-10": "cifar10"}
DATASETS |= {"FEMNIST": "femnist", "CIFAR-100": "cifar100"}


def needs_the_paper(test):
    there = pytest.mark.skipif(not PAPER.exists(), reason="needs the paper's text in the project's shared folder")
    return pytest.mark.shared(there(test))


def printed(table: str) -> dict[tuple[str, str], tuple[list[Stated], str]]:
    """Numbers of a table of the paper's text by framework and dataset, with the end of each line."""
    lines = PAPER.read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"TABLE {table}:"))
    found, framework = {}, ""
    for line in lines[start:]:
        match = re.match(r"(?:(Fed\w+)-SIA )?([A-Z][\w-]+) (?=\d+\.\d±)", line)
        if match:
            framework = (match[1] or framework).lower()
            numbers = [Stated(float(mean) / 100, float(sd) / 100) for mean, sd in PRINTED.findall(line)]
            found[framework, DATASETS[match[2]]] = (numbers, line.split()[-1])
        elif found and not line.strip():
            break
    return found


@needs_the_paper
def test_table_3_states_what_the_paper_prints():
    rows = printed("III")
    assert len(rows) == 10
    stated: dict[tuple[str, str], list[Stated]] = {}
    for cell in load_reproduction("sia-table3").cells:
        if cell.paper:
            place = (str(cell.place["framework"]), str(cell.place["dataset"]))
            stated.setdefault(place, []).append(cell.paper["asr-best-round"])
    # Both in the order of the table: α = 100, 1, 0.1, in each E = 1, 5, 10.
    assert stated == {place: numbers for place, (numbers, _) in rows.items()}
    assert sum(map(len, stated.values())) == 66


@needs_the_paper
def test_table_4_states_what_the_paper_prints():
    rows = printed("IV")
    assert len(rows) == 10
    measures = ("training", "testing", "asr-best-round")
    cells = {
        (cell.place["framework"], cell.place["dataset"], cell.place["dp"]): cell.paper
        for cell in load_reproduction("sia-table4").cells
        if cell.paper
    }
    assert len(cells) == 20
    for (framework, dataset), (numbers, last) in rows.items():
        without, under = cells[framework, dataset, "none"], cells[framework, dataset, "paper"]
        assert [without[name] for name in measures] + [under[name] for name in measures] == numbers
        assert under["epsilon"] == Stated(float(last), None)


# What a row of a table is called in the paper, by table and our number; the cells are in the order of the row.
ROWS = {
    ("3", "accuracy"): "Our",
    ("3", "l2"): "L2-BFGS",
    ("3", "public100"): "public100",
    ("3", "public1000"): "public1000",
    ("3", "stats"): "stats",
}
SPLIT = {
    "6": ("batch-size", {8: "B=8", 32: "B=32", 0: "B=|Dv|"}),
    "7": ("updates", {name: name for name in ("pre1", "pre2", "pre5", "gap10", "last5")}),
    "9": ("hidden", {128: "128", 1024: "1024"}),
    "12": ("batch-size", {8: "B=8", 32: "B=32", 0: "B=|Dv|"}),
}


def ara_row(table: str, start: str) -> list[float]:
    """Numbers of a row of a table of Lyu & Chen 2021, of whose last columns Location's are."""
    lines = (PAPERS / "ara_cos_matching.txt").read_text(encoding="utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(f"Table {table}:"))
    after = [i for i, line in enumerate(lines) if i > first and (not line.strip() or line.startswith("Table "))]
    (line,) = [line for line in lines[first : after[0]] if line.startswith((f"{start} ", f"{start}subscript"))]
    return [float(number) for number in re.findall(r"(?<= )[01]\.\d+", line)]


@needs_the_paper
@pytest.mark.parametrize(("table", "number"), ROWS, ids=" ".join)
def test_tables_of_gradient_matching_state_what_the_paper_prints(table, number):
    cells = load_reproduction(f"ara-table{table}").cells
    assert [cell.paper[number].mean for cell in cells] == pytest.approx(ara_row(table, ROWS[table, number]))


@needs_the_paper
@pytest.mark.parametrize("table", SPLIT)
def test_tables_of_hard_settings_state_what_the_paper_prints(table):
    column, rows = SPLIT[table]
    cells = load_reproduction(f"ara-table{table}").cells
    for value, row in rows.items():
        stated = [cell.paper["accuracy"].mean for cell in cells if cell.place[column] == value]
        assert stated == pytest.approx(ara_row(table, row)[-len(stated) :]), row


@needs_the_paper
def test_the_table_of_membership_states_what_the_paper_prints():
    cells = load_reproduction("ara-table11").cells
    for value, row in SPLIT["12"][1].items():
        by_size = [
            [
                cell.paper["membership"].mean
                for cell in cells
                if cell.place["batch-size"] == value and cell.place[key] == n
            ]
            for key, n in [("records-per-client", count) for count in (50, 100, 300)]
        ]
        assert [mean for pair in by_size for mean in pair] == pytest.approx(ara_row("11", row)), row
