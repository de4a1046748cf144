"""What the first screen says of a headline: the question, the answer in words, why, how sure, and what to do next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedattack.audit.finding import LEAK, NO_EVIDENCE, TOO_FEW, Finding, listed, p_in_words
from fedattack.report.drawing import Plot
from fedattack.report.remedies import command_for
from fedattack.report.section import section_of
from fedattack.report.strip import strip
from fedattack.report.words import NOTHING, interval, level, shown, stopped
from fedattack.threats.registry import threat_of

_SENTENCE = "{label}: {value}{interval}{chance}."
_STRENGTH = "{times} times what guessing gives"
_BESIDE_GUESSING = "{value}; guessing gives {chance}"
_FEW_RUNS = 3


@dataclass(frozen=True)
class Next:
    """One thing to do: what, what is known of it, and the command that tries it, if there is one."""

    what: str
    buys: str
    command: str


@dataclass(frozen=True)
class Answer:
    """One question, and what the run says of it.

    Attributes
    ----------
    finding
        The headline.
    question, short, sentence
        What is asked, the answer in a few words, and the measured number in a sentence.
    strip
        The number with its interval beside what guessing and the null run give; None without a number.
    why, exposed, sure
        What explains the number, who is most exposed, and how sure all this is: sentences.
    next
        What to do about it.
    """

    finding: Finding
    question: str
    short: str
    sentence: str
    strip: Plot | None
    why: list[str]
    exposed: str
    sure: list[str]
    next: list[Next]


def answers_of(findings: Sequence[Finding], run: Mapping[str, Any]) -> list[Answer]:
    """Answer the question of each headline."""
    answers: list[Answer] = []
    for found in _by_headline(findings):
        answers.append(_answer_of(found, run, f"answer-{len(answers)}"))
    return answers


def in_short(findings: Sequence[Finding]) -> list[tuple[Finding, str, str]]:
    """Return each headline with its question and the answer in a few words."""
    answers = []
    for found in _by_headline(findings):
        headline = found[0]
        explained = section_of(headline.attack).explained(found)
        answers.append((headline, question_of(headline.attack), short_of(headline, explained.short)))
    return answers


def _by_headline(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Return each headline, followed by the other findings of its attack."""
    groups = []
    for headline in findings:
        if headline.headline:
            beside = [other for other in findings if other.attack == headline.attack and other is not headline]
            groups.append([headline, *beside])
    return groups


def _answer_of(found: Sequence[Finding], run: Mapping[str, Any], slug: str) -> Answer:
    finding = found[0]
    section = section_of(finding.attack)
    explained = section.explained(found)
    return Answer(
        finding=finding,
        question=question_of(finding.attack),
        short=short_of(finding, explained.short),
        sentence=sentence_of(finding),
        strip=strip(finding, explained.rows, slug),
        why=explained.words or _by_the_null(finding),
        exposed=section.exposed(found) if finding.value is not None else "",
        sure=_sure(finding),
        next=_next(finding, run),
    )


def question_of(attack: str) -> str:
    """Return the question that an attack answers by yes or no."""
    threat = threat_of(attack)
    return section_of(attack).question or (threat.question if threat else f"What does {attack} find?")


def short_of(finding: Finding, explained: str) -> str:
    """Answer in a few words: of a leak what the attacker gains over guessing, and what explains all of it."""
    if finding.value is None:
        return "Not judged."
    if finding.verdict == TOO_FEW:
        return "Too few targets or clients to tell."
    if finding.verdict not in (LEAK, NO_EVIDENCE):
        return f"{shown(finding.value, finding.units)}; that is no verdict."
    template = section_of(finding.attack).strength.get(finding.metric, "")
    is_leak = finding.verdict == LEAK
    if "{more}" not in template and not (is_leak and finding.chance):
        template = _BESIDE_GUESSING
    words = _filled(template or _STRENGTH, finding)
    if is_leak:
        return f"Yes: {words}; {explained}." if explained else f"Yes: {words}."
    return f"Not shown: {words}."


def _filled(template: str, finding: Finding) -> str:
    """Fill a finding's numbers into a template."""
    value = finding.value or 0.0
    return template.format(
        label=finding.label,
        value=shown(value, finding.units),
        chance=shown(finding.chance, finding.units),
        times=f"{value / finding.chance:.1f}" if finding.chance else NOTHING,
        size=shown(abs(value), finding.units),
        more="less" if value < 0 else "more",
    )


