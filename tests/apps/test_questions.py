"""What the owner asks besides: its truth is what a plain loop over the data says, and shuffled data leak nothing."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.datasets import load_diabetes

from fedattack.apps.auditing import list_trusted
from fedattack.apps.holding import Client, Holding
from fedattack.apps.questions import (
    OneHotColumn,
    Questions,
    Scene,
    _explain_columns,
    choose_column,
    pose_further,
    read_groups,
)
from fedattack.apps.witnessing import witness_of
from fedattack.attacks import read_knowledge
from fedattack.audit.truth import read_truth
from fedattack.base.errors import ConfigError
from fedattack.learning import LocalSGD
from fedattack.record.folder import Part, write_study
from fedattack.report import read_run
from fedattack.runs.pipeline import choose_attacks, judge_folder
from fedattack.runs.watch import Watch
from fedattack.witness import WitnessedModel, write_witness
from tests.apps.test_holding import World
from tests.apps.worlds import (
    CLASSES,
    FEATURES,
    MODEL,
    TRAINING,
    attack_all,
    pose,
    pose_all,
    train_record,
    witness,
    write_record,
)

TRUSTED = frozenset({"torch.nn:Linear"})
REGRESSION = WitnessedModel("torch.nn:Linear", {"in_features": FEATURES, "out_features": 1}, (FEATURES,), 1, "mse", "")
QUICK = {"clients": "120", "epochs": "5", "adversaries": "svm", "updates": "last5"}


def training_of(how: LocalSGD, steps: int = 1):
    return replace(
        TRAINING, lr=how.lr, momentum=how.momentum, batch_sizes=(how.batch_size,), steps=steps, epochs=float(how.epochs)
    )


def audited(folder, data, evaluated, seen, *, model, how: LocalSGD, rounds, share=1.0, asked, names=None):
    """Train on ``data``, let witnesses say ``seen``, and go the way of the command from there."""
    train_record(folder / "record", data, model=model, training=how, rounds=rounds, share=share)
    write_study(folder, {"commands": ["fedattack audit ."], "seeds": [0], "app": "an-app"})
    part = Part(folder, "")
    for name in data:
        told = witness(name, seen[name], evaluated.get(name), model=model, training=training_of(how))
        write_witness(witness_of(part), told)
    posed = pose_all([part], asked=asked)

    def choose(applying):
        there = choose_attacks(applying, {})
        chosen = []
        for attack in there:
            if names is None or attack.name in names:
                known = attack.options.list_settings()
                chosen.append(attack.with_options({key: text for key, text in QUICK.items() if key in known}))
        return chosen

    attacked = attack_all([part], posed, choose)
    findings, _ = judge_folder(folder, device="cpu", watch=Watch(), trusted=list_trusted(posed))
    return part, attacked, {f"{finding.attack}.{finding.metric}": finding for finding in findings}


def table(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows with a binary column in the third place, of which the label depends too little to tell it."""
    x = rng.normal(size=(count, FEATURES)).astype(np.float32)
    x[:, 2] = rng.random(count) < 0.5
    weights = np.array([0.5, -0.4, 0.3, 0.3, -0.2, 0.1])
    return x, (x @ weights + 0.5 * rng.normal(size=count)).astype(np.float32)


def tables() -> tuple[dict, dict]:
    rng = np.random.default_rng(4)
    names = [str(client) for client in range(12)]
    return {name: table(9, rng) for name in names}, {name: table(12, rng) for name in names}


COLUMN = Questions(column=OneHotColumn("sex", 2, 3))
ONE_STEP = LocalSGD(epochs=1, batch_size=20, lr=0.1)


