"""What rows tell of examples: columns that embeddings hold, and labels that norms of gradients tell."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score, roc_auc_score
from torch import nn
from torch.nn import functional

from fedattack.apps.calling import _sample
from fedattack.attacks import Knowledge, Targets
from fedattack.attacks.held_examples import HeldByClients
from fedattack.audit.finding import AUC, LEAK, NO_EVIDENCE, NOT_APPLICABLE
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.record.others import Others
from fedattack.threats.plaintext.contents import KnownExamples
from fedattack.threats.plaintext.row_links import (
    ColumnsLink,
    Linked,
    NormsLink,
    link_columns,
    link_norms,
    list_own_rows,
)
from fedattack.threats.plaintext.row_norms import list_row_norms
from fedattack.threats.plaintext.truths import known_examples
from tests.threats.plaintext.world import judged_all
from tests.worlds.attacked import write_known

PARTIES, ROWS, COLUMNS, WIDTH = 3, 120, 3, 4


def draw_parties(seed, rare=0.1):
    """Columns of three parties, and labels of which one is rare."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(PARTIES, ROWS, COLUMNS)).astype(np.float32)
    y = (draw.uniform(size=ROWS) < rare).astype(np.int64)
    return draw, x, y


def gradients_of(embeddings, y, steps=60):
    """Gradients of embeddings under a deep model that the server trains a little, whose directions are many."""
    torch.manual_seed(0)
    top = nn.Sequential(nn.Linear(embeddings.shape[1], 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(top.parameters(), 0.02)
    inputs = torch.from_numpy(embeddings).requires_grad_()
    for _ in range(steps):
        optimizer.zero_grad()
        inputs.grad = None
        functional.binary_cross_entropy_with_logits(top(inputs)[:, 0], torch.from_numpy(y).float()).backward()
        optimizer.step()
    return inputs.grad.numpy()


def write_vertical(folder, embed, *, seed=0, is_ordered=True, type_="query.forward"):
    """Write a run of three parties; ``embed`` makes an embedding of a party's columns, by a draw."""
    draw, x, y = draw_parties(seed)
    order = draw.permutation(ROWS)
    others = []
    for party in range(PARTIES):
        embedding = np.asarray(embed(draw, x[party]), dtype=np.float32)
        others.append(Others(type_, "reply", (f"node{party}",), arrays={"e.values": embedding}))
        gradient = gradients_of(embedding, y)
        others.append(Others("train.backward", "sent", (f"node{party}",), arrays={"g.values": gradient}))
    writer = RecordWriter(folder / "record", seed=seed)
    replies = [Reply(f"node{party}", "ok", {"w": np.ones(2, np.float32) * party}, ROWS) for party in range(PARTIES)]
    writer.write(Exchange(1, {"w": np.zeros(2, np.float32)}, replies, others=others))
    writer.close()
    owners = np.repeat([str(party) for party in range(PARTIES)], ROWS)
    # Whoever holds what is known in another order than that of the rows.
    answers = {"x": x[:, order].reshape(-1, COLUMNS), "owners": owners}
    answers["labels"] = np.tile(y[order], PARTIES).astype(float)
    if is_ordered:
        answers["rows"] = np.tile(order, PARTIES)
    targets = Targets(x.reshape(-1, COLUMNS), np.tile(y, PARTIES))
    counts = np.tile(np.bincount(y, minlength=2), (PARTIES, 1))
    told = {"owners": owners.tolist(), "answers": {"plaintext": answers}}
    return write_known(folder, Knowledge(targets=targets), counts, **told)


def linear(draw, x):
    return x @ draw.normal(size=(COLUMNS, WIDTH)) + draw.normal(size=WIDTH)


def test_columns_of_linear_embeddings_are_recovered(tmp_path):
    finding = judged_all(write_vertical(tmp_path, linear))["columns"]
    assert finding.verdict == LEAK
    assert finding.value == pytest.approx(1, abs=1e-9)
    assert finding.n == PARTIES
    assert finding.chance < 0.1


def test_columns_are_told_in_part_by_a_narrow_embedding_and_not_at_all_by_noise(tmp_path):
    narrow = judged_all(write_vertical(tmp_path / "narrow", lambda draw, x: linear(draw, x)[:, :2]))["columns"]
    assert narrow.verdict == LEAK
    assert 0.4 < narrow.value < 0.95
    noise = judged_all(write_vertical(tmp_path / "noise", lambda draw, x: draw.normal(size=(ROWS, WIDTH))))["columns"]
    assert noise.verdict == NO_EVIDENCE
    assert noise.value < 0.1


def test_norms_of_gradients_tell_the_rare_class(tmp_path):
    finding = judged_all(write_vertical(tmp_path, lambda draw, x: draw.normal(size=(ROWS, WIDTH))))["gradient-labels"]
    assert (finding.verdict, finding.units) == (LEAK, AUC)
    assert finding.value > 0.8
    assert 0.5 < finding.chance < 0.65


def test_without_the_order_of_rows_it_is_said_what_is_missing(tmp_path):
    findings = judged_all(write_vertical(tmp_path, linear, is_ordered=False))
    assert findings["columns"].verdict == NOT_APPLICABLE
    assert "--examples module:function" in findings["columns"].reason
    assert "gradient-labels" not in findings


def test_scores_are_those_of_scikit_learn():
    draw, x, y = draw_parties(1)
    embeddings = [draw.normal(size=(ROWS, WIDTH)) + 0.5 * linear(draw, x[0]) for _ in range(2)]
    link = ColumnsLink(embeddings, x[0].astype(np.float64), np.random.default_rng(0))
    split = np.random.default_rng(0).permutation(ROWS)
    known, tried = split[: ROWS // 2], split[ROWS // 2 :]
    order = draw.permutation(ROWS)
    for rows in (np.arange(ROWS), order):
        scores = []
        for embedding in embeddings:
            fitted = LinearRegression().fit(embedding[known], x[0][rows][known])
            r2 = r2_score(x[0][rows][tried], fitted.predict(embedding[tried]), multioutput="raw_values")
            scores.append(np.clip(r2, 0, 1).mean())
        assert link.score(rows) == pytest.approx(max(scores), abs=1e-5)
    norms = [np.round(draw.exponential(size=ROWS), 1) + 0.1 * y for _ in range(2)]
    labels = NormsLink(norms, y.astype(float))
    for rows in (np.arange(ROWS), order):
        areas = [roc_auc_score(y[rows], of_array) for of_array in norms]
        assert labels.score(rows) == pytest.approx(max(max(area, 1 - area) for area in areas))


@pytest.mark.parametrize("kind", ["columns", "norms"])
def test_of_nothing_links_are_shown_in_one_run_of_twenty_at_most(kind):
    shown = 0
    for seed in range(100):
        draw, x, y = draw_parties(seed, rare=0.3)
        links = []
        for party in range(PARTIES):
            if kind == "columns":
                links.append(ColumnsLink([draw.normal(size=(ROWS, 2)) for _ in range(2)], x[party].astype(float), draw))
            else:
                links.append(NormsLink([draw.exponential(size=ROWS) for _ in range(2)], y.astype(float)))
        linked = Linked([links])
        shown += (linked.draw(draw, 99) >= linked.value).sum() < 4
    # 4 of 100 are expected.
    assert shown <= 9


def test_rows_are_those_of_the_holders_own_table():
    x = np.random.default_rng(0).normal(size=(9, 2)).astype(np.float32)
    x[5] = x[1]
    seen = _sample((x, [0] * 9), 100)
    assert len(seen) == 8
    # Of two equal rows nobody can tell which one is meant.
    assert sorted(seen.order.tolist()) == [-1, 0, 2, 3, 4, 6, 7, 8]
    assert all((x[row] == kept).all() for row, kept in zip(seen.order, seen.x, strict=True) if row >= 0)
    rows = {(0, "a"): 7, (1, "a"): 3}
    record = object()
    held = HeldByClients(Knowledge(), record, "", {}, [], x[:2], [("a", "b"), ("a",)], rows=rows)
    found = known_examples(held)
    assert sorted(zip(found["owners"].tolist(), found["rows"].tolist(), strict=True)) == [("a", 3), ("a", 7), ("b", -1)]


def test_rows_that_fit_no_table_are_linked_to_nothing():
    draw, x, y = draw_parties(2)
    owners = np.full(ROWS, "a")
    known = KnownExamples(x[0], owners, y.astype(float), frozenset("a"), np.arange(ROWS))
    own = list_own_rows(known, "a")
    assert list_own_rows(known, "b") is None
    assert list_own_rows(KnownExamples(x[0], owners, y.astype(float), frozenset("a")), "a") is None
    fitting = draw.normal(size=(ROWS, 2)).astype(np.float32)
    assert link_columns(own, [fitting], draw) is not None
    # Another number of rows, too many numbers for so many known rows, what is not finite, and one axis.
    wide, infinite = draw.normal(size=(ROWS, 40)).astype(np.float32), np.full((ROWS, 2), np.inf, np.float32)
    assert link_columns(own, [fitting[:-1], wide, infinite, fitting[:, 0]], draw) is None
    assert link_norms(own, [draw.exponential(size=ROWS - 1)], draw) is None
    assert link_norms(own, [draw.exponential(size=ROWS)], draw) is not None
    of_three = KnownExamples(x[0], owners, draw.integers(3, size=ROWS).astype(float), frozenset("a"), np.arange(ROWS))
    assert link_norms(list_own_rows(of_three, "a"), [draw.exponential(size=ROWS)], draw) is None


def test_norms_are_kept_of_some_arrays_of_each_name(tmp_path):
    writer = RecordWriter(tmp_path / "record")
    arrays = [np.full((10, 2), number, np.float32) for number in range(1, 8)]
    others = [Others("query.back", "sent", ("a", "b"), arrays={"g": array, "one": array[:, 0]}) for array in arrays]
    replies = [Reply("a", "ok", {"w": arrays[0]}, 10, received={"w": arrays[1], "g": arrays[2]})]
    writer.write(Exchange(1, {"w": arrays[1]}, replies, others=others))
    writer.close()

    found = []
    for each in list_row_norms(Record(tmp_path / "record")):
        found.append((each.node, each.type, each.name, round(float(each.norms[0] ** 2 / 2))))
    spread = [(node, "query.back", "g", number**2) for node in "ab" for number in (1, 2, 3, 4, 5, 7)]
    assert sorted(found) == sorted([*spread, ("a", "train", "g", 9)])
