"""Arguments that are integers."""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex

from rlds_cli.errors import InvalidArgument, RldsError


def integer(what: str, value: Any, least: int, error: type[RldsError] = InvalidArgument) -> int:
    """Return the argument ``what`` as an int.

    Raises
    ------
    error
        ``value`` is not an integer of at least ``least``.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < least:
        raise error(f"{what}={value!r} must be an integer of at least {least}.")
    return number


def set_integer(record: Any, name: str, least: int) -> None:
    """Turn the field ``name`` of a frozen record into a plain int: its repr is part of a loader's state."""
    value = getattr(record, name)
    object.__setattr__(record, name, integer(f"{type(record).__name__}: {name}", value, least))


def within(index: SupportsIndex, count: int, what: str) -> int:
    """Return a number from 0 on, given one that may count from the end."""
    number = operator.index(index)
    if not -count <= number < count:
        raise IndexError(f"no number {number:,} of the {count:,} {what}")
    return number % count
