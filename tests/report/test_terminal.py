import io
from dataclasses import replace

import pytest
from rich.console import Console

from fedattack.attacks.registry import THREATS
from fedattack.base.reasons import NOTHING
from fedattack.report import render_summary
from tests.report import example


def printed(findings, run, width=120, *, everything=True, **words):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(render_summary(findings, run, everything=everything, **words))
    return console.file.getvalue()


def test_the_table_shows_every_finding_with_its_numbers():
    text = printed(example.findings(), example.run())
    for words in ("58.1%", "53.6–62.3%", "10.0%", "9.9%", "3,000", "95% interval", "0.412 nats", "0.371–0.455"):
        assert words in text
    verdicts = [line.strip().split("  ")[-1] for line in text.splitlines()]
    assert [verdicts.count(v) for v in ("leak", "no evidence", "not applicable")] == [5, 1, 1]
    assert "sia.asr: leak, 58.1% is above chance (10.0%)" in text
    assert "sia.asr-aggregate: not applicable, the attack needs" in text


def test_numbers_chosen_after_the_fact_are_marked():
    best = next(f for f in example.findings() if f.metric == "asr-best-round")
    assert printed([best], example.run()).count("†") == 2
    assert "†" not in printed([replace(best, selected_after_the_fact=False)], example.run())


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_no_name_is_broken_and_no_line_is_wider_than_the_terminal(width):
    findings = [replace(f, metric=f"{f.metric}-of-a-rather-long-name") for f in example.findings()]
    lines = printed(findings, example.run(), width).splitlines()
    for finding in findings:
        assert sum(line.strip().startswith(finding.name) for line in lines) >= 1
    assert max(map(len, lines)) <= width


def test_a_narrow_terminal_leaves_out_nothing():
    findings = [f for f in example.findings() if f.units == "proportion" and f.null]
    for width in range(100, 60, -1):
        lines = printed(findings, example.run(), width).partition(f"{findings[0].name}: ")[0].splitlines()
        for finding in findings:
            index = next(index for index, line in enumerate(lines) if line.split()[:1] == [finding.name])
            # A name that leaves no room for its numbers stands above them.
            own = lines[index].removesuffix("†")
            if own.strip() == finding.name:
                own += lines[index + 1]
            for number in (f"{finding.value:.1%}", f"{finding.chance:.1%}", f"{finding.null['value']:.1%}"):
                assert number in own, (width, finding.name)
            assert f"{finding.n:,}" in own
            assert finding.verdict in own


def test_an_ordinary_terminal_has_a_line_for_each_finding():
    longest = replace(example.findings()[0], attack="membership", metric="tpr-at-1pct-fpr", verdict="no evidence")
    area = replace(longest, metric="auc", value=0.59, low=0.499, high=0.674, chance=0.5, units="AUC", verdict="leak")
    lines = printed([longest, area], example.run(), 80, everything=False).splitlines()
    table = lines[next(index for index, line in enumerate(lines) if "95% interval" in line) :]
    assert table[1].split()[:2] == [longest.name, "58.1%"]
    assert table[1].endswith("no evidence")
    assert table[2].split()[:4] == [area.name, "0.59", "AUC", "0.499–0.674"]
    columns = [line.index(text) for line, text in zip(table, ("verdict", "no evidence", "leak"), strict=False)]
    assert len(set(columns)) == 1


def test_an_answer_stands_beside_its_question_where_there_is_room():
    question, answer = "Can the server tell which client holds an example?", "Yes: 5.8 times as often as guessing"
    wide, narrow = (printed(example.findings(), example.run(), width).splitlines() for width in (160, 80))
    assert any(line.startswith(f"{question} {answer}") for line in wide)
    assert narrow[narrow.index(question) + 1].startswith(f"  {answer}")


def test_a_leak_whose_interval_reaches_guessing_is_explained():
    finding = replace(example.findings()[0], seeds=[0], low=0.09)
    text = printed([finding], example.run())
    assert "leak ‡" in text
    assert "‡ a leak on these targets" in text
    for other in (replace(finding, low=0.11), replace(finding, verdict="no evidence"), replace(finding, seeds=[0, 1])):
        assert "‡" not in printed([other], example.run())


def test_names_are_neither_markup_nor_terminal_codes():
    finding = replace(example.findings()[0], label="[red]x[/red]\x1b[31m\x07", reason="[bold]y \x9b2J")
    text = printed([finding], {**example.run(), "title": "[blink]t"}, 200)
    assert "[red]x[/red]" in text
    assert "[bold]y" in text
    assert "[blink]t" in text
    assert not set("\x1b\x07\x9b") & set(text)


