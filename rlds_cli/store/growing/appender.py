"""Commit episodes to a growing dataset: rows, logs, then one record that makes them count."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.files import disk
from rlds_cli.base.files import safe as safe_files
from rlds_cli.errors import NameTaken, NoSpace, RldsError
from rlds_cli.store import commits, layouts
from rlds_cli.store.commits import Commit
from rlds_cli.store.digests import Digests
from rlds_cli.store.growing import edits, films, logs, moving, retention
from rlds_cli.store.growing.areas import frame_bytes, spans_of
from rlds_cli.store.growing.edits import EditLog, Edits
from rlds_cli.store.growing.films import Film, FilmWriter
from rlds_cli.store.growing.opening import check_grows
from rlds_cli.store.growing.places import LogPlaces
from rlds_cli.store.growing.records import Records, about, counted, digests_of, of_chunk
from rlds_cli.store.growing.retention import Added
from rlds_cli.store.growing.row_files import RowFiles
from rlds_cli.store.growing.standing import Standing
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.own_columns import joint_kind, kind_of
from rlds_cli.store.videos import Locate
from rlds_cli.ted import Chunk, Column, EncodedFrames, EpisodeTable, Scalar, VideoFrames

Cleared = Literal["unprotected", "all"]
_SYNCS = 8  # files at a time
_ID = 16  # bytes
_BLOCK = 1 << 14  # records that are read together
_PAGE_EPISODES = layouts.PAGE_ROWS // 2  # an episode has two rows at least


@dataclass(slots=True)
class _State:
    """The newest version, as an appender knows it."""

    commit: Commit
    kept: retention.Kept
    standing: Standing
    edits: Edits
    kinds: dict[str, str]  # types of columns, as far as they are known; "int" where others may be floats or longer
    seen_freed: int  # departures whose rows are not counted any more
    codes: dict[str, dict[str, int]] = field(default_factory=dict)  # of the texts of each field
    ends: list[int] = field(default_factory=list)  # the rows, and the bytes of frames, that are committed
    ids: dict[bytes, int] | None = None  # id -> the last episode with it; read when an id is given
    films: Counter[int] = field(default_factory=Counter)  # videos of each field of encoded frames
    known: dict[str, dict[str, Film]] = field(default_factory=dict)  # of each field, by their names in the source


@dataclass(frozen=True, slots=True, kw_only=True)
class _WrittenColumns:
    """What the log says of the columns of a chunk, whose rows are written.

    ``digests`` [episodes, fields, 32] and ``frames`` [episodes, fields with frames, 2], the ranges of their bytes;
    ``strings`` are lines, and ``videos`` records.
    """

    digests: Digests
    frames: IntArray
    strings: bytes
    videos: Array


class Appender:
    """Appends episodes to a growing dataset; several may be at work on one.

    Parameters
    ----------
    path : Path
        A dataset that `make` made.
    shared : bool
        Let others write at the same time. Each commit is whole; episodes lie in the order of commits.
    durable : bool
        Wait at each commit until everything is on the disk: a commit then outlasts a power failure. Without it, it
        outlasts the end of the process.

    Raises
    ------
    NameTaken
        Another writer is at work, and one of the two does not share; or the dataset does not grow.
    NoPermission
        The directory may not be written.
    """

    def __init__(self, path: Path, *, shared: bool = False, durable: bool = True) -> None:
        self.path, self._durable = path, durable
        check_grows(path)
        try:
            lock = logs.lock_writers(path, shared=shared)
        except OSError as e:
            raise disk.disk_error(e, path, kept="It can be read.") from e
        if lock is None:
            raise NameTaken(
                f"{path} is being written by another process{' that does not share it' if shared else ''}.",
                hint="wait for it; or let all writers share: writer(..., shared=True)",
            )
        self._lock: int | None = lock
        self._syncing = ThreadPoolExecutor(_SYNCS, "sync")  # starts threads when there is something to do
        self.unsure: OSError | None = None  # the disk did not confirm a commit that readers see
        try:
            head = Manifest.read(path)
            self.schema = tuple(sorted((f.field for f in head.fields), key=lambda f: f.name))
            self._edit_log = EditLog(path, head)
            self.keep = retention.from_json(head.growing.get("keep", {}))
            self._rows = RowFiles(path, head, durable=durable)
            self._frames = list(self._rows.of_bytes)  # fields of encoded frames
            with logs.committing(path):
                self._stale = False
                self._state = self._read()
                self._rows.sweep(self._state.ends)
                with suppress(OSError, RldsError):
                    self.free()
        except BaseException:
            os.close(lock)
            raise

    @property
    def newest(self) -> Commit:
        """The newest version that this appender has seen."""
        return self._state.commit

    def bytes_of_frames(self) -> int:
        """Return the bytes of the encoded frames of the episodes that are kept; a shared video counts once."""
        g = self._state.commit
        numbers = np.flatnonzero(self._state.standing.between(g.first_episode, g.episodes) == Standing.KEPT)
        e = self._records(g.first_episode, g.episodes)[numbers]
        return frame_bytes(e)

    def close(self) -> None:
        """Tell other Zarr readers how many rows there are, and let others write."""
        if self._lock is None:
            return
        try:
            with logs.committing(self.path):
                self._rows.describe(self._ends(commits.last(self.path)))
        except OSError as e:
            raise disk.disk_error(e, self.path, kept="All commits are kept.") from e
        finally:
            self._rows.close()
            self._syncing.shutdown()
            os.close(self._lock)
            self._lock = None

    # -- the state

    def _read(self) -> _State:
        """Read the state of the newest version."""
        g = commits.last(self.path)
        done = min(logs.freed(self.path)[1], g.departed)
        logs.check_there(self.path, g.episodes, len(self._frames))
        waiting = logs.read_departed(self.path, g.departed, done, episodes=g.episodes)
        first = min([g.first_episode, *waiting.tolist()])
        self._rows.reset()
        s = _State(g, retention.at_work(self.keep), Standing(first, g.episodes), self._edit_log.read(g), {}, done)
        for a in range(0, done, _BLOCK):
            left = logs.read_departed(self.path, min(done, a + _BLOCK), a, episodes=g.episodes)
            s.standing.set(left.tolist(), Standing.FREED)
        s.standing.set(waiting.tolist(), Standing.LEFT)
        s.standing.set(range(first, g.first_episode), Standing.FREED)
        s.standing.set((n for n in waiting.tolist() if n < g.first_episode), Standing.LEFT)
        self._hide(s)
        for a, e in chain(
            self._blocks(first, g.first_episode, (0, 0)), self._blocks(g.first_episode, g.episodes, (g.first_row, 0))
        ):
            standing = s.standing.between(a, a + len(e))
            self._rows.count(e[standing != Standing.FREED])
            kept = np.flatnonzero(standing == Standing.KEPT)
            self._take(s, kept + a, e[kept])
        self._learn(s.codes, 0, g.strings)
        self._count_films(s, 0, g.videos)
        s.ends = self._ends(g)
        return s

    def _hide(self, s: _State) -> None:
        """Note which episodes are dropped."""
        first, stop = s.commit.first_episode, s.commit.episodes
        kept = s.standing.between(first, stop) == Standing.KEPT
        dropped = kept & s.edits.dropped(LogPlaces(range(first, stop)))
        s.standing.set((np.flatnonzero(dropped) + first).tolist(), Standing.DROPPED)

    def _ends(self, g: Commit) -> list[int]:
        """Return the rows, and the bytes of the frames of each field, that a version has in all."""
        last = self._records(g.episodes - 1, g.episodes)["frames"] if g.episodes else None
        return [g.rows, *([0] * len(self._frames) if last is None else last[0, :, 1].tolist())]

    def _records(self, first: int, stop: int) -> Records:
        """Read the records of episodes [first, stop)."""
        return logs.read_episodes(self.path, first, stop, len(self._frames))

    def _blocks(self, first: int, stop: int, begin: tuple[int, int]) -> Iterator[tuple[int, Records]]:
        """Read the records of episodes [first, stop), a few at a time; ``begin`` as `logs.check_episodes` has it."""
        for a in range(first, stop, _BLOCK):
            e = self._records(a, min(stop, a + _BLOCK))
            begin = logs.check_episodes(e, begin, commits.last(self.path).rows, 1 << 31, self.path)
            yield a, e

    def _take(self, s: _State, numbers: IntArray, e: Records) -> None:
        """Tell the policy of existing episodes."""
        if self.keep is not None:
            values = self._labelled(s, numbers, self._values(e))
            for number, record, value in zip(numbers.tolist(), e, values, strict=True):
                if not record["protected"]:
                    s.kept.take(Added(number, int(record["length"]), value, int(record["born"])))

    def _labelled(self, s: _State, numbers: IntArray, values: list[float]) -> list[float]:
        """Return the numbers by which `Top` keeps episodes, given those that were recorded."""
        if not isinstance(self.keep, retention.Top) or self.keep.by not in s.edits.names or not len(numbers):
            return values
        return list(map(_number, s.edits.labelled(self.keep.by, values, LogPlaces(numbers))))

    def _learn(self, codes: dict[str, dict[str, int]], first: int, stop: int) -> None:
        for name, text in logs.read_strings(self.path, first, stop):
            known = codes.setdefault(name, {})
            known[text] = len(known)

    def _count_films(self, s: _State, first: int, stop: int) -> None:
        s.films.update(logs.read_videos(self.path, first, stop, len(self._frames))["field"].tolist())

    def _values(self, e: Records) -> list[float]:
        """Return the numbers by which `Top` keeps episodes."""
        if not isinstance(self.keep, retention.Top):
            return [float("nan")] * len(e)
        if self.keep.by in ("total_reward", "length"):
            return [float(v) for v in e[self.keep.by]]
        found = []
        for record in e:
            at, size = int(record["about"]), int(record["about_bytes"])
            line = logs.read_part(self.path / logs.ABOUT, at, at + size) or b"{}"
            found.append(_number(logs.about_of(line, self.path).get("extra", {}).get(self.keep.by)))
        return found

    def _follow(self) -> None:
        """Take up what other writers have committed."""
        s, old, new = self._state, self._state.commit, commits.last(self.path)
        if self._stale or new.moved != old.moved or new.edits != old.edits:
            self._state, self._stale = self._read(), False
            self._give_back()
            return
        if new.number == old.number:
            return
        left = logs.read_departed(self.path, new.departed, old.departed).tolist()
        s.standing.extend(new.episodes)
        s.standing.set(left, Standing.LEFT)
        for a, e in self._blocks(old.episodes, new.episodes, (old.rows, old.about)):
            self._rows.count(e)
            s.ends[1:] = e["frames"][-1, :, 1].tolist()
            stays = s.standing.between(a, a + len(e)) == Standing.KEPT
            stays = np.flatnonzero(stays & ~e["open"])
            self._take(s, stays + a, e[stays])
            _learn_ids(s, a, e)
        s.kept.forget(left)
        s.kinds.clear()
        self._learn(s.codes, old.strings, new.strings)
        self._count_films(s, old.videos, new.videos)
        s.commit, s.ends[0] = new, new.rows

    # -- commits

    def commit(
        self,
        chunk: Chunk,
        *,
        protected: Sequence[bool] = (),
        opened: Sequence[bool] = (),
        leaving: Iterable[int] = (),
        cleared: Cleared | None = None,
        sources: Sequence[Mapping[str, Any]] = (),
        locate: Locate | None = None,
    ) -> tuple[Commit, list[int]]:
        """Append whole episodes, and let others leave; return the new version and the episodes' numbers.

        Parameters
        ----------
        chunk : Chunk
            Rows of whole episodes; ``episodes.source`` counts from the first of ``sources``.
        protected : sequence of bool
            Episodes that the policy never lets leave; none of them by default.
        opened : sequence of bool
            Episodes that continue, and are replaced then: the policy does not count them yet. None by default.
        leaving : iterable of int
            Numbers of earlier episodes, which leave; those that have left already are passed over.
        cleared : {"unprotected", "all"}, optional
            Which other earlier episodes leave, those of other writers as well; none by default.
        sources : sequence of mapping
            Archive files that the episodes come from.
        locate : callable, optional
            Finds the videos that rows refer to. One that the last episodes refer to, by the same name, is not stored
            again.

        Raises
        ------
        NoSpace
            The disk is full. The dataset is as it was before.
        """
        count = len(chunk.episodes)
        with logs.committing(self.path):
            self._follow()
            try:
                marks = [list(given) or [False] * count for given in (protected, opened)]
                cleared_ones = self._clearable(cleared) if cleared else []
                done = self._commit(chunk, marks[0], marks[1], list(leaving), cleared_ones, sources, locate)
            except BaseException as e:  # codes of texts, and what the policy let go, are not committed
                self._stale = True
                self._give_back()
                if isinstance(e, OSError):
                    raise self._refused(e, count) from e
                raise
            with suppress(OSError, RldsError):  # the next commit tries again
                self.free()
            return done

    def _clearable(self, which: Cleared) -> list[int]:
        """Return the numbers of the kept and dropped episodes, without the protected ones unless ``all`` leave."""
        g, found = self._state.commit, list[int]()
        for a, e in self._blocks(g.first_episode, g.episodes, (g.first_row, 0)):
            chosen = np.isin(self._state.standing.between(a, a + len(e)), (Standing.KEPT, Standing.DROPPED))
            chosen &= ~e["protected"] | (which == "all")
            found += (np.flatnonzero(chosen) + a).tolist()
        return found

    def _refused(self, e: OSError, count: int) -> RldsError:
        if disk.is_full(e):
            return NoSpace(
                f"The disk of {self.path} is full; {count:,} episodes are not committed.",
                hint="free some space and commit again; everything before is readable",
            )
        return disk.disk_error(e, self.path, kept=f"{count:,} episodes are not committed.")

    def _commit(
        self,
        chunk: Chunk,
        protected: list[bool],
        opened: list[bool],
        replaced: list[int],
        cleared: list[int],
        sources: Sequence[Mapping[str, Any]],
        locate: Locate | None,
    ) -> tuple[Commit, list[int]]:
        s, g, table = self._state, self._state.commit, chunk.episodes
        numbers = list(range(g.episodes, g.episodes + len(table)))
        row, *ends = self._rows.begin(s.ends)
        written = self._write_rows(chunk, row, ends, locate)
        told = [json.dumps(d, separators=(",", ":")).encode() + b"\n" if d else b"" for d in about(table)]
        known = len(logs.read_lines(self.path / logs.SOURCES, 0, g.sources)) if sources else 0
        records = of_chunk(chunk, row, known, written.frames)
        at = g.about + np.cumsum([0, *map(len, told)])
        records["about"], records["about_bytes"] = at[:-1], [len(t) for t in told]
        records["protected"], records["open"], records["born"] = protected, opened, numbers
        self._check_kinds(table)
        departed = [n for n in dict.fromkeys([*replaced, *cleared]) if s.standing.is_stored(n)]
        s.kept.forget(departed)
        records["id"] = self._ids(table, set(departed))
        earlier = self._earlier(records, [n for n in replaced if n in departed])
        carried = edits.encoded(s.edits.carried(_places(earlier.values()), _places(earlier)))
        hidden = [n for n, old in earlier.items() if s.standing[old] == Standing.DROPPED]
        let_go = list[int]()
        for number, record, value in zip(numbers, records, self._values_of(records, table), strict=True):
            if not (record["protected"] or record["open"] or number in hidden):
                if number in earlier:
                    (value,) = self._labelled(s, np.array([earlier[number]]), [value])
                let_go += s.kept.add(Added(number, int(record["length"]), value, number))
        departed += [*let_go, *self._as_old(let_go, departed)]
        lines = b"".join(json.dumps(dict(x)).encode() + b"\n" for x in sources)
        counts = [n for n in departed if n >= g.episodes or s.standing[n] == Standing.KEPT]
        gone = self._records_of([n for n in counts if n < g.episodes])
        gone = np.concatenate([gone, records[[n - g.episodes for n in counts if n >= g.episodes]]])
        added = {
            logs.EPISODES: records.tobytes(),
            logs.DIGESTS: written.digests.tobytes(),
            logs.DEPARTED: np.array(departed, "<i8").tobytes(),
            logs.ABOUT: b"".join(told),
            logs.SOURCES: lines,
            logs.STRINGS: written.strings,
            logs.VIDEOS: written.videos.tobytes(),
            logs.EDITS: carried,
        }
        new = counted(
            replace(
                g,
                number=g.number + 1,
                rows=row + len(chunk),
                episodes=g.episodes + len(table),
                departed=g.departed + len(departed),
                about=int(at[-1]),
                sources=g.sources + len(lines),
                strings=g.strings + len(written.strings),
                videos=g.videos + len(written.videos),
                edits=g.edits + len(carried),
                dropped=g.dropped + len(hidden) - (len(departed) - len(counts)),
                time=time.time(),
                logs=logs.chained(g, added.values()),
            ),
            records[~np.isin(numbers, hidden)],
            gone,
        )
        new = self._first_kept(new, set(departed), records)
        self._publish(new, added)
        _learn_ids(s, g.episodes, records)
        s.standing.extend(new.episodes)
        s.standing.set(hidden, Standing.DROPPED)
        s.standing.set(departed, Standing.LEFT)
        s.edits = self._edit_log.read(new)
        s.ends = self._ends(new)
        self._count_films(s, g.videos, new.videos)
        self._rows.count(records)
        return new, numbers

    def _write_rows(self, chunk: Chunk, row: int, ends: list[int], locate: Locate | None) -> _WrittenColumns:
        """Write the rows of a chunk from ``row`` on, and its frames from the bytes ``ends`` of their files on."""
        table, start, strings = chunk.episodes, chunk.episodes.start, bytearray()
        hashed = np.empty((len(table), len(self.schema), logs.DIGEST), np.uint8)
        frames = np.zeros((len(table), len(self._frames), 2), np.int64)
        videos = [np.zeros(0, logs.VIDEO_RECORD)]
        for i, f in enumerate(self.schema):
            column = values = chunk.columns[f.name]
            files = None
            if f.kind == "text":
                values = self._encoded(f.name, column, strings)
            elif isinstance(column, EncodedFrames):
                k = self._frames.index(f.name)
                values = self._rows.write_frames(f.name, column, ends[k], start)
                frames[:, k] = np.stack([values[start, 0], values[start + table.length, 1]], 1)
            elif isinstance(column, VideoFrames):
                assert locate is not None
                k, to = self._frames.index(f.name), self._film_writer(f.name, ends)
                values, frames[:, k], files = films.write(to, column, start, partial(locate, f.name))
                videos.append(to.records())
            assert isinstance(values, np.ndarray)
            hashed[:, i], of_rows = digests_of(f, column, start, table.length, table.num_observed, files)
            self._rows.write(f.name, row, values, of_rows)
        return _WrittenColumns(digests=hashed, frames=frames, strings=bytes(strings), videos=np.concatenate(videos))

    def _check_kinds(self, table: EpisodeTable) -> None:
        """Refuse values of another type than those of their column, which then could not be read."""
        table.check_subtasks()
        known = self._state.kinds
        for name, values in table.extra.items():
            given = {kind_of(v) for v in values if v is not None}
            kind = known.get(name)
            if given and (kind is None or (kind == "int" and given != {"int"})):
                kind = self._kind_of_column(name, given)
            for value in values:
                if value is not None:
                    kind = known[name] = joint_kind(kind, value, name, f"an episode for {self.path.name}")

    def _kind_of_column(self, name: str, given: set[str]) -> str | None:
        """Return the type of a column of kept and dropped episodes, as far as it matters for types ``given``."""
        s, g, kind = self._state, self._state.commit, None
        for a in reversed(range(g.first_episode, g.episodes, _BLOCK)):
            e = self._records(a, min(a + _BLOCK, g.episodes))
            standing = s.standing.between(a, a + len(e))
            stored = LogPlaces(np.flatnonzero(np.isin(standing, (Standing.KEPT, Standing.DROPPED))) + a)
            recorded = stored.pick_list(self._recorded(e, name), a)
            for value in s.edits.labelled(name, recorded, stored):
                if value is not None:
                    kind = joint_kind(kind, value, name, self.path.name)
            if kind is not None and (kind != "int" or given == {"int"}):
                break
        return kind

    def _recorded(self, e: Records, name: str) -> list[Scalar]:
        """Return the values of a column that were recorded with episodes, which follow each other."""
        found: list[Scalar] = [None] * len(e)
        first, stop = int(e["about"][0]), int(e["about"][-1]) + int(e["about_bytes"][-1])
        lines = logs.read_part(self.path / logs.ABOUT, first, stop)
        if json.dumps(name).encode() in lines:
            for k in np.flatnonzero(e["about_bytes"]).tolist():
                at = int(e["about"][k]) - first
                line = lines[at : at + int(e["about_bytes"][k])]
                found[k] = logs.about_of(line, self.path).get("extra", {}).get(name)
        return found

    def _earlier(self, records: Records, replaced: Sequence[int]) -> dict[int, int]:
        """Return the numbers of episodes that continue, each with the one that it replaces, if there are edits."""
        s = self._state
        if not s.edits.lines or not replaced:
            return {}
        old = {bytes(e["id"]): n for n, e in zip(replaced, self._records_of(replaced), strict=True)}
        ids = enumerate((bytes(id) for id in records["id"]), s.commit.episodes)
        return {number: old[id] for number, id in ids if id in old}

    def _as_old(self, let_go: Sequence[int], departed: Sequence[int]) -> list[int]:
        """Return the dropped episodes that are older than those that `Fifo` let go."""
        s, g = self._state, self._state.commit
        stop = min(g.episodes, max(let_go, default=0))
        if not isinstance(self.keep, retention.Fifo) or not g.dropped or stop <= g.first_episode:
            return []
        dropped = np.flatnonzero(s.standing.between(g.first_episode, stop) == Standing.DROPPED) + g.first_episode
        e = self._records_of(dropped.tolist())
        return [n for n in dropped[~e["protected"]].tolist() if n not in departed]

    def _film_writer(self, name: str, ends: Sequence[int]) -> FilmWriter:
        """Return what writes the videos of a field, from the first free byte of its area on, one of ``ends``."""
        s, k = self._state, self._frames.index(name)
        last = s.commit.episodes - 1
        if last >= 0 and s.standing[last] != Standing.FREED:
            first = int(self._records(last, last + 1)["frames"][0, k, 0])
            known = {name: film for name, film in s.known.get(name, {}).items() if film.start >= first}
        else:
            known = {}
        s.known[name] = known
        return FilmWriter(k, self._rows.of_bytes[name], s.films[k], ends[k], known)

    def _ids(self, table: EpisodeTable, departed: set[int]) -> Digests:
        """Return an id for each episode [episodes, 16]: its own, or a new one if a kept or dropped one has it."""
        found = np.frombuffer(secrets.token_bytes(_ID * len(table)), np.uint8).reshape(-1, _ID)
        if table.id is None:
            return found
        s, found, seen = self._state, found.copy(), set[bytes]()
        if s.ids is None:
            s.ids = {}
            for a, e in self._blocks(s.commit.first_episode, s.commit.episodes, (s.commit.first_row, 0)):
                _learn_ids(s, a, e)
        for k, id in enumerate(bytes(row) for row in table.id):
            number = s.ids.get(id)
            held = number is not None and s.standing.is_stored(number) and number not in departed
            if any(id) and not held and id not in seen:
                found[k] = np.frombuffer(id, np.uint8)
                seen.add(id)
        return found

    def _publish(self, new: Commit, added: Mapping[str, bytes]) -> None:
        """Append to the logs, wait for rows and logs to be on the disk, and write the record of a version."""
        at = logs.sizes(self._state.commit, self.schema)
        self._write_logs({name: (at[name], data) for name, data in added.items()})
        with safe_files.updating(self.path / commits.FILE) as log:
            disk.write_at(log.fileno(), new.number * commits.BYTES, new.packed())
            self._state.commit = new  # readers see it from here on
            if self._durable:
                try:
                    logs.sync(log.fileno())
                except OSError as e:
                    self.unsure = e

    def _write_logs(self, added: Mapping[str, tuple[int, bytes]]) -> None:
        """Append to the logs; rows and logs are on the disk then."""
        with ExitStack() as opened:
            descriptors = self._rows.dirty()
            for name, (at, data) in added.items():
                if data:
                    linked = name in logs.LOOKED_UP
                    log = opened.enter_context(safe_files.updating(self.path / name, linked=linked))
                    disk.write_at(log.fileno(), at, data)
                    descriptors.append(log.fileno())
            if self._durable:
                self._sync(descriptors)

    def _sync(self, descriptors: Sequence[int]) -> None:
        """Wait until files are on the disk, side by side: it then takes all of them at once."""
        try:
            syncs = [self._syncing.submit(logs.sync, d) for d in descriptors]
        except RuntimeError:  # the interpreter ends, and starts no threads any more
            for descriptor in descriptors:
                logs.sync(descriptor)
            return
        wait(syncs)  # also where one fails: the files are closed then
        for sync in syncs:
            sync.result()

    def _give_back(self) -> None:
        """Free the disk that rows take which were not committed."""
        with suppress(OSError, RldsError):
            self._rows.drop(self._ends(self._state.commit))

    def _first_kept(self, g: Commit, departed: set[int], records: Records) -> Commit:
        """Move the first episode that is kept or dropped, where it left."""
        first, old, standing = g.first_episode, g.episodes - len(records), self._state.standing
        while first < g.episodes and (first in departed or (first < old and not standing.is_stored(first))):
            first += 1
        if first == g.first_episode:
            return g
        if first < old:
            row = int(self._records(first, first + 1)["start"][0])
        else:
            row = int(records["start"][first - old]) if first < g.episodes else g.rows
        return replace(g, first_episode=first, first_row=row)

    def _encoded(self, name: str, column: Column, strings: bytearray) -> Array:
        """Return the codes of texts, and add lines for new ones."""
        assert isinstance(column, list)
        codes, out = self._state.codes.setdefault(name, {}), np.empty(len(column), np.int32)
        for i, text in enumerate(column):
            if text is not None and text not in codes:
                codes[text] = len(codes)
                strings += json.dumps([name, text]).encode() + b"\n"
            out[i] = -1 if text is None else codes[text]
        return out

    def _values_of(self, records: Records, table: EpisodeTable) -> list[float]:
        if isinstance(self.keep, retention.Top) and self.keep.by not in ("total_reward", "length"):
            return [_number(v) for v in table.extra.get(self.keep.by, [None] * len(table))]
        return self._values(records)

    def _records_of(self, numbers: Sequence[int]) -> Records:
        if not numbers:
            return np.zeros(0, logs.episode(len(self._frames)))
        first, last = min(numbers), max(numbers)
        if last - first < 4 * len(numbers) + 64:
            found: Records = self._records(first, last + 1)[np.array(numbers) - first]
            return found
        return np.concatenate([self._records(n, n + 1) for n in numbers])

    # -- episodes end to end

    def compact(self) -> Commit:
        """Write the episodes that are kept once more, end to end, where others left between them.

        Contents, order and fingerprint stay. The old rows leave, and so do dropped episodes; they are freed when no
        reader holds them. A kill leaves the dataset as it was before.

        Returns
        -------
        Commit
            The new one; the newest without anything to do.

        Raises
        ------
        NoSpace
            The disk is full. The dataset is as it was before.
        """
        with logs.committing(self.path):
            self._follow()
            g = self.newest
            standing = self._state.standing.between(g.first_episode, g.episodes)
            numbers = np.flatnonzero(standing == Standing.KEPT)
            dense = g.rows - g.first_row == g.steps + g.kept  # no new segment was begun because of a shared one
            if len(numbers) == g.episodes - g.first_episode and dense:
                return g
            dropped = np.flatnonzero(standing == Standing.DROPPED)
            try:
                self._move(numbers + g.first_episode, dropped + g.first_episode)
            except BaseException as e:
                self._stale = True
                self._give_back()
                if not isinstance(e, OSError):
                    raise
                if not disk.is_full(e):
                    raise disk.disk_error(e, self.path, kept="Nothing was compacted.") from e
                raise NoSpace(
                    f"The disk of {self.path} is full; nothing was compacted.",
                    hint="the episodes that are kept are written once more before the old rows are freed",
                ) from e
            self._state = self._read()
            with suppress(OSError, RldsError):
                self.free()
            return self.newest

    def _move(self, left: IntArray, dropped: IntArray) -> None:
        """Write episodes once more, which leave where they are, with those that are dropped."""
        s, g = self._state, self._state.commit
        moved = moving.move(self.path, self._rows, g, self._records_of(left.tolist()), s.ends, s.films)
        departed = np.concatenate([left, dropped])
        labels = s.edits.carried(LogPlaces(left), LogPlaces(range(g.episodes, g.episodes + len(left))))
        added = {
            logs.EPISODES: moved.records.tobytes(),
            logs.DIGESTS: self._digests_of(left).tobytes(),
            logs.DEPARTED: departed.astype("<i8").tobytes(),
            logs.ABOUT: moved.about,
            logs.VIDEOS: moved.videos.tobytes(),
            logs.EDITS: edits.encoded(labels),
        }
        new = replace(
            g,
            number=g.number + 1,
            rows=moved.stop,
            episodes=g.episodes + len(left),
            departed=g.departed + len(departed),
            about=g.about + len(moved.about),
            videos=g.videos + len(moved.videos),
            edits=g.edits + len(added[logs.EDITS]),
            dropped=0,
            first_row=moved.first,
            first_episode=g.episodes,
            moved=g.moved + 1,
            time=time.time(),
            logs=logs.chained(g, added.values()),
        )
        self._publish(new, added)

    def _digests_of(self, wanted: IntArray) -> Digests:
        """Return the digests of episodes [episodes, fields, 32], in ascending order of numbers."""
        fields = len(self.schema)
        parts = [np.zeros((0, fields, logs.DIGEST), np.uint8)]
        for a in range(int(wanted[0]) if len(wanted) else 0, int(wanted[-1]) + 1 if len(wanted) else 0, _BLOCK):
            block = wanted[np.searchsorted(wanted, a) : np.searchsorted(wanted, a + _BLOCK)]
            if len(block):
                parts.append(logs.read_digests(self.path, a, int(block[-1]) + 1, fields)[block - a])
        return np.concatenate(parts)

    # -- rows that nobody needs

    def free(self) -> int:
        """Free the rows of episodes that left before every version that is held; return how many episodes.

        A commit does so, too; call it with the lock of commits (`logs.committing`).
        """
        s, g = self._state, self._state.commit
        upto = done = min(logs.freed(self.path)[1], g.departed)
        if done < g.departed:
            logs.say_freed(self.path, g.departed, done)
            held = logs.oldest_held(self.path, g.number)
            upto = g.departed if held >= g.number else max(done, commits.at(self.path, held).departed)
            logs.say_freed(self.path, upto, done)
        if upto > s.seen_freed:  # by others, too
            self._free(logs.read_departed(self.path, upto, s.seen_freed).tolist())
            s.seen_freed = upto
        self._rows.remove_empty(s.ends)
        if upto > done:
            logs.say_freed(self.path, upto, upto)
        return upto - done

    def _free(self, numbers: list[int]) -> None:
        s, e = self._state, self._records_of(numbers)
        self._rows.release(e)
        s.standing.set(numbers, Standing.FREED)
        order = np.argsort(e["start"])
        e, numbers = e[order], [numbers[k] for k in order]
        inside = np.flatnonzero(e["start"] >= s.commit.first_row)
        unneeded = [self._free_rows(*run) for run in _runs([numbers[k] for k in inside])]
        if len(inside) < len(e) and not isinstance(self.keep, retention.Fifo):  # whose segments are removed in turn
            needed, sizes = self._first_needed(), self._rows.segment_rows
            unneeded.append(np.stack([needed // sizes * sizes, needed], 1))
        for rows in unneeded:
            self._rows.punch(rows)
        s.standing.trim()

    def _first_needed(self) -> IntArray:
        """Return the first row in each area of the first episode whose rows are not freed [areas]."""
        number, g = self._state.standing.first_not(Standing.FREED), self._state.commit
        return spans_of(self._records_of([number]))[0, :, 0] if number < g.episodes else np.array(self._state.ends)

    def _free_rows(self, first: int, stop: int) -> IntArray:
        """Return the rows around episodes [first, stop) that nobody needs, in each area [areas, 2].

        They reach up to a page of the narrowest field.
        """
        s, g = self._state, self._state.commit
        a, b = max(g.first_episode, first - _PAGE_EPISODES), min(g.episodes, stop + _PAGE_EPISODES)
        around = spans_of(self._records(max(0, a - 1), min(b + 1, g.episodes)))
        spans = around[min(a, 1) :][: b - a]
        needed = s.standing.between(a, b) != Standing.FREED
        before, after = np.flatnonzero(needed[: first - a]), np.flatnonzero(needed[stop - a :])
        # Where no episode nearby is needed, those beyond may be, and share a video.
        begins = spans[before[-1], :, 1] if len(before) else np.maximum(spans[0, :, 0], around[0, :, 1] if a else 0)
        ends = spans[stop - a + after[0], :, 0] if len(after) else spans[-1, :, 1]
        if not len(after) and b < g.episodes:
            ends = np.minimum(ends, around[-1, :, 0])
        return np.stack([begins, ends], 1)


def _learn_ids(s: _State, first: int, e: Records) -> None:
    """Add the ids of episodes from number ``first`` on, once ids were read."""
    if s.ids is not None:
        s.ids.update((bytes(id), first + k) for k, id in enumerate(e["id"]))


def _places(numbers: Iterable[int]) -> LogPlaces:
    return LogPlaces(np.array(list(numbers), np.int64))


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Join numbers, in order, that follow each other: (first, behind the last)."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    return found


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
