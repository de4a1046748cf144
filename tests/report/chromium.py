"""Chromium for tests and pictures: start it, show a page, take a picture, print."""

import base64
import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

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

IMPACTS = ("minor", "moderate", "serious", "critical")
"""How bad axe may call what it finds."""

PRINTS = 5
"""How often a page is printed at most until a print succeeds."""


def start_chromium(profile: Path) -> "Chrome":
    """Start headless Chromium with an empty profile."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in [*FLAGS, f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    return webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))


def open_page(browser: "Chrome", page: Path, *, width: int, height: int = 900, scheme: str = "light") -> None:
    """Open a page in a window of this size, in one of the two colour schemes."""
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(page.absolute().as_uri())


def shoot(
    browser: "Chrome", page: Path, picture: Path, *, width: int, height: int | None = None, scheme: str = "light"
) -> None:
    """Save a picture of ``page``, of its whole length unless ``height`` says otherwise."""
    browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
    open_page(browser, page, width=width, height=height or 1000, scheme=scheme)
    options = {"format": "png", "captureBeyondViewport": height is None}
    if height is None:
        # The driver's own measure may come before the layout, and then it is 0.
        whole = browser.execute_script("return Math.max(document.documentElement.scrollHeight, innerHeight)")
        options["clip"] = {"x": 0, "y": 0, "width": width, "height": whole, "scale": 1}
    picture.write_bytes(base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", options)["data"]))


def broken_rules(browser: "Chrome", impacts: Collection[str] = IMPACTS) -> list[str]:
    """Return what axe finds on the page that is open: each rule of these impacts with the elements that break it."""
    axe = pytest.importorskip("axe_core_python.selenium", reason="axe-core-python is not installed").Axe()
    # Tables of hundreds of rows take a busy machine longer than the driver's half minute.
    browser.set_script_timeout(300)
    found = axe.run(browser, options={"resultTypes": ["violations"]})["violations"]
    broken = [rule for rule in found if rule["impact"] in impacts]
    return [f"{rule['id']}: {node['html'][:200]}" for rule in broken for node in rule["nodes"]]


def print_page(browser: "Chrome", page: Path) -> bytes:
    """Print a page as the browser's own dialogue would: on the paper that its style asks for, with its colours.

    Chromium 150 refuses one print in forty or so, of any page: "Printing failed". It prints the same page when it is
    asked again.
    """
    from selenium.common.exceptions import WebDriverException

    open_page(browser, page, width=1000)
    options = {"preferCSSPageSize": True, "printBackground": True}
    printed = None
    tries = 0
    while printed is None:
        tries += 1
        try:
            printed = browser.execute_cdp_cmd("Page.printToPDF", options)["data"]
        except WebDriverException as error:
            if tries == PRINTS or "Printing failed" not in str(error):
                raise
    return base64.b64decode(printed)


def count_pages(pdf: bytes) -> int:
    """Count the sheets of a PDF of Chromium's, which writes the objects of pages as plain text."""
    return len(re.findall(rb"/Type\s*/Page\b", pdf))
