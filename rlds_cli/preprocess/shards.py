"""Run a task in shards, on machines that share only a home, in any order; publish when all shards are finished.

::

    <home>/partial/<dataset>.<key>-shards/
        task.json                provenance of the task
        chunks.json              rows per chunk
        running/<attempt>.lock   held while a shard runs
        state.jsonl              states of the first pass, which the first shard runs
        known-<hash>.json        assumptions that some shard found broken
        <plan>/known.json        the assumptions that this plan is based on
        <plan>/                  journals and rows, see `rlds_cli.store.work`

Shards do not communicate; each reads these files before it begins a chunk. If an episode breaks an assumption, all
shards follow a new plan, in which fields that were to be shared with the source are written. Finished parts of the
earlier plan are completed with the rows of the source.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlds_cli.base import settings
from rlds_cli.base.files import disk, trees
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.locks import LockHeld, file_lock
from rlds_cli.base.progress import Event, Progress, shown
from rlds_cli.base.settings import StrPath
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import NoPermission, PreprocessError
from rlds_cli.homes import Home, exclusive, writing
from rlds_cli.preprocess import completing, job, publish
from rlds_cli.preprocess.job import PreprocessJob
from rlds_cli.preprocess.plan import AssumptionBroken, Assumptions
from rlds_cli.preprocess.task import Arrays, Task, Unit, described, differences
from rlds_cli.preprocess.workers import WorkerPool
from rlds_cli.store import Shard, Work
from rlds_cli.store.parts import Finished

SUFFIX = "-shards"
_NAMED = 10  # missing shards to name; the others are counted


@dataclass(frozen=True, slots=True)
class ShardReport:
    """The outcome of `run_shard`.

    ``parts`` and ``rows`` count what the shard wrote; ``missing`` are the numbers of unfinished shards, out of
    ``shards``. ``published`` is True if the dataset existed already.
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
    home: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> ShardReport:
    """Run one shard of a task, on any machine with the same home; `finish` publishes when all are finished.

    Shards run in any order and at the same time; a stopped shard continues when it is run again. The first shard runs
    the first pass (``fit``), and the others wait for it.

    Parameters
    ----------
    shard : (int, int)
        Number and count, from (1, n) to (n, n).
    source, fn, name, unit, history, future, arrays, args, fields, jobs, keep_going, depends_on, home
        As in `run`, and the same for all shards, but for ``jobs``.
    force : bool
        Run even if a dataset of this name exists.

    Raises
    ------
    PreprocessError
        There is no such shard; or as in `run`. Finished chunks are kept.
    """
    number = _checked(shard)
    how: dict[str, Any] = {"unit": unit, "span": (history, future), "arrays": arrays, "args": args, "fields": fields}
    how["depends_on"] = depends_on
    with described(source, fn, name, home=home, keep_going=keep_going, **how) as t:
        where = settings.read(home)
        tell = t.dataset.store.files.watched(shown(progress))
        if not force and publish.is_made(t, where):
            tell(Event(str(t.id), "note", note="already exists, made from the same source, function and arguments"))
            return ShardReport(str(t.id), number.number, number.count, 0, 0, (), published=True)
        place = Home(where.home)
        work = directory(place, t)
        with writing(place), _running(work, place):
            report = _work(t, work, number, WorkerPool(t, jobs, tell, in_place=False))
        if not force and publish.is_made(t, where):
            trees.discard(work)  # another attempt has published it
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
    home: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> Dataset:
    """Publish the result of all shards: the same bytes that `run` writes.

    Parameters
    ----------
    source, fn, name, unit, history, future, arrays, args, fields, keep_going, depends_on, home
        As for the shards.
    jobs : int, optional
        Number of threads that hash.
    force : bool
        Replace a dataset of this name.

    Raises
    ------
    PreprocessError
        Shards are missing; the message names them. Nothing is published, and finished shards stay.
    """
    how: dict[str, Any] = {"unit": unit, "span": (history, future), "arrays": arrays, "args": args, "fields": fields}
    how["depends_on"] = depends_on
    with described(source, fn, name, home=home, keep_going=keep_going, **how) as t:
        where = settings.read(home)
        place, tell = Home(where.home), shown(progress)
        if force or not publish.is_made(t, where):
            with exclusive(place, t.id, tell):
                if force or not publish.is_made(t, where):
                    _publish(t, place, WorkerPool(t, jobs, tell))
        return open_dataset(str(t.id), home=home)


def directory(place: Home, t: Task) -> Path:
    """Return the directory of the shards of a task."""
    return place.partial(t.id, f"{t.key[:16]}{SUFFIX}")


def is_running(work: Path) -> bool:
    """Return whether a shard is running below ``work``; True as well if that cannot be found out."""
    with ExitStack() as held:
        try:
            for file in (work / "running").glob("*.lock"):
                held.enter_context(file_lock(file).acquire(timeout=0))
        except (OSError, NoPermission):
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
def _running(work: Path, place: Home) -> Iterator[None]:
    """Hold a lock that shows that a shard is running."""
    safe_files.work_directory(work, place.root)
    path = safe_files.directory(work / "running", work) / f"{disk.attempt()}.lock"
    lock = file_lock(path)
    lock.acquire(timeout=0)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()


# -- one shard


def _work(t: Task, work: Path, shard: Shard, pool: WorkerPool) -> ShardReport:
    write_once(work / "task.json", json.dumps(t.provenance()))
    t = _fitted(t, work, pool)
    while True:
        plan, seconds = shared_plan(t, work)
        steps = seconds * t.dataset.num_steps / max(1, len(plan.job.parts))
        try:
            done = Work(plan.job, plan.below).write_shard(
                shard,
                finished=plan.finished,
                executor=lambda chunks, steps=steps: pool.executor(steps * chunks, chunks),  # type: ignore[misc]
                progress=pool.progress,
                check=plan.check,
            )
        except AssumptionBroken as e:
            learn(work, e.assumptions)
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


