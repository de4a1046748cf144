import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedattack.attacks import ATTACKS, Attack, ModelKnowledge, Scores, read_knowledge
from fedattack.audit.truth import read_truth
from fedattack.base.errors import ConfigError, ModelError, NeedsError
from fedattack.learning import LocalSGD
from fedattack.record import Exchange, Record, RecordWriter, Reply, project_record
from fedattack.threats.property.detectors import fit_detectors
from fedattack.threats.property.properties import questions
from fedattack.threats.property.setting import DetectorSetting
from tests.worlds.federation import ONE_STEP, WEIGHTED_MEAN, write_property_run

PROLIN = ATTACKS["prolin"]
NORMALISED = ModelKnowledge(spec="tests.attacks.plugins:normalised", input_shape=(12,), classes=4)


def attack(folder: Path, options: dict[str, str] | None = None, *, record: Record | None = None, **changes) -> Scores:
    own = {f"tests.attacks.plugins:{name}" for name in ("normalised", "dropping")}
    known = read_knowledge(folder / "knowledge", trusted=own)
    chosen = PROLIN.with_options(options or {})
    return chosen.run(record or Record(folder / "record"), replace(known, **changes), seed=3, device="cpu")


def having(**options: int) -> Attack:
    """PROLIN with options, also those that no text may choose."""
    return type(PROLIN)(PROLIN.options.replace(**options))


def named(scores: Scores, method: str, question: int = 0) -> list[int]:
    return np.flatnonzero(scores.arrays["decisions"][scores.facts["methods"].index(method), question, -1]).tolist()


def f1(scores: Scores, method: str, truth: np.ndarray) -> float:
    found = scores.arrays["decisions"][scores.facts["methods"].index(method), 0, -1]
    return 2 * (found & truth).sum() / (found.sum() + truth.sum())


def rewrite(record: Record, out: Path, change: Callable[[Exchange], Exchange | None], **manifest) -> Record:
    """Copy an aggregate record, each round through ``change``; ``None`` leaves a round out."""
    writer = RecordWriter(out, **{"view": "aggregate", "aggregation": WEIGHTED_MEAN, **manifest})
    for item in record:
        replies = [Reply(seen.node, seen.status, None, seen.num_examples) for seen in item.observations]
        common, mean = (dict(part.items()) for part in (item.common, item.aggregate))
        changed = change(Exchange(item.number, common, replies, aggregate=mean))
        if changed is not None:
            writer.write(changed)
    writer.close()
    return Record(out)


def same_scores(one: Scores, two: Scores) -> None:
    assert one.facts == two.facts
    assert one.notes == two.notes
    assert one.arrays.keys() == two.arrays.keys()
    for name, array in one.arrays.items():
        assert array.tobytes() == two.arrays[name].tobytes(), name


@pytest.fixture(scope="module")
def inversion(tmp_path_factory):
    return write_property_run(tmp_path_factory.mktemp("inversion"))


@pytest.fixture(scope="module")
def found(inversion):
    return attack(inversion)


@pytest.fixture(scope="module")
def found_without(inversion, tmp_path_factory):
    """Find what the record without its rounds 5 and 12 gives."""
    record = rewrite(
        Record(inversion / "record"),
        tmp_path_factory.mktemp("without") / "record",
        lambda item: None if item.number in (5, 12) else item,
    )
    return attack(inversion, record=record)


@pytest.mark.parametrize("asked", ["membership", "inversion", "ascent"])
@pytest.mark.slow
def test_clients_with_the_property_are_named(asked, tmp_path):
    folder = write_property_run(tmp_path, asked=asked, clients=10, rounds=30, seed=1)
    scores = attack(folder)
    truth = read_truth(folder / "truth").positives[0]
    assert scores.facts["methods"] == ["PROLIN", "REG", "OLS", "BASELINE", "posterior"]
    for method in scores.facts["methods"]:
        assert f1(scores, method, truth) >= 0.9, method
    assert scores.arrays["posterior"][0][truth].min() > 0.9
    assert scores.arrays["posterior"][0][~truth].max() < 0.1
    assert scores.notes == ()
    assert scores.facts["mode"] == "linear"
    assert (scores.arrays["overlap"] < 0.2).all()


