"""What stands in arrays is found, whatever its form; what does not stand there is not."""

import numpy as np
import pytest

from fedattack.attacks import ATTACKS, read_knowledge
from fedattack.audit.finding import LEAK, NO_EVIDENCE
from fedattack.record import Exchange, Record, RecordWriter, Reply, project_record
from fedattack.record.others import Others
from fedattack.threats.plaintext import plaintext
from fedattack.threats.plaintext.arrays import rows_of, sent_arrays
from fedattack.threats.plaintext.exchange import Nearest
from fedattack.threats.plaintext.items import EXAMPLES, Items
from fedattack.threats.plaintext.matching import _seek
from fedattack.threats.plaintext.section import _explain
from tests.threats.plaintext.sending import COLUMNS, ROWS, draw_nothing, find
from tests.threats.plaintext.world import CLIENTS, SIZE, judged_all, plain, write_plain_run


@pytest.fixture(scope="module")
def parts():
    """Tables of six clients, with labels of four classes, of which clients hold unlike shares."""
    draw = np.random.default_rng(1)
    tables = []
    for client in range(6):
        x = draw.normal(loc=[0, 50, 3, 1000, -2], scale=[1, 9, 0.1, 300, 5], size=(ROWS, COLUMNS)).astype(np.float32)
        tables.append((x.astype(np.float64), draw.choice(4, ROWS, p=draw.dirichlet([0.7] * 4 + np.eye(4)[client % 4]))))
    return tables


def count(contents, kind):
    """Return how many own items of a kind stand there, how many are certain, and how many there are, of all clients."""
    own = certain = 0
    for matches, sure in zip(contents.matches, contents.certain, strict=True):
        if matches.kind == kind:
            own += len(matches.own)
            certain += len(sure)
    return own, certain


FORMS = {
    "as they are": lambda x, y, every: x[:4],
    "float16": lambda x, y, every: x[:4].astype(np.float16),
    "flat": lambda x, y, every: x[:4].ravel(),
    "transposed": lambda x, y, every: x[:4].T,
    "with further axes": lambda x, y, every: x[:4].reshape(2, 2, COLUMNS),
    "standardised by the client": lambda x, y, every: ((x - x.mean(0)) / x.std(0))[:4],
    "standardised by all": lambda x, y, every: ((x - every.mean(0)) / every.std(0))[:4],
    "from 0 to 1": lambda x, y, every: ((x - x.min(0)) / np.ptp(x, axis=0))[:4].astype(np.float32),
    "some columns": lambda x, y, every: x[:4, [3, 1, 0, 4]],
    "with labels": lambda x, y, every: np.column_stack([y[:4], x[:4]]),
    "among other rows": lambda x, y, every: np.concatenate([every.mean(0) + 3 * np.eye(COLUMNS), x[:4]]),
}


@pytest.mark.parametrize("form", FORMS)
def test_examples_are_certain_in_whatever_form(parts, form):
    every = np.concatenate([x for x, _ in parts])
    contents = find(parts, lambda client, x, y: {"rows": FORMS[form](x, y, every)})
    assert count(contents, EXAMPLES) == (24, 24)
    assert contents.count_read(examples=True)[1].tolist() == [4] * 6


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_all_rows_means_and_counts_are_found_in_whatever_precision_also_after_scaling(parts, dtype):
    def says(client, x, y):
        standard, unit = (x - x.mean(0)) / x.std(0), (x - x.min(0)) / np.ptp(x, axis=0)
        sent = {
            "rows": x[:4],
            "standardised": standard[4:8],
            "from 0 to 1": unit[8:12],
            "means": x.mean(0),
            "by class": np.stack([x[y == label].mean(0) for label in np.unique(y)]),
            "counts": np.bincount(y, minlength=4),
        }
        return {name: array.astype(dtype) for name, array in sent.items()}

    contents = find(parts, says)
    groups = [(y == label).sum() for _, y in parts for label in np.unique(y)]
    # The mean of one example is that example.
    several = sum(size > 1 for size in groups)
    assert count(contents, "means")[0] == count(contents, "counts by class")[0] == 6
    assert count(contents, "means by class") == (several, several)
    by_name = {}
    for matches in contents.matches:
        if matches.kind == EXAMPLES:
            by_name[matches.name] = by_name.get(matches.name, 0) + len(matches.own)
    expected = {"rows": 24, "standardised": 24, "from 0 to 1": 24}
    if several < len(groups):
        expected["by class"] = len(groups) - several
    assert by_name == expected


