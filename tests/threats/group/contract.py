"""What the tests of every attack run over: a folder with all that it needs, for each protocol that it takes."""

from tests.worlds.private import write_private_run

RUNS = {("private-attribute", "fedavg"): write_private_run}
QUICK = {"private-attribute": {"clients": "60", "epochs": "2"}}


def headline(tables):
    """Count the headline's value and n again from the tables."""
    first = tables["clients"][0]["attribute"], tables["clients"][0]["adversary"]
    shares = []
    for client in tables["clients"]:
        if (client["attribute"], client["adversary"]) == first:
            rights = []
            for row in tables["replies"]:
                if all(row[key] == client[key] for key in ("seed", "client", "attribute", "adversary")):
                    assert row["has"] == client["has"]
                    rights.append(float(row["right"]))
            assert len(rights) == int(client["replies"])
            shares.append(sum(rights) / len(rights))
            assert abs(shares[-1] - float(client["named rightly"])) < 1e-9
    return sum(shares) / len(shares), len(shares)
