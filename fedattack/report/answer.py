"""What the first screen says of a headline: the question, the answer in words, why, how sure, and what to do next."""

from collections import Counter
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedattack.attacks.registry import threat_of
from fedattack.audit.below import BELOW
from fedattack.audit.control import UNTRIED, VOID, control_of
from fedattack.audit.finding import (
    CANNOT_TELL,
    ERROR,
    LEAK,
    NO_EVIDENCE,
    NOT_APPLICABLE,
    ONE_FEDERATION,
    PROPORTION,
    TOO_FEW,
    VERDICTS,
    Finding,
    answering,
    certain_in_words,
    list_words,
    p_in_words,
)
from fedattack.base.failures import Failure, failing_alone
from fedattack.base.reasons import find_reason
from fedattack.claims.finding import VERDICTS as CLAIM_VERDICTS
from fedattack.report.claim_words import CLAIM_PAGE
from fedattack.report.claim_words import short_of as short_of_claim
from fedattack.report.drawing import Plot
from fedattack.report.remedies import command_for
from fedattack.report.section import by_guesses, section_of
from fedattack.report.strip import strip
from fedattack.report.words import (
    NOTHING,
    count_words,
    end_sentence,
    interval,
    is_of_these_runs,
    level,
    shown,
    verdict_in_words,
)

_SENTENCE = "{label}: {value}{interval}{chance}."
_STRENGTH = "{times} times what guessing gives"
_BESIDE_GUESSING = "{value}; guessing gives {chance}"
_FEW_RUNS = 3
# A rate that is less above guessing, in parts of 1 and beside what guessing gives, is slightly so.
_SLIGHT, _SLIGHTLY_MORE = 0.05, 1.2
# So many steps are listed together, unless more are the first of some answer.
_MOST_STEPS = 3
# So many numbers in plaintext are named in an answer; the page lists them all.
_MOST_NAMED = 8
NONE_KNOWN = "none known"
"""What is said in place of a verdict where no guarantee of privacy is claimed."""


@dataclass(frozen=True)
class Next:
    """One thing to do: what, what it buys, on what that was measured, and the command that tries it if there is one.

    Steps of the same ``way`` do the same, in whatever words.
    """

    what: str
    buys: str
    measured: str = ""
    command: str = ""
    way: str = ""


@dataclass(frozen=True)
class Answer:
    """One question, and what the run says of it.

    Attributes
    ----------
    finding
        What answers it: the headline, or another finding of its attack that is a leak where the headline is none.
    question, short, sentence
        What is asked, the answer in a few words, and the measured number in a sentence.
    strip
        The number with its interval beside what guessing and the null run give; None without a number.
    why, check, exposed, sure
        What explains the number, what the same attack finds where there is nothing, who is most exposed, and how sure
        all this is: sentences.
    next
        What to do about it: first what helps with most of the leaks that are shown.
    no_help
        What was measured not to help.
    """

    finding: Finding
    question: str
    short: str
    sentence: str
    strip: Plot | None
    why: list[str]
    check: str
    exposed: str
    sure: list[str]
    next: list[Next]
    no_help: list[Next]


def answers_of(
    findings: Sequence[Finding], run: Mapping[str, Any], failed: MutableMapping[str, Failure] | None = None
) -> list[Answer]:
    """Answer the question of each headline.

    `failed` is told whose section cannot say it; such an answer has its verdict and number alone.
    """
    answers = []
    for index, (finding, found) in enumerate(_by_question(findings)):
        # The bare answer stays where the question's section fails.
        answer = _state_barely(finding)
        with failing_alone(failed, f"what {finding.name} means"):
            answer = _answer_of(finding, found, run, f"answer-{index}")
        answers.append(answer)
    return _order_steps(answers)


def _order_steps(answers: Sequence[Answer]) -> list[Answer]:
    """Put first, of what to do about each leak, what helps with most of the leaks."""
    leaks = {(step.way, answer.question) for answer in answers for step in answer.next}
    helped = Counter(way for way, _ in leaks)
    # `sorted` is stable: what helps with as many leaks stays in the order of the remedies.
    return [replace(answer, next=sorted(answer.next, key=lambda step: -helped[step.way])) for answer in answers]


