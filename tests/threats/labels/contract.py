"""What the tests of every attack run over: a folder with all that it needs, for each protocol that it takes."""

from functools import partial

import numpy as np

from tests.worlds.federation import write_run

RUNS = {
    ("labels", "fedavg"): partial(write_run, auxiliary=60, epochs=3),
    ("labels", "fedsgd"): partial(write_run, auxiliary=60, protocol="fedsgd"),
}


def headline(tables):
    """Count the headline's value and n again from the tables."""
    shares = []
    for client in tables["clients"]:
        rows = [row for row in tables["counts"] if (row["client"], row["rule"]) == (client["client"], "solved")]
        common = sum(min(float(row["counted"]), float(row["true"])) for row in rows)
        shares.append(common / float(client["examples"]))
        error = sum(abs(float(row["counted"]) - float(row["true"])) for row in rows) / 10
        assert abs(error - float(client["mean absolute error"])) < 1e-9
    return float(np.mean(shares)), len(shares)
