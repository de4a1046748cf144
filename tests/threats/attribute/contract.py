"""What the tests of every attack run over: a folder with all that it needs, for each protocol that it takes."""

from pathlib import Path

from tests.worlds.attributes import write_attribute_run
from tests.worlds.classified import write_classified_run


def classified(folder: Path) -> Path:
    write_classified_run(folder)
    return folder


RUNS = {
    ("aia", "fedavg"): write_attribute_run,
    ("ara", "fedavg"): classified,
    ("attribute-baselines", "fedavg"): classified,
}
