"""The built-in datasets: each module here states its own in ``SOURCES``. A new dataset is one new file."""

import importlib
import pkgutil
from collections.abc import Mapping

from fedattack.data.source import Source


def _find_sources() -> list[Source]:
    """Collect what the modules of this folder state, in the order of their positions."""
    sources: list[Source] = []
    for module in pkgutil.iter_modules(__path__):
        sources += importlib.import_module(f"{__name__}.{module.name}").SOURCES
    return sorted(sources, key=lambda source: source.position)


DATASETS: Mapping[str, Source] = {source.name: source for source in _find_sources()}
"""All built-in datasets by name."""
