"""Read CSV and JSON lines as columns: one row per line, types inferred from the whole file.

A first pass over a CSV file finds the type that fits all values of a column: whole numbers, else flags, else numbers,
else JSON lists (``"[0.1, 0.2]"``, as pandas writes them), else texts. The types of JSON lines are unified over all
blocks of the file. Whole numbers that would be rounded are refused.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rlds_cli.errors import UnknownLayout, UnsafeArchive
from rlds_cli.formats import text_numbers
from rlds_cli.formats.arrow_tables import ArrowFile, from_row, leaves, pyarrow, reading

CSV, JSON_LINES = (".csv", ".tsv"), (".jsonl", ".ndjson")
BLOCK_BYTES = 8 << 20
MAX_LINE = 32 << 20
MAX_COLUMNS = 1 << 12
MAX_HEAD = 16 << 20  # of the first line, by which a file is recognised
DELIMITERS = ",\t;"

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\Z)', re.DOTALL)
_LISTS = "lists"


def is_csv(path: Path) -> bool:
    """Return whether a file is named as CSV, and begins with a line of at least two names."""
    return path.suffix.lower() in CSV and len(_header(path)) > 1


def is_json_lines(path: Path) -> bool:
    """Return whether a file is named as JSON lines, and its first line is an object."""
    if path.suffix.lower() not in JSON_LINES:
        return False
    try:
        return isinstance(json.loads(_first_line(path)), dict)
    except (ValueError, RecursionError):
        return False


@contextmanager
def open_text(path: Path, *, fill: bool = False) -> Iterator[ArrowFile]:
    """Open CSV or JSON lines for reading; ``fill`` as in ``ArrowFile``.

    Raises
    ------
    CorruptArchive
        A line is not CSV or JSON.
    UnknownLayout
        A column of JSON lines holds values of several kinds.
    """
    pyarrow()
    if path.suffix.lower() in CSV:
        with reading(path, "CSV"):
            yield _csv(path, fill)
    else:
        with reading(path, "JSON lines"):
            yield _json_lines(path, fill)


# -- CSV


def _csv(path: Path, fill: bool) -> ArrowFile:
    pa = pyarrow()
    delimiter = _delimiter(_first_line(path))
    names = _header(path)
    if len(names) > MAX_COLUMNS:
        raise _too_wide(path, len(names))
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise UnknownLayout(f'{path.name} has two columns named "{twice}".', hint="rename one of them in the header")
    names = [n for n in names if n]  # pandas writes its index under no name
    kinds, rows, mixed = _csv_kinds(path, names, delimiter)
    schema = pa.schema([(n, kinds[n]) for n in names])

    def batches(wanted: Sequence[str] | None) -> Iterator[Any]:
        for batch in _csv_batches(path, [n for n in names if wanted is None or n in wanted], kinds, delimiter):
            columns = [_listed(path, c, kinds[n]) for n, c in zip(batch.schema.names, batch.columns, strict=True)]
            yield pa.record_batch(columns, names=batch.schema.names)

    found = ArrowFile(path, schema, rows, lambda wanted, start: from_row(batches(wanted), start), fill=fill)
    found.mixed = mixed
    return found


def _csv_batches(path: Path, names: Sequence[str], kinds: dict[str, Any], delimiter: str) -> Iterator[Any]:
    pa = pyarrow()
    types = {n: pa.string() if _is_listed(kinds.get(n)) else kinds.get(n, pa.string()) for n in names}
    return iter(
        pa.csv.open_csv(
            path,
            read_options=pa.csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
            parse_options=pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(column_types=types, include_columns=list(names)),
        )
    )


def _csv_kinds(
    path: Path, names: Sequence[str], delimiter: str
) -> tuple[dict[str, Any], int, dict[str, text_numbers.Mixed]]:
    """The type of every column, which fits all of its values, the number of rows, and texts among numbers."""
    pa = pyarrow()
    candidates = {n: [pa.int64(), pa.uint64(), pa.bool_(), pa.float64(), _LISTS] for n in names}
    cells = {n: text_numbers.Cells() for n in names}
    lists: dict[str, Any] = {}
    rows = 0
    for batch in _csv_batches(path, names, {}, delimiter):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            present = pa.compute.invert(pa.compute.is_in(column, value_set=_nulls()))
            values = column.filter(present)
            candidates[name] = [c for c in candidates[name] if _can_be(path, values, c, name, lists)]
            cells[name].add(column, present, rows, numeric=pa.float64() in candidates[name])
        rows += len(batch)
    kinds = {n: _chosen(c, lists.get(n)) for n, c in candidates.items()}
    for name, kind in kinds.items():
        if _is_float(kind) and (wrong := cells[name].rounded) is not None:
            raise text_numbers.rounded(path, name, *wrong)
    texts = {n: cells[n].mixed() for n, kind in kinds.items() if kind == pa.string()}
    return kinds, rows, {n: found for n, found in texts.items() if found is not None}


def _is_float(kind: Any) -> bool:
    return kind is not _LISTS and bool(pyarrow().types.is_floating(kind))


def _chosen(candidates: Sequence[Any], listed: Any) -> Any:
    pa = pyarrow()
    if not candidates:
        return pa.string()
    return listed if candidates[0] is _LISTS and listed is not None else candidates[0]


def _can_be(path: Path, values: Any, kind: Any, name: str, lists: dict[str, Any]) -> bool:
    pa = pyarrow()
    if not len(values):
        return True
    if kind is _LISTS:
        if not pa.compute.all(pa.compute.starts_with(values, "[")).as_py():
            return False
        try:
            found = _parsed(path, values).type
            lists[name] = (
                pa.unify_schemas(
                    [pa.schema([("x", found)]), pa.schema([("x", lists.get(name, found))])],
                    promote_options="permissive",
                )
                .field("x")
                .type
            )
        except pa.ArrowException:
            return False
        return True
    if kind == pa.bool_() and not pa.compute.all(pa.compute.is_in(values, value_set=_flags())).as_py():
        return False
    try:
        pa.compute.cast(values, kind)
    except pa.ArrowException:
        return False
    return True


def _nulls() -> Any:
    pa = pyarrow()
    return pa.array(pa.csv.ConvertOptions().null_values)


def _flags() -> Any:
    return pyarrow().array(["True", "False", "true", "false", "TRUE", "FALSE"])


def _is_listed(kind: Any) -> bool:
    return kind is not None and bool(pyarrow().types.is_list(kind))


def _listed(path: Path, column: Any, kind: Any) -> Any:
    """Parse a column of JSON lists; other columns stay as they are."""
    pa = pyarrow()
    if not _is_listed(kind):
        return column
    nulls = pa.compute.is_in(column, value_set=_nulls())
    return _parsed(path, pa.compute.if_else(nulls, "null", column), kind)


def _parsed(path: Path, values: Any, kind: Any = None) -> Any:
    pa = pyarrow()
    text = "".join(f'{{"x":{" ".join(v.splitlines())}}}\n' for v in values.to_pylist()).encode()
    schema = None if kind is None else pa.schema([("x", kind)])
    options = pa.json.ParseOptions(explicit_schema=schema)
    table = pa.json.read_json(io.BytesIO(text), parse_options=options, read_options=_json_block(len(text)))
    return table.column("x").combine_chunks()


def _header(path: Path) -> list[str]:
    import csv

    line = _first_line(path)
    return next(csv.reader([line], delimiter=_delimiter(line)), [])


def _delimiter(line: str) -> str:
    """The separator that is most frequent in the header."""
    return max(DELIMITERS, key=line.count)


def _first_line(path: Path) -> str:
    try:
        with path.open("rb") as f:
            return f.readline(MAX_HEAD).decode("utf-8-sig", "replace").rstrip("\r\n")
    except OSError:
        return ""


# -- JSON lines


def _json_lines(path: Path, fill: bool) -> ArrowFile:
    pa = pyarrow()
    schema, rows, long = pa.schema([]), 0, text_numbers.LongIntegers()
    for block in _blocks(path):
        try:
            found = _json(block, None)
            long.add(block, rows)
            rows += len(found)
            schema = pa.unify_schemas([schema, found.schema], promote_options="permissive")
            if (count := sum(map(_width, schema.types))) > MAX_COLUMNS:
                raise _too_wide(path, count)
        except pa.ArrowException as e:
            if not isinstance(e, pa.ArrowTypeError) and "changed from" not in str(e):
                raise
            raise UnknownLayout(f"{path.name} has a column with values of several kinds: {e}") from e
    schema = pa.schema([pa.field(f.name, _without_times(f.type)) for f in schema])
    schema = _exact(path, schema, long.found)

    def batches(wanted: Sequence[str] | None) -> Iterator[Any]:
        chosen = schema if wanted is None else pa.schema([f for f in schema if f.name in wanted])
        for block in _blocks(path):
            yield from map(partial(_all_columns, chosen), _json(block, chosen).to_batches())

    return ArrowFile(path, schema, rows, lambda wanted, start: from_row(batches(wanted), start), fill=fill)


def _exact(path: Path, schema: Any, long: Mapping[str, tuple[int, str]]) -> Any:
    """Give columns of unsigned integers their type; refuse floats that would round one of the integers ``long``."""
    pa = pyarrow()
    kinds = {name: kind for f in schema for name, kind in leaves(f)}
    wrong = {name for name in long if name in kinds and pa.types.is_floating(_element(kinds[name]))}
    if not wrong:
        return schema
    whole = text_numbers.unsigned(_blocks(path), {n for n in wrong if "/" not in n and not _is_nested(kinds[n])})
    for name in sorted(wrong - whole):
        raise text_numbers.rounded(path, name, *long[name])
    return pa.schema([pa.field(f.name, pa.uint64()) if f.name in whole else f for f in schema])


def _is_nested(kind: Any) -> bool:
    return bool(pyarrow().types.is_nested(kind))


def _element(kind: Any) -> Any:
    """The type of the numbers in lists."""
    while pyarrow().types.is_list(kind):
        kind = kind.value_type
    return kind


def _json(block: bytes, schema: Any) -> Any:
    """A block of lines as a table, with the columns of a schema where there is one."""
    pa = pyarrow()
    unexpected = "infer" if schema is None else "ignore"
    options = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected)
    return pa.json.read_json(io.BytesIO(block), parse_options=options, read_options=_json_block(len(block)))


def _all_columns(schema: Any, batch: Any) -> Any:
    pa = pyarrow()
    return pa.record_batch([batch.column(f.name) for f in schema], schema=schema)


def _json_block(size: int) -> Any:
    return pyarrow().json.ReadOptions(use_threads=False, block_size=max(size + 1, 1 << 10))


def _without_times(kind: Any) -> Any:
    """Replace time types by text: pyarrow infers them from texts that look like dates."""
    pa = pyarrow()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _without_times(f.type)) for f in kind])
    return pa.string() if pa.types.is_timestamp(kind) else kind


def _too_wide(path: Path, count: int) -> UnsafeArchive:
    return UnsafeArchive(f"{path.name} has {count:,} columns or more; at most {MAX_COLUMNS:,} are read.")


def _width(kind: Any) -> int:
    """Return the number of columns that a type makes."""
    return sum(_width(f.type) for f in kind) if pyarrow().types.is_struct(kind) else 1


def _blocks(path: Path) -> Iterator[bytes]:
    """The file in blocks of whole lines; blank blocks are left out."""
    with path.open("rb") as f:
        rest = b""
        while data := f.read(BLOCK_BYTES):
            head, newline, tail = data.rpartition(b"\n")
            if not newline:
                rest += data
                if len(rest) > MAX_LINE:
                    raise UnsafeArchive(f"{path.name} has a line of more than {MAX_LINE:,} bytes.")
                continue
            if (block := rest + head + newline).strip():
                yield block
            rest = tail
        if rest.strip():
            yield rest + b"\n"
