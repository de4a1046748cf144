"""Write answers and gates as JUnit XML, which servers of continuous integration show as tests."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from fedattack.audit.finding import Finding
from fedattack.audit.gate import Condition
from fedattack.base.errors import ConfigError
from fedattack.record.folder import LEFT_OUT
from fedattack.report.answer import in_short
from fedattack.report.words import printable


def write_junit(
    file: Path, findings: Sequence[Finding], run: Mapping[str, Any], conditions: Sequence[Condition]
) -> None:
    """Write a test case for each question and for each gate into a file, anew.

    A question that was asked passes, whatever its answer; one that was not is skipped, with the reason, and one that
    could not be judged is an error. So is each thing that the report leaves out, such as a damaged round. A gate that
    is crossed fails, and one that cannot be decided is an error.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    suite = ElementTree.Element("testsuite", name=printable(run["title"]))
    for _, question, answer in in_short(findings):
        ElementTree.SubElement(_add_case(suite, "questions", question), "system-out").text = printable(answer)
    for entry in run.get("untried", ()):
        case = _add_case(suite, "questions", entry["question"])
        tag = "error" if "failed" in entry else "skipped"
        ElementTree.SubElement(case, tag, message=printable(entry["why"]))
    for line in run.get(LEFT_OUT, ()):
        ElementTree.SubElement(_add_case(suite, "left-out", line), "error", message=printable(line))
    for condition in conditions:
        case = _add_case(suite, "gates", condition.text)
        try:
            if condition.is_crossed(findings):
                ElementTree.SubElement(case, "failure", message=f"it holds: {printable(condition.text)}")
        except ConfigError as cause:
            ElementTree.SubElement(case, "error", message=printable(str(cause)))
    for name, tag in (("tests", "testcase"), ("skipped", "skipped"), ("failures", "failure"), ("errors", "error")):
        suite.set(name, str(len([*suite.iter(tag)])))
    ElementTree.indent(suite)
    file.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(suite).write(file, encoding="utf-8", xml_declaration=True)


def _add_case(suite: ElementTree.Element, kind: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=f"fedattack.{kind}", name=printable(name))
