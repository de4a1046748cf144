"""Take pictures of a real report.

``python -m tests.report.screenshot`` audits the quickstart and puts the README's picture into ``simulations/results``;
``python -m tests.report.screenshot DIR PREFIX`` takes full pages of an existing run's report, light and dark, narrow
and wide, to look at.
"""

import base64
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.report.conftest import start_chromium

README_PICTURE = Path(__file__).parents[2] / "simulations" / "results" / "quickstart.png"


def shoot(browser, page: Path, picture: Path, *, width: int, height: int | None = None, scheme: str = "light") -> None:
    """Save a picture of ``page``, of its whole length unless ``height`` says otherwise."""
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    size = {"width": width, "height": height or 1000, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
    browser.get(page.absolute().as_uri())
    options = {"format": "png", "captureBeyondViewport": height is None}
    if height is None:
        whole = browser.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        options["clip"] = {"x": 0, "y": 0, "width": width, "height": whole["height"], "scale": 1}
    picture.write_bytes(base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", options)["data"]))


def main() -> None:
    """Run from the command line."""
    with tempfile.TemporaryDirectory() as name:
        browser = start_chromium(Path(name) / "profile")
        try:
            if len(sys.argv) == 3:
                page = Path(sys.argv[1]) / "report.html"
                for scheme in ("light", "dark"):
                    for width in (360, 1400):
                        shoot(browser, page, Path(f"{sys.argv[2]}-{scheme}-{width}.png"), width=width, scheme=scheme)
                return
            run = Path(name) / "quickstart"
            subprocess.run([sys.executable, "-m", "fedattack", "audit", "quickstart", "--out", str(run)], check=True)
            README_PICTURE.parent.mkdir(exist_ok=True)
            shoot(browser, run / "report.html", README_PICTURE, width=1200, height=720)
            print(README_PICTURE)
        finally:
            browser.quit()


if __name__ == "__main__":
    main()
