"""What a version says: its episodes, what is known of them, and which entries of which arrays are theirs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.files import arrays
from rlds_cli.errors import DamagedDataset, DatasetNotFound, InvalidArgument
from rlds_cli.store import episode_table, layouts
from rlds_cli.store.columns import VIDEOS, Column, Part, has_row_digests, stored_row
from rlds_cli.store.episode_table import Columns
from rlds_cli.store.history import History
from rlds_cli.store.local import Files, LocalFiles, replaced, version_removed
from rlds_cli.store.manifest import Manifest, Stats, StoredField
from rlds_cli.store.paths import ROW_DIGESTS, component
from rlds_cli.ted import VIDEO, Field

if TYPE_CHECKING:
    from rlds_cli.store.digests import Digests, FieldHash
    from rlds_cli.store.encoded import EncodedBytes
    from rlds_cli.store.lookups import EpisodeRecords
    from rlds_cli.store.metadata import Metadata
    from rlds_cli.store.own_columns import StoredColumn
    from rlds_cli.store.sharing import Shared
    from rlds_cli.store.snapshots import LocalFile
    from rlds_cli.store.videos import Videos
    from rlds_cli.ted import EpisodeTable

Reopened = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Run:
    """Rows [first, stop) of an array, as a version numbers them, in files that lie side by side.

    Attributes
    ----------
    lead : int
        Rows of the first file before ``first``.
    segments : tuple of Segment
        The files. Their rows are counted from the first row of the first file.
    """

    first: int
    stop: int
    lead: int = 0
    segments: tuple[arrays.Segment, ...] = ()


def arrays_of(f: StoredField) -> Iterator[Column]:
    """Yield the arrays of a field: of its rows, of their digests, and of the bytes of its images or videos."""
    path, byte = Path(f.path), np.dtype(np.uint8)
    images = f.kind == "frames" and f.codec != VIDEO
    dtype, shape = (np.dtype(np.int64), (2,)) if images else stored_row(f)
    yield Column(field=f.name, part="rows", directory=path / "offsets" if images else path, dtype=dtype, shape=shape)
    if has_row_digests(f):
        yield Column(field=f.name, part="digests", directory=ROW_DIGESTS / path, dtype=byte, shape=(32,))
    if images:
        yield Column(field=f.name, part="frames", directory=path / "bytes", dtype=byte)
    elif f.codec == VIDEO:
        yield Column(field=f.name, part="films", directory=VIDEOS / path / "bytes", dtype=byte)


class Table(ABC):
    """What a version says. It reads no row.

    Numbers of episodes are those of this version: k of ``ds.episode(k)``.

    Attributes
    ----------
    files : Files
        Where the small files are that it reads.
    fields : mapping of str to Field
    version : int
        Number of this version.
    version_id : str
        The sha256 of the manifest's file, or of the record of a commit: one content in one layout. It is the key of
        what is derived from rows and where they are, such as packed rows, and of what refers to an open dataset. The
        fingerprint is not: one content may have several layouts.
    lease : object
        What keeps rows from being freed, which arrays of them hold.
    segment_rows : int
        Rows of the segments that a writer adds to, one behind the other; 0 if no writer adds rows to these files.
    pinned_version : int or None
        The number of this version where a record has to name it, since no fingerprint of it is stored.
    dropped : int
        Episodes that are hidden, and in the files all the same.
    keeps : mapping or None
        The rule by which episodes leave, as the manifest says it; None if none does.
    """

    files: Files
    fields: Mapping[str, Field]
    version: int
    version_id: str
    lease: object = None
    segment_rows = 0
    pinned_version: int | None = None
    dropped = 0
    keeps: Mapping[str, Any] | None = None

    def __init__(self, files: Files, stored: Sequence[StoredField]) -> None:
        self.files = files
        self.fields = {f.name: f.field for f in stored}
        self._stored = {f.name: f for f in stored}
        self._described: dict[tuple[str, Part], Column] = {}
        self._strings: dict[str, Array] = {}
        self._own_columns: dict[str, StoredColumn] = {}

    @property
    @abstractmethod
    def manifest(self) -> Manifest:
        """The manifest, without the statistics that are computed: `Store.manifest` has these."""

    # -- episodes

    @property
    @abstractmethod
    def episodes(self) -> Mapping[str, Array]:
        """Columns of the episode table, without texts and without the user's own, see `own_column`."""

    @abstractmethod
    def episode_strings(self, column: str) -> list[str]:
        """Return a text column of the episode table (``group``, ``options``); empty strings if it is not stored."""

    @property
    @abstractmethod
    def own_columns(self) -> tuple[str, ...]:
        """Names of the user's own episode columns."""

    def own_column(self, name: str) -> StoredColumn:
        """Return an episode column of the user's own; it is read once."""
        if name not in self._own_columns:
            self._own_columns[name] = self._read_own_column(name)
        return self._own_columns[name]

    @abstractmethod
    def _read_own_column(self, name: str) -> StoredColumn:
        """Read an episode column of the user's own."""

    @property
    @abstractmethod
    def sources(self) -> tuple[Mapping[str, Any], ...]:
        """Files of the archive: ``file size sha256``, and ``url revision`` of downloaded ones."""

    @cached_property
    def metadata(self) -> Metadata:
        """The data that are not per row, by name."""
        from rlds_cli.store import metadata

        return self.files.guarded(lambda: metadata.read(self.files.beside(metadata.DIRECTORY).parent))

    def let_go(self) -> None:
        """Unmap the pages of the episode table that are files of their own, which count as memory in use."""
        if isinstance(self.episodes, Columns):
            self.episodes.let_go()

    @property
    def numbers(self) -> IntArray:
        """Numbers of all episodes [episodes]."""
        return np.arange(len(self.episodes["start"]))

    def names_of(self, index: IntArray) -> IntArray:
        """Return what names the episodes ``index`` [n] in every version of the dataset: no numbers of episodes.

        They are whole numbers from 1 on, and ascend in the order in which the episodes were recorded.
        """
        return index + 1

    def name_of(self, k: int) -> str:
        """Return what names episode ``k`` in every version of the dataset; empty if its number does."""
        return ""

    def shared(self, names: Mapping[str, str]) -> dict[str, Shared]:
        """Return fields for a dataset that has the same rows of them; ``names`` are theirs there, and here."""
        from rlds_cli.store.sharing import Shared

        fields = {f.name: f for f in self.manifest.fields}
        stats = {n: Stats(**s) for n, s in self.manifest.stats.items()}
        return {new: Shared(self.files.path, fields[old], stats.get(old), new) for new, old in names.items()}

    def episode_table(self, index: IntArray | None = None) -> EpisodeTable:
        """Return the table of the episodes ``index`` [n], or of all; a copy."""
        return self._episode_table.take(self.numbers if index is None else index)

    @cached_property
    def _episode_table(self) -> EpisodeTable:
        from rlds_cli.ted import EpisodeTable

        e, nobody = self.episodes, np.zeros(len(self.episodes["start"]), bool)
        seeds = zip(e.get("seed", nobody).tolist(), e.get("has_seed", nobody).tolist(), strict=True)
        prefix = "split/"
        return EpisodeTable(
            e["length"],
            e["end"],
            e["num_observed"] > e["length"],
            e["source"],
            e["row"],
            group=self.episode_strings("group"),
            seed=[seed if has else None for seed, has in seeds],
            options=[o or None for o in self.episode_strings("options")],
            splits={k.removeprefix(prefix): np.asarray(v) for k, v in e.items() if k.startswith(prefix)},
            extra={name: self.own_column(name).scalars() for name in self.own_columns},
            id=np.asarray(e["id"]),
        )

    @cached_property
    def has_gaps(self) -> bool:
        """True if there are rows that belong to no episode."""
        order = np.argsort(self.episodes["start"], kind="stable")
        start, behind = self.episodes["start"][order], (self.episodes["start"] + self.episodes["length"] + 1)[order]
        covered = np.concatenate([np.zeros(1, np.int64), behind])
        return bool((start > covered[:-1]).any()) or int(covered[-1]) != self.manifest.counts.rows

    def covered(self, start: int, stop: int) -> BoolArray | None:
        """Return which of rows [start, stop) are of episodes; None if the frames of all of them may be read."""
        return None

    def keeps_in_words(self) -> str | None:
        """Return which episodes stay by the rule of `keeps`; None if none leaves."""
        return None

    # -- arrays

    def stored(self, name: str) -> StoredField:
        """Return a field as the manifest describes it."""
        return self._stored[name]

    def path_of(self, name: str) -> str:
        """Return the path of a field below the dataset, with ``/`` between its parts."""
        return self._stored[name].path

    def column(self, name: str, part: Part = "rows") -> Column:
        """Return what this version has of an array."""
        if (name, part) not in self._described:
            self._described[name, part] = self._describe(name, part)
        return self._described[name, part]

    @abstractmethod
    def _describe(self, name: str, part: Part) -> Column:
        """Return what this version has of an array."""

    def columns(self) -> Iterator[Column]:
        """Yield the arrays of rows, frames and videos."""
        for name, f in self.fields.items():
            yield self.column(name)
            if f.kind == "frames":
                yield self.column(name, "films" if f.codec == VIDEO else "frames")

    def digest_columns(self) -> Iterator[Column]:
        """Yield the arrays of digests of rows."""
        return (self.column(name, "digests") for name, f in self.fields.items() if has_row_digests(f))

    def records(self) -> EpisodeRecords | None:
        """Return what logs hold of the episodes; None where the episode table is stored as arrays."""
        return None

    @abstractmethod
    def row_runs(self) -> tuple[Run, ...]:
        """Return the rows that have files."""

    @abstractmethod
    def runs(self, name: str, part: Part = "rows") -> tuple[Run, ...]:
        """Return the files of plain rows of an array.

        Raises
        ------
        DamagedDataset
            It is compressed, or its document cannot be read.
        """

    @abstractmethod
    def strings(self, name: str) -> Array:
        """Return the string table of a text field: an object array whose last element is None (code -1)."""

    @abstractmethod
    def num_texts(self, name: str) -> int:
        """Return how many strings the table of a text field has."""

    @abstractmethod
    def films(self, name: str, of: EncodedBytes) -> Videos:
        """Return the videos of a field, whose bytes are given."""

    @abstractmethod
    def video_digests(self, name: str) -> Digests:
        """Return the sha256 of each video of a field [videos, 32]."""

    # -- digests

    @abstractmethod
    def digests(self, name: str) -> Digests:
        """Return the digests of the episodes of a field [episodes, 32]; see `store.digests`."""

    def row_digests(self, name: str) -> Digests:
        """Return the sha256 of each row of a field that has them [rows, 32]; see `store.digests`."""
        return self.files.guarded(lambda: self.files.small(self.column(name, "digests"), self.lease))

    @abstractmethod
    def field_digest(self, name: str) -> str:
        """Return the digest of a field over all episodes."""

    @abstractmethod
    def fingerprint(self, index: IntArray | None = None, *, ignored: Collection[str] = ()) -> str:
        """Return the fingerprint of the dataset, or of the episodes ``index`` of it, in this order.

        ``ignored`` are columns of the user's own that do not count.
        """

    def column_digests(self, index: IntArray, ignored: Collection[str] = ()) -> dict[str, str]:
        """Return the digests of the columns of episodes that count as content, by name; see `digests.of_columns`."""
        from rlds_cli.store import digests

        options = self.episode_strings("options")
        counted = [n for n in self.episodes if n in digests.CONTENT or n.startswith("split/")]
        columns: dict[str, Array | Sequence[str | None]] = {n: self.episodes[n][index] for n in counted}
        columns["options"] = [options[k] for k in index.tolist()] if any(options) else []
        return digests.of_columns(
            columns, {n: self.own_column(n).take(index) for n in self.own_columns if n not in ignored}
        )

    def directories_of(self, name: str) -> list[Path]:
        """Return the directories below the dataset with the rows of a field, and with the texts or videos of these."""
        f, path = self.fields[name], self.path_of(name)
        beside = ["text"] if f.kind == "text" else [VIDEOS] if f.codec == VIDEO else []
        return [Path(path), *(Path(root, path) for root in beside)]

    def hashing(self, name: str) -> FieldHash:
        """Return how the episodes of a field are hashed, with the texts or videos that its rows stand for."""
        from rlds_cli.store.digests import FieldHash

        f = self.fields[name]
        texts = self.strings(name).tolist() if f.kind == "text" else ()
        return FieldHash(f, texts=texts, videos=self.video_digests(name) if f.codec == VIDEO else None)

    @abstractmethod
    def check_recorded(self) -> None:
        """Refuse a dataset whose recorded digests are not those that were written: new ones would hide damage.

        Raises
        ------
        DamagedDataset
        """

    # -- other versions

    def newest_number(self) -> int:
        """Return the number of the newest version that can be taken up: this one, unless the dataset grows."""
        return self.version

    def newest(self) -> Table:
        """Return the newest version that can be taken up, which may be this one."""
        return self

    def at(self, version: int) -> Table:
        """Return another version that can be taken up: of a growing dataset.

        Raises
        ------
        DatasetNotFound
            There is none of this number.
        """
        if version != self.version:
            raise DatasetNotFound(f"{self.manifest.id} does not grow: version {version:,} cannot be taken up.")
        return self

    def version_id_of(self, version: int) -> str:
        """Return the version id of another version that can be taken up; raises as `at`."""
        return self.at(version).version_id

    def like(self, other: Table) -> Table:
        """Return another version of the dataset as this one is shown: with the same names of fields."""
        return other

    def check_changeable(self) -> None:
        """Refuse a dataset of which no other versions or datasets are made without a copy of its rows.

        Raises
        ------
        InvalidArgument
        """
        if self.files.address:
            raise InvalidArgument(
                f"{self.manifest.id} is at an address, where it is not changed.",
                hint="rlds download ADDRESS --name local/NAME fetches it; that copy can be changed",
            )

    @contextmanager
    def changing(self, index: IntArray) -> Iterator[tuple[Table, IntArray | None]]:
        """Yield what a change of episodes ``index`` [n] is made on, and their numbers there.

        Who publishes a directory notices that it is not the newest version. A log of changes yields the newest version
        for as long as nobody else commits, and no numbers if one of the episodes left or was changed meanwhile.
        """
        yield self, index

    def commit_change(
        self,
        index: IntArray,
        step: Mapping[str, Any],
        columns: Mapping[str, StoredColumn | None] = {},
        *,
        dropped: IntArray | None = None,
    ) -> bool:
        """Commit a change of the episodes ``index`` to the log of the dataset; False if its versions are directories.

        Parameters
        ----------
        index : int array [n]
        step : mapping
            Of the provenance, with the facts that are set.
        columns : mapping
            Columns that are set, of all episodes; None takes all values away.
        dropped : int array, optional
            Those of the episodes that are hidden; the others get their values of the columns.
        """
        return False

    def commit_restored(self, step: Mapping[str, Any]) -> bool:
        """Commit the content of this version to the log of the dataset; False if its versions are directories."""
        return False

    def snapshot(self) -> Iterator[LocalFile] | None:
        """Yield the files of this version as they are sent; None for those of its directory."""
        return None

    def check_same(self, version_id: str, since: str) -> None:
        """Refuse another version than the one at the time ``since``: ``opened`` or ``pickled``.

        Raises
        ------
        DatasetNotFound
        """
        if self.version_id != version_id:
            raise replaced(self.manifest.id, self.files.path, since)

    def __reduce__(self) -> tuple[object, ...]:
        return self.files.reopened(self.version_id) or self._reduced()

    @abstractmethod
    def _reduced(self) -> Reopened:
        """Return how to open the same version in another process."""


