"""Replay logs of DQN on Atari games, as Dopamine writes them: gzip of one ``.npy`` per column and checkpoint.

::

    replay_logs/$store$_observation_ckpt.<N>.gz   [C, 84, 84] uint8, one frame a row   -> observation       both
                $store$_action_ckpt.<N>.gz        [C] int32                            -> action            root
                $store$_reward_ckpt.<N>.gz        [C] float32, clipped                 -> next/reward
                $store$_terminal_ckpt.<N>.gz      [C] uint8                            -> next/terminated
                add_count_ckpt.<N>.gz, invalid_range_ckpt.<N>.gz                       how far the log was written

C is a million. ``logs`` finds the files of each log; this module orders the rows as they were written, finds the
episodes and reads them. The frame after the end of an episode was never written.

The buffer is a ring of C rows. It is dumped when a round has C - 1 rows, so the last slot of a dump still holds a row
of the round before::

    checkpoint 0      0  1  2  ...  C-2  |  C-1: never written
    checkpoint 1      C-1: the row after C-2 of checkpoint 0  |  0  1  2  ...  C-2
    checkpoint 2      C-1: the row after C-2 of checkpoint 1  |  0  1  2  ...  position - 1  |  stale
                                                              the last dump, where ``add_count`` is the position

An episode begins with ``stack - 1`` rows of zeros, for stacks of frames.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from rlds_cli.archives.account import Account, Fate, Ledger, used_as
from rlds_cli.archives.atari_dqn import logs
from rlds_cli.archives.atari_dqn.logs import NAME, Checkpoint, open_column, rows
from rlds_cli.archives.readers import (
    CHUNK_BYTES,
    CHUNK_ROWS,
    Archive,
    ArchivedStep,
    ArchivedValue,
    Part,
    Plan,
    every_file,
)
from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ted import CUT, FLAGS, REWARD, TERMINATED, Chunk, Column, EpisodeTable, Field, Note

VERSION = 1
choose = every_file
NAMES = {"observation": "observation", "action": "action", "reward": REWARD, "terminal": FLAGS[0]}
TIME_LIMIT = 27_000  # steps of four frames: half an hour of play, the runner's limit
_NAMES = {"observation": "observation", "action": "action", "reward": REWARD, "terminal": FLAGS[0]}
_NUMBER = re.compile(r"(?<=_ckpt\.)\d+(?=\.gz$)")
STACK = 4


def recognise(paths: Sequence[Path]) -> str | None:
    """Describe Dopamine's logs in one line; None for other files."""
    found = {p: m for p in paths if (m := logs.NAME.fullmatch(p.name))}
    if not any(m["prefix"] and m["store"] == "observation" for m in found.values()):
        return None
    numbers = {(p.parent, int(m["number"])) for p, m in found.items()}
    runs = len({parent for parent, _ in numbers})
    return f"Dopamine replay logs: {len(numbers)} checkpoints" + (f" of {runs} runs" if runs > 1 else "")


def plan(archive: Archive) -> Plan:
    """Find the fields, parts and episodes. Reads actions, rewards and terminals, and the headers of frames.

    Raises
    ------
    UnknownLayout
        No logs, options that do not apply, or runs that do not hold the same columns.
    CorruptArchive
        Checkpoints that lack a column, or whose columns do not agree.
    """
    if archive.fields or archive.episodes_by not in (None, "flags"):
        raise UnknownLayout("Names and ends of Dopamine's logs are fixed; --map and --episodes-by do not apply.")
    checkpoints, notes = logs.find(archive)
    schema = _schema(checkpoints)
    parts: list[Part] = []
    said: list[Note] = []
    for run in runs(checkpoints):
        of_run, odd = ordered_parts(run)
        parts += of_run
        said += odd
    lengths = [e[1] for p in parts for e in p.args["episodes"]]
    if at := lengths.count(TIME_LIMIT):
        text = f"episodes of {TIME_LIMIT:,} steps end at the time limit, which the log calls a terminal"
        said.append(Note("time-limit", text, at))
    return Plan(
        reader="atari_dqn",
        archive=archive,
        schema=schema,
        parts=tuple(parts),
        episodes_by="flags",
        facts={
            "checkpoints": [f"{c.where}{c.number}" for c in checkpoints],
            "capacity": checkpoints[0].capacity,
            "add_count": [c.add_count for c in checkpoints],
            "invalid_range": [[*c.invalid] for c in checkpoints],
        },
        notes=(*notes, *said),
        account=_account(archive, checkpoints),
    )


