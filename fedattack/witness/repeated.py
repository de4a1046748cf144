"""Inputs that go by the place in a batch, and not by the example, such as a list of classes."""

from typing import Any

from numpy.typing import NDArray

from fedattack.base.structured import LABELS, SEPARATOR, fields

# Batches after which numbers that are the same in all of them are no part of the examples.
_FEWEST_BATCHES = 3


class RepeatedInputs:
    """Which inputs of one number a row are the same in all batches of one size, row by row, while others differ."""

    def __init__(self) -> None:
        self._numbers: dict[str, bytes] = {}
        self._batches, self._rows = 0, 0

    def note(self, rows: NDArray[Any]) -> None:
        """Note a batch of examples (n,) of structured type."""
        numbers = {}
        for name in fields(rows):
            values = rows[name]
            is_label = name.split(SEPARATOR)[-1] in LABELS or name.startswith("met")
            # Labels may well be the same in all batches; and a constant says nothing of rows.
            if values.ndim == 1 and not is_label and (values != values[0]).any():
                numbers[name] = values.tobytes()
        if not self._batches:
            self._numbers, self._rows = numbers, len(rows)
        # A last batch that is shorter neither confirms nor refutes.
        if len(rows) == self._rows:
            self._numbers = {name: known for name, known in self._numbers.items() if numbers.get(name) == known}
            self._batches += 1

    @property
    def rows(self) -> int:
        """How many rows such a batch has."""
        return self._rows

    def names(self) -> list[str]:
        """Name them, once enough batches were seen."""
        return [*self._numbers] if self._batches >= _FEWEST_BATCHES else []
