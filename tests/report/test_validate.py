import json
import re
from dataclasses import fields
from importlib import resources

import pytest
from jsonschema import Draft202012Validator

from fedattack.audit.finding import Finding
from fedattack.base.errors import ReportError
from fedattack.report import read_findings, read_run, validate_findings, validate_run
from tests.report import example


def schema(name):
    return json.loads(resources.files("fedattack.report").joinpath(name).read_text())


@pytest.fixture
def findings():
    return json.loads(json.dumps([finding.to_dict() for finding in example.findings()]))


@pytest.fixture
def run():
    return json.loads(json.dumps(example.run()))


def set_path(obj, path, value):
    *parents, last = path
    for key in parents:
        obj = obj[key]
    if value is ...:
        del obj[last]
    else:
        obj[last] = value


@pytest.mark.parametrize("name", ["schema.json", "run.schema.json"])
def test_the_schemas_are_schemas(name):
    Draft202012Validator.check_schema(schema(name))


def test_the_schema_has_the_fields_of_a_finding():
    described = schema("schema.json")["$defs"]["finding"]
    names = {field.name for field in fields(Finding)}
    assert set(described["properties"]) == names
    # Findings of earlier reports lack them.
    assert set(described["required"]) == names - {"p_below", "read_off", "grounds"}
    assert described["additionalProperties"] is False


def test_the_example_is_valid_and_comes_back_unchanged(findings, run):
    assert validate_findings(findings) == example.findings()
    assert validate_run(run) == run
    assert validate_findings([]) == []


class Counted(list):
    """Says how many of its entries were looked at."""

    seen = 0

    def __getitem__(self, index):
        self.seen += 1
        return super().__getitem__(index)


def test_of_thousands_of_faults_the_first_alone_is_looked_for(run):
    """Each takes up to a millisecond, and those among what may be one thing or another were all kept."""
    wrong = Counted([{}] * 1000)
    with pytest.raises(ReportError, match=r"findings: \$\[0\]"):
        validate_findings(wrong)
    values = Counted([{}] * 1000)
    with pytest.raises(ReportError, match="setting"):
        validate_run({**run, "setting": {"clients": values}})
    assert (wrong.seen, values.seen) == (1, 1)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ((0, "value"), "58%", r"\$\[0\]\.value: '58%' is not of type"),
        ((2, "verdict"), "maybe", r"\$\[2\]\.verdict: 'maybe' is not one of"),
        ((1, "n"), ..., r"\$\[1\]: 'n' is a required property"),
        ((1, "colour"), "red", r"\$\[1\]: Additional properties are not allowed \('colour'"),
        ((0, "metric"), "ASR", r"\$\[0\]\.metric: 'ASR' does not match"),
        ((0, "baselines", "size prior"), "high", r"\$\[0\]\.baselines\['size prior'\]"),
        ((0, "series", "per_round", "value", 3), "x", r"\$\[0\]\.series\.per_round\.value\[3\]"),
        ((0, "series", "per_round", "low"), [0.1], r"\$\[0\]\.series\.per_round: its lists differ in length .*low 1"),
        ((0, "low"), 0.99, "ascending"),
        ((0, "value"), float("nan"), r"0\.value is not a finite number"),
    ],
)
def test_a_damaged_findings_file_is_refused_with_its_path(findings, path, value, message):
    set_path(findings, path, value)
    with pytest.raises(ReportError, match=message) as caught:
        validate_findings(findings)
    assert "\n" not in str(caught.value)


@pytest.fixture
def prolin():
    return json.loads(json.dumps([finding.to_dict() for finding in example.prolin_findings(clients=20, rounds=60)]))


def test_findings_of_property_inference_come_back_unchanged(prolin):
    assert validate_findings(prolin) == example.prolin_findings(clients=20, rounds=60)
    validate_run(example.prolin_run())


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("methods", "methods", "OLS", "f1"), [0.1], r"methods: its lists differ in length \(rounds 6, OLS f1 1"),
        (("methods", "methods", "OLS", "recall", 2), 1.5, r"methods\.methods\.OLS\.recall\[2\]: 1.5 is greater"),
        (("stability", "methods", "REG"), [], r"stability: its lists differ in length .*REG 0"),
        (("overlap", "checked_accuracy"), ..., r"overlap: 'checked_accuracy' is a required property"),
        (("distributions", 1, "plus", "sd"), -1, r"distributions\[1\]\.plus\.sd: -1 is less"),
        (("distributions", 0, "plus_sample", 3), float("inf"), r"distributions\.0\.plus_sample\.3 is not a finite"),
        (("posteriors", 0, "posterior"), 97.0, r"posteriors\[0\]\.posterior: 97.0 is greater"),
        (("plaintext", 0, "auc"), 1.2, r"plaintext\[0\]\.auc"),
    ],
)
def test_damaged_series_of_property_inference_are_refused_with_their_path(prolin, path, value, message):
    set_path(prolin, (0, "series", *path), value)
    with pytest.raises(ReportError, match=message) as caught:
        validate_findings(prolin)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("obj", [None, {}, {"findings": []}, [1], "x"])
def test_what_is_no_list_of_findings_is_refused(obj):
    with pytest.raises(ReportError, match=r"\$"):
        validate_findings(obj)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("title",), ..., r"\$: 'title' is a required property"),
        (("titel",), "x", r"'titel' was unexpected"),
        (("setting", "model"), {"name": "mlp"}, r"\$\.setting\.model"),
        (("accuracy", "seeds", "1"), [0.5], r"\$\.accuracy: its lists differ in length"),
        (("accuracy", "seeds", "0", 2), float("inf"), r"accuracy\.seeds\.0\.2 is not a finite number"),
        (("holdings", "counts", 1), [1, 2], r"\$\.holdings: its lists differ in length \(classes 10, counts\[1\] 2\)"),
        (("holdings", "counts", 1, 1), -1, r"\$\.holdings\.counts\[1\]\[1\]"),
        (("observed", "in_plaintext"), "loss", r"\$\.observed\.in_plaintext"),
    ],
)
def test_a_damaged_run_file_is_refused_with_its_path(run, path, value, message):
    set_path(run, path, value)
    with pytest.raises(ReportError, match=message) as caught:
        validate_run(run)
    assert "\n" not in str(caught.value)


def test_a_long_offending_value_does_not_make_a_long_message(findings):
    findings[0]["verdict"] = "x" * 100_000
    with pytest.raises(ReportError) as caught:
        validate_findings(findings)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(("read", "name"), [(read_findings, "findings.json"), (read_run, "run.json")])
def test_files_that_are_missing_or_no_json_are_named(folder, read, name):
    read(folder)
    (folder / name).write_text('{"title": ')
    with pytest.raises(ReportError, match=re.escape(str(folder / name))):
        read(folder)
    (folder / name).unlink()
    with pytest.raises(ReportError, match=re.escape(str(folder / name))):
        read(folder)