class FixedTable(Table):
    """A version whose rows are in a directory of its own.

    ``check=False`` opens one that may be damaged, for inspection. The manifest, and that nothing leads out of the
    directory, are checked in any case; else the sizes of files, and when it is read the episode table, too. Where a
    file shrinks later, while it is mapped, the system ends the process that reads what is gone (SIGBUS).
    """

    def __init__(self, files: Files, *, check: bool = True) -> None:
        files.beside("zarr.json")
        files.beside("episodes")
        self._manifest, self.version_id = Manifest.read_with_version_id(files.path)
        m, self.version, self._checks = self._manifest, self._manifest.version, check
        files.reads(m, self.version_id)
        super().__init__(files, m.fields)
        self._arrays = {(c.field, c.part): c for f in m.fields for c in arrays_of(f)}
        self._episode_strings: dict[str, list[str]] = {}
        if files.claimed not in ("", m.fingerprint):
            raise DamagedDataset(
                f"{files.address}: its index and its manifest name different content.",
                hint="rlds verify ID where it was pushed from",
            )
        files.admit(self.columns(), check=check)

    @property
    def manifest(self) -> Manifest:
        """The manifest."""
        return self._manifest

    @cached_property
    def episodes(self) -> Mapping[str, Array]:
        """Columns of the episode table, without texts and without the user's own, see `own_column`."""
        columns = self.files.guarded(lambda: episode_table.read_columns(self.files.path / "episodes", self.manifest))
        if self._checks:
            episode_table.check_places(columns, self.manifest)
        return columns

    def episode_strings(self, column: str) -> list[str]:
        """Return a text column of the episode table (``group``, ``options``); empty strings if it is not stored."""
        if column not in self._episode_strings:
            self._episode_strings[column] = self.files.guarded(partial(self._read_episode_strings, column))
        return self._episode_strings[column]

    def _read_episode_strings(self, column: str) -> list[str]:
        path, count = self.files.path / "episodes" / component(column), self.manifest.counts.episodes
        return episode_table.read_texts(path, count) if count and path.exists() else [""] * count

    @property
    def own_columns(self) -> tuple[str, ...]:
        """Names of the user's own episode columns."""
        return tuple(self.manifest.episode_columns)

    def _read_own_column(self, name: str) -> StoredColumn:
        from rlds_cli.store import own_columns

        dtype, count = self.manifest.episode_columns[name]["dtype"], self.manifest.counts.episodes
        if name in self._small_columns:
            where = f"The episode column {name} of {self.manifest.id}"
            return own_columns.column_of(self._small_columns[name], dtype, count, where)
        masks = ("episodes", "missing", component(name))
        missing = self.files.guarded(
            lambda: episode_table.read_missing(self.files.path.joinpath(*masks), self.episodes)
        )
        if dtype != own_columns.TEXT:
            if name not in self.episodes or self.episodes[name].dtype != dtype:
                raise DamagedDataset(f"The episode column {name} of {self.manifest.id} is not there as {dtype}.")
            return own_columns.StoredColumn(dtype, self.episodes[name], missing)
        stored = zip(self.episode_strings(name), missing.tolist(), strict=True)
        return own_columns.StoredColumn(dtype, [None if m else text for text, m in stored], missing)

    @cached_property
    def _small_columns(self) -> dict[str, Any]:
        from rlds_cli.store import own_columns

        return self.files.guarded(lambda: own_columns.read_small(self.files.path / "episodes"))

    @cached_property
    def sources(self) -> tuple[dict[str, Any], ...]:
        """Files of the archive: ``file size sha256``, and ``url revision`` of downloaded ones."""

        def read() -> tuple[dict[str, Any], ...]:
            path = self.files.beside("sources")
            return episode_table.read_sources(path) if path.exists() else ()

        return self.files.guarded(read)

    def _describe(self, name: str, part: Part) -> Column:
        c, m = self._arrays[name, part], self.manifest
        compressed = m.encoding == "zarr" and part in ("rows", "frames")
        if c.by_row:
            return replace(c, stop=m.counts.rows, compressed=compressed)
        shape, dtype = layouts.open_document(self.files.documents(c.directory))
        if (shape[1:], dtype) != (c.shape, c.dtype):
            raise DamagedDataset(f"{self.files.path / c.directory} is not an array of bytes.", hint="rlds verify ID")
        return replace(c, stop=shape[0], compressed=compressed)

    def row_runs(self) -> tuple[Run, ...]:
        """Return the rows that have files: all of them, unless the dataset grows."""
        return (Run(0, self.manifest.counts.rows),)

    def runs(self, name: str, part: Part = "rows") -> tuple[Run, ...]:
        """Return the files of plain rows of an array.

        Raises
        ------
        DamagedDataset
            It is compressed, or its document cannot be read.
        """
        directory = self.files.path / self._arrays[name, part].directory
        found = layouts.layout(directory)
        if found.compressed:
            raise DamagedDataset(f"{directory} is compressed.", hint="rlds verify ID")
        return (Run(0, found.shape[0], 0, found.segments),)

    def strings(self, name: str) -> Array:
        """Return the string table of a text field: an object array whose last element is None (code -1)."""
        if name not in self._strings:
            texts = self.files.guarded(lambda: layouts.read_strings(self.files.beside("text", self.path_of(name))))
            self._strings[name] = np.array([*texts, None], object)
        return self._strings[name]

    def num_texts(self, name: str) -> int:
        """Return how many strings the table of a text field has, without reading them."""
        return layouts.open_document(self.files.beside("text", *self.path_of(name).split("/"), "offsets"))[0][0] - 1

    def films(self, name: str, of: EncodedBytes) -> Videos:
        """Return the videos of a field, whose bytes are given."""
        directory = of.column.directory.parent
        for part in ("spans", "packets", "first", "tracks", "sha256"):
            self.files.beside(*directory.parts, part)
        from rlds_cli.store.videos import Videos  # few datasets have some

        return Videos(self.files.path / directory, of)

    def video_digests(self, name: str) -> Digests:
        """Return the sha256 of each video of a field [videos, 32]."""
        return self.files.guarded(
            lambda: layouts.read(self.files.beside(VIDEOS, *self.path_of(name).split("/"), "sha256"))
        )

    def digests(self, name: str) -> Digests:
        """Return the digests of the episodes of a field [episodes, 32]; see `store.digests`."""
        from rlds_cli.store import lookups

        found = self.files.guarded(lambda: lookups.read(self.files.beside("digests", *self.path_of(name).split("/"))))
        if found.shape != (len(self.episodes["start"]), 32) or found.dtype != np.uint8:
            raise DamagedDataset(f"The digests of {name} are not those of {self.manifest.id}.", hint="rlds verify ID")
        return found

    def fingerprint(self, index: IntArray | None = None, *, ignored: Collection[str] = ()) -> str:
        """Return the fingerprint of the dataset, or of the episodes ``index`` of it, in this order. No row is read.

        ``ignored`` are columns of the user's own that do not count.
        """
        if index is None and not ignored:
            return self.manifest.fingerprint
        from rlds_cli.store import digests

        of_fields = {f.name: self._digest_of(f, index) for f in self.manifest.fields}
        return digests.ContentDigests(
            of_fields, self.column_digests(self.numbers if index is None else index, ignored)
        ).fingerprint

    def _digest_of(self, f: StoredField, index: IntArray | None) -> str:
        from rlds_cli.store import digests

        return self.field_digest(f.name) if index is None else digests.of_field(f, self.digests(f.name)[index])

    def field_digest(self, name: str) -> str:
        """Return the digest of a field over all episodes."""
        return self._stored[name].digest

    def check_recorded(self) -> None:
        """Refuse a dataset whose recorded digests are not those that were written: new ones would hide damage.

        Raises
        ------
        DamagedDataset
        """
        self.manifest.check_listing(self.files.path)

    def _reduced(self) -> Reopened:
        return _reopened, (self.files.path, self.version_id, self.version)


def _reopened(path: Path, version_id: str, number: int) -> FixedTable:
    """Unpickle; refuse a dataset that has replaced the pickled one meanwhile. A newer version of it does not.

    Raises
    ------
    DatasetNotFound
        The version was removed, or the dataset was replaced.
    """
    history = History.of(path)
    if not (history.path / "zarr.json").exists():
        raise DatasetNotFound(f"{path} was removed since it was pickled.", hint="download or import it")
    table = FixedTable(LocalFiles(history.path, moves=True))
    if table.version_id != version_id and number < table.version:
        if number not in history.earlier:
            raise version_removed(table.manifest.id, number, history, "pickled")
        table = FixedTable(LocalFiles(history.at(number), moves=True))
    table.check_same(version_id, "pickled")
    return table
