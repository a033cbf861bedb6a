"""The user's own episode columns (task, success, operator, ...): one number, flag or text per episode.

They are stored in the episode table beside TED's columns, whose names they must not have. They describe episodes
and are no part of their content, so the fingerprint does not cover them; each has a digest of its own in the manifest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import numpy as np

from rlds_cli.errors import InvalidEpisode
from rlds_cli.store import digests
from rlds_cli.store.names import component
from rlds_cli.ted import EPISODE_COLUMNS, Array, BoolArray, Scalar

MOST_BYTES = 100  # of a name
TEXT = "str"


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A column as it is stored: ``values`` [episodes] and ``missing`` [episodes], True where there is none."""

    dtype: str
    values: Array | list[str | None]
    missing: BoolArray

    def scalar(self, k: int) -> Scalar:
        """The value of episode ``k``; None where it is missing."""
        value = None if self.missing[k] else self.values[k]
        return value.item() if isinstance(value, np.generic) else value

    def scalars(self) -> list[Scalar]:
        """One value per episode, None where it is missing."""
        if isinstance(self.values, list):
            return list(self.values)
        return [None if m else v for v, m in zip(self.values.tolist(), self.missing.tolist(), strict=True)]

    def shown(self) -> Array:
        """The column as users see it: texts as objects; missing values are None, or NaN among numbers (float64)."""
        if isinstance(self.values, list) or (self.dtype == "bool" and self.missing.any()):  # NaN would count as True
            return np.array(self.scalars(), object)
        return np.where(self.missing, np.nan, self.values.astype(np.float64)) if self.missing.any() else self.values

    def digest(self, name: str) -> str:
        """Hash the values and the mask of missing ones."""
        own = digests.column_digest(name, self.values)
        if isinstance(self.values, list) or not self.missing.any():
            return own
        return hashlib.sha256((own + digests.column_digest(f"missing/{name}", self.missing)).encode()).hexdigest()


def check_names(names: Iterable[str], where: str) -> None:
    """Refuse names that TED's own columns have, that no directory can have, or that differ in case only.

    Raises
    ------
    InvalidEpisode
    """
    seen: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str) or not name or name != unquote(component(name)) or len(name.encode()) > MOST_BYTES:
            raise InvalidEpisode(f"{where}: an episode column cannot be called {str(name)[:MOST_BYTES]!r}.")
        if name.lower() in EPISODE_COLUMNS or name.lower().startswith("split/"):
            raise InvalidEpisode(
                f'{where}: "{name}" is an episode column of TED itself.', hint=f'another name, such as "my_{name}"'
            )
        if name.lower() in seen:
            raise InvalidEpisode(f'{where}: episode columns "{seen[name.lower()]}" and "{name}" differ in case only.')
        seen[name.lower()] = name


def scalar(value: Any, name: str, where: str) -> Scalar:
    """Convert one value to a Python scalar; NumPy scalars, and arrays and tensors of one element, are accepted.

    Raises
    ------
    InvalidEpisode
        It is no number, flag or text.
    """
    if hasattr(value, "item") and np.size(value) == 1:  # NumPy's, torch's
        value = value.item()
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InvalidEpisode(
        f'{where}: the episode column "{name}" is a {type(value).__name__}; one number, flag or text is needed.',
        hint="what has a value per step is a field; JSON keeps a structure as a text",
    )


def joint_kind(known: str | None, value: Scalar, name: str, where: str) -> str:
    """The type of a column that was ``known`` so far and has this value too: ``bool``, ``int``, ``float`` or ``str``.

    Whole numbers fit among floats.

    Raises
    ------
    InvalidEpisode
        There is none.
    """
    new = type(value).__name__
    if known in (None, new):
        return new
    if {known, new} == {"int", "float"}:
        return "float"
    raise InvalidEpisode(f'{where}: the episode column "{name}" is {_WORDS[new]} here, {_WORDS[str(known)]} before.')


_WORDS = {"bool": "a flag", "int": "a whole number", "float": "a number", "str": "a text"}


def _kind(values: Sequence[Scalar], name: str) -> str:
    """The type that holds all values; ``float`` where there are none."""
    found: str | None = None
    for k, value in enumerate(values):
        if value is not None:
            found = joint_kind(found, value, name, f"episode {k}")
    return found or "float"


def typed(values: Sequence[Scalar], name: str) -> StoredColumn:
    """The column as it is stored: bool, int64 (uint64 where it must), float64 or texts.

    Raises
    ------
    InvalidEpisode
        Values of several types, or a whole number of more than 64 bits.
    """
    missing = np.array([v is None for v in values], bool)
    what = _kind(values, name)
    if what == "str":
        return StoredColumn(TEXT, [None if v is None else str(v) for v in values], missing)
    if what == "int":
        whole = [v for v in values if isinstance(v, int)]
        dtype = "uint64" if max(whole) > np.iinfo(np.int64).max else "int64"
        limits = np.iinfo(dtype)
        if min(whole) < limits.min or max(whole) > limits.max:
            raise InvalidEpisode(f'the episode column "{name}" has whole numbers of more than 64 bits.')
    else:
        dtype = {"bool": "bool", "float": "float64"}[what]
    filler = np.nan if what == "float" else 0
    return StoredColumn(dtype, np.array([filler if v is None else v for v in values], dtype), missing)


def all_typed(extra: Mapping[str, Sequence[Scalar]]) -> dict[str, StoredColumn]:
    """All columns, by name, after a check of the names."""
    check_names(extra, "the episode table")
    return {name: typed(values, name) for name, values in extra.items()}
