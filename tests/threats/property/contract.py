"""What the tests of every attack run over: a folder with all that it needs, for each protocol that it takes."""

from functools import partial

from tests.worlds.federation import write_property_run

RUNS = {
    ("prolin", "fedavg"): partial(
        write_property_run, asked="membership", rounds=6, sampled=3, clients=5, positives=(1,)
    ),
}


def headline(tables):
    """Count the headline's value and n again from the table."""
    asked = {(row["seed"], row["question"]) for row in tables["clients"] if row["has"] == "yes"}
    rows = [row for row in tables["clients"] if (row["seed"], row["question"]) in asked]
    named, have = (sum(row[key] == "yes" for row in rows) for key in ("named", "has"))
    hits = sum(row["named"] == row["has"] == "yes" for row in rows)
    return 2 * hits / (named + have), len(rows)
