"""What the tests of every attack run over: a folder with all that it needs, for each protocol that it takes."""

from functools import partial

from tests.threats.exact.world import write_exact_run

RUNS = {
    ("exact", protocol): partial(write_exact_run, protocol=protocol, rounds=2, each=4, hidden=60)
    for protocol in ("fedavg", "fedsgd")
}

QUICK = {"exact": {"draws": "2000"}}


def headline(tables):
    """Count the headline's value and n again from the tables."""
    read = held = 0
    for client in tables["clients"]:
        read, held = read + int(client["read off"]), held + int(client["examples"])
    right = [row for row in tables["examples"] if row["trained on by"] == row["client"]]
    assert len(right) == read
    return read / held, held
