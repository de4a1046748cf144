"""A column of numbers: what is known exactly is met, shuffled numbers are not, and order and tolerance are counted."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedattack.attacks import ATTACKS, Scores, Targets, read_knowledge
from fedattack.audit.finding import LEAK, Finding
from fedattack.audit.truth import read_truth
from fedattack.base.errors import DataError, NeedsError
from fedattack.learning import LocalSGD
from fedattack.record import Record
from fedattack.threats.attribute.imputation import impute_numbers
from fedattack.threats.attribute.numbers import MAIN, EstimatedNumbers
from fedattack.threats.attribute.numbers_judge import NumberCase, NumbersJudge, _fisher, _spearman
from fedattack.threats.attribute.tables import TOLERANCE
from tests.worlds.attributes import write_attribute_run, write_number_run
from tests.worlds.cases import make_case


def attacked(folder, **options):
    attack = ATTACKS["attribute-number"].with_options({"restarts": "1", **options})
    return attack.run(Record(folder / "record"), read_knowledge(folder / "knowledge"), device="cpu")


def judged(folder, scores, draws=999) -> dict[str, Finding]:
    known, truth = read_knowledge(folder / "knowledge"), read_truth(folder / "truth")
    judge = NumbersJudge(
        [make_case(NumberCase, 0, scores, truth, Record(folder / "record"), known)], setting={}, provenance={}
    )
    judge.draws = draws
    return {finding.metric: finding for finding in judge.findings()}


def exact_tables(clients=4, each=20, seed=0):
    """Labels that are a linear function of the columns, without any noise: the client's optimum tells each number."""
    draw, found = np.random.default_rng(seed), []
    for _ in range(clients):
        x = draw.normal(size=(each, 4)).astype(np.float32)
        found.append((x, (x @ np.append(draw.normal(size=3), 1.5)).astype(np.float32)))
    return found


def test_where_labels_follow_from_the_columns_each_number_is_told_to_a_step_of_the_grid(tmp_path):
    data = exact_tables()
    folder = write_number_run(tmp_path, data, training=LocalSGD(epochs=300, batch_size=0, lr=0.1), rounds=3)
    found = attacked(folder).as_found(EstimatedNumbers)
    numbers = np.concatenate([x[:, -1] for x, _ in data])
    step = float(np.ptp(numbers)) / 60
    for method in ("last-returned", "reconstructed"):
        estimates = found.estimates[found.methods.index(method)]
        assert np.abs(estimates - numbers).max() <= step, method


@pytest.mark.parametrize(
    ("how", "note"),
    [(None, "it is not known how clients train"), (LocalSGD(1, 0, 0.1, optimizer="Adam"), "clients train by Adam")],
)
def test_without_known_sgd_models_tell_numbers_and_gradients_are_not_matched(how, note, folder):
    known = replace(read_knowledge(folder / "knowledge"), training=how)
    scores = ATTACKS["attribute-number"].run(Record(folder / "record"), known, device="cpu")
    found = scores.as_found(EstimatedNumbers)
    assert found.methods == ("global", "last-returned", MAIN)
    assert any(f"gradients were not matched: {note}" in said for said in scores.notes)


@pytest.mark.slow
def test_numbers_of_patients_are_not_told_where_imputation_tells_more(tmp_path):
    """The bundled diabetes table: the BMI follows from public examples better than from models of twelve patients."""
    folder = write_number_run(tmp_path)
    findings = judged(folder, attacked(folder))
    near, rank = findings["near"], findings["rank"]
    assert near.headline
    assert 0.3 < rank.value < rank.baselines["imputation without the model"]
    assert rank.low < rank.value < rank.high
    assert LEAK not in {finding.verdict for finding in findings.values()}
    assert {"within-last-returned", "within-cos", "within-l2"} <= {*findings}


@pytest.mark.slow
def test_numbers_that_clients_models_tell_are_a_leak_beside_imputation(tmp_path):
    """Each client's labels depend on the columns in a way of its own, which public examples do not show."""
    data, public = exact_tables(6), exact_tables(6, each=30, seed=9)
    auxiliary = Targets(*(np.concatenate(part) for part in zip(*public, strict=True)))
    folder = write_number_run(
        tmp_path, data, auxiliary=auxiliary, training=LocalSGD(epochs=50, batch_size=0, lr=0.1), rounds=5
    )
    findings = judged(folder, attacked(folder))
    assert findings["near"].verdict == findings["rank"].verdict == LEAK
    assert findings["rank"].value > findings["rank"].baselines["imputation without the model"] + 0.2


@pytest.mark.slow
def test_shuffled_numbers_are_no_leak(tmp_path):
    """The null run: clients train on their numbers in another order."""
    leaks = 0
    for seed in range(5):
        folder = write_number_run(tmp_path / str(seed), shuffled=True, seed=seed)
        leaks += any(finding.verdict == LEAK for finding in judged(folder, attacked(folder)).values())
    assert leaks <= 1


