"""What the tests of every attack run over: a folder with all that it needs, for each protocol that it takes."""

from functools import partial

from tests.worlds.inversion import write_inversion_run

RUNS = {
    ("inversion", "fedsgd"): partial(write_inversion_run, clients=2),
    ("inversion", "fedavg"): partial(write_inversion_run, clients=2, protocol="fedavg"),
}
QUICK = {"inversion": {"iterations": "20"}}