@pytest.mark.slow
def test_a_column_is_asked_for_and_its_truth_is_that_of_the_data(tmp_path):
    data, evaluated = tables()
    names = ("aia", "attribute-baselines", "sia")
    part, attacked, found = column_asked(tmp_path, data, data, evaluated, names)
    assert "aia" in attacked.scored
    truth, known = read_truth(part.truth), read_knowledge(part.knowledge, trusted=TRUSTED)
    partial = known.partial
    assert truth.attributes.column == "sex"
    assert len(partial) == 108
    assert not partial.x[:, 2].any()
    for row in range(len(partial)):
        owner = truth.attributes.owners[row]
        assert truth.nodes[partial.clients[row]] == owner
        whole = partial.complete(int(truth.attributes.values[row]), np.array([row]))[0]
        own, labels = data[owner]
        (place,) = np.flatnonzero((own == whole).all(axis=1))
        assert labels[place] == partial.y[row]
    assert found["aia.excess"].verdict == "leak"
    assert found["aia.excess"].n == 108
    # Clients go by their nodes in the scores, and by their names in the truth.
    assert found["aia.bound"].n == 108
    # All other questions are judged beside it.
    assert found["sia.asr"].n == 108
    run = read_run(tmp_path)
    assert run["title"].endswith("audit of an-app")
    assert any("the other columns and the label of 108 examples of 12 clients" in note for note in run["notes"])
    unheld = np.concatenate([x for x, _ in evaluated.values()])
    assert all((unheld == x).all(axis=1).any() for x in known.auxiliary.x)
    assert not [x for x in known.auxiliary.x if (known.targets.x == x).all(axis=1).any()]


def column_asked(folder, seen, data, evaluated, names=("aia", "attribute-baselines")):
    how = {"model": REGRESSION, "how": ONE_STEP, "rounds": 40, "share": 0.6}
    return audited(folder, data, evaluated, seen, asked=COLUMN, names=names, **how)


def patients() -> tuple[dict, dict]:
    """The bundled diabetes table, standardised: six columns and the progression, of 12 clients and of nobody."""
    found = load_diabetes()
    order = np.random.default_rng(0).permutation(len(found.target))
    columns = found.data[order][:, [2, 3, 8, 9, 0, 1]]
    x = ((columns - columns.mean(axis=0)) / columns.std(axis=0)).astype(np.float32)
    y = ((found.target[order] - found.target.mean()) / found.target.std()).astype(np.float32)
    parts = [(x[start : start + 9], y[start : start + 9]) for start in range(0, 108, 9)]
    others = [(x[start : start + 25], y[start : start + 25]) for start in range(108, 408, 25)]
    names = [str(client) for client in range(12)]
    return dict(zip(names, parts, strict=True)), dict(zip(names, others, strict=True))


def number_asked(folder, seen, data, evaluated, names=("attribute-number",)):
    how = {"model": REGRESSION, "how": LocalSGD(epochs=5, batch_size=20, lr=0.1), "rounds": 20, "share": 0.6}
    asked = Questions(column=OneHotColumn("bmi", 0, 1))
    return audited(folder, data, evaluated, seen, asked=asked, names=names, **how)


@pytest.mark.slow
def test_a_column_of_numbers_is_asked_for_as_a_number(tmp_path):
    data, evaluated = patients()
    part, attacked, found = number_asked(tmp_path, data, data, evaluated, None)
    assert "attribute-number" in attacked.scored
    assert not {"aia", "ara", "attribute-baselines"} & {*attacked.scored}
    truth, known = read_truth(part.truth), read_knowledge(part.knowledge, trusted=TRUSTED)
    # The span is that of all examples that are known, as the values of a column of few values are.
    numbers = np.concatenate([x[:, 0] for x, _ in (*data.values(), *evaluated.values())])
    owners = np.array(truth.attributes.owners)
    for name, (x, _) in data.items():
        assert sorted(truth.attributes.numbers[owners == name]) == sorted(x[:, 0].tolist())
    for row, (client, number) in enumerate(zip(owners, truth.attributes.numbers, strict=True)):
        own, labels = data[client]
        (place,) = np.flatnonzero((own[:, 1:] == known.partial.x[row, 1:]).all(axis=1))
        assert (own[place, 0], labels[place]) == (np.float32(number), known.partial.y[row])
    assert known.partial.span.tolist() == [numbers.min(), numbers.max()]
    assert not known.partial.x[:, 0].any()
    near, rank = found["attribute-number.near"], found["attribute-number.rank"]
    assert near.headline
    assert near.n == 108
    assert near.low <= near.value <= near.high
    assert rank.low <= rank.value <= rank.high
    assert set(rank.baselines) == {"the commonest number", "imputation without the model"}