@pytest.mark.parametrize("asked", ["membership", "inversion", "ascent"])
@pytest.mark.slow
def test_where_nobody_has_the_property_nobody_is_named(asked, tmp_path):
    named_by_prolin = []
    for seed in (1, 2):
        scores = attack(write_property_run(tmp_path / str(seed), asked=asked, positives=(), seed=seed))
        assert named(scores, "posterior") == []
        named_by_prolin += named(scores, "PROLIN")
    assert len(named_by_prolin) <= 1


@pytest.mark.slow
def test_a_property_that_changes_nothing_names_nobody(inversion):
    """A user's own property, by its import path, whose batches with and without are drawn alike."""
    for shadows in ("linear", "exact"):
        scores = attack(inversion, {"shadows": shadows}, property="tests.attacks.plugins:nothing")
        assert scores.facts["questions"] == ["nothing"]
        assert abs(scores.arrays["accuracy"].mean() - 0.5) < 0.06
        assert named(scores, "posterior") == []
        assert (np.abs(scores.arrays["posterior"] - scores.facts["share"]) < 0.3).all()


def test_scores_decisions_and_windows_fit_together(found):
    arrays, facts = found.arrays, found.facts
    assert facts["windows"] == [10, 20]
    assert arrays["scores"].shape == arrays["decisions"].shape == (5, 1, 2, 8)
    thresholds = {"PROLIN": 0, "REG": 0, "OLS": 0, "BASELINE": 0.5, "posterior": 0}
    for place, method in enumerate(facts["methods"]):
        np.testing.assert_array_equal(arrays["scores"][place] > thresholds[method], arrays["decisions"][place])
    assert (arrays["posterior_low"] <= arrays["posterior"]).all()
    assert (arrays["posterior"] <= arrays["posterior_high"]).all()
    odds = arrays["scores"][facts["methods"].index("posterior"), 0, -1]
    np.testing.assert_allclose(1 / (1 + np.exp(-odds)), arrays["posterior"][0], atol=1e-6)
    shown = [facts["rounds"].index(number) for number in facts["shown"]]
    assert np.isfinite(arrays["checked"][0, shown]).all()
    assert np.isnan(np.delete(arrays["checked"][0], shown)).all()
    assert arrays["plus_sample"].shape[1] == len(shown)


@pytest.mark.slow
def test_early_windows_see_only_their_rounds(inversion, found, tmp_path):
    """What is decided after 10 rounds is what a record that ends there gives, the sampler's own noise apart."""
    record = rewrite(Record(inversion / "record"), tmp_path / "short", lambda item: item if item.number <= 10 else None)
    short = attack(inversion, record=record)
    for place in range(4):
        np.testing.assert_allclose(
            short.arrays["scores"][place, 0, -1], found.arrays["scores"][place, 0, 0], rtol=1e-5, atol=1e-5
        )


