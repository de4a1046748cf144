"""What the page and the terminal say of a change: built from findings, without an attack."""

from dataclasses import replace

import pytest

from fedattack.attacks.threat import ADAPTIVE
from fedattack.audit.finding import CANNOT_TELL, LEAK, NO_EVIDENCE
from fedattack.grids.whatif.alteration import NOTHING, Alteration
from fedattack.grids.whatif.altered import SUMS_ONLY, AlteredCell, list_not_asked
from fedattack.grids.whatif.page import list_glances, list_sentences, write_pages
from fedattack.grids.whatif.summary import list_steps
from fedattack.record.project import ALTERED
from fedattack.report.compare import Run
from tests.report import example

SECAGG = Alteration("secagg")
WHY = "it needs each client's reply, but this server sees only sums"


def headline(name, **changes):
    """A headline of any attack."""
    attack, _, metric = name.partition(".")
    found = next(finding for finding in example.findings() if finding.headline)
    return replace(found, attack=attack, metric=metric, low=None, high=None, seeds=(0,), **changes)


def cell(alteration, *findings, **not_asked):
    facts = example.run()
    facts["setting"][ALTERED] = alteration.label
    reasons = {name.replace("_", "-"): why for name, why in not_asked.items()}
    return AlteredCell(alteration, Run(alteration.name, facts, list(findings)), reasons)


@pytest.fixture
def cells():
    member = {"label": "Members found", "verdict": NO_EVIDENCE}
    owner = headline("sia.asr", label="Owner named, all rounds combined", verdict=LEAK, value=0.296, chance=0.167)
    labels = headline("labels.right", label="Labels counted right", verdict=LEAK, value=0.912, chance=0.891)
    exact = headline("exact.recovered", label="Examples recovered", verdict=LEAK, value=0.008, chance=0.0, n=1437)
    one = {"what": "example", "certain": 1, "right": 1, "clients": 1}
    return [
        cell(NOTHING, owner, labels, exact, headline("membership.tpr", **member)),
        cell(
            SECAGG,
            replace(labels, value=0.852, chance=0.852, verdict=NO_EVIDENCE),
            replace(exact, value=0.001, read_off=one),
            headline("membership-aggregate.tpr", **member),
            sia=WHY,
            membership=WHY,
        ),
    ]


def test_lines_say_what_became_of_each_answer(cells):
    prevented, remains, gone, never = list_sentences(cells)
    assert prevented == (
        "Secure aggregation. Source inference and membership inference on single clients cannot be made any more: the "
        "server sees only sums."
    )
    assert remains == (
        "Secure aggregation. Leaks that remain: Examples recovered (0.8% → 0.1%; 1 example of 1 client is certain, of "
        "1,437)."
    )
    assert gone == (
        "Secure aggregation. Leaks that are not shown any more: Labels counted right (91.2% → 85.2%; guessing gives "
        "85.2%)."
    )
    assert never.startswith("Secure aggregation. No leak is shown, as in the original run: Members found (")


def test_what_cannot_be_told_is_called_no_protection(cells):
    was = cells[0]
    untold = replace(was.findings[1], verdict=CANNOT_TELL)
    paragraph = " ".join(list_sentences([was, cell(SECAGG, untold)]))
    assert "Cannot be told: Labels counted right (91.2%, as before; guessing gives 89.1%)" in paragraph
    assert "not shown any more" not in paragraph


def test_a_leak_of_another_finding_than_the_headline_is_not_called_protection(cells):
    was = cells[0]
    quiet = replace(was.findings[0], verdict=NO_EVIDENCE)
    beside = replace(was.findings[0], metric="beyond", label="Owner named beyond labels", headline=False, value=0.4)
    paragraph = " ".join(list_sentences([was, cell(SECAGG, quiet, beside)]))
    assert "Leaks that remain: Owner named beyond labels (40.0%" in paragraph


def test_an_attack_on_sums_stands_beside_the_one_that_it_replaces(cells):
    tables = {table.caption: table for table in list_glances(cells)}
    assert list(tables) == [
        "sia.asr",
        "labels.right",
        "exact.recovered",
        "membership.tpr; of sums membership-aggregate.tpr",
    ]
    was, after = tables["sia.asr"].rows
    assert was[-1] == "leak shown"
    assert after == ["secure aggregation", "–", "–", "–", SUMS_ONLY]
    header, rows = tables["labels.right"].header, tables["labels.right"].rows
    assert header == ["what if", "result", "chance", "null run", "verdict"]
    assert [row[2] for row in rows] == ["89.1%", "85.2%"]
    assert not list_not_asked(cells), "what sums prevent is said in the table and the sentences"


def test_findings_of_one_run_keep_tables_of_their_own(cells):
    was, after = cells
    both = cell(Alteration("noise", 1.0), *was.findings, headline("membership-aggregate.tpr", verdict=NO_EVIDENCE))
    assert len(list_glances([was, both])) == 5
    knowing = replace(was.findings[3], metric="tpr" + ADAPTIVE)
    told = cell(Alteration("noise", 1.0), *was.findings, knowing)
    captions = [table.caption for table in list_glances([was, told, after])]
    assert "membership.tpr; of sums membership-aggregate.tpr" in captions
    assert "membership.tpr-adaptive" in captions


def test_one_table_of_the_page_has_all_questions(cells):
    results = {"runs": [{"folder": "a"}, {"folder": "b"}], "limits": [], "title": "t", "command": "c"}
    markdown = write_pages(cells, results)["what-if.md"]
    glance = markdown.split("## At a glance")[1].split("##")[0]
    rows = [line for line in glance.splitlines() if line.startswith("| ")]
    assert rows[0] == "| question | what if | result | chance | null run | verdict |"
    assert len(rows) == 2 + 2 * 4
    assert f"| Owner named, all rounds combined | secure aggregation | – | – | – | {SUMS_ONLY} |" in rows


def test_an_attack_that_failed_keeps_its_reason(cells):
    was = cells[0]
    failed = cell(SECAGG, exact="the record is damaged")
    assert list_not_asked([was, failed]) == ["secure aggregation, exact: the record is damaged"]
    table = next(table for table in list_glances([was, failed]) if table.caption == "exact.recovered")
    assert table.rows[1][-1] == "not asked"


def test_a_leak_that_remains_comes_with_what_to_do(cells):
    was = cells[0]
    owner = cell(Alteration("noise", 1.0), was.findings[0])
    (step,) = list_steps([was.run, owner.run])
    assert step.startswith("Owner named: Use secure aggregation.")
    assert not list_steps([was.run, cell(SECAGG, replace(was.findings[0], verdict=NO_EVIDENCE)).run])
