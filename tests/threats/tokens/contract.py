"""What the tests of every attack run over: a folder with all that it needs, for each protocol that it takes."""

from functools import partial

import numpy as np

from tests.threats.tokens.world import ONE_HOT, write_words_run

RUNS = {
    ("tokens", protocol): partial(write_words_run, known=ONE_HOT, protocol=protocol, rounds=2)
    for protocol in ("fedavg", "fedsgd")
}


def headline(tables):
    """Count the headline's value and n again from the tables."""
    scores = []
    for client in tables["clients"]:
        rows = [row for row in tables["rows"] if row["client"] == client["client"]]
        named, used = ({row["row"] for row in rows if row[key] in ("True", "1", "yes")} for key in ("named", "used"))
        assert (len(named), len(used)) == (int(client["named"]), int(client["used"]))
        scores.append(2 * len(named & used) / (len(named) + len(used)))
    return float(np.mean(scores)), len(scores)