@pytest.mark.slow
def test_sums_are_those_of_the_clients_features(tmp_path):
    """Against each client's own update, which only the individual view shows, weighted by example counts."""
    options = {"rounds": 6, "sizes": (8, 16, 5), "training": LocalSGD(epochs=1, batch_size=0, lr=0.05)}
    write_property_run(tmp_path / "each", view="individual", **options)
    folder = write_property_run(tmp_path / "sums", **options)
    scores, known = attack(folder), read_knowledge(folder / "knowledge")
    setting = DetectorSetting(
        known.model,
        known.training,
        known.auxiliary,
        questions(known.property, known.auxiliary, None),
        "linear",
        tuple(scores.facts["sizes"]),
        3,
        "cpu",
    )
    assert scores.facts["sizes"] == [5, 8, 16]
    names = [name for name, _ in known.model.build().named_parameters()]
    for row, item in enumerate(Record(tmp_path / "each" / "record")):
        counts = {seen.node: seen.num_examples for seen in item.observations}
        groups = np.bincount([scores.facts["sizes"].index(count) for count in counts.values()], minlength=3)
        start = np.concatenate([item.common[name].reshape(-1) for name in names])
        (detector,) = fit_detectors(setting, start, groups / len(counts), item.number, check=False)
        expected = 0.0
        for seen in item.observations:
            update = seen.update()
            weight = len(counts) * seen.num_examples / sum(counts.values())
            column = scores.facts["clients"].index(seen.node)
            assert scores.arrays["participation"][row, column] == pytest.approx(weight)
            flat = np.concatenate([update[name].reshape(-1) for name in names]).astype(np.float64)
            expected += weight * (flat @ detector.weights + detector.offset)
        assert scores.arrays["participation"][row].sum() == pytest.approx(len(counts))
        assert scores.arrays["sums"][0, row] == pytest.approx(expected, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("asked", ["membership", "inversion"])
@pytest.mark.slow
def test_clients_of_unequal_sizes_are_told_apart(asked, tmp_path):
    training = LocalSGD(epochs=1, batch_size=0, lr=0.05)
    folder = write_property_run(
        tmp_path, asked=asked, sizes=(8, 16, 5), training=training, clients=10, rounds=40, seed=2
    )
    scores = attack(folder)
    truth = read_truth(folder / "truth").positives[0]
    # a target shows less among more records, so that one threshold for all sizes would miss it there
    for method in ("PROLIN", "REG", "OLS", "posterior"):
        assert f1(scores, method, truth) >= 0.9, method
    assert scores.arrays["plus_sd"].shape == (1, 40, 3)


@pytest.mark.slow
def test_many_sizes_are_put_into_a_few_groups(tmp_path):
    training = LocalSGD(epochs=1, batch_size=0, lr=0.05)
    folder = write_property_run(tmp_path, sizes=(5, 6, 7, 9, 10, 12, 14, 16), training=training, seed=1)
    scores = attack(folder)
    assert 2 <= len(scores.facts["sizes"]) <= 4
    assert f1(scores, "posterior", read_truth(folder / "truth").positives[0]) >= 0.8


@pytest.mark.slow
def test_several_local_steps_with_momentum(tmp_path):
    training = LocalSGD(epochs=2, batch_size=4, lr=0.02, momentum=0.5, weight_decay=0.01)
    folder = write_property_run(tmp_path, asked="ascent", training=training, rounds=15, sampled=3)
    truth = read_truth(folder / "truth").positives[0]
    for shadows in ("linear", "exact"):
        scores = attack(folder, {"shadows": shadows})
        assert scores.facts["mode"] == shadows
        assert f1(scores, "PROLIN", truth) == f1(scores, "posterior", truth) == 1.0


@pytest.mark.slow
def test_the_exact_mode_agrees_with_the_linear_one(inversion, found):
    exact = attack(inversion, {"shadows": "exact"})
    for method in ("PROLIN", "REG", "posterior"):
        assert named(exact, method) == named(found, method) == [1, 6]
    np.testing.assert_allclose(exact.arrays["accuracy"].mean(), found.arrays["accuracy"].mean(), atol=0.02)


@pytest.mark.slow
def test_clients_that_train_by_adam_are_attacked_exactly_and_not_linearly(tmp_path):
    training = LocalSGD(epochs=1, batch_size=4, lr=0.002, optimizer="AdamW")
    folder = write_property_run(tmp_path, asked="inversion", training=training, rounds=15)
    scores = attack(folder)
    assert scores.facts["mode"] == "exact"
    assert f1(scores, "posterior", read_truth(folder / "truth").positives[0]) >= 0.8
    with pytest.raises(
        NeedsError, match=r"a step of AdamW is not a multiple of a gradient; take --option shadows=exact"
    ):
        attack(folder, {"shadows": "linear"})


@pytest.mark.slow
def test_batch_norm_is_attacked_exactly_and_not_linearly(tmp_path):
    training = LocalSGD(epochs=1, batch_size=0, lr=0.05)
    folder = write_property_run(tmp_path, asked="ascent", model=NORMALISED, training=training, rounds=15)
    scores = attack(folder)
    assert scores.facts["mode"] == "exact"
    assert f1(scores, "posterior", read_truth(folder / "truth").positives[0]) >= 0.8
    with pytest.raises(NeedsError, match=r"with batch norm .* take --option shadows=exact"):
        attack(folder, {"shadows": "linear"})


@pytest.mark.slow
def test_a_client_that_never_took_part_is_unknown_and_not_negative(tmp_path):
    folder = write_property_run(tmp_path, absent=(4, 7))
    scores = attack(folder)
    assert scores.facts["unknown"] == ["node04", "node07"]
    assert len(scores.facts["clients"]) == 8
    assert np.isnan(scores.arrays["scores"][..., [4, 7]]).all()
    assert np.isfinite(np.delete(scores.arrays["scores"], [4, 7], axis=-1)).all()
    assert not scores.arrays["decisions"][..., [4, 7]].any()
    np.testing.assert_allclose(scores.arrays["posterior"][0, [4, 7]], scores.facts["share"])
    assert any(
        "2 clients never took part and are unknown, not negative: node04, node07" in note for note in scores.notes
    )
    assert not any("rank" in note for note in scores.notes)
    assert named(scores, "PROLIN") == [1, 6]


@pytest.mark.slow
def test_who_comes_late_is_unknown_until_then(inversion, tmp_path):
    """A client that is first seen in round 15 has no score after 10 rounds, and one after 20."""

    def without_node(item):
        replies = item.replies if item.number >= 15 else [seen for seen in item.replies if seen.node != "node06"]
        return replace(item, replies=replies)

    record = rewrite(Record(inversion / "record"), tmp_path / "late", without_node)
    scores = attack(inversion, record=record)
    column = scores.facts["clients"].index("node06")
    assert np.isnan(scores.arrays["scores"][:, 0, 0, column]).all()
    assert np.isfinite(scores.arrays["scores"][:, 0, 1, column]).all()


def test_fewer_rounds_than_clients_warn_and_widen_the_intervals(tmp_path, found):
    scores = attack(write_property_run(tmp_path, rounds=6))
    assert any("6 rounds are fewer than 8 clients" in note for note in scores.notes)

    def width(item):
        return float((item.arrays["posterior_high"] - item.arrays["posterior_low"]).mean())

    assert width(scores) > width(found)
    assert scores.facts["windows"] == [6]


@pytest.mark.slow
def test_clients_that_always_appear_together_are_warned_of(tmp_path):
    scores = attack(write_property_run(tmp_path, teams=2))
    (note,) = scores.notes
    assert "rank 4 for 8 clients that took part: clients that always appear together cannot be told apart" in note
    for left in range(0, 8, 2):
        pair = scores.arrays["scores"][scores.facts["methods"].index("OLS"), 0, -1, left : left + 2]
        assert pair[0] == pytest.approx(pair[1])


def no_count(item: Exchange) -> list[Reply]:
    return [replace(item.replies[0], num_examples=None), *item.replies[1:]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda item: {"aggregate": None}, "there is no aggregate"),
        (lambda item: {"replies": [replace(seen, status="missing") for seen in item.replies]}, "there is no aggregate"),
        (lambda item: {"common": None}, "the model that was sent is unknown"),
        (lambda item: {"replies": no_count(item)}, "a participant's example count is unknown"),
        (
            lambda item: {"aggregate": {name: array * np.nan for name, array in item.aggregate.items()}},
            "the aggregate is not finite",
        ),
    ],
    ids=["no aggregate", "nobody answered", "no model", "no count", "not finite"],
)
@pytest.mark.slow
def test_rounds_that_cannot_be_used_are_left_out_with_a_note(inversion, found_without, tmp_path, change, words):
    spoilt = rewrite(
        Record(inversion / "record"),
        tmp_path / "spoilt",
        lambda item: replace(item, **change(item)) if item.number in (5, 12) else item,
    )
    scores = attack(inversion, record=spoilt)
    assert [note.split(":")[0] for note in scores.notes] == ["round 5 left out", "round 12 left out"]
    assert all(words in note for note in scores.notes)
    assert scores.facts["rounds"] == [number for number in range(1, 21) if number not in (5, 12)]
    same_scores(replace(scores, notes=()), found_without)