def sentence_of(finding: Finding) -> str:
    """State the measured number in a sentence, with its interval and what guessing gives."""
    if finding.value is None:
        return stopped(finding.reason)
    ends = interval(finding.low, finding.high, finding.units)
    sentence = section_of(finding.attack).sentences.get(finding.metric, _SENTENCE)
    if callable(sentence):
        return sentence(finding)
    within = "" if ends == NOTHING else f" ({level(finding.level)} interval {ends})"
    guessing = "" if finding.chance is None else "; guessing gives {chance}"
    return _filled(sentence.replace("{interval}", within).replace("{chance}", guessing), finding)


def _by_the_null(finding: Finding) -> list[str]:
    if finding.null is None or finding.value is None:
        return []
    return [f"Where there is nothing to find, the same attack gives {shown(finding.null['value'], finding.units)}."]


def _sure(finding: Finding) -> list[str]:
    if finding.value is None:
        return []
    runs = len(finding.seeds)
    sentences = [f"{runs} run{'' if runs == 1 else 's'}, {finding.n:,} targets."]
    if finding.verdict == TOO_FEW:
        return [*sentences, stopped(finding.reason)]
    if finding.p_adjusted is not None:
        often = "So much is hardly an accident" if finding.verdict == LEAK else "So much may be an accident"
        sentences.append(f"{often}: {p_in_words(finding.p_adjusted)}, corrected for all findings of this page.")
    if runs == 1:
        sentences.append("The interval speaks of this run alone. More seeds tell how much runs differ.")
    elif finding.here_low is not None:
        here = interval(finding.here_low, finding.here_high, finding.units)
        sentences.append(
            f"In these very runs {here}, in runs like these {interval(finding.low, finding.high, finding.units)}."
        )
        if runs <= _FEW_RUNS:
            sentences.append(f"{runs} runs tell little of how much runs differ, so that the latter is wide.")
    return sentences


def _next(finding: Finding, run: Mapping[str, Any]) -> list[Next]:
    if finding.verdict == TOO_FEW:
        return [
            Next(
                "Ask about more targets or clients, or run more seeds", "Then a leak can be told from an accident.", ""
            )
        ]
    if finding.verdict != LEAK:
        return []
    return [Next(each.what, each.buys, command_for(each, run)) for each in section_of(finding.attack).remedies]


def overview_of(answers: Sequence[Answer], run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List a line for each question: those that were asked, those that were not, and what needs no attack.

    Of several attacks that ask one question the first that shows a leak counts. A line has its ``question``, its
    ``answer``, and the place of its card in ``card``. What was not asked has no ``verdict`` and says why.
    """
    lines: list[dict[str, Any]] = []
    for number, answer in enumerate(answers, 1):
        line = {"question": answer.question, "verdict": answer.finding.verdict, "answer": answer.short, "card": number}
        place = next((i for i, other in enumerate(lines) if other["question"] == answer.question), None)
        if place is None:
            lines.append(line)
        elif answer.finding.verdict == LEAK != lines[place]["verdict"]:
            lines[place] = line
    if answers:
        lines += [_privacy_claim(run), *_in_plaintext(run)]
    for line in run.get("untried", ()):
        lines.append(
            {
                "question": line["question"],
                "verdict": "",
                "answer": stopped(f"not asked: {line['why']}").replace("`", ""),
                "card": 0,
            }
        )
    return lines


def _privacy_claim(run: Mapping[str, Any]) -> dict[str, Any]:
    line = {"question": "Is a privacy guarantee claimed, and is it true?", "verdict": "", "card": 0}
    privacy = run.get("privacy")
    if privacy is None:
        return {**line, "answer": "None is declared."}
    most = privacy["epsilon_run"]["high"]
    epsilon = "no finite ε" if most is None else f"ε = {most:,.3g} at most"
    return {**line, "answer": f"{privacy['name']}: {epsilon} for the whole run, computed and not measured."}


def _in_plaintext(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = run.get("observed", {}).get("in_plaintext")
    if names is None:
        return []
    answer = f"Yes: {listed(names, 'and')}." if names else "No."
    return [{"question": "Do numbers reach the server in plaintext?", "verdict": "", "answer": answer, "card": 0}]
