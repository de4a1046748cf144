"""Workflows of this project and of the guide fit the forms of GitHub and GitLab, and trust as little as they can."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.test_readme import DOCUMENTS

ROOT = Path(__file__).parents[1]
OURS = sorted((ROOT / ".github").rglob("*.yml"))
SHOWN = [content for document in DOCUMENTS for language, content in document.blocks() if language == "yaml"]
WORKFLOWS = [path.read_text() for path in OURS] + SHOWN


def check(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "workflow.yml"
    file.write_text(text)
    form = "vendor.github-workflows" if "runs-on:" in text else "vendor.gitlab-ci"
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", form, str(file)]
    return subprocess.run(words, capture_output=True, text=True)


def test_there_are_workflows_of_the_project_and_of_both_servers():
    assert [path.name for path in OURS] == ["ci.yml"]
    assert ["runs-on:" in text for text in SHOWN] == [True, False]


@pytest.mark.parametrize("text", WORKFLOWS, ids=lambda text: text.split()[0])
def test_a_workflow_fits_its_form(text, tmp_path):
    done = check(text, tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("text", WORKFLOWS, ids=lambda text: text.split()[0])
def test_a_misspelt_workflow_is_noticed(text, tmp_path):
    assert check(re.sub(r"runs-on|when: always", "runs-under: always", text), tmp_path).returncode == 1


@pytest.mark.parametrize("text", WORKFLOWS, ids=lambda text: text.split()[0])
def test_actions_are_named_by_their_commit(text):
    for line in re.findall(r"uses: (.*)", text):
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)


def test_the_same_action_has_one_commit():
    named = {tuple(line.split("@")) for text in WORKFLOWS for line in re.findall(r"uses: (.*)", text)}
    assert len({name for name, _ in named}) == len(named)


def test_only_a_release_may_do_more_than_read():
    (text, shown) = (text for text in WORKFLOWS if "runs-on:" in text)
    jobs = yaml.safe_load(text)["jobs"]
    assert yaml.safe_load(text)["permissions"] == yaml.safe_load(shown)["permissions"] == {"contents": "read"}
    assert {name: job["permissions"] for name, job in jobs.items() if "permissions" in job} == {
        "release": {"id-token": "write"}
    }
    assert jobs["release"]["if"] == "github.event_name == 'release'"
    assert {*jobs["release"]["needs"]} == {*jobs} - {"release"}
