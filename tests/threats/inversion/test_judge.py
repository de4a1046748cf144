"""Gradient inversion's judge: known answers, a slow similarity, and a null."""

import itertools
from dataclasses import replace
from shutil import copytree, rmtree

import numpy as np
import pytest
from scipy import stats

from fedattack.attacks import Scores, read_knowledge, write_knowledge
from fedattack.audit.finding import CANNOT_TELL, LEAK, NO_EVIDENCE, TOO_FEW
from fedattack.audit.truth import HeldRecords, read_truth
from fedattack.base.errors import DataError
from fedattack.record import Record
from fedattack.report import write_report
from fedattack.threats.inversion import exchange as exchanging
from fedattack.threats.inversion.case import InversionCase
from fedattack.threats.inversion.exchange import AttackedClient, exchange
from fedattack.threats.inversion.images import (
    IDENTICAL,
    pair_images,
    peak_ratio,
    similarities,
    squared_error,
    structural_similarity,
)
from fedattack.threats.inversion.judge import InversionJudge
from tests.benchmarks.calibration import inversion as drawn
from tests.benchmarks.calibration.drawn import measured
from tests.threats.inversion.inverted import make_scores
from tests.worlds.attacked import audit_folder
from tests.worlds.cases import change_case, make_case
from tests.worlds.inversion import write_inversion_run

CLIENTS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_inversion_run(tmp_path_factory.mktemp("run"), clients=CLIENTS, each=2)


def case(folder, images=None, labels=None):
    truth = read_truth(folder / "truth")
    images = truth.records.x if images is None else images
    labels = truth.records.y if labels is None else labels
    record, known = Record(folder / "record"), read_knowledge(folder / "knowledge")
    scores = make_scores(images, labels, [str(client) for client in range(CLIENTS)], each=2)
    return make_case(InversionCase, 0, scores, truth, record, known)


def with_found(case, **changes):
    """The same case, of which something else was found."""
    return change_case(case, scores=Scores.of("inversion", replace(case.found, **changes)))


def judged(*cases):
    return {finding.metric: finding for finding in InversionJudge(cases, setting={}, provenance={}).findings()}


