"""Rows of a log in the order of their writing, as chunks of TED rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from rlds_cli.archives import CHUNK_BYTES, CHUNK_ROWS, Part, Plan
from rlds_cli.archives.atari_dqn import logs
from rlds_cli.errors import CorruptArchive
from rlds_cli.ted import CUT, FLAGS, Array, BoolArray, Chunk, Column, EpisodeTable, Field, IntArray


def chunks(plan: Plan, part: Part, names: Mapping[str, str]) -> Iterator[Chunk]:
    """The episodes of a part, some rows at a time: the last row of each repeats its last frame."""
    episodes: IntArray = np.array(part.args["episodes"], np.int64).reshape(-1, 3)
    begin, length, end = episodes.T
    total = int((length + 1).sum())
    starts = np.cumsum(length + 1) - length - 1
    width = sum(f.row_bytes for f in plan.schema)
    budget = max(2, min(CHUNK_ROWS, CHUNK_BYTES // max(width, 1)))
    fields = {f.name: f for f in plan.schema}
    with _Rows(plan.archive.files, part.args["pieces"]) as source:
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
    """What is passed over was taken for padding by all but its frames."""
    left_out = np.ones(len(frames), bool)
    left_out[kept] = False
    left_out[:new] = False
    if left_out.any() and frames[left_out].any():
        raise CorruptArchive(
            f"{part.args['pieces'][0]['label']}: rows before an episode have no action and no reward, but a frame; "
            "they are not the padding that Dopamine writes.",
            hint="rlds_cli.create takes episodes that you read yourself",
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


class _Rows:
    """Pieces of checkpoints end to end, read forward; rows of the block read last may be asked for again.

    The last slot of a checkpoint comes before its first: another pass, which runs in a thread while the checkpoint
    before it is read.
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

    def __enter__(self) -> _Rows:
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
        """Rows [start, stop) of every column; ``start`` not before the block read last."""
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
        """The next ``count`` rows."""
        if self._skip:
            self._file.skip(self._skip)
            self._skip = 0
        return logs.rows(self._file, self._member, count)

    def finish(self) -> None:
        """Pass over what is left, and compare the checksum."""
        self._file.finish()
