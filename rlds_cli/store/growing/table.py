"""What a version of a growing dataset says, whose rows and records are in logs."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.files import arrays
from rlds_cli.base.files import safe as safe_files
from rlds_cli.errors import DamagedDataset, DatasetNotFound, InvalidEpisode
from rlds_cli.store import commits, digests, episode_table
from rlds_cli.store import files as store_files
from rlds_cli.store.columns import Column, Part
from rlds_cli.store.commits import Commit
from rlds_cli.store.digests import Digests
from rlds_cli.store.encoded import EncodedBytes
from rlds_cli.store.facts import Facts
from rlds_cli.store.growing import logs, retention, segments, snapshots
from rlds_cli.store.growing.changing import ChangedByLog
from rlds_cli.store.growing.edits import EditLog, Edits
from rlds_cli.store.growing.episode_log import EpisodeLog, LoggedEpisodes
from rlds_cli.store.growing.films import GrowingVideos
from rlds_cli.store.growing.logs import freed
from rlds_cli.store.growing.places import LogPlaces
from rlds_cli.store.local import Files, LocalFiles
from rlds_cli.store.lookups import EpisodeRecords, RecordLog
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.own_columns import StoredColumn
from rlds_cli.store.snapshots import LocalFile
from rlds_cli.store.table import Reopened, Run
from rlds_cli.store.videos import Videos
from rlds_cli.ted import Scalar

_MOST_SOURCES = 1 << 20  # files that episodes come from
_SPLIT = "split/"
_LONGEST_FREEING = 1.0  # seconds that a writer may take to ask which versions are held


class LoggedTable(ChangedByLog):
    """A version of a growing dataset.

    The version is held: while this object exists, its rows stay. Rows are counted from the first episode that was
    kept when the version was made.

    Parameters
    ----------
    files : Files
    version : int, optional
        The newest without it.
    check : bool
        Check the sizes of files; records of episodes are always checked.
    before : LoggedTable, optional
        Another version of the same dataset, of which is used what it has read.

    Attributes
    ----------
    commit : Commit
    head : Manifest
        The manifest with what does not change.
    encoded : list of str
        Names of the fields of encoded frames, sorted.
    """

    def __init__(
        self, files: Files, version: int | None = None, *, check: bool = True, before: LoggedTable | None = None
    ) -> None:
        path, self._checks = files.path, check
        if before is None:
            store_files.check_tree(path, changing=True)
        self.commit, self.lease = _held(path, version)
        if before is None:
            head = Manifest.read(path)
            logs.check_there(path, self.commit.episodes, len(logs.encoded(head.fields)))
            self._arrays = {(c.field, c.part): c for c in segments.columns_of(head)}
        else:
            head, self._arrays = before.head, before._arrays
        known = before if before is not None and before.commit.moved == self.commit.moved else None
        super().__init__(files if known is None else known.files, head.fields)  # with what it has mapped
        self.head: Manifest = head
        self.encoded: list[str] = logs.encoded(head.fields)
        self.version = self.pinned_version = self.commit.number
        self.version_id = self.commit.version_id
        self.dropped, self.segment_rows = self.commit.dropped, int(head.growing["segment_rows"])
        self.keeps: Mapping[str, Any] = head.growing.get("keep", {})
        self._log: EpisodeLog = EpisodeLog(path, len(self.encoded)) if known is None else known._log
        self._edit_log: EditLog = EditLog(path, head) if before is None else before._edit_log
        self._before = None if known is None else (known.commit, known._needed)  # segments that it needs
        self._fingerprint: str | None = None
        self._check_sizes()

    @classmethod
    def open(cls, path: Path, version: int | None = None, *, check: bool = True) -> LoggedTable:
        """Open the dataset in a directory of this disk; raises DatasetNotFound for a version that is not there."""
        return cls(LocalFiles(path, moves=False), version, check=check)

    def _reduced(self) -> Reopened:
        return _reopened, (self.files.path, self.version, self.version_id)

    @property
    def manifest(self) -> Manifest:
        """The manifest at this version; made anew each time, since it refers to this object, which ends at once."""
        of_commit = self.head.at(self.commit)
        of_commit = replace(of_commit, **Facts(self.head).replaced(self.edits.facts))
        return replace(of_commit, stats={}, episode_columns=_LazyColumns(self))

    def newest_number(self) -> int:
        """Return the number of the newest version."""
        return commits.last(self.files.path).number

    def newest(self) -> LoggedTable:
        """Return the newest version, which may be this one."""
        return self if self.newest_number() == self.version else self._other()

    def at(self, version: int) -> LoggedTable:
        """Return another version, which maps what this one has mapped; raises DatasetNotFound."""
        return self if version == self.version else self._other(version)

    def version_id_of(self, version: int) -> str:
        """Return the version id of another version, which may be freed; raises DatasetNotFound."""
        return commits.at(self.files.path, version).version_id

    def version_id_since(self, rows: int) -> str:
        """Return the version id of the first version that has so many ``rows``, which this one has."""
        return commits.first_with(self.files.path, rows, self.version).version_id

    def _other(self, version: int | None = None) -> LoggedTable:
        files = LocalFiles(self.files.path, moves=False)
        return LoggedTable(files, version, check=self._checks, before=self)

    def names_of(self, index: IntArray) -> IntArray:
        """Return what names the episodes ``index`` [n] in every version, see `Table.names_of`."""
        return self._kept_places.take(index).logged + 1

    def _check_sizes(self) -> None:
        known = {} if self._before is None else self._before[1]

        def unknown() -> Iterator[Column]:
            for c in self.all_columns():
                has = known.get(_area(c), ())
                yield replace(c, needed=tuple(n for n in c.needed if n not in has)) if has else c

        self.files.admit(unknown(), check=self._checks)

    def _describe(self, name: str, part: Part) -> Column:
        c = self._arrays[name, part]
        first, stop = (self.commit.first_row, self.commit.rows) if c.by_row else self._bytes[name]
        return replace(c, first=first, stop=stop, needed=tuple(self._needed[_area(c)]))

    def all_columns(self) -> Iterator[Column]:
        """Yield all arrays, of each field those of rows, digests, and images or videos."""
        return (self.column(*key) for key in self._arrays)

    # -- episodes

    @cached_property
    def _read(self) -> LoggedEpisodes:
        return self._log.read(self.commit, len(self.sources))

    @cached_property
    def edits(self) -> Edits:
        """The labels, drops and facts of this version."""
        return self._edit_log.read(self.commit)

    @cached_property
    def _kept_places(self) -> LogPlaces:
        """Where the episodes are in the logs, in ascending order."""
        stored, g = self._stored_places, self.commit
        kept = stored.take(~self.edits.dropped(stored)) if g.dropped else stored
        if len(kept) != g.kept:
            raise DamagedDataset(
                f"{self.files.path}: its logs leave {len(kept):,} of {g.kept:,} episodes.", hint=logs.HINT
            )
        return kept

    @cached_property
    def _stored_places(self) -> LogPlaces:
        """Where the episodes and those that are dropped are in the logs, in ascending order."""
        g = self.commit
        every = LogPlaces(range(g.first_episode, g.episodes))
        left = logs.read_departed(self.files.path, g.departed, episodes=g.episodes)
        left = left[left >= g.first_episode]
        return every.without(LogPlaces(left)) if len(left) else every

    def units_needed(self, unit: int) -> list[int]:
        """Return which units of so many rows, by their numbers, have rows of episodes that are kept or dropped."""
        g, (first, behind) = self.commit, self._spans_of(self.column(next(iter(self.fields)))).T
        numbers = np.arange(g.first_row // unit, -(-g.rows // unit))
        last = np.searchsorted(first, (numbers + 1) * unit) - 1  # that begins before the end of the unit
        there = (last >= 0) & (behind[last] > numbers * unit) if len(first) else np.zeros(len(numbers), bool)
        found: list[int] = numbers[there].tolist()
        return found

    def _spans_of(self, c: Column) -> IntArray:
        """Return the entries of an array [first, stop) in which the kept and dropped episodes lie [episodes, 2]."""
        of = self._stored_places
        if not c.by_row:
            return self._read.frames_at(of)[:, self.encoded.index(c.field)]
        start = self._logged("start", of) + self.commit.first_row
        return np.stack([start, start + self._logged("length", of) + 1], 1)

    @cached_property
    def _needed(self) -> dict[str, list[int]]:
        """Numbers of the segments that hold rows of kept and dropped episodes: "", and their bytes, by field."""
        g, of, before = self.commit, self._stored_places, self._before
        known: dict[str, list[int]] = {}
        if before is not None and before[0].departed == g.departed:
            known, of = before[1], LogPlaces(range(before[0].episodes, g.episodes))
        self._before = None
        start, frames = self._logged("start", of) + g.first_row, self._read.frames_at(of)
        found = {"": segments.episodes_in(start, start + self._logged("length", of) + 1, self.segment_rows)}
        for i, name in enumerate(self.encoded):
            first, stop = frames[:, i].T
            found[name] = segments.episodes_in(first, stop, self.head.growing["segment_bytes"])
        return {name: sorted({*np.flatnonzero(n).tolist(), *known.get(name, ())}) for name, n in found.items()}

    @cached_property
    def episodes(self) -> Mapping[str, Array]:
        """Columns of the episode table, without texts and without the user's own."""
        return _Columns(self._read, self._kept_places)

    def episode_strings(self, column: str) -> list[str]:
        """Return a text column of the episode table (``group``, ``options``)."""
        return [str(text or "") for text in self._kept_places.pick_list(self._read.told(column), self._read.first)]

    @cached_property
    def own_columns(self) -> tuple[str, ...]:
        """Names of the user's own episode columns."""
        labels = self.edits.names
        names = dict.fromkeys([*self._read.names("extra", self._kept_places), *labels])
        return tuple(name for name in names if name not in labels or self._has_values(name))

    def _has_values(self, name: str) -> bool:
        known = self.edits.has_values(name, self._kept_places)
        return known or any(v is not None for v in self._logged_values(name, self._kept_places))

    def _logged(self, name: str, of: LogPlaces) -> Array:
        return self._read.at(name, of)

    def _logged_values(self, name: str, of: LogPlaces) -> list[Scalar]:
        recorded = of.pick_list(self._read.told("extra", name), self._read.first)
        return self.edits.labelled(name, recorded, of)

    def _read_own_column(self, name: str) -> StoredColumn:
        try:
            return StoredColumn.of(self._logged_values(name, self._kept_places), name)
        except InvalidEpisode as e:
            raise DamagedDataset(f"{self.files.path / logs.ABOUT}: {e.message}", hint=logs.HINT) from e

    def keeps_in_words(self) -> str:
        """Return which episodes stay by the rule of `keeps`."""
        return retention.described(self.keeps)

    def protected(self) -> BoolArray:
        """Return which episodes no policy lets leave [episodes]."""
        g = self.commit
        records = logs.read_episodes(self.files.path, g.first_episode, g.episodes, len(self.encoded))
        return self._kept_places.pick(records, g.first_episode)["protected"]

    @cached_property
    def sources(self) -> tuple[dict[str, Any], ...]:
        """Files of the archives that episodes come from."""
        log = logs.read_part(self.files.path / logs.SOURCES, 0, self.commit.sources)
        if log.count(b"\n") > _MOST_SOURCES:
            raise DamagedDataset(
                f"{self.files.path / logs.SOURCES} names more than {_MOST_SOURCES:,} files.", hint=logs.HINT
            )
        lines = log.split(b"\n")
        return tuple(episode_table.source_of(self.files.path / logs.SOURCES, line) for line in lines if line)

    # -- rows

    @cached_property
    def _bytes(self) -> dict[str, tuple[int, int]]:
        """The first byte of the frames of each field that this version has, and the byte behind them."""
        frames = self._read.frames
        if not len(frames):
            return dict.fromkeys(self.encoded, (0, 0))
        edges = zip(frames[:, :, 0].min(0).tolist(), frames[:, :, 1].max(0).tolist(), strict=True)
        return dict(zip(self.encoded, edges, strict=True))

    def covered(self, start: int, stop: int) -> BoolArray:
        """Return which of rows [start, stop) are of episodes; other ones have no frames."""
        first = self.episodes["start"]
        behind = first + self.episodes["length"] + 1
        of = slice(max(0, int(np.searchsorted(first, start, "right")) - 1), int(np.searchsorted(first, stop)))
        begin = int(min(start, *first[of][:1]))  # of an episode: nothing is carried over from before it
        edges = np.zeros(stop - begin + 1, np.int64)
        np.add.at(edges, first[of] - begin, 1)
        np.add.at(edges, np.minimum(behind[of], stop) - begin, -1)
        found: BoolArray = np.cumsum(edges)[:-1] > 0
        return found[start - begin :]

    @cached_property
    def _films(self) -> npt.NDArray[np.void]:
        """Records of all videos."""
        return logs.read_videos(self.files.path, 0, self.commit.videos, len(self.encoded))

    def _films_of(self, name: str) -> npt.NDArray[np.void]:
        found: npt.NDArray[np.void] = self._films[self._films["field"] == self.encoded.index(name)]
        return found

    def films(self, name: str, of: EncodedBytes) -> Videos:
        """Return the videos of a field, whose bytes are given."""
        return GrowingVideos(self.files.path / of.column.directory.parent, of, self._films_of(name))

    def video_digests(self, name: str) -> Digests:
        """Return the sha256 of each video of a field [videos, 32]."""
        return np.ascontiguousarray(self._films_of(name)["sha256"])

    def strings(self, name: str) -> Array:
        """Return the strings of a text field: an object array whose last element is None (code -1)."""
        if name not in self._strings:
            lines = logs.read_strings(self.files.path, 0, self.commit.strings)
            self._strings[name] = np.array([*(text for field, text in lines if field == name), None], object)
        return self._strings[name]

    def num_texts(self, name: str) -> int:
        """Return how many strings of a text field there are."""
        return len(self.strings(name)) - 1

    # -- files, for datasets that share them

    def records(self) -> EpisodeRecords | None:
        """Return what the logs hold of the episodes; see `Table.records`. None if they may not get second names."""
        own = all(safe_files.is_own(self.files.path / name) for name in logs.LOOKED_UP)
        if not own or not safe_files.has_own_links(self.files.path):
            return None
        g, record, path = self.commit, logs.episode(len(self.encoded)), self.files.path
        of_episodes = RecordLog(name="episodes", file=path / logs.EPISODES, rows=g.episodes, width=record.itemsize)
        width = len(self.fields) * logs.DIGEST
        of_digests = RecordLog(name="digests", file=path / logs.DIGESTS, rows=g.episodes, width=width)
        fields: Mapping[str, Any] = record.fields or {}
        columns = {f"episodes/{n}": (of_episodes, int(fields[n][1])) for n in self.episodes if n in fields}
        for i, name in enumerate(sorted(self.fields)):
            columns[f"digests/{self.path_of(name)}"] = of_digests, i * logs.DIGEST
        return EpisodeRecords(places=self._kept_places.logged, columns=columns)

    def check_recorded(self) -> None:
        """Refuse a dataset whose logs are not those that were written; see `Table.check_recorded`."""
        if self.broken() is not None or not Manifest.has_own_digest(self.files.path):
            raise DamagedDataset(f"The logs of {self.files.path} are not those that were written.", hint=logs.HINT)

    def broken(self) -> int | None:
        """Return the first version that wrote other logs than there are, see `logs.broken`."""
        return logs.broken(self.files.path, commits.all_until(self.files.path, self.commit.number), self.head.fields)

    def row_runs(self) -> tuple[Run, ...]:
        """Return the rows of the segments that are needed; see `Table.row_runs`."""
        return self.runs(next(iter(self.fields)))

    def runs(self, name: str, part: Part = "rows") -> tuple[Run, ...]:
        """Return the segments that are needed, where they lie side by side; see `Table.runs`."""
        c, found = self.column(name, part), list[Run]()
        size, numbers = c.segment_rows, np.array(c.needed, np.int64)
        for beside in np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1) if len(numbers) else ():
            at, behind = int(beside[0]) * size, min(c.stop, (int(beside[-1]) + 1) * size)
            counts = [min(size, behind - n * size) for n in beside.tolist()]
            segments = tuple(
                arrays.Segment(k * size, self.files.path / c.directory, (count, *c.shape), c.dtype, size, n)
                for k, (n, count) in enumerate(zip(beside.tolist(), counts, strict=True))
            )
            first = max(at, c.first)
            found.append(Run(first - c.first, behind - c.first, first - at, segments))
        return tuple(found) or (Run(0, 0),)

    def snapshot(self) -> Iterator[LocalFile]:
        """Yield the files of this version, see `snapshots.of_version`."""
        return snapshots.of_version(self.files.path, self.commit, self.head, tuple(self.all_columns()), self._spans_of)

    # -- digests

    def digests(self, name: str) -> Digests:
        """Return the digests of the episodes of a field [episodes, 32]."""
        return np.ascontiguousarray(self._logged_digests(self._kept_places)[:, sorted(self.fields).index(name)])

    def _logged_digests(self, of: LogPlaces) -> Digests:
        return of.pick(self._digests(), self.commit.first_episode)

    def _digests(self) -> Digests:
        """Read the digests of all fields, by name, from the first episode of the version on [logged, fields, 32]."""
        g = self.commit
        self.files.beside(logs.DIGESTS)
        return logs.read_digests(self.files.path, g.first_episode, g.episodes, len(self.fields))

    def fingerprint(self, index: IntArray | None = None, *, ignored: Collection[str] = ()) -> str:
        """Return the fingerprint of the episodes, or of the episodes ``index``, in this order.

        It is computed from the digests of episodes, without reading a row, and kept in memory.
        """
        if index is None and not ignored and self.files.claimed:
            return self.files.claimed  # a download compares it
        if index is not None or ignored:
            return self._fingerprint_of(self.numbers if index is None else index, ignored)
        if self._fingerprint is None:
            self._fingerprint = self._fingerprint_of(self.numbers)
        return self._fingerprint

    def _fingerprint_of(self, index: IntArray, ignored: Collection[str] = ()) -> str:
        known = self._logged_digests(self._kept_places.take(index))
        stored = sorted(self._stored.values(), key=lambda f: f.name)
        of_fields = {f.name: digests.of_field(f, known[:, i]) for i, f in enumerate(stored)}
        return digests.ContentDigests(of_fields, self.column_digests(index, ignored)).fingerprint

    def field_digest(self, name: str) -> str:
        """Return the digest of a field, which is computed from those of the episodes."""
        return digests.of_field(self._stored[name], self.digests(name))

    def name_of(self, k: int) -> str:
        """Return the hash of episode ``k``, 64 digits, whose number is another one in later versions."""
        return self.digest_of(k).hex()

    def digest_of(self, k: int) -> bytes:
        """Return a hash of episode ``k``: of its length, end, seed, options, splits and fields' digests."""
        e, place = self.episodes, self._kept_places.take(np.array([k]))
        about, at = self._read.about(place), int(place.logged[0])
        seed = int(e["seed"][k]) if "seed" in e and e["has_seed"][k] else None
        numbers = (int(e[name][k]) for name in ("length", "end", "num_observed"))
        head = [*numbers, seed, about.get("options") or None, sorted(about.get("splits", ()))]
        line = json.dumps(head, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"
        self.files.beside(logs.DIGESTS)
        known = logs.read_digests(self.files.path, at, at + 1, len(self.fields))
        return hashlib.sha256(line + known.tobytes()).digest()


class _Columns(Mapping[str, Array]):
    """Columns of the episode table of a version by name, each of which is made once."""

    def __init__(self, read: LoggedEpisodes, places: LogPlaces) -> None:
        self._read, self._places = read, places
        self._known: dict[str, Array] = {}

    @cached_property
    def _names(self) -> tuple[str, ...]:
        seeds = ("seed", "has_seed")
        has_seeds = "has_seed" in self._read.columns and bool(self._read.at("has_seed", self._places).any())
        stored = (name for name in self._read.columns if has_seeds or name not in seeds)
        return (*stored, *(_SPLIT + name for name in sorted(self._read.names("splits", self._places))))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> Array:
        if name not in self._known:
            if name not in self._names:
                raise KeyError(name)
            split = name.startswith(_SPLIT)
            made = self._read.split(name.removeprefix(_SPLIT), self._places) if split else None
            self._known[name] = self._read.at(name, self._places) if made is None else made
            self._known[name].flags.writeable = False
        return self._known[name]


def _area(c: Column) -> str:
    """Return what tells the arrays whose entries are numbered alike from others: "" of rows, else the field."""
    return "" if c.by_row else c.field


def _reopened(path: Path, number: int, version_id: str) -> LoggedTable:
    """Unpickle; refuse a dataset that has replaced the pickled one meanwhile."""
    table = LoggedTable.open(path, number)
    table.check_same(version_id, "pickled")
    return table


def _held(path: Path, wanted: int | None) -> tuple[Commit, logs.VersionLease]:
    """Return a version, with a hold on it."""
    until = time.monotonic() + _LONGEST_FREEING
    while True:
        g = commits.last(path) if wanted is None else commits.at(path, wanted)
        hold = logs.VersionLease(path, g.number)
        if freed(path)[0] <= g.departed:
            return g, hold
        if wanted is None and time.monotonic() <= until:
            hold.release()
        elif wanted is None:
            raise DamagedDataset(f"{path / logs.FREED} frees more than has left at version {g.number:,}.")
        elif freed(path)[1] > g.departed or time.monotonic() > until:
            hold.release()
            raise DatasetNotFound(
                f"Version {wanted:,} of {path} was freed: episodes of it are gone.",
                hint="open the newest one; a version stays while a process has it open",
            )
        else:  # a writer asks at this moment who holds what, and will see this hold or another one
            time.sleep(0.001)


class _LazyColumns(Mapping[str, Mapping[str, str]]):
    """The user's own episode columns, for the manifest."""

    def __init__(self, table: LoggedTable) -> None:
        self._table = table

    def __iter__(self) -> Iterator[str]:
        return iter(self._table.own_columns)

    def __len__(self) -> int:
        return len(self._table.own_columns)

    def __getitem__(self, name: str) -> Mapping[str, str]:
        column = self._table.own_column(name)
        digest = digests.of_column(name, column.values, column.missing)
        return {"dtype": column.dtype, "digest": digest}
