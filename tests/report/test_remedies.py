import re
import shlex
from pathlib import Path

import pytest

from fedattack.attacks.registry import THREATS
from fedattack.report.remedies import Remedy, command_for
from fedattack.report.section import section_of
from fedattack.runs.presets import load_preset, preset_names, resolve_settings

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "simulations" / "results"
FOLDER = ROOT / "fedattack" / "threats"
NOISE = Remedy(what="Noise", buys="", settings={"defence": "dp-gaussian", "defence-strength": "0.01"})


def run(*commands, preset="quickstart", **setting):
    model = {"server": "passive", "view": "individual"}
    setting = {"preset": preset, "framework": "fedavg", "local-epochs": 20, "fraction": 0.2} | setting
    return {"provenance": {"commands": list(commands)}, "setting": setting, "threat_model": model}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "fedattack audit quickstart --out a --seeds 1 --set rounds=5 --fail-if 'sia.asr > 0.3' --json",
            "fedattack audit quickstart --out quickstart-defence-dp-gaussian-defence-strength-0.01 --seeds 1 "
            "--set rounds=5 --set defence=dp-gaussian --set defence-strength=0.01",
        ),
        (
            "fedattack simulate -q --set=defence=recup --set dp-noise=3 --out=x quickstart",
            "fedattack audit quickstart --out quickstart-defence-dp-gaussian-defence-strength-0.01 "
            "--set defence=dp-gaussian --set defence-strength=0.01",
        ),
        ("fedattack attack sia runs/a", ""),
        ("fedattack audit quickstart --set model=evil.models:run", ""),
        ("fedattack audit quickstart --set dataset=/etc/passwd", ""),
        ("rm -rf /", ""),
        ("fedattack audit 'unclosed", ""),
    ],
)
def test_the_run_s_own_command_is_repeated_with_the_defence(command, expected):
    assert command_for(NOISE, run(command)) == expected


def test_what_a_folder_says_is_quoted():
    command = command_for(NOISE, run("fedattack audit quickstart --set 'dataset=$(reboot); x'"))
    assert "'dataset=$(reboot); x'" in command
    assert shlex.split(command)[5:7] == ["--set", "dataset=$(reboot); x"]
    assert command_for(NOISE, run("fedattack audit -q --out x", preset="-q")) == ""


def test_a_remedy_without_settings_has_no_command_and_one_of_another_preset_has_that():
    assert command_for(Remedy(what="w", buys="b"), run("fedattack audit quickstart --out x")) == ""
    assert command_for(Remedy(what="w", buys="b", audit="sia-many"), run()).startswith("fedattack audit sia-many ")
    # Another run than somebody's own would tell nothing of it.
    of_app = command_for(Remedy(what="w", buys="b", audit="sia-many"), run("fedattack audit . --out x", preset=""))
    assert of_app == "fedattack what-if DIR --secagg --out what-if"
    own = run("fedattack audit . --out x", preset="")
    assert command_for(NOISE, own) == "fedattack what-if DIR --noise 0.01 --out what-if-noise"
    sparsify = Remedy(what="w", buys="b", settings={"defence": "sparsify", "defence-strength": "0.9"})
    assert command_for(sparsify, own) == "fedattack what-if DIR --keep 0.1 --out what-if-keep"
    assert command_for(Remedy(what="w", buys="b", settings={"dp-noise": "2"}), own) == ""
    assert command_for(NOISE, run()) == ""


@pytest.mark.parametrize(
    ("settings", "setting", "applies"),
    [
        ({"local-epochs": "1"}, {}, True),
        ({"local-epochs": "1"}, {"local-epochs": 1}, False),
        ({"local-epochs": "1"}, {"framework": "fedsgd"}, False),
        ({"dp-noise": "2"}, {}, True),
        ({"dp-noise": "2"}, {"dp-noise": 128.0}, False),
        ({"dp-noise": "2"}, {"dp-epsilon": 4.0}, False),
        ({"fraction": "1.0"}, {}, True),
        ({"fraction": "1.0"}, {"fraction": 1.0}, False),
        ({"defence": "dp-gaussian", "defence-strength": "0.01"}, {"defence": "dp-gaussian"}, False),
        ({"defence": "dp-gaussian", "defence-strength": "0.01"}, {"defence": "recup"}, True),
    ],
)
def test_a_run_is_not_told_to_do_what_it_does(settings, setting, applies):
    assert Remedy(what="w", buys="b", settings=settings).applies_to(run(**setting)) is applies


def test_secure_aggregation_is_no_advice_against_a_server_that_departs_from_the_protocol():
    remedy = Remedy(what="w", buys="b", audit="membership-aggregate")
    assert remedy.applies_to(run())
    for model in (
        {"server": "active: it isolates clients", "view": "individual"},
        {"server": "passive", "view": "aggregate"},
    ):
        assert not remedy.applies_to({**run(), "threat_model": model})


def test_secure_aggregation_is_advice_for_an_app_whose_replies_the_server_sees():
    sums = Remedy(what="w", buys="b", settings={"secagg": "true"})
    own = run(preset="")
    assert sums.applies_to(own)
    assert not sums.applies_to({**own, "threat_model": {"server": "passive", "view": "aggregate"}})
    assert sums.way == Remedy(what="w", buys="b", audit="sia-many").way


def _remedies():
    for threat in THREATS.values():
        for remedy in section_of(next(iter(threat.attacks))).remedies:
            yield pytest.param(threat, remedy, id=f"{threat.name}: {remedy.what}")


REMEDIES = list(_remedies())


@pytest.mark.parametrize(("threat", "remedy"), REMEDIES)
def test_a_remedy_can_be_tried_on_the_presets_of_its_threat(threat, remedy):
    if remedy.audit:
        assert remedy.audit in preset_names()
    changes = [f"{key}={value}" for key, value in remedy.settings.items()]
    tried = [name for name in preset_names() if load_preset(name).attacks[0] in threat.attacks]
    # Of what only apps have, words say what to do.
    assert tried or not (remedy.audit or changes)
    for name in tried:
        resolve_settings(load_preset(name), changes)


@pytest.mark.parametrize(("threat", "remedy"), REMEDIES)
def test_a_sentence_of_what_not_to_do_is_no_step(threat, remedy):
    is_warning = re.search(r"\b(not|never)\b", remedy.what, re.IGNORECASE)
    assert not (remedy.helps and is_warning)


@pytest.mark.parametrize(("threat", "remedy"), REMEDIES)
def test_the_numbers_of_a_remedy_were_measured(threat, remedy):
    guide = FOLDER / threat.name / "README.md"
    measured = "".join(page.read_text(encoding="utf-8") for page in [*RESULTS.glob("*.md"), guide])
    for number in re.findall(r"\d+(?:\.\d+)?", remedy.buys):
        place = f"{number} is neither in the results nor in the guide of {threat.name}"
        assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.]*\d)", measured), place
