"""What the tests of every attack run over: a folder with all that it needs, for each protocol that it takes."""

from tests.threats.trees.world import write_trees_run

RUNS = {("trees", "fedavg"): write_trees_run}


def headline(tables):
    """Count the headline's value and n again from the tables."""
    shares = [float(row["columns"]) for row in tables["clients"]]
    return sum(shares) / len(shares), len(shares)
