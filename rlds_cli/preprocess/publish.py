"""Write the rows of a task and publish them as a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import Any

from rlds_cli import home
from rlds_cli.base import text
from rlds_cli.base.array_types import Array
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files import trees
from rlds_cli.base.media.mp4 import Extent
from rlds_cli.base.progress import Event, Progress
from rlds_cli.base.settings import Settings
from rlds_cli.base.workers import Executor
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import PreprocessError
from rlds_cli.preprocess import completing, job, reuse, task
from rlds_cli.preprocess.builtin.video_encoding import MADE
from rlds_cli.preprocess.job import PreprocessJob
from rlds_cli.preprocess.plan import AssumptionBroken, Assumptions, WritePlan, removal
from rlds_cli.preprocess.reuse import Reuse
from rlds_cli.preprocess.task import Task
from rlds_cli.preprocess.workers import WorkerPool
from rlds_cli.store import Built, Description, History, JoinedMember, Manifest, Work, finish

_LONG = 20.0  # seconds


def run_task(
    pool: WorkerPool,
    work: Path,
    target: Path,
    *,
    again: bool = False,
    checks: Iterable[Callable[[Dataset], None]] = (),
) -> None:
    """Run a task and publish its result as ``target``.

    Parameters
    ----------
    work : Path
        Working directory; an interrupted run of the same task continues from it. Removed at the end.
    again : bool
        Run the function on all episodes, also where ``target`` has results of an earlier version of the source.
    checks : iterable of callables
        Called with the result before it is published; if one raises, nothing is published.

    Raises
    ------
    PreprocessError
        The function failed; finished chunks are kept.
    """
    assumptions = _recall(work)
    t = job.with_state(pool.task, work, pool)
    broken: PreprocessJob | None = None  # the job of a plan that an episode has contradicted
    while True:
        plan, seconds = job.planned(t, assumptions)
        if note := removal(t, plan):
            pool.progress(Event(str(t.id), "note", note=note))
        known = None if again else _taken_over(t, plan, target, pool.progress)
        todo = job.divided(t, plan, job.decided(work, seconds, t.dataset.num_steps), known)
        if broken is not None:
            _replan(broken, todo, work, assumptions, pool.progress)
        new = t.dataset.episodes["length"] if known is None else t.dataset.episodes["length"][known.index < 0]
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
        publish(built, t, plan, target, threads=pool.threads, checks=checks)
        trees.discard(work)
        return


def _taken_over(t: Task, plan: WritePlan, target: Path, tell: Progress) -> Reuse | None:
    """Return results of an earlier version that are taken over, and say so; or why there are none."""
    steps = min(job.at_once(t, job.made_bytes(plan)), task.PART_ROWS)
    found, why = reuse.find(t, plan, steps, target)
    count = len(t.dataset.episodes)
    if found is not None:
        new = text.plural(count - found.count, "new episode")
        note = f"{new}; {found.count:,} of {count:,} are taken from the result of version {found.version:,}"
        tell(Event(str(t.id), "note", note=note))
    elif why:
        tell(Event(str(t.id), "note", note=f"all {count:,} episodes are processed: {why}"))
    return found


def _recall(work: Path) -> Assumptions:
    """Return the assumptions of an earlier run that was interrupted."""
    try:
        return Assumptions.from_json((work / "known.json").read_text())
    except OSError:
        return Assumptions()


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


def is_made(t: Task, where: Settings) -> bool:
    """Return whether the result exists already.

    Raises
    ------
    NameTaken
        A dataset of this name exists that is something else.
    """
    path = home.path_of(t.id, where)
    if path is None:
        return False
    m = Manifest.read(path)
    if t.continues(m.provenance[-1] if m.provenance else {}) and m.provenance[-1].get("key") != t.key:
        return False
    t.check_name(m)
    return True


def publish(
    built: Built,
    t: Task,
    plan: WritePlan,
    target: Path,
    *,
    threads: int,
    checks: Iterable[Callable[[Dataset], None]] = (),
) -> None:
    """Complete the dataset and move it to ``target`` in one step, unless one of ``checks`` raises."""
    t.dataset.store.files.check_readable()
    task.write_failures(built.directory, tuple(task.failures_of(built.notes)))
    metadata = tuple(_metadata(t, built))
    built = replace(built, notes=task.notes_for_manifest(n for n in built.notes if n != reuse.BY_NUMBER))
    store = t.dataset.store
    taken = {f.name: plan.renamed.get(f.name, f.name) for f in plan.schema if f.name in plan.shared}
    linked = None
    if plan.joined and taken:  # rows of the source do not lie end to end
        fields = {taken[f.name]: f for f in plan.schema if f.name in taken}
        linked = JoinedMember(store, t.dataset.episodes.index, built.episodes).link(fields, built.directory)

    def locate(field: str, number: str) -> Extent:
        if number.startswith(MADE):
            return Extent.whole(built.made_video(number))
        return store.videos(plan.renamed.get(field, field)).extent(int(number))

    described = _description(t, plan)
    finish(
        built,
        described,
        metadata=metadata,
        shared={} if plan.joined else store.table.shared(taken),
        linked=linked,
        locate=locate,
        threads=threads,
    )
    for check in checks:
        check(open_dataset(built.directory))
    History(target).replace(built.directory)


def _description(t: Task, plan: WritePlan) -> Description:
    m = t.dataset.manifest
    spaces = {k: v for k, v in m.spaces.items() if _keeps_space(k, t, plan)}
    return Description(
        id=str(t.id),
        encoding=m.encoding,
        reader="preprocess",
        reader_version=1,
        episodes_by=m.episodes_by,
        facts=m.facts,
        spaces=spaces,
        env=m.env,
        options=m.options,
        provenance=(
            *m.provenance,
            {**t.provenance(), **_state(t), "changed": _changed(t, plan), "keeps_steps": plan.kept},
        ),
        sources=t.dataset.store.sources,
    )


def _state(t: Task) -> dict[str, Any]:
    return {} if t.state is None else {"state": job.state_entry(t.state, _state_name(t))}


def _changed(t: Task, plan: WritePlan) -> list[str]:
    """Return the fields that differ from the source, including new and removed ones."""
    names = {*t.dataset.schema, *(f.name for f in plan.schema)}
    return sorted(names - plan.same)


def _keeps_space(name: str, t: Task, plan: WritePlan) -> bool:
    """Return whether a space still describes its fields: none of them changed or is missing."""
    before = {n for n in t.dataset.schema if n.split("/")[0] == name}
    after = {f.name for f in plan.schema if f.name.split("/")[0] == name}
    return before == after and before <= plan.same


def _metadata(t: Task, built: Built) -> Iterable[tuple[str, Array | str]]:
    for name in t.dataset.manifest.metadata:
        yield name, t.dataset.store.table.metadata[name]
    if t.state is not None:
        yield _state_name(t), t.state
    if t.pinned and built.episodes.origin is not None:
        numbers = reuse.BY_NUMBER in built.notes
        found = reuse.digests_of(t, numbers=numbers)[built.episodes.origin]
        yield reuse.WITH_NUMBERS if numbers else reuse.DIGESTS, found


def _state_name(t: Task) -> str:
    """Return the metadata name of the first-pass state: the first free one for the function's name."""
    name = f"state/{t.function.name}"
    numbered = chain([name], (f"{name}-{n}" for n in count(2)))
    return next(n for n in numbered if n not in t.dataset.manifest.metadata)
