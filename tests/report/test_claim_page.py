"""The page of a privacy claim: it says what is claimed, what is so, and why, and is made of claim.json alone."""

import json
from dataclasses import replace
from importlib import resources

import pytest
from jsonschema import Draft202012Validator

from fedattack.base.errors import ReportError
from fedattack.claims import Claim
from fedattack.report import read_claim, read_findings, read_run, render_html, write_report
from fedattack.report.claim import axis_of, render_claim, write_claim
from fedattack.report.claim_words import clients_of, meaning_of, readable, short_of, sums_of, ways_of
from fedattack.report.html import write_page
from fedattack.report.validate import validate_claim
from tests.report import claims, example
from tests.report.test_html import Page


@pytest.fixture(scope="module")
def sheet(tmp_path_factory):
    return claims.sheet(claims.platform(), tmp_path_factory.mktemp("claim"))


@pytest.fixture(scope="module")
def html(sheet):
    return render_claim(sheet)


def copy(sheet):
    return json.loads(json.dumps(sheet))


def test_the_schema_is_one():
    text = resources.files("fedattack.report").joinpath("claim.schema.json").read_text()
    Draft202012Validator.check_schema(json.loads(text))


def test_the_answer_stands_first(html):
    text = Page(html).text
    for words in (
        "Is ε = 10 true?",
        "Contradicted No: ε of the run of 5 rounds is at least 10⁹ by arithmetic, and 10 is claimed.",
        "Contradicted in 4 of 4 checks: by arithmetic, by the record, "
        f"by noise that is missing (client {claims.NODES[3]}) and by a test of the mechanism.",
        "10 claimed ≥ 10⁹ by arithmetic",
        "A test told two updates apart in 8,000 of 8,000 tries",
        "20,000 times below 2",
        "Make the noise larger: σ = 2.24 in place of 4.84e-05.",
    ):
        assert words in text
    assert text.index("Contradicted No:") < text.index("In plain words") < text.index("What was found")


def test_everything_in_the_sheet_is_on_the_page(sheet, html):
    text = Page(html).text
    facts = sheet["facts"]
    said = [
        facts["claim_sha256"],
        facts["checked"],
        facts["command"],
        facts["versions"]["flwr"],
        "draws 10,000",
        "seed 0",
    ]
    said += [*facts["records"], *facts["records"].values()]
    for finding in sheet["findings"]:
        said += [finding["name"], *(words[1:] for words in finding["assumes"]), *finding["clients"]]
    for client in sheet["recorded"]["clients"]:
        said += [client["node"], *client["faults"]]
    for test in sheet["recorded"]["tests"]:
        said += [test["name"], test["what"], f"{test['checked']:,}"]
    said += [step["what"] for step in sheet["next"]]
    said += [each["why"][1:] for each in sheet["open"]]
    for words in said:
        assert words in text


def test_the_client_without_noise_is_the_first_of_the_table(html):
    text = Page(html).text
    table = text[text.index("Client by client") :]
    assert table.index(claims.NODES[3]) < table.index(claims.NODES[0])


def table_of(sheet, **seen):
    """The columns of the table of clients, for a record in which this was seen."""
    recorded = {**sheet["recorded"], "noise_claimed": None, **seen}
    table = clients_of({**sheet, "recorded": recorded})
    return table and dict(zip(table.header, zip(*table.rows, strict=True), strict=True))


def test_the_noise_of_a_client_is_compared_with_what_the_claim_says_of_its_update(sheet):
    columns = table_of(sheet, noise_claimed=2 * claims.SIGMA)
    assert columns["Of what is claimed"][1] == "51%"


def test_sums_show_no_client(sheet):
    assert table_of(sheet, view="aggregate") is None
    server = {"noise_at_most": 0.3, "rounds": []}
    said = sums_of({"view": "aggregate", "server": server})
    assert said == "The noise in the mean of all clients has a deviation of at most 0.3."


def test_a_claim_that_holds_is_not_said_to_be_proved(tmp_path):
    text = Page(render_claim(claims.sheet(claims.central(), tmp_path))).text
    assert "Consistent Nothing contradicts it: ε of the run of 20 rounds is 4.98 at most, by arithmetic." in text
    assert "2 checks: by arithmetic and by canaries." in text
    assert "point estimate 3.4" in text
    assert "No check proves a claim: it may miss something." in text
    assert "contradicted by accident in at most 5% of runs, by canaries." in text
    assert "No mechanism was given" in text


