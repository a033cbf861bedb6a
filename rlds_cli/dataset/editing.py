"""Change a dataset without a copy of its rows: select, trim, label, drop, restore.

A selection and a trim are another dataset, ``ID@NAME``. A label and a drop are the next version of the dataset, or
``ID@NAME`` of a dataset of the registry, which is never changed in its place. Restoring makes a next version, too.
Growing datasets: a change applies to the newest version, whatever was recorded since the episodes were selected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli import homes
from rlds_cli.base import ids, settings
from rlds_cli.base.array_types import IntArray
from rlds_cli.base.files import disk, trees
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.ids import DatasetId
from rlds_cli.base.progress import shown
from rlds_cli.base.repeated import distinct
from rlds_cli.base.settings import StrPath
from rlds_cli.base.text import is_below, plural
from rlds_cli.dataset import retelling, trimming
from rlds_cli.dataset.fixed import OpenDataset, Selected, fixed
from rlds_cli.dataset.provenance import APPEND, UNIT
from rlds_cli.dataset.rows import Rows
from rlds_cli.dataset.tasks import StepTasks
from rlds_cli.dataset.trimming import Ranges
from rlds_cli.errors import InvalidArgument, NameTaken, NoPermission, NotNewest, RldsError
from rlds_cli.homes import Home, exclusive
from rlds_cli.store import (
    Change,
    Facts,
    History,
    Manifest,
    Patched,
    Store,
    StoredColumn,
    open_store,
)
from rlds_cli.ted import TASK, TASK_AT, Scalar, Subtasks

LABEL, COMPACT, RESTORE = "label", "compact", "restore"
_SELECT, _TRIM, _DROP, _SYNC = "select", "trim", "drop", "sync"
BY_FINDINGS, MEASURED = "drop-findings", "measured"  # codes, and accounts of measures: see docs/guides/findings.md
FROM_FILE = "from"  # the name of a file that names the episodes and their labels
BY_EPISODE = "(by episode)"  # what the log of versions says where the values of a column differ
_LONGEST = 60  # characters of the numbers of episodes that the log of versions names


@dataclass(frozen=True, slots=True)
class Target:
    """Where a result goes: ``ID@NAME`` in a home, or the next version without a ``name``."""

    name: str | None = None
    force: bool = False
    copy: bool = False
    home: StrPath | None = None


def save(ds: OpenDataset, how: Mapping[str, Any], to: Target) -> Path:
    """Make ``ID@NAME`` of the episodes of a selection; see `Dataset.save`."""
    index = ds.episodes.index
    if len(distinct(index)) < len(index):
        raise InvalidArgument(f"An episode of {ds.id} is selected twice: a dataset has each episode once.")
    with source_of(ds, to) as ds:
        return _derive(ds, Change(ds.episodes.index, trimming.WHOLE), step_of(ds, _SELECT, _selection(ds, how)), to)


def trim(ds: OpenDataset, ranges: Ranges, function: str, how: Mapping[str, Any], to: Target) -> Path:
    """Make ``ID@NAME`` of ranges of steps; see `Dataset.trim`."""
    with source_of(ds, to) as ds:
        change = trimming.change(ds.store, ranges)
        step = step_of(ds, _TRIM, {**_selection(ds, how), "trim": how.get("trim", function)})
        return _derive(ds, change, {**step, "changed": sorted(change.rows)}, to)


def label(
    ds: OpenDataset,
    columns: Mapping[str, Any],
    facts: Mapping[str, Any],
    how: Mapping[str, Any],
    to: Target,
) -> Path:
    """Set episode columns of the selected episodes, and facts of the dataset; see `Dataset.label`."""
    if columns and not len(ds.episodes.index):
        raise InvalidArgument(f"No episode of {ds.id} is selected: there is nothing to label.")
    if not columns and not facts:
        raise InvalidArgument(
            f"No label and no fact is given for {ds.id}.",
            hint=f'rlds label {ds.id} quality=bad; ds.label(quality="bad")',
        )
    check_no_fields(ds, columns)
    with source_of(ds, to) as ds:
        if TASK in columns and TASK_AT in ds.store.fields:
            check_one_task(ds, to)
        return _label(ds, columns, facts, how, to)


def check_no_fields(ds: OpenDataset, columns: Iterable[str]) -> None:
    """Refuse labels that have the name of a field, which would keep its values."""
    for name in columns:
        shown = Subtasks.FIELD if name == Subtasks.COLUMN else name
        if any(is_below(f, shown) for f in ds.store.fields):
            raise InvalidArgument(
                f"{shown} is a field of the steps of {ds.id}; a label is of a whole episode. Nothing was changed.",
                hint=f"another name, such as my_{name.replace('/', '_')}; rlds preprocess changes fields",
            )


def check_one_task(ds: OpenDataset, to: Target) -> None:
    """Refuse one text for the steps of episodes that have several, or that a log has as they were recorded."""
    way = (
        f'rlds preprocess {ds.id} --fn FILE.py:FUNCTION, where FUNCTION sets episode["{TASK_AT}"], a text for each step'
    )
    several = np.flatnonzero(StepTasks.of(Rows(ds)).several)
    if len(several):
        number = int(ds.episodes.index[several[0]])
        what = f"{plural(len(several), 'episode')} of {ds.id}, the first with the number {number}"
        raise InvalidArgument(
            f"{TASK_AT} has several tasks, one after the other, of {what}; a label is one text for all steps. "
            "Nothing was changed.",
            hint=f"select the others; or {way}",
        )
    if to.name is None and ds.store.table.keeps is not None:
        raise InvalidArgument(
            f"{ds.id} grows, and its steps keep the texts of {TASK_AT} that were recorded. Nothing was changed.",
            hint=f"--name NAME (name=) makes {ids.parse(ds.id).base}@NAME with the new ones",
        )


def _label(
    ds: OpenDataset, columns: Mapping[str, Any], facts: Mapping[str, Any], how: Mapping[str, Any], to: Target
) -> Path:
    count = len(ds.store.episodes["start"])
    own = {column: new_column(ds, column, values) for column, values in columns.items()}
    own = {n: c for n, c in own.items() if not _is_equal(c, _own_column(ds.store, n), count)}
    StoredColumn.check_names([*ds.store.own_columns, *(n for n in columns if n not in ds.store.own_columns)], ds.id)
    changed, members = dict[str, Any](), dict[str, Any]()
    if facts:
        before = Facts(ds.manifest)
        before.check_names(facts)
        before.replaced(facts)  # refuses wrong values, also of facts that do not change
        changed = {n: v for n, v in facts.items() if v != before.values[n]}
        members = before.replaced(changed)
    change = Change(own=own, facts=members)
    if TASK in own:
        change = retelling.relabelled(ds.store, change)
    given = {c: v if isinstance(v, bool | int | float | str | None) else BY_EPISODE for c, v in columns.items()}
    step = {**step_of(ds, LABEL, {**_selection(ds, how), **given, **facts}), "columns": sorted(own)}
    step = {**step, "changed": sorted(change.rows), "facts": sorted(changed)}
    return apply_change(ds, change, step, to, columns=change.own)


def drop(ds: OpenDataset, how: Mapping[str, Any], to: Target) -> Path:
    """Leave out the selected episodes; see `Dataset.drop`."""
    if not len(ds.episodes.index):
        raise InvalidArgument(f"No episode of {ds.id} is selected: there is nothing to drop.")
    with source_of(ds, to) as ds:
        stays = np.ones(len(ds.store.episodes["start"]), bool)
        stays[ds.episodes.index] = False
        index = np.flatnonzero(stays)
        step = step_of(ds, _DROP, _selection(ds, how))
        return apply_change(ds, Change(index, origins(ds.store)), step, to, dropped=ds.episodes.index)


def source_of(ds: OpenDataset, to: Target) -> AbstractContextManager[OpenDataset]:
    """Yield what is changed: for ``ID@NAME`` a dataset that does not grow, for a next version the newest one."""
    ds.store.table.check_changeable()
    if to.name is None:
        return _at_newest(ds)
    return fixed(ds, ids.parse(ds.id).with_variant(to.name), to.home, copy=to.copy)


def restore(ds: OpenDataset) -> Path:
    """Make a next version with the content of an earlier one, which is open; see `Dataset.restore`."""
    if ds.is_selection:
        raise InvalidArgument(
            f"{ds.id}: a selection is not restored.", hint=f'open_dataset("{ds.id}#v{ds.manifest.version}").restore()'
        )
    id = ids.parse(ds.id)
    _check_own(id, ds.manifest)
    step = step_of(ds, RESTORE, {"version": ds.store.version})
    if ds.store.table.commit_restored(step):
        return ds.path
    place = _home_of(ds.path, id)
    target = place.dataset(id)
    with exclusive(place, id, shown(None)):
        newest = open_store(target)
        m = newest.manifest
        columns, facts = _differences(newest, ds.store)
        if not facts and m.fingerprint == ds.manifest.fingerprint:
            return target
        step = {
            **step,
            "version": m.version,
            "source": m.fingerprint,
            "columns": columns,
            "facts": facts,
        }
        built = _write(ds, place, id, m.version + 1, Change(), step, m.provenance)
        History(target).publish(built)
        _discard(built)
    return target


def _differences(a: Store, b: Store) -> tuple[list[str], list[str]]:
    """Return the names of the user's columns and of the facts that differ in two versions of a dataset."""
    count, other = a.manifest.counts.episodes, b.manifest.counts.episodes
    columns = {
        n
        for n in {*a.own_columns, *b.own_columns}
        if count != other or not _is_equal(_own_column(a, n), _own_column(b, n), count)
    }
    return sorted(columns), sorted(Facts(a.manifest).differing(Facts(b.manifest)))


