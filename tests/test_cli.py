import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from fedattack.attacks import ATTACKS, Attack, Needs, Scores, read_knowledge
from fedattack.attacks.knowledge import PROPERTY_NAMES
from fedattack.attacks.options import Options
from fedattack.attacks.registry import THREATS, options_of_attack
from fedattack.attacks.threat import Threat
from fedattack.audit.judge import judge_of
from fedattack.base.errors import ConfigError
from fedattack.base.stored import Axes
from fedattack.cli import main
from fedattack.cli.console import PlainSteps, out_console, show_table
from fedattack.cli.options import (
    complete_attack,
    complete_preset,
    complete_reproduction,
    complete_runtime,
    complete_setting,
)
from fedattack.data import SCHEMES
from fedattack.defences import DEFENCES, DP_SGD, NONE
from fedattack.defences.recup import VARIANTS
from fedattack.learning import MODELS
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.record.folder import find_parts, write_study
from fedattack.runs.checks import attack_names, findings_of
from fedattack.runs.presets import Time, load_preset, preset_names, resolve_settings
from fedattack.runs.settings import load_settings
from simulations.frameworks import FRAMEWORKS
from tests.attacks.test_thinned import rewritten, without
from tests.worlds.federation import MODEL, write_property_run, write_run
from tests.worlds.private import write_private_run
from tests.worlds.sealed import edit


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    folder = write_run(tmp_path_factory.mktemp("run"))
    done = subprocess.run(
        [sys.executable, "-m", "fedattack", "attack", "sia", str(folder), "--device", "cpu"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_help_names_every_command_with_an_example(call):
    code, out, _ = call("--help")
    assert code == 0
    for command in (
        "simulate",
        "attack",
        "report",
        "audit",
        "gather",
        "check",
        "project",
        "shrink",
        "compare",
        "export",
        "reproduce",
        "tradeoff",
        "what-if",
        "list",
        "download",
    ):
        assert command in out
        code, text, _ = call(command, "--help")
        assert code == 0
        assert "Example" in text or command == "list"
    assert "Name of a preset" in call("audit", "--help")[1]
    panels = ["Audit", "Your deployment", "Claims", "Compare and export", "Research"]
    places = [out.index(f" {panel} ─") for panel in panels]
    assert places == sorted(places)


def test_list_is_complete(call):
    code, out, _ = call("list", "--json")
    value = json.loads(out)
    assert code == 0
    assert {"quickstart", "sia-fedavg", "prolin-membership", "prolin-ascent-paper"} <= set(value["presets"])
    assert {"sia", "prolin"} <= set(value["attacks"])
    assert "shadows" in value["attacks"]["prolin"]["options"]
    assert value["reproductions"]["sia-table3"]["paper"] == "Hu et al. 2023, Table III"
    assert {"digits", "mnist", "synthetic", "diabetes", "location30"} <= set(value["datasets"])
    assert {"alpha", "clients", "rounds", "local-epochs", "dataset"} <= set(value["settings"])
    assert "truth" not in value["settings"]
    for preset in value["presets"].values():
        assert preset["takes"] in filter(None, get_args(Time))
        assert preset["data"].endswith((", bundled", ", download"))


@pytest.mark.parametrize(
    ("topic", "keys", "words"),
    [
        ("presets", {"presets", "presets_left_out", "reproductions", "left_out"}, ("quickstart", "sia-table3")),
        ("attacks", {"threats", "attacks", "left_out"}, ("membership-canary", "shadows")),
        ("data", {"datasets", "left_out"}, ("audiomnist", "by hand", "PATH.npz")),
        ("settings", {"settings", "left_out"}, ("local-epochs",)),
    ],
)
def test_list_has_a_topic(call, topic, keys, words):
    code, out, _ = call("list", topic)
    assert code == 0
    for word in words:
        assert word in out
    whole = json.loads(call("list", "--json")[1])
    assert json.loads(call("list", topic, "--json")[1]) == {key: whole[key] for key in keys}


def test_list_groups_presets_by_their_question(call):
    code, out, _ = call("list")
    assert code == 0
    for preset in map(load_preset, preset_names()):
        question = next(threat.question for threat in THREATS.values() if preset.attacks[0] in threat.attacks)
        (below,) = re.finditer(rf"^ ?{preset.name} ", out, re.MULTILINE)
        heading = out.rindex("?\n", 0, below.start())
        assert out[:heading].endswith(question[:-1])
    assert "fedattack list attacks" in out


def test_audit_without_an_argument_shows_three_ways_to_begin(call):
    code, out, err = call("audit")
    assert code == 2
    assert out == ""
    ways = [line.strip() for line in err.splitlines() if line.strip().startswith("fedattack audit ")]
    assert [line.split()[2] for line in ways] == ["quickstart", "path/to/app", "--out"]


@pytest.mark.slow
def test_report_prints_a_table_and_writes_both_files(call, attacked):
    code, out, _ = call("report", attacked)
    assert code == 0
    assert "leak" in out
    assert (attacked / "findings.json").exists()
    assert (attacked / "report.html").exists()


def test_json_is_the_findings(call, attacked):
    code, out, _ = call("report", attacked, "--json")
    assert code == 0
    assert json.loads(out) == json.loads((attacked / "findings.json").read_text())


@pytest.mark.parametrize(
    ("condition", "code"),
    [("sia.asr > 0.3", 3), ("sia.asr > 1", 0), ("verdict == leak", 3), ("sia.asr.low > 0.3", 3)],
)
@pytest.mark.slow
def test_fail_if_gates(call, attacked, condition, code):
    assert call("report", attacked, "--fail-if", condition)[0] == code


@pytest.mark.slow
def test_gates_are_also_written_for_a_server_of_continuous_integration(call, attacked, tmp_path):
    file = tmp_path / "junit.xml"
    assert call("report", attacked, "--fail-if", "sia.asr > 0.3", "--junit", file)[0] == 3
    assert '<failure message="it holds: sia.asr &gt; 0.3" />' in file.read_text()


def test_check_says_whole_or_not(call, tmp_path):
    folder = write_run(tmp_path)
    assert call("check", folder)[0] == 0
    assert call("check", folder / "record")[0] == 0
    file = folder / "record" / "rounds" / "000000.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    code, out, _ = call("check", folder)
    assert code == 2
    assert "does not match its checksum" in out
    code, out, _ = call("check", folder, "--json")
    assert code == 2
    assert json.loads(out)[str(folder / "record")]["whole"] is False
    code, _, err = call("attack", "sia", folder, "-q")
    assert code == 2
    assert err.count("\n") == 1
    assert call("attack", "sia", folder, "--skip-damaged", "--device", "cpu")[0] == 0


@pytest.fixture
def two_seeds(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / "run", seed=seed, part=f"seed-{seed}", epochs=2)
    write_study(tmp_path / "run", {"seeds": [0, 1]})
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        ("record/seed-1", "record/seed-1 is not there, and study.json names the seed 1"),
        ("record/seed-1/manifest.json", "record/seed-1 is a record without its manifest.json"),
        ("record/seed-0/manifest.json", "record/seed-0 is a record without its manifest.json"),
    ],
)
def test_a_record_that_is_gone_is_named(call, two_seeds, gone, words):
    assert call("check", two_seeds)[0] == 0
    assert call("attack", "sia", two_seeds, "--device", "cpu")[0] == 0
    shutil.move(two_seeds / gone, two_seeds.parent / "gone")
    code, out, _ = call("check", two_seeds)
    assert code == 2
    assert words in out
    assert out.count(": whole") == 1
    told = json.loads(call("check", two_seeds, "--json")[1])
    assert [item["whole"] for item in told.values()].count(False) == 1
    for command in (("report",), ("attack", "sia"), ("what-if", "--secagg", "--out", two_seeds.parent / "out")):
        code, _, err = call(command[0], *command[1:2], two_seeds, *command[2:], "-q")
        assert (code, err.count("\n")) == (2, 1)
        assert words in err


