"""What the contract tests of attacks run over, in a checkout of fedattack with its tests."""

from tests.worlds.federation import write_run

RUNS = {("toy", "fedavg"): write_run}
"""For each attack and protocol what writes a run folder that has all that the attack needs."""


def headline(tables):
    """Count the headline's value and n again from the tables."""
    (named,) = (row for row in tables["clients"] if row["named"] == "yes")
    return float(int(named["records"]) == max(int(row["records"]) for row in tables["clients"])), 1