def _own_column(store: Store, name: str) -> StoredColumn | None:
    return store.own_column(name) if name in store.own_columns else None


def _is_equal(a: StoredColumn | None, b: StoredColumn | None, episodes: int) -> bool:
    """Return whether columns have the same type and values, or both are None."""
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and not StoredColumn.differing(a, b, episodes).any()


def origins(store: Store) -> Mapping[str, Patched]:
    """Return which episodes and steps of its source a dataset names in its next version: those that it has named."""
    return {name: column for name, column in trimming.WHOLE.items() if name not in store.episodes}


def _of_first_version(store: Store, change: Change) -> Mapping[str, Any]:
    """Return the columns of a change whose result is a next version of its source."""
    return {**{n: c for n, c in change.columns.items() if n not in trimming.WHOLE}, **origins(store)}


def compact(ds: OpenDataset, change: Change, *, needed: int, kept: Collection[int] = ()) -> Path:
    """Write the episodes of a dataset end to end: its next version. Earlier ones without a tag are removed.

    Those of the numbers ``kept`` stay as well, and those whose rows one that stays refers to.
    """
    id = ids.parse(ds.id)
    place = _home_of(ds.path, id)
    disk.check_space(needed, place.root)
    path = _publish(ds, change, step_of(ds, COMPACT, {}))
    with exclusive(place, id, shown(None)):
        History(path).prune(kept)
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What changes of a dataset come to: its episodes, new values of columns, and facts.

    Attributes
    ----------
    ranges : int64 array [n, 3], optional
        Of each episode of the result, the number of the episode that it is a part of, and its steps [first, stop); all
        episodes as they are without it.
    columns : mapping
        Of all these episodes; None takes a column away.
    facts : mapping
        None takes a fact away.
    accounts : mapping of str to sequence of mappings
        Accounts of the measures and of the decisions by which episodes and steps were chosen, for the provenance.
    """

    ranges: IntArray | None
    columns: Mapping[str, StoredColumn | None]
    facts: Mapping[str, Any]
    accounts: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)


def remake(
    ds: OpenDataset,
    id: DatasetId,
    version: int,
    outcome: Callable[[Store], Outcome],
    *,
    verify: Callable[[Path], None],
    home: StrPath | None,
) -> Path:
    """Make a version by the outcome of changes; what is in its place becomes an earlier version if it is one.

    Parameters
    ----------
    ds : Dataset
        What is changed.
    outcome : callable
        Called with its files.
    verify : callable
        Called with the result before it is published; it raises what is wrong with it.
    """
    place = Home(settings.read(home).home)
    target = place.dataset(id)
    with fixed(ds, id, home) as ds, exclusive(place, id, shown(None)):
        wanted = outcome(ds.store)
        change = Change() if wanted.ranges is None else trimming.change(ds.store, Ranges.of(wanted.ranges))
        change = replace(
            change, own={**change.own, **wanted.columns}, facts=Facts(ds.store.manifest).replaced(wanted.facts)
        )
        change = retelling.relabelled(ds.store, change)
        about = {"columns": sorted(wanted.columns), "facts": sorted(wanted.facts)}
        args = {name: list(account) for name, account in wanted.accounts.items() if account}
        step = {**step_of(ds, _SYNC, args), "changed": sorted(change.rows), **about}
        if ds.id == str(id) and change.index is not None:
            change = replace(change, columns=_of_first_version(ds.store, change))
        built = _write(ds, place, id, version, change, step)
        try:
            verify(built)
        except RldsError:
            _discard(built)
            raise
        History(target).supersede(built)
        _discard(built)
    return target


# -- values of columns


def new_column(ds: OpenDataset, name: str, values: Any) -> StoredColumn | None:
    """Return a column of all episodes of the store in which the selected ones have new values.

    Raises
    ------
    InvalidArgument, InvalidEpisode
        There are not as many values as episodes, or a value does not fit the column.
    """
    count, index = len(ds.store.episodes["start"]), ds.episodes.index
    known = name in ds.store.own_columns
    all_values: list[Scalar] = ds.store.own_column(name).scalars() if known else [None] * count
    one = values is None or isinstance(values, bool | int | float | str | np.generic)
    given = [values] * len(index) if one else values.tolist() if isinstance(values, np.ndarray) else list(values)
    if len(given) != len(index):
        raise InvalidArgument(f"{name}: {len(given):,} values for {len(index):,} episodes of {ds.id}.")
    for k, value in zip(index.tolist(), StoredColumn.plain(given, name, ds.id), strict=True):
        if name == Subtasks.COLUMN and value is not None:
            Subtasks.of(value, f"{ds.id}, episode {k}", int(ds.store.episodes["length"][k]))
        all_values[k] = value
    if all(v is None for v in all_values):
        return None
    made = StoredColumn.of(all_values, name)
    before = ds.store.own_column(name) if known else made
    if before.dtype != made.dtype and {before.dtype, made.dtype} & {"str", "bool"} and not before.missing.all():
        raise InvalidArgument(
            f"{name} of {ds.id} holds values of type {before.dtype}; the new ones are of type {made.dtype}.",
            hint=f"another column; or remove all its values first: {name}=None (null on the command line)",
        )
    return made


# -- results


@contextmanager
def _at_newest(ds: OpenDataset) -> Iterator[OpenDataset]:
    """Yield a dataset as a change is made on it, with the same episodes selected; see `Table.changing`.

    Raises
    ------
    NotNewest
        It was changed meanwhile, or a selected episode left.
    """
    with ds.store.table.changing(ds.episodes.index) as (newest, index):
        if index is None:
            raise NotNewest(ids.parse(ds.id), ds.store.version, newest.version)
        yield ds if newest is ds.store.table else Selected(ds, Store(newest), index)


def step_of(ds: OpenDataset, what: str, how: Mapping[str, Any]) -> dict[str, Any]:
    """Return the step of the provenance, but for the id of the result; raises InvalidArgument as `source_of`."""
    ds.store.table.check_changeable()
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


def append_step(ds: OpenDataset, how: Mapping[str, Any]) -> dict[str, Any]:
    """Return the step of the provenance for episodes of files that are appended, but for the id of the result."""
    return {**step_of(ds, APPEND, how), "unit": APPEND}


def _selection(ds: OpenDataset, how: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the log of versions says of the selected episodes: conditions, numbers if few, and how many."""
    measured = {n: how[n] for n in (BY_FINDINGS, MEASURED) if n in how}
    if not ds.is_selection:
        return measured
    named = {n: how[n] for n in ("where", "split", FROM_FILE) if n in how} | measured
    ranges = _ranges(ds.episodes.index)
    if ("episodes" in how or not named) and len(ranges) <= _LONGEST:
        named["episodes"] = ranges
    return {**named, "selected": len(distinct(ds.episodes.index))}


