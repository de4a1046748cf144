"""What ``fedattack claim`` writes, and where."""

import json

import pytest

from fedattack.report import read_claim
from tests.claims.known import PLATFORM_CLAIM
from tests.claims.recorded.runs import SMALL, Run, write_run
from tests.report.test_html import Page

NOISE = 'mechanism = "gaussian"\nclip = 1.0\nsigma = 1.5\nepsilon = 12\ndelta = 1e-5\nrounds = 3\n'


@pytest.fixture
def claim_file(tmp_path):
    path = tmp_path / "claim.toml"
    path.write_text(PLATFORM_CLAIM.format(rounds=5))
    return path


@pytest.mark.slow
def test_a_page_is_written_where_it_is_asked_for(call, claim_file, tmp_path):
    out = tmp_path / "new" / "page"
    words = ("claim", "--claim", claim_file, "--mechanism", "tests.claims.known:platform", "--draws", "2000")
    code, said, _ = call(*words, "--out", out, "--fail-if", "claim.epsilon-measured > 10")
    assert code == 3
    assert "claim.html" in said
    assert {path.name for path in out.iterdir()} == {"claim.html", "claim.json"}
    sheet = read_claim(out)
    assert sheet["facts"]["command"].startswith("fedattack claim --claim ")
    assert sheet["facts"]["draws"] == 2000
    assert len(sheet["facts"]["mechanism_sha256"]) == 64
    text = Page((out / "claim.html").read_text()).text
    assert "Contradicted in 2 of 2 checks: by arithmetic and by a test of the mechanism." in text
    assert "1,600 of 1,600" in text


def test_json_on_the_terminal_is_json_alone(call, claim_file, tmp_path):
    code, said, _ = call("claim", "--claim", claim_file, "--out", tmp_path, "--json")
    assert code == 0
    assert json.loads(said)["verdict"] == "contradicted"
    assert (tmp_path / "claim.html").exists()


def test_the_page_of_a_run_folder_lies_in_it(call, tmp_path):
    folder = tmp_path / "first"
    write_run(folder / "record", Run(SMALL, sigma=1.5, others={4: {"": 0.0}}))
    (tmp_path / "claim.toml").write_text(NOISE)
    words = ("claim", folder, "--claim", tmp_path / "claim.toml")
    assert "fedattack report" not in call(*words)[1]
    facts = read_claim(folder)["facts"]
    assert list(facts["records"]) == ["record"]
    text = Page((folder / "claim.html").read_text()).text
    assert "Contradicted in 2 of 3 checks: by the record and by noise that is missing (client 104)." in text
    assert "Ask what the named clients run" in text
    assert "Find out where the noise is lost" not in text
    (folder / "report.html").touch()
    assert "fedattack report" in call(*words)[1]


def test_nothing_is_written_into_a_record(call, tmp_path):
    write_run(tmp_path / "record", Run(SMALL, sigma=1.5))
    (tmp_path / "claim.toml").write_text(NOISE)
    before = sorted((tmp_path / "record").iterdir())
    assert call("claim", tmp_path / "record", "--claim", tmp_path / "claim.toml")[0] == 0
    assert sorted((tmp_path / "record").iterdir()) == before


def test_a_folder_with_links_in_it_takes_a_page(call, claim_file, tmp_path):
    """As the folder of a project with an environment; what the page replaces is not followed."""
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    (project / ".venv").mkdir(parents=True)
    elsewhere.write_text("of somebody else")
    (project / ".venv" / "lib64").symlink_to(tmp_path)
    (project / "claim.html").symlink_to(elsewhere)
    (project / "claim.pdf").symlink_to(elsewhere)
    assert call("claim", "--claim", claim_file, "--out", project)[0] == 0
    assert {path.name for path in project.iterdir()} == {".venv", "claim.html", "claim.json"}
    assert not (project / "claim.html").is_symlink()
    assert elsewhere.read_text() == "of somebody else"


@pytest.mark.parametrize(("limit", "expected"), [("10", 3), ("1e12", 2)])
def test_a_page_that_cannot_be_written_hides_no_condition(call, claim_file, tmp_path, limit, expected):
    (tmp_path / "file").touch()
    words = ("claim", "--claim", claim_file, "--out", tmp_path / "file", "--fail-if")
    code, said, err = call(*words, f"claim.epsilon-configured > {limit}")
    assert code == expected
    assert "Contradicted. The run claims" in said
    assert ("threshold crossed" in err) == (expected == 3)
    assert "give --out another folder" in err.replace("\n", " ")


def test_a_print_needs_a_page(call, claim_file):
    code, _, err = call("claim", "--claim", claim_file, "--pdf")
    assert code == 2
    assert "give --out as well" in err.replace("\n", " ")
