"""Values as people type them, in commands and in cells of CSV files: flags, numbers, null for none, else texts."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlds_cli.errors import RldsError


def value_of(text: str) -> Any:
    """Return true, false, a number or null (None) that is typed, else the text. One in quotes of JSON is a text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float | str | None) else text


def values_of(texts: Sequence[str], *, are_texts: bool = False) -> list[Any]:
    """Return the values of one column: flags or numbers if all of them are, else texts; null stands for None.

    With ``are_texts`` they are texts whatever they read like.
    """
    of = {text: _number_or_value(text) for text in set(texts)}
    read = [of[text] for text in texts]
    kinds = {type(v) for v in read if v is not None}
    if not are_texts and (kinds <= {bool} or kinds <= {int, float}):
        return read
    return [v if v is None or isinstance(v, str) else text for v, text in zip(read, texts, strict=True)]


def _number_or_value(text: str) -> Any:
    return float(text) if text.lower().lstrip("+-") in ("nan", "inf", "infinity") else value_of(text)


def cell_of(value: Any) -> str:
    """Return a value as a cell that `values_of` reads as this value."""
    if isinstance(value, str):
        return (
            value
            if value and value.strip() == value and _number_or_value(value) == value
            else json.dumps(value, ensure_ascii=False)
        )
    return json.dumps(value)


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of a CSV file and the names of its columns, without blanks before cells."""

    file: Path
    names: list[str]
    cells: list[list[str]]

    @classmethod
    def read(cls, file: Path) -> Lines:
        """Read a file with a line for the names of its columns.

        Raises
        ------
        RldsError
            It cannot be read, a column has no name or one that another has, or a line has more or fewer cells.
        """
        try:
            with file.open(newline="", encoding="utf-8-sig") as opened:
                lines = csv.reader(opened, strict=True, skipinitialspace=True)
                names, found = next(lines, []), [cells for cells in lines if cells]
        except (OSError, ValueError, csv.Error) as e:
            raise RldsError(f"{file} cannot be read: {getattr(e, 'strerror', None) or e}.") from e
        if "" in names:
            raise RldsError(
                f"{file}: column {names.index('') + 1} has no name.", hint="pandas: to_csv(..., index=False)"
            )
        if len(set(names)) < len(names):
            raise RldsError(f"{file} has two columns {Counter(names).most_common(1)[0][0]!r}.")
        for line, cells in enumerate(found, 2):
            if len(cells) != len(names):
                kind = "more" if len(cells) > len(names) else "fewer"
                raise RldsError(f"{file}, line {line}: {kind} values than columns.")
        return cls(file, names, found)

    @property
    def rows(self) -> list[dict[str, str]]:
        """The lines, each by the names of its columns."""
        return [dict(zip(self.names, cells, strict=True)) for cells in self.cells]

    @property
    def places(self) -> list[str]:
        """Where each line is, for messages."""
        return [f"{self.file}, line {line}" for line in range(2, len(self.cells) + 2)]

    def column(self, name: str) -> list[str]:
        """Return the cells of a column."""
        place = self.names.index(name)
        return [cells[place] for cells in self.cells]
