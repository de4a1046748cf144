"""Gradient inversion's judge: known answers, a slow similarity, and a null."""

import itertools

import numpy as np
import pytest

from fedattack.audit.finding import LEAK, NO_EVIDENCE
from fedattack.audit.run import audit_folder
from fedattack.audit.truth import read_truth
from fedattack.errors import DataError
from fedattack.record import Record
from fedattack.report import write_report
from fedattack.threats import Scores, read_knowledge
from fedattack.threats.inversion.images import IDENTICAL, paired, peak_ratio, squared_error, structural_similarity
from fedattack.threats.inversion.judge import InversionCase, InversionJudge
from tests.worlds.inversion import write_inversion_run

CLIENTS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_inversion_run(tmp_path_factory.mktemp("run"), clients=CLIENTS, each=2)


def scores(images, labels, clients=CLIENTS, each=2):
    batches = [{"node": f"node{n}", "client": f"node{n}", "round": 1, "records": each} for n in range(clients)]
    arrays = {"images": images, "labels": labels, "batches": np.repeat(np.arange(clients), each)}
    return Scores("inversion", arrays, {"batches": batches, "targets": ""})


def case(folder, images=None, labels=None, **options):
    truth = read_truth(folder / "truth")
    images = truth.records.x if images is None else images
    labels = truth.records.y if labels is None else labels
    record, known = Record(folder / "record"), read_knowledge(folder / "knowledge")
    return InversionCase(0, scores(images, labels, **options), truth, record, known)


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
        assert paired(found, truth).tolist() == list(best)
    assert sorted(paired(found[:2], truth)) == [-1, -1, 0, 1]
    assert len(set(paired(found, truth[:2]))) == 2


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
    truth = one.scaled(one.held.x)
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
    with pytest.raises(DataError, match=r"records\.npz is not there"):
        InversionCase(0, good.scores, without, good.record, good.knowledge)
    strangers = type(good.truth)(**{**vars(good.truth), "nodes": {f"node{n}": "x" for n in range(CLIENTS)}})
    with pytest.raises(DataError, match="the examples of none of the attacked clients"):
        InversionCase(0, good.scores, strangers, good.record, good.knowledge)


def test_a_folder_is_judged_and_its_page_shows_the_pictures(folder):
    own = read_truth(folder / "truth").records
    scores(own.x, own.y).save(folder / "scores" / "inversion.npz")
    names = [finding.name for finding in audit_folder(folder, device="cpu")]
    assert names == [f"inversion.{name}" for name in ("recognised", "psnr", "ssim", "mse", "labels", "preflight")]
    page = write_report(folder).read_text()
    assert page.count("data:image/png;base64,") == 4 * CLIENTS
    assert "true images and reconstructions" in page