def test_the_only_record_without_its_manifest_is_named(call, tmp_path):
    run = write_run(tmp_path / "run", epochs=2)
    (run / "record" / "manifest.json").unlink()
    for words in (("check", run), ("project", run, tmp_path / "sums"), ("shrink", run, "--every", "2", "--out", run)):
        code, _, err = call(*words)
        assert code == 2
        assert "record is a record without its manifest.json" in err


@pytest.mark.parametrize("seeds", ["all", "one"])
@pytest.mark.slow
def test_scores_that_are_gone_are_named(call, two_seeds, seeds):
    for name in ("sia", "membership"):
        assert call("attack", name, two_seeds, "--device", "cpu")[0] == 0
    if seeds == "all":
        assert call("report", two_seeds, "--device", "cpu")[0] == 0
    before = (two_seeds / "findings.json").read_bytes() if seeds == "all" else b""
    kept = two_seeds / "scores" / "seed-0" / "sia.npz"
    for scores in two_seeds.glob("scores/*/sia.npz"):
        if seeds == "all" or scores == kept:
            scores.unlink()
    code, _, err = call("report", two_seeds, "--device", "cpu")
    assert code == 2
    assert f"{kept} is not there, although the attack was made" in err
    assert before == b"" or (two_seeds / "findings.json").read_bytes() == before
    assert call("attack", "sia", two_seeds, "--device", "cpu")[0] == 0
    assert call("report", two_seeds, "--device", "cpu")[0] == 0


def test_a_record_from_elsewhere_is_attacked_with_declared_knowledge(call, tmp_path):
    folder = write_run(tmp_path)
    known = read_knowledge(folder / "knowledge")
    np.savez(tmp_path / "mine.npz", x=known.targets.x[:50], y=known.targets.y[:50])
    for file in (folder / "knowledge").iterdir():
        file.unlink()
    code, _, err = call("attack", "sia", folder)
    assert code == 2
    assert "the attacker does not know the clients' model" in err
    words = ("--targets", tmp_path / "mine.npz", "--model", "mlp", "--hidden", MODEL.hidden, "--classes", MODEL.classes)
    code, out, _ = call("attack", "sia", folder, *words, "--device", "cpu", "--json")
    assert code == 0
    with np.load(json.loads(out)["scores"][0]) as scores:
        assert scores["combined"].shape == (50, 4)
    kept = (folder / "knowledge" / "knowledge.json").read_text()
    np.savez(tmp_path / "bad.npz", x=known.targets.x, y=known.targets.y - 5)
    for bad, message in (
        (("--targets", tmp_path / "mine.npz", "--model", "sia-mlp"), "fc1"),
        (("--targets", tmp_path / "bad.npz"), "integer labels"),
        (("--targets", tmp_path / "mine.npz", "--model", "mlp", "--loss", "no.module:f"), "no.module"),
        (("--prior", "wishful"), "wishful"),
    ):
        code, _, err = call("attack", "sia", folder, "-q", *bad)
        assert code == 2
        assert message in err
        assert err.count("\n") == 1
        assert (folder / "knowledge" / "knowledge.json").read_text() == kept
    assert call("attack", "sia", folder, "--device", "cpu")[0] == 0


