"""Zarr stores of others, format 2 and 3, in a directory or a zip: read by a list of codecs.

::

    buffer.zarr/data/img/.zarray  0.0.0.0  1.0.0.0      format 2: a document and its chunks
    buffer.zarr/data/img/zarr.json  c/0/0/0/0           format 3
    buffer.zarr.zip                                     the same names, as members

A directory that is a store is one file of an archive. A document of a stranger may name any codec that is installed,
and that of pickles runs code. So every document is compared with `CODECS` before zarr reads it, and a store that names
another codec is refused. No link is followed. Chunks that are not there are read as the fill value, as zarr reads them;
`ZarrArray.missing` counts them.
"""

from __future__ import annotations

import math
import os
import stat
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives.formats import image_columns
from rlds_cli.archives.formats.text_tables import MAX_COLUMNS
from rlds_cli.base.array_types import Array
from rlds_cli.base.files import child, disk, trees
from rlds_cli.base.files import json as documents
from rlds_cli.base.files.bundles import DOCUMENTS, is_record, is_store, state_of
from rlds_cli.errors import CorruptArchive, MissingPackage, RldsError, UnknownLayout, UnsafeArchive

ATTRIBUTES = ".zattrs"
CODECS = frozenset(
    ("blosc", "zlib", "gzip", "zstd", "lz4", "bz2", "lzma", "shuffle", "delta", "crc32", "vlen-utf8", "vlen-bytes")
)
IMAGES: Mapping[str, str] = {"imagecodecs_jpeg": "jpeg", "imagecodecs_png": "png"}  # kept as they are
DECODED = ("imagecodecs_jpegxl",)  # by the package imagecodecs; no field holds JPEG-XL
_OF_FORMAT_3 = frozenset(("bytes", "transpose", "crc32c", "sharding_indexed"))  # beside those above
_PREFIX = "numcodecs."  # of codecs of format 2 in documents of format 3
_TEXTS, _BYTES = ("string", "fixed_length_utf32"), ("bytes", "variable_length_bytes")
_HELD = "biufcSUO"  # kinds of dtypes that fields hold
_MOST_FILES = 1 << 21
_MOST_CHUNK = 1 << 30  # bytes of a chunk, which is decoded as a whole
_MOST_VALUES = 1 << 48
_MOST_NESTED = 4  # codecs of a shard within codecs
_KEPT = 1 << 8  # stores whose documents are remembered: an import opens every file several times
_MAGIC = b"PK\x03\x04"
_AGAIN = "fetch or write it again; its content cannot be used"


