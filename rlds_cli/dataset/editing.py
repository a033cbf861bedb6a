"""Change a dataset without a copy of its rows: select, trim, label, drop.

A selection and a trim are another dataset, ``ID@NAME``. A label and a drop are the next version of the dataset, or
``ID@NAME`` of a dataset of the registry, which is never changed in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlds_cli import home, ids, registry, settings
from rlds_cli.dataset import trimming
from rlds_cli.dataset.selection import EpisodeColumns
from rlds_cli.dataset.trimming import Ranges
from rlds_cli.errors import InvalidArgument, NameTaken, RldsError
from rlds_cli.files import disk, trees
from rlds_cli.files import safe as safe_files
from rlds_cli.growing.store import is_growing
from rlds_cli.home import Home
from rlds_cli.home.locks import exclusive
from rlds_cli.home.usage import size_on_disk
from rlds_cli.ids import DatasetId
from rlds_cli.progress import shown
from rlds_cli.settings import StrPath
from rlds_cli.store import episode_table, manifest, publishing, tags, versions, views
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.opening import Store
from rlds_cli.store.views import Change
from rlds_cli.ted import Field, Scalar

FACTS = ("fps", "license", "description")  # that a user may set
UNIT = "dataset"  # of a step of the provenance: what is done here, and by no function
_SELECT, _TRIM, _LABEL, _DROP, _COMPACT, _SYNC = "select", "trim", "label", "drop", "compact", "sync"


class _Dataset(Protocol):
    """The part of a `Dataset` that is read here. It keeps this module below the one that defines datasets."""

    @property
    def id(self) -> str: ...
    @property
    def path(self) -> Path: ...
    @property
    def store(self) -> Store: ...
    @property
    def manifest(self) -> Manifest: ...
    @property
    def episodes(self) -> EpisodeColumns: ...
    @property
    def schema(self) -> Mapping[str, Field]: ...


@dataclass(frozen=True, slots=True)
class Target:
    """Where a result goes: ``ID@NAME`` in a home, or the next version without a ``name``."""

    name: str | None = None
    force: bool = False
    copy: bool = False
    cache_dir: StrPath | None = None


def save(ds: _Dataset, how: Mapping[str, Any], to: Target) -> Path:
    """Make ``ID@NAME`` of the episodes of a selection; see `Dataset.save`."""
    index = ds.episodes.index
    if len(np.unique(index)) < len(index):
        raise InvalidArgument(f"An episode of {ds.id} is selected twice: a dataset has each episode once.")
    return _derive(ds, trimming.whole(index), step_of(ds, _SELECT, how), to)


def trim(ds: _Dataset, ranges: Ranges, how: Mapping[str, Any], to: Target) -> Path:
    """Make ``ID@NAME`` of ranges of steps; see `Dataset.trim`."""
    _check_kind(ds)
    change = trimming.change(ds.store, ranges)
    return _derive(ds, change, {**step_of(ds, _TRIM, how), "changed": sorted(change.rows)}, to)


def label(
    ds: _Dataset,
    columns: Mapping[str, Any],
    facts: Mapping[str, Any],
    how: Mapping[str, Any],
    to: Target,
) -> Path:
    """Set episode columns of the selected episodes, and facts of the dataset; see `Dataset.label`."""
    if columns and not len(ds.episodes.index):
        raise InvalidArgument(f"No episode of {ds.id} is selected: there is nothing to label.")
    if not columns and not facts:
        raise InvalidArgument(f"There is nothing to set in {ds.id}.", hint='ds.label(quality="bad")')
    own = {column: _set(ds, column, values) for column, values in columns.items()}
    episode_table.check_names([*ds.store.own_columns, *(n for n in own if n not in ds.store.own_columns)], ds.id)
    unknown = sorted(set(facts) - set(FACTS))
    if unknown:
        raise InvalidArgument(f"{unknown[0]} is no fact of a dataset.", hint=f"facts: {', '.join(FACTS)}")
    change = Change(own=own, facts=described_facts(ds.manifest, facts))
    shown_columns = {c: v for c, v in columns.items() if isinstance(v, bool | int | float | str | None)}
    how = {**how, **shown_columns, **{c: "..." for c in columns if c not in shown_columns}, **facts}
    step = {**step_of(ds, _LABEL, how), "columns": sorted(columns), "facts": sorted(facts)}
    return _apply(ds, change, step, to)


def drop(ds: _Dataset, how: Mapping[str, Any], to: Target) -> Path:
    """Leave out the selected episodes; see `Dataset.drop`."""
    stays = np.ones(ds.store.manifest.counts.episodes, bool)
    stays[ds.episodes.index] = False
    index = np.flatnonzero(stays)
    if len(index) == len(stays):
        raise InvalidArgument(f"No episode of {ds.id} is selected: there is nothing to drop.")
    known = ds.store.episodes
    columns: dict[str, views.Column] = {
        n: known[n][index] if n in known else start
        for n, start in (("source_episode", index), ("source_step", np.zeros(len(index), np.int64)))
    }
    return _apply(ds, Change(index, columns), step_of(ds, _DROP, how), to)


def compact(ds: _Dataset, change: Change, *, needed: int) -> Path:
    """Write the episodes of a dataset end to end: its next version. Earlier ones without a tag are removed."""
    id = ids.parse(ds.id)
    place = _home_of(ds.path, id)
    disk.check_space(needed, place.root)
    path = _publish(ds, change, step_of(ds, _COMPACT, {}))
    with exclusive(place, id, shown(None)):
        kept = set(tags.read(path).values())
        for number in versions.earlier(path):
            if number not in kept:
                publishing.remove(versions.at(path, number))
    return path


def again(
    ds: _Dataset,
    id: DatasetId,
    version: int,
    change: Change,
    about: Mapping[str, Any],
    *,
    verify: Callable[[Path], None],
    cache_dir: StrPath | None,
) -> Path:
    """Make a version that a lock file describes; what is in its place becomes an earlier version if it is one.

    Parameters
    ----------
    ds : Dataset
        What is changed.
    about : mapping
        Names of the ``columns`` and ``facts`` that the change sets, for the provenance.
    verify : callable
        Called with the result before it is published; it raises what is wrong with it.
    """
    _check_kind(ds)
    place = Home(settings.read(cache_dir).home)
    target = place.dataset(id)
    with exclusive(place, id, shown(None)):
        step = {**step_of(ds, _SYNC, {}), "changed": sorted(change.rows), **about}
        built = _write(ds, place, id, version, change, step)
        try:
            verify(built)
        except RldsError:
            trees.discard(built)
            raise
        if home.is_dataset(target) and not is_growing(target) and manifest.read(target).version < version:
            versions.publish(built, target)
        else:
            publishing.publish(built, target)
            versions.remove(target)
    return target


def facts_of(m: Manifest) -> dict[str, Any]:
    """Return the facts of a dataset that a user may set."""
    return {"fps": m.env.get("fps"), "license": m.facts.get("licence"), "description": m.facts.get("description")}


def described_facts(m: Manifest, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a manifest that say these facts; one that is None is taken away."""
    described: dict[str, Any] = {}
    if "fps" in facts:
        fps = facts["fps"]
        if fps is not None and (isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < 1e9):
            raise InvalidArgument(f"fps={fps!r}: a number of steps a second is needed.")
        described["env"] = {**m.env, "fps": None if fps is None else float(fps)}
    wrong = next((n for n, t in facts.items() if n != "fps" and not isinstance(t, str | None)), None)
    if wrong is not None:
        raise InvalidArgument(f"{wrong}={facts[wrong]!r}: a text is needed.")
    texts = {"licence" if n == "license" else n: t for n, t in facts.items() if n != "fps"}
    if texts:
        described["facts"] = {n: t for n, t in {**m.facts, **texts}.items() if t is not None}
    return described