def _ranges(index: IntArray) -> str:
    """Return numbers as ``3,7,10-19``, in their order, each once; of many ranges only more than the log names."""
    each = index[np.sort(np.unique(index, return_index=True)[1])]
    each = each[: next(iter((np.flatnonzero(np.diff(each) != 1) + 1)[_LONGEST:].tolist()), None)]
    runs = np.split(each, np.flatnonzero(np.diff(each) != 1) + 1) if len(each) else ()
    return ",".join(f"{r[0]}" if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def apply_change(
    ds: OpenDataset,
    change: Change,
    step: Mapping[str, Any],
    to: Target,
    *,
    columns: Mapping[str, StoredColumn | None] = {},
    dropped: IntArray | None = None,
) -> Path:
    """Make the next version of a dataset, or ``ID@NAME``.

    Parameters
    ----------
    columns : mapping
        The new columns of all episodes, those that go included.
    dropped : int array, optional
        Which episodes go.
    """
    if to.name is not None:
        return _derive(ds, replace(change, columns={**trimming.WHOLE, **change.columns}), step, to)
    _check_own(ids.parse(ds.id), ds.manifest)
    if ds.store.table.commit_change(ds.episodes.index, step, columns, dropped=dropped):
        return ds.path
    try:
        with disk.errors(ds.path):
            return _publish(ds, change, step)
    except NoPermission as e:
        hint = f"--name NAME (name=) makes {ids.parse(ds.id).base}@NAME, in your home"
        raise NoPermission(f"{e.message} {ds.id} is as it was.", hint=hint) from e


def _check_own(id: DatasetId, m: Manifest) -> None:
    if homes.is_published(id, derived=bool(m.provenance)):
        raise InvalidArgument(
            f"{id} is a dataset of the registry: it stays as it is.",
            hint=f"label and drop with --name NAME (name=) make {id.base}@NAME; rlds select makes one, too",
        )


def _publish(ds: OpenDataset, change: Change, step: Mapping[str, Any]) -> Path:
    """Make the next version of a dataset, unless nothing changes.

    Raises
    ------
    NotNewest
        The dataset has a newer version than the one that is open.
    """
    id = ids.parse(ds.id)
    place = _home_of(ds.path, id)
    with exclusive(place, id, shown(None)):
        newest, open_ = Manifest.read(place.dataset(id)), ds.manifest
        if newest.version != open_.version or newest.fingerprint != open_.fingerprint:
            raise NotNewest(id, open_.version, newest.version)
        if change.index is None and not (change.own or change.facts or change.rows or change.columns):
            return place.dataset(id)
        built = _write(ds, place, id, open_.version + 1, change, step)
        History(place.dataset(id)).publish(built)
        _discard(built)
    return place.dataset(id)


def _derive(ds: OpenDataset, change: Change, step: Mapping[str, Any], to: Target) -> Path:
    id = ids.parse(ds.id).with_variant(str(to.name))
    if str(id) == ds.id:
        raise NameTaken(f"{id} cannot be made of itself.", hint="another name; label and drop change it in its place")
    where = settings.read(to.home)
    place = Home(where.home)
    temporary = ds.path.is_relative_to(place.root / "partial")  # of a growing dataset, and copied where it was to be
    if to.copy and not temporary:
        disk.check_space(ds.store.files.size_with_others(), place.root)
    with exclusive(place, id, shown(None)):
        found = homes.path_of(id, where)
        if found is not None and not to.force:
            raise NameTaken(
                f"{id} exists already, in {found}.", hint="another name, or --force (force=True) replaces it"
            )
        history = History(place.dataset(id))
        history.check_replaceable()
        records = ds.records if isinstance(ds, Selected) and not to.copy else None
        change = replace(change, copies=to.copy, moves=to.copy and temporary, looks_up=not temporary, records=records)
        built = _write(ds, place, id, 1, change, step)
        history.replace(built)
        _discard(built)
    return place.dataset(id)


def _write(
    ds: OpenDataset,
    place: Home,
    id: DatasetId,
    version: int,
    change: Change,
    step: Mapping[str, Any],
    before: Sequence[Mapping[str, Any]] | None = None,
) -> Path:
    """Write a version; ``before`` are the steps of its provenance before ``step``, by default those of ``ds``."""
    steps = (*(ds.manifest.provenance if before is None else before), {"id": str(id), **step})
    work = place.partial(id, "version")
    trees.discard(work)
    safe_files.work_directory(work, place.root)  # for this user alone, unlike the dataset in it
    built = work / "dataset"
    built.mkdir(safe_files.DIRECTORY)
    change.write(ds.store, built, id=str(id), version=version, provenance=steps)
    return built


def _discard(built: Path) -> None:
    """Remove the directory in which `_write` has made a dataset, with what is left of it."""
    trees.discard(built.parent)


def _home_of(path: Path, id: DatasetId) -> Home:
    """Return the home in which ``path`` is a version of a dataset.

    Raises
    ------
    InvalidArgument
        It is in none: there is no place for its earlier versions.
    """
    newest = History.of(path).path
    for place in map(Home, newest.parents):
        if place.dataset(id) == newest:
            return place
    raise InvalidArgument(
        f"{path} is not in a home, where its earlier versions would be kept.",
        hint="--name NAME (name=) makes another dataset, in your home",
    )
