"""Which words name an app, what can be set of it, and which apps are refused before they run."""

import tomllib
from dataclasses import replace

import pytest
import tomli_w
from flwr.cli.config_migration import migrate

from fedattack.apps.app import app_of, app_of_command, is_app
from fedattack.base.errors import ConfigError
from fedattack.cli.apps import AppWords, app_of_words
from tests.apps.projects import LEGACY, MESSAGE_API, SECAGG


def make(folder, **flower):
    components = {"serverapp": "a:app", "clientapp": "b:app"}
    folder.mkdir(parents=True, exist_ok=True)
    text = tomli_w.dumps({"tool": {"flwr": {"app": {"components": components, **flower.pop("app", {})}, **flower}}})
    (folder / "pyproject.toml").write_text(text)
    return folder


def test_a_preset_and_a_folder_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "mine")
    assert not is_app("quickstart")
    assert not is_app("nonsense")
    for word in (".", "..", "./quickstart", "~/somewhere", "a/b", "mine"):
        assert is_app(word), word
    (tmp_path / "quickstart").mkdir()
    assert not is_app("quickstart"), "a folder without an app is none"
    make(tmp_path / "quickstart")
    with pytest.raises(ConfigError, match=r"write \./quickstart for the folder"):
        is_app("quickstart")


def test_what_is_set_has_the_type_that_the_app_gave_it(tmp_path):
    config = {"lr": 0.1, "rounds": 3, "name": "x", "fast": False, "inner": {"deep": 1}}
    app = app_of(make(tmp_path, app={"config": config}), ["lr=1", "rounds=5", "name=7", "fast=true", "inner.deep=2"])
    assert app.config == {"lr": 1.0, "rounds": 5, "name": "7", "fast": True, "inner.deep": 2}
    assert {key: type(value) for key, value in app.config.items()}["lr"] is float
    assert not app.seeded
    assert app_of(make(tmp_path, app={"config": {"seed": 1}})).seeded


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("round=3", "has no 'round' in its run config: did you mean rounds"),
        ("rounds", "expected key=value"),
        ("rounds=many", "--set rounds=many: expected a value like 3"),
        ("rounds=1.5", "expected a value like 3"),
    ],
)
def test_what_the_app_does_not_know_is_refused(tmp_path, change, message):
    with pytest.raises(ConfigError, match=message):
        app_of(make(tmp_path, app={"config": {"rounds": 3}}), [change])


def test_numbers_of_a_run_config_are_for_the_report_and_texts_are_not(tmp_path):
    config = {"lr": 0.1, "rounds": 3, "fast": True, "token": "hunter2", "seed": 5, "inner": {"deep": 1}, "far": 2**60}
    app = app_of(make(tmp_path, app={"config": config}), ["rounds=7"])
    assert dict(app.numbers) == {"lr": 0.1, "rounds": 7, "fast": True, "inner.deep": 1}


def test_how_many_clients_an_app_has(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "none"))
    stated = {"default": "local", "local": {"options": {"num-supernodes": 7}}}
    assert app_of(make(tmp_path, federations=stated)).supernodes == 7
    assert app_of(make(tmp_path, federations=stated), supernodes=3).supernodes == 3
    # Not the default one, but the only one that says it.
    assert app_of(make(tmp_path, federations={"local": {"options": {"num-supernodes": 4}}})).supernodes == 4
    two = {"a": {"options": {"num-supernodes": 4}}, "b": {"options": {"num-supernodes": 5}}, "default": "b"}
    assert app_of(make(tmp_path, federations=two)).supernodes == 5
    assert not app_of(make(tmp_path, federations={"a": two["a"], "b": two["b"]})).counted
    app = app_of(make(tmp_path))
    assert (app.supernodes, app.counted) == (10, False)


def test_flowers_own_configuration_says_how_many_clients_there_are(tmp_path, monkeypatch):
    """`flwr run` moves what an app declares into it."""
    home, declared = tmp_path / "home", {"default": "mine", "mine": {"options": {"num-supernodes": 4}}}
    monkeypatch.setenv("FLWR_HOME", str(home))
    folder = MESSAGE_API.copy(tmp_path)
    config = tomllib.loads((folder / "pyproject.toml").read_text())
    config["tool"]["flwr"]["federations"] = declared
    (folder / "pyproject.toml").write_text(tomli_w.dumps(config))
    assert (app_of(folder).supernodes, app_of(folder).counted_by) == (4, "")
    migrate(str(folder), [], ignore_legacy_usage=True)
    assert "num-supernodes" not in str(tomllib.loads((folder / "pyproject.toml").read_text()))
    app = app_of(folder)
    assert (app.supernodes, app.counted, app.counted_by) == (4, True, f"{home / 'config.toml'}: superlink.mine")
    assert app_of(folder, supernodes=7).counted_by == ""
    for text in ("[superlink]\ndefault = 3", "superlink = 5", "no TOML", '[superlink]\ndefault = "gone"', "\0"):
        (home / "config.toml").write_text(text)
        assert (app_of(folder).supernodes, app_of(folder).counted) == (10, False)


