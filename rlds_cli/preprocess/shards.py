"""A task done in shards: on machines that share a home and nothing else, in any order; published when all are there.

::

    <home>/partial/<dataset>.<key>-shards/
        task.json                what is being made
        running/<attempt>.lock   held while a shard is at work
        state.jsonl              the first pass, done by whichever shard comes first
        known-<hash>.json        what some shard learned of episodes that are not as planned
        <plan>/                  journals and rows, see `rlds_cli.store.shards`; what was learned makes another plan
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlds_cli import safe_files, settings, trees
from rlds_cli.bars import shown
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import NoPermission, PreprocessError
from rlds_cli.file_locks import FileLock, Held
from rlds_cli.home import Home
from rlds_cli.locking import exclusive, writing
from rlds_cli.preprocess import fitting, result, verifying
from rlds_cli.preprocess.agreeing import Planned, learn, planned, write_once
from rlds_cli.preprocess.executors import Staff
from rlds_cli.preprocess.plan import Otherwise
from rlds_cli.preprocess.task import Arrays, Task, Unit, described
from rlds_cli.progress import Event, Progress
from rlds_cli.settings import StrPath
from rlds_cli.store import build, shards
from rlds_cli.store.shards import Finished, Shard

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
        if not force and result.is_made(t, where):
            tell(Event(str(t.id), "note", note="is here: made before of the same source, function and arguments"))
            return ShardReport(str(t.id), number.number, number.count, 0, 0, (), published=True)
        place = Home(where.home)
        work = directory(place, t)
        with writing(place), _at_work(work, place):
            report = _work(t, work, number, Staff(t, jobs, tell, in_place=False))
        if not force and result.is_made(t, where):
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
        if force or not result.is_made(t, where):
            with exclusive(place, t.id, tell):
                if force or not result.is_made(t, where):
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
        except (Held, OSError, NoPermission):
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
    except Held:
        staff.progress(Event(str(t.id), "note", note="another shard is at the first pass: waiting"))
        lock.acquire()
    except OSError:  # a mark would keep all others waiting, where its holder was killed on another machine
        note = "the file system has no locks: each shard does the first pass for itself"
        staff.progress(Event(str(t.id), "note", note=note))
        alone = work / f"first-pass-{shards.attempt()}"
        alone.mkdir()
        return fitting.fitted(t, alone, staff)
    try:
        return fitting.fitted(t, work, staff)
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
    t = fitting.fitted(t, work, replace(staff, task=t))
    plan, _ = planned(t, work)
    done = plan.finished(range(len(plan.job.parts)))
    _check_complete(t, plan, done)
    trees.discard(plan.below / build.PLACE)  # of a finish that was stopped
    built = build.assemble(plan.job, plan.below, done)
    checks = [verifying.checking(plan.job, built, work, staff)] if verify else []
    result.publish(built, t, plan.job.plan, place.dataset(t.id), threads=staff.threads, checks=checks)
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
