"""Publish what a task has made: complete the dataset, and move it to its place, unless the result exists already."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain, count
from pathlib import Path

from rlds_cli import homes
from rlds_cli.base.array_types import Array
from rlds_cli.base.media.mp4 import Extent
from rlds_cli.base.settings import Settings
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.preprocess import job, reuse, task
from rlds_cli.preprocess.builtin.video_encoding import MADE
from rlds_cli.preprocess.plan import WritePlan
from rlds_cli.preprocess.task import Task
from rlds_cli.store import Built, Description, History, JoinedMember, Manifest, finish


def is_made(t: Task, where: Settings) -> bool:
    """Return whether the result exists already.

    Raises
    ------
    NameTaken
        A dataset of this name exists that is something else.
    """
    path = homes.path_of(t.id, where)
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
    metadata = tuple(_metadata(t, built))
    notes = task.write_failures(built.directory, [n for n in built.notes if n != reuse.BY_NUMBER])
    built = replace(built, notes=notes)
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
    state = {} if t.state is None else {"state": job.state_entry(t.state, _state_name(t))}
    names = {*t.dataset.schema, *(f.name for f in plan.schema)}  # of which some are new, and some are removed
    changed = sorted(names - plan.same)
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
            {**t.provenance(), **state, "changed": changed, "keeps_steps": plan.kept},
        ),
        sources=t.dataset.store.sources,
    )


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
