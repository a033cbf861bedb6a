"""Whether a function makes the same of the same: a chunk done again, alone in a fresh process, and compared.

What a key cannot see is seen here: globals that one call leaves to the next, time, the order of sets, a generator that
the function seeds itself, libraries that are others by now. The chunk is drawn at random, and is not the first where
there are several: a fresh process knows as little as the one that began with it.

The rows of one part, written twice: where they are not the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rlds_cli.dataset import Dataset
from rlds_cli.errors import PreprocessError, RldsError
from rlds_cli.files import trees
from rlds_cli.preprocess import calling, fit, job, reading
from rlds_cli.preprocess.job import PreprocessJob, Staff
from rlds_cli.preprocess.plan import Known, Otherwise
from rlds_cli.preprocess.reading import Reader
from rlds_cli.preprocess.task import Task
from rlds_cli.progress import Event
from rlds_cli.store import arrays, files, rows
from rlds_cli.store.build import Built, write_part
from rlds_cli.store.files import component
from rlds_cli.store.rows import WrittenRows
from rlds_cli.store.workers import Processes, WorkerDied
from rlds_cli.ted import Array, Column, EncodedFrames, EpisodeTable, Field

R = TypeVar("R")
_HINT = (
    "what it returns must follow from what it is given alone: look for globals that calls change, time, the order of "
    "sets, generators of its own (random, numpy.random and torch are seeded for every call)"
)
_SAME = "came out the same again"


def checking(todo: PreprocessJob, built: Built, work: Path, staff: Staff) -> Callable[[Dataset], None]:
    """What does a chunk of a job again and compares it with the result, before that is published.

    Parameters
    ----------
    built : Built
        The rows of the result.
    work : Path
        The directory of the job, which is removed where the chunk is not the same: PreprocessError names field,
        episode and step.
    """

    def check(made: Dataset) -> None:
        try:
            _verify(todo, made, built.counts, work, staff)
        except PreprocessError:
            trees.discard(work)
            raise
        finally:
            reading.forget()

    return check


def _verify(todo: PreprocessJob, made: Dataset, counts: Sequence[int], work: Path, staff: Staff) -> None:
    number = _drawn(range(len(todo.parts)))
    again = _Again(todo, number, staff, "Nothing was published.")
    if todo.task.fits:
        again.check_first_pass(work)
    try:
        written = again.write(work / "again")
    except Otherwise as e:
        raise again.differs(f"shows what it did not: {e.known.told()}") from e
    again.compare(made, sum(counts[:number]), counts[number], written)


def verify_made(t: Task, made: Dataset, work: Path, staff: Staff) -> None:
    """Do a chunk of a published result again.

    Parameters
    ----------
    work : Path
        A directory for it, which is removed.

    Raises
    ------
    PreprocessError
        It is not the same; or which chunk the result's episodes are of cannot be said.
    """
    t = replace(t, state=_state(made)) if t.fits else t
    known = _known(t, made)
    plan, seconds = job.plan(t, known)
    todo = job.divided(t, plan, job.rows_of_chunk(seconds, t.dataset.num_steps))
    counts = _counts(todo, made)
    number = _drawn([i for i in range(len(counts)) if counts[i]])
    try:
        while True:
            again = _Again(todo, number, staff, "The dataset stays as it is.")
            again.check_schema(made)
            try:
                written = again.write(work / "again")
            except Otherwise as e:
                known = known | e.known
                todo = PreprocessJob(t, job.plan(t, known)[0], todo.parts)
                continue
            again.compare(made, sum(counts[:number]), counts[number], written)
            return
    finally:
        trees.discard(work)


def _drawn(numbers: Sequence[int]) -> int:
    return random.SystemRandom().choice(numbers[1:] if len(numbers) > 1 else numbers)


class _Again:
    """One part of a job, done once more."""

    def __init__(self, todo: PreprocessJob, number: int, staff: Staff, kept: str) -> None:
        self._job, self._number, self._staff, self._kept = todo, number, staff, kept
        self._part = replace(todo.parts[number], rows=None)  # how many there are is to be seen

    def check_first_pass(self, work: Path) -> None:
        """Raise PreprocessError unless ``fit`` finds out the same of a chunk; its chunks are others."""
        task = replace(self._job.task, state=None)
        chunks = fit.chunks_of(task)
        number = _drawn(range(len(chunks)))
        known = fit.state_of(task, number, work)
        if known is None:
            return
        state = self._fresh(fit.fit_chunk, task, chunks[number])
        if state != known:
            differ = calling.differ(calling.from_json(known), calling.from_json(state))
            first, last = (chunks[number].args[n] for n in ("first", "last"))
            name = f"chunk {number + 1:,} of {len(chunks):,} of the first pass (episodes {first:,} to {last - 1:,})"
            raise self.differs(f"fit found out something else: {differ}", name=name)

    def check_schema(self, made: Dataset) -> None:
        """Raise PreprocessError where the fields are others than those of the published result."""
        now, then = {f.name: f for f in self._job.plan.schema}, made.schema
        for name in sorted({*now, *then}):
            old, new = (_kind(fields.get(name)) for fields in (then, now))
            if old != new:
                raise self.differs(f"{name} was {old}, is {new}")

    def write(self, work: Path) -> Again:
        """Write the part below ``work``, in a process of its own."""
        trees.discard(work)
        work.mkdir(parents=True)
        try:
            where, written = self._fresh(write_part, self._job, self._part, work, self._number)
        except PreprocessError as e:
            raise self.differs(f"it failed: {e.message.rstrip('.')}", e.episode, e.step) from e.__cause__
        return Again(work / where, self._job.schema, written)

    def _fresh(self, call: Callable[..., R], *arguments: Any) -> R:
        why = job.cannot_leave(self._job.task)
        if why:
            self._say(f"verifying in this process, which has the same globals: {why}")
            return call(*arguments)
        try:
            return next(Processes(1).work_through(call, {self._number: arguments}, lambda number, how: None))[1]
        except WorkerDied as e:
            raise RldsError(f"{self._job.id}: the process that verified {self._name} {e.how}, {e.times}.") from e

    def compare(self, made: Dataset, first: int, count: int, again: Again) -> None:
        """Raise PreprocessError unless episodes ``first`` and so on of ``made`` are what was written again."""
        then, now = made.store.table().take(np.arange(first, first + count)), again.written.episodes
        other = of_episodes(then, now)
        if other is not None:
            table, i, what = other
            raise self.differs(f"{self._named(table, i)} {what}", self._at(table, i))
        start = int(made.episodes["start"][first]) if count else 0
        found = of_rows(Reader(made), start, again)
        if found:
            raise self._different(found, now)
        self._say(f"verified: {self._name} {_SAME}, alone in a process of its own")

    def _different(self, found: Sequence[Difference], now: EpisodeTable) -> PreprocessError:
        first, total = found[0], int((now.length + 1).sum())
        i = int(np.searchsorted(now.start, first.row, "right")) - 1
        step = first.row - int(now.start[i])
        what = f"{first.name} of {self._named(now, i)}, step {step:,} {first.values}"
        what += f" ({first.rows:,} of {total:,} rows differ{''.join(f', {d.rows:,} of {d.name}' for d in found[1:4])}"
        what += f", and {len(found) - 4} more fields)" if len(found) > 4 else ")"
        return self.differs(what, self._at(now, i), step)

    def differs(
        self, what: str, episode: int | None = None, step: int | None = None, *, name: str = ""
    ) -> PreprocessError:
        """The error that says so, of the part or of what else has a ``name``."""
        reference = self._job.task.function.reference
        message = f"{reference} does not make the same of the same: {name or self._name} done again, {what}."
        e = PreprocessError(f"{message} {self._kept}", hint=_HINT)
        return e if episode is None else e.at(episode, step)

    @property
    def _name(self) -> str:
        return self._job.name(self._number)

    def _say(self, note: str) -> None:
        self._staff.progress(Event(self._job.id, "note", note=note))

    def _at(self, table: EpisodeTable, i: int) -> int | None:
        """Of which episode of the source episode ``i`` of the part is."""
        first, last = (self._part.args[n] for n in ("first", "last"))
        reader = Reader(self._job.task.dataset)
        source = reader.table(first, last)
        same = (source.row == table.row[i]) & (source.source == table.source[i])
        of = (k for k in same.nonzero()[0].tolist() if source.group[k] == table.group[i])
        return next((reader.number(first + k) for k in of), None)

    def _named(self, table: EpisodeTable, i: int) -> str:
        number = self._at(table, i)
        return "an episode" if number is None else f"episode {number:,}"


def _kind(f: Field | None) -> str:
    if f is None:
        return "not there"
    what = f"{f.codec} frames" if f.kind == "frames" else "text" if f.kind == "text" else f.dtype
    return f"{what} {list(f.shape)} ({f.placement})"


# -- what a published result tells of the job that made it


def _state(made: Dataset) -> str:
    name = made.manifest.provenance[-1]["state"]["metadata"]
    return arrays.read_string(made.path.joinpath("metadata", *map(component, name.split("/"))))


def _known(t: Task, made: Dataset) -> Known:
    """What the job had learned when it was done."""
    changed = frozenset(made.manifest.provenance[-1].get("changed", ())) & frozenset(t.dataset.schema)
    apart = frozenset(n for n in made.schema if f"next/{n}" in made.schema)
    return Known(changed, _lengths(t.dataset) == _lengths(made), apart)


def _lengths(ds: Dataset) -> list[list[int]]:
    return [ds.episodes[name].tolist() for name in ("length", "num_observed")]


def _counts(todo: PreprocessJob, made: Dataset) -> list[int]:
    """Episodes of the result that each chunk became: those that come from the same place in the archive."""
    t = todo.task
    firsts = [p.args["first"] for p in todo.parts]
    n = len(t.dataset.episodes)
    theirs, mine = places(Reader(t.dataset).table(0, n)), places(made.store.table())
    if mine == theirs:
        return np.diff([*firsts, n]).tolist()  # type: ignore[no-any-return]
    numbers = {place: k for k, place in enumerate(theirs)}
    of = np.array([numbers.get(place, -1) for place in mine], np.int64)
    if len(numbers) < n or (of < 0).any() or (np.diff(of) < 0).any():
        raise PreprocessError(
            f"{made.id}: which chunk its episodes were made in cannot be told, for episodes of {t.dataset.id} come "
            "from one place in the archive.",
            hint="--force --verify (force=True, verify=True) makes it anew, and verifies that",
        )
    part = np.searchsorted(firsts, of, "right") - 1
    return np.bincount(part, minlength=len(firsts)).tolist()  # type: ignore[no-any-return]


_BYTES = 16 << 20  # that are compared at a time
_VIDEO = "mp4"  # the codec of frames that are kept in videos
_ENDS = ("terminated", "truncated", "cut")


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that is not the same.

    Parameters
    ----------
    name : str
    row : int
        The first row of the part that differs.
    rows : int
        How many do.
    values : str
        The first value that differs, as it was and as it is.
    """

    name: str
    row: int
    rows: int
    values: str


