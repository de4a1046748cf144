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
from fedattack.audit.finding import AUC, CANNOT_TELL, LEAK, NO_EVIDENCE, NOT_APPLICABLE
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.record.others import Others
from fedattack.threats.plaintext.contents import KnownExamples
from fedattack.threats.plaintext.row_batches import BatchesForm, RowBatches, list_row_batches
from fedattack.threats.plaintext.row_links import (
    ColumnsLink,
    Linked,
    NormsLink,
    RowPass,
    find_passes,
    link_columns,
    link_norms,
    list_own_rows,
)
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


def in_one(draw, rows):
    """All rows at once, and nothing beside them."""
    yield np.arange(rows), {}


def in_order(draw, rows):
    """Mini-batches in order, two passes; a few rows are left at the end of each."""
    for _ in range(2):
        for first in range(0, rows, 16):
            yield np.arange(first, min(first + 16, rows)), {}


def continued(draw, rows):
    """Mini-batches in order, of which one goes on from the last rows to the first ones."""
    for first in range(0, 2 * rows, 16):
        yield np.arange(first, first + 16) % rows, {}


def shuffled(draw, rows):
    for _ in range(2):
        for batch in np.split(draw.permutation(rows), range(16, rows, 16)):
            yield batch, {}


def named(draw, rows):
    """Shuffled, with numbers that name the rows."""
    for batch, _ in shuffled(draw, rows):
        yield batch, {"c.ids": batch.tolist()}


