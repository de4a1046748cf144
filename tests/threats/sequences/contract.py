"""What the tests of every attack run over: a folder with all that it needs, for each protocol that it takes."""

from functools import partial

import numpy as np

from tests.threats.sequences.world import write_texts_run

RUNS = {
    ("dager", protocol): partial(write_texts_run, kind="decoder", protocol=protocol, rounds=2)
    for protocol in ("fedavg", "fedsgd")
}


def headline(tables):
    """Count the headline's value and n again from the tables."""
    shares = []
    for client in tables["clients"]:
        rows = [row for row in tables["sequences"] if row["client"] == client["client"]]
        trained = sum(int(row["times trained"]) for row in rows)
        found = sum(int(row["times trained"]) for row in rows if row["found"] in ("True", "1", "yes"))
        assert trained == int(client["sequences"])
        shares.append(found / trained)
    return float(np.mean(shares)), len(shares)
