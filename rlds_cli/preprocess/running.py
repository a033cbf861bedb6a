"""Run a function on a dataset: `run` describes the task, and plans, runs and publishes it unless that was done.

`task` describes, `plan` plans from a few episodes, `job` divides the work, `workers` do it: processes of this machine,
or the nodes of a cluster, which run the same parts. `publish` completes the dataset.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rlds_cli.base import settings, text
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files import trees
from rlds_cli.base.progress import Event, Progress, shown
from rlds_cli.base.settings import Settings, StrPath
from rlds_cli.base.workers import Executor
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import PreprocessError, RldsError, WrongFingerprint
from rlds_cli.homes import Home, exclusive
from rlds_cli.preprocess import completing, job, publish, reuse, shards, workers
from rlds_cli.preprocess.job import PreprocessJob
from rlds_cli.preprocess.plan import AssumptionBroken, Assumptions, removal
from rlds_cli.preprocess.reuse import Reuse
from rlds_cli.preprocess.task import Arrays, Task, Unit, described
from rlds_cli.preprocess.workers import WorkerPool
from rlds_cli.store import History, Work

EXECUTORS = ("local", "ray")
_LONG = 20.0  # seconds


def run(
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
    executor: Literal["local", "ray"] = "local",
    address: str | None = None,
    home: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> Dataset:
    """Apply a function to every episode, batch or step; the result is a dataset of its own, ``ID@NAME``.

    The source is never changed. Untouched fields share its files on disk. Running again with the same function,
    arguments and source returns at once; after an interruption, the same call continues.

    Parameters
    ----------
    source : str, path or Dataset
        A dataset on this disk, an address (see `open_dataset`), or a selection of the episodes of either.
    fn : callable or str
        The function itself, ``"module:function"``, ``"file.py:function"`` or the name of a built-in function. With
        unit ``episode`` (the default) it receives nested fields: ``observation`` [T+1, ...] (T rows if the final one is
        not recorded), ``action`` [T, ...], ``next/reward``, ``next/terminated`` and ``next/truncated`` [T], frames
        decoded, text as object arrays; all writable copies. It returns such a dict of any length; None drops the
        episode, and a list splits it. With ``batch`` it receives transitions as in a loader's batch, ``next/reward``
        [B, 1], and with ``step`` one of them; it returns as many. With ``window`` it receives steps with their
        neighbours in the episode, [B, L, ...], and ``mask`` [B, L], False outside of the episode; it returns the
        fields that it adds or changes, [B, ...]. Run another function on the result to apply several.
    name : str, optional
        Name of the result; by default that of the function, and PART-FUNCTION for a dataset ``ID@PART``.
    unit : {"episode", "batch", "step", "window"}, optional
        The input of one call; by default from the function's decorator ``unit``, or else ``episode``.
    history, future : int, optional
        Steps before and after each step, for unit ``window``; by default from the decorator.
    arrays : {"numpy", "torch", "tensordict"}
        The type of values. A TensorDict holds the transitions of an episode or batch, batch size [T] or [B], and the
        number of their ``episode``.
    args : mapping
        Keyword arguments of the function.
    fields : sequence of str, optional
        Fields to read and pass to the function; the others are carried over.
    jobs : int, optional
        Worker processes; 0 and 1 work in this process. Their number does not change a byte. On a cluster, the largest
        number of chunks at a time.
    keep_going : bool
        Leave out episodes on which the function fails; ``errors.jsonl`` in the result's directory lists them.
    depends_on : sequence of paths
        Files and directories that the function reads. Their content identifies the result, as does that of files named
        in arguments.
    force : bool
        Run again, and replace a dataset of this name.
    executor : {"local", "ray"}
        Processes of this machine, or the nodes of a Ray cluster, which must all see the home, the source and the
        function's files. The choice does not change a byte.
    address : str, optional
        ``HOST:PORT`` of the cluster's head; by default RAY_ADDRESS, or else a cluster that runs on this machine.

    Raises
    ------
    PreprocessError
        The function is not found, fails, or returns what cannot be stored; episode and field are named. Nothing is
        published. Or the cluster cannot be reached.
    MissingPackage
        Ray is not installed.
    NameTaken
        The name exists and was made differently.
    DatasetNotFound, UnknownField
        There is no such source or field.

    Examples
    --------
    >>> ds = run("d4rl/hopper-medium-v2", "my_prep:norm", args={"eps": 1e-3})  # doctest: +SKIP
    >>> ds.id  # doctest: +SKIP
    'd4rl/hopper-medium-v2@norm'
    """
    how: dict[str, Any] = {"unit": unit, "span": (history, future), "arrays": arrays, "args": args, "fields": fields}
    how["depends_on"] = depends_on
    with described(source, fn, name, home=home, keep_going=keep_going, **how) as t:
        tell = t.dataset.store.files.watched(shown(progress))
        cluster = _cluster_of(executor, address)
        where = settings.read(home)
        _make(t, _Making(where=where, jobs=jobs, force=force, progress=tell, cluster=cluster))
    return open_dataset(str(t.id), home=home)


def run_checked(
    check: Callable[[Dataset], None],
    source: str | os.PathLike[str],
    fn: Any,
    name: str | None,
    *,
    jobs: int | None,
    force: bool,
    home: StrPath | None,
    progress: Progress,
    **how: Any,
) -> Dataset:
    """Run as `run` does, but discard the result if ``check`` of it raises WrongFingerprint."""
    with described(source, fn, name, home=home, **how) as t:
        where = settings.read(home)
        _make(t, _Making(where=where, jobs=jobs, force=force, progress=progress, checks=(check,)))
    return open_dataset(str(t.id), home=home)


def _cluster_of(executor: str, address: str | None) -> Callable[..., AbstractContextManager[Executor]] | None:
    """Return a function that connects to the cluster; None for the local executor."""
    if executor not in EXECUTORS:
        raise PreprocessError(f'There is no executor "{executor}".', hint=f"one of {', '.join(EXECUTORS)}")
    if executor == "local":
        if address is not None:
            raise PreprocessError(f"address={address} needs a cluster.", hint='executor="ray" (--executor ray)')
        return None
    return lambda home, mark, **how: workers.connect(home, mark, address, **how)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Making:
    """How a result is made: where, by whom, and what is called with it before it is published.

    With ``force``, it is made even if it exists, and the function runs on all episodes.
    """

    where: Settings
    jobs: int | None
    force: bool
    progress: Progress
    cluster: Callable[..., AbstractContextManager[Executor]] | None = None
    checks: tuple[Callable[[Dataset], None], ...] = ()


def _make(t: Task, how: _Making) -> None:
    """Make the result of a task, unless it exists: plan it, run the function, publish."""
    place = Home(how.where.home)

    def tell(note: str) -> None:
        how.progress(Event(str(t.id), "note", note=note))

    if not how.force and publish.is_made(t, how.where):
        return tell("already exists, made from the same source, function and arguments")
    with exclusive(place, t.id, how.progress):
        if not how.force and publish.is_made(t, how.where):
            return None  # made by the process that held the lock
        History(place.dataset(t.id)).check_replaceable()
        work = place.partial(t.id, t.key[:16])
        kept = [] if how.force else [work, shards.directory(place, t)]
        others = place.partial(t.id, "")  # unfinished work of other functions under this name
        for path in others.parent.glob(f"{others.name}{'[0-9a-f]' * 16}*"):  # not those of ID@NAME.x
            if path not in kept and not shards.is_running(path):
                trees.discard(path)
        safe_files.work_directory(work, place.root)
        with _source_stays(t.dataset), ExitStack() as stack:
            nodes = None
            if how.cluster is not None:
                mark = place.lock(t.id).with_suffix(".seen")
                nodes = stack.enter_context(how.cluster(place, mark, jobs=how.jobs, tell=tell))
                t = replace(t, function=workers.portable(t.function))
            _run(WorkerPool(t, how.jobs, how.progress, nodes), work, place.dataset(t.id), how)
    return None


def _run(pool: WorkerPool, work: Path, target: Path, how: _Making) -> None:
    """Plan the rows, write them and publish ``target``; with a weaker plan where an episode contradicts the first one.

    An interrupted run of the same task continues from what is in ``work``, which is removed at the end.
    """
    try:
        assumptions = Assumptions.from_json((work / "known.json").read_text())  # of an earlier run
    except OSError:
        assumptions = Assumptions()
    t = job.with_state(pool.task, work, pool)
    broken: PreprocessJob | None = None  # the job of a plan that an episode has contradicted
    while True:
        plan, seconds = job.planned(t, assumptions)
        if note := removal(t, plan):
            pool.progress(Event(str(t.id), "note", note=note))
        todo = job.divided(t, plan, job.decided(work, seconds, t.dataset.num_steps))
        if not how.force and target.exists():
            todo = replace(todo, reuse=_taken_over(todo, target, pool.progress))
        if broken is not None:
            _replan(broken, todo, work, assumptions, pool.progress)
        lengths = t.dataset.episodes["length"]
        new = lengths if todo.reuse is None else lengths[todo.reuse.index < 0]
        executor = pool.executor(seconds * int(new.sum()), len(todo.parts))
        _tell_long(todo, seconds * int(new.sum()), executor, pool.progress)
        try:
            built = Work(todo, work).run(executor=executor, progress=pool.progress)
        except AssumptionBroken as e:
            broken, assumptions = todo, assumptions | e.assumptions
            pool.progress(Event(str(t.id), "note", note=e.assumptions.describe()))
            continue
        except PreprocessError as e:
            raise _with_what_is_kept(e, Work(todo, work)) from e.__cause__
        except KeyboardInterrupt:
            kept = f"{Work(todo, work).count_journaled()} of {len(todo.parts)} chunks are kept"
            pool.progress(Event(str(t.id), "note", note=f"{kept}; the same command continues from there"))
            raise
        try:
            publish.publish(built, t, plan, target, threads=pool.threads, checks=how.checks)
        except WrongFingerprint:
            trees.discard(work)
            raise
        trees.discard(work)
        return


def _taken_over(todo: PreprocessJob, target: Path, tell: Progress) -> Reuse | None:
    """Return results of an earlier version that are taken over, and say so; or why there are none."""
    t = todo.task
    found, why = reuse.find(t, todo.plan, todo.parts[0].args["steps"], target)
    count = len(t.dataset.episodes)
    if found is not None:
        new = text.plural(count - found.count, "new episode")
        note = f"{new}; {found.count:,} of {count:,} are taken from the result of version {found.version:,}"
        tell(Event(str(t.id), "note", note=note))
    elif why:
        tell(Event(str(t.id), "note", note=f"all {count:,} episodes are processed: {why}"))
    return found


def _replan(before: PreprocessJob, now: PreprocessJob, work: Path, assumptions: Assumptions, tell: Progress) -> None:
    """Keep the finished chunks of the plan ``before`` if they can be completed, and record why there is another one."""
    if completing.can_complete(before, now):
        kept = Work(now, work).carry_over(before, completing.source_rows(now))
        tell(Event(now.id, "note", note=f"{text.plural(kept, 'finished chunk')} of {len(now.parts)} kept"))
    else:
        for path in work.iterdir():
            if path.name not in (job.JOURNAL, job.FILE):
                trees.remove(path) if path.is_dir() else path.unlink()
        tell(Event(now.id, "note", note="all episodes are processed again"))
    safe_files.replace_text(work / "known.json", assumptions.to_json())


def _tell_long(todo: PreprocessJob, seconds: float, executor: Executor | None, tell: Progress) -> None:
    """Announce how long the work takes, if that is long, and that it can be stopped."""
    workers = getattr(executor, "count", 1)
    if seconds / workers > _LONG:
        takes = f"about {text.duration(seconds / workers)} with {text.plural(workers, 'worker')}"
        kept = f"{text.plural(len(todo.parts), 'chunk')}, each kept when it is finished"
        tell(Event(todo.id, "note", note=f"{takes}, {kept}: after Ctrl-C the same command continues from there"))


def _with_what_is_kept(e: PreprocessError, work: Work) -> PreprocessError:
    parts = len(work.job.parts)
    tail = f" {work.count_journaled()} of {parts} chunks are kept." if parts > 1 else ""
    told = PreprocessError(f"{e.message.rstrip('.')}. Nothing was published.{tail}", hint=e.hint)
    told.episode, told.step = e.episode, e.step
    return told


@contextmanager
def _source_stays(source: Dataset) -> Iterator[None]:
    """Turn an error into one that says so if the source was removed."""
    try:
        yield
    except (RldsError, OSError) as e:
        if (source.path / "zarr.json").exists():
            raise
        raise PreprocessError(
            f"{source.id} was removed from {source.path} during the work. Nothing was published; "
            "finished chunks are kept.",
            hint=f"rlds download {source.id}, or import it again; then the same command continues",
        ) from e
