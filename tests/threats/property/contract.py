"""What the tests of every attack run over: a folder with all that it needs, for each protocol that it takes."""

from functools import partial

from tests.worlds.federation import write_property_run

RUNS = {
    ("prolin", "fedavg"): partial(
        write_property_run, asked="membership", rounds=6, sampled=3, clients=5, positives=(1,)
    ),
}