@dataclass(frozen=True, slots=True)
class ZarrArray:
    """An array of a store.

    Attributes
    ----------
    dtype : np.dtype
        ``object`` for texts; opaque for bytes of any length, and for images that are the chunks themselves.
    why : str
        Why no field can hold its values; empty for others.
    chunk : int
        The rows of a chunk, or of a shard.
    image : str or None
        The codec of images that are kept as they are: each is a chunk.
    separator : str
        Between the numbers of a chunk's name in format 2, of which there are ``dimensions``.
    missing : int
        Chunks that are not there, of ``chunks``.
    """

    name: str
    format: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk: int
    chunks: int
    missing: int
    separator: str
    dimensions: int
    image: str | None = None
    needs: str = ""  # a package that decodes it
    why: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of all values, where they have a size."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class ZarrContents:
    """What the documents of a store say: its arrays, and the attributes of groups and arrays by path."""

    arrays: Mapping[str, ZarrArray]
    attributes: Mapping[str, Mapping[str, Any]]

    def described(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the attributes, each with its path and a slash; nothing stands before those of the root."""
        yield from ((f"{path}/" if path else "", said) for path, said in self.attributes.items())


def is_zarr(path: Path) -> bool:
    """Return whether a path is a store: a directory, or a zip with a document at its root."""
    if path.is_dir():
        return is_store(path)
    if not path.name.lower().endswith(".zip"):
        return False
    try:
        return _is_zip_store(path, disk.state(path))
    except OSError:
        return False


@lru_cache(_KEPT)
def _is_zip_store(path: Path, state: disk.State) -> bool:
    with path.open("rb") as f:
        if f.read(len(_MAGIC)) != _MAGIC:
            return False
    try:
        with zipfile.ZipFile(path) as f:
            return any(name in f.NameToInfo for name in DOCUMENTS)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return False


@contextmanager
def open_zarr(path: Path) -> Iterator[ZarrStore]:
    """Open a store for reading, and refuse what no trustworthy store has.

    Raises
    ------
    UnsafeArchive
        A codec that is not in `CODECS`, a link, or shapes and chunks beyond all bounds.
    CorruptArchive
        A document or a chunk that is damaged.
    MissingPackage
        Its images need the package imagecodecs.
    """
    child.note(path)
    contents = contents_of(path)
    with _damage(path, "it"), nullcontext() if path.is_dir() else zipfile.ZipFile(path) as members:
        store = ZarrStore(path, contents, members)
        try:
            yield store
        finally:
            store.close()


def contents_of(path: Path) -> ZarrContents:
    """Return what the documents of a store say; raises as `open_zarr`."""
    with _damage(path, "it"):
        return _contents(path, state_of(path))


class ZarrStore:
    """An open store as a source of columns."""

    def __init__(self, path: Path, contents: ZarrContents, members: zipfile.ZipFile | None) -> None:
        self.path, self.contents = path, contents
        self._zip = members
        self._store: Any = None

    def close(self) -> None:
        """Close the files."""
        if self._store is not None:
            self._store.close()

    def rows(self, names: Collection[str]) -> ZarrRows:
        """Return a reader of the rows of some arrays."""
        return ZarrRows(self, sorted(names))

    def array(self, name: str, *, most: int = _MOST_CHUNK) -> Array:
        """Read a whole array that is small."""
        a = self.contents.arrays[name]
        if a.nbytes > most:
            raise UnsafeArchive(f"{self.path.name}: {name} has {a.nbytes:,} bytes; at most {most:,} are read at once.")
        with _damage(self.path, name):
            return _plain(self.open(name)[...], a)

    def open(self, name: str) -> Any:
        """Open an array with zarr, whose document has been checked."""
        import zarr  # takes half a second
        from zarr.storage import LocalStore, ZipStore

        a = self.contents.arrays[name]
        if a.needs:
            _register(a, self.path)
        if self._store is None:
            self._store = LocalStore(self.path, read_only=True) if self._zip is None else ZipStore(self.path, mode="r")
        return zarr.open_array(self._store, path=name, mode="r", zarr_format=a.format)

    def chunk_of(self, a: ZarrArray, row: int) -> bytes | None:
        """Return the bytes of the chunk of a row, which has one chunk; None if it is not there."""
        key = a.separator.join(map(str, (row, *(0,) * (a.dimensions - 1))))
        name = f"{a.name}/{key}" if a.name else key
        if self._zip is None:
            file = self.path / name
            return file.read_bytes() if file.is_file() else None
        return self._zip.read(name) if name in self._zip.NameToInfo else None


class ZarrRows:
    """Rows of several arrays of a store, in order; the chunks read last are kept."""

    def __init__(self, store: ZarrStore, names: Collection[str]) -> None:
        self._store = store
        self._arrays = {name: store.contents.arrays[name] for name in names}
        self._opened = {name: None if a.image else store.open(name) for name, a in self._arrays.items()}
        self._kept: dict[str, tuple[int, Array]] = {}

    def __enter__(self) -> ZarrRows:
        return self

    def __exit__(self, *exc: object) -> None:
        self._kept.clear()

    def read(self, start: int, stop: int) -> dict[str, Array]:
        """Return rows ``start`` to ``stop`` of every array."""
        return {name: self._read(a, start, min(stop, a.shape[0])) for name, a in self._arrays.items()}

    def _read(self, a: ZarrArray, start: int, stop: int) -> Array:
        start = min(start, stop)
        if a.image:
            return np.array([*(self._store.chunk_of(a, row) for row in range(start, stop)), None], object)[:-1]
        first, kept = self._kept.get(a.name, (0, None))
        if kept is None or not first <= start <= stop <= first + len(kept):
            # Whole chunks: one that is read in pieces would be decoded for each of them.
            first = start // a.chunk * a.chunk
            last = min(a.shape[0], -(-stop // a.chunk) * a.chunk)
            with _damage(self._store.path, a.name):
                kept = _plain(self._opened[a.name][first:last], a)  # type: ignore[index]
            self._kept[a.name] = first, kept
        return kept[start - first : stop - first]


def _plain(values: Any, a: ZarrArray) -> Array:
    """Return values in the machine's byte order; texts as an object array of str."""
    found = np.asarray(values)
    if a.dtype == object:
        return np.array([*map(str, found.reshape(-1)), None], object)[:-1].reshape(found.shape)
    return found.astype(found.dtype.newbyteorder("="), copy=False)


@contextmanager
def _damage(path: Path, what: str) -> Iterator[None]:
    """Turn the errors of zarr, of codecs and of zips into CorruptArchive."""
    try:
        yield
    except (RldsError, MemoryError):
        raise
    except (RuntimeError, ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile) as e:
        if isinstance(e, OSError) and e.errno is not None:
            raise
        said = " ".join(str(e).split())[:200]
        raise CorruptArchive(f"{path.name}: {what} cannot be read: {said or type(e).__name__}.", hint=_AGAIN) from e


def _register(a: ZarrArray, path: Path) -> None:
    """Make the codecs of imagecodecs known to numcodecs."""
    try:
        from imagecodecs.numcodecs import register_codecs
    except ImportError:
        raise MissingPackage(
            f"{path.name}: {a.name} holds JPEG-XL images, which the package imagecodecs decodes.",
            hint="pip install 'rlds-cli[jpegxl]'",
        ) from None
    register_codecs(codecs=list(DECODED), verbose=False)


# -- documents


@lru_cache(_KEPT)
def _contents(path: Path, state: tuple[int, int, int]) -> ZarrContents:
    """Read all documents of a store, and check them."""
    found, counts = _of_directory(path) if path.is_dir() else _of_zip(path)
    arrays, attributes = dict[str, ZarrArray](), dict[str, Mapping[str, Any]]()
    for name, text in sorted(found.items()):
        directory, _, document = name.rpartition("/")
        try:
            d = documents.loads(text)
        except ValueError as e:
            raise CorruptArchive(f"{path.name}: {name} is not JSON: {e}.", hint=_AGAIN) from e
        if not isinstance(d, dict):
            raise CorruptArchive(f"{path.name}: {name} is {type(d).__name__}; an object expected.", hint=_AGAIN)
        said = d if document == ATTRIBUTES else d.get("attributes") if document == "zarr.json" else None
        if isinstance(said, dict) and said:
            attributes[directory] = said
        if document == ".zarray" or (document == "zarr.json" and d.get("node_type") == "array"):
            arrays[directory] = _array(path, directory, d, counts)
    if len(arrays) > MAX_COLUMNS:
        raise UnsafeArchive(f"{path.name} has {len(arrays):,} arrays; at most {MAX_COLUMNS:,} are read.")
    return ZarrContents(arrays, attributes)


def _of_directory(path: Path) -> tuple[dict[str, bytes], Counter[str]]:
    """Return the documents of a store by name, and the number of other files below each directory."""
    found, counts = dict[str, bytes](), Counter[str]()
    above = len(os.path.join(path, ""))  # noqa: PTH118  (a Path has no slash at its end)
    for n, entry in enumerate(trees.below(path, strict=True)):
        name = entry.path[above:]
        if n > _MOST_FILES:
            raise UnsafeArchive(f"{path.name} holds more than {_MOST_FILES:,} files.")
        if entry.is_dir(follow_symlinks=False):
            continue
        if not entry.is_file(follow_symlinks=False):
            what = "a link" if entry.is_symlink() else "no regular file"
            raise UnsafeArchive(f"{path.name}: {name} is {what}.", hint="a store holds directories and files")
        if entry.name in (*DOCUMENTS, ATTRIBUTES):
            with Path(entry.path).open("rb") as f:
                found[name] = documents.read(f)
        elif not is_record(entry.path):
            counts.update(_above(name))
    return found, counts


def _of_zip(path: Path) -> tuple[dict[str, bytes], Counter[str]]:
    found, counts = dict[str, bytes](), Counter[str]()
    with zipfile.ZipFile(path) as f:
        if len(f.filelist) > _MOST_FILES:
            raise UnsafeArchive(f"{path.name} holds more than {_MOST_FILES:,} files.")
        for info in f.filelist:
            name = info.filename
            if info.is_dir():
                continue
            if stat.S_ISLNK(info.external_attr >> 16) or info.flag_bits & 1:
                raise UnsafeArchive(f"{path.name}: {name} is a link, or encrypted.", hint="a store holds files alone")
            if info.file_size > _MOST_CHUNK:
                raise UnsafeArchive(f"{path.name}: {name} has {info.file_size:,} bytes; a chunk has fewer.")
            if name.rpartition("/")[2] in (*DOCUMENTS, ATTRIBUTES):
                if info.file_size > documents.LONGEST:
                    raise UnsafeArchive(f"{path.name}: {name} has {info.file_size:,} bytes; a document has fewer.")
                found[name] = f.read(info)
            else:
                counts.update(_above(name))
    return found, counts


def _above(name: str) -> Iterator[str]:
    """Yield the directories above a file."""
    while name:
        name = name.rpartition("/")[0]
        yield name


def _array(path: Path, name: str, d: Mapping[str, Any], counts: Counter[str]) -> ZarrArray:
    """Check the document of an array, and describe it."""
    try:
        made = _format_3(path, name, d) if "node_type" in d else _format_2(path, name, d)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as e:
        raise CorruptArchive(
            f"{path.name}: the document of {name or 'its array'} is damaged ({type(e).__name__}: {e}).", hint=_AGAIN
        ) from e
    below = counts[name]
    return ZarrArray(**{**made, "missing": max(0, made["chunks"] - below)})


def _format_2(path: Path, name: str, d: Mapping[str, Any]) -> dict[str, Any]:
    codecs = [c for c in (*(d.get("filters") or ()), d.get("compressor")) if c]
    names = [str(c["id"]) for c in codecs]
    _check_codecs(path, name, names, images=True)
    said = d["dtype"]
    dtype: np.dtype[Any] | None = None  # of no field
    if isinstance(said, str) and said != "|O":
        dtype = np.dtype(said).newbyteorder("=")
    elif said == "|O" and {"vlen-utf8", "vlen-bytes"} & {*names}:
        dtype = np.dtype(object) if "vlen-utf8" in names else image_columns.DTYPE
    return _described(path, name, 2, d["shape"], d["chunks"], dtype, names, str(d.get("dimension_separator") or "."))


def _format_3(path: Path, name: str, d: Mapping[str, Any]) -> dict[str, Any]:
    if d.get("storage_transformers"):
        raise UnsafeArchive(f"{path.name}: {name} has storage transformers, which no store of today has.")
    names = [*_names(d["codecs"])]
    _check_codecs(path, name, names, images=False)
    said = d["data_type"]
    kind = said if isinstance(said, str) else str(said["name"])
    dtype: np.dtype[Any] | None
    if kind in _TEXTS:
        dtype = np.dtype(object)
    elif kind in _BYTES:
        dtype = image_columns.DTYPE
    else:
        dtype = np.dtype(kind) if isinstance(said, str) and kind in np.sctypeDict else None
    encoding = d["chunk_key_encoding"]
    if d["chunk_grid"]["name"] != "regular" or encoding["name"] not in ("default", "v2"):
        raise ValueError(f"chunks by {d['chunk_grid']['name']!r} and {encoding['name']!r}")
    grid = d["chunk_grid"]["configuration"]["chunk_shape"]
    return _described(path, name, 3, d["shape"], grid, dtype, names, "/")


def _names(codecs: Any, depth: int = 0) -> Iterator[str]:
    """Yield the names of codecs, those within shards too."""
    if depth > _MOST_NESTED:
        raise ValueError("codecs are nested too deeply")
    for c in codecs:
        yield str(c["name"]).removeprefix(_PREFIX)
        inside = c.get("configuration") or {}
        for key in ("codecs", "index_codecs"):
            yield from _names(inside.get(key) or (), depth + 1)


def _check_codecs(path: Path, name: str, names: Collection[str], *, images: bool) -> None:
    known = CODECS | ({*IMAGES, *DECODED} if images else _OF_FORMAT_3)
    for codec in names:
        if codec not in known:
            what = "can hold code that runs when it is read" if codec == "pickle" else "is not read"
            raise UnsafeArchive(
                f"{path.name}: {name or 'its array'} is written by the codec {codec[:80]!r}, which {what}.",
                hint=f"write it with {', '.join(sorted(CODECS))}; or rlds_cli.create takes what you read yourself",
            )


def _described(
    path: Path,
    name: str,
    format: int,
    shape: Any,
    chunks: Any,
    dtype: np.dtype[Any] | None,
    codecs: list[str],
    separator: str,
) -> dict[str, Any]:
    """Check shape and chunks, and return the attributes of a `ZarrArray`."""
    for value in (*shape, *chunks):
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(f"shape {shape!r} in chunks {chunks!r}"[:200])
    if len(shape) != len(chunks) or not all(chunks):
        raise ValueError(f"shape {shape!r} in chunks {chunks!r}"[:200])
    if math.prod(max(1, n) for n in shape) > _MOST_VALUES:
        raise UnsafeArchive(f"{path.name}: {name} claims the shape {shape}, which no store has.")
    image = next((IMAGES[c] for c in codecs if c in IMAGES), None)
    frames = image is not None and len(codecs) == 1 and len(shape) in (3, 4) and list(chunks) == [1, *shape[1:]]
    if image is not None and not frames:
        raise UnknownLayout(
            f"{path.name}: {name} has {image.upper()} images in chunks of {list(chunks)}; a chunk for each is read.",
            hint="write an image a chunk",
        )
    width = 1 if dtype is None else max(1, dtype.itemsize)
    if math.prod(chunks) * width > _MOST_CHUNK:
        raise UnsafeArchive(f"{path.name}: {name} has chunks of {list(chunks)}, which are too large to be decoded.")
    number = math.prod(-(-n // c) for n, c in zip(shape, chunks, strict=True))
    held = dtype is not None and (dtype.kind in _HELD or dtype == image_columns.DTYPE)
    return {
        "name": name,
        "format": format,
        "shape": tuple(shape[:1]) if frames else tuple(shape),
        "dtype": image_columns.DTYPE if frames or dtype is None else dtype,
        "chunk": chunks[0] if chunks else 1,
        "chunks": number,
        "separator": separator,
        "dimensions": len(shape),
        "image": image if frames else None,
        "needs": next((c for c in codecs if c in DECODED), ""),
        "why": "" if held else "no field can hold its values",
    }
