"""Hooks are taken out again after each test, so that other tests run without."""

import pytest

from fedattack.witness import sources


@pytest.fixture(autouse=True)
def hooked():
    yield
    sources.remove()