# -- values of columns


def _set(ds: _Dataset, name: str, values: Any) -> episode_table.StoredColumn | None:
    """Return a column of all episodes of the store in which the selected ones have new values.

    Raises
    ------
    InvalidArgument, InvalidEpisode
        There are not as many values as episodes, or a value does not fit the column.
    """
    count, index = ds.store.manifest.counts.episodes, ds.episodes.index
    known = name in ds.store.own_columns
    all_values: list[Scalar] = ds.store.own_column(name).scalars() if known else [None] * count
    one = values is None or isinstance(values, bool | int | float | str | np.generic)
    given = [values] * len(index) if one else values.tolist() if isinstance(values, np.ndarray) else list(values)
    if len(given) != len(index):
        raise InvalidArgument(f"{name}: {len(given):,} values for {len(index):,} episodes of {ds.id}.")
    for k, value in zip(index.tolist(), episode_table.scalars(given, name, ds.id), strict=True):
        all_values[k] = value
    if all(v is None for v in all_values):
        return None
    made = episode_table.typed(all_values, name)
    before = ds.store.own_column(name) if known else made
    if before.dtype != made.dtype and {before.dtype, made.dtype} & {"str", "bool"} and not before.missing.all():
        raise InvalidArgument(
            f"{name} of {ds.id} has values of type {before.dtype}, and none of type {made.dtype}.",
            hint=f"another column; or take the values away first: {name}=None (null on the command line)",
        )
    return made


