"""Make the README's picture: ``python -m tests.report.screenshot`` audits the quickstart and shows its report's top.

:mod:`tests.report.gallery` takes pictures of all kinds of pages.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.report.chromium import shoot, start_chromium

README_PICTURE = Path(__file__).parents[2] / "simulations" / "results" / "quickstart.png"


def main() -> None:
    """Run from the command line."""
    with tempfile.TemporaryDirectory() as name:
        browser = start_chromium(Path(name) / "profile")
        try:
            run = Path(name) / "quickstart"
            subprocess.run([sys.executable, "-m", "fedattack", "audit", "quickstart", "--out", str(run)], check=True)
            README_PICTURE.parent.mkdir(exist_ok=True)
            shoot(browser, run / "report.html", README_PICTURE, width=1200, height=1150)
            print(README_PICTURE)
        finally:
            browser.quit()


if __name__ == "__main__":
    main()