@pytest.mark.parametrize("count", [float("nan"), float("inf"), -8.0, 0.5])
@pytest.mark.slow
def test_example_counts_that_are_none_leave_the_round_out(inversion, tmp_path, count):
    """Clients send their counts in plaintext, and any number may come."""
    spoilt = rewrite(
        Record(inversion / "record"),
        tmp_path / "spoilt",
        lambda item: (
            replace(item, replies=[replace(item.replies[0], num_examples=count), *item.replies[1:]])
            if item.number == 12
            else item
        ),
    )
    scores = attack(inversion, record=spoilt)
    assert 12 not in scores.facts["rounds"]
    assert any("round 12 left out" in note for note in scores.notes)
    assert named(scores, "PROLIN") == [1, 6]


@pytest.mark.slow
def test_a_round_whose_model_is_not_finite_is_left_out(inversion, tmp_path):
    def spoil(item):
        broken = {name: array * np.float32(np.nan) for name, array in item.common.items()}
        return replace(item, common=broken) if item.number == 12 else item

    scores = attack(inversion, record=rewrite(Record(inversion / "record"), tmp_path / "spoilt", spoil))
    assert any("round 12 left out" in note for note in scores.notes)
    assert named(scores, "PROLIN") == named(scores, "posterior") == [1, 6]