def _fitted(t: Task, work: Path, pool: WorkerPool) -> Task:
    """Return the task with the state of the first pass, which one shard at a time runs."""
    if not t.fits:
        return t
    lock = file_lock(work / "first-pass.lock", soft=False)
    try:
        lock.acquire(timeout=0)
    except LockHeld:
        pool.progress(Event(str(t.id), "note", note="another shard runs the first pass: waiting"))
        lock.acquire()
    except OSError:  # without flock, a holder that is killed on another machine would block the others
        note = "the file system has no locks: each shard runs the first pass itself"
        pool.progress(Event(str(t.id), "note", note=note))
        alone = work / f"first-pass-{disk.attempt()}"
        alone.mkdir(safe_files.DIRECTORY)
        return job.with_state(t, alone, pool)
    try:
        return job.with_state(t, work, pool)
    finally:
        lock.release()


# -- all of them


def _publish(t: Task, place: Home, pool: WorkerPool) -> None:
    work = directory(place, t)
    if work.exists():
        safe_files.work_directory(work, place.root)
    else:
        raise PreprocessError(
            f"There is no shard of {t.id}{_others(t, place)}.", hint="--shard 1/4 and so on make them"
        )
    t = job.with_state(t, work, replace(pool, task=t))
    plan, _ = shared_plan(t, work)
    done = plan.finished(range(len(plan.job.parts)))
    _check_complete(t, plan, done)
    built = Work(plan.job, plan.below).assemble(done)
    publish.publish(built, t, plan.job.plan, place.dataset(t.id), threads=pool.threads)
    trees.discard(work)


def _others(t: Task, place: Home) -> str:
    """Describe shards of this name that belong to another task."""
    mine = place.partial(t.id, "")
    for file in sorted(mine.parent.glob(f"{mine.name}*{SUFFIX}/task.json")):
        return f"; there are others, which differ: {differences(json.loads(file.read_text()), t.parts_of_key)}"
    return ""


def _check_complete(t: Task, plan: SharedPlan, done: Finished) -> None:
    parts = len(plan.job.parts)
    if len(done) == parts:
        return
    count = max(Work.count_shards(d) for d in (plan.below, *plan.work.glob("*/"))) or 1
    missing = [f"{n}/{count}" for n in _missing(parts, done.keys(), count)]
    listed = ", ".join(missing[:_NAMED]) + (f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else "")
    raise PreprocessError(
        f"{t.id}: {f'shards {listed} are' if len(missing) > 1 else f'shard {listed} is'} not finished: "
        f"{parts - len(done)} of {parts} chunks are missing. Nothing was published.",
        hint=f"the same command with --shard {missing[0]} instead of --finish completes it",
    )


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """The plan that all shards share, based on the assumptions ``assumptions``; its parts lie in ``below``."""

    job: PreprocessJob
    assumptions: Assumptions
    work: Path

    @property
    def below(self) -> Path:
        """The directory of its parts."""
        return self.work / self.job.key[:16]

    def check(self) -> None:
        """Raise AssumptionBroken if another shard has recorded further assumptions."""
        now = _recall(self.work)
        if now != self.assumptions:
            raise AssumptionBroken(now)

    def finished(self, numbers: Collection[int]) -> Finished:
        """Return the finished parts; parts of earlier plans are completed if possible."""
        work = Work(self.job, self.below)
        done = work.finished(numbers)
        for earlier in self._earlier() if len(done) < len(numbers) else ():
            left = set(numbers) - done.keys()
            before = Work(earlier.job, earlier.below)
            for number, part in before.finished(left).items():
                done[number] = work.take_over(before, number, part, completing.source_rows(self.job))
        return done

    def said(self) -> set[int]:
        """Return the parts that journals record, without checking them."""
        return set().union(*(Work(p.job, p.below).listed() for p in (self, *self._earlier())))

    def _earlier(self) -> list[SharedPlan]:
        """Return plans with fewer assumptions broken, whose parts can be completed."""
        found = []
        for file in sorted(self.work.glob("*/known.json")):
            assumptions = Assumptions.from_json(file.read_text())
            if assumptions != self.assumptions and assumptions | self.assumptions == self.assumptions:
                plan = _shared_plan_under(self.job.task, self.work, assumptions)[0]
                if plan.below == file.parent and completing.can_complete(plan.job, self.job):
                    found.append(plan)
        return found


def shared_plan(t: Task, work: Path) -> tuple[SharedPlan, float]:
    """Return the current plan of all shards, and the seconds per step."""
    plan, seconds = _shared_plan_under(t, work, _recall(work))
    safe_files.make(plan.below)
    write_once(plan.below / "known.json", plan.assumptions.to_json())
    return plan, seconds


def _shared_plan_under(t: Task, work: Path, assumptions: Assumptions) -> tuple[SharedPlan, float]:
    plan, seconds = job.planned(t, assumptions)
    rows = job.decided(work, seconds, t.dataset.num_steps)
    return SharedPlan(job.divided(t, plan, rows), assumptions, work), seconds


def _recall(work: Path) -> Assumptions:
    assumptions = Assumptions()
    for file in sorted(work.glob("known-*.json")):
        assumptions |= Assumptions.from_json(file.read_text())
    return assumptions


def learn(work: Path, assumptions: Assumptions) -> None:
    """Record assumptions for the other shards."""
    text = assumptions.to_json()
    write_once(work / f"known-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json", text)


def write_once(file: Path, text: str) -> None:
    """Write a file atomically, unless it exists."""
    if not file.exists():
        safe_files.replace_text(file, text)