def test_a_model_of_no_known_kind_is_refused_in_one_line(call, tmp_path):
    folder = write_run(tmp_path)
    edit(folder / "knowledge" / "knowledge.json", lambda value: value["model"].update(spec="program"))
    code, _, err = call("attack", "sia", folder, "--model", "tests.worlds.federation:MODEL", "-q")
    assert code == 2
    assert "knowledge.json: model is 'program'; expected one of" in err
    assert err.count("\n") == 1


def test_what_an_attack_is_told_of_a_record_from_elsewhere_is_what_the_report_tells(call, tmp_path):
    folder = write_run(tmp_path)
    known = read_knowledge(folder / "knowledge")
    for count in (50, 40):
        np.savez(tmp_path / "mine.npz", x=known.targets.x[:count], y=known.targets.y[:count])
        assert call("attack", "sia", folder, "--targets", tmp_path / "mine.npz", "--device", "cpu")[0] == 0
        assert len(read_knowledge(folder / "knowledge").targets.y) == count


def test_other_targets_never_replace_what_a_run_came_with(call, tmp_path):
    folder = write_run(tmp_path)
    write_study(folder, {})
    before = (folder / "knowledge" / "targets.npz").read_bytes()
    known = read_knowledge(folder / "knowledge")
    np.savez(tmp_path / "mine.npz", x=known.targets.x[:50], y=known.targets.y[:50])
    assert call("attack", "sia", folder, "--targets", tmp_path / "mine.npz", "--device", "cpu")[0] == 0
    assert (folder / "knowledge" / "targets.npz").read_bytes() == before
    code, _, err = call("report", folder)
    assert code == 2
    assert "other target records than the truth" in err


QUICK = ("audit", "quickstart", "-o", "out")

BAD = [
    ((*QUICK, "--fail-if", "sia.asr => 1"), "--fail-if"),
    (("audit", "whatever", "--out", "out"), "unknown preset 'whatever': `fedattack list presets` shows all"),
    (
        ("audit", "quikstart", "-o", "out"),
        "unknown preset 'quikstart': did you mean quickstart? `fedattack list presets` shows",
    ),
    ((*QUICK, "--set", "round=3"), "unknown key 'round': did you mean rounds?"),
    (("attack", "membreship", "out"), "unknown attack 'membreship': did you mean membership?"),
    ((*QUICK, "--set", "framework=fedavgg"), "framework = 'fedavgg': did you mean fedavg?"),
    ((*QUICK, "--device", "gpu"), "unknown device 'gpu'; expected auto, cpu, cuda"),
    ((*QUICK, "--option", "shadow=3"), "no option 'shadow': did you mean shadows?"),
    (
        (*QUICK, "--on", "simulatoin"),
        "unknown runtime 'simulatoin': did you mean simulation?",
    ),
    ((*QUICK, "--fail-if", "sia.arr > 0.3"), "sia finds no 'arr': did you mean asr?"),
    (
        (*QUICK, "--fail-if", "prolin.f1 > 0.3"),
        "no findings of 'prolin'; attacks here: sia, m",
    ),
    (
        (*QUICK, "--fail-if", "isolation.noticed > 0"),
        "there are no findings of 'isolation'",
    ),
    (
        (*QUICK, "--fail-if", "sia.asr.lo > 0.3"),
        "unknown part 'lo' of a finding: did you mean",
    ),
    ((*QUICK, "--fail-if", "verdict == leek"), "did you mean leak?"),
    ((*QUICK, "--set", "partition=columm:sex"), "partition = 'columm:sex': did you mean column:?"),
    (("attack", "sia", ".", "--loss", "mse"), "describe the model that --model names; add --model"),
    (("attack", "sia", ".", "--prior", "unifrom"), "--prior unifrom: did you mean uniform?"),
    (("attack", "sia", ".", "--targets", "mine.npz"), "--targets mine.npz: there is no such file"),
    (("attack", "prolin", ".", "--property", "membreship"), "property = 'membreship': did you mean membership?"),
    (("reproduce", "sia-tabel3", "-o", "out"), "unknown reproduction 'sia-tabel3': did you mean sia-table3?"),
    (
        ("reproduce", "sia-table3", "-o", "out", "--only", "datset=digits"),
        "unknown column 'datset' of COLUMN=VALUE: did you",
    ),
    (("tradeoff", "quikstart", "-o", "out"), "unknown preset 'quikstart': did you mean quickstart?"),
    (
        ("tradeoff", "quickstart", "-o", "out", "--defence", "sparsfy"),
        "unknown defence 'sparsfy': did you mean sparsify?",
    ),
    (
        ("compare", "nowhere", "elsewhere", "-o", "out"),
        "nowhere holds no findings.json; run `fedattack report nowhere`",
    ),
    (("download", "minst"), "unknown dataset 'minst': did you mean mnist?"),
    (("repotr", "."), "Did you mean one of: 'export', 'report'?"),
    ((*QUICK, "--set", "alpha"), "expected key=value"),
    ((*QUICK, "--set", "alpha=many"), "expected a number"),
    ((*QUICK, "--set", "rounds=2.5"), "expected a whole number"),
    ((*QUICK, "--set", "alpha=0"), "expected more than 0"),
    ((*QUICK, "--set", "dp-epsilon=1e-9", "--set", "dp-delta=1e-14"), "no noise keeps"),
    ((*QUICK, "--set", "record=x"), "unknown key 'record'"),
    ((*QUICK, "--set", "dataset=nope.npz"), "nope.npz"),
    ((*QUICK, "--set", "model=sia-cnn"), "at least 16 x 16"),
    ((*QUICK, "--set", "clients=5000"), "5000"),
    (("audit", "quickstart", "--out", "full"), "already exists"),
    (("observe", "--out", "out", "--", "python", "server.py"), "python server.py: expected the command that runs the"),
    (
        ("observe", "--out", "out", "--view", "none", "--", "flwr", "run"),
        "--view none: expected one of individual, agg",
    ),
    (("observe", "--out", "out", "--protocol", "x", "--", "flwr", "run"), "--protocol x: expected one of fedavg, fed"),
    (("audit", "prolin-membership", "--out", "out", "--set", "property=shoe-size"), "property = 'shoe-size'"),
    (("audit", "prolin-membership", "--out", "out", "--set", "fraction=0.02"), "SecAgg+ needs 3 to"),
    (("audit", "prolin-membership", "--out", "out", "--set", "records-per-client=500"), "do not fit into"),
    (("attack", "sia", ".", "--memory", "much"), "--memory much: expected a size such as 2GiB or 300MB"),
    (
        ("reproduce", "sia-table3", "--out", "out", "--memory", "1MB"),
        "--memory 1MB: expected a size of at least 64MB",
    ),
    (("attack", "sia", ".", "--cluster", "local"), "--cluster local: expected auto, HOST:PORT or ray://HOST:PORT"),
    (("compare", ".", "--out", "out"), "expected two or more"),
    (("compare", ".", ".", "--fail-if", "leak", "--out", "out"), "--fail-if 'leak': expected worse"),
    (("compare", ".", ".", ".", "--fail-if", "worse", "--out", "out"), "expected the baseline and the new one"),
    (("project", ".", "out"), "holds no record"),
    (("shrink", ".", "--out", "out", "--every", "2"), "holds no record"),
    (("shrink", ".", "--out", "out", "--every", "0"), "every=0: expected a whole number of rounds"),
    (("observe", "--out", "out", "--clients", "0", "--", "flwr", "run"), "clients=0.0: expected a share above 0"),
    (("attack", "sia", ".", "--frozen", "nope.npz"), "--frozen nope.npz: expected an .npz or .safetensors"),
    (("reproduce", "sia-table3", "--out", "full"), "holds something else"),
    (("attack", "sia", "."), "holds no record"),
    (("report", "."), "holds no record"),
    (("check", "."), "holds no record"),
    (("simulate",), "Missing argument"),
]