STATISTICS = {
    "means": lambda x: x.mean(0),
    "sums": lambda x: x.sum(0).astype(np.float32),
    "sums of squares": lambda x: (x**2).sum(0),
    "variances": lambda x: x.var(0),
    "variances (n - 1)": lambda x: x.var(0, ddof=1),
    "standard deviations": lambda x: x.std(0),
    "standard deviations (n - 1)": lambda x: x.std(0, ddof=1),
    "least values": lambda x: x.min(0),
    "largest values": lambda x: x.max(0),
    "medians": lambda x: np.median(x, axis=0),
    "lower quartiles": lambda x: np.quantile(x, 0.25, axis=0),
    "upper quartiles": lambda x: np.quantile(x, 0.75, axis=0),
}


@pytest.mark.parametrize("kind", STATISTICS)
def test_statistics_of_clients_and_of_classes_are_certain(parts, kind):
    compute = STATISTICS[kind]
    contents = find(parts, lambda client, x, y: {"all": compute(x)})
    assert count(contents, kind) == (6, 6)

    def by_class(client, x, y):
        return {"class": np.stack([compute(x[y == label]) for label in np.unique(y) if (y == label).sum() > 2])}

    groups = sum((y == label).sum() > 2 for _, y in parts for label in range(4))
    assert count(find(parts, by_class), f"{kind} by class") == (groups, groups)


def test_statistics_of_other_clients_are_none_of_ones_own(parts):
    contents = find(parts, lambda client, x, y: {"all": parts[client - 1][0].mean(0), "rows": parts[client - 1][0]})
    assert count(contents, "means") == count(contents, EXAMPLES) == (0, 0)


def test_counts_labels_and_classes_are_found(parts):
    def says(client, x, y):
        return {"counts": np.bincount(y, minlength=6), "labels": y[::-1].copy(), "held": np.unique(y)}

    contents = find(parts, says)
    assert [count(contents, kind)[0] for kind in ("counts by class", "labels")] == [6, 6]
    # A client of one class has no list of at least two.
    assert count(contents, "classes held")[0] == sum(len(np.unique(y)) > 1 for _, y in parts)


def test_how_often_each_value_of_a_column_stands_there_is_found():
    draw = np.random.default_rng(0)
    parts = []
    for _ in range(4):
        table = np.column_stack([draw.choice(60, 12, replace=False), draw.normal(size=12)])
        parts.append((table, draw.integers(2, size=12)))
    contents = find(parts, lambda client, x, y: {"deaths": np.bincount(x[y == 1, 0].astype(int), minlength=61)})
    assert count(contents, "counts by value") == (4, 4)


def test_the_mean_of_one_example_is_that_example(parts):
    """Centres of groups: those of one example are examples, and others are none."""

    def centres(client, x, y):
        return {"centres": np.stack([x[client], x[2:8].mean(0), x[8:10].mean(0)])}

    assert count(find(parts, centres), EXAMPLES) == (6, 6)


def test_examples_that_another_client_holds_too_are_not_certain(parts):
    shared = [(np.concatenate([x, parts[0][0][:3]]), np.append(y, [0, 0, 0])) for x, y in parts]
    contents = find(shared, lambda client, x, y: {"rows": parts[0][0][:3]})
    assert count(contents, EXAMPLES)[1] == 0


