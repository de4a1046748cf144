"""What the tests of every attack run over: a folder with all that it needs, for each protocol that it takes."""

from functools import partial

from tests.worlds.federation import write_predictions_run, write_run, write_sums_run
from tests.worlds.reference import run_preset

SMALL = ("secagg=false", "clients=3", "records-per-client=30", "nulls=120", "auxiliary=60", "hidden=256", "rounds=1")


def write_canary_run(folder, protocol="fedavg"):
    """A run whose server plants canaries."""
    run_preset("canary", [*SMALL, f"framework={protocol}"], 0, folder)
    return folder


RUNS = {
    ("membership-canary", "fedavg"): write_canary_run,
    ("membership-canary", "fedsgd"): partial(write_canary_run, protocol="fedsgd"),
    ("membership", "fedavg"): partial(write_run, epochs=10, auxiliary=60),
    ("membership", "fedsgd"): partial(write_run, protocol="fedsgd", auxiliary=60),
    ("membership", "fedmd"): partial(write_predictions_run, epochs=10, auxiliary=60),
    ("membership-aggregate", "fedavg"): partial(write_sums_run, epochs=10, auxiliary=60),
}
QUICK = {"membership": {"shadows": "2"}, "membership-aggregate": {"references": "2"}}


def headline(tables):
    """Count the headline's value and n again from the tables."""
    members = [row for row in tables["records"] if row["member"] == "yes"]
    others = [row for row in tables["records"] if row["member"] == "no"]
    found = [row for row in members if row["accused"] == "yes"]
    assert sum(row["accused"] == "yes" for row in others) <= 0.01 * len(others)
    # One threshold serves all.
    if found:
        least = min(float(row["score"]) for row in found)
        assert all(float(row["score"]) < least for row in others if row["accused"] == "no")
    assert sum(int(row["targets"]) for row in tables["clients"]) <= len(members)
    return len(found) / len(members), len(members)
