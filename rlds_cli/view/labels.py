"""Which labels a page offers, with their choices and keys: of a file `labels.toml`, or the usual ones.

::

    guideline = "An episode succeeds if the cup stands at its end."

    [[label]]
    name = "success"
    choices = [true, false]
    keys = "yf"

    [[label]]
    name = "note"               # without choices: a text
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlds_cli.base.files import safe
from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument

Value = bool | int | float | str

# Keys that labels may have: those of the player and of decisions are others.
KEYS = "123456789fhmqruvwy"
_LARGEST = 1 << 16  # bytes of a file
_MOST_LABELS, _MOST_CHOICES, _LONGEST, _LONGEST_GUIDELINE = 12, 24, 200, 8000
_OF_FLAGS: Mapping[bool, str] = {True: "y", False: "f"}
_TYPES: Mapping[type, str] = {bool: "bool", int: "number", float: "number", str: "str"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A value of a label, and the key that chooses it; "" for none."""

    value: Value
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A column of episodes that a page sets: one of ``choices``, or any text without them."""

    name: str
    choices: tuple[Choice, ...] = ()

    @property
    def type(self) -> str:
        """The type of its values: ``bool``, ``number`` or ``str``."""
        return _TYPES[type(self.choices[0].value)] if self.choices else "str"

    def takes(self, value: object) -> bool:
        """Return whether this is one of its values; None takes a label away."""
        if value is None or not self.choices:
            return value is None or (isinstance(value, str) and len(value) <= _LONGEST_GUIDELINE)
        return any(type(c.value) is type(value) and c.value == value for c in self.choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The labels that a page offers, in order, and what an annotator should know of them.

    ``file`` says where they are described; those that are the usual ones say where a file may be, ``beside``.
    """

    labels: tuple[Label, ...]
    guideline: str = ""
    file: str | None = None
    beside: str | None = None

    def __getitem__(self, name: str) -> Label:
        """Return a label; raises InvalidArgument if there is none of this name."""
        found = next((label for label in self.labels if label.name == name), None)
        if found is None:
            names = ", ".join(label.name for label in self.labels)
            raise InvalidArgument(f"{name[:_LONGEST]} is not a label of this page.", hint=f"labels: {names}")
        return found

    def fitting(self, ds: Dataset) -> Labels:
        """Return those that a dataset can hold: columns that it has keep their types.

        Raises
        ------
        InvalidArgument
            One that a file names is of another type than the column.
        """
        wrong = {label.name: dtype for label in self.labels if (dtype := _misfit(label, ds))}
        for name, dtype in wrong.items() if self.file else ():
            raise InvalidArgument(f"{self.file}: {name} has values of type {dtype} in {ds.id}, and other choices here.")
        return replace(self, labels=tuple(label for label in self.labels if label.name not in wrong))


USUAL = Labels(
    labels=(
        Label(name="success", choices=(Choice(value=True, key="y"), Choice(value=False, key="f"))),
        Label(name="quality", choices=tuple(Choice(value=k, key=str(k)) for k in range(1, 6))),
        Label(
            name="failure",
            choices=(
                Choice(value="missed", key="6"),
                Choice(value="dropped", key="7"),
                Choice(value="collision", key="8"),
                Choice(value="recording", key="9"),
            ),
        ),
        Label(name="note"),
    )
)


def read_labels(path: Path) -> Labels:
    """Read a file of labels: a regular file, and no link.

    Raises
    ------
    InvalidArgument
        It cannot be read, or says something that is not understood.
    """
    try:
        with safe.reading(path) as file:
            text = file.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise ValueError(f"it has more than {_LARGEST:,} bytes")
        given = tomllib.loads(text.decode())
    except (OSError, ValueError) as e:
        raise InvalidArgument(f"The labels in {path} cannot be read: {e}.") from e
    try:
        return _labels(given, path)
    except ValueError as e:
        raise InvalidArgument(
            f"{path}: {e}.",
            hint='a label is [[label]] with name = "...", choices = [...] of one type, or none for texts, keys = "..."',
        ) from e


def _labels(given: Mapping[str, Any], path: Path) -> Labels:
    _known(given, ("guideline", "label"), "the file")
    guideline, tables = given.get("guideline", ""), given.get("label", [])
    if not isinstance(guideline, str) or len(guideline) > _LONGEST_GUIDELINE:
        raise ValueError(f"guideline is not a text of at most {_LONGEST_GUIDELINE:,} characters")
    if not isinstance(tables, list) or not 1 <= len(tables) <= _MOST_LABELS:
        raise ValueError(f"it has no list of 1 to {_MOST_LABELS} labels")
    labels = [_label(table, k) for k, table in enumerate(tables, 1)]
    names = [label.name for label in labels]
    keys = [c.key for label in labels for c in label.choices if c.key]
    for what, of in (("label", names), ("key", keys)):
        if twice := {x for x in of if of.count(x) > 1}:
            raise ValueError(f"two have the {what} {min(twice)}")
    return Labels(labels=tuple(_with_keys(labels, set(keys))), guideline=guideline.strip(), file=str(path))


def _label(table: object, number: int) -> Label:
    if not isinstance(table, dict):
        raise ValueError(f"label {number} is not a table")
    _known(table, ("name", "choices", "keys"), f"label {number}")
    name, choices, keys = table.get("name"), table.get("choices", []), table.get("keys", "")
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST:
        raise ValueError(f"label {number} has no name")
    if not isinstance(choices, list) or len(choices) > _MOST_CHOICES or len({type(c) for c in choices}) > 1:
        raise ValueError(f"the choices of {name} are not a list of at most {_MOST_CHOICES} values of one type")
    if not all(_is_choice(c) for c in choices):
        raise ValueError(f"the choices of {name} are not flags, numbers or texts")
    if len(set(choices)) < len(choices):
        raise ValueError(f"{name} has a choice twice")
    if not isinstance(keys, str) or len(keys) not in (0, len(choices)) or not set(keys) <= set(KEYS):
        raise ValueError(f"the keys of {name} are not one for each choice, out of {KEYS}")
    return Label(name=name, choices=tuple(Choice(value=c, key=keys[k] if keys else "") for k, c in enumerate(choices)))


def _is_choice(value: object) -> bool:
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return type(value) in _TYPES and value != "" and len(str(value)) <= _LONGEST


def _known(table: Mapping[str, object], names: Sequence[str], what: str) -> None:
    if other := table.keys() - set(names):
        raise ValueError(f"{what} says {min(other)}; it may say {', '.join(names)}")


def _with_keys(labels: Sequence[Label], taken: set[str]) -> Iterator[Label]:
    """Yield labels whose choices have a key each, as long as there are any: a digit, or a letter of the text."""
    for label in labels:
        choices = list[Choice]()
        for choice in label.choices:
            key = choice.key or next((k for k in _preferred(choice.value) if k in KEYS and k not in taken), "")
            taken.add(key)
            choices.append(replace(choice, key=key))
        yield replace(label, choices=tuple(choices))


def _preferred(value: Value) -> str:
    own = _OF_FLAGS[value] if isinstance(value, bool) else str(value).lower()
    return (own if len(own) == 1 or isinstance(value, str) else "") + KEYS


def _misfit(label: Label, ds: Dataset) -> str | None:
    """Return the type of the values that a column has, if this label has others."""
    if label.name not in ds.store.own_columns:
        return None
    dtype: str = ds.store.own_column(label.name).dtype
    return dtype if {"bool": "bool", "str": "str"}.get(dtype, "number") != label.type else None
