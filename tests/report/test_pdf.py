import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedattack.base.errors import ReportError
from fedattack.report import write_report
from fedattack.report.pdf import find_browser, write_pdf
from tests.report.chromium import count_pages
from tests.runs.test_simulator import wait_until
from tests.worlds.federation import write_run

WHOLE = "%PDF-1.4\n%%EOF"


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Puts a shell script in the place of every browser."""
    path = tmp_path / "path"
    path.mkdir()
    monkeypatch.setenv("PATH", str(path))

    def put(script: str) -> None:
        browser = path / "chromium"
        # The last word but the page's may be a flag: the PDF's place is looked for.
        place = 'for word; do case "$word" in --print-to-pdf=*) pdf="${word#--print-to-pdf=}";; esac; done'
        browser.write_text(f"#!/bin/sh\n{place}\n{script}\n")
        browser.chmod(0o700)

    return put


@pytest.mark.browser
@pytest.mark.slow
def test_a_report_is_printed_beside_its_page(folder):
    if find_browser() is None:
        pytest.skip("no browser is installed")
    page = write_report(folder)
    before = page.read_bytes()
    pdf = write_pdf(page)
    assert pdf == folder / "report.pdf"
    assert count_pages(pdf.read_bytes()) > 1
    assert page.read_bytes() == before
    assert {path.name for path in folder.iterdir()} == {"findings.json", "run.json", "report.html", "report.pdf"}


def test_without_a_browser_the_command_says_so_and_writes_the_page(call, tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run", epochs=2)
    assert call("attack", "sia", folder, "--device", "cpu")[0] == 0
    (folder / "report.pdf").write_text("of older findings")
    monkeypatch.setenv("PATH", "")
    code, out, err = call("report", folder, "--pdf")
    assert code == 2
    assert "leak" in out
    assert err.count("error:") == 1
    assert "chromium, chromium-browser, google-chrome" in err
    assert f"open {folder / 'report.html'} in a browser and print it" in err
    assert (folder / "findings.json").exists()
    assert (folder / "report.html").exists()
    assert not (folder / "report.pdf").exists()
    # A crossed threshold is told although nothing is printed.
    code, _, err = call("report", folder, "--pdf", "--fail-if", "sia.asr >= 0")
    assert code == 3
    assert "threshold crossed" in err
    assert err.count("error:") == 1


def test_the_pdf_is_what_the_browser_printed(folder, stand_in):
    stand_in(f"printf '{WHOLE.replace('%', '%%')}' > \"$pdf\"")
    assert write_pdf(write_report(folder)).read_text() == WHOLE


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ('echo "first" >&2; echo "no display" >&2; exit 3', "exit code 3; no display"),
        ("exit 4", "exit code 4; it says nothing"),
        ("exit 0", "it printed nothing"),
        ("printf '%%PDF-1.4 half' > \"$pdf\"", "it printed nothing"),
    ],
)
def test_a_browser_that_fails_is_quoted(folder, stand_in, script, message):
    stand_in(script)
    page = write_report(folder)
    with pytest.raises(ReportError, match=message):
        write_pdf(page)
    assert {path.name for path in folder.iterdir()} == {"findings.json", "run.json", "report.html", "path"}


def has_ended(process: str) -> bool:
    state = Path(f"/proc/{process}/stat")
    return not state.exists() or state.read_text().split()[2] == "Z"


def test_a_page_that_is_written_anew_has_no_older_print(folder, tmp_path):
    other = tmp_path / "other.pdf"
    other.write_text("mine")
    (folder / "report.pdf").symlink_to(other)
    write_report(folder)
    assert not (folder / "report.pdf").is_symlink()
    assert other.read_text() == "mine"


@pytest.mark.slow
def test_a_printing_that_is_killed_leaves_no_browser_and_nothing_in_the_folder(folder, stand_in, tmp_path):
    child = tmp_path / "child"
    stand_in(
        'for word; do case "$word" in --user-data-dir=*) /bin/mkdir -p "${word#*=}";; esac; done; '
        f'echo half > "$pdf"; /bin/sleep 60 & echo $! > {child}.new; /bin/mv {child}.new {child}; wait'
    )
    page = write_report(folder)
    before = {path.name for path in folder.iterdir()}
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    code = f"from pathlib import Path; from fedattack.report.pdf import write_pdf; write_pdf(Path({str(page)!r}))"
    command = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(temporary)})
    assert wait_until(child.exists, 30)
    assert [path.name for path in temporary.glob("*/profile")] == ["profile"]
    command.send_signal(signal.SIGTERM)
    assert command.wait(20) == 128 + signal.SIGTERM
    assert wait_until(lambda: has_ended(child.read_text().strip()), 10)
    assert {path.name for path in folder.iterdir()} - {"child", "temporary"} == before
    assert not [*temporary.iterdir()]


def test_a_browser_that_hangs_is_stopped_with_its_children(folder, stand_in, tmp_path):
    stand_in(f"/bin/sleep 60 & echo $! > {tmp_path / 'child'}; wait")
    page = write_report(folder)
    start = time.monotonic()
    with pytest.raises(ReportError, match="did not end within 1 seconds"):
        write_pdf(page, timeout=1)
    assert time.monotonic() - start < 20
    child = (tmp_path / "child").read_text().strip()
    assert wait_until(lambda: has_ended(child), 10)


@pytest.mark.parametrize("user", [0, 1000])
def test_only_root_goes_without_the_sandbox(folder, stand_in, monkeypatch, user):
    stand_in(f'echo "$@" > {folder / "words"}; printf \'{WHOLE.replace("%", "%%")}\' > "$pdf"')
    monkeypatch.setattr(os, "geteuid", lambda: user)
    write_pdf(write_report(folder))
    words = (folder / "words").read_text().split()
    assert ("--no-sandbox" in words) == (user == 0)
    assert "--no-pdf-header-footer" in words
