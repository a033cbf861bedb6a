"""Whole numbers given by users."""

from __future__ import annotations

import operator
from typing import Any

from rlds_cli.errors import InvalidArgument, RldsError


def whole(what: str, value: Any, least: int, error: type[RldsError] = InvalidArgument) -> int:
    """``value`` as an int.

    Raises
    ------
    error
        It is not a whole number of at least ``least``.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < least:
        raise error(f"{what}={value!r} must be an integer of at least {least}.")
    return number


def make_whole(record: Any, name: str, least: int) -> None:
    """Make the field ``name`` of a frozen record a plain int: its repr is part of a loader's state."""
    value = getattr(record, name)
    object.__setattr__(record, name, whole(f"{type(record).__name__}: {name}", value, least))