@pytest.mark.parametrize("kind", ["numbers", "few values", "dependent"])
def test_of_nothing_a_leak_is_shown_in_one_run_of_twenty_at_most(kind):
    shown = 0
    for run in range(40):
        parts, says = draw_nothing(np.random.default_rng(run), kind)
        contents = find(parts, says)
        leaks = []
        for examples in (True, False):
            assert contents.count_read(examples=examples)[1].sum() == 0
            if shares := contents.shares(examples=examples):
                found = Nearest({name: (share,) for name, share in shares.items()})
                leaks.append(found.test(np.random.default_rng(run)).p <= 0.025)
        shown += any(leaks)
    # More than 5 of 40 would be met once in twenty times at a rate of 5 %.
    assert shown <= 5


def test_near_items_are_those_that_all_differences_show():
    draw = np.random.default_rng(0)
    items = Items(EXAMPLES, draw.normal(size=(300, 3)), np.zeros(300, np.int64))
    rows = np.concatenate([items.rows[:40] + draw.uniform(-3e-3, 3e-3, (40, 3)), draw.normal(size=(50, 3))])
    near = _seek(items, rows)
    apart = np.abs(rows[:, None] / items.scale - items.rows[None] / items.scale).max(axis=2)
    assert {*zip(near.rows.tolist(), near.items.tolist(), strict=True)} == {*map(tuple, np.argwhere(apart < 2e-3))}


def test_images_are_read_with_their_channels_last():
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5))
    as_sent, moved = rows_of(np.moveaxis(x, 1, -1), (3, 4, 5))
    assert np.array_equal(moved, x.reshape(2, -1))
    assert not np.array_equal(as_sent, moved)
    assert rows_of(np.zeros((2, 7)), (3, 4, 5)) == []


def rows_beside(client, x, y):
    return {"kept": x[:2]}


def test_a_page_says_what_arrays_hold(tmp_path):
    found = judged_all(write_plain_run(tmp_path, plain, adds=rows_beside))
    given = found["given-away"]
    assert (given.verdict, given.is_certain) == (LEAK, True)
    assert given.value == pytest.approx(0.1)
    assert given.read_off == {"what": "example", "right": 2 * CLIENTS, "certain": 2 * CLIENTS, "clients": CLIENTS}
    assert found["own-examples"].verdict == NO_EVIDENCE
    words = _explain([found["own-examples"], given]).words
    assert words[0] == "kept holds 12 of 120 examples of 6 clients; 12 of these are certain."
    assert found["statistics"].verdict == NO_EVIDENCE


def test_what_holds_no_numbers_leaves_the_rest_to_be_read(tmp_path):
    """Empty arrays, single numbers and truth values, lists of texts and of nothing; texts cost their own client."""
    strange = {
        "empty": np.zeros((0, SIZE), np.float32),
        "number": np.array(3.0, np.float32),
        "flags": np.array([[True, False]]),
        "sides": np.zeros((3, 0, SIZE), np.int64),
        "infinite": np.full((2, SIZE), np.inf, np.float32),
    }
    texts = {0: {"text": np.array(["a", "bc"])}, 1: {"objects": np.array([{}, None], dtype=object)}}

    def says(client, number, x):
        return {"texts": ["a"] * len(x), "none": [], "mixed": ["a", 1.0], "nested": [[], [[]]], "nothing": None}

    def adds(client, x, y):
        return {**strange, **rows_beside(client, x, y), **texts.get(client, {})}

    given = judged_all(write_plain_run(tmp_path, says, adds=adds))["given-away"]
    left = CLIENTS - len(texts)
    assert (given.verdict, given.read_off["certain"], given.read_off["clients"]) == (LEAK, 2 * left, left)


def test_thousands_of_names_in_replies_are_bounded_and_hide_nothing(tmp_path):
    numbers = {f"{number % 97}.{number}": float(number) for number in range(2_000)}
    folder = write_plain_run(tmp_path, lambda client, number, x: numbers, adds=rows_beside)
    knowledge = read_knowledge(folder / "knowledge")
    scores = ATTACKS["plaintext"].run(Record(folder / "record"), knowledge)
    found = scores.as_found(plaintext.PlainValues)
    assert len(found.keys) <= plaintext._MOST_KEYS
    # Beside rows and models, the numbers of each client are put together in a few ways.
    assert len(found.contents) < 2 * CLIENTS * (len(numbers) + 4 * SIZE)
    kept = [sent.values for sent in found.list_sent() if sent.name == "kept"]
    assert [len(rows) for rows in kept] == [2] * CLIENTS
    assert {*map(bytes, np.concatenate(kept))} <= {*map(bytes, knowledge.targets.x)}


