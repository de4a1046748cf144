import json
from dataclasses import replace

import pytest

from fedattack.report import compare_runs, write_report
from fedattack.report.claim import write_claim
from tests.report import claims, example
from tests.report.chromium import open_page

pytestmark = pytest.mark.browser


MARKUP = "</svg><script>document.title='taken'</script><b id='injected'>b</b>"


def written(folder, findings, run):
    (folder / "findings.json").write_text(json.dumps(findings))
    (folder / "run.json").write_text(json.dumps(run))
    return folder


def source_report(folder):
    findings, run = [finding.to_dict() for finding in example.findings()], example.run()
    run["observed"]["in_plaintext"].append(MARKUP)
    run["holdings"]["clients"][0] = "<b id='injected'>"
    run["provenance"]["commands"].append("fedattack attack sia " + "--set key=value " * 30)
    findings[0]["series"]["per_client"][0]["client"] = MARKUP
    return write_report(written(folder, findings, run))


def property_report(folder):
    findings, run = [finding.to_dict() for finding in example.prolin_findings()], example.prolin_run()
    findings[0]["series"]["posteriors"][0]["client"] = MARKUP
    findings[0]["series"]["plaintext"][0]["metric"] = MARKUP
    return write_report(written(folder, findings, run))


def attribute_report(folder):
    values = [MARKUP, "a value of a column whose name is long"]
    asked = {"column": "a column whose name is long", "values": values, "rarest": values[1]}
    row = {"low": 0.2, "high": 0.6, "balanced": 0.5, "rare_recall": 0.1, "excess": -3.0}
    row |= {"excess_low": None, "excess_high": None, "accuracy": 0.4}
    names = ["cos", "stats-true-label-gradient", "imputation without the model", "aia: reconstructed and put together"]
    methods = [{"method": name, "baseline": number > 1, **row} for number, name in enumerate(names)]
    series = {
        "attributes": asked | {"best_baseline": "majority", "imputed_by": [], "random": 0.5, "methods": methods},
        "asked": asked,
        "roc": {"fpr": [0.0001, 0.01, 0.5], "value": [0.1, 0.2, 1.0]},
        "scores": {"edges": [-1e-7, 0.5, 1e5], "positive": [1, 200_000], "negative": [300_000, 5]},
    }
    series["attributes"].pop("rarest")
    series["attributes"]["rarest"] = MARKUP
    finding = replace(example.findings()[0], attack="ara", metric="excess", units="points", series=series)
    return write_report(written(folder, [finding.to_dict()], example.run()))


def claim_page(folder):
    value = claims.sheet(claims.platform(), folder)
    value["canaries"] = claims.canaries() | {"notes": [MARKUP]}
    value["recorded"]["clients"][0]["node"] = MARKUP
    value["findings"][0]["notes"].append(MARKUP)
    value["facts"]["records"][MARKUP] = "0" * 64
    value["facts"]["command"] = "fedattack claim " + "--claim a-folder-with-a-long-name/claim.toml " * 9
    return write_claim(folder, value)


def private_report(folder):
    from tests.threats.group.test_section import findings

    found = findings(16)
    found[1] = replace(found[1], label=f"Colour named by {MARKUP}")
    return write_report(written(folder, [finding.to_dict() for finding in found], example.run()))


def unlike_runs(folder):
    runs = []
    for name in ("a run of many settings, whose folder has a long name", "b"):
        run = example.run()
        run["setting"] |= {"lr": len(name), "rounds": len(name), "preset": MARKUP + name}
        baselines = {"always naming the largest client": 0.2, "imputation without the model, by a random forest": 0.3}
        finding = replace(example.findings()[0], label=MARKUP, baselines=baselines)
        runs.append(folder / name)
        runs[-1].mkdir()
        written(runs[-1], [finding.to_dict()], run)
    return compare_runs(runs, folder)


def comparison(folder):
    runs = []
    for clients in (50, 100, 200):
        findings = [finding.to_dict() for finding in example.prolin_findings(clients)]
        findings[1]["label"] = MARKUP
        runs.append(folder / f"clients-{clients}")
        runs[-1].mkdir()
        written(runs[-1], findings, example.prolin_run(clients))
    return compare_runs(runs, folder)