def test_a_run_folder_is_shrunk_checked_and_attacked(call, tmp_path):
    run = write_run(tmp_path / "run", rounds=3)
    code, out, _ = call(
        "shrink", run / "record", "--out", tmp_path / "small" / "record", "--every", 2, "--clients", "0.5"
    )
    assert code == 0
    assert "2 rounds in" in out
    shutil.copytree(run / "knowledge", tmp_path / "small" / "knowledge")
    code, out, _ = call("check", tmp_path / "small")
    text = " ".join(out.split())
    assert code == 0
    assert "it keeps every 2nd round and the replies of 50 % of each round's clients" in text
    assert (
        "attacks that take it: aia, ara, attribute-baselines, attribute-number, dager, exact, inversion, labels, "
        "membership, plaintext, private-attribute, sia, tokens, trees" in text
    )
    code, _, _ = call("attack", "sia", tmp_path / "small", "--device", "cpu")
    assert code == 0
    claim = "mechanism = 'flower-localdp'\nunit = 'client'\nclip = 1.0\nsensitivity = 1e-4\n"
    (tmp_path / "claim.toml").write_text(f"{claim}epsilon = 10\ndelta = 1e-5\nrounds = 3\n")
    code, _, err = call("claim", tmp_path / "small", "--claim", tmp_path / "claim.toml")
    assert code == 2
    assert "and this needs a whole record" in " ".join(err.split())


def test_a_shrunk_record_is_signed_by_the_key_that_is_named(call, tmp_path, monkeypatch):
    run = write_run(tmp_path / "run")
    call("keygen", tmp_path / "key.pem")
    monkeypatch.setenv("FEDATTACK_SIGNING_KEY", str(tmp_path / "key.pem"))
    assert call("shrink", run / "record", "--out", tmp_path / "small", "--every", 2)[0] == 0
    assert call("check", tmp_path / "small", "--signer", tmp_path / "key.pem.pub")[0] == 0


