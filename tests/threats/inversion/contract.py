"""What the tests of every attack run over: a folder with all that it needs, for each protocol that it takes."""

from functools import partial

from tests.worlds.inversion import write_inversion_run, write_table_run

RUNS = {
    ("inversion", "fedsgd"): partial(write_inversion_run, clients=2),
    # Rows of a table.
    ("inversion", "fedavg"): partial(write_table_run, clients=2, protocol="fedavg"),
}
QUICK = {"inversion": {"iterations": "20"}}


def headline(tables):
    """Count the headline's value and n again from the table."""
    rounds = {}
    for row in tables["records"]:
        assert (row["recognised"] == "yes") == (float(row["psnr"]) >= 20)
        rounds.setdefault((row["seed"], row["record"]), []).append(row["recognised"] == "yes")
    shares = [sum(of_example) / len(of_example) for of_example in rounds.values()]
    return sum(shares) / len(shares), len(shares)
