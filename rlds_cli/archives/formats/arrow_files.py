"""Arrow's files, streams, and directories of streams, as tables of record batches that are mapped as they are.

::

    rows.arrow                             a file (Feather is one), or a stream
    rows/                                  a directory that ``Dataset.save_to_disk`` of the datasets library writes:
    rows/data-00000-of-00002.arrow         shards, which are streams,
    rows/data-00001-of-00002.arrow
    rows/state.json                        their names in the order of the rows,
    rows/dataset_info.json                 and what the dataset is
    splits/dataset_dict.json               the names of splits, each a directory as above beside it
    splits/train/...  splits/test/...

The end of a stream is marked; one without the mark has lost its last rows, and is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from rlds_cli.archives.formats import git_lfs
from rlds_cli.archives.formats.arrow_tables import ArrowFile, from_row, pyarrow, reading
from rlds_cli.base.files import child
from rlds_cli.base.files import json as documents
from rlds_cli.base.files.bundles import INFO, STATE, is_saved_table, state_of
from rlds_cli.base.text import plural
from rlds_cli.errors import CorruptArchive, UnknownLayout, UnsafeArchive

MAGIC = b"ARROW1"
STREAM, END = b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\0\0\0\0"
SPLITS = "dataset_dict.json"
BATCH_ROWS, BATCH_BYTES = 1 << 13, 32 << 20  # of rows that are read together, of which a file may have any number
_MOST_SCHEMA = 64 << 20  # bytes of the first message of a stream
_KEPT = 1 << 10  # tables of which shards, schema and rows are remembered: an import opens each a dozen times


def is_arrow(path: Path) -> bool:
    """Return whether a path is an Arrow file or stream, or a directory of streams that is a table."""
    return is_between(path, MAGIC) or is_stream(path) or is_saved_table(path)


def is_between(path: Path, magic: bytes) -> bool:
    """Return whether a file begins and ends with ``magic``."""
    try:
        with path.open("rb") as f:
            head = f.read(len(magic))
            f.seek(-len(magic), 2)
            return head == f.read() == magic
    except OSError:
        return False


def is_stream(path: Path) -> bool:
    """Return whether a file begins as Arrow's streams do: a mark, and the length of a schema that it has room for."""
    try:
        with path.open("rb") as f:
            head = f.read(8)
            if len(head) < 8 or head[:4] != STREAM:
                return False
            (length,) = struct.unpack("<i", head[4:])
            return bool(0 < length <= min(_MOST_SCHEMA, f.seek(0, 2) - 8))
    except OSError:
        return False


@contextmanager
def open_arrow(path: Path, *, fill: bool = False) -> Iterator[ArrowFile]:
    """Open a table for reading; ``fill`` as of ``ArrowFile``.

    Raises
    ------
    CorruptArchive
        Damage, a stream without its end, or shards that are not those of one table.
    MissingPackage
        pyarrow is not installed.
    """

    def chosen(names: Sequence[str] | None, start: int) -> Iterator[Any]:
        rows = max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, found.row_bytes))) if names is not None else 1
        for batch in _gathered(batches(path, names, start), rows):
            step = rows if names is not None else max(1, len(batch))
            yield from (batch.slice(at, step) for at in range(0, len(batch), step))

    with reading(path, "Arrow"):
        found = ArrowFile(path, schema(path), count(path), chosen, fill=fill)
        found.described = described(path)
        yield found


def _gathered(batches: Iterator[Any], rows: int) -> Iterator[Any]:
    """Join small record batches, as a log has that was written step by step, to some of about ``rows`` rows."""
    some: list[Any] = []
    count = 0
    for batch in batches:
        some.append(batch)
        count += len(batch)
        if count >= rows:
            yield from _joined(some)
            some, count = [], 0
    yield from _joined(some)


def _joined(some: Sequence[Any]) -> Sequence[Any]:
    if len(some) < 2:
        return some
    found: Sequence[Any] = pyarrow().Table.from_batches(some).combine_chunks().to_batches()
    return found


def schema(path: Path) -> Any:
    """The columns of a table; raises as `open_arrow`."""
    with reading(path, "Arrow"):
        return _looked_at(path, state_of(path))[0]


def count(path: Path) -> int:
    """The number of rows of a table."""
    with reading(path, "Arrow"):
        return sum(_looked_at(path, state_of(path))[1].values())


def batches(path: Path, columns: Sequence[str] | None = None, start: int = 0) -> Iterator[Any]:
    """The record batches of some top-level columns of a table, from a row on, in order, checked in full."""
    for shard, rows in _looked_at(path, state_of(path))[1].items():
        child.note(shard)
        if start < rows or not rows:
            with _opened(shard, columns) as found:
                for batch in from_row(found.batches(), start):
                    batch.validate(full=True)
                    yield batch
        start = max(0, start - rows)


@lru_cache(_KEPT)
def _looked_at(path: Path, state: tuple[int, int, int]) -> tuple[Any, Mapping[Path, int]]:
    """Return the columns of a table, and the rows of each of its shards, in order."""
    found: dict[Path, int] = {}
    schema: Any = None
    for shard in shards(path):
        child.note(shard)
        with reading(shard, "Arrow"), _opened(shard) as table:
            found[shard] = table.count()
            if schema is not None and not schema.equals(table.reader.schema):
                raise CorruptArchive(
                    f"{path.name}: {shard.name} and {next(iter(found)).name} do not have the same columns.",
                    hint="they are shards of two datasets; save the dataset again",
                )
            schema = table.reader.schema
    return schema, found


