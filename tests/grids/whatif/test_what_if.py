"""The command on recorded runs: what it finds, what it leaves alone, and how it ends."""

import json
import re
import shutil

import pytest

from fedattack.attacks import read_knowledge
from fedattack.attacks.knowledge import BUILT_IN
from fedattack.record.folder import read_study, write_study
from fedattack.report import read_findings
from tests.report.test_html import Page
from tests.worlds.federation import write_property_run, write_run, write_sums_run
from tests.worlds.private import write_private_run

# What is asked is written and attacked first.
pytestmark = pytest.mark.slow

SEEDS = (0, 1)
HUGE = "1000"
# What judging states; setting and provenance say how the copy came about.
STATED = ("value", "low", "high", "here_low", "here_high", "n", "chance", "null", "p", "verdict", "baselines", "series")


def tree(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def stated(folder):
    return {finding.name: {key: getattr(finding, key) for key in STATED} for finding in read_findings(folder)}


def fedattack_command(call, *words):
    code, out, err = call(*words)
    assert code == 0, err
    return out


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two seeds in which source inference names nearly all owners."""
    folder = tmp_path_factory.mktemp("whatif") / "run"
    for seed in SEEDS:
        write_run(folder, seed=seed, part=f"seed-{seed}", epochs=20)
    return folder


@pytest.fixture
def attacked(run, call):
    if not (run / "findings.json").exists():
        fedattack_command(call, "attack", "sia", run, "--device", "cpu", "-q")
        fedattack_command(call, "report", run, "--device", "cpu", "-q")
    return run


@pytest.fixture
def asked(attacked, call, tmp_path_factory):
    """The folder of the results, what was printed, and whether the run stayed as it was."""
    out = attacked.parent / "out"
    if not out.exists():
        before = tree(attacked)
        words = ("--secagg", "--noise", "0", "--noise", HUGE, "--keep", "1", "--keep", "0.05", "--json", "-q")
        printed = fedattack_command(call, "what-if", attacked, *words, "--out", out, "--device", "cpu")
        assert tree(attacked) == before, "nothing in the run is changed"
        assert json.loads(printed) == json.loads((out / "what-if.json").read_text())
    return out


def cells_of(out):
    return {entry["label"]: entry for entry in json.loads((out / "what-if.json").read_text())["runs"]}


def asr(entry):
    return next(finding for finding in entry["findings"] if finding["name"] == "sia.asr")


@pytest.mark.parametrize("cell", ["as-it-was", "noise-0.0", "keep-1.0"])
@pytest.mark.slow
def test_what_changes_nothing_finds_the_same(asked, attacked, cell):
    assert stated(asked / "cells" / cell) == stated(attacked)


def test_behind_huge_noise_source_inference_guesses(asked):
    cells = cells_of(asked)
    before, after = asr(cells["as it was"]), asr(cells[f"noise, σ = {HUGE}"])
    assert (before["verdict"], before["value"] > 0.9) == ("leak", True)
    assert after["verdict"] != "leak"
    assert after["low"] < after["chance"] < after["high"]
    assert asr(cells["5% of entries kept"])["value"] < before["value"]


def test_what_needs_single_replies_is_not_asked_of_sums_and_what_takes_sums_is(asked):
    cells = cells_of(asked)
    (missing,) = cells["secure aggregation"]["not_asked"]
    assert missing == {"attack": "sia", "why": "it needs each client's reply, but this server sees only sums"}
    assert cells["secure aggregation"]["findings"] == []
    assert all(not entry["not_asked"] for label, entry in cells.items() if label != "secure aggregation")


def test_the_page_puts_all_side_by_side_and_says_what_it_cannot_tell(asked):
    page = (asked / "what-if.html").read_text()
    text = Page(page).text
    for label in cells_of(asked):
        assert label in text
    assert "How training would have gone." in text
    assert "cannot be made any more: the server sees only sums" in text
    links = re.findall(r'href="(cells/[^"]*)"', page)
    assert len(links) == 5
    assert all((asked / link).exists() for link in links)
    markdown = (asked / "what-if.md").read_text()
    assert "How training would have gone." in markdown
    assert not re.search(r"<script|<link|@import|src=", page)


def test_copies_are_dropped_once_they_are_judged(asked):
    assert not [*asked.glob("cells/*/record")]
    assert (asked / "cells" / "keep-0.05" / "scores" / "seed-1" / "sia.npz").exists()


@pytest.mark.slow
def test_gates_are_about_the_copies(attacked, call, tmp_path):
    def ask(condition, *words):
        out = tmp_path / str(len([*tmp_path.iterdir()]))
        return call("what-if", attacked, *words, "--out", out, "--fail-if", condition, "--device", "cpu", "-q")

    code, _, err = ask("sia.asr > 0.9", "--noise", "0", "--noise", HUGE)
    assert code == 3
    assert err == "threshold crossed: sia.asr > 0.9 (noise, σ = 0)\n"
    assert ask("sia.asr > 0.9", "--noise", HUGE)[0] == 0, "the run as it was is above it"
    code, _, err = ask("sia.asr > 0.9", "--secagg")
    assert code == 2
    assert "no altered copy measures this" in err


def test_attackers_who_can_know_the_defence_are_told(call, tmp_path):
    folder = write_private_run(tmp_path / "run", rounds=1)
    options = ("--option", "epochs=5", "--option", "clients=30")
    fedattack_command(call, "attack", "private-attribute", folder, *options, "--device", "cpu", "-q")
    out = tmp_path / "out"
    words = ("--noise", "0.5", *options, "--keep-records", "--device", "cpu")
    shown = fedattack_command(call, "what-if", folder, *words, "--out", out, "-q")
    assert "0.5" in shown
    was, noisy = cells_of(out).values()
    assert (was["adaptive"], noisy["adaptive"]) == (False, True)
    blind = {finding["name"] for finding in was["findings"]}
    assert {finding["name"] for finding in noisy["findings"]} == blind | {f"{name}-adaptive" for name in blind}
    told = read_knowledge(out / "cells" / "noise-0.5" / "knowledge").defence
    assert (told.spec, told.settings) == (
        BUILT_IN,
        {"defence": "dp-gaussian", "defence-strength": 0.5, "defence-clip": 0.0},
    )
    assert read_knowledge(out / "cells" / "as-it-was" / "knowledge").defence is None
    assert (out / "cells" / "noise-0.5" / "record" / "manifest.json").exists()
    # Without a defence there is nothing to know of: the page shows the attacker who does not know in both rows.
    assert "What other attackers do who know the defence." in Page((out / "what-if.html").read_text()).text
    rows = [line for line in (out / "what-if.md").read_text().splitlines() if "as it was" in line]
    assert not any("not asked" in row for row in rows)


def test_the_report_of_a_copy_says_what_it_is_of(asked):
    run = json.loads((asked / "cells" / "keep-0.05" / "run.json").read_text())
    assert run["setting"]["what-if"] == "5% of entries kept"
    assert any("altered copy" in note for note in run["notes"])
    assert not any(
        "altered copy" in note for note in json.loads((asked / "cells/as-it-was/run.json").read_text())["notes"]
    )


def test_options_of_the_run_are_taken_again(call, tmp_path):
    folder = write_private_run(tmp_path / "run", rounds=1)
    options = {"epochs": "5", "clients": "30"}
    words = [word for key, value in options.items() for word in ("--option", f"{key}={value}")]
    fedattack_command(call, "attack", "private-attribute", folder, *words, "--device", "cpu", "-q")
    fedattack_command(call, "report", folder, "--device", "cpu", "-q")
    write_study(folder, {**read_study(folder), "attacks": ["private-attribute"], "options": options})
    fedattack_command(call, "what-if", folder, "--keep", "1", "--out", tmp_path / "out", "--device", "cpu", "-q")
    assert stated(tmp_path / "out" / "cells" / "keep-1.0") == stated(folder)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no change is given: use --secagg, --noise SIGMA or --keep SHARE"),
        (("--keep", "0"), "--keep 0: expected a share above 0"),
        (("--secagg", "--device", "tpu"), "unknown device 'tpu'"),
        (("--secagg", "--fail-if", "prolin.f1 > 0.5"), "there are no findings of 'prolin'; attacks here: sia"),
        (("--secagg", "--option", "shadows=3"), "--option shadows: sia has no"),
    ],
)
def test_wrong_words_are_one_line_and_exit_code_2(attacked, call, tmp_path, words, message):
    refused(call, attacked, tmp_path / "out", message, *(words or ()))


def refused(call, folder, out, message, *words):
    code, _, err = call("what-if", folder, *words, "--out", out)
    assert code == 2
    assert err.count("\n") == 1
    assert message in err
    assert not out.exists() or not (out / "cells").exists()


def test_runs_that_cannot_be_asked_are_refused(attacked, call, tmp_path):
    out = tmp_path / "out"
    refused(call, tmp_path / "nowhere", out, "holds no record", "--secagg")
    blind = shutil.copytree(attacked, tmp_path / "blind")
    shutil.rmtree(blind / "truth")
    refused(call, blind, out, "holds no truth", "--secagg")
    fresh = write_run(tmp_path / "fresh", rounds=1, epochs=0)
    refused(call, fresh, out, "no attack was made of", "--secagg")
    refused(call, write_sums_run(tmp_path / "sums", rounds=1, epochs=0), out, "holds sums alone", "--secagg")
    refused(call, write_property_run(tmp_path / "property", rounds=2), out, "holds sums alone", "--noise", "1")
    taken = tmp_path / "taken"
    taken.mkdir()
    refused(call, attacked, taken, "already exists", "--secagg")
    refused(call, attacked, attacked / "what-if", "which must not change", "--secagg")


def test_copies_that_do_not_fit_on_the_disk_are_refused_before_anything_is_written(
    attacked, call, tmp_path, monkeypatch
):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    refused(call, attacked, tmp_path / "out", "1 kB are free", "--secagg")


def test_what_does_not_belong_to_a_run_is_not_copied(attacked, call, tmp_path):
    """Whoever hands a run over may have put anything beside: gigabytes, or holes that become gigabytes."""
    run = tmp_path / "run"
    shutil.copytree(attacked, run)
    zoo = run / "zoo" / "seed-0" / "label"
    zoo.mkdir(parents=True)
    for name in ("zoo.json", "zoo.safetensors"):
        (zoo / name).write_text("{}")
    expected = {path.relative_to(run) for path in run.rglob("*") if path.is_file() and path.parent != run}
    expected = {path for path in expected if path.parts[0] in ("truth", "knowledge", "record", "zoo")}
    parts = [run / kind / "seed-0" for kind in ("truth", "knowledge", "record", "zoo")]
    for folder in [*parts, run / "truth" / "seed-0" / "nodes", zoo]:
        (folder / "junk").write_text("x")
        (folder / "junks").mkdir()
        (folder / "junks" / "junk.npz").write_text("x")
    fedattack_command(
        call, *("what-if", run, "--noise", "0", "--keep-records", "--out", tmp_path / "out", "--device", "cpu", "-q")
    )
    copied = tmp_path / "out" / "cells" / "as-it-was"
    kinds = [path for kind in ("truth", "knowledge", "record", "zoo") for path in (copied / kind).rglob("*")]
    assert {path.relative_to(copied) for path in kinds if path.is_file()} == expected
    for path in expected:
        assert (copied / path).read_bytes() == (run / path).read_bytes()
