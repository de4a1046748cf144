import json

import pytest

from tests.report import example


@pytest.fixture
def folder(tmp_path):
    """Run folder with a realistic findings.json and run.json."""
    (tmp_path / "findings.json").write_text(json.dumps([finding.to_dict() for finding in example.findings()]))
    (tmp_path / "run.json").write_text(json.dumps(example.run()))
    return tmp_path
