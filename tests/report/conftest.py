import json
import shutil

import pytest

from tests.report import example
from tests.report.chromium import start_chromium


@pytest.fixture
def folder(tmp_path):
    """Run folder with a realistic findings.json and run.json."""
    (tmp_path / "findings.json").write_text(json.dumps([finding.to_dict() for finding in example.findings()]))
    (tmp_path / "run.json").write_text(json.dumps(example.run()))
    return tmp_path


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Headless Chromium that logs every request and console message."""
    pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        pytest.skip("chromium and chromedriver are not installed")
    session = start_chromium(tmp_path_factory.mktemp("chromium"))
    yield session
    session.quit()
