"""A task done in shards: on machines that share a home and nothing else, in any order; published when all are there.

::

    <home>/partial/<dataset>.<key>-shards/
        task.json                what is being made
        running/<attempt>.lock   held while a shard is at work
        state.jsonl              the first pass, done by whichever shard comes first
        known-<hash>.json        what some shard learned of episodes that are not as planned
        <plan>/                  journals and rows, see `rlds_cli.store.shards`; what was learned makes another plan

What shards agree on that do not speak to each other: files that each reads before it begins a chunk.

::

    <work>/chunks.json           how many rows a chunk has
    <work>/known-<hash>.json     what some shard learned of episodes that are not as planned
    <work>/<plan>/known.json     what was known when this was the plan

Parts that were written as an earlier plan had it, completed to what the present one asks for.

A later episode shows that not all of them stay, or that a field does change: then fields that were to be shared with
the source must be written after all. In parts that are finished they are the source's rows, and are copied.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli import settings
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import NoPermission, PreprocessError
from rlds_cli.files import safe as safe_files
from rlds_cli.files import trees
from rlds_cli.files.locks import FileLock, LockHeld
from rlds_cli.home import Home
from rlds_cli.home.locks import exclusive, writing
from rlds_cli.preprocess import fit, job, pipeline, verifying
from rlds_cli.preprocess.job import PreprocessJob, Staff
from rlds_cli.preprocess.plan import Known, Otherwise
from rlds_cli.preprocess.reading import Reader
from rlds_cli.preprocess.task import BLOCK_BYTES, Arrays, Task, Unit, described
from rlds_cli.progress import Event, Progress, shown
from rlds_cli.settings import StrPath
from rlds_cli.store import build, files, publishing, rows, shards
from rlds_cli.store.rows import Position, RowWriter, WrittenRows
from rlds_cli.store.shards import Finished, Shard
from rlds_cli.ted import Chunk, EpisodeTable, Field

SUFFIX = "-shards"
_NAMED = 10  # missing shards that are named; the others are counted


@dataclass(frozen=True, slots=True)
class ShardReport:
    """What a call of `run_shard` left behind.

    ``parts`` and ``rows`` are those of the shard; ``missing`` the numbers of the shards that are not all there yet, of
    so many ``shards``. ``published`` where the dataset was made before.
    """

    id: str
    shard: int
    shards: int
    parts: int
    rows: int
    missing: tuple[int, ...]
    published: bool = False


def run_shard(
    source: str | os.PathLike[str] | Dataset,
    fn: Callable[..., Any] | str,
    name: str | None = None,
    *,
    shard: tuple[int, int],
    unit: Unit | None = None,
    history: int | None = None,
    future: int | None = None,
    arrays: Arrays = "numpy",
    args: Mapping[str, Any] = {},
    fields: Sequence[str] | None = None,
    jobs: int | None = None,
    keep_going: bool = False,
    depends_on: Sequence[str | os.PathLike[str]] = (),
    force: bool = False,
    cache_dir: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> ShardReport:
    """Do a part of what `run` does, on any machine that has the same home; `finish` publishes when all are done.

    Shards run in any order, at the same time, and again where one was stopped: it goes on where it was. A first pass
    (``fit``) is done by the shard that comes first; the others wait for it.

    Parameters
    ----------
    shard : (int, int)
        Number and count, from (1, n) to (n, n).
    source, fn, name, unit, history, future, arrays, args, fields, jobs, keep_going, depends_on, cache_dir
        As in `run`, and the same for all shards, but for ``jobs``.
    force : bool
        Work also where a dataset of this name exists.

    Raises
    ------
    PreprocessError
        There is no such shard; or as in `run`. What is finished is kept.
    """
    number = _checked(shard)
    how: dict[str, Any] = {"unit": unit, "span": (history, future), "arrays": arrays, "args": args, "fields": fields}
    how["depends_on"] = depends_on
    with described(source, fn, name, cache_dir=cache_dir, keep_going=keep_going, **how) as t:
        where = settings.read(cache_dir)
        tell = shown(progress)
        if not force and pipeline.is_made(t, where):
            tell(Event(str(t.id), "note", note="is here: made before of the same source, function and arguments"))
            return ShardReport(str(t.id), number.number, number.count, 0, 0, (), published=True)
        place = Home(where.home)
        work = directory(place, t)
        with writing(place), _at_work(work, place):
            report = _work(t, work, number, Staff(t, jobs, tell, in_place=False))
        if not force and pipeline.is_made(t, where):
            trees.discard(work)  # another attempt at the same was enough
        return report


def finish(
    source: str | os.PathLike[str] | Dataset,
    fn: Callable[..., Any] | str,
    name: str | None = None,
    *,
    unit: Unit | None = None,
    history: int | None = None,
    future: int | None = None,
    arrays: Arrays = "numpy",
    args: Mapping[str, Any] = {},
    fields: Sequence[str] | None = None,
    jobs: int | None = None,
    keep_going: bool = False,
    depends_on: Sequence[str | os.PathLike[str]] = (),
    force: bool = False,
    verify: bool = False,
    cache_dir: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> Dataset:
    """Publish what all shards made: the same bytes as `run` makes alone.

    Parameters
    ----------
    source, fn, name, unit, history, future, arrays, args, fields, keep_going, depends_on, cache_dir
        Those of the shards.
    jobs : int, optional
        Threads that hash.
    force : bool
        Replace a dataset of this name.
    verify : bool
        Do one chunk again before it is published, as in `run`.

    Raises
    ------
    PreprocessError
        Shards are missing; the message says which. Nothing is published, and what there is stays. Or a chunk is not the
        same when it is done again; nothing is kept.
    """
    how: dict[str, Any] = {"unit": unit, "span": (history, future), "arrays": arrays, "args": args, "fields": fields}
    how["depends_on"] = depends_on
    with described(source, fn, name, cache_dir=cache_dir, keep_going=keep_going, **how) as t:
        where = settings.read(cache_dir)
        place, tell = Home(where.home), shown(progress)
        if force or not pipeline.is_made(t, where):
            with exclusive(place, t.id, tell):
                if force or not pipeline.is_made(t, where):
                    _publish(t, place, Staff(t, jobs, tell), verify=verify)
        return open_dataset(str(t.id), cache_dir=cache_dir)


def directory(place: Home, t: Task) -> Path:
    """Where shards of a task lie."""
    return place.partial(t.id, f"{t.key[:16]}{SUFFIX}")


def at_work(work: Path) -> bool:
    """Whether some shard is being worked at below ``work``, or nobody can tell."""
    with ExitStack() as held:
        try:
            for file in (work / "running").glob("*.lock"):
                held.enter_context(FileLock(file).acquire(timeout=0))
        except (LockHeld, OSError, NoPermission):
            return True
    return False


def _checked(shard: tuple[int, int]) -> Shard:
    try:
        number, count = (int(n) for n in shard)
    except (TypeError, ValueError):
        number = count = 0
    if not 1 <= number <= count:
        raise PreprocessError(
            f"There is no shard {shard!r}.",
            hint=f"(1, n) to (n, n): shards are counted from 1, as in {(1, max(count, 4))}",
        )
    return Shard(number, count)


@contextmanager
def _at_work(work: Path, place: Home) -> Iterator[None]:
    """Hold a lock that says so."""
    safe_files.work_directory(work, place.root)
    lock = FileLock(safe_files.directory(work / "running", work) / f"{shards.attempt()}.lock")
    lock.acquire(timeout=0)
    try:
        yield
    finally:
        lock.path.unlink(missing_ok=True)
        lock.release()


# -- one shard


def _work(t: Task, work: Path, shard: Shard, staff: Staff) -> ShardReport:
    write_once(work / "task.json", json.dumps(t.provenance()))
    t = _fitted(t, work, staff)
    while True:
        plan, seconds = planned(t, work)
        steps = seconds * t.dataset.num_steps / max(1, len(plan.job.parts))
        try:
            done = shards.write(
                plan.job,
                plan.below,
                shard,
                there=plan.finished,
                executor=lambda chunks, steps=steps: staff.executor(steps * chunks, chunks),  # type: ignore[misc]
                progress=staff.progress,
                check=plan.check,
            )
        except Otherwise as e:
            learn(work, e.known)
            continue
        except PreprocessError as e:
            raise _with_what_is_kept(e) from e.__cause__
        rows = sum(w.rows for _, w in done.values())
        missing = _missing(len(plan.job.parts), plan.said(), shard.count)
        return ShardReport(str(t.id), shard.number, shard.count, len(done), rows, missing)


def _with_what_is_kept(e: PreprocessError) -> PreprocessError:
    told = PreprocessError(f"{e.message.rstrip('.')}. Finished chunks are kept.", hint=e.hint)
    told.episode, told.step = e.episode, e.step
    return told


def _missing(parts: int, there: Collection[int], count: int) -> tuple[int, ...]:
    numbered = (Shard(i, count) for i in range(1, count + 1))
    return tuple(s.number for s in numbered if not set(s.parts(parts)) <= set(there))


def _fitted(t: Task, work: Path, staff: Staff) -> Task:
    """The task with the state of the first pass; one shard at a time is at it."""
    if not t.fits:
        return t
    lock = FileLock(work / "first-pass.lock", marks=False)
    try:
        lock.acquire(timeout=0)
    except LockHeld:
        staff.progress(Event(str(t.id), "note", note="another shard is at the first pass: waiting"))
        lock.acquire()
    except OSError:  # a mark would keep all others waiting, where its holder was killed on another machine
        note = "the file system has no locks: each shard does the first pass for itself"
        staff.progress(Event(str(t.id), "note", note=note))
        alone = work / f"first-pass-{shards.attempt()}"
        alone.mkdir()
        return fit.fitted(t, alone, staff)
    try:
        return fit.fitted(t, work, staff)
    finally:
        lock.release()


# -- all of them


def _publish(t: Task, place: Home, staff: Staff, *, verify: bool) -> None:
    work = directory(place, t)
    if work.exists():
        safe_files.work_directory(work, place.root)
    else:
        raise PreprocessError(
            f"No shard of {t.id} is here{_others(t, place)}.", hint="--shard 1/4, and so on, makes them"
        )
    t = fit.fitted(t, work, replace(staff, task=t))
    plan, _ = planned(t, work)
    done = plan.finished(range(len(plan.job.parts)))
    _check_complete(t, plan, done)
    trees.discard(plan.below / build.PLACE)  # of a finish that was stopped
    built = build.assemble(plan.job, plan.below, done)
    checks = [verifying.checking(plan.job, built, work, staff)] if verify else []
    pipeline.publish(built, t, plan.job.plan, place.dataset(t.id), threads=staff.threads, checks=checks)
    trees.discard(work)


def _others(t: Task, place: Home) -> str:
    """What shards of this name there are of, where they are of something else."""
    mine = place.partial(t.id, "")
    for file in sorted(mine.parent.glob(f"{mine.name}*{SUFFIX}/task.json")):
        return f"; those that are differ: {t.differs(json.loads(file.read_text()))}"
    return ""


def _check_complete(t: Task, plan: Planned, done: Finished) -> None:
    parts = len(plan.job.parts)
    if len(done) == parts:
        return
    count = max(shards.count(d) for d in (plan.below, *plan.work.glob("*/"))) or 1
    missing = [f"{n}/{count}" for n in _missing(parts, done.keys(), count)]
    listed = ", ".join(missing[:_NAMED]) + (f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else "")
    raise PreprocessError(
        f"{t.id}: {f'shards {listed} are' if len(missing) > 1 else f'shard {listed} is'} not finished: "
        f"{parts - len(done)} of {parts} chunks are missing. Nothing was published.",
        hint=f"the same command with --shard {missing[0]} in the place of --finish does what is missing of it",
    )


@dataclass(frozen=True, slots=True)
class Planned:
    """What is to be written as far as is ``known``, and ``below`` which directory of the ``work``."""

    job: PreprocessJob
    known: Known
    work: Path

    @property
    def below(self) -> Path:
        """Where its parts are."""
        return self.work / self.job.key[:16]

    def check(self) -> None:
        """Raise Otherwise where another shard has learned something."""
        now = _recall(self.work)
        if now != self.known:
            raise Otherwise(now)

    def finished(self, numbers: Collection[int]) -> Finished:
        """The parts that are there; of earlier plans those that can be completed, and are."""
        done = shards.finished(self.job, self.below, numbers)
        for earlier in self._earlier() if len(done) < len(numbers) else ():
            left = set(numbers) - done.keys()
            for number, (where, written) in shards.finished(earlier.job, earlier.below, left).items():
                segment = earlier.below / where
                done[number] = complete(earlier.job, self.job, number, segment, written, self.below)
        return done

    def said(self) -> set[int]:
        """The parts that somebody says are there."""
        return set().union(*(shards.said(p.job, p.below) for p in (self, *self._earlier())))

    def _earlier(self) -> list[Planned]:
        """Plans made when less was known, whose parts can be completed."""
        found = []
        for file in sorted(self.work.glob("*/known.json")):
            known = Known.from_json(file.read_text())
            if known != self.known and known | self.known == self.known:
                plan = _planned_as(self.job.task, self.work, known)[0]
                if plan.below == file.parent and fits(plan.job, self.job):
                    found.append(plan)
        return found


def planned(t: Task, work: Path) -> tuple[Planned, float]:
    """What is to be written as far as any shard knows, and the seconds that a step takes."""
    plan, seconds = _planned_as(t, work, _recall(work))
    plan.below.mkdir(parents=True, exist_ok=True)
    write_once(plan.below / "known.json", plan.known.to_json())
    return plan, seconds


def _planned_as(t: Task, work: Path, known: Known) -> tuple[Planned, float]:
    plan, seconds = job.plan(t, known)
    rows = job.decided(work, seconds, t.dataset.num_steps)
    return Planned(job.divided(t, plan, rows), known, work), seconds


def _recall(work: Path) -> Known:
    known = Known()
    for file in sorted(work.glob("known-*.json")):
        known |= Known.from_json(file.read_text())
    return known


def learn(work: Path, known: Known) -> None:
    """Tell the others."""
    text = known.to_json()
    write_once(work / f"known-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json", text)


def write_once(file: Path, text: str) -> None:
    """Write a file in one step, unless it is there."""
    if not file.exists():
        safe_files.replace_text(file, text)


def fits(before: PreprocessJob, now: PreprocessJob) -> bool:
    """Whether parts of the plan ``before`` can be completed: what they lack are fields as the source has them."""
    schema, written = now.task.dataset.schema, {f.name: f for f in before.schema}
    paths, ours = (files.paths(f.name for f in j.schema) for j in (before, now))
    return (
        before.plan.linked
        and [p.args for p in before.parts] == [p.args for p in now.parts]
        and written.keys() <= ours.keys()
        and before.plan.apart == now.plan.apart
        and {f.name for f in before.plan.schema} == {f.name for f in now.plan.schema}
        and all(
            written[f.name] == f and paths[f.name] == ours[f.name]
            if f.name in written
            else f.name in before.plan.same and schema[f.name] == f
            for f in now.schema
        )
    )


def complete(
    before: PreprocessJob, now: PreprocessJob, number: int, segment: Path, written: WrittenRows, work: Path
) -> tuple[str, WrittenRows]:
    """Part ``number``, of which ``segment`` holds the fields of the plan before; as `build.write_part` would say it."""
    where = f"segments/{number}.{secrets.token_hex(4)}"
    paths = files.paths(f.name for f in now.schema)
    for f in before.schema:
        for file in rows.files(segment, f, paths[f.name]).values():
            directory = file.parent.relative_to(segment)
            publishing.share_tree(segment / directory, work / where / directory, within=work, sealed=False)
    lacking = [f for f in now.schema if f.name not in written.hashes]
    with RowWriter(work / where, lacking, paths, Position()) as writer:
        for chunk in _rows(now.task, lacking, number, now):
            writer.append(chunk)
        more = writer.written()
    return where, WrittenRows(
        Position(),
        written.rows,
        written.frame_bytes | more.frame_bytes,
        written.new_strings | more.new_strings,
        written.hashes | more.hashes,
        written.episodes,
        written.notes,
    )


def _rows(task: Task, fields: list[Field], number: int, job: PreprocessJob) -> Iterator[Chunk]:
    """The source's rows of a part, of these fields, block by block."""
    reader = Reader(task.dataset)
    first, last = job.parts[number].args["first"], job.parts[number].args["last"]
    row, end = reader.start(first), reader.start(last - 1) + reader.length(last - 1) + 1
    at_once = max(1, BLOCK_BYTES // max(1, sum(f.row_bytes for f in fields)))
    for a in range(row, end, at_once):
        b = min(a + at_once, end)
        columns = {f.name: reader.column(f.name, [(a, b)]) for f in fields}
        yield Chunk(columns, np.zeros(b - a, bool), EpisodeTable.empty())