def slow_similarity(one, other):
    """Wang et al. 2004, formula by formula, one pixel after another."""
    channels, height, width = one.shape
    side = min(11, height, width)
    side -= side % 2 == 0
    weights = np.array(
        [
            [np.exp(-((i - side // 2) ** 2 + (j - side // 2) ** 2) / (2 * 1.5**2)) for j in range(side)]
            for i in range(side)
        ]
    )
    weights /= weights.sum()
    found = []
    for c, i, j in itertools.product(range(channels), range(height - side + 1), range(width - side + 1)):
        a, b = (image[c, i : i + side, j : j + side].astype(float) for image in (one, other))
        mean_a, mean_b = (weights * a).sum(), (weights * b).sum()
        spread_a, spread_b = (weights * (a - mean_a) ** 2).sum(), (weights * (b - mean_b) ** 2).sum()
        joint = (weights * (a - mean_a) * (b - mean_b)).sum()
        found.append(
            (2 * mean_a * mean_b + 1e-4)
            * (2 * joint + 9e-4)
            / ((mean_a**2 + mean_b**2 + 1e-4) * (spread_a + spread_b + 9e-4))
        )
    return np.mean(found)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 13, 15), (1, 1, 4)])
def test_structural_similarity_is_the_papers(shape):
    one, other = np.random.default_rng(0).random((2, 4, *shape)).astype(np.float32)
    wanted = [slow_similarity(a, b) for a, b in zip(one, other, strict=True)]
    np.testing.assert_allclose(structural_similarity(one, other), wanted, atol=1e-9)
    np.testing.assert_allclose(structural_similarity(one, one), 1, atol=1e-9)


def test_all_similarities_are_those_of_the_pairs():
    one, other = np.random.default_rng(0).random((2, 3, 1, 8, 9)).astype(np.float32)
    table = similarities(one, other[:2])
    for row, column in itertools.product(range(3), range(2)):
        wanted = structural_similarity(one[row : row + 1], other[column : column + 1])
        np.testing.assert_allclose(table[row, column], wanted[0])


def test_errors_and_ratios_are_those_of_the_definition():
    one, other = np.zeros((2, 1, 2, 2), np.float32), np.full((2, 1, 2, 2), 0.1, np.float32)
    np.testing.assert_allclose(squared_error(one, other), 0.01, rtol=1e-5)
    np.testing.assert_allclose(peak_ratio(squared_error(one, other)), 20, rtol=1e-5)
    np.testing.assert_allclose(peak_ratio(np.array([1.0, 0.0])), [0, IDENTICAL])


def test_records_are_paired_as_the_best_of_all_orders():
    draw = np.random.default_rng(0)
    for _ in range(20):
        found, truth = draw.random((2, 4, 1, 3, 3)).astype(np.float32)
        best = min(itertools.permutations(range(4)), key=lambda order: squared_error(found[list(order)], truth).sum())
        assert pair_images(found, truth).tolist() == list(best)
    assert sorted(pair_images(found[:2], truth)) == [-1, -1, 0, 1]
    assert len(set(pair_images(found, truth[:2]))) == 2


def test_true_records_in_any_order_are_a_leak(folder):
    own = read_truth(folder / "truth").records
    order = np.arange(2 * CLIENTS).reshape(CLIENTS, 2)[:, ::-1].reshape(-1)
    found = judged(case(folder, own.x[order], own.y[order]))
    assert found["recognised"].value == 1
    assert found["recognised"].verdict == found["psnr"].verdict == found["ssim"].verdict == LEAK
    assert found["psnr"].value == pytest.approx(IDENTICAL)
    assert found["mse"].value == 0
    assert found["labels"].value == 1
    assert found["preflight"].value < 1e-5
    assert "for 8 of 8 replies" in found["preflight"].reason
    assert found["recognised"].n == 2 * CLIENTS
    pictures = found["recognised"].series["pictures"]
    assert len(pictures) == 2 * CLIENTS
    assert all(item["truth"] == item["image"] for item in pictures)
    assert found["recognised"].headline


def test_noise_of_a_known_size_has_its_ratio(folder):
    one = case(folder)
    low, high = one.limits
    truth = one.scale(one.held.x)
    inside = np.where(truth > 0.5, truth - 0.05, truth + 0.05) * (high - low) + low
    found = judged(case(folder, inside.astype(np.float32)))
    assert found["psnr"].value == pytest.approx(-20 * np.log10(0.05), rel=1e-4)
    assert found["mse"].value == pytest.approx(0.05**2, rel=1e-4)


def test_random_records_and_other_clients_records_are_no_leak(folder):
    own = read_truth(folder / "truth").records
    unheld = read_truth(folder / "truth").evaluation
    for images, labels in (
        (unheld[0][: 2 * CLIENTS], unheld[1][: 2 * CLIENTS]),
        (np.roll(own.x, 2, axis=0), np.roll(own.y, 2)),
        (np.full_like(own.x, np.nan), own.y * 0),
    ):
        found = judged(case(folder, images, labels))
        assert found["recognised"].verdict == found["psnr"].verdict == NO_EVIDENCE
        assert found["recognised"].value == 0
        assert found["labels"].verdict == NO_EVIDENCE


def test_the_mean_image_of_the_label_is_no_leak(folder):
    one = case(folder)
    x, y = one.truth.evaluation
    means = np.stack([x[y == label].mean(axis=0) for label in one.held.y])
    found = judged(case(folder, means))
    assert found["psnr"].value == pytest.approx(found["psnr"].baselines["the mean image of the label"], rel=1e-3)
    assert found["psnr"].verdict == found["recognised"].verdict == NO_EVIDENCE


def test_seeds_are_pooled(folder):
    found = judged(case(folder), case(folder))
    assert found["recognised"].n == 4 * CLIENTS
    assert found["recognised"].seed_sd == 0
    assert len(found["recognised"].series["pictures"]) == 20


def test_scores_that_do_not_fit_the_truth_are_refused(folder):
    own = read_truth(folder / "truth").records
    with pytest.raises(DataError, match=r"have shape \(1, 8, 7\) and those of the truth \(1, 8, 8\)"):
        case(folder, own.x[..., :7])
    good = case(folder)
    without = type(good.truth)(**{**vars(good.truth), "records": None})
    with pytest.raises(DataError, match=r"records\.npz is missing"):
        make_case(InversionCase, 0, good.scores, without, good.record, good.knowledge)
    strangers = type(good.truth)(**{**vars(good.truth), "nodes": {f"node{n}": "x" for n in range(CLIENTS)}})
    with pytest.raises(DataError, match="the examples of none of the attacked clients"):
        make_case(InversionCase, 0, good.scores, strangers, good.record, good.knowledge)


def test_a_folder_is_judged_and_its_page_shows_the_pictures(folder):
    case(folder).scores.save(folder / "scores" / "inversion.npz")
    names = [finding.name for finding in audit_folder(folder, device="cpu")]
    assert names == [f"inversion.{name}" for name in ("recognised", "psnr", "ssim", "mse", "labels", "preflight")]
    page = write_report(folder).read_text()
    assert page.count("data:image/png;base64,") == 4 * CLIENTS
    assert "true images and reconstructions" in page
    # Whether that is a leak says the verdict alone.
    assert "to 20 dB or better; guessing gives" in page
    assert "can be recognised" not in page


def test_a_search_through_an_app_that_recognises_nothing_cannot_tell(folder, tmp_path):
    part = tmp_path / "run"
    copytree(folder, part)
    known = read_knowledge(part / "knowledge")
    unheld = read_truth(part / "truth").evaluation
    case(part, unheld[0][: 2 * CLIENTS], unheld[1][: 2 * CLIENTS]).scores.save(part / "scores" / "inversion.npz")
    by_model = {finding.metric: finding.verdict for finding in audit_folder(part, device="cpu")}
    assert by_model["recognised"] == by_model["labels"] == NO_EVIDENCE
    rmtree(part / "knowledge")
    write_knowledge(part / "knowledge", replace(known, model=None))
    by_app = {finding.metric: finding for finding in audit_folder(part, device="cpu")}
    judged_metrics = [name for name, verdict in by_model.items() if verdict == NO_EVIDENCE]
    assert {by_app[name].verdict for name in judged_metrics} == {CANNOT_TELL}
    assert "no positive control was made" in by_app["recognised"].reason
    page = write_report(part).read_text()
    assert "Cannot be told: nothing shows that this attack would have seen a leak here." in page
    assert "Not shown:" not in page


@pytest.mark.parametrize(("client", "verdict"), [("0", LEAK), ("1", NO_EVIDENCE)])
def test_where_nobody_evaluates_examples_of_other_clients_are_compared(tmp_path, client, verdict):
    """A null, too: images that are another client's are no leak of this one."""
    each = 40
    write_inversion_run(tmp_path, clients=4, each=each, rounds=1)
    truth, record = read_truth(tmp_path / "truth"), Record(tmp_path / "record")
    nothing = np.zeros((0, 1), np.float32), np.zeros(0, np.int64)
    alone = type(truth)(**{**vars(truth), "evaluation": nothing})
    own = np.array(truth.records.owners) == client
    scores = make_scores(truth.records.x[own], truth.records.y[own], ["0"], each=each)
    one = make_case(InversionCase, 0, scores, alone, record, read_knowledge(tmp_path / "knowledge"))
    assert len(one.others[0]) == 3 * each
    found = judged(one)
    assert found["recognised"].n == each
    assert found["recognised"].verdict == found["psnr"].verdict == verdict
    if verdict == LEAK:
        assert "exchanged with others of their labels that other clients hold" in found["psnr"].reason
    assert found["labels"].verdict == TOO_FEW
    all_of_them = make_scores(truth.records.x, truth.records.y, "0123", each=each)
    with pytest.raises(DataError, match="attack one client alone"):
        change_case(one, scores=all_of_them)


def drawn_images(count, seed):
    return np.random.default_rng(seed).random((count, 1, 4, 4)).astype(np.float32)


@pytest.mark.parametrize("found", [1, 2, 3])
def test_exchanges_are_all_choices_of_examples_of_the_labels(found):
    """The oracle goes through all 3 · 5 choices: one of label 0 among 1 + 2, one of label 1 among 1 + 4."""
    images, truth, others = drawn_images(found, 0), drawn_images(2, 1), drawn_images(8, 2)
    labels, of_others = np.array([0, 1]), np.array([0, 0, 1, 1, 1, 1, 2, 2])
    attacked = [AttackedClient(truth, labels, [images])]
    table = exchange(attacked, (others, of_others), 6.0, np.random.default_rng(0), 3_000)

    wanted = []
    for first, second in itertools.product([truth[0], *others[:2]], [truth[1], *others[2:6]]):
        examples = np.stack([first, second])
        places = pair_images(images, examples)
        stand_in = images[places].copy()
        stand_in[places < 0] = 0.5
        ratio = peak_ratio(squared_error(stand_in, examples))
        wanted.append([*ratio, *structural_similarity(stand_in, examples), *(ratio >= 6.0)])
    rows = np.concatenate([table.ratio, table.similarity, table.recognised], axis=1)
    np.testing.assert_allclose(rows[0], wanted[0], rtol=1e-5)
    apart = np.abs(rows[1:, np.newaxis] - np.array(wanted)).max(axis=2)
    assert apart.min(axis=1).max() < 1e-4, "an exchange is one of these"
    assert stats.chisquare(np.bincount(apart.argmin(axis=1), minlength=15)).pvalue > 0.001
    assert table.arrangements == 15


def test_examples_of_one_label_within_a_client_have_no_order():
    labels = np.zeros(2, dtype=np.int64)
    attacked = [AttackedClient(drawn_images(2, client), labels, [drawn_images(2, 9)]) for client in range(2)]
    table = exchange(attacked, (drawn_images(1, 7), labels[:1]), 20.0, np.random.default_rng(0), 10)
    assert table.arrangements == 5 * 6, "one of five is left out, and the first client has two of the other four"


def test_an_example_stays_one_over_its_rounds():
    """What stands for an example in one round does so in the next: two equal rounds are as good as one."""
    truth, others = drawn_images(2, 1), drawn_images(9, 2)
    labels, images = np.zeros(2, dtype=np.int64), drawn_images(2, 0)
    tables = []
    for rounds in (1, 2):
        attacked = [AttackedClient(truth, labels, [images] * rounds)]
        tables.append(exchange(attacked, (others, np.zeros(9, dtype=np.int64)), 7.0, np.random.default_rng(0), 50))
    np.testing.assert_array_equal(tables[0].ratio, tables[1].ratio)
    np.testing.assert_array_equal(tables[0].recognised, tables[1].recognised)


def test_where_there_is_much_to_pair_fewer_exchanges_are_made(monkeypatch):
    monkeypatch.setattr(exchanging, "_PAIRINGS", 1)
    attacked = [AttackedClient(drawn_images(4, 1), np.zeros(4, dtype=np.int64), [drawn_images(4, 0)])]
    others = drawn_images(9, 2), np.zeros(9, dtype=np.int64)
    table = exchange(attacked, others, 6.0, np.random.default_rng(0), 9_999)
    assert len(table.ratio) == 1000
    assert len(exchange(attacked, others, 6.0, np.random.default_rng(0), 50).ratio) == 51


def test_medians_of_seeds_that_differ_stay_in_the_measure_s_range(folder):
    """In one seed all examples come back, in the other none does: two seeds leave the median over runs wide open."""
    truth = case(folder).held.x
    one, other = case(folder), case(folder, images=np.zeros_like(truth))
    found = judged(one, other)
    for metric, least, most in (("ssim", -1, 1), ("mse", 0, 1), ("psnr", 0, IDENTICAL)):
        assert least <= found[metric].low < found[metric].high <= most + 1e-9, metric
    assert found["mse"].low == 0
    assert found["ssim"].high == pytest.approx(1)


def world_case(world, guess=None, seed=0):
    """Draw a case of a world, whose reconstructions are made of the truth by ``guess``."""
    case = drawn.draw_case(world, seed, np.random.default_rng(seed))
    if guess is not None:
        images = np.concatenate([guess(case.held.x, number) for number in range(world.rounds)])
        case = with_found(case, images=images)
    return case


class WithoutReplay(InversionJudge):
    measures = drawn.without_replay(InversionJudge)


def of_scores(*cases):
    return {finding.metric: finding for finding in WithoutReplay(cases, setting={}, provenance={}).findings()}


def test_an_example_of_several_rounds_counts_once_with_its_median():
    def guess(truth, number):
        return truth + np.float32((0.0, 0.1, 0.4)[number])

    case = world_case(drawn.World("truth", clients=7, rounds=3), guess)
    found = of_scores(case)
    low, high = case.limits
    assert found["psnr"].n == found["recognised"].n == found["mse"].n == 7
    assert found["psnr"].value == pytest.approx(-20 * np.log10(0.1 / float((high - low).ravel()[0])), abs=0.5)
    assert found["recognised"].value == pytest.approx(2 / 3), "two of three rounds"


def test_a_single_example_that_comes_back_is_a_leak():
    found = of_scores(world_case(drawn.World("truth", 0.03, clients=1)))
    assert found["psnr"].verdict == found["ssim"].verdict == LEAK
    assert found["psnr"].p <= 0.05
    assert "exchanged with others of their labels that nobody trained on" in found["psnr"].reason
    assert found["labels"].verdict == TOO_FEW
    assert found["labels"].null is None, "there is no other client"


def test_a_single_example_without_others_of_its_label_is_too_little():
    case = world_case(drawn.World("truth", clients=1))
    x, y = case.truth.evaluation
    others = y != case.held.y[0]
    truth = type(case.truth)(**{**vars(case.truth), "evaluation": (x[others], y[others])})
    found = of_scores(make_case(InversionCase, 0, case.scores, truth, case.record, case.knowledge))
    assert found["recognised"].verdict == found["psnr"].verdict == TOO_FEW


def test_five_clients_that_come_back_are_a_leak_in_every_finding():
    case = world_case(drawn.World("truth", clients=5))
    labels = np.array([0, 1, 2, 3, 4])
    held = HeldRecords(case.held.x, labels, case.held.owners)
    truth = type(case.truth)(**{**vars(case.truth), "records": held})
    found = of_scores(change_case(with_found(case, labels=labels), truth=truth))
    # Of 120 ways to say who is who one is right.
    assert found["labels"].p == pytest.approx(1 / 120, abs=0.005)
    assert found["labels"].verdict == found["recognised"].verdict == found["psnr"].verdict == LEAK


def test_labels_are_exchanged_among_clients_of_as_many_examples_alone(folder):
    """How many labels are right by their number alone is no leak: all clients have one label."""
    one = case(folder)
    sizes = np.repeat(np.arange(CLIENTS), [1, 3] * (CLIENTS // 2))
    held = HeldRecords(one.held.x, np.zeros(len(sizes), np.int64), tuple(str(client) for client in sizes))
    truth = type(one.truth)(**{**vars(one.truth), "records": held})
    found = of_scores(change_case(with_found(one, labels=held.y, of_batch=sizes), truth=truth))
    assert found["labels"].value == 1
    assert found["labels"].verdict == TOO_FEW


@pytest.mark.slow
def test_false_alarms_are_rare_and_examples_that_come_back_are_found():
    """Nulls of many kinds: 1, 5 and 20 examples, batches, rounds, few others, several seeds."""
    false = list(measured("null", drawn.NULLS, drawn.judged, 18, seed=5))
    for metric in ("recognised", "psnr", "ssim", "labels"):
        of_metric = [row for row in false if row["finding"] == metric]
        alarms, n = sum(row["alarms"] for row in of_metric), sum(row["of"] for row in of_metric)
        assert n >= 200
        assert alarms <= stats.binom.ppf(0.999, n, 0.05), metric
    power = {name: drawn.POWERS[name] for name in ("the truth with noise, 5 targets",)}
    found = {row["finding"]: row for row in measured("power", power, drawn.judged, 10, seed=5)}
    assert found["psnr"]["leaks"] >= 9
