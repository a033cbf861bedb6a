"""Merge datasets: one dataset of the episodes of several, which says where each episode came from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlds_cli.base import ids, settings
from rlds_cli.base.array_types import BoolArray
from rlds_cli.base.files import disk, publishing, trees
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.ids import DatasetId
from rlds_cli.base.progress import Progress, Stage, shown
from rlds_cli.base.settings import StrPath
from rlds_cli.base.text import plural
from rlds_cli.dataset import Dataset, Rows, Tasks, open_dataset, sources_for_another
from rlds_cli.errors import InvalidArgument, InvalidEpisode, UnknownField
from rlds_cli.homes import Home, exclusive
from rlds_cli.look import record_findings
from rlds_cli.make.convert.create import VideoSources, check_free, of_videos
from rlds_cli.store import Description, History, JoinedMember, Store, StoredColumn, Work, finish, join, open_store
from rlds_cli.ted import TASK_AT, VIDEO, Chunk, Column, EpisodeTable, Field, Part

COLUMN = "dataset"  # the episode column that says where an episode came from
MERGED = "merge"  # in the manifest
_REPLACE = "--force (force=True)"  # of a hint
_PART_ROWS = 1 << 20
_CHUNK_BYTES = 16 << 20
_JOINED = "joined"  # the directory of the result below the work directory


@dataclass(frozen=True, slots=True)
class MergeMember:
    """A dataset of a merge: its id, version, and numbers of episodes and steps that it gives.

    ``fingerprint`` is that of the episodes, ``of`` that of the dataset of which they are all or a selection.
    """

    id: str
    fingerprint: str
    of: str
    version: int
    episodes: int
    steps: int


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The plan of a merge.

    Attributes
    ----------
    id : str
    members : tuple of MergeMember
    fields : tuple of Field
        Of the result.
    left_out : tuple of str
        Fields of the members that the result does not have.
    copied : tuple of str
        Ids of the members whose rows will be written; the result shares the files of the others. Those of compressed
        and remote members cannot be shared, nor those of growing ones on another disk or of another user.
    referred : tuple of str
        Ids of the members whose files stay where they are, on another disk or of another user: the result refers to
        them.
    converted : tuple of str
        Fields whose dtypes differ: their rows are written in a dtype that holds the values of all members.
    bytes : int
        Bytes of rows that will be written; encoded frames and texts do not count.
    """

    id: str
    members: tuple[MergeMember, ...]
    fields: tuple[Field, ...]
    left_out: tuple[str, ...]
    copied: tuple[str, ...]
    referred: tuple[str, ...]
    converted: tuple[str, ...]
    bytes: int


def plan_merge(
    refs: Sequence[str | Dataset],
    name: str,
    *,
    fields: Sequence[str] | None = None,
    column: str = COLUMN,
    storage: Literal["memmap", "zarr"] = "memmap",
    copy: bool = False,
    home: StrPath | None = None,
) -> MergePlan:
    """Check whether datasets can be merged, and say what would be written. Parameters and errors: those of `merge`."""
    place = Home(settings.read(home).home)
    members, shares = _opened(refs, home), storage == "memmap"
    return MergeJob(ids.parse(name), members, fields, column, place, shares=shares, copy=copy).plan


