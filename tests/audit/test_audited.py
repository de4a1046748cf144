from dataclasses import replace

import pytest

from fedattack.attacks import Knowledge
from fedattack.audit.audited import UNKNOWN, audited_of, title_of, training_of
from fedattack.audit.describe import _join_known, provenance_of, setting_of, threat_model_of
from fedattack.audit.opened import Run, open_runs
from fedattack.audit.untried import untried_of
from fedattack.learning.stated import LocalSGD
from fedattack.record import Record, RecordWriter
from fedattack.record.folder import Part, RunFolder
from fedattack.runs.presets import load_preset, preset_names, resolve_settings
from tests.audit.test_run import attack_all
from tests.worlds.federation import CLIENTS, write_run


@pytest.fixture(scope="module")
def evidence(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    write_run(folder, auxiliary=10)
    attack_all(folder)
    return open_runs(RunFolder(folder))


@pytest.mark.parametrize(
    ("attacks", "setting", "more", "title"),
    [
        (["sia"], {"clients": 15, "dataset": "digits"}, {}, "Which client holds this example? 15 clients, digits"),
        (
            ["sia"],
            {"clients": 1, "dataset": "/a/b/mine.npz"},
            {},
            "Which client holds this example? 1 client, mine.npz",
        ),
        (["sia"], {"clients": 3}, {"name": "audit of x"}, "Which client holds this example? 3 clients, audit of x"),
        (["sia"], {}, {"server": "isolating"}, "Which client holds this example? active server"),
        (["sia", "membership"], {}, {}, "What does the server learn?"),
        (["membership", "membership-aggregate"], {}, {}, "Did this client train on this example?"),
        (["unheard-of"], {}, {}, "What does the server learn?"),
        ([], {}, {}, "What does the server learn?"),
    ],
)
def test_a_title_is_made_from_the_settings(attacks, setting, more, title):
    assert title_of(attacks, setting, **more) == title


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_s_title_follows_what_is_changed(name):
    preset = load_preset(name)
    settings = resolve_settings(preset, ["clients=7"])
    assert title_of(preset.attacks, {**settings, "dataset": "/a/mine.npz"}).endswith("? 7 clients, mine.npz")


def test_a_record_from_elsewhere_says_what_it_does_not_know(evidence):
    untold = [replace(run, truth=None) for run in evidence]
    facts = audited_of({}, untold, setting_of({}, untold))
    assert facts["data"] == facts["defence"] == UNKNOWN
    assert facts["clients"] == str(CLIENTS)
    assert facts["training"] == "FedAvg, 2 rounds"
    assert facts["runs"] == "1 (seed 0)"
    assert provenance_of({}, untold, {})["seeds"] == [0]
    assert facts["the server sees"] == "each client's reply"
    assert facts["date"].rsplit(" ", 1)[1].isdigit()


def test_a_record_without_a_round_says_nothing_of_the_run(tmp_path):
    RecordWriter(tmp_path / "record")
    empty = [Run(Part(tmp_path, ""), 0, Record(tmp_path / "record"), Knowledge())]
    setting = setting_of({}, empty)
    assert "clients" not in setting
    facts = audited_of({}, empty, setting)
    assert facts["clients"] == UNKNOWN
    assert facts["training"] == facts["the server sees"] == "not known: no round was recorded"


@pytest.mark.parametrize(
    ("mods", "optimizers", "said"),
    [
        ([], ["SGD"], "no mod and no private optimizer was seen at the clients"),
        ([], [], "no mod was seen at the clients"),
        (["LocalDpMod(epsilon=1)"], ["SGD"], "seen at the clients: the mod LocalDpMod(epsilon=1)"),
        (["a"], ["Adam", "private SGD"], "seen at the clients: the mod a, training by private SGD"),
    ],
)
def test_of_a_watched_run_it_is_said_what_the_witness_saw(evidence, mods, optimizers, said):
    study = {"app": "mine", "mods": mods, "optimizers": optimizers}
    facts = audited_of(study, evidence, setting_of(study, evidence))
    assert facts["defence"] == said
    count = int(evidence[0].truth.counts.sum())
    assert count
    assert facts["data"] == f"{count:,} training examples at {CLIENTS} clients, as the audit found"


def test_training_is_told_where_no_settings_tell_it(evidence):
    (run,) = evidence
    trained = replace(run, knowledge=replace(run.knowledge, training=LocalSGD(5, 32, 0.05, 0.9)))
    told = training_of({"mods": []}, trained)
    assert told["by"] == "as the witness saw"
    assert told["facts"] == {
        "model": run.knowledge.model.spec,
        "optimizer": "SGD",
        "learning rate": 0.05,
        "epochs a round": 5,
        "batch size": 32,
        "momentum": 0.9,
        "weight decay": 0.0,
    }
    assert training_of({}, trained)["by"] == "as the attacker knows"
    assert training_of({"settings": {"lr": 1}}, trained) == {}
    nothing = replace(run.knowledge, model=None, training=None)
    assert training_of({"mods": [], "optimizers": ["a", "b"]}, replace(run, knowledge=nothing))["facts"] == {
        "optimizer": ["a", "b"]
    }
    assert training_of({}, replace(run, knowledge=nothing)) == {}
    assert training_of({"config": {"lr": 0.1}}, replace(run, knowledge=nothing)) == {"config": {"lr": 0.1}}


@pytest.mark.parametrize(
    ("changes", "fact", "said"),
    [
        (["defence=recup", "defence-strength=0.01"], "defence", "recup, strength 0.01"),
        (["dp-noise=2"], "defence", "DP-SGD, noise multiplier 2"),
        (["dp-epsilon=8"], "defence", "DP-SGD up to ε = 8"),
        ([], "defence", "none"),
        (["fraction=0.2"], "clients", "10, 20% of them a round"),
        (["dataset=synthetic", "size=20000"], "data", "20,000 examples of it"),
        (["property=inversion"], "asked about", "property inversion"),
        ([], "training", "2 rounds of 8 asked for, of 20 local epochs"),
        (["fraction=0.5"], "clients", "10, 50% of them a round"),
    ],
)
def test_settings_are_told_in_words(evidence, changes, fact, said):
    settings = resolve_settings(load_preset("quickstart"), changes)
    study = {"preset": "quickstart", "settings": settings}
    facts = audited_of(study, evidence, setting_of(study, evidence))
    assert said in facts[fact]


def test_what_was_not_asked_is_listed_with_what_keeps_it_from_being_asked(evidence):
    untried = untried_of(evidence)
    lines = {line["question"]: line["why"] for line in untried}
    assert all(line["remedy"] for line in untried)
    assert "Which client holds this example?" not in lines
    assert "sums" in lines["Which clients have a property, if the server sees only sums?"]
    assert "one column" in lines["What stands in the one column of clients' examples that the server lacks?"]
    members = [why for question, why in lines.items() if "train on this example" in question]
    assert members == ["nobody asked it of this record"]
    assert "`fedattack attack membership DIR`" in [line["remedy"] for line in untried]
    (images,) = [why for question, why in lines.items() if "look like" in question]
    assert images == "the truth lacks what the judge needs"


def test_peers_are_asked_about_where_an_attack_says_so(evidence):
    peers = "clients, which see the models that they receive"
    assert peers in threat_model_of(evidence)["not_asked"]
    of_trees = replace(evidence[0], scores={"trees": evidence[0].scores["sia"]})
    assert "nothing" not in " ".join(threat_model_of([of_trees])["knows"])
    assert peers not in threat_model_of([of_trees])["not_asked"]


@pytest.mark.parametrize("odd", ["ten", "", None, [1], True])
def test_settings_of_any_making_are_told(evidence, odd):
    """A study and a record's facts are somebody's data."""
    names = (
        "clients",
        "fraction",
        "size",
        "rounds",
        "local-epochs",
        "defence",
        "defence-strength",
        "dp-noise",
        "dataset",
    )
    settings = dict.fromkeys(names, odd)
    assert audited_of({"settings": settings}, evidence, settings)["runs"] == "1 (seed 0)"
    title_of(["sia"], settings)


def test_what_attacks_know_is_said_once_in_its_longest_form():
    known = [
        "the model's architecture",
        "the model's architecture and loss",
        "how clients train",
        "how clients train: learning rate",
        "how clients train",
        "nothing: it reads what clients send",
    ]
    assert _join_known(known) == ["the model's architecture and loss", "how clients train: learning rate"]
    assert _join_known(["how clients train"] * 2) == ["how clients train"]
