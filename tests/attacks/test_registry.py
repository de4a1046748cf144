"""Threats of other packages: found by an entry point, attacked, judged and shown without an edit anywhere else."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import fedattack
from fedattack.attacks import ATTACKS
from fedattack.attacks.options import Options
from fedattack.attacks.registry import THREATS, AttackRegistry, _find_fault, threat_of
from fedattack.attacks.threat import Threat
from fedattack.audit.truth import read_truth
from fedattack.base import registry
from fedattack.base.errors import ConfigError, ReportError
from fedattack.base.registry import Registry
from fedattack.record import Record
from fedattack.record.folder import find_parts, read_study
from fedattack.report import validate_findings
from fedattack.report.section import COMMON, Section, section_of
from tests.worlds.federation import write_run

TOY = Path(__file__).parent / "toy" / "toy_threat"
SOURCE = Path(fedattack.__file__).parents[1]

# Commands in one process: each start of Python imports torch again.
COMMANDS = """
import sys
from fedattack.cli import main
for words in {words!r}:
    sys.argv = ["fedattack", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""


# A threat without attacks, whose folder may hold presets.
BARE = """
from fedattack.attacks.threat import Threat
class Bare(Threat):
    name = {name!r}
    question = "?"
    options = ()
    def load_attacks(self):
        return ()
    def load_judges(self):
        return {{}}
THREAT = Bare()
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder of installed packages: the toy, and one whose module is gone."""
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(TOY, site / "toy_threat")
    install(site, "toy-threat", "toy = toy_threat:THREAT", **OTHERS)
    install(site, "gone", "gone = no_such_module:THREAT")
    return site


OTHERS = {
    "datasets": "toy = toy_threat.dataset:SOURCES",
    "defences": "toy = toy_threat.defence:KIND",
    "frameworks": "toy-avg = toy_threat.framework:FRAMEWORK",
}


def install(site: Path, package: str, threat: str, **others: str) -> None:
    """Write what Python finds of an installed package and its entry points."""
    info = site / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    groups = {"threats": threat, **others}
    text = "".join(f"[fedattack.{group}]\n{entry}\n" for group, entry in groups.items())
    (info / "entry_points.txt").write_text(text)


def with_bare(site: Path, package: str, name: str, preset: str) -> None:
    """Put a package with a bare threat and one preset into a folder of installed packages."""
    (site / package / "presets").mkdir(parents=True)
    (site / package / "__init__.py").write_text(BARE.format(name=name))
    text = (TOY / "presets" / "toy.toml").read_text()
    (site / package / "presets" / f"{preset}.toml").write_text(text.replace('"toy"', '"sia"'))


def run_with(site: Path, *words: list[str]) -> str:
    """Run commands where the packages of a folder are installed; returns what they print."""
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS.format(words=words)],
        env={**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{SOURCE}", "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_toy_of_another_package_is_listed_attacked_judged_and_shown(installed, tmp_path):
    write_run(tmp_path / "run")
    folder = str(tmp_path / "run")
    printed = run_with(installed, ["list", "--json"], ["attack", "toy", folder], ["report", folder])
    listed, _ = json.JSONDecoder().raw_decode(printed)
    assert listed["threats"]["toy"] == {"question": "Which client holds the most examples?", "attacks": ["toy"]}
    assert listed["attacks"]["toy"]["title"] == "The largest update"
    assert listed["attacks"]["toy"]["options"] == {"power": "of the norm of an update"}
    assert listed["presets"]["toy"]["help"] == "Who holds the most examples?"
    assert "no_such_module" in listed["left_out"]["fedattack.threats"]["gone"]
    assert listed["datasets"][-1] == "toy-clouds"
    assert listed["settings"]["toy-shrink-power"] == {"default": 1.0, "help": "toy-shrink: power of the strength"}

    (finding,) = json.loads((tmp_path / "run" / "findings.json").read_text())
    assert (finding["attack"], finding["metric"], finding["paper"]) == ("toy", "named", "nobody's")
    page = (tmp_path / "run" / "report.html").read_text()
    for text in ("The toy server named the largest client in", "Who was named", "A toy: one answer a seed."):
        assert text in page
    # Where the toy is not installed its findings are still shown, by their label.
    assert validate_findings([finding])[0].label == "Largest client named"


@pytest.mark.slow
def test_the_contract_tests_of_attacks_run_on_that_of_another_package(installed):
    words = ["tests/attacks/test_contract.py", "-m", "", "-k", "toy-fedavg", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=SOURCE,
        env={**os.environ, "PYTHONPATH": f"{installed}{os.pathsep}{SOURCE}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "11 passed" in done.stdout


@pytest.mark.long
@pytest.mark.flower
def test_the_preset_of_another_package_runs(installed, tmp_path):
    run_with(installed, ["audit", "toy", "--out", str(tmp_path / "run")])
    (finding,) = json.loads((tmp_path / "run" / "findings.json").read_text())
    assert (finding["attack"], finding["metric"], finding["n"]) == ("toy", "named", 1)
    truth = read_truth(tmp_path / "run" / "truth")
    assert truth.answers["toy"]["sizes"].tolist() == truth.counts.sum(axis=1).tolist()
    assert "Who was named" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.flower
def test_dataset_defence_and_framework_of_another_package_are_run(installed, tmp_path):
    changes = [
        *(
            "dataset=toy-clouds",
            "framework=toy-avg",
            "defence=toy-shrink",
            "defence-strength=0.5",
            "toy-shrink-power=2",
        ),
        *("rounds=2", "clients=4", "records-per-client=20", "partition=iid", "model=linear"),
    ]
    words = [word for change in changes for word in ("--set", change)]
    folder = tmp_path / "run"
    run_with(installed, ["simulate", "quickstart", "--out", str(folder), "--seeds", "1", *words])
    (part,) = find_parts(folder)
    record = Record(part.record)
    assert (len(record), record.protocol, len(record.nodes)) == (2, "fedavg", 4)
    assert read_study(folder)["settings"]["toy-shrink-power"] == 2.0


@pytest.mark.slow
def test_names_that_are_taken_are_listed_as_left_out(tmp_path):
    """Entry points come in the order of their names and of what they lead to, and the first counts."""
    for package, name, preset in (("one", "ours", "own"), ("two", "ours", "other"), ("zwei", "theirs", "own")):
        with_bare(tmp_path, package, name, preset)
        install(tmp_path, package, f"same = {package}:THREAT")
    with_bare(tmp_path, "four", "fourth", "quickstart")
    install(tmp_path, "four", "fourth = four:THREAT")
    printed = run_with(tmp_path, ["list", "--json"], ["list"])
    listed, end = json.JSONDecoder().raw_decode(printed)
    assert {"ours", "theirs", "fourth"} <= {*listed["threats"]}
    why = "two:THREAT has the name 'ours', which the threat of one has"
    assert listed["left_out"] == {"fedattack.threats": {"same (two:THREAT)": why}}
    doubles = {str(Path(file).relative_to(tmp_path)): why for file, why in listed["presets_left_out"].items()}
    assert [*doubles] == ["four/presets/quickstart.toml", "zwei/presets/own.toml"]
    assert doubles["zwei/presets/own.toml"] == f"the preset 'own' is that of {tmp_path}/one/presets/own.toml"
    assert listed["presets"]["quickstart"]["settings"] != listed["presets"]["own"]["settings"]
    for text in ("Left out of what other packages add", "same (two:THREAT)", "Presets that are left out"):
        assert text in printed[end:]


def test_packages_are_searched_for_when_a_threat_is_asked_for(tmp_path):
    with_bare(tmp_path, "bare", "bare", "bare")
    install(tmp_path, "bare", "bare = bare:THREAT")
    script = (
        "import sys, fedattack.report, fedattack.runs.presets as presets\n"
        "print('bare' in sys.modules); presets.preset_names(); print('bare' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCE}"}
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_a_package_in_the_working_directory_is_none(installed):
    """It may be a folder that somebody handed over; Python itself looks there first, as in a notebook."""
    script = "from fedattack.attacks.registry import THREATS; print('toy' in THREATS, *THREATS.left_out)"
    environment = {**os.environ, "PYTHONPATH": str(Path(fedattack.__file__).parents[1])}
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, cwd=installed, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_every_part_of_every_threat_is_there():
    assert not THREATS.left_out
    for name, threat in THREATS.items():
        assert threat.name == name
        assert {attack.options.name for attack in threat.load_attacks()} == {*threat.attacks}
        for attack in threat.attacks:
            assert type(ATTACKS[attack]) in threat.load_attacks()
            assert threat_of(attack) is threat
        assert {*threat.load_judges()} == {*threat.judged}
        for attack in threat.judged:
            assert threat.find_judge(attack).metrics()
        assert isinstance(threat.load_section(), Section)


class Toy(Options):
    name = "toy"


class Theirs(Threat):
    name = "theirs"
    question = "?"
    options = (Toy,)

    def load_attacks(self):
        from no_such_package import attack

        return (attack,)

    def load_judges(self):
        return {"other": Theirs}


def test_a_part_of_another_package_that_cannot_be_loaded_is_refused_in_one_line(monkeypatch):
    theirs = Theirs()
    with pytest.raises(ConfigError, match=r"^tests\.attacks cannot load its judges: 'toy'"):
        theirs.find_judge("toy")
    monkeypatch.setattr(THREATS, "_found", ({**THREATS, "theirs": theirs}, {}))
    monkeypatch.setattr(Theirs, "read_text", lambda self, name: "[[remedy]]\nheals = 1")
    with pytest.raises(ConfigError, match=r"^tests\.attacks cannot load its section: .*'heals'"):
        section_of.__wrapped__("toy")
    assert "toy" not in AttackRegistry()
    assert THREATS.left_out == {"toy": "tests.attacks: No module named 'no_such_package'"}
    monkeypatch.setattr(THREATS["source"], "load_judges", theirs.load_judges)
    with pytest.raises(KeyError):
        THREATS["source"].find_judge("sia")


def test_a_threat_that_lacks_what_lists_show_is_left_out(monkeypatch):
    entry = SimpleNamespace(value="tests:THREAT", load=Theirs)
    monkeypatch.setattr(registry, "installed_in", lambda group: {"theirs": entry})
    threats = Registry("fedattack.threats", Threat, lambda: (), _find_fault)
    assert not threats
    assert threats.left_out == {"theirs": "tests:THREAT has an attack 'toy' that states no title"}


def test_findings_of_an_attack_that_is_not_installed_have_the_common_figures():
    assert section_of("never-heard-of") is COMMON


def test_series_have_the_form_that_their_threat_says():
    from tests.report import example

    finding = next(finding.to_dict() for finding in example.findings() if finding.attack == "sia")
    validate_findings([finding])
    finding["series"] = {"targets": {"one client holds": -1}}
    with pytest.raises(ReportError, match=r"\$\[0\]\.series\.targets.*the series of its threat"):
        validate_findings([finding])
