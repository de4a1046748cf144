"""What follows from the statement of a table: what a finding holds, what the page shows, what the file has."""

from dataclasses import replace

import pytest
from jsonschema import Draft202012Validator

from fedattack.audit import kinds
from fedattack.audit.table import Column, Table, in_file
from fedattack.report.section import Section, show_table
from tests.report import example

CLIENTS = Table(
    "clients",
    (
        Column("client", "client", kinds.TEXT),
        Column("read", "read", kinds.COUNT, lambda row: f"{row['read']:,} of {row['held']:,}"),
        Column("held", kind=kinds.whole(1), file=None, about="Examples."),
        Column("share", "{level} of it", kinds.optional(kinds.SHARE), file="part"),
        Column("whole", "whole", kinds.YES_OR_NO),
        Column("", "twice", write=lambda row: str(2 * row["read"])),
        Column("score"),
    ),
    title="{label}: clients",
    caption="The first {shown} of {listed}.",
    file="one row for each client",
    most=2,
    about="Clients.",
)
ROW = {"client": "a", "read": 1200, "held": 2000, "share": 0.5, "whole": False}


def errors(rows, table=CLIENTS):
    schema = {"type": "object", "properties": Section(tables=(table,)).schemas}
    Draft202012Validator.check_schema(schema)
    return [error.message for error in Draft202012Validator(schema).iter_errors({"clients": rows})]


def test_a_finding_holds_what_has_a_kind_and_the_file_what_has_a_name_there():
    row = {**ROW, "score": 0.125}
    assert CLIENTS.store([row]) == [ROW]
    assert CLIENTS.header == ["seed", "client", "read", "part", "whole", "score"]
    assert CLIENTS.cells(row) == ["a", 1200, 0.5, False, 0.125]
    assert replace(CLIENTS, over_runs=True).header == CLIENTS.header[1:]


def test_a_table_may_have_a_file_alone():
    table = Table("rows", in_file("client", "right", right="named rightly"), file="one row for each client")
    assert table.header == ["seed", "client", "named rightly"]
    assert table.cells({"right": 1, "client": "a"}) == ["a", 1]
    assert (table.page_columns, table.store([{"client": "a", "right": 1}])) == ([], [{}])


def test_the_page_shows_no_more_rows_than_the_table_says_whatever_a_finding_holds():
    rows = [ROW, {**ROW, "client": "b", "share": None, "whole": True}, ROW]
    page = show_table(CLIENTS, replace(example.findings()[0], label="Read", series={"clients": rows}))
    assert (page.title, page.caption) == ("Read: clients", "The first 2 of 3.")
    assert page.header == ["client", "read", "95% of it", "whole", "twice"]
    assert page.rows == [
        ["a", "1,200 of 2,000", "50.0%", "no", "2400"],
        ["b", "1,200 of 2,000", "–", "yes", "2400"],
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"read": -1}, "-1 is less than the minimum of 0"),
        ({"held": 0}, "0 is less than the minimum of 1"),
        ({"read": True}, "True is not of type 'integer'"),
        ({"read": 0.5}, "0.5 is not of type 'integer'"),
        ({"share": 1.5}, "1.5 is greater than the maximum of 1"),
        ({"share": "x"}, "'x' is not of type 'number', 'null'"),
        ({"whole": 1}, "1 is not of type 'boolean'"),
        ({"client": 3}, "3 is not of type 'string'"),
        ({"score": 1}, "Additional properties are not allowed ('score' was unexpected)"),
    ],
)
def test_what_is_out_of_bounds_is_refused(change, message):
    assert errors([ROW]) == []
    assert errors([{**ROW, **change}]) == [message]


def test_fields_that_lack_and_lists_that_are_empty_are_refused():
    lacking = {key: value for key, value in ROW.items() if key != "held"}
    assert errors([lacking]) == ["'held' is a required property"]
    assert errors([]) == ["[] should be non-empty"]
    wide = replace(CLIENTS, closed=False, least=None)
    assert errors([], wide) == errors([{**ROW, "further": 1}], wide) == []


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (kinds.choice("a", "b"), ["a"], ["c", None]),
        (kinds.list_of(kinds.COUNT, 1, 2), [[0], [0, 1]], [[], [0, 1, 2], [-1], 3]),
        (kinds.by_name(kinds.SHARE, 1), [{"x": 1}], [{}, {"x": 2}, []]),
        (kinds.fields({"a": kinds.TEXT}, {"b": kinds.COUNT}), [{"a": ""}, {"a": "", "c": 1}], [{}, {"a": "", "b": -1}]),
        (kinds.fields({"a": kinds.TEXT}, closed=True), [{"a": ""}], [{"a": "", "c": 1}]),
        (kinds.either(kinds.COUNT, kinds.list_of(kinds.COUNT, 3, 3)), [1, [1, 2, 3]], [-1, [1], "x"]),
        (kinds.number(-1, 1), [-1, 0.5], [-2, 2, True]),
        (kinds.INDEX, [-3, 12345], ["a", 0.5]),
    ],
)
def test_kinds_take_what_they_say_and_nothing_else(kind, good, bad):
    Draft202012Validator.check_schema(dict(kind.schema))
    validator = Draft202012Validator(dict(kind.schema))
    assert all(map(validator.is_valid, good))
    assert not any(map(validator.is_valid, bad))


def test_people_read_numbers_with_separators_and_names_as_they_are():
    assert kinds.COUNT.write(12345) == "12,345"
    assert kinds.INDEX.write(12345) == "12345"
    assert kinds.number(form=",.1f").write(1234.56) == "1,234.6"
    assert kinds.choice(words={"a": "A"}).write("a") == "A"
