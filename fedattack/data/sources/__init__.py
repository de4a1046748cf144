"""The datasets: each module here states its own in ``SOURCES``, and so does another package, by an entry point.

A new dataset is one new file.
"""

from fedattack.base.registry import Registry, stated_in
from fedattack.data.source import Source


def _find_built_in() -> list[Source]:
    return sorted(stated_in(__name__, "SOURCES"), key=lambda source: int(source.position))


DATASETS: Registry[Source] = Registry("fedattack.datasets", Source, _find_built_in)
"""By name, the built-in ones in the order of their positions."""
