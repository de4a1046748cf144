"""Tables and curves of property inference: answers round by round, what is sent in plaintext, and the clients."""

from fedattack.audit import kinds
from fedattack.audit.numbers import interval, shown
from fedattack.audit.table import Column, Row, Table, in_file

_SHARES = kinds.list_of(kinds.optional(kinds.SHARE))
_NUMBERS = kinds.list_of(kinds.optional(kinds.NUMBER))
_ROUNDS = kinds.list_of(kinds.INDEX, 1)
_SAMPLE = kinds.list_of(kinds.NUMBER)
_NORMAL = kinds.fields({"mean": kinds.NUMBER, "sd": kinds.number(0)})
_END = kinds.optional(kinds.SHARE)


def _say_area(row: Row) -> str:
    return shown(row["auc"], "")


def _say_interval(row: Row) -> str:
    return interval(row["low"], row["high"], "")


PLAINTEXT = Table(
    "plaintext",
    (
        Column("metric", "metric", kinds.TEXT),
        Column("auc", "area under the ROC curve", kinds.SHARE, _say_area),
        Column("low", "{level} interval", _END, _say_interval),
        Column("high", kind=_END),
    ),
    title="What each number in plaintext tells by itself",
    caption="How well a single number sent with the encrypted update separates the clients with the property from the "
    "others: 1 always, 0.5 no better than a coin, 0 always but reversed.",
    over_runs=True,
    least=None,
    closed=False,
    about="How well a single metric in plaintext tells the clients with the property from the others (area under the "
    "ROC curve).",
)

CLIENTS = Table(
    "clients",
    in_file(
        *("target", "client", "positive", "named", "score", "posterior", "low", "high", "rounds"),
        target="question",
        positive="has",
    ),
    file="one row for each client that took part and each question; named and score are PROLIN's, after all rounds",
)

FORMS = {
    # What each method answers from the first rounds: its measures after so many. The chance is the F1 of guessing.
    "methods": kinds.fields(
        {
            "rounds": _ROUNDS,
            "methods": kinds.by_name(kinds.fields({"f1": _SHARES}, {"precision": _SHARES, "recall": _SHARES}), 1),
        },
        {"chance": kinds.optional(kinds.SHARE)},
    ),
    # The share of the clients about which a method says after so many rounds what it says in the end.
    "stability": kinds.fields({"rounds": _ROUNDS, "methods": kinds.by_name(_SHARES, 1)}),
    # Per round: how far the feature's two densities overlap (median, low and high over targets and seeds), and the
    # detector's accuracy on unseen auxiliary examples; at the checked rounds also on exact shadow updates.
    "overlap": kinds.fields(
        {
            "rounds": _ROUNDS,
            "overlap": _NUMBERS,
            "low": _NUMBERS,
            "high": _NUMBERS,
            "accuracy": _SHARES,
            "checked_rounds": kinds.list_of(kinds.INDEX),
            "checked_accuracy": _SHARES,
        }
    ),
    # The detector's feature in a few rounds: normal densities with (plus) and without (minus) the property, and
    # features of shadow updates of unseen examples.
    "distributions": kinds.list_of(
        kinds.fields(
            {
                "round": kinds.INDEX,
                "plus": _NORMAL,
                "minus": _NORMAL,
                "overlap": kinds.NUMBER,
                "plus_sample": _SAMPLE,
                "minus_sample": _SAMPLE,
            }
        ),
        most=4,
    ),
    # How sure the server can be that a client has the property, whether it has it, and how many rounds it took part in.
    "posteriors": kinds.list_of(
        kinds.fields(
            {
                "client": kinds.TEXT,
                "target": kinds.TEXT,
                "seed": kinds.INDEX,
                "posterior": kinds.SHARE,
                "low": kinds.SHARE,
                "high": kinds.SHARE,
                "positive": kinds.YES_OR_NO,
                "rounds": kinds.COUNT,
            }
        )
    ),
}
"""What a finding may hold for the figures."""
