"""Tables of plaintext: what stands beside the model, which vectors are examples, and the clients that sent them."""

from fedattack.audit import kinds
from fedattack.audit.numbers import count_words, shown
from fedattack.audit.table import Column, Row, Table, in_file

TEXTS = "list of texts"
"""A kind of values, as the attack names it."""

# Kinds of values that are no list.
_SCALARS = ("number", "text", "bytes", "yes or no")


def _say_kind(row: Row) -> str:
    if row["kind"] == TEXTS:
        return f"{row['numbers']:,} texts"
    if row["kind"] in _SCALARS:
        return str(row["kind"])
    return f"{row['numbers']:,} numbers"


def _say_replies(row: Row) -> str:
    return f"{row['replies']:,}, of {count_words(row['clients'], 'client')}"


def _say_by_example(row: Row) -> str:
    return f"{row['by_example']:,} of {row['replies']:,}" if row["by_example"] else "none"


def say_apart(row: Row) -> str:
    """Say whether a value tells clients apart over rounds."""
    if row["clients"] < 2:
        return "one client sends it"
    if row["values"] == 1:
        return "no, all send the same"
    if not row["constant"]:
        return "no, it changes"
    if row["replies"] == row["clients"]:
        return "not known: each sent it once"
    if row["apart"] == row["clients"]:
        return "yes, each client"
    return f"into {row['apart']:,} groups"


BESIDE = Table(
    "beside",
    (
        Column("name", "name", kinds.TEXT),
        Column("type", "in replies to", kinds.TEXT, about="Type of the message: train, or Flower's own."),
        Column("kind", "kind", kinds.TEXT, _say_kind),
        Column("numbers", kind=kinds.COUNT, about="How many numbers a reply has of it."),
        Column("replies", "replies", kinds.whole(1), _say_replies),
        Column("values", "different values", kinds.whole(1), about="How many different values there are."),
        Column(
            "by_example",
            "one value for each example",
            kinds.COUNT,
            _say_by_example,
            about="Replies in which it has a value for each example.",
        ),
        Column("clients", kind=kinds.whole(1)),
        Column("constant", kind=kinds.YES_OR_NO, about="Whether each client always sent the same."),
        Column(
            "apart",
            "tells clients apart",
            kinds.COUNT,
            say_apart,
            about="Into how many groups it parts the clients, where it is constant.",
        ),
    ),
    title="What clients send in plaintext beside the model",
    caption="The first run, without a test. In names that differ only in running numbers, # stands for these. A "
    "list with as many numbers as the client has examples holds a value for each. What is the same in all replies of "
    "a client, and differs between clients, tells them apart whenever they take part, whatever hides their models.",
    about="Each name in plaintext of the first run; names that differ only in running numbers are one.",
)

UNREAD = Table(
    "unread",
    (
        Column("name", kind=kinds.TEXT),
        Column("type", kind=kinds.TEXT, about="Type of the message that is replied to."),
        Column("shape", kind=kinds.TEXT, about="Shape of the first one."),
    ),
    about="Arrays beside the model that the first run's record names and does not hold.",
)


def _say_found(row: Row) -> str:
    return f"{row['found']:,} of {row['items']:,}"


def _say_kind_of_content(row: Row) -> str:
    return f"{row['kind']}, {row['how']}" if row["how"] else str(row["kind"])


CONTENTS = Table(
    "contents",
    (
        Column("name", "name", kinds.TEXT),
        Column("type", "in replies to", kinds.TEXT, about="Type of the message: train, or Flower's own."),
        Column(
            "kind",
            "what appears there",
            kinds.TEXT,
            _say_kind_of_content,
            about="What it is of the sender's own examples.",
        ),
        Column("found", "of each client's own", kinds.COUNT, _say_found, about="How many of the senders' own."),
        Column("items", kind=kinds.COUNT, about="How many these clients have."),
        Column("certain", "certain", kinds.COUNT, about="How many of those found no accident would give."),
        Column("clients", "clients", kinds.whole(1)),
        Column("others", kind=kinds.number(0), about="How many of other clients, or of nobody, appear there as well."),
        Column("how", kind=kinds.TEXT, about="Scaled or in part; empty for as they are."),
    ),
    title="What clients send of their examples",
    caption="All arrays, lists and families of numbers in replies, compared with the examples of each client and "
    "with statistics of these, to the last digits. A match is certain if no accident, and no example of others, "
    "would give the same.",
    file="one row for each name under which something of a client's own examples appears",
    most=200,
    over_runs=True,
    about="By name and kind, what appears in what clients send, over all runs.",
)


def _say_values(row: Row) -> str:
    return str(row["what"]) if row["what"] else f"not told: {row['why']}"