@dataclass(frozen=True, slots=True)
class Again:
    """A part that was written once more: in ``directory``, and what ``written`` says of it."""

    directory: Path
    schema: Sequence[Field]
    written: WrittenRows


def of_episodes(before: EpisodeTable, after: EpisodeTable) -> tuple[EpisodeTable, int, str] | None:
    """The first episode of the part that is not as it was, and how it was and is; None where all agree.

    Returns
    -------
    tuple of EpisodeTable, int, str
        The table that it is in, ``before`` or ``after``, and its number there.
    """
    then, now = places(before), places(after)
    for i, (old, new) in enumerate(zip_longest(then, now)):
        if old != new:
            gone = new is None or new in then  # else it is one that was not there
            of = old if gone else new
            return before if gone else after, i, f"{_times(then.count(of))}, now {_times(now.count(of))}"
        was, is_ = ((int(t.length[i]), bool(t.observed[i]), int(t.end[i])) for t in (before, after))
        if was != is_:
            return after, i, f"was {_shape(*was)}, is {_shape(*is_)}"
    return None


def places(table: EpisodeTable) -> list[tuple[int, int, str]]:
    """Where in the archive episodes come from."""
    return list(zip(table.source.tolist(), table.row.tolist(), table.group, strict=True))


def _times(count: int) -> str:
    return "did not come back" if count == 0 else "came back" if count == 1 else f"came back as {count} episodes"