def test_frozen_weights_are_named_on_the_command_line_and_kept(call, tmp_path):
    run = write_run(tmp_path / "run", epochs=0)
    start = Record(run / "record").rounds[0].common
    save_file({name: np.array(start[name]) for name in ("fc1.weight", "fc1.bias")}, tmp_path / "w.safetensors")
    rewritten(Record(run / "record"), tmp_path / "small" / "record", without(("fc1.weight", "fc1.bias")))
    shutil.copytree(run / "knowledge", tmp_path / "small" / "knowledge")
    code, _, err = call("attack", "sia", tmp_path / "small", "--device", "cpu")
    assert code == 2
    assert "missing: fc1.weight" in " ".join(err.split())
    assert "by --frozen FILE" in " ".join(err.split())
    words = ("attack", "sia", tmp_path / "small", "--device", "cpu", "--frozen", tmp_path / "w.safetensors")
    assert call(*words)[0] == 0
    assert (tmp_path / "small" / "knowledge" / "frozen.npz").exists()
    assert call(*words[:-2])[0] == 0


@pytest.fixture(scope="module")
def sums(tmp_path_factory):
    return write_property_run(tmp_path_factory.mktemp("sums"), rounds=24)


@pytest.mark.slow
def test_sums_are_attacked_and_judged(call, sums):
    assert call("attack", "prolin", sums, "--device", "cpu")[0] == 0
    code, out, _ = call("report", sums, "--json", "--fail-if", "prolin.false-alarms > 0.5")
    assert code == 0
    found = {item["metric"]: item for item in json.loads(out)}
    assert found["f1-posterior"]["value"] > 0.9
    assert found["f1"]["headline"]
    page = (sums / "report.html").read_text()
    assert "F1 score of each method" in page
    assert "Accuracy" in page


def test_a_projected_record_is_attacked_with_declared_knowledge(call, tmp_path):
    run = write_property_run(tmp_path / "single", rounds=6, view="individual")
    code, _, err = call("attack", "prolin", run)
    assert code == 2
    assert "it is about sums of updates" in err
    assert "fedattack project" in err
    assert call("project", run / "record", tmp_path / "sums" / "record")[0] == 0
    shutil.copyfile(run / "knowledge" / "auxiliary.npz", tmp_path / "auxiliary.npz")
    words = [
        "attack",
        "prolin",
        tmp_path / "sums",
        "--auxiliary",
        tmp_path / "auxiliary.npz",
        "--property",
        "inversion",
    ]
    known = read_knowledge(run / "knowledge").model
    words += ["--model", known.spec, "--classes", known.classes, "--hidden", known.hidden]
    code, _, err = call(*words)
    assert code == 2
    assert "how clients train" in err
    code, _, err = call(*words, "--training", "epochs=1,speed=2")
    assert code == 2
    assert "expected epochs, batch-size and lr" in err
    assert call(*words, "--training", "epochs=1,batch-size=0,lr=0.1", "--option", "shadows=exact")[0] == 0
    assert read_knowledge(tmp_path / "sums" / "knowledge").property == "inversion"
    assert call("report", tmp_path / "sums")[0] == 0, "without the truth there is nothing to judge, and no error"


class GuessOptions(Options):
    name = "guess"
    title = paper = "A guess"
    needs = Needs(("individual",), ("fedavg",), ("model", "partial"))


@dataclass(frozen=True, eq=False)
class FirstValues:
    methods: tuple[str, ...]
    decisions: Annotated[NDArray[np.int64], Axes("methods", "targets")]


class Guess(Attack):
    """Guesses the first value, of whomever it is asked."""

    options = GuessOptions()
    found = FirstValues
    knows = ("nothing",)

    def attack(self, seen):
        return FirstValues(("first",), np.zeros((1, len(seen.knowledge.partial)), dtype=np.int64))


class GuessThreat(Threat):
    name = "guess"
    question = "?"
    options = (GuessOptions,)

    def load_attacks(self):
        return (Guess,)

    def load_judges(self):
        return {}


def test_a_record_from_elsewhere_is_attacked_with_declared_partial_records(call, tmp_path, monkeypatch):
    monkeypatch.setitem(ATTACKS._loaded, "guess", Guess())
    monkeypatch.setattr(THREATS, "_found", ({**THREATS, "guess": GuessThreat()}, {}))
    folder = write_run(tmp_path)
    (folder / "knowledge" / "knowledge.json").unlink()
    x, domain = np.zeros((5, 30)), np.array([[0.0], [1.0]])
    columns = {"clients": np.array(["node0"] * 5), "columns": np.array([4]), "domain": domain}
    np.savez(tmp_path / "partial.npz", x=x, y=np.linspace(0, 1, 5), **columns)
    words = ["attack", "guess", folder, "--model", "linear", "--loss", "mse"]
    code, _, err = call(*words)
    assert code == 2
    assert "--targets, --auxiliary or --partial FILE.npz" in err
    assert call(*words, "--partial", tmp_path / "partial.npz")[0] == 0
    known = read_knowledge(folder / "knowledge")
    assert known.model.classes == 1, "a regression has one output"
    assert known.partial.columns == (4,)
    assert len(Scores.load(folder / "scores" / "guess.npz").arrays["decisions"][0]) == 5


