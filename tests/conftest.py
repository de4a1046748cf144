import os
import shutil
import sys
from fnmatch import fnmatchcase

import pytest
import torch

# Rich wraps at the terminal's width; messages are compared as whole lines.
os.environ["COLUMNS"] = "200"

# Where files run side by side, a second core would be another file's: clients on it cost a start more, and threads of a
# command that is run wait for each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ |= {"PYTHON_CPU_COUNT": "1", "OMP_NUM_THREADS": "1"}


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Tests' tensors are tiny: a second thread only waits for the first."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def own_state(tmp_path_factory):
    """What is noted outside of run folders."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(autouse=True, scope="session")
def declared_findings():
    """Whatever a judge finds in any test must be among its metrics: `--fail-if` is held against these before a run."""
    from fedattack.audit.judge import Judge

    make = Judge.finding

    def finding(self, metric, label, **numbers):
        declared = any(fnmatchcase(metric, pattern) for pattern in self.metrics())
        assert declared, f"{self.shared['attack']}.{metric} is not among the metrics of its judge"
        return make(self, metric, label, **numbers)

    Judge.finding = finding
    yield
    Judge.finding = make


@pytest.fixture
def call(monkeypatch, capsys):
    """Run the command line in this process; returns exit code, stdout, stderr."""

    from fedattack import cli

    def run(*words) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedattack", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return stop.value.code, out, err

    return run


def pytest_collection_modifyitems(items):
    """Put files with real Flower runs first: where files run side by side, a long one must not be left for the end."""
    long = {item.path for item in items if item.get_closest_marker("flower")}
    items.sort(key=lambda item: item.path not in long)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Headless Chromium that logs every request and console message."""
    pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        pytest.skip("chromium and chromedriver are not installed")
    from tests.report.chromium import start_chromium

    session = start_chromium(tmp_path_factory.mktemp("chromium"))
    yield session
    session.quit()