def test_the_guarantee_of_private_training_is_said_below():
    assert "DP-SGD (noise" not in printed(example.findings(), example.run())
    text = printed(example.findings(), {**example.run(), "privacy": example.privacy()}, 200)
    assert "DP-SGD (noise multiplier σ 0.5, C 1, δ 1e-05): ε 5.55–6.35 a round, 40–1,234 for the whole run" in text
    assert "protects one example of one client" in text


GRADIENTS = "it reads gradients out of updates of SGD, and these clients train by Adam"
BY_SGD = "another run, whose clients train by SGD"
ATTRIBUTE, GROUP, TREES, LABELS = (THREATS[name].question for name in ("attribute", "group", "trees", "labels"))
UNTRIED = [
    {"question": ATTRIBUTE, "why": "the attacker does not know", "remedy": "--sensitive NUMBER, a column of the input"},
    {"question": GROUP, "why": GRADIENTS, "remedy": BY_SGD},
    {"question": TREES, "why": "it needs trees", "remedy": f"{NOTHING}the question is about trees"},
    {"question": LABELS, "why": "nobody asked it of this record", "remedy": "`fedattack attack labels DIR`"},
    {"question": "How many?", "why": GRADIENTS, "remedy": BY_SGD},
    {"question": "Why?", "why": "it broke", "failed": True},
]


def test_an_audit_fits_one_screen_with_questions_first_and_what_was_not_asked_last():
    lines = printed(example.findings(), {**example.run(), "untried": UNTRIED}, 100, everything=False).splitlines()
    assert len(lines) <= 40
    places = [
        next(index for index, line in enumerate(lines) if words in line)
        for words in ("Can the server tell which client", "95% interval", "What to do next", "Not asked")
    ]
    assert places == sorted(places)
    untried = " ".join(lines[places[-1] :])
    assert "- attribute: --sensitive NUMBER" in untried
    assert f"- group, How many?: {BY_SGD}" in untried
    assert "- trees: not possible here" in untried
    assert "- labels: fedattack attack labels DIR" in untried
    assert "Why?" not in untried


def test_an_option_that_names_a_function_is_told():
    why = "the clients' model is not known (none was seen): name it by --model package.module:function"
    run = {**example.run(), "untried": [{"question": ATTRIBUTE, "why": why}]}
    assert "- attribute: --model package.module:function" in printed(example.findings(), run, everything=False)


def test_commands_name_the_run_folder():
    run = {**example.run(), "untried": UNTRIED}
    text = printed(example.findings(), run, everything=False, folder="'runs/my run'")
    assert "- labels: fedattack attack labels 'runs/my run'" in text
    assert "DIR" not in text


def test_without_all_the_table_has_headlines_and_leaks_alone():
    findings = example.findings()
    rest = [each for each in findings if not each.headline and each.verdict != "leak"]
    brief, whole = (printed(findings, example.run(), everything=everything) for everything in (False, True))
    assert rest
    for finding in findings:
        assert (f" {finding.name} " in f" {brief}".replace("\n", " ")) == (finding not in rest)
        assert finding.label in whole
    assert f"--all shows all {len(findings)} findings" in brief
    assert "The attacker is assumed to know" in whole
    assert "The attacker is assumed to know" not in brief


def test_with_all_each_reason_stands_in_words():
    text = printed(example.findings(), {**example.run(), "untried": UNTRIED}, 200)
    assert f"- It needs trees. It is not possible here: the question is about trees: {TREES}" in text
    assert f"- I{GRADIENTS[1:]}. To ask this, you need {BY_SGD}: {GROUP} How many?" in text
    assert f"a column of the input: {ATTRIBUTE}" in text


def test_an_earlier_report_says_what_it_takes_with_the_reason():
    untried = [
        {"question": ATTRIBUTE, "why": "it is not known; it would take --sensitive NUMBER, a column of the input"}
    ]
    run = {**example.run(), "untried": untried}
    assert "- attribute: --sensitive NUMBER" in printed(example.findings(), run, everything=False)
    why = "- It is not known; it would take --sensitive NUMBER, a column of the input"
    assert f"{why}: {ATTRIBUTE}" in printed(example.findings(), run, 200)


def test_with_all_it_is_said_by_which_means_each_attack_was_made():
    known = {"question": "Who?", "knows": [], "seconds": None}
    means = [{"attack": name, "by": by, **known} for name, by in (("sia", "a"), ("plaintext", "b"), ("tokens", "a"))]
    brief, text = (
        printed(example.findings(), {**example.run(), "means": means}, 200, everything=everything)
        for everything in (False, True)
    )
    assert "Asked with a: sia, tokens" in text
    assert "Asked with b: plaintext" in text
    assert "Asked with" not in brief
