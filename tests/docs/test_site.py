"""The site of the guides: built as `make docs` does, and looked at page by page as somebody does who has no network."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.report.chromium import broken_rules, open_page

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", ".docs/mkdocs.yml"]
    done = subprocess.run([*words, "--site-dir", str(folder)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def pages_of(site: Path) -> list[Path]:
    return sorted(path for path in site.rglob("*.html") if path.name != "404.html")


@pytest.mark.slow
def test_every_guide_is_a_page(site):
    guides = [*ROOT.glob("*.md"), *(path for room in ROOT.glob("[a-z]*") for path in room.rglob("*.md"))]
    guides = [path.relative_to(ROOT) for path in guides if path.relative_to(ROOT).parts[0] not in ("build", "runs")]
    expected = {path.with_name("index" if path.stem == "README" else path.stem).with_suffix(".html") for path in guides}
    assert expected <= {page.relative_to(site) for page in pages_of(site)}


@pytest.mark.slow
def test_nothing_is_fetched_from_elsewhere(site):
    """But for links, which a reader clicks."""
    for page in pages_of(site):
        text = re.sub(r"<a\s[^>]*>", "", page.read_text(encoding="utf-8"))
        assert re.findall(r"""<[^>]+(?:src|href|srcset|action)=["']?(?:https?:)?//[^>]*>""", text) == [], page
    for sheet in site.rglob("*.css"):
        assert re.findall(r"url\(\W?https?:|@import", sheet.read_text(encoding="utf-8")) == [], sheet


@pytest.mark.slow
def test_items_of_lists_are_items(site):
    """GitHub begins a list without an empty line before it; the site's Markdown takes it for more of a paragraph."""
    for page in pages_of(site):
        text = page.read_text(encoding="utf-8")
        for paragraph in re.findall(r"<(?:p|li)>(.*?)<(?:/p|/li|ul|ol|p)>", text, flags=re.DOTALL):
            assert re.findall(r"\n *(?:[-*]|\d+\.) \S.*", paragraph) == [], page


@pytest.mark.slow
def test_the_reference_has_what_the_program_says(site):
    audit = (site / "reference/commands/audit.html").read_text(encoding="utf-8")
    assert "--supernodes" in audit
    assert "Number of clients; by default the number that the app or Flower" in audit
    assert "observe.ObservedStrategy" in (site / "reference/library/observe.html").read_text(encoding="utf-8")
    assert "Secure aggregation" in (site / "reference/glossary.html").read_text(encoding="utf-8")
    assert "sia.asr-beyond-labels" in (site / "reference/findings.html").read_text(encoding="utf-8")
    assert "More than 0" in (site / "reference/settings.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("membership", "threats/membership/index.html"),
        ("epsilon", "claims/index.html"),
        ("secagg", "threats/index.html"),
        ("my own app", "tutorials/own-app.html"),
    ],
)
def test_search_puts_the_guide_first(browser, site, words, first):
    assert first in search(browser, site, words)[0]


@pytest.mark.slow
@pytest.mark.browser
def test_search_finds_a_word_without_a_network(browser, site):
    assert any("CANARIES.html" in link for link in search(browser, site, "honest-but-curious canaries"))
    assert requested(browser) == set()


def search(browser, site: Path, words: str) -> list[str]:
    """Return where the search leads, the best first."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    open_page(browser, site / "index.html", width=1400)
    browser.get_log("performance")
    browser.find_element(By.CSS_SELECTOR, ".md-search__input").send_keys(words)
    found = WebDriverWait(browser, 30).until(
        lambda page: page.find_elements(By.CSS_SELECTOR, ".md-search-result__link")
    )
    return [link.get_attribute("href") for link in found]


def requested(browser) -> set[str]:
    """Return what was asked of other places than this folder since the last call."""
    urls = set()
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            urls.add(message["params"]["request"]["url"])
    return {url for url in urls if not url.startswith(("file:", "data:", "about:", "blob:"))}


@pytest.mark.browser
@pytest.mark.long
@pytest.mark.parametrize(("scheme", "width"), [("light", 1400), ("dark", 390)])
def test_every_page_is_legible(browser, site, scheme, width):
    faults = {}
    browser.get_log("performance")
    for page in pages_of(site):
        open_page(browser, page, width=width, scheme=scheme)
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        found = broken_rules(browser, ("serious", "critical"))
        found += [f"it is {wide} pixels wide"] * (wide > width)
        found += [f"it fetches {url}" for url in requested(browser)]
        shown = browser.execute_script("return getComputedStyle(document.body).colorScheme")
        found += [f"it is {shown}"] * (shown != scheme)
        if found:
            faults[page.relative_to(site).as_posix()] = found
    assert faults == {}