@pytest.mark.slow
def test_a_shuffled_column_is_no_leak(tmp_path):
    """The clients trained on another column than the one that is true."""
    data, evaluated = tables()
    rng = np.random.default_rng(9)
    seen = {name: (x.copy(), y) for name, (x, y) in data.items()}
    for x, _ in seen.values():
        x[:, 2] = rng.permutation(x[:, 2])
    assert column_asked(tmp_path, seen, data, evaluated)[2]["aia.excess"].verdict != "leak"


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (OneHotColumn("column 9", 8, 9), "there is no column 9; the model takes the columns 1 … 6"),
        (
            OneHotColumn("columns 1-2", 0, 2),
            r"columns 1-2 have \d+ different values together, and fedattack can ask for",
        ),
        (OneHotColumn("column 4", 3, 4), "column 4 is the same in all examples"),
    ],
)
def test_a_column_that_cannot_be_asked_for_has_a_reason_and_the_rest_goes_on(tmp_path, column, message):
    write_record(tmp_path / "record", ["100", "101", "102"])
    constant = {name: (x.copy(), y) for name, (x, y) in World.trains.items()}
    for x, _ in constant.values():
        x[:, 3] = 1
    posed = pose(Part(tmp_path, ""), [witness(name, constant[name]) for name in "012"], asked=Questions(column=column))
    assert posed.knowledge.partial is None
    assert len(posed.knowledge.targets) == 300
    assert re.search(message, posed.reasons["partial"].what)


def holding_of(x: np.ndarray, y: np.ndarray):
    """Hold a table of nobody's in particular."""
    examples = dict(enumerate(zip(x.astype(np.float32), y, strict=True)))
    return SimpleNamespace(shape=x.shape[1:], complete=examples, kind=y.dtype.kind, sample=x)


def mixed_table(count=400):
    """Numbers, a constant, a column that follows from others, two of few values, of which one is told, and a group."""
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(count, 3))
    told = numbers[:, 0] > 0
    free = rng.random(count) < 0.4
    group = np.eye(3)[rng.integers(3, size=count)] * 2 - 1
    rare = np.arange(count) % 50 == 0
    columns = [numbers, numbers[:, :1] + numbers[:, 1:2], np.ones((count, 1)), told, free, rare, group]
    return np.column_stack(columns), (numbers[:, 1] + told > 0).astype(np.int64)


def test_of_few_values_the_column_is_asked_for_that_the_others_tell_least():
    x, y = mixed_table()
    assert choose_column(holding_of(x, y)) == OneHotColumn("column 7", 6, 7, is_chosen=True)
    # The same column is not chosen once a copy of it tells it, nor where hardly any example has the other value.
    told = np.column_stack([x, x[:, 6] * 3 - 1])
    assert choose_column(holding_of(told, y)) == OneHotColumn("columns 9-11", 8, 11, is_chosen=True)
    # Of numbers: 1, 2 and 4 follow from each other.
    assert choose_column(holding_of(x[:, :5], y)) == OneHotColumn("column 3", 2, 3, is_chosen=True)
    # A label counts as a column that tells.
    assert choose_column(holding_of(x[:, 5:7], x[:, 6].astype(np.int64))).first == 0


def test_what_else_explains_of_a_column_is_what_least_squares_explain():
    x, y = mixed_table()
    explain = _explain_columns(x, y)
    for inputs in [(0,), (2,), (5,), (6,), (8, 9, 10)]:
        wanted = x[:, inputs]
        others = np.column_stack([np.delete(x, inputs, axis=1), y, np.ones(len(x))])
        left = wanted - others @ np.linalg.lstsq(others, wanted, rcond=None)[0]
        explained = 1 - np.square(left).sum() / np.square(wanted - wanted.mean(axis=0)).sum()
        assert explain(inputs) == pytest.approx(explained, abs=1e-4)


def test_a_column_of_a_wide_table_is_chosen():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 120))
    # Each column but one is near the next one.
    x[:, :-1] += 4 * x[:, 1:]
    assert (
        choose_column(holding_of(np.column_stack([x, x, x[:, :1] + rng.normal(size=(200, 1))]), x[:, 0])).first == 240
    )


def test_no_column_is_chosen_of_what_is_no_table():
    rng = np.random.default_rng(0)
    y = np.arange(30) % 2
    assert choose_column(holding_of(rng.normal(size=(30, 1, 4, 4)), y)) is None
    assert choose_column(holding_of(rng.normal(size=(30, 1_001)), y)) is None
    assert choose_column(holding_of(np.ones((30, 3)), y)) is None
    assert choose_column(holding_of(np.ones((0, 3)), y[:0])) is None


def test_a_column_is_chosen_only_where_nobody_names_one():
    asked = Questions.of_words(None, None, None, [])
    assert asked.is_column_chosen
    assert asked.column is None
    none = Questions.of_words("none", None, None, [])
    assert not none.is_column_chosen
    assert none.column is None
    assert not Questions.of_words("3", None, None, []).column.is_chosen
    assert not Questions().is_column_chosen