def test_rows_of_other_clients_are_no_leak_of_the_sender(tmp_path):
    tables = {}

    def says(client, x, y):
        tables[client] = x
        # Everybody passes on what the first client holds.
        return {"rows": tables[0][client : client + 2]} if client else {}

    found = judged_all(write_plain_run(tmp_path, plain, adds=says))["given-away"]
    assert (found.verdict, found.value, found.is_certain, found.series) == (NO_EVIDENCE, 0.0, False, {})
    assert found.reason.startswith("the null is what other clients send: 0% is not above chance")


def test_an_ordinary_app_gives_nothing_away(tmp_path):
    found = judged_all(write_plain_run(tmp_path, plain))
    assert {finding.verdict for finding in found.values()} == {NO_EVIDENCE}
    assert found.pop("own-examples").value is None
    assert {finding.value for finding in found.values()} == {0.0}


def test_the_sum_is_no_client(tmp_path):
    """What nobody sends is said of the clients alone, also where the server sees a sum beside their numbers."""
    folder = write_plain_run(tmp_path, lambda client, number, x: {"few": x[0, :5].tolist()})
    project_record(Record(folder / "record"), tmp_path / "sums")
    (folder / "record").rename(tmp_path / "single")
    (tmp_path / "sums").rename(folder / "record")
    found = judged_all(folder)
    assert (found["own-examples"].value, found["own-examples"].n) == (0.0, CLIENTS)
    assert (found["statistics"].value, found["statistics"].n) == (0.0, CLIENTS)


def test_one_client_s_rows_are_certain_in_a_sum(tmp_path):
    """Each client adds its rows at its own index: what is there of others is 0."""

    def says(client, x, y):
        slots = np.zeros((CLIENTS, SIZE), np.float32)
        slots[client] = x[0]
        return {"slots": slots}

    folder = write_plain_run(tmp_path, plain, adds=says)
    project_record(Record(folder / "record"), tmp_path / "sums")
    (folder / "record").rename(tmp_path / "single")
    (tmp_path / "sums").rename(folder / "record")
    given = judged_all(folder)["given-away"]
    assert (given.verdict, given.read_off["certain"], given.read_off["clients"]) == (LEAK, CLIENTS, 1)


def test_rows_of_indices_and_values_are_put_together(tmp_path):
    dense = np.array([[0, 2.5, 0, 1], [0, 0, 0, 0], [7, 0, 0.5, 0]], np.float32)
    rows, columns = np.nonzero(dense)
    arrays = {
        "indices": columns.astype(np.int32),
        "data": dense[rows, columns],
        "indptr": np.searchsorted(rows, range(4)).astype(np.int64),
    }
    writer = RecordWriter(tmp_path / "record", seed=0)
    writer.write(Exchange(1, {"w": np.zeros(4, np.float32)}, [Reply("a", "ok", arrays, 5)]))
    writer.close()
    sent = {array.name: array.values for array in sent_arrays(Record(tmp_path / "record"), 4)}
    assert np.array_equal(sent["data at indices"], dense)


def test_arrays_of_evaluations_are_read_too(tmp_path):
    writer = RecordWriter(tmp_path / "record", seed=0)
    rows = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    others = [Others("evaluate", "reply", ("a",), arrays={"curve.rows": rows})]
    writer.write(Exchange(1, {"w": np.zeros(4, np.float32)}, [Reply("a", "ok", {}, 5)], others=others))
    writer.close()
    (sent,) = sent_arrays(Record(tmp_path / "record"), 4)
    assert (sent.node, sent.type, sent.name) == ("a", "evaluate", "curve.rows")
    assert np.array_equal(sent.values, rows)