def test_a_record_from_elsewhere_is_attacked_for_declared_private_attributes(call, tmp_path):
    folder = write_private_run(tmp_path / "run", rounds=1)
    known = read_knowledge(folder / "knowledge")
    (folder / "knowledge" / "knowledge.json").unlink()
    np.savez(tmp_path / "mine.npz", x=known.auxiliary.x, y=known.auxiliary.y)
    ((name, attribute),) = known.attributes.items()
    arrays = {f"values.{name}": np.array(attribute.values), f"codes.{name}": attribute.codes}
    np.savez(tmp_path / "attributes.npz", **arrays)
    words = ["attack", "private-attribute", folder, "--model", "linear", "--auxiliary", tmp_path / "mine.npz"]
    words += ["--training", "epochs=1,batch-size=2,lr=0.1", "--option", "clients=60", "--option", "adversaries=svm"]
    code, _, err = call(*words)
    assert code == 2
    assert "attributes of the attacker's examples" in err
    assert call(*words, "--attributes", tmp_path / "attributes.npz")[0] == 0
    scores = Scores.load(folder / "scores" / "private-attribute.npz")
    assert scores.facts["attributes"] == {name: list(attribute.values)}


@pytest.mark.slow
def test_runs_are_compared(call, tmp_path, sums):
    other = write_property_run(tmp_path / "other", rounds=12)
    for folder in (sums, other):
        assert call("attack", "prolin", folder, "--device", "cpu")[0] == 0
        assert call("report", folder)[0] == 0
    assert call("compare", sums, other, "--by", "rounds", "--out", tmp_path / "compared")[0] == 0
    assert "prolin.f1" in (tmp_path / "compared" / "compare.md").read_text()
    code, _, err = call("compare", sums, "--out", tmp_path / "alone")
    assert code == 2
    assert "Traceback" not in err


# These are found out only by reading the data, in a process of their own.
BY_DATA = ("dp-epsilon=1e-9", "model=sia-cnn", "clients=5000", "fraction=0.02", "records-per-client=500")


def list_bad_input():
    cases = []
    for words, message in BAD:
        is_slow = not {*words}.isdisjoint(BY_DATA)
        marks = [pytest.mark.slow] if is_slow else []
        cases.append(pytest.param(words, message, marks=marks, id=" ".join(words)[-40:]))
    return cases


@pytest.mark.parametrize(("words", "message"), list_bad_input())
def test_bad_input_gives_one_line_and_code_2(call, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("precious")
    code, _, err = call(*words)
    assert code == 2
    assert message in err
    if "error:" in err:
        assert [line.startswith("error:") for line in err.splitlines()].index(True) == err.count("\n") - 1
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "full" / "mine.txt").read_text() == "precious"


def test_the_command_works_as_a_process_anywhere(tmp_path):
    (tmp_path / "clients").mkdir()
    (tmp_path / "clients" / "__init__.py").write_text("raise RuntimeError('not ours')")
    done = subprocess.run(
        [sys.executable, "-m", "fedattack", "list"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path / "nowhere")},
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (MemoryError("Unable to allocate 3.7 GiB"), "not enough memory for this (Unable to allocate 3.7 GiB)"),
        (MemoryError(), "not enough memory for this"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "not enough memory for this"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "not enough memory for this"),
        (RecursionError("maximum recursion depth exceeded"), "is nested too deeply"),
        (
            UnicodeEncodeError("utf-8", "a\udcff", 1, 2, "surrogates not allowed"),
            r"'\udcff' cannot be written as utf-8",
        ),
    ],
)
def test_a_limit_of_the_machine_is_told_in_one_line(call, monkeypatch, problem, words):
    def app(**_):
        raise problem

    monkeypatch.setattr("fedattack.cli.entry.app", app)
    code, _, err = call("list")
    assert code == 2
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("problem", [RuntimeError("a fault of ours"), ImportError("cannot import name 'x' from 'y'")])
def test_a_fault_of_the_program_is_no_limit_of_the_machine(monkeypatch, problem):
    def app(**_):
        raise problem

    monkeypatch.setattr("fedattack.cli.entry.app", app)
    with pytest.raises(type(problem), match=str(problem)):
        main()


HEAVY = ("torch", "scipy", "sklearn", "matplotlib", "flwr", "ray", "pandas", "jsonschema")

# What has to be said at once: in one process, so that whatever any of them imports is seen.
AT_ONCE = """
import sys
from fedattack.cli import main
for words in {words!r}:
    sys.argv = ["fedattack", *words]
    try:
        main()
    except SystemExit as end:
        assert bool(end.code) == (words[-1] not in ("--help", "-h", "--json")), words
    heavy = sorted(set({heavy!r}) & set(sys.modules))
    assert not heavy, (words, heavy)
"""