def test_noise_that_was_searched_for_is_not_said_to_be_missing(sheet):
    findings = [{**finding, "verdict": "consistent", "clients": []} for finding in sheet["findings"]]
    assert "by a search for missing noise and by a test of the mechanism" in ways_of(findings)


def test_what_lies_beyond_the_axis_is_explained(sheet):
    value = readable(sheet)
    assert "beyond the axis" not in axis_of(value).caption
    value["findings"][0]["run"] = {"low": 1e14, "high": 1e14}
    assert "beyond the axis" in axis_of(value).caption


def test_an_open_answer_says_what_would_decide_it(tmp_path):
    text = Page(render_claim(claims.sheet(claims.undecided(), tmp_path))).text
    assert "Cannot be checked It cannot be said: ε of the run lies between 1.99 and 33.1" in text
    assert "Add largest-share to the claim" in text
    assert "What the record shows" not in text


def test_named_clients_alone_contradict_a_claim(sheet):
    value = readable(sheet)
    value["findings"] = [finding for finding in value["findings"] if finding["name"] == "claim.noise-missing"]
    assert short_of(value) == f"No: what client {claims.NODES[3]} sent contradicts the claim."
    for names, said in (
        (["a", "b"], "clients a and b"),
        (list("abcdefghi"), "9 clients"),
        ([], "the clients together"),
    ):
        value["findings"][0]["clients"] = names
        assert short_of(value) == f"No: what {said} sent contradicts the claim."


def test_a_headline_that_rests_on_chance_says_how_sure_it_is(sheet):
    value = readable(sheet)
    value["findings"] = [finding for finding in value["findings"] if finding["name"] == "claim.epsilon-measured"]
    said = "No: at 95 %, ε of the run of 5 rounds is at least 10⁹ by a test of the mechanism, and 10 is claimed."
    assert short_of(value) == said


def test_no_guarantee_at_all_is_said_so(sheet):
    value = copy(sheet)
    value["findings"][0] |= {"value": "infinity", "run": {"low": "infinity", "high": "infinity"}}
    text = Page(render_claim(value)).text
    assert "No: nothing bounds the ε of the run of 5 rounds." in text
    assert "10 claimed infinite by arithmetic" in text


@pytest.mark.parametrize(
    ("epsilon", "said"),
    [(1.0, "more than 2.7 times"), (10.0, "more than 22,000 times"), (30.0, "promises no useful protection")],
)
def test_what_epsilon_says_in_words(sheet, epsilon, said):
    value = readable(sheet)
    value["claim"]["epsilon"] = epsilon
    assert said in meaning_of(value)


def test_a_text_that_reads_infinity_stays_a_text(sheet):
    value = copy(sheet)
    value["findings"][2]["clients"] = ["infinity"]
    assert "Named: <bdi>infinity</bdi>." in render_claim(value)


def test_both_files_are_written_and_read_again(sheet, tmp_path):
    (tmp_path / "claim.pdf").write_text("of an older answer")
    page = write_claim(tmp_path, sheet)
    assert {path.name for path in tmp_path.iterdir()} == {"claim.json", "claim.html"}
    assert read_claim(tmp_path) == copy(sheet)
    assert page.read_text() == render_claim(read_claim(tmp_path))
    assert read_claim(tmp_path / "elsewhere") is None


