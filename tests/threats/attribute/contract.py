"""What the tests of every attack run over: a folder with all that it needs, for each protocol that it takes."""

from pathlib import Path

from tests.worlds.attributes import write_attribute_run, write_number_run
from tests.worlds.classified import write_classified_run


def classified(folder: Path) -> Path:
    write_classified_run(folder)
    return folder


RUNS = {
    ("aia", "fedavg"): write_attribute_run,
    ("ara", "fedavg"): classified,
    ("attribute-baselines", "fedavg"): classified,
    ("attribute-number", "fedavg"): write_number_run,
}


def headline(tables):
    """Count the headline's value and n again from the tables."""
    if "estimates" in tables:
        return count_near(tables)
    rows = tables["records"]
    excess = 0
    for row in rows:
        assert (row["said value"] == row["true value"]) == (row["right"] == "yes")
        excess += (row["right"] == "yes") - (row["best baseline says"] == row["true value"])
    of_clients = sum(int(row["targets"]) * float(row["values recovered"]) for row in tables["clients"])
    assert abs(of_clients - sum(row["right"] == "yes" for row in rows)) < 1e-6
    return 100 * excess / len(rows), len(rows)


def count_near(tables):
    """The same of a column of numbers."""
    rows = tables["estimates"]
    met, met_by_best = (sum(row[key] == "yes" for row in rows) for key in ("met", "best baseline meets it"))
    of_clients = sum(int(row["targets"]) * float(row["numbers met"]) for row in tables["clients"])
    assert abs(of_clients - met) < 1e-6
    return 100 * (met - met_by_best) / len(rows), len(rows)
