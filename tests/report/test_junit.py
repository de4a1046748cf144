"""Answers and gates as tests of a server of continuous integration."""

from xml.etree import ElementTree

from fedattack.audit.gate import parse_fail_if
from fedattack.report.junit import write_junit
from tests.report import example

QUESTION = "Can the server tell which client holds an example?"
UNTRIED = [{"question": "Which \x07 trees?", "why": "no client sends <trees>"}]


def write(tmp_path, *gates):
    file = tmp_path / "new" / "junit.xml"
    conditions = [parse_fail_if(gate) for gate in gates]
    write_junit(file, example.findings(), example.run() | {"untried": UNTRIED}, conditions)
    return ElementTree.parse(file).getroot()  # noqa: S314 - written a line above


def test_each_question_is_a_test_and_one_that_was_not_asked_is_skipped(tmp_path):
    suite = write(tmp_path)
    asked, skipped = suite.findall("testcase")
    assert (asked.get("classname"), asked.get("name")) == ("fedattack.questions", QUESTION)
    assert asked.findtext("system-out").startswith("Yes: ")
    assert skipped.get("name") == "Which \ufffd trees?"
    assert skipped.find("skipped").get("message") == "no client sends <trees>"
    assert {key: suite.get(key) for key in ("tests", "skipped", "failures", "errors")} == {
        "tests": "2",
        "skipped": "1",
        "failures": "0",
        "errors": "0",
    }


def test_gates_pass_fail_or_cannot_be_decided(tmp_path):
    gates = ("sia.asr > 0.9", "verdict == leak", "sia.asr-aggregate > 0.1")
    suite = write(tmp_path, *gates)
    passed, failed, undecided = suite.findall("testcase[@classname='fedattack.gates']")
    assert [case.get("name") for case in (passed, failed, undecided)] == [*gates]
    assert [*passed] == []
    assert failed.find("failure").get("message") == "it holds: verdict == leak"
    assert "can neither fail nor pass" in undecided.find("error").get("message")
    assert (suite.get("failures"), suite.get("errors")) == ("1", "1")
