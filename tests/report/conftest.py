import json
import shutil
from pathlib import Path

import pytest

from tests.report import example

FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


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


def start_chromium(profile: Path):
    """Start headless Chromium with an empty profile."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in [*FLAGS, f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    return webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