def steps_of(answers: Sequence[Answer]) -> dict[Next, list[Answer]]:
    """Return what to do about all these answers, each way once, and with which of them it helps; the most first.

    All first steps are among these, and others where they are few.
    """
    by_way: dict[str, list[tuple[Next, Answer]]] = {}
    for answer in answers:
        for step in answer.next:
            by_way.setdefault(step.way, []).append((step, answer))
    first = {answer.next[0].way for answer in answers if answer.next}
    steps: dict[Next, list[Answer]] = {}
    for way, helping in sorted(by_way.items(), key=lambda item: (item[0] not in first, -len(item[1]))):
        if way in first or len(steps) < _MOST_STEPS:
            steps[helping[0][0]] = [answer for _, answer in helping]
    return steps


def _state_barely(finding: Finding) -> Answer:
    """Answer without any words of the attack's section."""
    return Answer(
        finding=finding,
        question=_question_of_threat(finding.attack),
        short=_short_barely(finding),
        sentence=end_sentence(finding.reason),
        strip=None,
        why=[],
        check="",
        exposed="",
        sure=[],
        next=[],
        no_help=[],
    )


def _short_barely(finding: Finding) -> str:
    return end_sentence(f"{verdict_in_words(finding)}: {shown(finding.value, finding.units)}")


def in_short(findings: Sequence[Finding]) -> list[tuple[Finding, str, str]]:
    """Return what answers each question, the question, and the answer in a few words."""
    groups = _by_question(findings)
    asked = [question_of(finding.attack) for finding, _ in groups]
    answers = []
    for (finding, found), question in zip(groups, asked, strict=True):
        if asked.count(question) > 1:
            question += f" ({finding.attack})"
        short = _short_barely(finding)
        # The page says where a section cannot say it.
        with failing_alone({}, finding.name):
            explained = section_of(finding.attack).explained(found)
            short = short_of(finding, explained.short, explained.certain)
        answers.append((finding, question, short))
    return answers


def _by_question(findings: Sequence[Finding]) -> list[tuple[Finding, list[Finding]]]:
    """Return what answers each question, and all findings of its attack, the headline first."""
    groups = []
    for finding in answering(findings):
        of_attack = [other for other in findings if other.attack == finding.attack]
        # Sorted by "not the headline": False comes first.
        groups.append((finding, sorted(of_attack, key=lambda other: not other.headline)))
    return groups


def _answer_of(finding: Finding, found: Sequence[Finding], run: Mapping[str, Any], slug: str) -> Answer:
    section = section_of(finding.attack)
    explained = section.explained(found)
    if not finding.headline:
        # The rows are in units of the headline.
        explained = replace(explained, rows=by_guesses([finding]).rows)
    check = exposed = ""
    if finding.null is not None and finding.value is not None:
        check = f"The same attack gives {shown(finding.null_value, finding.units)} where there is nothing to find."
        if 2 * finding.null["n"] < finding.n:
            check += f" That is of {finding.null['n']:,} targets, so it is less sure."
    if finding.verdict == LEAK:
        exposed = section.exposed(found)
    return Answer(
        finding=finding,
        question=question_of(finding.attack),
        short=short_of(finding, explained.short, explained.certain),
        sentence=sentence_of(finding),
        strip=strip(finding, explained.rows, slug),
        why=explained.words,
        check=check,
        exposed=exposed,
        sure=_sure(finding, found[0]),
        next=_next(finding, run),
        no_help=_no_help(finding),
    )


def question_of(attack: str) -> str:
    """Return the question that an attack answers by yes or no."""
    return section_of(attack).question or _question_of_threat(attack)


def _question_of_threat(attack: str) -> str:
    threat = threat_of(attack)
    if threat is None:
        return f"What does {attack} find?"
    return threat.question


def short_of(finding: Finding, explained: str, certain: str = "") -> str:
    """Answer in a few words: of a leak what is certain, or what the attacker gains over guessing, and what explains it.

    ``certain`` is what is certain in the section's own words, ``explained`` what explains all of a leak.
    """
    if finding.value is None and finding.verdict != CANNOT_TELL:
        return _short_without_value(finding)
    if finding.is_certain or (finding.is_right_in_part and finding.verdict != LEAK):
        return _short_of_read_off(finding, certain)
    if finding.verdict == TOO_FEW:
        return "Too few targets or clients to tell."
    if finding.verdict == CANNOT_TELL:
        return _why_not_told(finding)
    if finding.verdict not in (LEAK, NO_EVIDENCE):
        return f"{shown(finding.value, finding.units)}; there is nothing to compare it with."
    is_leak = finding.verdict == LEAK
    if is_leak and not finding.headline:
        about = finding.label
        if finding.chance is not None:
            about += f"; guessing gives {shown(finding.chance, finding.units)}"
        return f"Yes: {shown(finding.value, finding.units)} ({about}). The headline does not show it."
    template = section_of(finding.attack).strength.get(finding.metric, _STRENGTH)
    # "More than guessing" is said of any value; "times" only of a leak, as 0.9 times guessing is no strength.
    is_gain = "{more}" in template or (is_leak and finding.chance)
    if not is_gain:
        template = _BESIDE_GUESSING
        if finding.chance is None:
            template = "{value}"
    words = _fill(template, finding)
    if not is_leak:
        return f"Not shown: {words}."
    return f"{_say_yes(finding)}: {'; '.join(filter(None, [words, explained]))}."