def test_what_a_client_sends_back_as_it_came_is_not_its_own(tmp_path):
    writer = RecordWriter(tmp_path / "record", seed=0)
    for number in (1, 2):
        arrays = {"w": np.arange(4, dtype=np.float32), "odd": np.array([np.inf, 1, np.nan], np.float32)}
        replies = [Reply("a", "ok", {**arrays, "none": np.zeros((0, 3), np.float32)}, 5)]
        writer.write(Exchange(number, {"w": np.arange(4, dtype=np.float32)}, replies))
    writer.close()
    (sent,) = sent_arrays(Record(tmp_path / "record"), 4)
    assert (sent.name, np.isnan(sent.values).tolist(), sent.is_whole) == ("odd", [True, False, True], False)


def test_each_client_keeps_room_for_its_arrays(tmp_path, monkeypatch):
    folder = write_plain_run(tmp_path, plain, adds=lambda client, x, y: {f"a{row}": x[row] for row in range(9)})
    monkeypatch.setattr(plaintext, "_MOST_ARRAYS", 4 * CLIENTS)
    scores = ATTACKS["plaintext"].run(Record(folder / "record"), read_knowledge(folder / "knowledge"))
    assert np.bincount(scores.arrays["senders"]).tolist() == [4] * CLIENTS
    assert any("arrays are more than are compared with examples" in note for note in scores.notes)


def test_a_planted_example_is_seen(tmp_path):
    """The positive control, with replies that show nothing by themselves."""
    attack = ATTACKS["plaintext"]

    found = judged_all(write_plain_run(tmp_path, plain, adds=lambda client, x, y: attack.plant({}, x, 1)))
    assert (found["given-away"].read_off["certain"], found["given-away"].verdict) == (CLIENTS, LEAK)
    assert found["own-examples"].verdict == NO_EVIDENCE


@pytest.mark.parametrize("kind", ["means", "variances", "medians", "sums"])
def test_equal_examples_count_in_statistics_as_often_as_they_are_there(parts, kind):
    """Of one client, and of two clients that hold the same example."""
    twice = []
    for x, y in parts:
        rows = [*range(ROWS), 0, 0, 1, 2]
        twice.append((np.concatenate([x[rows], parts[0][0][:1]]), np.append(y[rows], parts[0][1][0])))
    compute = STATISTICS[kind]

    def by_class(client, x, y):
        return {"class": np.stack([compute(x[y == label]) for label in np.unique(y)])}

    assert count(find(twice, lambda client, x, y: {"all": compute(x)}), kind) == (6, 6)
    # What is an example itself, such as the mean of equal ones, is no statistic; and of such there is no variance.
    groups = 0
    for x, y in twice:
        of_class = [compute(x[y == label]) for label in range(4) if (y == label).sum() >= 1 + 2 * (kind == "medians")]
        groups += sum(np.ptp(each) > 0 and not (each == x).all(axis=1).any() for each in of_class)
    assert count(find(twice, by_class), f"{kind} by class") == (groups, groups)
    # Copies of an example are one.
    contents = find(twice, lambda client, x, y: {"rows": x[3:6]})
    assert count(contents, EXAMPLES) == (18, 18)
    assert contents.sizes[EXAMPLES, 1] == ROWS + 1


def test_the_mean_of_a_class_of_one_example_is_certain_where_its_numbers_alone_are_not():
    """Numbers of one digit are met by accident; that the array holds means by class is certain all the same."""
    draw = np.random.default_rng(3)
    parts = []
    for _ in range(6):
        x = np.round(draw.normal(3, 1, size=(17, 4)), 1)
        parts.append((x, np.array([0] * 8 + [1] * 8 + [2])))
    contents = find(parts, lambda client, x, y: {"means": np.stack([x[y == label].mean(0) for label in range(3)])})
    assert count(contents, "means by class") == (12, 12)
    assert count(contents, EXAMPLES) == (6, 6)
    alone = find(parts, lambda client, x, y: {} if client else {"rows": x[-1:]})
    assert count(alone, EXAMPLES) == (1, 0)