def merge(
    refs: Sequence[str | Dataset],
    name: str,
    *,
    fields: Sequence[str] | None = None,
    column: str = COLUMN,
    storage: Literal["memmap", "zarr"] = "memmap",
    copy: bool = False,
    force: bool = False,
    home: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> Dataset:
    """Make one dataset of the episodes of several, one after the other; the datasets stay as they are.

    The result shares the files of rows of its members, whose rows of other episodes it keeps; `rlds compact` leaves
    these out. It refers to members on another disk or of another user, unless ``copy`` is set; those that grow there
    are copied. A field whose dtypes differ is written in one that holds the values of all. Rows are also written of
    compressed and remote members, and of all members if the result is compressed. For a growing member, the newest
    version is taken, or that of an open dataset. After an interruption the same call continues.

    Parameters
    ----------
    refs : sequence of str or Dataset
        Ids of datasets on this disk, or open ones, selections too.
    name : str
        Id of the result, such as ``local/all``.
    fields : sequence of str, optional
        Fields of the result. Without it, the members must have the same fields.
    column : str
        Name of the episode column that holds the id of the dataset that an episode came from.
    storage : {"memmap", "zarr"}
        Memory-mapped files, or compressed ones.
    copy : bool
        Write the rows of members on another disk or of another user, too.
    force : bool
        Replace a dataset of this id.

    Raises
    ------
    InvalidArgument
        Episodes would be repeated: members have some with the same id, such as a dataset and another version, a
        selection, a copy or a merge of it.
    InvalidEpisode
        Fields or episode columns do not agree; the message lists the differences.
    NameTaken
        The id exists.
    DatasetNotFound, UnknownField
        There is no such dataset or field.

    Examples
    --------
    >>> ds = merge(["local/monday", "local/tuesday"], "local/all")  # doctest: +SKIP
    >>> ds.select(where='dataset == "local/monday"').num_episodes  # doctest: +SKIP
    40
    """
    id, tell = ids.parse(name), shown(progress)
    where = settings.read(home)
    place = Home(where.home)
    members = _opened(refs, home)
    todo = MergeJob(id, members, fields, column, place, shares=storage == "memmap", copy=copy)
    _ = todo.plan  # errors before anything is written
    check_free(id, where, force, _REPLACE)
    with exclusive(place, id, tell):
        check_free(id, where, force, _REPLACE)  # another process may have held the lock
        publish = History(place.dataset(id)).replace
        make(todo, place, publish, storage=storage, tell=tell)
    return open_dataset(str(id), home=home)


def make(
    todo: MergeJob, place: Home, publish: Callable[[Path], None], *, storage: str = "memmap", tell: Progress
) -> None:
    """Write the result of a merge, and have its directory published. The caller has the lock of its id."""
    work = place.partial(ids.parse(todo.id), todo.key[:16])
    disk.check_space(todo.plan.bytes, place.root)
    safe_files.work_directory(work, place.root)
    publish(_written(todo, work, storage, tell))
    trees.discard(work)


def _written(todo: MergeJob, work: Path, storage: str, tell: Progress) -> Path:
    """Write the result below ``work``, and return its directory."""
    trees.discard(work / _JOINED)
    if not todo.copied:
        return _joined(todo, work, None)
    built = Work(todo, work).run(progress=tell)
    finish(built, todo.described(storage), locate=todo.videos.locate)
    if len(todo.copied) == todo.count:
        record_findings(built.directory)
        return built.directory
    publishing.seal(built.directory)
    return _joined(todo, work, open_store(built.directory))


def _joined(todo: MergeJob, work: Path, copied: Store | None) -> Path:
    join(todo.joined(copied), todo.fields, work / _JOINED, todo.described("memmap"))
    return work / _JOINED


def _opened(refs: Sequence[str | Dataset], home: StrPath | None) -> list[Dataset]:
    given = [refs] if isinstance(refs, str | Dataset) else list(refs)
    if not given:
        raise InvalidArgument("There is nothing to merge: name at least one dataset.")
    return [r if isinstance(r, Dataset) else open_dataset(r, home=home) for r in given]


class MergeJob:
    """A merge as a job of ``store.work``.

    Parameters
    ----------
    id : DatasetId
        Of the result.
    members : list of Dataset
    fields : sequence of str, optional
        All that the members have, which must be the same, without it.
    column : str, optional
        Of the result, with the id of each episode's member.
    place : Home
        Where the result goes.
    shares : bool
        The result shares the files of the members; else all rows are written.
    copy : bool
        Rows are written of members whose files cannot be linked there, too.
    """

    stage: Stage = "convert"

    def __init__(
        self,
        id: DatasetId,
        members: list[Dataset],
        fields: Sequence[str] | None,
        column: str | None,
        place: Home,
        *,
        shares: bool = True,
        copy: bool = False,
    ) -> None:
        self._members, self._column, self._place, self._shares, self._copy = members, column, place, shares, copy
        self.id = str(id)
        self.videos = VideoSources()
        for b, later in enumerate(members):
            for earlier in members[:b]:
                _check_repeats(earlier, later)
        self.fields = _agreed(members, fields)
        self._check_columns()

    # -- the job

    @property
    def key(self) -> str:
        """Hash of the members, which of them are copied, the fields and the column."""
        what = [[d.id, d.fingerprint, d.version] for d in self._members]
        described = [self.id, self._column, what, self.copied, [asdict(f) for f in self.fields]]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()

    @property
    def schema(self) -> tuple[Field, ...]:
        """The fields of the result."""
        return self.fields

    @cached_property
    def parts(self) -> Sequence[Part]:
        """Whole episodes of one member each, about a million rows at a time."""
        found = []
        for number in self.copied:
            ds = self._members[number]
            rows = np.cumsum(ds.episodes["length"] + 1)
            firsts = np.flatnonzero(np.diff(rows // _PART_ROWS, prepend=-1)) if len(rows) else np.zeros(0, np.int64)
            bounds = [*firsts.tolist(), len(rows)]
            for a, b in pairwise(bounds):
                size = int(rows[b - 1] - (rows[a - 1] if a else 0))
                found.append(Part(size, {"member": number, "first": a, "last": b}))
        return found

    def read(self, part: Part) -> Iterator[Chunk]:
        """Yield the rows of a part in pieces."""
        number, first, last = (part.args[n] for n in ("member", "first", "last"))
        rows, table = self._rows[number], self._tables[number]
        at_once = max(2, _CHUNK_BYTES // max(1, sum(f.row_bytes for f in self.schema)))
        end = int(rows.final[last - 1]) + 1
        for row in range(int(rows.start[first]), end, at_once):
            stop = min(row + at_once, end)
            final = rows.last_rows(row, stop)
            marks: BoolArray = np.zeros(stop - row, bool)
            marks[final - row] = True
            columns = {f.name: self._column_of(rows, f, row, stop) for f in self.schema}
            yield Chunk(columns, marks, table.take(rows.episodes_at(final)))

    def _column_of(self, rows: Rows, f: Field, start: int, stop: int) -> Column:
        """Return rows of a field as a chunk holds them: frames encoded, texts listed."""
        if f.name not in rows.store.fields:
            return _tasks_of(rows, start, stop)
        if f.kind == "frames" and f.codec != VIDEO:
            return replace(rows.encoded(f.name, np.arange(start, stop)), shape=f.shape, codec=f.codec)
        values = rows.between(f.name, start, stop)
        if f.kind == "array":
            return values.astype(f.dtype, copy=False)
        if f.codec == VIDEO:
            return of_videos(rows.store, f, values, self.videos)
        return rows.store.texts(f.name, values).tolist() if f.kind == "text" else values

    def name(self, number: int) -> str:
        """Return the name of a part in messages."""
        return f"part {number + 1:,} of {len(self.parts):,}"

    @cached_property
    def _rows(self) -> list[Rows]:
        return [Rows(ds) for ds in self._members]

    @cached_property
    def _tables(self) -> list[EpisodeTable]:
        """Episode tables of the members, whose sources count from the first file of all."""
        found, before = [], 0
        for ds, label in zip(self._members, self._labels, strict=True):
            table = ds.store.episode_table(ds.episodes.index)
            table.source = table.source + np.int32(before)
            if self._column is not None:
                table.extra = {**table.extra, self._column: [label] * len(table)}
            before += len(sources_for_another(ds.store)) if self._sources else 0
            found.append(table)
        return found

    @cached_property
    def _sources(self) -> tuple[Mapping[str, Any], ...]:
        """Files of the archives of all members; none if all episodes come from values."""
        if not any(ds.store.sources for ds in self._members):
            return ()
        return tuple(s for ds in self._members for s in sources_for_another(ds.store))

    @property
    def _labels(self) -> list[str]:
        names = [ds.id for ds in self._members]
        return [str(ds.path) if names.count(ds.id) > 1 else ds.id for ds in self._members]

    # -- checks

    def _check_columns(self) -> None:
        """Refuse episode columns of different types, and a column of the name of the new one."""
        new = [] if self._column is None else [self._column]
        taken = [ds.id for ds in self._members for name in new if name in ds.episodes]
        if taken:
            raise InvalidEpisode(
                f"{taken[0]} has an episode column {self._column} already.",
                hint="--column NAME (column=) calls the new one otherwise",
            )
        StoredColumn.check_names(new, self.id)
        kinds: dict[str, tuple[str, str]] = {}
        for ds in self._members:
            for name in ds.store.own_columns:
                column = ds.store.own_column(name)
                if column.missing[ds.episodes.index].all():
                    continue  # of no value, and of any type
                dtype = column.dtype
                before, of = kinds.setdefault(name, (dtype, ds.id))
                if dtype != before and {dtype, before} & {"str", "bool"}:
                    raise InvalidEpisode(
                        f"The episode column {name} is {before} in {of} and {dtype} in {ds.id}.",
                        hint=f"rlds label ID {name}=null takes its values away in one of them",
                    )

    # -- the result

    @property
    def count(self) -> int:
        """Number of members."""
        return len(self._members)

    @cached_property
    def copied(self) -> tuple[int, ...]:
        """Numbers of the members whose rows are written; the files of the others are shared."""
        can = [self._shares and ds.encoding == "memmap" for ds in self._members]
        whole = {k for k in self.apart if self._copy or self._members[k].store.files.identity is None}
        return tuple(k for k, yes in enumerate(can) if not yes or k in whole)

    @cached_property
    def apart(self) -> frozenset[int]:
        """Numbers of the members whose files cannot be linked in the home: of another disk or user."""
        home = self._place.root
        return frozenset(
            k for k, ds in enumerate(self._members) if not ds.store.files.can_link(ds.store.table.columns(), home)
        )

    def joined(self, copied: Store | None) -> list[JoinedMember]:
        """Return the members; those that are copied are in the dataset ``copied``, one after the other."""
        found, before = [], 0
        for k, (ds, table) in enumerate(zip(self._members, self._tables, strict=True)):
            if k in self.copied and copied is not None:
                index = np.arange(before, before + len(table))
                found.append(JoinedMember(copied, index, table, refer=False))
                before += len(table)
            else:
                refer = not self._copy and not ds.path.is_relative_to(self._place.root / "partial")  # which is removed
                found.append(JoinedMember(ds.store, ds.episodes.index, table, refer))
        return found

    @cached_property
    def plan(self) -> MergePlan:
        """The plan."""
        copied = [self._members[k] for k in self.copied]
        rows, all_rows = (sum(int((ds.episodes["length"] + 1).sum()) for ds in of) for of in (copied, self._members))
        converted = [f for f in self.fields if any(ds.schema.get(f.name, f).dtype != f.dtype for ds in self._members)]
        return MergePlan(
            id=self.id,
            members=tuple(
                MergeMember(ds.id, ds.fingerprint, ds.store.fingerprint(), ds.version, ds.num_episodes, ds.num_steps)
                for ds in self._members
            ),
            fields=self.fields,
            left_out=tuple(sorted({n for ds in self._members for n in ds.schema} - {f.name for f in self.fields})),
            copied=tuple(ds.id for ds in copied),
            referred=tuple(self._members[k].id for k in sorted(self.apart - set(self.copied))),
            converted=tuple(f.name for f in converted),
            bytes=rows * sum(f.row_bytes for f in self.schema if f.kind == "array")
            + (all_rows - rows) * sum(f.row_bytes for f in converted),
        )

    def described(self, storage: str) -> Description:
        """Describe the result; what all members agree on stays."""
        manifests = [ds.manifest for ds in self._members]
        names = {f.name for f in self.fields}
        spaces = {
            name: space
            for name, space in _common([m.spaces for m in manifests]).items()
            if {n for n in manifests[0].stats if n.split("/")[0] == name} <= names
        }
        return Description(
            self.id,
            storage,
            reader=MERGED,
            reader_version=1,
            facts=_common([m.facts for m in manifests]),
            spaces=spaces,
            env=_common([m.env for m in manifests]),
            options={"merged": [asdict(m) for m in self.plan.members], "column": self._column},
            sources=self._sources,
        )


def _tasks_of(rows: Rows, start: int, stop: int) -> list[str | None]:
    """Return ``task_at`` of rows of a dataset that lacks it: for each step the text of its episode."""
    if not Tasks(rows.store).is_column:
        return [None] * (stop - start)
    found = Tasks(rows.store).gather(rows.stored(np.arange(start, stop)))
    found[rows.last_rows(start, stop) - start] = None
    texts: list[str | None] = found.tolist()
    return texts


def _check_repeats(a: Dataset, b: Dataset) -> None:
    """Refuse two members that have episodes in common."""
    count = in_common(a, b)
    if count:
        which = f"{b.id} is named twice" if a.id == b.id else f"{a.id} and {b.id} have episodes in common"
        raise InvalidArgument(
            f"{which}: {plural(count, 'episode')} would be repeated. Nothing was written.",
            hint="name each dataset once; rlds_cli.loader.Mixture draws one dataset more often than another",
        )


def in_common(a: Dataset, b: Dataset) -> int:
    """Count the episodes that two datasets share, by their ids."""
    first, second = (ds.episodes["id"].view("<u8") for ds in (a, b))
    near = np.isin(first[:, 0], second[:, 0])
    if not near.any():
        return 0
    return len({row.tobytes() for row in first[near]} & {row.tobytes() for row in second})


def _common(given: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the members that all mappings agree on."""
    first, *others = given
    return {name: value for name, value in first.items() if all(name in o and o[name] == value for o in others)}


def _agreed(members: Sequence[Dataset], wanted: Sequence[str] | None) -> tuple[Field, ...]:
    """Return the fields of the result; raises InvalidEpisode where the members disagree."""
    first, *others = members
    names = None if wanted is None else set(wanted)
    at = {n: f for ds in members for n, f in ds.schema.items() if n == TASK_AT}  # filled where it is not there
    schemas = {ds: {**at, **ds.schema} for ds in members}
    for ds in members if names else ():
        for name in sorted(names or ()):
            if name not in schemas[ds]:
                raise UnknownField(f"{ds.id} has no field {name}.", hint=f"its fields: {', '.join(sorted(ds.schema))}")
    chosen = {n: _common_field([schemas[ds].get(n, f) for ds in members]) for n, f in schemas[first].items()}
    chosen = {n: f for n, f in chosen.items() if names is None or n in names}
    wrong = []
    for ds in others:
        other = {n: f for n, f in schemas[ds].items() if names is None or n in names}
        other = {n: chosen[n] if n in chosen and _holds(chosen[n], f) else f for n, f in other.items()}
        wrong += [f"in {ds.id}, {what}" for what in differences(chosen, other, first.id)]
    if wrong:
        agreed = [n for n, f in chosen.items() if all(n in schemas[ds] and _holds(f, schemas[ds][n]) for ds in others)]
        raise InvalidEpisode(
            f"The fields do not agree with those of {first.id}: {'; '.join(wrong)}.",
            hint=f"--fields {','.join(agreed)} takes those that do" if agreed else "they have no field in common",
        )
    return tuple(chosen[n] for n in sorted(chosen))


def _common_field(fields: Sequence[Field]) -> Field:
    """Return the field that holds the values of several arrays of one name without loss; the first one if none does."""
    first = fields[0]
    if any(f.kind != "array" for f in fields) or len({f.dtype for f in fields}) == 1:
        return first
    common = replace(first, dtype=np.result_type(*(np.dtype(f.dtype) for f in fields)).name)
    return common if all(_holds(common, f) for f in fields) else first


def _holds(f: Field, other: Field) -> bool:
    """Return whether a field holds all values of another one: it is the same, or an array of wider numbers."""
    if f == other or f.kind != "array" or replace(other, dtype=f.dtype) != f:
        return f == other
    to, of = np.dtype(f.dtype), np.dtype(other.dtype)
    if of.kind in "iu" and to.kind == "f":
        return bool(np.finfo(to).nmant + 1 >= np.iinfo(of).bits)
    return of.kind != "b" and np.can_cast(of, to, "safe")


def differences(a: Mapping[str, Field], b: Mapping[str, Field], of: str = "the dataset") -> list[str]:
    """Describe in words, field by field, how fields ``b`` differ from ``a``, those of a dataset called ``of``."""
    return [
        f"{name} is {_described(b.get(name))}, not {_described(a.get(name))}"
        if name in a and name in b
        else f"{name} is {'missing' if name in a else f'not in {of}'}"
        for name in sorted({*a, *b})
        if a.get(name) != b.get(name)
    ]


def _described(f: Field | None) -> str:
    assert f is not None
    values = f"{f.dtype} {list(f.shape)}" if f.kind == "array" else f.codec or f.kind
    return f"{values} ({f.placement})"