def _short_without_value(finding: Finding) -> str:
    if finding.asks_nothing:
        return end_sentence(f"Not shown: {_what_is_asked(finding)}")
    return "Not judged."


def _say_yes(finding: Finding) -> str:
    """Say yes, and of a rate that is little above guessing, in points and beside it, that it is little."""
    value, chance = finding.value or 0.0, finding.chance or 0.0
    if finding.units == PROPORTION and value - chance < _SLIGHT and value < _SLIGHTLY_MORE * chance:
        return "Yes, slightly"
    return "Yes"


def _why_not_told(finding: Finding) -> str:
    """Say in a few words why a finding cannot be told."""
    if control_of(finding):
        return "Cannot be told: this attack would not have seen a leak here."
    if find_reason(finding.grounds, VOID):
        return "Cannot be told: nothing could be planted here to try this attack."
    if find_reason(finding.grounds, UNTRIED):
        return "Cannot be told: nothing shows that this attack would have seen a leak here."
    why = find_reason(finding.grounds, BELOW) or end_sentence(finding.reason)
    return end_sentence(f"Cannot be told: {why}".rstrip("."))


def _short_of_read_off(finding: Finding, certain: str) -> str:
    """Answer in a few words where single examples or words were read off and are right."""
    if finding.read_off is None:
        raise AssertionError("asked for where something was read off")
    if finding.is_certain and certain:
        return f"Yes: {certain}."
    if finding.is_certain:
        verb = "is" if finding.read_off["certain"] == 1 else "are"
        template = section_of(finding.attack).strength.get(finding.metric, _STRENGTH)
        # Where chance is 0 there is no "times".
        if not finding.chance and "{times}" in template:
            template = _BESIDE_GUESSING
        if finding.chance is None:
            template = "{value}"
        return (
            f"Yes: {certain_in_words(finding.read_off, len(finding.seeds))} {verb} certain; {_fill(template, finding)}."
        )
    right = count_words(finding.read_off["right"], finding.read_off["what"])
    verb = "is" if finding.read_off["right"] == 1 else "are"
    if not finding.may_be_accident:
        return f"{right} {verb} right, but the number is not above guessing or a baseline."
    return f"{right} {verb} right, but that may be an accident."


def _fill(template: str, finding: Finding) -> str:
    """Fill a finding's numbers into a template."""
    value, more, times = finding.value or 0.0, "more", NOTHING
    gain = shown(value - (finding.chance or 0.0), finding.units).replace("%", " points")
    if value < 0:
        more = "less"
    if finding.chance:
        times = f"{value / finding.chance:.1f}"
    return template.format(
        label=finding.label,
        value=shown(value, finding.units),
        chance=shown(finding.chance, finding.units),
        times=times,
        size=shown(abs(value), finding.units),
        more=more,
        gain=gain,
    )


def sentence_of(finding: Finding) -> str:
    """State the measured number in a sentence, with its interval and what guessing gives."""
    if finding.value is None:
        return end_sentence(_what_is_asked(finding))
    ends = interval(finding.low, finding.high, finding.units)
    sentence = section_of(finding.attack).sentences.get(finding.metric, _SENTENCE)
    # Sections may compute a whole sentence of their own.
    if callable(sentence):
        return sentence(finding)
    within = guessing = ""
    if ends != NOTHING:
        within = f" ({level(finding.level)} interval {ends})"
    if finding.chance is not None:
        guessing = "; guessing gives {chance}"
    # Interval and chance are templates themselves, so that `_fill` comes last.
    return _fill(sentence.replace("{interval}", within).replace("{chance}", guessing), finding)


def _what_is_asked(finding: Finding) -> str:
    """Say why a finding has no value; what a positive control adds is said elsewhere."""
    if finding.asks_nothing and finding.grounds:
        return finding.grounds[0].what
    return finding.reason