class _Opened:
    """An open file or stream: its batches in order, and the number of its rows."""

    def __init__(self, reader: Any, source: Any) -> None:
        self.reader, self._source = reader, source

    @property
    def _is_file(self) -> bool:
        return hasattr(self.reader, "num_record_batches")

    def batches(self) -> Iterator[Any]:
        if self._is_file:
            yield from map(self.reader.get_batch, range(self.reader.num_record_batches))
        else:
            yield from self.reader

    def count(self) -> int:
        if self._is_file:
            return int(self.reader.count_rows())
        return sum(len(batch) for batch in self.reader)  # no value is copied


@contextmanager
def _opened(path: Path, columns: Sequence[str] | None = None) -> Iterator[_Opened]:
    pa = pyarrow()
    opens = pa.ipc.open_file if is_between(path, MAGIC) else pa.ipc.open_stream
    with pa.memory_map(str(path)) as source:
        if opens is pa.ipc.open_stream:
            _check_end(path, source)
        with opens(source) as reader:
            if columns is None:
                yield _Opened(reader, source)
                return
            some = [i for i, name in enumerate(reader.schema.names) if name in columns]
        source.seek(0)
        with opens(source, options=pa.ipc.IpcReadOptions(included_fields=some)) as reader:
            yield _Opened(reader, source)


def _check_end(path: Path, source: Any) -> None:
    """Refuse a stream without its end: rows behind the last whole batch would be lost without a word."""
    source.seek(max(0, source.size() - len(END)))
    ended = source.read() == END
    source.seek(0)
    if not ended:
        raise CorruptArchive(
            f"{path.name} is an Arrow stream without its end: it is being written, or was cut.",
            hint=f"fetch or write {path} again; pyarrow.ipc.open_stream reads the batches before, for rlds_cli.create",
        )


# -- directories of the datasets library


def shards(path: Path) -> tuple[Path, ...]:
    """Return the files of a table in the order of its rows: of a directory, those that ``state.json`` names.

    Raises
    ------
    CorruptArchive
        ``state.json`` names files that are not there, or no Arrow streams.
    UnsafeArchive
        It names files elsewhere.
    UnknownLayout
        Its rows are a choice among those of the files.
    """
    if not is_saved_table(path):
        return (path,)
    said = _document(path / STATE)
    listed = said.get("_data_files")
    listed = listed if isinstance(listed, list) else []
    names = [f["filename"] for f in listed if isinstance(f, dict) and isinstance(f.get("filename"), str)]
    if not names or len(names) < len(listed):
        raise CorruptArchive(f"{path.name}/{STATE} does not name the files of a dataset.", hint="save it again")
    if chosen := next((key for key in ("_indices_files", "_indices_data_files") if said.get(key)), None):
        raise UnknownLayout(
            f"{path.name}/{STATE} has {chosen}: the rows of the dataset are a choice among those of its files.",
            hint=f"datasets.load_from_disk({str(path)!r}).flatten_indices().save_to_disk(DIR) writes them alone",
        )
    if odd := next((name for name in names if Path(name).name != name or name in ("", ".", "..")), None):
        raise UnsafeArchive(f"{path.name}/{STATE} names a file elsewhere: {odd!r}.")
    if len(set(names)) < len(names):
        raise CorruptArchive(f"{path.name}/{STATE} names a file twice.", hint="save the dataset again")
    found = tuple(path / name for name in names)
    if lost := [file.name for file in found if not file.is_file()]:
        raise CorruptArchive(
            f"{path.name}/{STATE} names {plural(len(lost), 'file')} that {'is' if len(lost) == 1 else 'are'} not "
            f"there: {lost[0]}.",
            hint="fetch the directory again",
        )
    git_lfs.check(found)
    if odd := next((f.name for f in found if not (is_stream(f) or is_between(f, MAGIC))), None):
        raise CorruptArchive(f"{path.name}/{odd} is no Arrow stream.", hint="fetch or save the directory again")
    return found


def described(path: Path) -> dict[str, str]:
    """Return what the directory of a table says of it: the text of ``dataset_info.json``, by its name."""
    if not is_saved_table(path):
        return {}
    _document(path / INFO)
    return {INFO: (path / INFO).read_text(encoding="utf-8")}


def split_of(path: Path) -> str | None:
    """Return the name of the split that a table is, by the document of the splits beside its directory.

    Raises
    ------
    UnknownLayout
        The document does not name it.
    """
    document = path.parent / SPLITS
    if not is_saved_table(path) or not document.is_file():
        return None
    names = split_names(document)
    if path.name not in names:
        raise UnknownLayout(
            f"{document} names the splits {', '.join(names)}, and not {path.name}.",
            hint="name the directories of the splits that are meant; an earlier save may have left others",
        )
    return path.name


def split_names(document: Path) -> list[str]:
    """Return the names of the splits of a dataset; raises CorruptArchive."""
    names = _document(document).get("splits")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise CorruptArchive(f"{document} does not name the splits of a dataset.", hint="save it again")
    return names


def _document(path: Path) -> dict[str, Any]:
    try:
        said = documents.load(path)
    except ValueError as e:
        raise CorruptArchive(f"{path.parent.name}/{path.name} is not JSON: {e}", hint="save it again") from e
    if not isinstance(said, dict):
        raise CorruptArchive(f"{path.parent.name}/{path.name} does not describe a dataset.", hint="save it again")
    return said