@pytest.mark.slow
def test_a_round_in_which_the_model_diverged_does_not_spoil_the_others(inversion, tmp_path):
    """Those who ascend the loss may well drive a model to where gradients overflow; other rounds still tell."""

    def explode(item):
        if item.number != 12:
            return item
        huge = {name: array * np.float32(1e30) for name, array in item.common.items()}
        return replace(item, common=huge, aggregate={name: array.astype(np.float64) for name, array in huge.items()})

    scores = attack(inversion, record=rewrite(Record(inversion / "record"), tmp_path / "exploded", explode))
    for method in ("PROLIN", "REG", "posterior"):
        assert named(scores, method) == [1, 6], method
    assert np.isfinite(scores.arrays["scores"]).all()
    assert "detectors of 1 rounds see no difference and say nothing: 12" in scores.notes


@pytest.mark.slow
def test_the_order_of_parameters_in_the_record_does_not_matter(inversion, found, tmp_path):
    def turn(item):
        return replace(
            item,
            common=dict(reversed(list(item.common.items()))),
            aggregate=dict(reversed(list(item.aggregate.items()))),
        )

    scores = attack(inversion, record=rewrite(Record(inversion / "record"), tmp_path / "turned", turn))
    for method in scores.facts["methods"]:
        assert named(scores, method) == named(found, method), method
    np.testing.assert_allclose(scores.arrays["sums"], found.arrays["sums"], rtol=1e-3, atol=1e-3)


def test_sums_that_hold_canaries_are_refused(inversion):
    with pytest.raises(NeedsError, match="also contain the replies of 2 canaries; take the record of a run without"):
        attack(inversion, canaries=("20", "21"))


def test_no_usable_round_is_refused(inversion, tmp_path):
    record = rewrite(Record(inversion / "record"), tmp_path / "none", lambda item: replace(item, aggregate=None))
    with pytest.raises(NeedsError, match=r"needs at least one round with an aggregate, and .* holds none") as refusal:
        attack(inversion, record=record)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("aggregation", [None, {"kind": "sum"}, {"kind": "mean", "weight": "equal"}])
def test_aggregates_of_another_kind_are_refused(inversion, tmp_path, aggregation):
    record = rewrite(Record(inversion / "record"), tmp_path / "other", lambda item: item, aggregation=aggregation)
    with pytest.raises(NeedsError, match="needs aggregates that are example-weighted means") as refusal:
        attack(inversion, record=record)
    assert "\n" not in str(refusal.value)


@pytest.mark.slow
def test_an_individual_record_is_refused_by_name_and_projects_to_the_same_findings(inversion, found, tmp_path):
    write_property_run(tmp_path, view="individual")
    each = Record(tmp_path / "record")
    with pytest.raises(
        NeedsError,
        match=r"it is about sums of updates.* it would take sums of this record, which `fedattack project` makes",
    ):
        attack(tmp_path, record=each)
    projected = attack(tmp_path, record=project_record(each, tmp_path / "projected"))
    assert projected.facts == found.facts
    np.testing.assert_array_equal(projected.arrays["decisions"], found.arrays["decisions"])
    np.testing.assert_allclose(projected.arrays["sums"], found.arrays["sums"], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(projected.arrays["scores"], found.arrays["scores"], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shadow": "linear"}, "attack prolin has no option 'shadow'; it has memory, workers, shadows"),
        ({"shadows": "quick"}, "option shadows=quick: expected one of linear, exact"),
        ({"workers": "-1"}, "option workers=-1: expected a whole number, 0 or more"),
        ({"workers": "two"}, "option workers=two: expected a whole number"),
    ],
)
def test_options_that_make_no_sense_are_refused_in_one_line(options, words):
    with pytest.raises(ConfigError, match=words) as refusal:
        PROLIN.with_options(options)
    assert "\n" not in str(refusal.value)


