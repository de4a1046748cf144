"""Examples and statistics that are spread over many names are put together and found."""

import numpy as np
import pytest

from fedattack.audit.finding import LEAK, NO_EVIDENCE
from fedattack.threats.plaintext.arrays import SUM, spread_arrays
from fedattack.threats.plaintext.contents import KnownExamples, find_contents
from fedattack.threats.plaintext.items import EXAMPLES
from fedattack.threats.plaintext.section import _explain
from fedattack.threats.plaintext.spread import group_names, join_values, stack_arrays
from fedattack.threats.plaintext.values import Plain
from tests.threats.plaintext.world import CLIENTS, EACH, SIZE, judged_all, plain, write_plain_run

WORDS = ("age", "bmi", "bp", "ldl", "hdl", "tch", "ltg", "glu", "sex", "site", "ward", "dose", "days", "beds", "cost")
WORDS += ("risk",)


def numbered(prefix, values):
    """Names in an order that is not that of their numbers."""
    return {f"{prefix}{index}": values[index] for index in sorted(range(len(values)), key=str)}


def in_words(numbers, form):
    return {form.format(word): float(number) for word, number in zip(WORDS, numbers, strict=True)}


VALUES = {
    "rows as lists": (lambda x: numbered("row_", x.tolist()), EXAMPLES, EACH),
    "columns as lists": (lambda x: numbered("column_", x.T.tolist()), EXAMPLES, EACH),
    "all numbers of all rows": (
        lambda x: {f"r{row}_c{column}": float(x[row, column]) for column in range(SIZE) for row in range(EACH)},
        EXAMPLES,
        EACH,
    ),
    "a row by words": (lambda x: in_words(x[0], "first.{}"), EXAMPLES, 1),
    "a row of words alone": (lambda x: in_words(x[0], "{}"), EXAMPLES, 1),
    "means by words": (lambda x: in_words(x.mean(0), "mean_{}"), "means", 1),
    "variances by words in front": (lambda x: in_words(x.var(0), "{}/var"), "variances", 1),
    "means of numbered columns": (lambda x: numbered("m", x.mean(0).tolist()), "means", 1),
}
ARRAYS = {
    "columns as arrays": (lambda x, y: numbered("x", x.T), EXAMPLES, EACH),
    "one number an array": (lambda x, y: numbered("px", x[0]), EXAMPLES, 1),
    "arrays of one number": (lambda x, y: numbered("px", x[0][:, None]), EXAMPLES, 1),
    "a label an array": (lambda x, y: numbered("label", y[::-1]), "labels", 1),
}


def sought(findings, kind):
    metric = "given-away" if kind == EXAMPLES else "statistics"
    rows = [row for row in findings[metric].series.get("contents", ()) if row["kind"] == kind]
    return findings[metric], rows


@pytest.mark.parametrize("form", VALUES)
def test_what_numbers_and_lists_hold_together_is_found(tmp_path, form):
    says, kind, each = VALUES[form]
    findings = judged_all(write_plain_run(tmp_path, lambda client, number, x: says(x)))
    finding, rows = sought(findings, kind)
    assert finding.verdict == LEAK
    assert max(row["found"] for row in rows) == max(row["certain"] for row in rows) == CLIENTS * each
    if "words" in form:
        assert " in any order" in " ".join(_explain([*findings.values()]).words)


@pytest.mark.parametrize("form", ARRAYS)
def test_what_arrays_hold_together_is_found(tmp_path, form):
    says, kind, each = ARRAYS[form]
    findings = judged_all(write_plain_run(tmp_path, plain, adds=lambda client, x, y: says(x, y)))
    finding, (row,) = sought(findings, kind)
    assert (row["found"], row["clients"]) == (CLIENTS * each, CLIENTS)
    if kind == EXAMPLES:
        assert finding.verdict == LEAK
        assert row["certain"] == CLIENTS * each


@pytest.mark.parametrize("form", VALUES)
def test_what_is_of_another_client_is_none_of_ones_own(tmp_path, form):
    says, kind, _ = VALUES[form]
    kept = {}

    def of_another(client, number, x):
        kept[client] = x
        # In the first round that of the client before, of which the first one has none.
        return says(kept[client - 1]) if client else {}

    findings = judged_all(write_plain_run(tmp_path, of_another))
    assert sought(findings, kind)[0].verdict == NO_EVIDENCE
    assert sought(findings, kind)[1] == []


def test_random_numbers_are_found_to_be_nothing():
    """Of a thousand replies of numbers of the same marginals none holds an example or a statistic of its client."""
    draw = np.random.default_rng(0)
    x = draw.uniform(size=(CLIENTS * EACH, SIZE)).astype(np.float32)
    owners = np.repeat([str(client) for client in range(CLIENTS)], EACH)
    known = KnownExamples(x, owners, np.full(len(x), np.nan), frozenset(owners.tolist()))
    sent = []
    for number in range(1000):
        said = in_words(draw.uniform(size=SIZE), "mean_{}") | in_words(draw.uniform(size=SIZE), "{}")
        said |= in_words(draw.normal(0.5, 0.06, size=SIZE), "var.{}")
        replies = [Plain((SUM,), "train", said, None)]
        sent += [(str(number % CLIENTS), array) for array in spread_arrays(replies)]
    assert len(sent) >= 3000
    contents = find_contents(sent, known, (SIZE,))
    assert not any(matches.own for matches in contents.matches)
    assert not any(contents.certain)


def test_groups_are_in_the_natural_order_of_their_numbers():
    assert group_names(["px10", "px9", "loss", "px1"]) == {"px#": ("px1", "px9", "px10")}
    ((stem, table),) = stack_arrays({f"c{index}": np.full(3, index) for index in (10, 9, 1)})
    assert (stem, table.tolist()) == ("c#", [[1] * 3, [9] * 3, [10] * 3])
    # Of different lengths, with several axes, or two alone, nothing is put together.
    assert not [*stack_arrays({"c1": np.ones(3), "c2": np.ones(3), "c3": np.ones(4)})]
    assert not [*stack_arrays({f"c{index}": np.ones((3, 3)) for index in range(3)})]
    assert not [*stack_arrays({"c1": np.ones(3), "c2": np.ones(3)})]


def test_numbers_are_put_together_by_their_first_and_by_their_last_words():
    values = {
        "mean.b": 3.0,
        "mean.a": 1.0,
        "mean.c": 2.0,
        "x/var": 5,
        "y/var": 4.0,
        "z/var": 6.0,
        "yes": True,
        "t": "x",
    }
    joined = {name: array.tolist() for name, array in join_values(values)}
    assert joined == {"mean.*": [1, 2, 3], "*/var": [4, 5, 6], "all numbers": [1, 2, 3, 4, 5, 6]}
    assert not [*join_values({"a": 1.0, "b": float("nan"), "c": 10**400, "d": 2.0})]
