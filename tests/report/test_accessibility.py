"""Every kind of page, held against axe's rules in both themes, and printed."""

import pytest

from fedattack.report import write_report
from tests.report.chromium import broken_rules, count_pages, open_page, print_page
from tests.report.pages import KINDS

pytestmark = [pytest.mark.browser, pytest.mark.slow]

# One attack has six sheets at most. These pages have two, or more.
SHEETS = {"source-and-membership": 8, "membership": 8, "attribute-network": 8, "attribute-linear": 8}

# A reproduction's picture is no page.
PAGES = [name for name in KINDS if name != "reproduce"]


@pytest.fixture(scope="module", params=PAGES)
def made(request, browser, tmp_path_factory):
    """A kind's name and its page."""
    return request.param, KINDS[request.param](tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize(("scheme", "width"), [("light", 1400), ("dark", 390)])
def test_axe_finds_no_fault(browser, made, scheme, width):
    open_page(browser, made[1], width=width, scheme=scheme)
    # Tables that are folded are checked, too.
    browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert broken_rules(browser) == []


def test_axe_sees_what_is_wrong(browser, folder):
    """Its script runs although the page's policy forbids scripts."""
    open_page(browser, write_report(folder), width=1000)
    browser.execute_script("document.querySelector('h1').style.color = '#eee'; document.documentElement.lang = ''")
    found = "\n".join(broken_rules(browser))
    assert "color-contrast: <h1" in found
    assert "html-has-lang" in found


def test_it_fits_on_few_sheets(browser, made):
    name, page = made
    assert 0 < count_pages(print_page(browser, page)) <= SHEETS.get(name, 6)


def test_paper_is_white_whatever_the_theme(browser, folder):
    open_page(browser, write_report(folder), width=1000, scheme="dark")
    script = "return [...document.querySelectorAll('h1, .muted, .panel')].map(e => getComputedStyle(e).color)"
    on_screen = browser.execute_script(script)
    media = {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    on_paper = browser.execute_script(script)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    open_page(browser, folder / "report.html", width=1000, scheme="light")
    assert on_paper == browser.execute_script(script) != on_screen