def test_a_place_that_is_no_folder_is_said_in_one_line(sheet, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ReportError, match="give --out another folder"):
        write_claim(tmp_path / "file" / "below", sheet)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"verdict": "true"}, "'true' is not one of"),
        ({"findings": []}, "findings"),
        ({"more": 1}, "more"),
        ({"measured": {}}, "measured"),
        ({"claim": {"epsilon": float("nan")}}, "claim"),
        ({"facts": {}}, "facts"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(sheet, change, said):
    with pytest.raises(ReportError, match="make it with `fedattack claim`") as refused:
        validate_claim({**sheet, **change})
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_nan_is_no_number(sheet):
    value = copy(sheet)
    value["findings"][0]["run"]["low"] = float("nan")
    with pytest.raises(ReportError, match="not a finite number"):
        validate_claim(value)


def test_a_changed_file_is_noticed(sheet, tmp_path):
    write_claim(tmp_path, sheet)
    path = tmp_path / "claim.json"
    path.write_text(path.read_text().replace('"verdict": "contradicted"', '"verdict": "consistent"', 1))
    with pytest.raises(ReportError, match="does not match its checksum"):
        read_claim(tmp_path)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("claim", "clip"), "1.0", "claim.clip"),
        (("stated", "rounds"), "5", "stated.rounds"),
        (("recorded", "clients", 0, "run"), ["seed-0"], "clients[0].run"),
        (("recorded", "server", "faults"), 5, "server.faults"),
        (("recorded", "server", "faults"), [5], "server.faults[0]"),
        (("recorded", "server", "rounds"), [-1.0], "server.rounds[0]"),
        (("canaries", "scores", "in"), [1e308, -1e308], "canaries.scores.in[0]"),
        (("findings", 0, "run"), {"low": "infinity", "high": 0}, "findings[0].run: low is infinity"),
        (("verdict",), "consistent", "verdict: consistent; by its findings it is contradicted"),
    ],
)
def test_whatever_the_page_would_format_is_checked(sheet, path, value, said):
    changed = copy(sheet)
    changed["canaries"] = claims.canaries()
    changed["recorded"]["server"] = {"noise_at_most": 0.4, "rounds": [0.4], "faults": []}
    render_claim(changed)
    *path, last = path
    here = changed
    for key in path:
        here = here[key]
    here[last] = value
    with pytest.raises(ReportError) as raised:
        render_claim(changed)
    assert said in str(raised.value)


def test_noise_of_a_round_may_be_infinite(sheet):
    value = readable({"server": {"rounds": ["infinity", None]}})
    assert value["server"]["rounds"] == [float("inf"), None]


def test_the_schema_knows_the_keys_of_a_claim():
    text = resources.files("fedattack.report").joinpath("claim.schema.json").read_text()
    assert set(json.loads(text)["$defs"]["keys"]["properties"]) == set(Claim.model_json_schema()["properties"])


@pytest.mark.slow
def test_a_run_folder_says_what_became_of_its_claim(folder, sheet):
    before = Page(write_report(folder).read_text()).text
    assert "None is known for this run." in before
    write_claim(folder, sheet)
    (folder / "claim.html").write_text("<script>somebody else's</script>")
    html = write_report(folder).read_text()
    assert '<a href="claim.html">Is a privacy guarantee claimed, and is it true?</a>' in html
    assert "privacy claim contradicted" in Page(html).text
    assert "No: ε of the run of 5 rounds is at least 10⁹ by arithmetic" in Page(html).text
    assert (folder / "claim.html").read_text() == render_claim(sheet)
    assert html == render_html(example.findings(), example.run(), claim=sheet)


def test_a_claim_that_cannot_be_shown_leaves_no_page_of_another_one(folder, sheet, monkeypatch):
    write_claim(folder, sheet)
    (folder / "claim.html").write_text("another claim's")

    def fail(sheet):
        raise KeyError("nothing of the kind")

    monkeypatch.setattr("fedattack.report.html.render_claim", fail)
    unmade = {}
    html = write_page(folder, read_findings(folder), read_run(folder), unmade=unmade).read_text()
    assert [*unmade] == ["the page of the privacy claim"]
    assert not (folder / "claim.html").exists()
    assert 'href="claim.html"' not in html
    assert "The page of the privacy claim: KeyError" in Page(html).text


def test_a_record_of_many_clients_says_how_many_are_left_out(tmp_path):
    answer = claims.platform()
    client = claims.recorded()["clients"][0]
    many = [{**client, "node": f"node-{number}"} for number in range(150)]
    answer = replace(answer, recorded={**claims.recorded(), "clients": many})
    text = Page(render_claim(claims.sheet(answer, tmp_path))).text
    assert "node-99 " in text
    assert "node-100 " not in text
    assert "50 clients more in claim.json." in text