@pytest.mark.slow
def test_the_chosen_column_is_asked_for_and_the_page_says_so(tmp_path):
    data, evaluated = tables()
    how = {"model": REGRESSION, "how": ONE_STEP, "rounds": 4, "share": 0.6}
    asked = Questions(is_column_chosen=True)
    _, attacked, found = audited(
        tmp_path, data, evaluated, data, asked=asked, names=("aia", "attribute-baselines", "sia"), **how
    )
    assert "aia" in attacked.scored
    assert found["aia.excess"].n == 108
    (note,) = [note for note in read_run(tmp_path)["notes"] if "no column was named, so column 3 is asked" in note]
    assert "--sensitive none" in note


def test_a_column_is_not_asked_for_where_no_holder_is_certain():
    x, y = np.eye(6, dtype=np.float32), np.zeros(6, np.int64)
    client = Client("0", (witness("0", (x, y)),))
    others = {bytes([row] * 16): (x[row], 0) for row in range(6)}
    scene = Scene(Holding((), {"0": client}, "i", x, others, {}, {}), ["0"], np.ones((1, 1), np.int64), None, [], 0)
    further = pose_further(Questions(column=OneHotColumn("first", 0, 1)), scene)
    assert further.reasons["partial"].what.startswith("--sensitive: no example is certain")


def test_of_large_clients_a_sample_is_asked_for(tmp_path):
    rng = np.random.default_rng(0)
    write_record(tmp_path / "record", [f"10{name}" for name in "0123456"])
    data = {name: table(400, rng) for name in "0123456"}
    told = [witness(name, data[name], model=REGRESSION, keep=390) for name in data]
    posed = pose(Part(tmp_path, ""), told, asked=COLUMN)
    clients = posed.knowledge.partial.clients.tolist()
    assert len(clients) == 1000
    assert {clients.count(node) for node in clients} <= {142, 143}
    assert any("attacks ask about a sample" in note for note in posed.notes)


