"""Run a function on a dataset: the entry point `run`, which makes the result or finds it already made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rlds_cli.base import settings
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files import trees
from rlds_cli.base.progress import Event, Progress, shown
from rlds_cli.base.settings import StrPath
from rlds_cli.base.workers import Executor
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import PreprocessError, RldsError, WrongFingerprint
from rlds_cli.home import Home, exclusive
from rlds_cli.preprocess import publish, shards, workers
from rlds_cli.preprocess.task import Arrays, Task, Unit, described
from rlds_cli.preprocess.workers import WorkerPool
from rlds_cli.store import History

EXECUTORS = ("local", "ray")


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
    cache_dir: StrPath | None = None,
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
    with _described(source, fn, name, cache_dir=cache_dir, keep_going=keep_going, **how) as t:
        tell = t.dataset.store.files.watched(shown(progress))
        _ResultMaker(t, cache_dir, jobs, force, _executor_of(executor, address), tell).run()
    return open_dataset(str(t.id), cache_dir=cache_dir)


def run_checked(
    check: Callable[[Dataset], None],
    source: str | os.PathLike[str],
    fn: Any,
    name: str | None,
    *,
    jobs: int | None,
    force: bool,
    cache_dir: StrPath | None,
    progress: Progress,
    **how: Any,
) -> Dataset:
    """Run as `run` does, but discard the result if ``check`` of it raises WrongFingerprint."""
    with _described(source, fn, name, cache_dir=cache_dir, **how) as t:
        _ResultMaker(t, cache_dir, jobs, force, None, progress, (check,)).run()
    return open_dataset(str(t.id), cache_dir=cache_dir)


def _described(
    source: str | os.PathLike[str] | Dataset, fn: Any, name: str | None, *, cache_dir: StrPath | None, **how: Any
) -> AbstractContextManager[Task]:
    """Describe the task."""
    dataset = source if isinstance(source, Dataset) else open_dataset(source, cache_dir=cache_dir)
    return described(dataset, fn, name, **how)


def _executor_of(executor: str, address: str | None) -> Callable[..., AbstractContextManager[Executor]] | None:
    """Return a function that connects to the cluster; None for the local executor."""
    if executor not in EXECUTORS:
        raise PreprocessError(f'There is no executor "{executor}".', hint=f"one of {', '.join(EXECUTORS)}")
    if executor == "local":
        if address is not None:
            raise PreprocessError(f"address={address} needs a cluster.", hint='executor="ray" (--executor ray)')
        return None
    return lambda home, mark, **how: workers.connect(home, mark, address, **how)


@dataclass(frozen=True, slots=True)
class _ResultMaker:
    """Makes the result of a task, unless it exists already."""

    task: Task
    cache_dir: StrPath | None
    jobs: int | None
    force: bool
    executor: Callable[..., AbstractContextManager[Executor]] | None
    progress: Progress
    checks: tuple[Callable[[Dataset], None], ...] = ()

    def run(self) -> None:
        """Make the result, unless it exists."""
        t, where = self.task, settings.read(self.cache_dir)
        place = Home(where.home)
        if not self.force and publish.is_made(t, where):
            self._say("already exists, made from the same source, function and arguments")
            return
        with exclusive(place, t.id, self.progress):
            if not self.force and publish.is_made(t, where):
                return  # made by the process that held the lock
            History(place.dataset(t.id)).check_replaceable()
            work = place.partial(t.id, t.key[:16])
            _forget_others(place, t, None if self.force else work)
            safe_files.work_directory(work, place.root)
            with _source_stays(t.dataset):
                if self.executor is None:
                    self._make_here(work, place)
                    return
                mark = place.lock(t.id).with_suffix(".seen")
                with self.executor(place, mark, jobs=self.jobs, tell=self._say) as nodes:
                    self._make(replace(t, function=workers.portable(t.function)), nodes, work, place)

    def _make_here(self, work: Path, place: Home) -> None:
        try:
            self._make(self.task, None, work, place)
        except WrongFingerprint:
            trees.discard(work)
            raise

    def _make(self, t: Task, nodes: Executor | None, work: Path, place: Home) -> None:
        pool = WorkerPool(t, self.jobs, self.progress, nodes)
        publish.run_task(pool, work, place.dataset(t.id), again=self.force, checks=self.checks)

    def _say(self, note: str) -> None:
        self.progress(Event(str(self.task.id), "note", note=note))


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


def _forget_others(place: Home, t: Task, keep: Path | None) -> None:
    """Remove unfinished work of other functions under this name. Shards that are running stay."""
    mine = place.partial(t.id, "")
    kept = [] if keep is None else [keep, shards.directory(place, t)]
    for path in mine.parent.glob(f"{mine.name}{'[0-9a-f]' * 16}*"):  # not those of ID@NAME.x
        if path not in kept and not shards.is_running(path):
            trees.discard(path)