@pytest.fixture(
    scope="module",
    params=[
        (source_report, 6),
        (property_report, 8),
        (attribute_report, 6),
        (private_report, 5),
        (claim_page, 2),
        (comparison, 1),
        (unlike_runs, 1),
    ],
    ids=lambda p: p[0].__name__,
)
def made(request, tmp_path_factory):
    """A page with markup in names that came from clients, and how many figures it has."""
    make, figures = request.param
    return make(tmp_path_factory.mktemp("run")), figures


@pytest.fixture
def page(made):
    return made[0]


def show(browser, page, width, theme):
    browser.get_log("browser")
    browser.get_log("performance")
    open_page(browser, page, width=width, scheme=theme)


def requests(browser):
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    # The browser's own first page may still be loading.
    return [url for url in urls if not url.startswith("chrome:")]


@pytest.mark.parametrize("width", [360, 400, 700])
def test_nothing_of_a_claim_is_cut_at_the_right_of_a_narrow_screen(browser, tmp_path, width):
    open_page(browser, claims.page(claims.platform(), tmp_path), width=width, scheme="light")
    cut = "return [...document.querySelectorAll('.scroll')].map(e => e.scrollWidth - e.clientWidth)"
    assert browser.execute_script(cut) == [0] * 3
    shown = "return getComputedStyle(document.querySelector('.texts td'), '::before').content"
    assert "Faults" in browser.execute_script(shown)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 800, 1600])
def test_the_page_fits_loads_nothing_else_and_reports_no_errors(browser, page, width, theme):
    show(browser, page, width, theme)
    browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.execute_script("return innerWidth") == width
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    # Clipped content would not show in the page's scroll width.
    beyond = browser.execute_script(
        """return [...document.querySelectorAll('main *:not(svg *)')].filter(e => !e.closest('.scroll, pre')
           && e.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5).map(e => e.outerHTML)"""
    )
    assert beyond == []
    assert requests(browser) == [page.as_uri()]
    assert browser.get_log("browser") == []


def test_the_two_themes_have_different_grounds_and_inks(browser, page):
    script = """const of = (s, p) => getComputedStyle(document.querySelector(s) ?? document.body)[p];
        return [of('body', 'backgroundColor'), of('h1', 'color'), of('.panel', 'backgroundColor'),
                of('.badge.leak', 'color'), of('svg.plot text', 'fill'), of('svg.plot use', 'fill')]"""
    looks = {}
    for theme in ("light", "dark"):
        show(browser, page, 800, theme)
        looks[theme] = browser.execute_script(script)
    assert all(light != dark for light, dark in zip(*looks.values(), strict=True))

    def brightness(colour):
        return sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(","))

    for theme, sign in (("light", 1), ("dark", -1)):
        ground, ink = looks[theme][2], looks[theme][4]
        assert sign * (brightness(ground) - brightness(ink)) > 450


def test_every_figure_has_an_accessible_name_and_description(browser, made):
    page, figures = made
    show(browser, page, 800, "light")
    browser.execute_cdp_cmd("Accessibility.enable", {})
    nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    images = [node for node in nodes if node.get("role", {}).get("value") in ("image", "img")]
    assert len(images) == browser.execute_script("return document.querySelectorAll('svg').length") == figures
    for image in images:
        assert image["name"]["value"]
        assert any(digit in image["description"]["value"] for digit in "0123456789")


def test_names_from_clients_make_no_elements(browser, page):
    show(browser, page, 800, "light")
    assert browser.title.endswith(" – fedattack")
    assert browser.execute_script("return document.querySelectorAll('script, #injected').length") == 0
    assert MARKUP in browser.execute_script("return document.body.textContent")


def test_text_in_figures_stays_inside_them_and_apart(browser, page):
    """Figures are laid out for another font and another size than the page uses."""
    overlaps = """
        const found = [];
        for (const svg of document.querySelectorAll('svg.plot')) {
            const frame = svg.getBoundingClientRect();
            const boxes = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
            boxes.forEach(([text, a], i) => {
                if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.top < frame.top - 1
                    || a.bottom > frame.bottom + 1) found.push(text + ' leaves the figure');
                for (const [other, b] of boxes.slice(i + 1))
                    if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
                        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3) found.push([text, other]);
            });
        }
        return found"""
    for width in (360, 800, 1600):
        show(browser, page, width, "light")
        assert browser.execute_script(overlaps) == []
