"""Values of JSON texts at an address, checked: a stranger may have written them. Each raises ValueError."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rlds_cli.errors import DamagedDataset, NewerFormat, RldsError

_SHA = re.compile(r"[0-9a-f]{64}")
_FINGERPRINT = re.compile(r"rlds1:[0-9a-f]{64}")


@contextmanager
def refused(where: str, why: str) -> Iterator[None]:
    """Turn errors of a block that reads a text into DamagedDataset; NewerFormat passes."""
    try:
        yield
    except NewerFormat:
        raise
    except (ValueError, RldsError) as e:
        what = e.message.rstrip(".") if isinstance(e, RldsError) else str(e)
        raise DamagedDataset(f"{where} {why}: {what}. Nothing was written.") from e


def check_format(value: Any, format: int, name: str, where: str) -> None:
    """Raise NewerFormat if a text has a later format than this version reads."""
    if type(value) is not int or value < 1:
        raise ValueError(f"no member {name}")
    if value > format:
        raise NewerFormat(
            f"{where} has format {str(value)[:40]}; this version reads up to {format}.",
            hint="pip install --upgrade rlds-cli",
        )


def members(value: Any, count: int, what: str) -> list[Any]:
    """Return a list of ``count`` values."""
    if not isinstance(value, list) or len(value) != count:
        raise ValueError(f"{what} that is not a list of {count}")
    return value


def items(value: Any, most: int, what: str) -> list[Any]:
    """Return a list of at most ``most`` values."""
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"{what} that are not a list, or more than {most:,}")
    return value


def number(value: Any, limit: int, what: str) -> int:
    """Return an integer in [0, limit)."""
    if type(value) is not int or not 0 <= value < limit:
        raise ValueError(f"{str(value)[:40]} is not {what}")
    return value


def sha256(value: Any) -> str:
    """Return a sha256 in hexadecimal digits."""
    if not isinstance(value, str) or not _SHA.fullmatch(value):
        raise ValueError(f"{str(value)[:80]!r} is not a sha256")
    return value


def fingerprint(value: Any) -> str:
    """Return a fingerprint."""
    if not isinstance(value, str) or not _FINGERPRINT.fullmatch(value):
        raise ValueError("an invalid fingerprint")
    return value


def text(value: Any, what: str) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise ValueError(f"no {what}")
    return value
