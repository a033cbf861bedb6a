"""State of each episode of a growing dataset."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

_MANY = 1 << 14  # freed episodes at the beginning that are worth forgetting


class Standing:
    """State of episodes: they are kept, dropped, left, or left and their rows are freed. One byte for each."""

    KEPT, LEFT, FREED, DROPPED = range(4)

    def __init__(self, first: int, stop: int) -> None:
        self._first, self._of = first, bytearray(stop - first)  # all before the first are freed

    def extend(self, stop: int) -> None:
        """Add episodes up to ``stop``, which are kept."""
        self._of.extend(bytes(stop - self._first - len(self._of)))

    def __getitem__(self, number: int) -> int:
        return self.FREED if number < self._first else self._of[number - self._first]

    def is_stored(self, number: int) -> bool:
        """Return whether an episode is kept or dropped."""
        return self[number] in (self.KEPT, self.DROPPED)

    def between(self, first: int, stop: int) -> npt.NDArray[np.uint8]:
        """Return the states of the episodes [first, stop), none of which is before the first."""
        return np.frombuffer(bytes(self._of[first - self._first : stop - self._first]), np.uint8)

    def first_not(self, what: int) -> int:
        """Return the first episode that something else became of; the one behind the last without any."""
        return self._first + len(self._of) - len(self._of.lstrip(bytes([what])))

    def set(self, numbers: Iterable[int], to: int) -> None:
        """Note the states of episodes."""
        for number in numbers:
            if number >= self._first:
                self._of[number - self._first] = to

    def trim(self) -> None:
        """Forget the freed episodes at the beginning, if they are many."""
        freed = self.first_not(self.FREED) - self._first
        if freed > _MANY:
            del self._of[:freed]
            self._first += freed