# -- results


def _check_kind(ds: _Dataset) -> None:
    if ds.store.grows:
        raise InvalidArgument(f"{ds.id} grows: it is not changed in this way.", hint="rlds merge makes a dataset of it")
    if ds.store.remote:
        raise InvalidArgument(f"{ds.id} is at an address.", hint="rlds download ADDRESS --as local/NAME")


def step_of(ds: _Dataset, what: str, how: Mapping[str, Any]) -> dict[str, Any]:
    """Return the step of the provenance, but for the id of the result."""
    _check_kind(ds)
    return {
        "from": ds.id,
        "version": ds.manifest.version,
        "source": ds.manifest.fingerprint,
        "reference": what,
        "function": what,
        "key": "",
        "code": "",
        "unit": UNIT,
        "arrays": "",
        "changed": [],
        "keeps_steps": True,
        "files": [],
        "args": dict(how),
        "fields": None,
    }


def _apply(ds: _Dataset, change: Change, step: Mapping[str, Any], to: Target) -> Path:
    """Make the next version of a dataset, or ``ID@NAME``."""
    if to.name is not None:
        index = np.arange(ds.store.manifest.counts.episodes) if change.index is None else change.index
        of_source = {**change.columns, **trimming.whole(index).columns}
        return _derive(ds, replace(change, columns=of_source), step, to)
    id = ids.parse(ds.id)
    if is_published(id, ds.manifest):
        raise InvalidArgument(
            f"{ds.id} is a dataset of the registry, which is not changed in its place.",
            hint=f"--name NAME (name=) makes {id.base}@NAME",
        )
    return _publish(ds, change, step)


def _publish(ds: _Dataset, change: Change, step: Mapping[str, Any]) -> Path:
    """Make the next version of a dataset."""
    id = ids.parse(ds.id)
    place = _home_of(ds.path, id)
    with exclusive(place, id, shown(None)):
        newest = manifest.read(place.dataset(id))
        if newest.version != ds.manifest.version or newest.fingerprint != ds.manifest.fingerprint:
            raise InvalidArgument(
                f"{ds.id} has a newer version, {newest.version:,}, than the {ds.manifest.version:,} that is open.",
                hint="open it again; --name NAME (name=) makes another dataset",
            )
        built = _write(ds, place, id, ds.manifest.version + 1, change, step)
        versions.publish(built, place.dataset(id))
    return place.dataset(id)


def _derive(ds: _Dataset, change: Change, step: Mapping[str, Any], to: Target) -> Path:
    id = ids.parse(ds.id).with_variant(str(to.name))
    if str(id) == ds.id:
        raise NameTaken(f"{id} cannot be made of itself.", hint="another name; label and drop change it in its place")
    where = settings.read(to.cache_dir)
    place = Home(where.home)
    if to.copy:
        disk.check_space(size_on_disk(ds.path), place.root)
    with exclusive(place, id, shown(None)):
        found = home.find(id, where)
        if found is not None and not to.force:
            raise NameTaken(f"{id} is here: {found}.", hint="another name, or --force (force=True) replaces it")
        built = _write(ds, place, id, 1, replace(change, copies=to.copy), step)
        publishing.publish(built, place.dataset(id))
        versions.remove(place.dataset(id))
    return place.dataset(id)


def _write(ds: _Dataset, place: Home, id: DatasetId, version: int, change: Change, step: Mapping[str, Any]) -> Path:
    work = place.partial(id, "version")
    trees.discard(work)
    safe_files.work_directory(work, place.root)
    views.write(ds.store, work, change, id=str(id), version=version, step={"id": str(id), **step})
    return work


def is_published(id: DatasetId, m: Manifest) -> bool:
    """Return whether a dataset is one that others have under this id, too: of the registry, and not derived from it."""
    return registry.listed(str(id.base)) is not None and not (id.variant and m.provenance)


def _home_of(path: Path, id: DatasetId) -> Home:
    """Return the home in which ``path`` is a version of a dataset.

    Raises
    ------
    InvalidArgument
        It is in none: there is no place for its earlier versions.
    """
    newest = versions.newest_of(path)
    for place in map(Home, newest.parents):
        if place.dataset(id) == newest:
            return place
    raise InvalidArgument(f"{path} is in no home.", hint="--name NAME (name=) makes another dataset")
