"""What the tests of every attack run over: a folder with all that it needs, for each protocol that it takes."""

from tests.worlds.private import write_private_run

RUNS = {("private-attribute", "fedavg"): write_private_run}
QUICK = {"private-attribute": {"clients": "60", "epochs": "2"}}
