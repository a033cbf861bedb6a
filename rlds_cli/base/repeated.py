"""A sequence with one value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import TypeVar, overload

T = TypeVar("T")


class Repeated(Sequence[T]):
    """A column with one value for all episodes, which takes no memory."""

    __slots__ = ("_count", "value")

    def __init__(self, value: T, count: int) -> None:
        self.value, self._count = value, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Repeated[T]: ...
    def __getitem__(self, index: int | slice) -> T | Repeated[T]:
        found = range(self._count)[index]
        return self.value if isinstance(found, int) else Repeated(self.value, len(found))

    def __iter__(self) -> Iterator[T]:
        return repeat(self.value, self._count)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(other) == self._count and all(v == self.value for v in other)

    __hash__ = None  # type: ignore[assignment]
