"""A task from its plan to its published result: done in parts, gone on with, and planned anew where need be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from rlds_cli import safe_files, sizes, trees
from rlds_cli.dataset import Dataset
from rlds_cli.errors import PreprocessError
from rlds_cli.preprocess import division, fitting, job, result, verifying
from rlds_cli.preprocess.executors import Staff
from rlds_cli.preprocess.job import PreprocessJob
from rlds_cli.preprocess.plan import Known, Otherwise
from rlds_cli.progress import Event, Progress
from rlds_cli.store.build import write_rows
from rlds_cli.store.workers import Executor

_LONG = 20.0  # seconds


def make(
    staff: Staff, work: Path, target: Path, *, verify: bool = False, checks: Iterable[Callable[[Dataset], None]] = ()
) -> None:
    """Do the task and publish its result as ``target``.

    Parameters
    ----------
    work : Path
        Where it is done; what an interrupted run of the same task left there is gone on with. Removed at the end.
    verify : bool
        Do one chunk again before it is published, and compare.
    checks : iterable of callables
        Are given the result before it is published; nothing is where one raises.

    Raises
    ------
    PreprocessError
        The function failed; finished chunks are kept. Or a chunk is not the same again; nothing is kept.
    """
    known = _recall(work)
    t = fitting.fitted(staff.task, work, staff)
    while True:
        plan, seconds = job.plan(t, known)
        todo = job.divided(t, plan, division.decided(work, seconds, t.dataset.num_steps))
        executor = staff.executor(seconds * t.dataset.num_steps, len(todo.parts))
        _tell_long(todo, seconds * t.dataset.num_steps, executor, staff.progress)
        try:
            built = write_rows(todo, work, jobs=0, progress=staff.progress, executor=executor)
        except Otherwise as e:
            known = known | e.known
            _remember(work, known)
            staff.progress(Event(str(t.id), "note", note=f"writing anew, as a later episode showed: {e.known.told()}"))
            continue
        except PreprocessError as e:
            raise _with_what_is_kept(e, work, len(todo.parts)) from e.__cause__
        except KeyboardInterrupt:
            kept = f"{_finished(work)} of {len(todo.parts)} chunks are kept"
            staff.progress(Event(str(t.id), "note", note=f"{kept}; the same again goes on from there"))
            raise
        again = [verifying.checking(todo, built, work, staff)] if verify else []
        result.publish(built, t, plan, target, threads=staff.threads, checks=[*again, *checks])
        trees.discard(work)
        return


def _recall(work: Path) -> Known:
    """What an earlier run learned before it was interrupted."""
    try:
        return Known.from_json((work / "known.json").read_text())
    except OSError:
        return Known()


def _remember(work: Path, known: Known) -> None:
    for path in work.iterdir():
        if path.name not in (fitting.JOURNAL, division.FILE):
            trees.remove(path) if path.is_dir() else path.unlink()
    safe_files.replace_text(work / "known.json", known.to_json())


def _tell_long(todo: PreprocessJob, seconds: float, executor: Executor | None, tell: Progress) -> None:
    """Say of long work that it may be stopped."""
    workers = getattr(executor, "count", 1)
    if seconds / workers > _LONG:
        takes = f"about {sizes.duration(seconds / workers)} with {sizes.plural(workers, 'worker')}"
        kept = f"{sizes.plural(len(todo.parts), 'chunk')}, each kept when it is finished"
        tell(Event(todo.id, "note", note=f"{takes}, {kept}: stopped (Ctrl-C), the same again goes on from there"))


def _with_what_is_kept(e: PreprocessError, work: Path, parts: int) -> PreprocessError:
    tail = f" {_finished(work)} of {parts} chunks are kept." if parts > 1 else ""
    told = PreprocessError(f"{e.message.rstrip('.')}. Nothing was published.{tail}", hint=e.hint)
    told.episode, told.step = e.episode, e.step
    return told


def _finished(work: Path) -> int:
    """How many chunks the journal has."""
    try:
        return max(0, (work / "journal.jsonl").read_text().count("\n") - 1)
    except OSError:
        return 0
