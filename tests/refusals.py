"""What a user is told where something is refused: one line."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def refused(error: type[Exception] | tuple[type[Exception], ...], message: str) -> Iterator[None]:
    """Expect that what is done within is refused by an error whose message matches, in one line."""
    with pytest.raises(error, match=message) as caught:
        yield
    assert "\n" not in str(caught.value)