def _sure(finding: Finding, headline: Finding) -> list[str]:
    if finding.value is None:
        return [*filter(None, [control_of(finding)])]
    runs = len(finding.seeds)
    sentences = [f"{count_words(runs, 'run')}, {finding.n:,} targets."]
    if headline is not finding and headline.verdict != LEAK:
        sentences.append(
            f"The headline, {headline.name}, says “{headline.verdict}”; this measure shows a leak, even after the "
            "correction for all findings."
        )
    if finding.verdict in (TOO_FEW, CANNOT_TELL):
        return [*sentences, end_sentence(finding.reason)]
    if finding.is_certain:
        sentences.append("It needs no test: what is certain stays certain whatever else was found.")
    if finding.p_adjusted is not None:
        often = _write_often(finding.verdict, finding.p_adjusted)
        sentences.append(f"{often}: {p_in_words(finding.p_adjusted)}, corrected for all findings of this page.")
    if control := control_of(finding):
        sentences.append(control)
    if find_reason(finding.grounds, ONE_FEDERATION):
        sentences.append("In several runs the same clients hold the same data; the test counts these runs once.")
    if runs == 1:
        sentences.append("The interval is for this run only. More seeds show how much runs differ.")
    elif finding.here_low is not None:
        here = interval(finding.here_low, finding.here_high, finding.units)
        sentences.append(
            f"The interval is {here} for these very runs, and {interval(finding.low, finding.high, finding.units)} "
            f"for runs like these."
        )
        # The prior of how much runs differ decides much of an interval of few runs.
        if runs <= _FEW_RUNS:
            sentences.append(f"{runs} runs tell little about how much runs differ, so the second interval is wide.")
        if is_of_these_runs(finding):
            sentences.append("The leak is shown for these runs. Other runs may show none.")
    return sentences


def _write_often(verdict: str, p: float) -> str:
    if verdict == LEAK:
        return "Unlikely to be an accident"
    # The test speaks for a leak, but the value does not beat a baseline.
    if p <= ERROR:
        return "Unlikely to be an accident, but not above guessing or a baseline"
    return "It may be an accident"


def _next(finding: Finding, run: Mapping[str, Any]) -> list[Next]:
    if finding.verdict == TOO_FEW:
        return [
            _take("Ask about more targets or clients, or run more seeds", "Then a leak can be told from an accident.")
        ]
    if find_reason(finding.grounds, BELOW):
        return [
            _take(
                "Check what the scores measure, such as the loss of one example, or name a model and its loss",
                "Reversed, these scores might show a leak.",
            )
        ]
    if finding.verdict == CANNOT_TELL:
        return [_take(_find_other_way(finding), "This attack does not rule out a leak.")]
    if finding.verdict != LEAK:
        return []
    steps = []
    for each in section_of(finding.attack).remedies:
        if each.helps and each.applies_to(run):
            steps.append(Next(each.what, each.buys, each.measured, command_for(each, run), each.way))
    return steps


def _no_help(finding: Finding) -> list[Next]:
    """List what was measured not to help against a leak: it is no step."""
    if finding.verdict != LEAK:
        return []
    return [Next(each.what, each.buys, each.measured) for each in section_of(finding.attack).remedies if not each.helps]


def _take(what: str, buys: str) -> Next:
    """Return a step that is no remedy: it is the same as another of the same words."""
    return Next(what, buys, way=what)


def _find_other_way(finding: Finding) -> str:
    """Say what may tell more where an attack cannot tell."""
    if control_of(finding):
        return "Audit a run with more rounds, or with more examples per client: this attack may then see a planted leak"
    if find_reason(finding.grounds, VOID):
        return "See what the numbers that clients send give away by themselves: clients fit again in each round"
    if find_reason(finding.grounds, UNTRIED):
        return "Read the other answers: they say what else clients send gives away"
    return "Look at what clients send that this attack does not read"


@dataclass(frozen=True)
class Glance:
    """A question at a glance.

    Attributes
    ----------
    question, answer
        What is asked, and the answer in a few words.
    finding
        The headline that answers it; None for what needs no attack.
    said
        What stands in place of a verdict where there is no headline.
    sure, step
        How sure the answer is, and the first thing to do about it; empty if there is nothing to say.
    card
        The number of its answer on the page; 0 if it has none.
    link
        A page beside this one that says more; empty if there is none.
    """

    question: str
    answer: str
    finding: Finding | None = None
    said: str = ""
    sure: str = ""
    step: str = ""
    card: int = 0
    link: str = ""