def _account(archive: Archive, checkpoints: Sequence[logs.Checkpoint]) -> Account:
    """State the fate of the files: each holds one column of a checkpoint."""
    told, fates = Ledger(), dict[Path, Fate]()
    for c in checkpoints:
        for store, index in c.files.items():
            field = NAMES.get(store) or f"info/{store}"
            fates[archive.files[index]] = used_as(field if store in c.kinds else "how far the log was written")
    told.all_files(archive.files, archive.root, fates)
    return told.account()


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """Read the episodes that begin in one checkpoint, in chunks of bounded size; the frames are streamed.

    Raises
    ------
    CorruptArchive
        A file is damaged, or rows taken for padding hold frames.
    """
    return chunks(plan, part, NAMES)


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Return nothing: every value is per row."""
    return iter(())


def _schema(checkpoints: Sequence[logs.Checkpoint]) -> tuple[Field, ...]:
    first = checkpoints[0]
    for c in checkpoints:
        if c.kinds != first.kinds or c.capacity != first.capacity:
            raise UnknownLayout(
                f"{c.where}checkpoint {c.number} does not hold what {first.where}checkpoint {first.number} holds: "
                f"{c.capacity:,} rows of {c.kinds}; {first.capacity:,} rows of {first.kinds}.",
                hint="import runs with other fields separately, each with its own name",
            )
    fields = [Field(flag, "bool", (), "next") for flag in FLAGS]
    for store, (dtype, shape) in first.kinds.items():
        if store != "terminal":
            name = NAMES.get(store) or f"info/{store}"
            placement = "both" if store == "observation" else "next" if name == REWARD else "root"
            fields.append(Field(name, dtype, shape, placement))  # type: ignore[arg-type]  # one of the three
    return tuple(sorted(fields, key=lambda f: f.name))


def look_up(place: ArchivedStep) -> Iterator[ArchivedValue]:
    """Look up the row of a step, and the frame of the row after it, which may lie in the next checkpoint.

    Files are unpacked up to the row, which takes a while.
    """
    for after in (False, True):
        if after and place.is_last:
            return
        number, row = _place(place, place.step + after)
        for path in sorted(place.file.parent.glob(f"$store$_*_ckpt.{number}.gz")):
            found = NAME.fullmatch(path.name)
            if found is None or (after and found["store"] != "observation"):
                continue
            with open_column(path) as (f, member):
                f.skip(row * member.row_bytes)
                value = rows(f, member, 1)[0]
            field = _NAMES.get(found["store"]) or f"info/{found['store']}"
            at = f"{path.name}[{row}]"
            yield ArchivedValue(f"next/{field}" if after else field, at, bool(value) if field == FLAGS[0] else value)


def _place(place: ArchivedStep, step: int) -> tuple[int, int]:
    """Find the checkpoint and the row of a step; in each checkpoint the last row comes first."""
    capacity = int(place.facts["capacity"])
    found = _NUMBER.search(place.file.name)
    at = (place.first + 1) % capacity + step
    row = at % capacity - 1
    return int(found[0] if found else 0) + at // capacity, row if row >= 0 else capacity - 1


def chunks(plan: Plan, part: Part, names: Mapping[str, str]) -> Iterator[Chunk]:
    """Read the episodes of a part, some rows at a time; the last row of each repeats its last frame."""
    episodes: IntArray = np.array(part.args["episodes"], np.int64).reshape(-1, 3)
    begin, length, end = episodes.T
    total = int((length + 1).sum())
    starts = np.cumsum(length + 1) - length - 1
    width = sum(f.row_bytes for f in plan.schema)
    budget = max(2, min(CHUNK_ROWS, CHUNK_BYTES // max(width, 1)))
    fields = {f.name: f for f in plan.schema}
    with _ForwardRows(plan.archive.files, part.args["pieces"]) as source:
        done = 0
        for a in range(0, total, budget):
            b = min(a + budget, total)
            row = np.arange(a, b)
            k = np.searchsorted(starts, row, side="right") - 1
            t = row - starts[k]
            final = t == length[k]
            at = begin[k] + t - final
            stop = int(at[-1]) + 1
            kept = min(int(at[0]), done)
            block = source.read(kept, stop)
            _check_padding(block["observation"], at - kept, done - kept, part)
            done = stop
            columns = {
                names.get(store) or f"info/{store}": _column(fields, names, store, values[at - kept], final)
                for store, values in block.items()
            }
            columns[FLAGS[0]] = (block["terminal"][at - kept] != 0) & ~final
            columns[FLAGS[1]] = (t == length[k] - 1) & (end[k] == CUT)
            yield Chunk(columns, final, _table(part, k[final], length, end, begin))


def _column(fields: Mapping[str, Field], names: Mapping[str, str], store: str, rows: Array, final: BoolArray) -> Column:
    f = fields[names.get(store) or f"info/{store}"]
    if f.placement != "both":
        rows[final] = 0
    return rows


def _check_padding(frames: Array, kept: IntArray, new: int, part: Part) -> None:
    """Refuse frames in rows that were taken for padding because their other columns are zero."""
    left_out = np.ones(len(frames), bool)
    left_out[kept] = False
    left_out[:new] = False
    if left_out.any() and frames[left_out].any():
        raise CorruptArchive(
            f"{part.args['pieces'][0]['label']}: rows before an episode have no action and no reward, but a frame; "
            "they are not the padding that Dopamine writes.",
            hint="read the episodes yourself and pass them to rlds_cli.create",
        )


def _table(part: Part, ended: IntArray, length: IntArray, end: IntArray, begin: IntArray) -> EpisodeTable:
    pieces = part.args["pieces"]
    bounds = np.cumsum([0, *(p["rows"][1] - p["rows"][0] for p in pieces)])
    of = np.searchsorted(bounds, begin[ended], side="right") - 1
    firsts = np.array([p["rows"][0] for p in pieces], np.int64)
    return EpisodeTable(
        length=length[ended],
        end=end[ended].astype(np.uint8),
        observed=np.zeros(len(ended), bool),
        source=np.array([p["files"]["observation"] for p in pieces], np.int32)[of],
        row=firsts[of] + begin[ended] - bounds[of],
    )


class _ForwardRows:
    """Rows of checkpoints end to end, read forward; rows of the last block can be read again.

    The last slot of a checkpoint comes before its first. It takes another pass, which runs in a thread while the
    checkpoint before it is read.
    """

    def __init__(self, files: Sequence[Path], pieces: Sequence[Mapping[str, Any]]) -> None:
        self._files, self._pieces = files, pieces
        self._bounds = np.cumsum([0, *(p["rows"][1] - p["rows"][0] for p in pieces)]).tolist()
        self._stack = ExitStack()
        self._pool = ThreadPoolExecutor(1)
        self._ahead: dict[int, Future[dict[str, Array]]] = {}
        self._open: tuple[int, dict[str, _Packed]] | None = None
        self._block: dict[str, Array] = {}
        self._start = self._at = 0

    def __enter__(self) -> _ForwardRows:
        for i, p in enumerate(self._pieces):
            a, b = p["rows"]
            if a and b - a == 1:
                self._ahead[i] = self._pool.submit(self._single, p)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._stack.close()

    def read(self, start: int, stop: int) -> dict[str, Array]:
        """Read rows [start, stop) of every column; ``start`` not before the block read last."""
        kept = {store: rows[start - self._start :] for store, rows in self._block.items()}
        fresh = []
        while self._at < stop:
            i = next(i for i in range(len(self._pieces)) if self._bounds[i] <= self._at < self._bounds[i + 1])
            count = min(stop, self._bounds[i + 1]) - self._at
            fresh.append(self._piece(i, self._at - self._bounds[i], count))
            self._at += count
        blocks = [b for b in (kept, *fresh) if b]
        self._block = blocks[0] if len(blocks) == 1 else {s: np.concatenate([b[s] for b in blocks]) for s in blocks[0]}
        self._start = start
        return self._block

    def _piece(self, i: int, offset: int, count: int) -> dict[str, Array]:
        if i in self._ahead:
            return self._ahead.pop(i).result()
        if self._open is None or self._open[0] != i:
            self._stack.close()
            self._open = (i, self._columns(self._pieces[i], self._stack))
        columns = self._open[1]
        found = {store: column.rows(count) for store, column in columns.items()}
        if self._bounds[i] + offset + count == self._bounds[i + 1] and self._pieces[i]["finish"]:
            for column in columns.values():
                column.finish()
        return found

    def _columns(self, piece: Mapping[str, Any], stack: ExitStack) -> dict[str, _Packed]:
        found = {s: self._files[i] for s, i in piece["files"].items() if "$store$" in self._files[i].name}
        return {store: _Packed(path, piece["rows"][0], stack) for store, path in found.items()}

    def _single(self, piece: Mapping[str, Any]) -> dict[str, Array]:
        with ExitStack() as stack:
            return {store: column.rows(1) for store, column in self._columns(piece, stack).items()}


class _Packed:
    """The rows of one packed column from ``start`` on."""

    def __init__(self, path: Path, start: int, stack: ExitStack) -> None:
        self._file, self._member = stack.enter_context(logs.open_column(path))
        self._skip = start * self._member.row_bytes

    def rows(self, count: int) -> Array:
        """Read the next ``count`` rows."""
        if self._skip:
            self._file.skip(self._skip)
            self._skip = 0
        return logs.rows(self._file, self._member, count)

    def finish(self) -> None:
        """Skip the remaining rows, and compare the checksum."""
        self._file.finish()


@dataclass(frozen=True, slots=True)
class CheckpointRows:
    """Rows [start, stop) of a checkpoint."""

    checkpoint: Checkpoint
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class CheckpointRun:
    """Checkpoints without a gap between them; ``opening`` says that the log begins with the first."""

    pieces: tuple[CheckpointRows, ...]
    opening: bool
    padding: int
    notes: tuple[Note, ...] = ()


def runs(checkpoints: Sequence[Checkpoint]) -> Iterator[CheckpointRun]:
    """Order the rows of all checkpoints as they were written; a run ends before a missing checkpoint."""
    todo: list[Checkpoint] = []
    for c in checkpoints:
        if todo and (c.where, c.number) != (todo[-1].where, todo[-1].number + 1):
            yield _run(todo)
            todo = []
        todo.append(c)
    if todo:
        yield _run(todo)


def _run(checkpoints: Sequence[Checkpoint]) -> CheckpointRun:
    first, last = checkpoints[0], checkpoints[0].capacity - 1
    opening = first.number == 0 or first.add_count == last
    notes: list[Note] = []
    pieces: list[CheckpointRows] = []
    before: Checkpoint | None = None
    for c in checkpoints:
        if before and _is_repeated(before, c):
            notes.append(Note("repeated-checkpoint", "checkpoints repeat the previous one", 1, c.label))
            continue
        if not (c is first and opening):
            pieces.append(CheckpointRows(c, last, last + 1))
        position = _position(c)
        if position < last:
            text = "rows at the end of the log are older than the rest of it, and left out"
            notes.append(Note("stale-rows", text, last - position, c.label))
        pieces.append(CheckpointRows(c, 0, min(position, last)))
        before = c
    return CheckpointRun(tuple(p for p in pieces if len(p)), opening, _padding(first), tuple(notes))


def _position(c: Checkpoint) -> int:
    """Return the slot of the next row."""
    if c.add_count is not None:
        return c.add_count % c.capacity
    if c.invalid:
        # From `horizon` rows before the position to `stack - 1` behind it; the horizon is 1 in all published logs.
        return (c.invalid[0] + 1) % c.capacity
    return c.capacity - 1


def _padding(c: Checkpoint) -> int:
    """Return the number of rows of zeros before an episode: one less than the frames of a stack."""
    position = _position(c)
    return len(c.invalid) - c.invalid.index(position) - 1 if position in c.invalid else STACK - 1


def _is_repeated(before: Checkpoint, c: Checkpoint) -> bool:
    """Tell whether a last dump, at the end of training, repeats the one before it."""
    if c.add_count != c.capacity - 1:
        return False
    return all(np.array_equal(before.column(s), c.column(s)) for s in ("terminal", "action", "reward"))


def ordered_parts(run: CheckpointRun) -> tuple[list[Part], list[Note]]:
    """Make a part for the episodes that begin in each checkpoint, and notes about them.

    ``args`` has ``pieces`` and ``episodes``. A piece has ``files`` (the numbers of a checkpoint's files), a
    ``label``, ``rows`` [start, stop), and whether to ``finish`` the files to compare their checksums; one part does so
    for each file. An episode is [first row in the pieces, length, end].
    """
    terminal = np.concatenate([_piece(p, "terminal") != 0 for p in run.pieces])
    blank = np.concatenate([_blank(p) for p in run.pieces])
    found, notes = _episodes(run, terminal, blank)
    offsets: IntArray = np.cumsum([0, *map(len, run.pieces)])
    made: list[Part] = []
    # A checkpoint is two pieces: its last slot, which ends the round before, and the rest.
    owners = np.searchsorted(offsets, [e[0] for e in found], side="right") - 1
    numbers = [run.pieces[i].checkpoint.number for i in owners]
    seen = 0
    for number in dict.fromkeys(numbers):
        mine = [e for e, n in zip(found, numbers, strict=True) if n == number]
        own = next(a for a, p in zip(offsets.tolist(), run.pieces, strict=False) if p.checkpoint.number == number)
        others = {*numbers} - {number}
        made.append(_part(run, offsets, max(own, seen), mine, others))
        seen = mine[-1][0] + mine[-1][1]
    return made, [*run.notes, *notes]


def _part(
    run: CheckpointRun, offsets: IntArray, start: int, episodes: Sequence[tuple[int, int, int]], others: Collection[int]
) -> Part:
    stop = episodes[-1][0] + episodes[-1][1]
    pieces = []
    for piece, (a, b) in zip(run.pieces, pairwise(offsets.tolist()), strict=True):
        first, end = max(a, start), min(b, stop)
        if first < end:
            c = piece.checkpoint
            where = [piece.start + first - a, piece.start + end - a]
            finish = c.number not in others
            pieces.append({"files": dict(c.files), "label": c.label, "rows": where, "finish": finish})
    moved = [[a - start, length, end] for a, length, end in episodes]
    return Part(sum(e[1] + 1 for e in episodes), {"pieces": pieces, "episodes": moved})


def _piece(p: CheckpointRows, store: str) -> Array:
    return p.checkpoint.column(store)[p.start : p.stop]


def _blank(p: CheckpointRows) -> BoolArray:
    """Mark the rows whose action, reward and terminal are 0, as in padding."""
    action = _piece(p, "action").reshape(len(p), -1)
    other: BoolArray = action.any(axis=1) | (_piece(p, "reward") != 0) | (_piece(p, "terminal") != 0)
    return ~other


def _episodes(
    run: CheckpointRun, terminal: BoolArray, blank: BoolArray
) -> tuple[list[tuple[int, int, int]], list[Note]]:
    """Find all episodes of a run: (first row, length, end)."""
    ends = np.flatnonzero(terminal)
    starts = [0, *(ends + 1).tolist()]
    stops = [*(ends + 1).tolist(), len(terminal)]
    found, bare = [], 0
    for k, (a, b) in enumerate(zip(starts, stops, strict=True)):
        if k == 0 and not run.opening:
            padding = _leading(run, blank)
        else:
            padding = run.padding if blank[a : min(a + run.padding, b)].all() else 0
            bare += padding < run.padding
        if b - a > padding:
            found.append((a + padding, b - a - padding, TERMINATED if k < len(ends) else CUT))
    notes = []
    if bare:
        text = "episodes do not begin with rows of zeros, as Dopamine writes them; all their rows are kept"
        notes.append(Note("no-padding", text, bare))
    if found and not run.opening:
        text = "logs begin in the middle of an episode, whose first steps are in a checkpoint that is not there"
        notes.append(Note("fragments", text, 1, run.pieces[0].checkpoint.label))
    return found, notes


def _leading(run: CheckpointRun, blank: BoolArray) -> int:
    """Count the rows of padding at the beginning of a run that starts in the middle of a log, by its frames."""
    count = int(np.argmin(np.append(blank[: run.padding], False)))
    at = 0
    for piece in run.pieces:
        for row in range(piece.start, piece.stop):
            if at == count:
                return at
            with open_column(piece.checkpoint.paths["observation"]) as (f, member):
                f.skip(row * member.row_bytes)
                if rows(f, member, 1).any():
                    return at
            at += 1
    return at
