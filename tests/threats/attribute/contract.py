"""What the tests of every attack run over: a folder with all that it needs, for each protocol that it takes."""

from pathlib import Path

from tests.attribute_federation import write_attribute_run as write_classified
from tests.attributes import write_attribute_run


def write_classified_run(folder: Path) -> Path:
    write_classified(folder)
    return folder


RUNS = {
    ("aia", "fedavg"): write_attribute_run,
    ("ara", "fedavg"): write_classified_run,
    ("attribute-baselines", "fedavg"): write_classified_run,
}
