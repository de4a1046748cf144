"""What the tests of every attack run over: a folder with all that it needs, for each protocol that it takes."""

from functools import partial

from tests.worlds.federation import write_predictions_run, write_run

RUNS = {
    ("sia", "fedavg"): write_run,
    ("sia", "fedsgd"): partial(write_run, protocol="fedsgd"),
    ("sia", "fedmd"): write_predictions_run,
}
