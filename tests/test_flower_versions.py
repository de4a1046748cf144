"""What is said of versions of Flower is what the matrix tries."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from fedattack.observe._recorder import NEWEST
from tests.flower_versions import VERSIONS

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "fedattack" / "observe" / "RECORD.md").read_text(encoding="utf-8")


def test_the_oldest_and_the_newest_that_are_said_to_work_are_tried():
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (flower,) = (Requirement(line) for line in lines if line.startswith("flwr"))
    oldest, newest = VERSIONS[0], VERSIONS[-1]
    assert f">={oldest.removesuffix('.0')}" in str(flower.specifier)
    assert all(version in flower.specifier for version in VERSIONS)
    assert newest.split(".")[:2] == [str(part) for part in NEWEST]
    assert f"**Flower {oldest.rpartition('.')[0]} to {newest.rpartition('.')[0]}** work" in GUIDE
