"""Commit episodes to a dataset that grows: rows, logs, then one record that makes them count."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds_cli import __version__
from rlds_cli.errors import InvalidEpisode, NameTaken, NoSpace
from rlds_cli.files import disk
from rlds_cli.files import safe as safe_files
from rlds_cli.growing import content, logs, retention, segments
from rlds_cli.growing.retention import Added, Keep
from rlds_cli.growing.segments import SegmentMap, SegmentWriter
from rlds_cli.growing.store import FREED, freed
from rlds_cli.store import arrays, generations, manifest, statistics
from rlds_cli.store.generations import Generation
from rlds_cli.store.manifest import GROWING_FORMAT, Counts, Manifest, StoredField
from rlds_cli.store.opening import field_of
from rlds_cli.store.paths import assign_paths
from rlds_cli.ted import (
    CUT,
    FLAGS,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Array,
    Chunk,
    Column,
    EpisodeTable,
    Field,
    IntArray,
)

Records = npt.NDArray[np.void]
_MOVED_BYTES = 16 << 20  # of a field that are copied at once


def make(
    directory: Path,
    id: str,
    schema: Sequence[Field],
    *,
    keep: Keep | None = None,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write a dataset that grows, without episodes, into an empty directory. ``about`` are members of the manifest."""
    for f in schema:
        if f.kind == "frames":
            raise InvalidEpisode(
                f"{f.name}: a dataset that grows holds arrays and text, not encoded frames.",
                hint="decode them: arrays of uint8",
            )
    width = sum(arrays.row_bytes((0, *shape), dtype) for dtype, shape in map(segments.stored_row, schema))
    limit = keep.steps if isinstance(keep, retention.Fifo) else None
    segment_rows = segments.rows_of_segment(width, None if limit is None else max(segments.PAGE_ROWS, limit // 8))
    paths = assign_paths(f.name for f in schema)
    growing = (
        {"segment_rows": segment_rows, "keep": retention.to_json(keep)} if keep else {"segment_rows": segment_rows}
    )
    head = Manifest(
        format=GROWING_FORMAT,
        id=id,
        encoding="memmap",
        fields=tuple(_stored(f, paths[f.name]) for f in sorted(schema, key=lambda f: f.name)),
        counts=Counts(**generations.counts_of(Generation())),
        fingerprint=Generation(content=content.content(schema, content.no_sums())).fingerprint,
        created=time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        rlds_version=__version__,
        stats={f.name: _no_stats(f) for f in schema if f.kind == "array" and "complex" not in f.dtype},
        growing=growing,
        **dict(about or {}),
    )
    for f in schema:
        field = directory / paths[f.name]
        field.mkdir(parents=True)
        safe_files.write_bytes(field / "zarr.json", json.dumps(segments.document(f, 0, segment_rows)).encode())
    _write_groups(directory)
    for name in (logs.EPISODES, logs.DEPARTED, logs.ABOUT, logs.SOURCES, logs.STRINGS):
        safe_files.write_bytes(directory / name, b"")
    for name in (logs.READERS, logs.WRITERS, logs.COMMIT):
        safe_files.write_bytes(directory / name, b"")
    safe_files.write_bytes(directory / FREED, bytes(8))
    first = Generation(time=time.time(), content=content.content(schema, content.no_sums()))
    content.save(directory, 0, content.no_sums())
    safe_files.write_bytes(directory / generations.FILE, first.packed())
    arrays.write_group(directory, {"rlds": head.to_json()})
    manifest.read(directory)  # refuse now what would be refused on opening
    for path in [directory, *(p for p in directory.rglob("*") if p.is_dir())]:
        disk.sync_directory(path)


def _stored(f: Field, path: str) -> StoredField:
    digest = statistics.field_digest(f.name, f.dtype, f.shape, f.placement, f.kind, statistics.as_array([]))
    return StoredField(f.name, path, f.dtype, f.shape, f.placement, f.kind, f.codec, digest)


def _no_stats(f: Field) -> dict[str, Any]:
    return asdict(statistics.Accumulator(f.shape).result(np.zeros((0, *f.shape), f.dtype)))


def _write_groups(directory: Path) -> None:
    for entry in directory.iterdir():
        if entry.is_dir() and not (entry / "zarr.json").exists():
            arrays.write_group(entry)
            _write_groups(entry)


@dataclass(slots=True)
class _State:
    """What an appender knows of the newest generation."""

    generation: Generation
    sums: content.Sums
    kept: retention.Kept
    codes: dict[str, dict[str, int]]  # of the texts of each field
    gone: set[int]  # episodes after the first one that is kept, which left


class Appender:
    """Appends episodes to a dataset that grows; several may be at work on one.

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
        Another writer is at work, and one of the two does not share.
    """

    def __init__(self, path: Path, *, shared: bool = False, durable: bool = True) -> None:
        self.path, self._durable = path, durable
        lock = logs.lock_writers(path, shared=shared)
        if lock is None:
            raise NameTaken(
                f"{path} is being written by another process{' that does not share it' if shared else ''}.",
                hint="wait for it; or let all writers share: writer(..., shared=True)",
            )
        self._lock: int | None = lock
        try:
            head = manifest.read(path)
            self.schema = tuple(map(field_of, head.fields))
            self._segment_rows = int(head.growing["segment_rows"])
            self.keep = retention.from_json(head.growing.get("keep", {}))
            self._writers = {f.name: SegmentWriter(path / f.path, field_of(f), self._segment_rows) for f in head.fields}
            self._paths = {f.name: path / f.path for f in head.fields}
            with logs.committing(path):
                self._state = self._read()
                self._live = self._count_live()
        except BaseException:
            os.close(lock)
            raise

    @property
    def generation(self) -> Generation:
        """The newest generation that this appender has seen."""
        return self._state.generation

    def close(self) -> None:
        """Tell other Zarr readers how many rows there are, and let others write."""
        if self._lock is None:
            return
        with logs.committing(self.path):
            rows = generations.last(self.path).rows
            for f in self.schema:
                text = json.dumps(segments.document(f, rows, self._segment_rows))
                safe_files.replace_text(self._paths[f.name] / "zarr.json", text)
                self._writers[f.name].close()
        os.close(self._lock)
        self._lock = None

    # -- the state

    def _read(self) -> _State:
        """Read the state of the newest generation."""
        g = generations.last(self.path)
        left = logs.read_departed(self.path, g.departed)
        state = _State(
            g, content.no_sums(), retention.at_work(self.keep), {}, set(left[left >= g.first_episode].tolist())
        )
        numbers = self._kept_numbers(g)
        e = logs.read_episodes(self.path, g.first_episode, g.episodes)[numbers - g.first_episode]
        sums = content.load(self.path, g.number)
        if sums is None:  # the commit was killed before it kept them, or they are damaged
            sums = content.changed(content.no_sums(), (bytes(d) for d in e["digest"]))
        state.sums = sums
        self._tell(state.kept, numbers.tolist(), e)
        self._learn(state.codes, 0, g.strings)
        return state

    def _tell(self, kept: retention.Kept, numbers: Sequence[int], e: Records) -> list[int]:
        """Tell the policy of episodes, and return those that leave by it."""
        left = []
        for number, record, value in zip(numbers, e, self._values(e), strict=True):
            if not record["protected"]:
                left += kept.add(Added(number, int(record["length"]), value, int(record["born"])))
        return left

    def _learn(self, codes: dict[str, dict[str, int]], first: int, stop: int) -> None:
        for name, text in logs.read_lines(self.path / logs.STRINGS, first, stop):
            known = codes.setdefault(name, {})
            known[text] = len(known)

    def _kept_numbers(self, g: Generation) -> IntArray:
        stays = np.ones(g.episodes - g.first_episode, bool)
        left = logs.read_departed(self.path, g.departed) - g.first_episode
        stays[left[left >= 0]] = False
        return np.flatnonzero(stays) + g.first_episode

    def _values(self, e: Records) -> list[float]:
        """Return the numbers by which `Top` keeps episodes."""
        if not isinstance(self.keep, retention.Top):
            return [float("nan")] * len(e)
        if self.keep.by in ("total_reward", "length"):
            return [float(v) for v in e[self.keep.by]]
        found = []
        for record in e:
            at, size = int(record["about"]), int(record["about_bytes"])
            line = logs.read_lines(self.path / logs.ABOUT, at, at + size) if size else [{}]
            found.append(_number(line[0].get("extra", {}).get(self.keep.by)))
        return found

    def _follow(self) -> None:
        """Take up what other writers have committed."""
        s, old, new = self._state, self._state.generation, generations.last(self.path)
        if new.number == old.number:
            return
        sums = content.load(self.path, new.number)
        if sums is None or new.moved != old.moved:
            self._state = self._read()
            self._live = self._count_live()
            return
        e = logs.read_episodes(self.path, old.episodes, new.episodes)
        by_policy = set(self._tell(s.kept, range(old.episodes, new.episodes), e))
        left = logs.read_departed(self.path, new.departed, old.departed).tolist()
        s.kept.forget(set(left) - by_policy)
        s.gone.update(left)
        s.gone = {n for n in s.gone if n >= new.first_episode}
        self._learn(s.codes, old.strings, new.strings)
        s.generation, s.sums = new, sums
        self._add_live(e["start"], e["length"])

    # -- commits

    def commit(
        self,
        chunk: Chunk,
        *,
        protected: Sequence[bool] = (),
        leaving: Iterable[int] = (),
        sources: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[Generation, list[int]]:
        """Append whole episodes, and let others leave; return the new generation and the episodes' numbers.

        Parameters
        ----------
        chunk : Chunk
            Rows of whole episodes; ``episodes.source`` counts from the first of ``sources``.
        protected : sequence of bool
            Episodes that the policy never lets leave; none of them by default.
        leaving : iterable of int
            Numbers of earlier episodes, which leave.
        sources : sequence of mapping
            Archive files that the episodes come from.

        Raises
        ------
        NoSpace
            The disk is full. The dataset is as it was before.
        """
        with logs.committing(self.path):
            self._follow()
            try:
                return self._commit(chunk, list(protected) or [False] * len(chunk.episodes), list(leaving), sources)
            except OSError as e:
                self._state = self._read()  # codes of texts that are not committed are forgotten
                if disk.is_full(e):
                    raise NoSpace(
                        f"The disk of {self.path} is full; these {len(chunk.episodes):,} episodes are not committed.",
                        hint="free some space and commit again; everything before is readable",
                    ) from e
                raise

    def _commit(
        self, chunk: Chunk, protected: list[bool], leaving: list[int], sources: Sequence[Mapping[str, Any]]
    ) -> tuple[Generation, list[int]]:
        s, g, table = self._state, self._state.generation, chunk.episodes
        numbers = list(range(g.episodes, g.episodes + len(table)))
        strings = bytearray()
        for f in self.schema:
            column = chunk.columns[f.name]
            values = self._encoded(f.name, column, strings) if f.kind == "text" else column
            assert isinstance(values, np.ndarray)
            self._writers[f.name].write(g.rows, values)
        told = [json.dumps(d, separators=(",", ":")).encode() + b"\n" if d else b"" for d in _about(table)]
        known = len(logs.read_lines(self.path / logs.SOURCES, 0, g.sources)) if sources else 0
        records = _records(self.schema, chunk, g.rows, known)
        at = g.about + np.cumsum([0, *map(len, told)])
        records["about"], records["about_bytes"] = at[:-1], [len(t) for t in told]
        records["protected"], records["born"] = protected, numbers
        departed = list(leaving)
        s.kept.forget(leaving)
        for number, record, extra in zip(numbers, records, self._values_of(records, table), strict=True):
            if not record["protected"]:
                departed += s.kept.add(Added(number, int(record["length"]), extra, number))
        lines = b"".join(json.dumps(dict(x)).encode() + b"\n" for x in sources)
        gone = self._records_of([n for n in departed if n < g.episodes])
        gone = np.concatenate([gone, records[[n - g.episodes for n in departed if n >= g.episodes]]])
        sums = content.changed(s.sums, (bytes(d) for d in records["digest"]), (bytes(d) for d in gone["digest"]))
        new = _counted(
            replace(
                g,
                number=g.number + 1,
                rows=g.rows + len(chunk),
                episodes=g.episodes + len(table),
                departed=g.departed + len(departed),
                about=int(at[-1]),
                sources=g.sources + len(lines),
                strings=g.strings + len(strings),
                time=time.time(),
                content=content.content(self.schema, sums),
            ),
            records,
            gone,
        )
        logs.append(self.path / logs.EPISODES, g.episodes * logs.EPISODE.itemsize, records.tobytes())
        logs.append(self.path / logs.DEPARTED, g.departed * 8, np.array(departed, "<i8").tobytes())
        logs.append(self.path / logs.ABOUT, g.about, b"".join(told))
        logs.append(self.path / logs.SOURCES, g.sources, lines)
        logs.append(self.path / logs.STRINGS, g.strings, bytes(strings))
        new = self._first_kept(new, departed)
        self._sync(bool(departed), bool(at[-1] > g.about), bool(lines), bool(strings))
        content.save(self.path, new.number, sums)
        with safe_files.updating(self.path / generations.FILE) as log:
            os.pwrite(log.fileno(), new.packed(), new.number * generations.BYTES)
            if self._durable:
                os.fdatasync(log.fileno())
        s.generation, s.sums = new, sums
        self._add_live(records["start"], records["length"])
        self.free()
        return new, numbers

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
            return np.zeros(0, logs.EPISODE)
        first, last = min(numbers), max(numbers)
        if last - first < 4 * len(numbers) + 64:
            found: Records = logs.read_episodes(self.path, first, last + 1)[np.array(numbers) - first]
            return found
        return np.concatenate([logs.read_episodes(self.path, n, n + 1) for n in numbers])

    def _first_kept(self, g: Generation, departed: Sequence[int]) -> Generation:
        """Move the first episode that is kept, where it left."""
        gone, first = self._state.gone, g.first_episode
        gone.update(departed)
        while first in gone:
            gone.discard(first)
            first += 1
        if first == g.first_episode:
            return g
        row = int(logs.read_episodes(self.path, first, first + 1)["start"][0]) if first < g.episodes else g.rows
        return replace(g, first_episode=first, first_row=row)

    def _sync(self, departed: bool, about: bool, sources: bool, strings: bool) -> None:
        files = [d for w in self._writers.values() for d in w.dirty()]
        if not self._durable:
            return
        names = [logs.EPISODES]
        names += [n for n, there in ((logs.DEPARTED, departed), (logs.ABOUT, about)) if there]
        names += [n for n, there in ((logs.SOURCES, sources), (logs.STRINGS, strings)) if there]
        opened = [safe_files.updating(self.path / name) for name in names]
        try:
            for descriptor in [*files, *(f.fileno() for f in opened)]:
                os.fdatasync(descriptor)
        finally:
            for file in opened:
                file.close()

    def compact(self) -> Generation:
        """Write the episodes that are kept once more, end to end, where others left between them.

        Contents, order and fingerprint stay. The old rows leave, and are freed when no reader holds them. A kill leaves
        the dataset as it was before.

        Returns
        -------
        Generation
            The new one; the newest without anything to do.

        Raises
        ------
        NoSpace
            The disk is full. The dataset is as it was before.
        """
        with logs.committing(self.path):
            self._follow()
            g = self.generation
            numbers = self._kept_numbers(g)
            if len(numbers) == g.episodes - g.first_episode:
                return g
            try:
                self._move(numbers)
            except OSError as e:
                if disk.is_full(e):
                    raise NoSpace(
                        f"The disk of {self.path} is full; nothing was compacted.",
                        hint="the episodes that are kept are written once more before the old rows are freed",
                    ) from e
                raise
            self.free()
            return self.generation

    def _move(self, numbers: IntArray) -> None:
        s, g = self._state, self.generation
        old = logs.read_episodes(self.path, g.first_episode, g.episodes)[numbers - g.first_episode]
        e = old.copy()
        ends = np.cumsum(e["length"] + 1)
        e["start"] = g.rows + ends - (e["length"] + 1)
        runs = _runs(old["start"], old["length"])
        for f in self.schema:
            self._copy_rows(f, runs, g)
        new = replace(
            g,
            number=g.number + 1,
            rows=g.rows + (int(ends[-1]) if len(ends) else 0),
            episodes=g.episodes + len(e),
            departed=g.departed + len(e),
            first_row=g.rows,
            first_episode=g.episodes,
            moved=g.moved + 1,
            time=time.time(),
        )
        logs.append(self.path / logs.EPISODES, g.episodes * logs.EPISODE.itemsize, e.tobytes())
        logs.append(self.path / logs.DEPARTED, g.departed * 8, numbers.astype("<i8").tobytes())
        self._sync(True, False, False, False)
        content.save(self.path, new.number, s.sums)
        with safe_files.updating(self.path / generations.FILE) as log:
            os.pwrite(log.fileno(), new.packed(), new.number * generations.BYTES)
            if self._durable:
                os.fdatasync(log.fileno())
        self._state = self._read()
        self._live = self._count_live()

    def _copy_rows(self, f: Field, runs: Sequence[tuple[int, int]], g: Generation) -> None:
        """Copy runs of rows of a field behind all others; nothing is freed meanwhile, since this is a commit."""
        dtype, shape = segments.stored_row(f)
        size = self._segment_rows
        needed = {k for a, b in runs for k in range(a // size, (b - 1) // size + 1)}
        mapped = SegmentMap(self._paths[f.name], shape, dtype, size, g.first_row, g.rows)
        rows = mapped.rows(g.first_row, g.rows, sorted(needed))
        at, step = g.rows, max(1, _MOVED_BYTES // max(1, arrays.row_bytes((0, *shape), dtype)))
        for a, b in runs:
            for first in range(a, b, step):
                part = rows[first - g.first_row : min(first + step, b) - g.first_row]
                self._writers[f.name].write(at, part)
                at += len(part)

    # -- rows that nobody needs

    def collect(self) -> int:
        """Free what no reader holds any more, and return how many episodes that are."""
        with logs.committing(self.path):
            self._follow()
            return self.free()

    def _count_live(self) -> dict[int, int]:
        """Count, for each segment, the episodes whose rows are not freed."""
        g, live = self._state.generation, dict[int, int]()
        waiting = logs.read_departed(self.path, g.departed, min(freed(self.path), g.departed))
        numbers = np.union1d(self._kept_numbers(g), waiting)
        self._live = live
        if len(numbers):
            e = logs.read_episodes(self.path, 0, g.episodes)[numbers]
            self._add_live(e["start"], e["length"])
        return live

    def _add_live(self, start: IntArray, length: IntArray) -> None:
        for a, t in zip(start.tolist(), length.tolist(), strict=True):
            for number in range(a // self._segment_rows, (a + t) // self._segment_rows + 1):
                self._live[number] = self._live.get(number, 0) + 1

    def free(self) -> int:
        """Free the rows of episodes that left before every generation that is held; return how many episodes."""
        g, before = self._state.generation, freed(self.path)
        if before >= g.departed:
            return 0
        # Said first, asked then: a reader holds first, and then looks whether its generation was freed.
        self._say_freed(g.departed)
        held = logs.oldest_held(self.path, g.number)
        upto = g.departed if held >= g.number else max(before, generations.at(self.path, held).departed)
        if upto < g.departed:
            self._say_freed(upto)
        numbers = logs.read_departed(self.path, upto, before)
        if len(numbers):
            self._free(self._records_of(numbers.tolist()))
        return len(numbers)

    def _say_freed(self, departed: int) -> None:
        logs.append(self.path / FREED, 0, departed.to_bytes(8, "little"))

    def _free(self, e: Records) -> None:
        now, ended = self._state.generation.rows // self._segment_rows, set[int]()
        order = np.argsort(e["start"])
        for a, t in zip(e["start"][order].tolist(), e["length"][order].tolist(), strict=True):
            for number in range(a // self._segment_rows, (a + t) // self._segment_rows + 1):
                self._live[number] = self._live.get(number, 1) - 1
                if self._live[number] <= 0 and number < now:
                    ended.add(number)
        for writer in self._writers.values():
            for number in ended:
                writer.remove(number)
        for number in ended:
            self._live.pop(number, None)
        if not isinstance(self.keep, retention.Fifo):
            for a, b in _runs(e["start"][order], e["length"][order]):
                for writer in self._writers.values():
                    writer.punch(a, b)


def _runs(start: IntArray, length: IntArray) -> list[tuple[int, int]]:
    """Join the rows of episodes that lie end to end."""
    found: list[tuple[int, int]] = []
    for a, t in zip(start.tolist(), length.tolist(), strict=True):
        if found and found[-1][1] == a:
            found[-1] = (found[-1][0], a + t + 1)
        else:
            found.append((a, a + t + 1))
    return found


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")


def _about(table: EpisodeTable) -> list[dict[str, Any]]:
    """Return what has no place in the fixed records."""
    found = []
    for k in range(len(table)):
        extra = {name: values[k] for name, values in table.extra.items() if values[k] is not None}
        splits = [name for name, mask in table.splits.items() if mask[k]]
        told = {"group": table.group[k], "options": table.options[k], "splits": splits, "extra": extra}
        found.append({name: value for name, value in told.items() if value})
    return found


def _records(schema: Sequence[Field], chunk: Chunk, row: int, known: int) -> Records:
    """Return the records of a chunk's episodes, whose first row is ``row``."""
    table = chunk.episodes
    e = np.zeros(len(table), logs.EPISODE)
    start = table.start
    e["start"], e["length"], e["num_observed"] = row + start, table.length, table.num_observed
    e["num_transitions"], e["row"], e["end"], e["source"] = table.num_transitions, table.row, table.end, table.source
    e["source"] += known
    e["has_seed"] = [s is not None for s in table.seed]
    e["seed"] = [s or 0 for s in table.seed]
    columns = chunk.columns
    reward = columns.get(REWARD)
    if isinstance(reward, np.ndarray) and reward.ndim == 1 and len(table):
        e["total_reward"] = np.add.reduceat(reward.astype(np.float64), start)
    if all(name in columns for name in FLAGS) and len(table):
        terminated, truncated = (np.asarray(columns[name]) for name in FLAGS)
        e["num_done"] = np.add.reduceat((terminated | truncated).astype(np.int64), start)
        e["num_terminated"] = np.add.reduceat(terminated.astype(np.int64), start)
    for k in range(len(table)):
        a, b = int(start[k]), int(start[k] + table.length[k] + 1)
        splits = sorted(name for name, mask in table.splits.items() if mask[k])
        numbers = (int(e[name][k]) for name in ("length", "end", "num_observed"))
        head = [*numbers, table.seed[k], table.options[k], splits]
        rows = {f.name: columns[f.name][a:b] for f in schema}  # type: ignore[index]
        e["digest"][k] = content.episode_digest(head, rows)
    return e


def _counted(g: Generation, added: Records, gone: Records) -> Generation:
    """Return a generation with the counts of what is kept."""
    changes = {
        "kept": len(added) - len(gone),
        "steps": int(added["length"].sum() - gone["length"].sum()),
        "transitions": int(added["num_transitions"].sum() - gone["num_transitions"].sum()),
    }
    for name, end in (("terminated", TERMINATED), ("truncated", TRUNCATED), ("cut", CUT)):
        changes[name] = int((added["end"] == end).sum()) - int((gone["end"] == end).sum())
    for sign, e in ((1, added), (-1, gone)):
        observed = int((e["num_observed"] > e["length"]).sum())
        inside = int(e["num_terminated"].sum() - (e["end"] == TERMINATED).sum())
        changes["final_observations"] = changes.get("final_observations", 0) + sign * observed
        changes["terminated_inside"] = changes.get("terminated_inside", 0) + sign * inside
    return replace(g, **{name: getattr(g, name) + change for name, change in changes.items()})
