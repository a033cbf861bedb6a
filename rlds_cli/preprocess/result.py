"""From the rows that a task wrote to its published dataset: what the manifest says of it, and what it shares."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlds_cli import home
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.preprocess import failures, states
from rlds_cli.preprocess.plan import Plan
from rlds_cli.preprocess.task import Task
from rlds_cli.settings import Settings
from rlds_cli.store import arrays, manifest, publishing
from rlds_cli.store.build import Built
from rlds_cli.store.finish import Description, finish
from rlds_cli.store.manifest import Stats
from rlds_cli.store.names import component
from rlds_cli.store.sharing import Shared
from rlds_cli.store.videos import Extent
from rlds_cli.ted import Array

if TYPE_CHECKING:
    from rlds_cli.preprocess.pipeline import Pipeline


def is_made(t: Task | Pipeline, where: Settings) -> bool:
    """Whether the result is there already.

    Raises
    ------
    NameTaken
        Something else is there, under its name.
    """
    path = home.find(t.id, where)
    if path is None:
        return False
    t.check_name(manifest.read(path))
    return True


def publish(
    built: Built,
    t: Task,
    plan: Plan,
    target: Path,
    *,
    threads: int,
    checks: Iterable[Callable[[Dataset], None]] = (),
) -> None:
    """Complete the dataset and move it to ``target``, where it is seen as a whole, unless one of ``checks`` raises."""
    found = t.chain.failures(built.notes) if t.chain else tuple(failures.of(built.notes))
    failures.write(built.directory, found)
    built = replace(built, notes=(*(t.chain.notes() if t.chain else ()), *failures.told(built.notes)))
    store = t.dataset.store

    def locate(field: str, number: str) -> Extent:
        return store.videos(plan.renamed.get(field, field)).extent(int(number))

    described = _description(t, plan)
    finish(built, described, metadata=_metadata(t), shared=_shared(t, plan), locate=locate, threads=threads)
    for check in checks:
        check(open_dataset(built.directory))
    publishing.publish(built.directory, target)


def _description(t: Task, plan: Plan) -> Description:
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
    return {} if t.state is None else {"state": states.in_provenance(t.state, _state_name(t))}


def _changed(t: Task, plan: Plan) -> list[str]:
    """Fields that are not as they were in the source; new ones and those left out are among them."""
    names = {*t.dataset.schema, *(f.name for f in plan.schema)}
    return sorted(names - plan.same)


def _keeps_space(name: str, t: Task, plan: Plan) -> bool:
    """Whether a space still describes its fields: all are there, and as they were."""
    before = {n for n in t.dataset.schema if n.split("/")[0] == name}
    after = {f.name for f in plan.schema if f.name.split("/")[0] == name}
    return before == after and before <= plan.same


def _metadata(t: Task) -> Iterable[tuple[str, Array | str]]:
    for name in t.dataset.manifest.metadata:
        path = t.dataset.path.joinpath("metadata", *(component(c) for c in name.split("/")))
        yield name, arrays.read(path) if arrays.is_array(path) else arrays.read_string(path)
    if t.state is not None:
        yield _state_name(t), t.state


def _state_name(t: Task) -> str:
    """Where the metadata keep what the first pass found out: under the function's name, the first that is free."""
    name = f"state/{t.function.name}"
    numbered = chain([name], (f"{name}-{n}" for n in count(2)))
    return next(n for n in numbered if n not in t.dataset.manifest.metadata)


def _shared(t: Task, plan: Plan) -> dict[str, Shared]:
    m = t.dataset.manifest
    stats = {n: Stats(**s) for n, s in m.stats.items()}
    fields = {f.name: f for f in m.fields}
    before = {n: plan.renamed.get(n, n) for n in plan.shared}
    # What lies between two functions is removed: only what it shares with the source itself is shared in the end.
    lasting = m.shared if t.chain and t.chain.number else fields
    return {n: Shared(t.dataset.path, fields[old], stats.get(old), n, old in lasting) for n, old in before.items()}