def overview_of(
    answers: Sequence[Answer], run: Mapping[str, Any], claim: Mapping[str, Any] | None = None
) -> list[Glance]:
    """List a line for each question that was asked, and for what needs no attack.

    If several attacks ask one question, the one that says most counts. `claim` is what ``claim.json`` says.
    """
    # The same question may have several attacks: the one with the worst verdict stands for all.
    best: dict[str, tuple[int, Answer]] = {}
    for card, answer in enumerate(answers, 1):
        _, before = best.setdefault(answer.question, (card, answer))
        # VERDICTS begins with the worst.
        if VERDICTS.index(answer.finding.verdict) < VERDICTS.index(before.finding.verdict):
            best[answer.question] = (card, answer)
    lines = []
    for card, answer in best.values():
        finding, step = answer.finding, ""
        if answer.next:
            step = f"{answer.next[0].what}."
        lines.append(Glance(answer.question, answer.short, finding, sure=_in_brief(finding), step=step, card=card))
    if answers or "unanswered" in run:
        lines += [_privacy_claim(run, claim), *_in_plaintext(run)]
    return lines


def summary_of(lines: Sequence[Glance], run: Mapping[str, Any]) -> str:
    """Count what was shown and what was not asked, in a sentence."""
    verdicts = [line.finding.verdict for line in lines if line.finding is not None]
    parts = []
    # In the order in which people want to be told.
    for verdict, one, several in (
        (LEAK, "leak shown", "leaks shown"),
        (NO_EVIDENCE, "question without a leak shown", "questions without a leak shown"),
        (TOO_FEW, "question with too few targets to tell", "questions with too few targets to tell"),
        (CANNOT_TELL, "question that cannot be told", "questions that cannot be told"),
        (NOT_APPLICABLE, "question not judged", "questions not judged"),
    ):
        count = verdicts.count(verdict)
        if count:
            parts.append(count_words(count, one, several))
    parts += [f"privacy claim {line.said}" for line in lines if line.said in CLAIM_VERDICTS]
    failed = sum("failed" in entry for entry in run.get("untried", ()))
    if failed:
        parts.append(f"{count_words(failed, 'question')} asked but not answered")
    untried = len(run.get("untried", ())) - failed
    if untried:
        parts.append(f"{count_words(untried, 'question')} not asked")
    if "unanswered" in run:
        parts.insert(0, "No question was answered")
    if not parts:
        return ""
    return f"{', '.join(parts)}."


def _in_brief(finding: Finding) -> str:
    if finding.value is None:
        return ""
    runs = count_words(len(finding.seeds), "run")
    if finding.is_certain:
        return f"{runs}, certain"
    if finding.p_adjusted is None or finding.verdict == CANNOT_TELL:
        return runs
    return f"{runs}, {p_in_words(finding.p_adjusted)}"


def _privacy_claim(run: Mapping[str, Any], claim: Mapping[str, Any] | None) -> Glance:
    question, privacy = "Is a privacy guarantee claimed, and is it true?", run.get("privacy")
    if claim is not None:
        return Glance(question, short_of_claim(claim), said=claim["verdict"], link=CLAIM_PAGE)
    if privacy is None:
        return Glance(question, "None is known for this run.", said=NONE_KNOWN)
    most = privacy["epsilon_run"]["high"]
    epsilon = "no finite ε"
    if most is not None:
        epsilon = f"ε = {most:,.3g} at most"
    answer = f"{privacy['name']}: {epsilon} for the whole run, computed, not measured."
    return Glance(question, answer, said="declared")


def _in_plaintext(run: Mapping[str, Any]) -> list[Glance]:
    observed = run.get("observed", {})
    names = observed.get("in_plaintext")
    if names is None:
        return []
    question = "Do numbers reach the server in plaintext?"
    # Replies to other messages than those of training are listed among what reached the server.
    if not names and observed.get("rounds") == 0 and not run.get("reached", {}).get("rows"):
        return [Glance(question, "No reply was recorded in this run.", said="not known")]
    if not names:
        return [Glance(question, "No.", said="nothing visible")]
    listed = names[:_MOST_NAMED]
    if len(names) > len(listed):
        listed = [*listed, f"{len(names) - len(listed)} more"]
    return [Glance(question, f"Yes: {list_words(listed, 'and')}.", said="visible")]
