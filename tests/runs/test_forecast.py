"""What is said before a run, held against what the judges then say of an attack that is always right."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier as Forest

from fedattack.attacks import Knowledge, PartialRecords, Scores, Targets, read_knowledge
from fedattack.audit.finding import ERROR, LEAK
from fedattack.audit.reach import Prepared, Reach
from fedattack.audit.significance import correct_findings
from fedattack.audit.truth import NOBODY, Attributes, ClientAttribute, HeldRecords, Truth, read_truth
from fedattack.base.errors import ConfigError
from fedattack.record.folder import Part
from fedattack.runs import forecast
from fedattack.runs.forecast import describe_reaches, find_reaches, foretell, in_bytes, needed_of, record_size
from fedattack.runs.presets import load_preset, resolve_settings
from fedattack.threats.attribute.case import AttributeCase
from fedattack.threats.attribute.judge import AttributeJudge
from fedattack.threats.group.case import PrivateAttributeCase
from fedattack.threats.group.judge import PrivateAttributeJudge
from fedattack.threats.inversion.case import InversionCase
from fedattack.threats.inversion.judge import InversionJudge
from fedattack.threats.labels.judge import LabelsCase, LabelsJudge
from fedattack.threats.membership import blind
from fedattack.threats.membership import judge as membership
from fedattack.threats.membership.case import AggregateCase, MembershipCase
from fedattack.threats.membership.judge import AggregateMembershipJudge, MembershipJudge
from fedattack.threats.membership.membership import LikelyMembers
from fedattack.threats.property.case import PropertyCase
from fedattack.threats.property.judge import PropertyJudge
from fedattack.threats.source.case import SourceCase
from fedattack.threats.source.judge import SourceJudge
from fedattack.threats.tokens.judge import TokensCase, TokensJudge
from tests.benchmarks.calibration.inversion import without_replay
from tests.threats.attribute import filled
from tests.threats.inversion import inverted
from tests.threats.property import answered
from tests.threats.source.likely import make_scores
from tests.worlds.cases import make_case
from tests.worlds.federation import CLIENTS, write_predictions_run, write_run, write_sums_run

INDIVIDUAL, AGGREGATE = SimpleNamespace(view="individual"), SimpleNamespace(view="aggregate")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The forest that sees no model is most of a membership judge's time."""
    monkeypatch.setattr(blind, "RandomForestClassifier", lambda count, **options: Forest(count // 10, **options))
    monkeypatch.setattr(membership, "_NULL_DRAWS", 40)


def truth_of(clients, **parts):
    names = tuple(map(str, range(clients)))
    usual = {
        "classes": ("0",),
        "counts": np.full((clients, 1), 10),
        "owners": np.zeros(0, dtype=np.str_),
        "evaluation": (np.zeros((1, 2), dtype=np.float32), np.zeros(1, dtype=np.int64)),
        "nodes": {f"node{name}": name for name in names},
        "targets": "",
    }
    return Truth(clients=names, **(usual | parts))


def source(clients, seed):
    owner = np.repeat(np.arange(clients), 4)
    losses = np.where(np.arange(clients) == owner[:, None], 0.1, 1.0)[None]
    scores = make_scores(losses, np.zeros(len(owner), dtype=np.int64), [f"node{place}" for place in range(clients)])
    return make_case(SourceCase, seed, scores, truth_of(clients, owners=owner.astype(str)), INDIVIDUAL)


def members(targets, seed, kind=MembershipCase, attack="membership", columns=2):
    """Draw so many targets of two clients, and ten times as many that nobody holds, of one label."""
    owner = np.concatenate([np.arange(targets) % 2, np.full(10 * targets, -1)])
    x = np.random.default_rng(seed).normal(size=(len(owner), 4)).astype(np.float32)
    labels = np.zeros(len(owner), dtype=np.int64)
    asked = np.minimum(owner, columns - 1)
    right = (asked[:, None] == np.arange(columns)) & (owner >= 0)[:, None]
    score = right + 0.001 * x[:, :1]
    nodes = [f"node{column}" for column in range(columns)]
    asked_of = Targets(x, labels)
    found = LikelyMembers.of(asked_of, {"fedmia": score, "loss-series": score}, score[None], clients=nodes, rounds=[1])
    owners = np.array([str(one) if one >= 0 else NOBODY for one in owner])
    view = INDIVIDUAL if columns > 1 else AGGREGATE
    known = Knowledge(targets=asked_of)
    return make_case(kind, seed, Scores.of(attack, found), truth_of(2, owners=owners), view, known)


def members_of_sums(targets, seed):
    return members(targets, seed, AggregateCase, "membership-aggregate", 1)


def property_of_one(clients, seed):
    has = (np.arange(clients) == seed % clients)[None]
    scores = answered.make_scores(np.where(has, 1.0, -1.0), [f"node{index}" for index in range(clients)])
    record = type("Empty", (tuple,), {"view": "aggregate", "rounds": ()})()
    return make_case(PropertyCase, seed, scores, truth_of(clients, positives=has), record)


def group(clients, seed):
    held = np.arange(clients) % 3
    private = {"level": ClientAttribute(tuple(map(int, held)), ("a", "b", "c"))}
    facts = {
        "adversaries": ["svm"],
        "rounds": [1],
        "nodes": [f"node{place}" for place in range(clients)],
        "attributes": {"level": ["a", "b", "c"]},
        "clients": 1,
        "epochs": 1,
        "targets": "",
    }
    scores = Scores("private-attribute", {"beliefs-level": np.eye(3)[held][None, None]}, facts)
    return make_case(PrivateAttributeCase, seed, scores, truth_of(clients, private=private), INDIVIDUAL)


def attribute(rare, seed):
    """So many examples have the rarer of two values, and twice as many the other; two clients hold them."""
    values = (np.arange(3 * rare) < rare).astype(np.int64)
    x = np.random.default_rng(seed).normal(size=(len(values), 3)).astype(np.float32)
    owners = np.array([str(place % 2) for place in range(len(values))])
    partial = PartialRecords(x, x[:, 0], owners, (2,), np.array([[0.0], [1.0]], dtype=np.float32), ("no", "yes"))
    asked = Attributes(values, ("no", "yes"), tuple(owners.tolist()), "sex")
    truth = truth_of(2, attributes=asked, targets=partial.fingerprint)
    scores = filled.make_scores("aia", {"all": values}, targets=partial.fingerprint)
    return make_case(AttributeCase, seed, scores, truth, INDIVIDUAL, Knowledge(partial=partial))


def inversion(others, seed):
    """One example beside so many of its label that nobody trained on."""
    images = np.random.default_rng(seed).random((others + 1, 1, 8, 8)).astype(np.float32)
    labels = np.zeros(others + 1, dtype=np.int64)
    held = HeldRecords(images[:1], labels[:1], ("0",))
    scores = inverted.make_scores(images[:1], labels[:1], ["0"], each=1)
    truth = truth_of(1, records=held, evaluation=(images[1:], labels[1:]))
    return make_case(InversionCase, seed, scores, truth, INDIVIDUAL)


def labels(clients, seed):
    """Each client holds one label more than the one before, and everything is counted right."""
    counts = 1 + np.tri(clients, clients + 1, dtype=np.int64)
    facts = {
        "clients": [f"node{place}" for place in range(clients)],
        "classes": clients + 1,
        "rules": ["solved"],
        "rounds": [1],
        "drawn": False,
        "targets": "",
    }
    arrays = {"counts": counts[None].astype(float), "prior": np.full(clients + 1, 1 / (clients + 1))}
    classes = tuple(map(str, range(clients + 1)))
    truth = truth_of(clients, classes=classes, counts=counts)
    return make_case(LabelsCase, seed, Scores("labels", arrays, facts), truth, INDIVIDUAL)


def tokens(clients, seed):
    """Each client uses a row of its own, which alone is named."""
    whose = np.arange(clients)
    names = whose.astype(str)
    facts = {
        "clients": [f"node{place}" for place in range(clients)],
        "tables": [{"name": "words", "rows": 50, "how": ["single replies"]}],
        "rounds": [1],
        "targets": "",
    }
    none = np.zeros(clients, dtype=np.int64)
    asked = {"asked": np.arange(50), "asked_tables": np.zeros(50, dtype=np.int64)}
    arrays = {"rows": whose, "tables": none, "whose": whose, "seen": np.ones(clients, dtype=bool), **asked}
    answers = {"names": np.array(["words"]), "rows": whose, "tables": none, "owners": names, "whole": names}
    truth = truth_of(clients, answers={"tokens": answers})
    return make_case(TokensCase, seed, Scores("tokens", arrays, facts), truth, INDIVIDUAL)


class QuickInversion(InversionJudge):
    measures = without_replay(InversionJudge)


@dataclass
class World:
    """A threat's judge, its perfect scores by size, and sizes below and above what is enough."""

    judge: type
    case: object
    sizes: range
    enough: int


WORLDS = {
    "sia": World(SourceJudge, source, range(2, 8), 4),
    "membership": World(MembershipJudge, members, range(4, 13), 8),
    "membership-aggregate": World(AggregateMembershipJudge, members_of_sums, range(4, 13), 8),
    "prolin": World(PropertyJudge, property_of_one, range(16, 28), 23),
    "private-attribute": World(PrivateAttributeJudge, group, range(3, 9), 5),
    "aia": World(AttributeJudge, attribute, range(2, 9), 5),
    "inversion": World(QuickInversion, inversion, range(14, 30), 22),
    "labels": World(LabelsJudge, labels, range(2, 8), 4),
    "tokens": World(TokensJudge, tokens, range(2, 8), 4),
}


def reach_of(judge, cases):
    return judge.reach([Prepared(case.truth, case.knowledge) for case in cases], needed_of(1))


def verdict_of(judge, cases):
    found = correct_findings(judge(cases, setting={}, provenance={}).findings())
    (headline,) = [finding for finding in found if finding.headline]
    return headline.verdict


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("attack", WORLDS)
@pytest.mark.slow
def test_what_is_said_of_a_size_is_what_the_judge_says_of_an_attack_that_is_always_right(attack, seeds):
    world = WORLDS[attack]
    leaks = []
    for size in world.sizes:
        cases = [world.case(size, seed) for seed in range(seeds)]
        least, verdict = reach_of(world.judge, cases).least, verdict_of(world.judge, cases)
        if least > ERROR:
            assert verdict != LEAK, f"size {size} was said to be too small"
        if least <= needed_of(1):
            assert verdict == LEAK, f"size {size} was said to be enough"
        leaks.append(verdict == LEAK)
    if seeds == 1:
        assert leaks == [size >= world.enough for size in world.sizes]


def test_the_forecast_names_the_size_that_is_enough():
    words = {
        "sia": "4 clients",
        "prolin": "23 clients, 1 of them",
        "private-attribute": "5 clients with 3 values",
        "aia": "5 of them",
        "inversion": "22 others of its label",
        "labels": "4 of them",
        "tokens": "4 of them",
    }
    for attack, expected in words.items():
        world = WORLDS[attack]
        assert expected in reach_of(world.judge, [world.case(world.sizes[0], 0)]).enough


def test_a_question_that_nobody_answers_is_not_the_one_that_is_counted():
    case = property_of_one(16, 0)
    nobody = np.zeros_like(case.truth.positives)
    truth = replace(case.truth, positives=np.concatenate([nobody, case.truth.positives]))
    reach = PropertyJudge.reach([Prepared(truth, case.knowledge)], needed_of(1))
    assert reach.size == "16 clients, 1 of them with the property"
    assert "23 clients, 1 of them" in reach.enough


@pytest.mark.parametrize(
    ("reach", "warning"),
    [
        (
            Reach(1 / 6, "3 clients", "4 clients", "clients=4"),
            "no outcome of sia can be a leak: with 3 clients, p is 0.17 at best, and 0.023 is needed; one run would "
            "need 4 clients (--set clients=4)",
        ),
        (
            Reach(1 / 24, "4 clients", "5 clients"),
            "hardly any outcome of sia can be a leak: with 4 clients, p is 0.042 at best, and 0.023 is needed; one run "
            "would need 5 clients",
        ),
        (
            Reach(1.0, "no clients", "4 clients"),
            "no outcome of sia can be a leak: with no clients, there is nothing to test; one run would need 4 clients",
        ),
    ],
)
def test_a_size_that_cannot_show_anything_is_a_warning_with_what_to_change(reach, warning):
    """Headlines share what is needed: 1/24 would be enough for one alone."""
    lines = describe_reaches({"sia": reach, "membership": Reach(1e-4, "90 targets", "8 of each")})
    assert lines == [
        ("warning", warning),
        ("note", "enough for a leak to be stated, if there is one: membership (90 targets)"),
    ]


@pytest.mark.parametrize(("size", "words"), [(0, "0 bytes"), (999, "999 bytes"), (1_250, "1.2 kB"), (8.8e9, "8.8 GB")])
def test_bytes_are_written_as_people_do(size, words):
    assert in_bytes(size) == words


def settings_like(**changes):
    return resolve_settings(load_preset("quickstart"), [f"{key}={value}" for key, value in changes.items()])


def size_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("write", "changes"),
    [
        (write_run, {}),
        (
            lambda folder, **options: write_run(folder, protocol="fedsgd", **options),
            {"framework": "fedsgd", "batch-size": 0},
        ),
        (write_sums_run, {"secagg": "true"}),
        (write_predictions_run, {"framework": "fedmd"}),
    ],
    ids=["models", "gradients", "sums", "predictions"],
)
def test_the_size_of_a_record_is_told_before_it_is_written(tmp_path, write, changes):
    folder = write(tmp_path / "run", rounds=6)
    run = Prepared(read_truth(folder / "truth"), read_knowledge(folder / "knowledge"))
    told = record_size(settings_like(clients=CLIENTS, rounds=6, **changes), run)
    assert told == pytest.approx(size_of(folder / "record"), rel=0.1)


def test_seeds_of_one_federation_count_once(tmp_path):
    """The second part holds what the first does; the third is another seed's."""
    runs = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        folder = write_run(tmp_path / name, seed=seed)
        runs.append(Prepared(read_truth(folder / "truth"), read_knowledge(folder / "knowledge")))
    assert find_reaches(["sia"], runs)["sia"].least == pytest.approx(1 / 24**2)


def test_a_run_that_does_not_fit_is_refused_before_its_first_round(tmp_path, monkeypatch):
    part, said = Part(write_run(tmp_path / "run"), ""), []
    settings = settings_like(clients=CLIENTS)
    foretell(["sia"], settings, [part], lambda *line: said.append(line))
    assert [kind for kind, _ in said] == ["note", "note"]
    monkeypatch.setattr(forecast.shutil, "disk_usage", lambda folder: SimpleNamespace(free=3000))
    with pytest.raises(ConfigError, match=r"the records of this run take .* kB, and 3 kB are free; make room"):
        foretell(["sia"], settings, [part], lambda *line: said.append(line))


def attribute_of(values, owners):
    asked = Attributes(np.array(values), ("no", "yes"), tuple(owners), "sex")
    truth = truth_of(len({*owners}), attributes=asked)
    return AttributeJudge.reach([Prepared(truth, Knowledge())], needed_of(1))


def test_attributes_are_short_of_examples_or_of_clients_with_different_values():
    """Three clients have one value each for all of their examples, two of them the same: nothing else is exchanged."""
    clients = attribute_of([0] * 30 + [1] * 30 + [0] * 30, ["0"] * 30 + ["1"] * 30 + ["2"] * 30)
    assert clients.least == pytest.approx(1 / 3)
    assert (clients.size, clients.setting) == ("2 clients with different values", "clients=4")
    examples = attribute_of([0, 0, 1] * 2, ["0", "0", "0", "1", "1", "1"])
    assert examples.size.startswith("2 examples that do not have the most common value")
    assert examples.setting == "records-per-client=20"
    many = attribute_of([0] * 58 + [1, 1], ["0", "1"] * 30)
    assert many.size.startswith("2 examples")
    assert many.setting == "", "each client has more than 20"