def counted(draw, rows):
    """Batches that are asked for in an order of their own, each with its number."""
    for number in draw.permutation(-(-rows // 16)).tolist():
        yield np.arange(number * 16, min(number * 16 + 16, rows)), {"c.batch": number}


def write_vertical(folder, embed, *, seed=0, is_ordered=True, batches=in_one, says="sent"):
    """Write a run of three parties; ``embed`` makes an embedding of a party's columns, by a draw.

    What names rows stands in the message that asks for them, ``sent``, or in the ``reply``.
    """
    draw, x, y = draw_parties(seed)
    order = draw.permutation(ROWS)
    others = []
    for party in range(PARTIES):
        nodes = (f"node{party}",)
        embedding = np.asarray(embed(draw, x[party]), dtype=np.float32)
        gradient = gradients_of(embedding, y)
        for rows, words in batches(draw, ROWS):
            forward = {"e.values": embedding[rows]}
            asked = {True: words, False: {}}
            others.append(Others("query.forward", "sent", nodes, asked[says == "sent"]))
            others.append(Others("query.forward", "reply", nodes, asked[says == "reply"], arrays=forward))
            others.append(Others("train.backward", "sent", nodes, arrays={"g.values": gradient[rows]}))
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


def whole(values):
    return RowPass(np.arange(len(values)), values.reshape(len(values), -1))


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
    link = ColumnsLink(map(whole, embeddings), x[0].astype(np.float64), np.random.default_rng(0))
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
    labels = NormsLink(map(whole, norms), y.astype(float))
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
                passes = [whole(draw.normal(size=(ROWS, 2))) for _ in range(2)]
                links.append(ColumnsLink(passes, x[party].astype(float), draw))
            else:
                passes = [whole(draw.exponential(size=ROWS)) for _ in range(2)]
                links.append(NormsLink(passes, y.astype(float)))
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
    # Equal rows at the end, of which nobody knows which is which, are rows of the table.
    rows = np.arange(ROWS)
    rows[-2:] = -1
    for whole_ones, total in ((frozenset("a"), ROWS), (frozenset(), ROWS - 2)):
        assert list_own_rows(KnownExamples(x[0], owners, y.astype(float), whole_ones, rows), "a").total == total
    fitting = draw.normal(size=(ROWS, 2)).astype(np.float32)
    assert link_columns(own, [of_one(fitting)], draw) is not None
    # Another number of rows, too many numbers for so many known rows, and what is not finite.
    wide, infinite = draw.normal(size=(ROWS, 40)).astype(np.float32), np.full((ROWS, 2), np.inf, np.float32)
    assert link_columns(own, [of_one(fitting[:-1]), of_one(wide), of_one(infinite)], draw) is None
    norms = draw.exponential(size=(ROWS, 1)).astype(np.float32)
    assert link_norms(own, [of_one(norms[:-1])], draw) is None
    assert link_norms(own, [of_one(norms)], draw) is not None
    of_three = KnownExamples(x[0], owners, draw.integers(3, size=ROWS).astype(float), frozenset("a"), np.arange(ROWS))
    assert link_norms(list_own_rows(of_three, "a"), [of_one(norms)], draw) is None


def of_one(values, sizes=(), ids=None, marks=None, type_="query.forward"):
    """What passes of one name, in messages of these sizes."""
    sizes = sizes or (len(values),)
    names = () if marks is None else ("batch",)
    form = BatchesForm("e", type_, False, 0, values.shape[1], tuple(sizes), tuple(range(len(sizes))), names)
    none = np.full(len(values), -1) if ids is None else np.asarray(ids)
    counted = np.zeros((len(sizes), 0)) if marks is None else np.asarray(marks)[:, None]
    return RowBatches(form, values.astype(np.float32), none.astype(np.int64), counted.astype(np.int64))


def test_passes_are_put_together_by_what_names_their_rows():
    draw = np.random.default_rng(0)
    rows = np.concatenate([draw.permutation(10) for _ in range(2)])
    values = rows[:, None].astype(np.float32)
    sizes = (4, 4, 2, 4, 4, 2)
    # Row numbers, and numbers of people in the order of the table.
    for ids in (rows, 100 + 7 * rows):
        found = find_passes(of_one(values, sizes, ids), 10)
        assert not found.is_assumed
        assert len(found.passes) == 2
        for one in found.passes:
            np.testing.assert_array_equal(one.rows, one.values[:, 0])
            assert sorted(one.rows.tolist()) == [*range(10)]
    # Of numbers of people that are some of the table nobody knows which, and consecutive they are not whole passes.
    assert find_passes(of_one(values[:4], sizes[:1], 100 + 7 * rows[:4]), 10) is None


@pytest.mark.parametrize("is_dropped", [False, True])
def test_rows_of_mini_batches_in_order_are_consecutive(is_dropped):
    sizes = [4, 4, 2, 4, 4, 2, 4]
    if is_dropped:
        sizes = [4, 4, 4, 4, 4]
    starts = [0, 4] if is_dropped else [0, 4, 8]
    rows = np.concatenate([np.arange(size) + starts[at % len(starts)] for at, size in enumerate(sizes)])
    found = find_passes(of_one(rows[:, None], sizes), 10)
    assert found.is_assumed
    # The last batch is no whole pass. Where rows are dropped, batches may go on as well, and two orders are tried.
    right = [one for one in found.passes if np.array_equal(one.rows, one.values[:, 0])]
    assert len(right) == 2
    assert len(found.passes) == (4 if is_dropped else 2)
    # Ordinary replies to training bring other tables.
    assert find_passes(of_one(rows[:, None], sizes, type_="train"), 10) is None


def test_a_batch_may_go_on_over_the_end_of_the_table():
    """Held against rows that are dropped there: each order is right of its own batches alone, but for the first."""
    rows = np.arange(4 * 11) % 10
    found = find_passes(of_one(rows[:, None], [4] * 11), 10)
    assert found.is_assumed
    right = [one for one in found.passes if np.array_equal(one.rows, one.values[:, 0])]
    # Where rows are dropped, the first two batches alone are right. The last two are the larger part of a table.
    assert [len(one.rows) for one in right] == [8, 10, 10, 10, 8]
    for one in right[1:4]:
        assert sorted(one.rows.tolist()) == [*range(10)]


@pytest.mark.parametrize("unit", [1, 4])
def test_a_number_in_each_message_says_which_batch_it_is(unit):
    numbers = np.array([2, 0, 1, 0, 2, 1])
    sizes = [{2: 2}.get(number, 4) for number in numbers.tolist()]
    rows = np.concatenate([np.arange(size) + 4 * number for size, number in zip(sizes, numbers.tolist(), strict=True)])
    found = find_passes(of_one(rows[:, None], sizes, marks=numbers * (4 // unit)), 10)
    assert found.is_assumed
    right = [one for one in found.passes if np.array_equal(one.rows, one.values[:, 0])]
    assert right


@pytest.mark.parametrize(
    ("batches", "says"),
    [(in_order, "sent"), (continued, "sent"), (named, "sent"), (named, "reply"), (counted, "sent"), (counted, "reply")],
)
def test_mini_batches_tell_what_whole_tables_tell(tmp_path, batches, says):
    found = judged_all(write_vertical(tmp_path, linear, batches=batches, says=says))
    assert found["columns"].verdict == LEAK
    assert found["columns"].value == pytest.approx(1, abs=1e-6)
    at_once = judged_all(write_vertical(tmp_path / "whole", linear))
    assert found["gradient-labels"].verdict == LEAK
    assert found["gradient-labels"].value == pytest.approx(at_once["gradient-labels"].value, abs=0.02)
    is_assumed = batches is not named
    for name in ("columns", "gradient-labels"):
        assert ("are assumed to be consecutive" in found[name].reason) == is_assumed


def test_shuffled_mini_batches_without_numbers_cannot_be_told(tmp_path):
    found = judged_all(write_vertical(tmp_path, linear, batches=shuffled))
    for name, array in (("columns", "e.values (query.forward)"), ("gradient-labels", "g.values (train.backward)")):
        assert found[name].verdict == CANNOT_TELL
        assert f"no number names the rows of {array}" in found[name].reason
        assert "batches may be shuffled, so nobody can tell which row is which" in found[name].reason
    assert found["columns"].value < 0.1


def test_rows_are_read_with_what_names_them(tmp_path):
    writer = RecordWriter(tmp_path / "record")
    arrays = [np.full((10, 2), number, np.float32) for number in range(1, 8)]
    ids = np.arange(10)[::-1].copy()
    others = [Others("query.back", "sent", ("a", "b"), arrays={"g": array, "one": array[:, 0]}) for array in arrays]
    others.append(Others("query.go", "sent", ("a",), {"labels": [0, 1] * 5, "ids": ids.tolist(), "step": 3}))
    others.append(Others("query.go", "reply", ("a",), {"step": 4}, arrays={"e": arrays[0]}))
    others.append(Others("query.go", "reply", ("a",), {"step": 5}, arrays={"e": arrays[1]}))
    others.append(Others("query.go", "reply", ("b",), arrays={"e": arrays[1], "own": ids}))
    replies = [Reply("a", "ok", {"w": arrays[0]}, 10, received={"w": arrays[1], "g": arrays[2]})]
    writer.write(Exchange(1, {"w": arrays[1]}, replies, others=others))
    writer.close()
    found = {}
    for each in list_row_batches(Record(tmp_path / "record"), {"a": 0, "b": 1}):
        found[each.form.node, each.form.type, each.form.name] = each
    back = (np.repeat(np.arange(1, 8), 10) * 2**0.5)[:, None]
    for node in (0, 1):
        each = found[node, "query.back", "g"]
        assert (each.form.is_sent, each.form.sizes, each.form.width) == (True, (10,) * 7, 1)
        np.testing.assert_allclose(each.values, back, rtol=1e-6)
        assert (each.ids == -1).all()
    # What comes back is a model; the gradient is of the rows of the message before it.
    assert found.keys() == {
        *((node, "query.back", "g") for node in (0, 1)),
        *((node, "query.go", "e") for node in (0, 1)),
        (0, "train", "g"),
    }
    np.testing.assert_array_equal(found[0, "train", "g"].ids, ids)
    forward = found[0, "query.go", "e"]
    np.testing.assert_array_equal(forward.ids, np.tile(ids, 2))
    assert forward.form.marks == ("step",)
    np.testing.assert_array_equal(forward.marks, [[4], [5]])
    np.testing.assert_array_equal(found[1, "query.go", "e"].ids, ids)


def test_of_many_rows_the_first_and_the_last_messages_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("fedattack.threats.plaintext.row_batches._KEPT_NUMBERS", 80)
    writer = RecordWriter(tmp_path / "record")
    arrays = [np.full((10, 2), number, np.float32) for number in range(9)]
    others = [Others("query.go", "reply", ("a",), arrays={"e": array}) for array in arrays]
    writer.write(Exchange(1, {"w": arrays[1]}, [Reply("a", "ok", {"w": arrays[0]}, 10)], others=others))
    writer.close()
    (found,) = list_row_batches(Record(tmp_path / "record"), {"a": 0})
    assert (found.form.sizes, found.form.kept) == ((10,) * 9, (0, 1, 7, 8))
    for index, values, ids in found.list_kept():
        assert (values == index).all()
        assert len(ids) == 10
