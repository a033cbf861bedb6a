"""Decisions as tables: CSV files and DataFrames, a row for each, and columns for the labels.

::

    id,do,first,stop,text,success,quality,by,time,version,comment
    0f3a...,,,,,true,3,ann,2026-03-01T09:30:00+00:00,3,            labels
    91c2...,drop,,,,,,ann,2026-03-01T09:30:04+00:00,3,blurred
    77b0...,keep,12,90,,,null,bob,2026-03-01T10:02:11+00:00,3,     steps 12 to 89 stay; its quality is taken away

An empty cell changes nothing, ``null`` takes a label away (or what is said of steps, as the text of a subtask).
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.base import cells
from rlds_cli.base.cells import Lines
from rlds_cli.dataset.decisions.decision import Decision
from rlds_cli.errors import InvalidArgument, RldsError
from rlds_cli.store import Store

_REVIEWS = "reviews"
_OWN = (*Decision.NAMES, _REVIEWS)
_NUMBERS = ("first", "stop", "version")


def read_file(file: Path, store: Store) -> list[Decision]:
    """Read the decisions of a CSV file; labels are texts whatever they read like if they are texts in the dataset.

    Raises
    ------
    RldsError
        The file cannot be read, has no column ``id`` or no line below; or a line cannot be understood: the message has
        its number and the value.
    """
    lines = Lines.read(file)
    if "id" not in lines.names:
        raise RldsError(
            f"{file} has no column id; it has {lines.names}.",
            hint="the id of an episode, 32 hexadecimal digits: a number names another one once some are dropped",
        )
    if not lines.cells:
        raise RldsError(f"{file} has no decisions: there is no line below the names of its columns.")
    columns = {
        name: {k: cell for k, text in enumerate(lines.column(name)) if (cell := text.strip())} for name in lines.names
    }
    return _of_columns(columns, lines.places, store)


def of_frame(frame: Any, store: Store) -> list[Decision]:
    """Return the decisions of a pandas.DataFrame with the columns of a file. NaN, None and NaT are empty cells.

    A column of texts is read as that of a file. Whole numbers in a column that has empty cells, which pandas made
    floats of, become whole again.

    Raises
    ------
    InvalidArgument
        A row cannot be understood; the message has its number.
    """
    if "id" not in frame.columns:
        raise InvalidArgument(f"The DataFrame has no column id; it has {', '.join(map(str, frame.columns))}.")
    columns = {str(name): _cells(frame[name]) for name in frame.columns}
    return _of_columns(columns, [f"row {k} of the DataFrame" for k in range(len(frame))], store)


def _cells(column: Any) -> dict[int, Any]:
    """Return the cells of a column of a DataFrame that are not empty, by the numbers of their rows."""
    there, values = column.notna().to_numpy(bool), column.to_numpy(object)
    read = {k: _python(values[k]) for k in np.flatnonzero(there).tolist()}
    found = {k: v.strip() if isinstance(v, str) else v for k, v in read.items()}
    found = {k: v for k, v in found.items() if not _is_empty(v)}
    floats = [v for v in found.values() if isinstance(v, float)]
    if len(floats) == len(found) < len(values) and all(v.is_integer() for v in floats):
        return {k: int(v) for k, v in found.items()}
    return found


def _of_columns(columns: Mapping[str, Mapping[int, Any]], places: Sequence[str], store: Store) -> list[Decision]:
    """Return the decision of each row; ``columns`` have the cells that are not empty, ``places`` name the rows."""
    own = ((n, store.own_column(n)) for n in store.own_columns)
    texts = {n for n, column in own if column.dtype == "str" and not column.missing.all()}
    labels = {name: _labels(of, name in texts) for name, of in columns.items() if name not in _OWN}
    members = {name: _numbers(of) if name in _NUMBERS else of for name, of in columns.items() if name in _OWN}
    given = members.get("text", {})
    tasks = {k: given.get(k, "") for k, do in members.get("do", {}).items() if do == "subtask"}
    if given or tasks:
        members["text"] = {**given, **{k: None if text == "null" else text for k, text in tasks.items()}}
    try:
        return Decision.of_columns(len(places), members, labels)
    except InvalidArgument:  # by rows, so that the first one with a wrong value is named
        rows = ({**_row(members, k), "labels": _row(labels, k)} for k in range(len(places)))
        return list(_all(rows, places))


def _row(columns: Mapping[str, Mapping[int, Any]], k: int) -> dict[str, Any]:
    return {name: of[k] for name, of in columns.items() if k in of}


def _labels(given: Mapping[int, Any], are_texts: bool) -> dict[int, Any]:
    """Return the values of a label by the numbers of their rows."""
    if set(map(type, given.values())) <= {str}:
        return dict(zip(given, cells.values_of(list(given.values()), are_texts=are_texts), strict=True))
    return {k: None if isinstance(v, str) and v == "null" else v for k, v in given.items()}


def _numbers(given: Mapping[int, Any]) -> dict[int, Any]:
    """Return the numbers of a member; an invalid one stays a text, which is refused then."""
    return {
        k: int(text) if isinstance(text, str) and text.isascii() and text.isdecimal() else text
        for k, text in given.items()
    }


def _with_text(given: dict[str, Any]) -> dict[str, Any]:
    """Put None in the place of ``null`` in the text of a subtask; one without a text is refused."""
    if given.get("do") != "subtask":
        return given
    text = given.get("text", "")
    return {**given, "text": None if text == "null" else text}


def of_records(records: Iterable[Decision | Mapping[str, Any]]) -> list[Decision]:
    """Return the decisions of records, each a `Decision`, its `record`, or a mapping with labels beside its members.

    In such a mapping NaN and an empty text are empty cells, and None takes a label away.

    Raises
    ------
    InvalidArgument
        One cannot be understood; the message has its number.
    """
    listed = list(records)
    made = [d if isinstance(d, Decision) else _spread(d) for d in listed]
    return list(_all(made, (f"decision {k}" for k in range(len(listed)))))


def _spread(record: Any) -> Any:
    """Put what is beside the members of a record into its labels."""
    if not isinstance(record, Mapping):
        return record
    said = {str(name): _python(value) for name, value in record.items()}
    said = {name: value for name, value in said.items() if not _is_empty(value)}
    labels = said.pop("labels", {})
    beside = {name: value for name, value in said.items() if name not in _OWN}
    own = {n: v for n, v in said.items() if n in _OWN and (v is not None or n == "text")}
    return {**_with_text(own), "labels": {**beside, **labels} if isinstance(labels, Mapping) else labels}


def _is_empty(value: Any) -> bool:
    return (isinstance(value, str) and value == "") or (isinstance(value, float) and math.isnan(value))


def _python(value: Any) -> Any:
    """Return a value of NumPy or pandas as Python has it."""
    value = value.item() if isinstance(value, np.generic) else value
    return value.isoformat() if isinstance(value, datetime) else value


def _all(made: Iterable[Any], places: Iterable[str]) -> Iterator[Decision]:
    for record, where in zip(made, places, strict=True):
        try:
            yield Decision.of(record)
        except InvalidArgument as e:
            raise InvalidArgument(f"{where}: {e.message}", hint=e.hint) from e


def as_csv(decisions: Sequence[Decision]) -> str:
    """Return decisions as the text of a CSV file, which `read_file` reads as these decisions."""
    labels = dict.fromkeys(name for d in decisions for name in d.labels)
    names = [
        *Decision.NAMES[:5],
        *labels,
        *Decision.NAMES[5:],
        *([_REVIEWS] if any(d.reviews for d in decisions) else []),
    ]
    out = io.StringIO()
    writer = csv.writer(out)  # which quotes a carriage return only if it ends lines, as RFC 4180 has it
    writer.writerow(names)
    for d in decisions:
        said = {name: value for name, value in d.record().items() if name in _OWN}
        said |= {"text": "null"} if d.do == "subtask" and d.text is None else {}
        said |= {name: cells.cell_of(value) for name, value in d.labels.items()}
        writer.writerow(said.get(name, "") for name in names)
    return out.getvalue()
