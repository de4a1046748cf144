"""Put watching functions into the place of a framework's own, so that they can be taken out again."""

import functools
from collections.abc import Callable
from typing import Any


class Hooks:
    """What one source has put into its framework."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], Any]] = []

    @property
    def are_in(self) -> bool:
        """Whether there are any."""
        return bool(self._undo)

    def add(self, undo: Callable[[], Any]) -> None:
        """Note what takes one out again."""
        self._undo.append(undo)

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Put something else into the place of an attribute."""
        self.add(functools.partial(setattr, owner, name, getattr(owner, name)))
        setattr(owner, name, new)

    def remove(self) -> None:
        """Take all out."""
        # The latest first: where an attribute was replaced twice, what it was in the beginning comes back last.
        while self._undo:
            self._undo.pop()()