def _say_rows(row: Row) -> str:
    by_example = ", one for each example" if row["by_example"] else ""
    return f"{row['rows']:,}{by_example}"


def _say_right(row: Row) -> str:
    return f"{row['right']:,} of {row['labelled']:,}" if row["labelled"] else "–"


VALUE_LISTS = Table(
    "values",
    (
        Column("name", "name", kinds.TEXT),
        Column("type", "in replies to", kinds.TEXT, about="Type of the message: train, or Flower's own."),
        Column("what", "what appears there", kinds.TEXT, _say_values, about="Empty where nothing was found."),
        Column("rows", "rows in a reply", kinds.whole(1), _say_rows, about="At most."),
        Column("found", "of each client's own", kinds.COUNT, _say_found, about="How many of the senders' own."),
        Column("items", kind=kinds.COUNT, about="How many known examples these clients have."),
        Column("certain", "certain", kinds.COUNT, about="How many of those found no accident would give."),
        Column("right", "give the label", kinds.COUNT, _say_right, about="In how many the largest is the label's."),
        Column("labelled", kind=kinds.COUNT, about="How many rows with a number for each class were told."),
        Column(
            "far", "far above the others", kinds.COUNT, about="Values by which an unusual example can be recognised."
        ),
        Column("clients", "clients", kinds.whole(1)),
        Column("others", kind=kinds.COUNT, about="How many of other clients appear there as well."),
        Column("by_example", kind=kinds.YES_OR_NO, about="Whether a reply has a row for each of its examples."),
        Column("why", kind=kinds.TEXT, about="Why nothing was found; empty where something was."),
    ),
    title="Values of single examples that clients send",
    caption="Lists, arrays and single numbers beside the model, compared with what known examples give under the "
    "models that clients sent and received: losses, predictions, and outputs of layers. A match is certain if no "
    "accident, and no other known example, would give the same.",
    file="one row for each name under which values of single examples may appear",
    most=200,
    over_runs=True,
    about="By name, what may be values of single examples, over all runs.",
)


def _say_small(row: Row) -> str:
    return f"{row['small']:,} of {row['groups']:,}"


GROUPS = Table(
    "groups",
    (
        Column("name", "name", kinds.TEXT),
        Column("type", "in replies to", kinds.TEXT, about="Type of the message: train, or Flower's own."),
        Column("small", "small groups", kinds.COUNT, _say_small, about="Over all clients, by one reply of each."),
        Column("groups", kind=kinds.COUNT, about="How many groups are not empty."),
        Column("single", "of one example", kinds.COUNT, about="How many groups have one example."),
        Column("clients", "clients", kinds.whole(1), about="Whose numbers add up to how many examples they have."),
        Column("senders", kind=kinds.whole(1), about="Clients that send numbers under this name."),
        Column("least", "small below", kinds.whole(2), about="Groups of fewer examples are small."),
        Column("certain", "certain", kinds.YES_OR_NO, about="Whether no accident makes so many numbers add up."),
    ),
    title="Sizes of groups that clients send",
    caption="Lists of whole numbers that add up to the client's number of examples in each of its replies. What is "
    "sent with the size of a small group, such as a mean, is about few examples; the mean of one is that example.",
    file="one row for each name under which sizes of groups appear",
    most=200,
    over_runs=True,
    about="By name, the sizes of groups that clients send, over all runs.",
)


def _say_own(row: Row) -> str:
    return shown(row["own"] / row["vectors"])


def _say_equal(row: Row) -> str:
    return f"{row['equal']:,} of {row['vectors']:,}"


VECTORS = Table(
    "vectors",
    (
        Column("name", "name", kinds.TEXT),
        Column("vectors", "vectors", kinds.whole(1)),
        Column("own", "nearest to an own example", kinds.number(0), _say_own, about="How many; ties count in part."),
        Column(
            "equal",
            "are an own training example",
            kinds.COUNT,
            _say_equal,
            about="How many are such an example, except for scale, offset and rounding.",
        ),
    ),
    title="Which of these numbers are training examples",
    caption="Lists and families of numbers that are as long as an example. Each is compared with all known examples; "
    "scale and offset do not matter. It is an example if it is equal to one except for these and for rounding.",
    over_runs=True,
    about="By name, the vectors that are as long as an example, over all runs.",
)

CLIENTS = Table(
    "clients",
    in_file("client", "name", "vectors", "own", own="nearest to an own example"),
    file="one row for each client that sends as many numbers as an example has, for the most revealing name",
)

EACH_VECTOR = Table(
    "vectors",
    in_file("client", "name", "holders", "own", "likeness", holders="nearest to an example of"),
    file="one row for each vector that is as long as an example",
)
