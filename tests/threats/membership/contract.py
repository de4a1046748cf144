"""What the tests of every attack run over: a folder with all that it needs, for each protocol that it takes."""

from functools import partial

from tests.worlds.federation import write_predictions_run, write_run, write_sums_run

RUNS = {
    ("membership", "fedavg"): partial(write_run, epochs=10, auxiliary=60),
    ("membership", "fedsgd"): partial(write_run, protocol="fedsgd", auxiliary=60),
    ("membership", "fedmd"): partial(write_predictions_run, epochs=10, auxiliary=60),
    ("membership-aggregate", "fedavg"): partial(write_sums_run, epochs=10, auxiliary=60),
}
QUICK = {"membership": {"shadows": "2"}, "membership-aggregate": {"references": "2"}}
