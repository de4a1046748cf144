"""What the tests of every attack run over: a folder with all that it needs, for each protocol that it takes."""

from functools import partial

from fedattack.record.format import PROTOCOLS
from tests.threats.plaintext.world import write_plain_run

RUNS = {("plaintext", protocol): partial(write_plain_run, protocol=protocol) for protocol in PROTOCOLS}


def headline(tables):
    """Count the headline's value and n again from the tables."""
    shares = []
    for client in tables["clients"]:
        own = [
            float(row["own"])
            for row in tables["vectors"]
            if (row["client"], row["name"]) == (client["client"], client["name"])
        ]
        assert len(own) == int(client["vectors"])
        shares.append(sum(own) / len(own))
        assert abs(shares[-1] - float(client["nearest to an own example"])) < 1e-9
    return sum(shares) / len(shares), len(shares)
