"""The report on paper: a browser that is installed prints the page."""

import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from fedattack.base.errors import ReportError, short
from fedattack.base.files import signals_raise, write_atomically

# Names on the PATH, then where macOS has what is not there.
BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "microsoft-edge",
    "microsoft-edge-stable",
    "msedge",
    "brave-browser",
    "brave",
)
_APPLICATIONS = ("Google Chrome", "Chromium", "Microsoft Edge", "Brave Browser")

_FLAGS = (
    "--headless=new",
    "--disable-gpu",
    "--disable-extensions",
    "--no-first-run",
    "--no-pdf-header-footer",
    # The page may load nothing. The browser itself calls home, and finds no host by any name.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


def find_browser() -> str | None:
    """Return the first browser of :data:`BROWSERS` that is installed; none if there is none."""
    for name in BROWSERS:
        browser = shutil.which(name)
        if browser:
            return browser
    for name in _APPLICATIONS:
        browser = shutil.which(f"/Applications/{name}.app/Contents/MacOS/{name}")
        if browser:
            return browser
    return None


def write_pdf(page: Path, *, timeout: float = 120) -> Path:
    """Print a page, which loads nothing, to the PDF beside it, such as ``report.pdf``, whose path is returned.

    The PDF replaces an older one only when it is whole. If there is none to be had, there is no older one either, which
    would show other findings than the page.

    Raises
    ------
    ReportError
        If no browser is installed, it did not end within so many seconds, or it printed nothing.
    """
    page = Path(page).absolute()
    pdf = page.with_suffix(".pdf")
    pdf.unlink(missing_ok=True)
    otherwise = f"open {page} in a browser and print it"
    browser = find_browser()
    if browser is None:
        raise ReportError(f"no browser for the PDF; looked for {', '.join(BROWSERS)}; install one, or {otherwise}")
    # Beside the page, since a browser in a package of its own has a temporary folder of its own. Its profile, which has
    # links in it, stays out of the run folder: what is left of it by a kill would make that unreadable.
    printed = page.with_suffix(".printing.pdf")
    printed.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="fedattack-", ignore_cleanup_errors=True) as scratch, signals_raise():
        command = [browser, *_FLAGS, f"--user-data-dir={scratch}/profile", f"--print-to-pdf={printed}"]
        if os.geteuid() == 0:
            # Chromium's sandbox refuses to start for root, as in containers. For anybody else it stays on.
            command.append("--no-sandbox")
        try:
            fault = _run([*command, page.as_uri()], Path(scratch) / "log", timeout)
            content = printed.read_bytes() if printed.exists() else b""
        finally:
            printed.unlink(missing_ok=True)
    # Chromium exits with 0 for pages that it could not print.
    if fault or not content.startswith(b"%PDF-") or b"%%EOF" not in content[-32:]:
        raise ReportError(f"{browser} made no PDF ({fault or 'it printed nothing'}); {otherwise}")
    write_atomically(pdf, content)
    return pdf


def _run(command: list[str], log: Path, timeout: float) -> str:
    """Run a browser to its end; returns what went wrong, or nothing."""
    # Its output goes to a file: children that outlive it would keep a pipe open.
    with log.open("wb") as output:
        # A session of its own, whose processes are ended together.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            return f"it did not end within {timeout:g} seconds"
        finally:
            _end(process)
    if code == 0:
        return ""
    lines = log.read_text(errors="replace").split("\n")
    said = [line for line in lines if line.strip()]
    return short(f"exit code {code}; {said[-1] if said else 'it says nothing'}", 150)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a browser and all its children."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