def test_apps_of_any_kind_are_taken_and_what_is_no_app_is_refused(tmp_path):
    assert app_of(SECAGG.copy(tmp_path / "masked")).folder.name == "project"
    assert app_of(LEGACY.copy(tmp_path / "plain")).folder.name == "project"
    with pytest.raises(ConfigError, match="give the folder of a Flower app"):
        app_of(tmp_path / "nowhere")


def test_a_command_is_taken_if_it_lasts_as_long_as_its_run(tmp_path):
    folder = MESSAGE_API.copy(tmp_path)
    assert app_of_command(["flwr", "run", str(folder), "--stream"]).folder == folder
    with pytest.raises(ConfigError, match="add --stream"):
        app_of_command(["flwr", "run", str(folder)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("./nowhere",), "give the folder of a Flower app"),
        (("EMPTY",), "give the folder of a Flower app"),
        (("APP", "--model", "nowhere:Net"), "model 'nowhere:Net': cannot import 'nowhere'"),
        (("APP", "--loss", "nope"), "unknown loss 'nope'"),
        (("APP", "--supernodes", "1"), "--supernodes"),
        (("quickstart", "--supernodes", "3"), "--supernodes is for an app of your own"),
        (("quickstart", "--model", "x:y"), "--model is for an app of your own"),
        (("quickstart", "--control", "full"), "--control is for an app of your own"),
        (("quickstart", "--without", "auxiliary"), "--without is for an app of your own"),
        (("quickstart", "--examples", "x:y"), "--examples is for an app of your own"),
        (("APP", "--examples", "own"), "--examples own: expected module:function of the app"),
        (("APP", "--losses", "nowhere:own"), "--losses nowhere:own: there is no module nowhere"),
        (("APP", "--losses", "x:y", "--model", "x:y"), "--model and --losses both say how losses are computed"),
        (("APP", "--update", "x:y"), "add --losses module:function"),
        (("APP", "--without", "nothing"), "--without nothing: expected"),
        (("APP", "--sensitive", "sex"), "--sensitive sex: a model's input has no names"),
        (("APP", "--property", "seven"), "--property"),
        (("APP", "--groups", "nowhere.toml"), "nowhere.toml"),
        (("quickstart", "membership"), "quickstart membership: expected the command that runs the app"),
        (("APP", "--on", "superlink"), "expected its address in FEDATTACK_SUPERLINK"),
        (("APP", "--fail-if", "sai.asr > 1"), "there are no findings of 'sai'"),
        (("APP", "--option", "magic=1"), "no option 'magic'"),
        (("APP", "--set", "nope=1"), "has no 'nope' in its run config"),
        (("--set", "a=1", "--", "flwr", "run", "APP", "--stream"), "--set belongs in the command after --"),
        (("--seeds", "2", "--", "flwr", "run", "APP", "--stream"), "--seeds and --on are for an app's folder"),
        (("--", "flwr", "run", "APP"), "add --stream"),
        (("--", "python", "server.py"), "expected the command that runs the app"),
    ],
)
def test_words_are_refused_before_anything_runs(words, message, call, tmp_path):
    folders = {"APP": str(MESSAGE_API.copy(tmp_path)), "EMPTY": str(tmp_path / "out.d")}
    (tmp_path / "out.d").mkdir()
    code, _, err = call("audit", "--out", tmp_path / "out", *[folders.get(word, word) for word in words])
    assert code == 2
    assert message in err, err
    assert not (tmp_path / "out").exists()


def test_a_run_folder_that_is_taken_is_refused(call, tmp_path):
    folder = MESSAGE_API.copy(tmp_path)
    code, _, err = call("audit", folder, "--out", folder)
    assert code == 2
    assert "the app itself is there; give the run a folder of its own" in err
    assert "delete" not in err
    code, _, err = call("audit", folder, "--out", tmp_path)
    assert code == 2
    assert "the app itself is there" in err
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    code, _, err = call("audit", folder, "--out", tmp_path / "mine")
    assert code == 2
    assert "already exists; give this run a folder of its own" in err


def test_a_folder_that_is_not_there_is_named_with_one_that_is_spelt_like_it(call, tmp_path):
    folder = MESSAGE_API.copy(tmp_path)
    code, _, err = call("audit", folder.with_name(folder.name[:-1]), "--out", tmp_path / "out")
    assert code == 2
    assert f"there is no folder {str(folder)[:-1]}; did you mean {folder.name}?" in err
    code, _, err = call("audit", tmp_path / "unlike-it", "--out", tmp_path / "out")
    assert code == 2
    assert "unlike-it; give the folder of a Flower app" in err


def test_several_seeds_and_one_seed_are_refused_together(tmp_path):
    words = [str(make(tmp_path / "mine", app={"config": {"seed": 1}}))]
    several = AppWords(["seed=5"], None, "simulation", range(3), None, None, [], None)
    with pytest.raises(ConfigError, match="--set seed=5 would make 3 runs with one seed; leave it out"):
        app_of_words(words, several)
    assert app_of_words(words, replace(several, seeds=[0])).config == {"seed": 5}
    assert app_of_words(words, replace(several, changes=[])).seeded
