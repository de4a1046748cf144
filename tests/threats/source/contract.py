"""What the tests of every attack run over: a folder with all that it needs, for each protocol that it takes."""

from functools import partial

from tests.worlds.federation import write_predictions_run, write_run

RUNS = {
    ("sia", "fedavg"): write_run,
    ("sia", "fedsgd"): partial(write_run, protocol="fedsgd"),
    ("sia", "fedmd"): write_predictions_run,
}


def headline(tables):
    """Count the headline's value and n again from the tables."""
    rights = [float(row["right"]) for row in tables["records"] if row["right"] and " | " not in row["held by"]]
    of_clients = sum(int(row["targets"]) * float(row["owner named"]) for row in tables["clients"])
    assert abs(of_clients - sum(rights)) < 1e-6
    return sum(rights) / len(rights), len(rights)
