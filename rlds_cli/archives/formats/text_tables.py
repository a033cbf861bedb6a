"""Read CSV and JSON lines as columns: one row per line, types inferred from the whole file.

A first pass over a CSV file finds the type that fits all values of a column: whole numbers, else flags, else numbers,
else JSON lists (``"[0.1, 0.2]"``, as pandas writes them), else texts. The types of JSON lines are unified over all
blocks of the file. Whole numbers that would be rounded are refused. Blanks around cells and names do not belong to them
(``a, b``), unless they are inside of quotes. A file that has not changed since is not scanned
again, since an import opens it a dozen times. A small file of plain decimals is read without pyarrow, whose calls take
ten times as long as its lines.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives.formats import text_numbers
from rlds_cli.archives.formats.arrow_tables import ArrowFile, from_row, leaves, pyarrow, reading
from rlds_cli.base.files import child, disk
from rlds_cli.errors import CorruptArchive, UnknownLayout, UnsafeArchive

CSV, JSON_LINES, JSON = (".csv", ".tsv"), (".jsonl", ".ndjson"), (".json",)
BLOCK_BYTES = 8 << 20
MAX_LINE = 32 << 20
MAX_COLUMNS = 1 << 12
MAX_HEAD = 16 << 20  # of the first line, by which a file is recognised
DELIMITERS = ",\t;"

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?|nan|true|false|\[.*\]", re.IGNORECASE)
_FILE = re.compile(r"\.(jpe?g|png|mp4|avi|mkv|npy|npz)$", re.IGNORECASE)
_BATCHES = (b'"SampleBatch"', b'"MultiAgentBatch"')  # of RLlib
_SMALL, _SMALL_ONES = 1 << 14, 1 << 11  # bytes of a file that is kept in memory, and the number of such files
_SCANS = 1 << 12  # files of which the types are remembered: an import may have thousands
_SHORTEST = 5  # bytes of a key and its value
_FEW = 16  # values that are tried first
# Of the numbers in a small file, which are read alike by everyone: none is rounded, and none overflows.
_DECIMAL = rb"-?\d{1,15}(?:\.\d{1,20}(?:[eE][-+]?\d{1,2})?)?"


def is_csv(path: Path) -> bool:
    """Return whether a file is named as CSV, and begins with a line of at least two names."""
    return path.suffix.lower() in CSV and len(_header(path)) > 1


def is_json_lines(path: Path) -> bool:
    """Return whether a file is named as JSON lines, and its first line is an object.

    RLlib and Ray name such files ``.json``: then the second line begins as an object, too, or the first says that it is
    a batch.
    """
    suffix = path.suffix.lower()
    if suffix not in (*JSON_LINES, *JSON) or (suffix in JSON and not _has_lines(path)):
        return False
    try:
        return isinstance(json.loads(_first_line(path)), dict)
    except (ValueError, RecursionError):
        return False


def _has_lines(path: Path) -> bool:
    """Tell by the edges of its first line whether a file may be one of objects in lines."""
    try:
        with path.open("rb") as f:
            first = f.readline(MAX_HEAD)
            more = f.read(1) == b"{"
    except OSError:
        return False
    whole = first.startswith(b"{") and first.rstrip().endswith(b"}")
    return whole and (more or any(kind in first for kind in _BATCHES))


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
    child.note(path)
    if path.suffix.lower() in CSV:
        with reading(path, "CSV"):
            yield _csv(path, fill)
    else:
        with reading(path, "JSON lines"):
            yield _json_lines(path, fill)


def schema(path: Path) -> Any:
    """The columns of a file, by a scan of all of it that is remembered; raises as `open_text`."""
    if path.suffix.lower() in CSV:
        with reading(path, "CSV"):
            return _scan(path, disk.state(path)).schema
    with reading(path, "JSON lines"):
        return _json_scan(path, disk.state(path))[0]


def unnamed(path: Path) -> int:
    """Count the columns of a CSV file that have no name, and so are not read."""
    return _header(path).count("") if path.suffix.lower() in CSV else 0


# -- CSV


@dataclass(frozen=True)
class _Scan:
    """The columns of a CSV file: the type of each, the number of rows, and texts among numbers."""

    kinds: Mapping[str, Any]
    rows: int
    mixed: Mapping[str, text_numbers.Mixed]
    delimiter: str
    has_decimals: bool = False  # and nothing else, see `_decimals`

    @cached_property
    def schema(self) -> Any:
        """The columns, as Arrow describes them."""
        return pyarrow().schema(list(self.kinds.items()))


@lru_cache(_SCANS)
def _scan(path: Path, state: disk.State) -> _Scan:
    line = _first_line(path)
    delimiter, names = _delimiter(line), _names(line)
    if len(names) > MAX_COLUMNS:
        raise _too_wide(path, len(names))
    if len(set(names)) < len(names):
        _check_header(path, names, {})
        twice = next(n for n in names if names.count(n) > 1)
        raise UnknownLayout(f'{path.name} has two columns named "{twice}".', hint="rename one of them in the header")
    if state[2] <= _SMALL and (decimals := _decimals(path, state, delimiter, tuple(names))) is not None:
        kinds = dict(zip(decimals.schema.names, decimals.schema.types, strict=True))
        _check_header(path, names, kinds)
        return _Scan(kinds, len(decimals), {}, delimiter, has_decimals=True)
    names = [n for n in names if n]  # pandas writes its index under no name
    columns = {n: _Column(path, n) for n in names}
    rows = 0
    for batch in _csv_batches(path, names, None, delimiter):
        for name, values in zip(batch.schema.names, batch.columns, strict=True):
            columns[name].add(values, rows)
        rows += len(batch)
    mixed = {n: found for n, c in columns.items() if (found := c.mixed()) is not None}
    kinds = {n: c.kind() for n, c in columns.items()}
    _check_header(path, names, kinds)
    return _Scan(kinds, rows, mixed, delimiter)


def _check_header(path: Path, names: Sequence[str], kinds: Mapping[str, Any]) -> None:
    """Refuse a first line of values: it has numbers above numbers, or names of files, and no word above numbers.

    pandas numbers columns without names, so that a header of 0, 1, 2, ... is one.
    """
    numbers = [n for n in names if _NUMBER.fullmatch(n.strip())]
    files = [n for n in names if _FILE.search(n.strip())]
    is_numbered = numbers in ([str(k) for k in range(a, a + len(names))] for a in (0, 1))
    texts = [n for n in names if n and n not in numbers]
    above_numbers = [n for n in texts if n in kinds and kinds[n] != pyarrow().string()]
    if (numbers or files) and not is_numbered and not above_numbers and (files or 2 * len(numbers) >= len(names)):
        raise UnknownLayout(
            f"{path.name} has no header: its first line holds values ({', '.join(names)[:100]}), which would be lost.",
            hint=f"add a line of names: sed -i '1i NAME,NAME,...' {path}",
        )


def _csv(path: Path, fill: bool) -> ArrowFile:
    state = disk.state(path)
    found = _scan(path, state)

    def batches(wanted: Sequence[str] | None) -> Iterator[Any]:
        names = [n for n in found.kinds if wanted is None or n in wanted]
        if state[2] <= _SMALL and not any(map(_is_listed, found.kinds.values())):
            return (batch.select(names) for batch in _small(path, state))
        return _typed(path, names, found)

    file = ArrowFile(path, found.schema, found.rows, lambda wanted, start: from_row(batches(wanted), start), fill=fill)
    file.mixed = found.mixed
    return file


@lru_cache(_SMALL_ONES)
def _small(path: Path, state: disk.State) -> tuple[Any, ...]:
    """Return all of a small file: an import reads it several times, and a line takes less time than opening it."""
    found = _scan(path, state)
    if found.has_decimals and (decimals := _decimals(path, state, found.delimiter, tuple(found.kinds))) is not None:
        return (decimals,)
    return tuple(_typed(path, [*found.kinds], found))


@lru_cache(_SMALL_ONES)
def _decimals(path: Path, state: disk.State, delimiter: str, names: tuple[str, ...]) -> Any:
    """Return all rows of a small file as a record batch; None if a cell is none of `_DECIMAL`, or a column unnamed."""
    with path.open("rb") as f:
        data = f.read(_SMALL + 1).partition(b"\n")[2]
    if not data or "" in names or _lines_of_decimals(delimiter, len(names)).fullmatch(data) is None:
        return None
    pa, cells = pyarrow(), delimiter.join(data.decode().split()).split(delimiter)
    columns: list[Any] = []
    for k in range(len(names)):
        texts = cells[k :: len(names)]
        kind: Any = float if "." in "".join(texts) else int
        columns.append(pa.array(np.array([*map(kind, texts)], kind)))
    return pa.record_batch(columns, names=[*names])


@lru_cache
def _lines_of_decimals(delimiter: str, count: int) -> re.Pattern[bytes]:
    mark = re.escape(delimiter).encode()
    line = rb"%b(?:%b%b){%d}" % (_DECIMAL, mark, _DECIMAL, count - 1)
    return re.compile(rb"(?:%b\r?\n)*%b(?:\r?\n)?" % (line, line))


def _typed(path: Path, names: Sequence[str], found: _Scan) -> Iterator[Any]:
    """Yield record batches of some columns, of the types that fit all of their values."""
    pa = pyarrow()
    for batch in _csv_batches(path, names, found.kinds, found.delimiter):
        columns = [_listed(path, c, found.kinds[n]) for n, c in zip(batch.schema.names, batch.columns, strict=True)]
        yield pa.record_batch(columns, names=batch.schema.names)


def _csv_batches(path: Path, names: Sequence[str], kinds: Mapping[str, Any] | None, delimiter: str) -> Iterator[Any]:
    """Yield record batches of some columns; without ``kinds``, as texts and nulls."""
    pa = pyarrow("csv")
    known = kinds or {}
    types = {n: pa.string() if _is_listed(known.get(n)) else known.get(n, pa.string()) for n in names}
    file = _Stripped(path, delimiter) if _has_blanks(path, disk.state(path), delimiter) else path
    return iter(
        pa.csv.open_csv(
            file,
            read_options=pa.csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
            parse_options=pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(
                column_types=types, include_columns=list(names), strings_can_be_null=kinds is None
            ),
        )
    )


@dataclass(slots=True)
class _Column:
    """The types that fit all values of a column so far."""

    path: Path
    name: str
    whole: Any = None  # int64 or uint64: the type that fitted so far
    is_whole: bool = True
    is_negative: bool = False
    is_flag: bool = True
    is_number: bool = True
    is_list: bool = True
    listed: Any = None  # the type of the lists
    cells: text_numbers.Cells = field(default_factory=text_numbers.Cells)

    def add(self, column: Any, start: int) -> None:
        """Look at the texts of a block, without those that stand for no value; ``start`` is its first row."""
        values = column.drop_null() if column.null_count else column
        if not len(values):
            return
        numbers = self._whole(values) if self.is_whole else None
        self.is_whole = numbers is not None
        if numbers is None and self.is_number:
            numbers = _cast(values, pyarrow().float64())
        self.is_number &= numbers is not None
        flags = numbers is None and self.is_flag and _are_flags(values)
        self.is_flag &= flags
        self.is_list = self.is_list and numbers is None and not flags and self._add_lists(values)
        self.cells.add(column, start, numbers if self.is_number else None, none=flags)

    def _whole(self, values: Any) -> Any:
        pa = pyarrow("compute")
        found = None if self.whole == pa.uint64() else _cast(values, pa.int64())
        if found is not None:
            self.is_negative |= pa.compute.min(found).as_py() < 0
        elif not self.is_negative and (found := _cast(values, pa.uint64())) is not None:
            self.whole = pa.uint64()
        # 0x1F is whole, but not a decimal number: a column of both is one of texts.
        self.is_number &= found is None or not pa.compute.any(pa.compute.match_substring(values, "x")).as_py()
        return found

    def _add_lists(self, values: Any) -> bool:
        pa = pyarrow("compute")
        if not pa.compute.all(pa.compute.starts_with(values, "[")).as_py():
            return False
        try:
            found = pa.schema([("x", _parsed(self.path, values).type)])
            before = found if self.listed is None else pa.schema([("x", self.listed)])
            self.listed = pa.unify_schemas([found, before], promote_options="permissive").field("x").type
        except pa.ArrowException:
            return False
        return True

    def kind(self) -> Any:
        """Return the type of the column; raises UnknownLayout if it would round one of its integers."""
        pa = pyarrow()
        if self.is_whole:
            return self.whole or pa.int64()
        if self.is_flag:
            return pa.bool_()
        if self.is_number and self.cells.rounded is not None:
            raise text_numbers.rounded(self.path, self.name, *self.cells.rounded)
        if self.is_number:
            return pa.float64()
        return self.listed if self.is_list else pa.string()

    def mixed(self) -> text_numbers.Mixed | None:
        """Return the numbers in a column of texts, if there are any."""
        return self.cells.mixed() if self.kind() == pyarrow().string() else None


def _cast(values: Any, kind: Any) -> Any:
    """Convert texts to numbers; None if one of them is not a number of this kind."""
    pa = pyarrow("compute")
    if pa.types.is_integer(kind) and "." in values[0].as_py():
        return None  # as of most columns, at once
    try:
        pa.compute.cast(values.slice(0, _FEW), kind)  # pyarrow makes a message for every value that is none
        return pa.compute.cast(values, kind)
    except pa.ArrowException:
        return None


def _are_flags(values: Any) -> bool:
    pa = pyarrow("compute")
    return bool(pa.compute.all(pa.compute.is_in(values, value_set=_flags())).as_py())


def _nulls() -> Any:
    pa = pyarrow("csv")
    return pa.array(pa.csv.ConvertOptions().null_values)


def _flags() -> Any:
    return pyarrow().array(["True", "False", "true", "false", "TRUE", "FALSE"])


def _is_listed(kind: Any) -> bool:
    return kind is not None and bool(pyarrow().types.is_list(kind))


def _listed(path: Path, column: Any, kind: Any) -> Any:
    """Parse a column of JSON lists; other columns stay as they are."""
    pa = pyarrow("compute")
    if not _is_listed(kind):
        return column
    nulls = pa.compute.is_in(column, value_set=_nulls())
    return _parsed(path, pa.compute.if_else(nulls, "null", column), kind)


def _parsed(path: Path, values: Any, kind: Any = None) -> Any:
    pa = pyarrow("json")
    text = "".join(f'{{"x":{" ".join(v.splitlines())}}}\n' for v in values.to_pylist()).encode()
    schema = None if kind is None else pa.schema([("x", kind)])
    options = pa.json.ParseOptions(explicit_schema=schema)
    table = pa.json.read_json(io.BytesIO(text), parse_options=options, read_options=_json_block(len(text)))
    return table.column("x").combine_chunks()


def _header(path: Path) -> list[str]:
    return _names(_first_line(path))


def _names(line: str) -> list[str]:
    """Return the names in the first line of a CSV file."""
    import csv

    delimiter = _delimiter(line)
    line = _strip(line.encode(), delimiter).decode()
    return next(csv.reader([line], delimiter=delimiter), [])


@lru_cache(_SCANS)
def _has_blanks(path: Path, state: disk.State, delimiter: str) -> bool:
    """Return whether there are blanks beside delimiters or line ends, in quotes or not."""
    mark = delimiter.encode()
    beside = (mark + b" ", b" " + mark, b"\n ", b" \n", b" \r", b"\r ")
    last = b"\n"
    with path.open("rb") as f:
        while data := f.read(BLOCK_BYTES):
            if any(pair in last + data for pair in beside):
                return True
            last = data[-1:]
    return last == b" "


@lru_cache
def _edges(delimiter: str) -> re.Pattern[bytes]:
    """A pattern of a quoted cell and the blanks around it, or of blanks at the edge of another cell."""
    start, end = rf"(?:^|(?<=[{delimiter}\r]))", rf"(?=[{delimiter}\r\n]|\Z)"
    cell = rf'{start} *("(?:[^"]|"")*") *{end}|{start} +|(?<! ) +{end}'
    return re.compile(cell.encode(), re.MULTILINE)


def _strip(lines: bytes, delimiter: str) -> bytes:
    """Remove the blanks around cells; those inside of quotes stay."""
    return _edges(delimiter).sub(rb"\1", lines)


class _Stripped(io.RawIOBase):
    """A CSV file without the blanks around its cells."""

    def __init__(self, path: Path, delimiter: str) -> None:
        self._blocks = _stripped(path, delimiter)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest and (block := next(self._blocks, None)) is not None:
            self._rest = memoryview(block)
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


def _stripped(path: Path, delimiter: str) -> Iterator[bytes]:
    """The file in blocks of whole lines, none of which ends inside of quotes."""
    with path.open("rb") as f:
        while block := f.read(BLOCK_BYTES):
            while block[-1:] != b"\n" or block.count(b'"') % 2:
                line = f.readline(MAX_LINE)
                if not line:
                    break
                block += line
                if len(block) > BLOCK_BYTES + MAX_LINE:
                    raise UnsafeArchive(
                        f"{path.name} has a line of more than {MAX_LINE:,} bytes, or a quote that does not end."
                    )
            yield _strip(block, delimiter)


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
    columns, rows = _json_scan(path, disk.state(path))

    def batches(wanted: Sequence[str] | None) -> Iterator[Any]:
        chosen = columns if wanted is None else pa.schema([f for f in columns if f.name in wanted])
        for block in _blocks(path):
            yield from map(partial(_all_columns, chosen), _json(block, chosen).to_batches())

    return ArrowFile(path, columns, rows, lambda wanted, start: from_row(batches(wanted), start), fill=fill)


@lru_cache(_SCANS)
def _json_scan(path: Path, state: disk.State) -> tuple[Any, int]:
    """Return the schema of all lines, and the number of rows."""
    pa = pyarrow()
    schema, rows, long = pa.schema([]), 0, text_numbers.LongIntegers()
    for block in _blocks(path):
        _check_keys(path, block)
        try:
            found = _json(block, None)
            long.add(block, rows)
            rows += len(found)
            schema = pa.unify_schemas([schema, found.schema], promote_options="permissive")
            if (count := sum(map(_width, schema.types))) > MAX_COLUMNS:
                raise _too_wide(path, count)
        except pa.ArrowException as e:
            if not isinstance(e, pa.ArrowTypeError) and "changed from" not in str(e):
                _check_lines(path)
                raise
            raise UnknownLayout(f"{path.name} has a column with values of several kinds: {e}") from e
    schema = pa.schema([pa.field(f.name, _without_times(f.type)) for f in schema])
    return _exact(path, schema, long.found), rows


def _check_lines(path: Path) -> None:
    """Refuse the first line that is not JSON; pyarrow counts from the start of a block."""
    with path.open("rb") as f:
        for number, line in enumerate(iter(partial(f.readline, MAX_LINE), b""), 1):
            try:
                json.loads(line if line.strip() else b"{}")
            except (ValueError, RecursionError) as e:
                raise CorruptArchive(
                    f"{path.name}: line {number:,} is not JSON, or is cut short: {e}.",
                    hint=f"fetch or write {path} again, or delete the line",
                ) from e


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
    pa = pyarrow("json")
    unexpected = "infer" if schema is None else "ignore"
    options = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected)
    return pa.json.read_json(io.BytesIO(block), parse_options=options, read_options=_json_block(len(block)))


def _all_columns(schema: Any, batch: Any) -> Any:
    pa = pyarrow()
    return pa.record_batch([batch.column(f.name) for f in schema], schema=schema)


def _json_block(size: int) -> Any:
    return pyarrow("json").json.ReadOptions(use_threads=False, block_size=max(size + 1, 1 << 10))


def _without_times(kind: Any) -> Any:
    """Replace time types by text: pyarrow infers them from texts that look like dates."""
    pa = pyarrow()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _without_times(f.type)) for f in kind])
    return pa.string() if pa.types.is_timestamp(kind) else kind


def _too_wide(path: Path, count: int) -> UnsafeArchive:
    return UnsafeArchive(f"{path.name} has {count:,} columns or more; at most {MAX_COLUMNS:,} are read.")


def _check_keys(path: Path, block: bytes) -> None:
    """Refuse a line with more keys than columns are read, before pyarrow makes a column of each."""
    for line in block.splitlines() if len(block) > _SHORTEST * MAX_COLUMNS else ():
        if len(line) > _SHORTEST * MAX_COLUMNS and line.count(b":") > MAX_COLUMNS:
            try:
                count = _leaves(json.loads(line))
            except (ValueError, RecursionError):
                return  # pyarrow says what is wrong
            if count > MAX_COLUMNS:
                raise _too_wide(path, count)


def _leaves(value: Any) -> int:
    return sum(map(_leaves, value.values())) if isinstance(value, dict) else 1


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