def test_options_leave_the_registered_attack_alone():
    chosen = PROLIN.with_options({"shadows": "exact", "workers": "2"})
    assert (chosen.options.shadows, chosen.options.workers) == ("exact", 2)
    assert (PROLIN.options.shadows, PROLIN.options.workers) == (None, 0)
    assert PROLIN.with_options({}) is PROLIN


def test_what_is_asked_must_be_known_and_possible(inversion):
    known = read_knowledge(inversion / "knowledge")
    with pytest.raises(ModelError, match="unknown property 'invert'"):
        attack(inversion, property="invert")
    with pytest.raises(NeedsError, match="property membership needs auxiliary and target records"):
        attack(inversion, property="membership")
    many = replace(known.auxiliary, x=np.tile(known.auxiliary.x[:1], (5_001, 1)), y=np.zeros(5_001, np.int64))
    with pytest.raises(NeedsError, match="one question for each of 5,001 targets; at most 5,000 are asked"):
        attack(inversion, property="membership", targets=many)
    few = replace(known.auxiliary, x=known.auxiliary.x[:30], y=known.auxiliary.y[:30])
    with pytest.raises(NeedsError, match="property inversion: a client's batch takes 12 different auxiliary records"):
        attack(inversion, auxiliary=few)
    with pytest.raises(ModelError, match="the parameters are not those of this model"):
        attack(inversion, model=replace(known.model, hidden=9))


@pytest.mark.long
def test_two_workers_find_what_one_does(tmp_path):
    folder = write_property_run(tmp_path, rounds=4, model=ModelKnowledge("tests.attacks.plugins:dropping", (12,), 4))
    same_scores(attack(folder, {"workers": "2"}), attack(folder, {"workers": "0"}))


@pytest.mark.slow
def test_with_little_memory_the_same_is_found(inversion, found):
    little = having(memory=120_000, workers=1).run(
        Record(inversion / "record"), read_knowledge(inversion / "knowledge"), seed=3, device="cpu"
    )
    assert little.notes == found.notes
    np.testing.assert_array_equal(little.arrays["decisions"], found.arrays["decisions"])
    for name in ("scores", "posterior", "sums", "overlap", "checked"):
        np.testing.assert_allclose(little.arrays[name], found.arrays[name], rtol=1e-2, atol=1e-2, err_msg=name)


@pytest.mark.parametrize(
    ("memory", "asked", "expected"), [(120_000, 0, 1), (120_000, 2, 2), (PROLIN.options.memory, 0, 0)]
)
def test_rounds_that_take_all_of_the_memory_take_one_process_unless_more_are_asked_for(
    inversion, monkeypatch, memory, asked, expected
):
    def seen(work, tasks, *, workers, **others):
        raise NeedsError(f"{workers} processes")

    monkeypatch.setattr("fedattack.threats.property.prolin.fan_out", seen)
    known = read_knowledge(inversion / "knowledge")
    with pytest.raises(NeedsError, match=f"^{expected} processes"):
        having(memory=memory, workers=asked).run(Record(inversion / "record"), known, seed=3, device="cpu")


@pytest.mark.long
def test_too_little_memory_for_the_usual_search_is_told(inversion):
    little = having(memory=7_000, workers=1).run(
        Record(inversion / "record"), read_knowledge(inversion / "knowledge"), seed=3, device="cpu"
    )
    (note,) = [note for note in little.notes if "dimensions" in note]
    assert "in place of 24, which do not fit into 0 MB" in note


@pytest.mark.slow
def test_torchs_threads_do_not_matter(tmp_path):
    folder = write_property_run(tmp_path, rounds=4, sizes=(16,), training=replace(ONE_STEP, batch_size=16))
    one = attack(folder)
    torch.set_num_threads(max(2, os.cpu_count() or 2))
    try:
        same_scores(attack(folder), one)
    finally:
        torch.set_num_threads(1)


@pytest.mark.slow
def test_progress_ends_at_its_end(inversion):
    steps = []
    known = read_knowledge(inversion / "knowledge")
    PROLIN.run(Record(inversion / "record"), known, device="cpu", progress=lambda *step: steps.append(step))
    assert steps == [(done, 21) for done in range(1, 22)]