def classed(holders: set[str], names, rng: np.random.Generator, count: int = 12) -> dict:
    """Examples whose first feature gives the class away; class 3 is with its holders alone."""
    centres = 2 * np.eye(CLASSES, FEATURES)
    data = {}
    for name in names:
        y = rng.integers(CLASSES - 1, size=count)
        if name in holders:
            y[: count // 2] = CLASSES - 1
        x = (centres[y] + 0.5 * rng.normal(size=(count, FEATURES))).astype(np.float32)
        data[name] = (x, y)
    return data


HAVE = {"1", "4", "7", "11"}
PEOPLE = [str(client) for client in range(16)]
CLASS = Questions(label=CLASSES - 1)


def class_asked(folder, seen_of=lambda name: name):
    rng = np.random.default_rng(3)
    data, evaluated = classed(HAVE, PEOPLE, rng), classed(HAVE, PEOPLE, rng, 60)
    seen = {name: data[seen_of(name)] for name in PEOPLE}
    how = {"model": MODEL, "how": LocalSGD(epochs=1, batch_size=12, lr=0.2), "rounds": 40, "share": 0.4}
    return data, *audited(folder, data, evaluated, seen, asked=CLASS, names=("prolin",), **how)


@pytest.mark.slow
def test_who_holds_a_class_is_asked_of_sums(tmp_path):
    data, part, attacked, found = class_asked(tmp_path)
    assert attacked.scored == ("prolin",)
    truth, known = read_truth(part.truth), read_knowledge(part.knowledge)
    has = [name for name, holds in zip(truth.clients, truth.positives[0], strict=True) if holds]
    assert {*has} == {name for name, (_, y) in data.items() if (y == CLASSES - 1).any()} == HAVE
    assert known.positive_share == 0.25
    assert known.property.startswith(f"class-{CLASSES - 1}-at-")
    assert found["prolin.f1"].verdict == "leak"
    assert found["prolin.f1"].view == "aggregate"
    run = read_run(tmp_path)
    assert any("4 of 16 clients hold some" in note for note in run["notes"])
    assert any("prolin was given only sums" in note for note in run["notes"])


@pytest.mark.slow
def test_who_holds_a_class_is_no_leak_where_others_were_seen_with_it(tmp_path):
    other = dict(zip(PEOPLE, np.random.default_rng(4).permutation(PEOPLE).tolist(), strict=True))
    *_, found = class_asked(tmp_path, other.__getitem__)
    assert found["prolin.f1"].verdict != "leak"


def posed_of(tmp_path, data, evaluated, asked, **facts):
    write_record(tmp_path / "record", [f"10{name}" for name in data])
    told = [witness(name, data[name], evaluated.get(name), **facts) for name in data]
    return pose(Part(tmp_path, ""), told, asked=asked)


def test_a_class_that_tells_nobody_apart_has_a_reason(tmp_path):
    rng = np.random.default_rng(3)
    data = classed(HAVE, PEOPLE, rng, 40)
    posed = posed_of(tmp_path, data, classed(HAVE, PEOPLE, rng), Questions(label=0))
    why = "--property 0: all clients hold examples of it; these divide the clients: 3"
    assert posed.reasons["property"].what == why
    posed = posed_of(tmp_path / "b", data, classed(HAVE, PEOPLE, rng), Questions(label=9))
    assert posed.reasons["property"].what == "--property 9: there is no such class, classes are 0 … 3"
    posed = posed_of(tmp_path / "c", data, {}, CLASS)
    assert "no auxiliary examples of that class" in posed.reasons["property"].what


@pytest.mark.slow
def test_too_few_clients_are_told_before_minutes_of_computing(tmp_path):
    rng = np.random.default_rng(3)
    few = ["0", "1", "2"]
    data, evaluated = classed({"1"}, few, rng, 40), classed({"1"}, few, rng, 40)
    how = LocalSGD(epochs=1, batch_size=40, lr=0.2)
    part, attacked, _ = audited(tmp_path, data, evaluated, data, model=MODEL, how=how, rounds=2, asked=CLASS)
    assert "prolin" not in attacked.scored
    (why,) = [entry["why"] for entry in read_run(part.folder)["untried"] if "property" in entry["question"]]
    assert why.startswith("with 3 clients, 1 of them with the property no outcome could be a leak")


GROUPS = {"region": {**dict.fromkeys(PEOPLE[:8], "north"), **dict.fromkeys(PEOPLE[8:], "south")}}


def grouped(rng: np.random.Generator, count: int = 15) -> dict:
    """Clients of the south have another third feature, whatever the class."""
    data = classed(set(), PEOPLE, rng, count)
    for name, (x, _) in data.items():
        x[:, 4] += 2.0 if GROUPS["region"][name] == "south" else -2.0
    return data


@pytest.mark.parametrize("shuffled", [False, True])
def test_groups_of_clients_are_asked_for(tmp_path, shuffled):
    rng = np.random.default_rng(5)
    data, evaluated = grouped(rng), grouped(rng)
    of_client = dict(GROUPS["region"])
    if shuffled:
        of_client = dict(zip(PEOPLE, rng.permutation([*of_client.values()]).tolist(), strict=True))
    how = LocalSGD(epochs=1, batch_size=15, lr=0.2)
    part, attacked, found = audited(
        *(tmp_path, data, evaluated, data),
        model=MODEL,
        how=how,
        rounds=2,
        asked=Questions(groups={"region": of_client}),
        names=("private-attribute",),
    )
    assert attacked.scored == ("private-attribute",)
    truth, known = read_truth(part.truth), read_knowledge(part.knowledge, trusted=TRUSTED)
    held = truth.private["region"]
    told = {name: held.names[value] for name, value in zip(truth.clients, held.values, strict=True)}
    assert told == of_client
    attribute = known.attributes["region"]
    for x, code in zip(known.auxiliary.x, attribute.codes, strict=True):
        (origin,) = [name for name, (own, _) in evaluated.items() if (own == x).all(axis=1).any()]
        assert attribute.values[code] == of_client[origin]
    finding = found["private-attribute.region-svm"]
    assert (finding.verdict == "leak") is not shuffled
    assert finding.n == 16


def test_groups_that_do_not_fit_the_clients_have_a_reason(tmp_path):
    rng = np.random.default_rng(5)
    data, evaluated = grouped(rng), grouped(rng)
    incomplete = {name: value for name, value in GROUPS["region"].items() if name != "6"}
    posed = posed_of(tmp_path, data, evaluated, Questions(groups={"region": incomplete}))
    assert posed.reasons["attributes"].what == "--groups: region does not say which group client 6 is in"
    north = {name: evaluated[name] for name in PEOPLE[:8]}
    posed = posed_of(tmp_path / "b", data, north, Questions(groups=GROUPS))
    assert posed.reasons["attributes"].what.startswith("--groups: no client of region south evaluates on examples")
    posed = posed_of(tmp_path / "c", data, {}, Questions(groups=GROUPS))
    assert "no client evaluates on examples of its own" in posed.reasons["attributes"].what


def test_a_node_that_nobody_witnessed_leaves_the_truth_of_all_clients_open(tmp_path):
    rng = np.random.default_rng(5)
    data, evaluated = grouped(rng), grouped(rng)
    write_record(tmp_path / "record", [*(f"10{name}" for name in data), "999"])
    told = [witness(name, data[name], evaluated[name]) for name in data]
    posed = pose(Part(tmp_path, ""), told, asked=Questions(label=1, groups=GROUPS))
    assert {*posed.reasons} == {"property", "attributes"}
    for why in posed.reasons.values():
        assert why.what == "node 999 was not seen to train, so the truth about it is not known"


@pytest.mark.parametrize("name", ["auxiliary", "training"])
def test_an_attacker_can_be_left_without(tmp_path, name):
    rng = np.random.default_rng(5)
    data, evaluated = grouped(rng), grouped(rng)
    whole = posed_of(tmp_path, data, evaluated, Questions()).knowledge
    less = posed_of(tmp_path / "b", data, evaluated, Questions(without=frozenset({name})))
    assert whole.has(name)
    assert not less.knowledge.has(name)
    assert less.knowledge.targets.fingerprint == whole.targets.fingerprint
    assert any("is assumed not to know, as --without says" in note for note in less.notes)


def test_the_shares_of_a_column_can_be_left_out(tmp_path):
    data, evaluated = tables()
    facts = {"model": REGRESSION}
    shares = posed_of(tmp_path, data, evaluated, COLUMN, **facts).knowledge.partial.prior
    everything = np.concatenate([x[:, 2] for x, _ in [*data.values(), *evaluated.values()]])
    assert shares.tolist() == pytest.approx([np.mean(everything == 0), np.mean(everything == 1)])
    asked = replace(COLUMN, without=frozenset({"shares"}))
    assert posed_of(tmp_path / "b", data, evaluated, asked, **facts).knowledge.partial.prior is None


def test_words_are_read_before_a_run(tmp_path):
    path = tmp_path / "groups.toml"
    path.write_text("[region]\nnorth = [0, 1]\nsouth = ['2', 3]\n")
    asked = Questions.of_words("sex=3-4", 5, path, ["auxiliary", "limits"])
    assert asked.column == OneHotColumn("sex", 2, 4)
    assert asked.groups == {"region": {"0": "north", "1": "north", "2": "south", "3": "south"}}
    assert (asked.label, asked.without) == (5, {"auxiliary", "limits"})
    assert Questions.of_words("7", None, None, []).column == OneHotColumn("column 7", 6, 7)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("sex", None, None, []), "--sensitive sex: a model's input has no names; expected a number from 1"),
        (("0", None, None, []), "--sensitive 0: columns are counted from 1"),
        ((None, -1, None, []), "--property -1: classes are counted from 0; expected 0 or more"),
        (("5-3", None, None, []), "the last one must not come before the first"),
        ((None, None, None, ["auxilary"]), "--without auxilary: did you mean auxiliary"),
    ],
)
def test_a_word_that_is_none_ends_in_one_line(words, message):
    with pytest.raises(ConfigError, match=message):
        Questions.of_words(*words)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"^--groups .*groups\.toml is not there; expected"),
        ("", "is empty"),
        ("a = [", "cannot be read as TOML"),
        (f"a = {'[' * 2000}", "cannot be read as TOML"),
        (f"a = 1{'0' * 5000}", "cannot be read as TOML"),
        (f"[region]\nnorth = [0x1{'0' * 5000}]\nsouth = [2]", "cannot be read as TOML"),
        ("north = [1]", "north: expected a table for each attribute"),
        ("[region]\nnorth = [1]", "region has 1 value; expected at least two"),
        ("[region]\nnorth = [1]\nsouth = 3", "region.south: expected a table"),
        ("[region]\nnorth = [1]\nsouth = []", "region.south is empty"),
        ("[region]\nnorth = [1]\nsouth = [2, 1]", "client 1 is in two groups"),
        ("['a b']\nnorth = [1]\nsouth = [2]", "names consist of letters"),
    ],
)
def test_a_file_of_groups_that_is_none_ends_in_one_line(tmp_path, text, message):
    path = tmp_path / "groups.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_groups(path)