def of_estimates(folder, estimates) -> dict[str, Finding]:
    """Judge estimates that are made by hand."""
    known = read_knowledge(folder / "knowledge")
    clients = tuple(dict.fromkeys(known.partial.clients.tolist()))
    found = EstimatedNumbers(clients, (MAIN,), known.partial.fingerprint, np.asarray(estimates, dtype=float)[None])
    return judged(folder, Scores.of("attribute-number", found))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_number_run(tmp_path_factory.mktemp("numbers"), rounds=2)


def test_what_is_met_and_its_order_are_as_counted_one_by_one(folder):
    numbers = read_truth(folder / "truth").attributes.numbers
    draw = np.random.default_rng(0)
    estimates = numbers + draw.normal(0, 0.4, size=len(numbers))
    estimates[:3] = np.nan
    findings = of_estimates(folder, estimates)
    tolerance = TOLERANCE * numbers.std()
    # No answer is the number that is near to most others.
    commonest = max(
        (
            (ends[0] + ends[1]) / 2
            for ends in ((one, other) for one in numbers for other in numbers)
            if 0 <= ends[1] - ends[0] <= 2 * tolerance
        ),
        key=lambda middle: sum(abs(number - middle) <= tolerance + 1e-12 for number in numbers),
    )
    of_commonest = sum(abs(number - commonest) <= tolerance + 1e-12 for number in numbers) / len(numbers)
    assert findings["within"].baselines["the commonest number"] == pytest.approx(of_commonest)
    met = sum(abs(one - number) <= tolerance for one, number in zip(estimates[3:], numbers[3:], strict=True))
    within = findings["within"].value * len(numbers)
    assert met <= within <= met + 3
    best = max(findings["within"].baselines.values())
    assert findings["near"].value == pytest.approx(100 * (findings["within"].value - best))
    rest = findings["rank"].value
    assert rest == pytest.approx(stats.spearmanr(np.nan_to_num(estimates, nan=commonest), numbers).statistic, abs=0.01)


def test_order_is_spearman_s_with_ties_and_its_interval_holds():
    draw = np.random.default_rng(1)
    one, other = draw.integers(5, size=40).astype(float), draw.normal(size=40)
    assert _spearman(one, other) == pytest.approx(stats.spearmanr(one, other).statistic)
    assert _spearman(np.ones(40), other) == 0
    # Of a normal pair with a known correlation 95 % of the intervals hold it, about.
    true, held = 6 / np.pi * np.arcsin(0.5 / 2), 0
    for _ in range(400):
        pair = draw.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], size=60)
        low, high = _fisher(_spearman(*pair.T), 60)
        held += low <= true <= high
    assert 0.92 <= held / 400 <= 0.98


def test_the_bar_is_the_regression_that_fits_public_examples_best(folder):
    known = read_knowledge(folder / "knowledge")
    numbers = read_truth(folder / "truth").attributes.numbers
    estimates, name = impute_numbers(known.partial, known.auxiliary, seed=0)
    assert name != "mean"
    assert np.corrcoef(estimates, numbers)[0, 1] > 0.4
    noise = replace(known.auxiliary, x=np.random.default_rng(0).normal(size=known.auxiliary.x.shape).astype(np.float32))
    _, name = impute_numbers(known.partial, noise, seed=0)
    assert name == "mean"


def test_a_number_and_one_of_some_values_are_not_mistaken_for_each_other(folder, tmp_path):
    record, known = Record(folder / "record"), read_knowledge(folder / "knowledge")
    for name in ("aia", "ara", "attribute-baselines"):
        with pytest.raises(NeedsError, match="this column is a number, which attribute-number asks for"):
            ATTACKS[name].run(record, known)
    values = write_attribute_run(tmp_path)
    with pytest.raises(NeedsError, match="it asks for a number, and this column has 2 values"):
        attacked(values)


@pytest.mark.parametrize("span", [[1.0, 1.0], [2.0, 1.0], [0.0, np.inf], [0.0], [[0.0, 1.0]]])
def test_a_damaged_span_is_refused_in_one_line(folder, tmp_path, span):
    from fedattack.attacks.knowledge_files import read_partial

    with np.load(folder / "knowledge" / "partial.npz") as file:
        arrays = {**file, "span": np.array(span)}
    np.savez(tmp_path / "partial.npz", **arrays)
    with pytest.raises(DataError, match="expected the least and the largest number of one column"):
        read_partial(tmp_path / "partial.npz")


def test_a_truth_without_numbers_is_refused(folder):
    known, truth = read_knowledge(folder / "knowledge"), read_truth(folder / "truth")
    clients = tuple(dict.fromkeys(known.partial.clients.tolist()))
    estimates = np.zeros((1, len(known.partial)))
    scores = Scores.of("attribute-number", EstimatedNumbers(clients, (MAIN,), known.partial.fingerprint, estimates))
    lacking = replace(truth, attributes=replace(truth.attributes, numbers=None))
    with pytest.raises(DataError, match="asks for numbers that are missing"):
        make_case(NumberCase, 0, scores, lacking, Record(folder / "record"), known)
    short = Scores.of("attribute-number", EstimatedNumbers(clients, (MAIN,), "", estimates[:, :-1]))
    with pytest.raises(DataError, match="attack again"):
        make_case(NumberCase, 0, short, truth, Record(folder / "record"), known)