def _shape(length: int, observed: bool, end: int) -> str:
    return f"{length:,} steps{'' if observed else ' without a final observation'} ({_ENDS[end]})"


def of_rows(made: Reader, first: int, again: Again) -> list[Difference]:
    """The fields that differ, the one that does so first before the others.

    Parameters
    ----------
    made : Reader
        The dataset.
    first : int
        The row of it that is the part's first.
    """
    paths = files.paths(f.name for f in again.schema)
    # Videos are the source's, whatever the function does.
    fields = (f for f in again.schema if f.codec != _VIDEO)
    found = (_of_field(made, first, again, f, paths[f.name]) for f in fields)
    return sorted((d for d in found if d is not None), key=lambda d: d.row)


def _of_field(made: Reader, first: int, again: Again, f: Field, path: str) -> Difference | None:
    row, count, values = -1, 0, ""
    for a, new in _columns(again, f, path):
        old = made.column(f.name, [(first + a, first + a + len(new))])
        differ = np.flatnonzero(_differ(old, new))
        if row < 0 and len(differ):
            row, values = a + int(differ[0]), _values(old, new, int(differ[0]))
        count += len(differ)
    return Difference(f.name, row, count, values) if count else None


def _columns(again: Again, f: Field, path: str) -> Iterator[tuple[int, Column]]:
    """The rows of a field, block by block, each with the number of its first."""
    total = again.written.rows
    at_once = max(1, _BYTES // max(1, f.row_bytes))
    files = rows.files(again.directory, f, path)
    strings = np.array([*again.written.new_strings.get(f.name, ()), None], object)
    for a in range(0, total, at_once):
        n = min(at_once, total - a)
        if f.kind == "frames":
            yield a, _frames(files, a, n)
        elif f.kind == "text":
            yield a, strings[np.fromfile(files["rows"], "<i4", n, offset=a * 4)].tolist()
        else:
            width = arrays.row_bytes((0, *f.shape), f.dtype)
            dtype = np.dtype(f.dtype).newbyteorder("<")
            values = np.fromfile(files["rows"], dtype, n * (width // dtype.itemsize), offset=a * width)
            yield a, values.reshape(n, *f.shape)


def _frames(files: dict[str, Path], a: int, n: int) -> EncodedFrames:
    offsets = np.fromfile(files["offsets"], "<i8", n + 1, offset=a * 8)
    data = np.fromfile(files["bytes"], np.uint8, int(offsets[-1] - offsets[0]), offset=int(offsets[0]))
    return EncodedFrames(data, np.diff(offsets))


def _differ(old: Any, new: Any) -> Array:
    """Which rows of two columns are not the same, bit for bit."""
    if isinstance(new, EncodedFrames):
        return np.array([a != b for a, b in zip(_pieces(old), _pieces(new), strict=True)])
    if isinstance(new, list):
        return np.array([a != b for a, b in zip(old, new, strict=True)])
    n = len(new)
    a, b = (np.ascontiguousarray(x).reshape(n, -1).view(np.uint8) for x in (old, new))
    return np.asarray((a != b).any(1))


def _pieces(column: Any) -> Iterator[bytes]:
    ends = np.cumsum(column.lengths)
    for length, end in zip(column.lengths, ends, strict=True):
        yield column.data[end - length : end].tobytes()


def _values(old: Any, new: Any, i: int) -> str:
    """The first element of row ``i`` that differs, in words."""
    if isinstance(new, EncodedFrames):
        return "is another image"
    a, b = old[i], new[i]
    if isinstance(new, list):
        return f"was {a!r}, is {b!r}"
    x, y = (np.ascontiguousarray(v).reshape(-1) for v in (a, b))
    width = x.dtype.itemsize
    at = int(np.argmax((x.view(np.uint8) != y.view(np.uint8)).reshape(-1, width).any(1)))
    index = np.unravel_index(at, np.shape(b)) if np.ndim(b) else ()
    element = f"[{', '.join(str(int(k)) for k in index)}] " if index else ""
    return f"{element}was {x[at]!s}, is {y[at]!s}"