@pytest.mark.slow
def test_help_and_what_is_wrong_are_said_before_anything_heavy_is_imported(tmp_path):
    wrong = [words for words, _ in BAD if words[0] != "check" and not {*words} & {*BY_DATA}]
    commands = sorted({words[0] for words in wrong} - {"repotr"})
    asked = [*wrong, ("--help",), ("list", "--json"), *((command, "-h") for command in commands)]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("precious")
    done = subprocess.run(
        [sys.executable, "-c", AT_ONCE.format(words=asked, heavy=HEAVY)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(commands) > 8


def test_options_without_torch_are_those_of_the_attacks():
    assert attack_names() == list(ATTACKS)
    for name, attack in ATTACKS.items():
        assert options_of_attack(name) is type(attack.options), name
        assert attack.with_options({}) is attack


def test_metrics_are_declared_as_judges_measure_them():
    for name, attack in ATTACKS.items():
        judge = judge_of(name)
        if judge is None:
            assert findings_of(name) == ()
        else:
            assert attack.options.finds == tuple(judge.metrics())
            assert not judge.headline or findings_of(name)[0] == judge.headline


def test_words_of_settings_are_those_that_there_are():
    settings = load_settings()
    for name in ("model", "models", "student"):
        assert {*settings[name].values} == {*MODELS, ":"}
    assert {value.rstrip(":") for value in settings["partition"].values} == {*SCHEMES}
    assert {*settings["defence"].values} == {*DEFENCES, DP_SGD, NONE}
    assert {*settings["recup-variant"].values} == {*VARIANTS}
    assert {*settings["framework"].values} == {*FRAMEWORKS}
    assert {*settings["property"].values} == {*PROPERTY_NAMES}


def test_a_setting_of_words_takes_several_and_import_paths():
    model, models = load_settings()["model"], load_settings()["models"]
    for text in ("", "mlp", "mine.models:make"):
        assert model.parse(text) == text
    assert models.parse("mlp, linear") == "mlp, linear"
    assert load_settings()["partition"].parse("column:sex,age") == "column:sex,age"
    with pytest.raises(ConfigError, match="did you mean linear"):
        models.parse("mlp,liner")


def test_progress_without_a_terminal_is_a_few_lines(capsys):
    now = 0.0
    steps = PlainSteps(clock=lambda: now)
    for second in range(601):
        now = float(second)
        steps.step("train seed-0", second, 600)
    steps.step("attack", 0, None)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "train seed-0"
    assert lines[-1] == "attack"
    assert lines[1:-1] == [f"train seed-0: {60 * count} of 600 after {count} min" for count in range(1, 11)]


def test_few_steps_are_each_told_of_and_no_line_comes_twice(capsys):
    now = 0.0
    steps = PlainSteps(clock=lambda: now)
    for second in range(1801):
        now = float(second)
        # Nothing but the first round is ever recorded, and Flower says late how many there are to be.
        steps.step("train rounds", int(second >= 30), 3 if second >= 10 else None)
    lines = capsys.readouterr().err.splitlines()
    waits = [f"train rounds: 1 of 3, no news for {minutes} min" for minutes in (1, 2, 4, 8, 16)]
    assert lines == ["train rounds", "train rounds: 1 of 3", *waits]
    for done in (2, 3, 0):
        now += 5
        steps.step("train rounds", done, 3)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["train rounds: 2 of 3 after 30 min", "train rounds: 3 of 3 after 30 min", "train rounds"]
    # What takes no time is told of once.
    for done in range(5):
        steps.step("sia on the record", done, 4)
    assert capsys.readouterr().err.splitlines() == ["sia on the record"]


def test_quiet_leaves_out_progress_and_notes(call, tmp_path):
    folder = write_run(tmp_path)
    _, _, err = call("attack", "sia", folder, "--device", "cpu")
    assert "sia on the record" in err
    _, _, err = call("attack", "sia", folder, "--device", "cpu", "--quiet")
    assert err == ""
    _, _, err = call("attack", "sia", folder, "--device", "cpu")
    assert "sia on the record" in err, "the next command speaks again"


@pytest.mark.slow
def test_the_page_is_a_link(call, attacked, monkeypatch):
    (attacked / "below").mkdir(exist_ok=True)
    monkeypatch.chdir(attacked / "below")
    for folder in (attacked, ".."):
        out = call("report", folder, "-q")[1]
        assert f"Report: {(attacked / 'report.html').as_uri()}" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("audit", "quickstart", "--out", "out", "--seeds", "0"), "Invalid value for '--seeds': 0 is not in the range"),
        (("audit", "quickstart", "--out", "out", "--seeds", "many"), "'many' is not a valid integer"),
        (("audit", "quickstart", "--out", "out", "--sedes", "1"), "No such option"),
        (("audit", "quickstart"), "Missing option '--out'"),
        (("attack", "sia"), "Missing argument 'DIR'"),
    ],
)
def test_what_click_refuses_is_one_line_too(call, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = call(*words)
    assert code == 2
    assert err.startswith("error: ")
    assert message in err
    assert err.endswith(f"; see `fedattack {words[0]} --help`\n")
    assert err.count("\n") == 1


def test_shells_complete_names():
    assert complete_preset("quick") == ["quickstart"]
    assert complete_attack("memb") == ["membership", "membership-aggregate", "membership-canary"]
    assert complete_reproduction("sia-table") == ["sia-table3", "sia-table4"]
    assert complete_setting("local-e") == ["local-epochs="]
    names = ("fedavg", "fedsgd", "fedmd", "fedxgb")
    assert complete_setting("framework=fed") == [f"framework={name}" for name in names]
    assert complete_runtime("proc") == ["processes", "processes-insecure"]
    asked = {"_FEDATTACK_COMPLETE": "complete_bash", "COMP_WORDS": "fedattack audit --set loc", "COMP_CWORD": "3"}
    code = "import sys; sys.argv = ['fedattack']; from fedattack.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **asked})
    assert done.stdout.split() == ["local-epochs="]


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_no_name_of_the_list_is_broken(width, monkeypatch, capsys):
    monkeypatch.setattr(out_console, "width", width)
    name = "a-name-that-is-rather-long"
    show_table("Settings", ("name", "default", "what"), [(name, "0", "words " * 30)])
    lines = capsys.readouterr().out.splitlines()
    assert any(name in line for line in lines)
    assert max(map(len, lines)) <= width


def test_records_of_several_seeds_are_projected(call, tmp_path):
    run = tmp_path / "run"
    for seed in (0, 1):
        write_run(run, seed=seed, part=f"seed-{seed}")
    for source, out, where in ((run, "sums", "record"), (run / "record", "records", ".")):
        code, text, _ = call("project", source, tmp_path / out, "--json")
        assert code == 0
        assert json.loads(text)["rounds"] == sum(len(Record(part.record)) for part in find_parts(run))
        for part in find_parts(run):
            assert Record(tmp_path / out / where / part.name).view == "aggregate"


@pytest.fixture
def recorded(tmp_path):
    """A run whose rounds are all there, and nothing else yet."""
    folder = write_run(tmp_path / "run")
    preset = load_preset("sia-fedavg")
    settings = resolve_settings(preset, ["rounds=2", "clients=4"])
    study = {"preset": preset.name, "settings": settings, "seeds": [0], "commands": ["fedattack audit"]}
    study["runtime"] = "simulation"
    write_study(folder, study)
    return folder


@pytest.mark.slow
def test_resuming_does_what_is_missing_and_says_when_nothing_is(call, recorded):
    scores, page = recorded / "scores" / "sia.npz", recorded / "report.html"
    assert call("resume", recorded, "--device", "cpu")[0] == 0
    first, written = scores.stat().st_mtime_ns, page.stat().st_mtime_ns
    code, out, err = call("resume", recorded)
    assert code == 0
    assert "is finished: nothing is left to do" in out
    assert page.as_uri() in out
    assert err == ""
    page.unlink()
    code, out, _ = call("resume", recorded)
    assert code == 0
    assert "is finished" not in out
    assert page.stat().st_mtime_ns > written
    assert scores.stat().st_mtime_ns == first, "the attack is not made again"
    scores.unlink()
    assert call("resume", recorded, "--device", "cpu")[0] == 0
    assert scores.exists()


@pytest.mark.slow
def test_scores_of_an_older_record_or_knowledge_are_made_anew(call, recorded):
    assert call("resume", recorded, "--device", "cpu")[0] == 0
    scores = recorded / "scores" / "sia.npz"
    for changed in (recorded / "record" / "rounds.jsonl", next((recorded / "knowledge").glob("*.npz"))):
        first = scores.stat().st_mtime_ns
        os.utime(changed)
        out = call("resume", recorded, "--device", "cpu")[1]
        assert "is finished" not in out
        assert scores.stat().st_mtime_ns > first
        assert "is finished" in call("resume", recorded)[1]


@pytest.mark.parametrize(
    ("name", "content"), [("findings.json", "[{]"), ("run.json", "{}"), ("report.html", ""), ("findings.json", "{}")]
)
@pytest.mark.slow
def test_a_damaged_report_is_written_anew(call, recorded, name, content):
    assert call("resume", recorded, "--device", "cpu")[0] == 0
    scores = (recorded / "scores" / "sia.npz").stat().st_mtime_ns
    (recorded / name).write_text(content)
    code, out, _ = call("resume", recorded, "--device", "cpu")
    assert code == 0
    assert "is finished" not in out
    assert (recorded / name).read_text() != content
    assert (recorded / "scores" / "sia.npz").stat().st_mtime_ns == scores, "the attack is not made again"


@pytest.mark.slow
def test_a_gate_may_ask_for_an_attack_that_was_made_later(call, recorded, monkeypatch):
    preset = replace(load_preset("sia-fedavg"), attacks=["sia"])
    monkeypatch.setattr("fedattack.runs.presets.load_preset", lambda name: preset)
    later = ("resume", recorded, "--device", "cpu", "--fail-if", "membership.auc >= 0")
    assert "there are no findings of 'membership'" in call(*later)[2]
    assert call("attack", "membership", recorded, "--device", "cpu")[0] == 0
    assert call(*later)[0] == 3


@pytest.mark.slow
def test_other_options_make_a_finished_run_attack_again(call, recorded):
    assert call("resume", recorded, "--device", "cpu")[0] == 0
    first = (recorded / "scores" / "sia.npz").stat().st_mtime_ns
    code, _, err = call("resume", recorded, "--option", "shadow=0")
    assert code == 2
    assert "did you mean shadows?" in err
    assert call("resume", recorded, "--option", "shadows=0", "--device", "cpu")[0] == 0
    assert (recorded / "scores" / "sia.npz").stat().st_mtime_ns > first


def test_attacks_on_a_record_of_silence_tell_the_clients_reason(call, tmp_path):
    folder = write_run(tmp_path)
    shutil.rmtree(folder / "record")
    writer = RecordWriter(folder / "record")
    state = {"w": np.zeros(2, dtype=np.float32)}
    writer.write(Exchange(1, state, [Reply("7", "failed", reason="MemoryError: the node ran low")]))
    writer.close(final=state)
    code, _, err = call("attack", "sia", folder, "-q")
    assert code == 2
    assert "no client answered a training message in any of 1 rounds: MemoryError: the node ran low" in err


def test_options_are_of_types_that_every_typer_knows():
    """Beside the oldest Flower stands a typer that ends all commands where one option is a ``Literal``."""
    from fedattack.cli.entry import app

    callbacks = [command.callback for command in app.registered_commands if command.callback]
    hints = [hint for callback in callbacks for hint in get_type_hints(callback).values()]
    assert len(hints) > 100
    assert not [hint for hint in hints if Literal in {get_origin(part) for part in (hint, *get_args(hint))}]
