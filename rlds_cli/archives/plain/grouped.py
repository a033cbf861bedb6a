"""Read files or HDF5 groups that hold one episode each.

An episode has as many steps as actions; observations have as many rows, or one more. A scalar, or an attribute of a
group, of the groups above it or of the file, becomes a column of the episode table. Groups are read in natural order:
``demo_2`` before ``demo_10``. Groups without numbers in their names are given by a pattern:
``--map action='data/*/act'``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives import (
    ARRIVE,
    DROP,
    FILL,
    Archive,
    ArchivedStep,
    ArchivedValue,
    EpisodeSummary,
    Part,
    Plan,
    once,
    skipped_file,
)
from rlds_cli.archives.account import (
    COLUMN,
    ENDS,
    EPISODES,
    METADATA,
    NO_STEPS,
    NOT_ALL,
    Fate,
    Ledger,
    fates_of,
    left_out,
    used_as,
)
from rlds_cli.archives.flat_rows import differs, is_set
from rlds_cli.archives.looking import looked_up
from rlds_cli.archives.names import (
    EPISODE_PREFIX,
    NEXT_OBSERVATION,
    Meaning,
    check_key,
    check_numbers,
    chosen_of,
    differences,
    episode_column,
    flags_of,
    free_name,
    has_essentials,
    is_observation,
    meaning,
    row_field,
    scalar,
)
from rlds_cli.archives.plain import accounting, arriving, cameras, lacking
from rlds_cli.archives.plain.boundaries import is_count, signed
from rlds_cli.archives.plain.lacking import Lacking
from rlds_cli.archives.plain.survey import ended, groups_of, is_pattern, shaped, with_final
from rlds_cli.archives.steps import check_steps
from rlds_cli.errors import ArchiveError, UnknownLayout
from rlds_cli.formats import inventory
from rlds_cli.formats.table_views import nothing
from rlds_cli.formats.tables import MISSING, Table, TableRows, TableSource, made_of, no_rows, open_flat
from rlds_cli.ted import (
    END_NAMES,
    FLAGS,
    REWARD,
    VIDEO,
    Array,
    Chunk,
    EpisodeData,
    Field,
    Note,
    Scalar,
    chunks,
    merge_notes,
)
from rlds_cli.text import is_below

PART_BYTES = 64 << 20
MAX_METADATA = 64 << 20


# -- one episode as a table


class _GroupSource:
    """Some columns of a source, under other names."""

    def __init__(self, source: TableSource, names: Mapping[str, str]) -> None:
        self._source, self._names = source, names

    def rows(self, names: Collection[str]) -> TableRows:
        return _RenamedRows(self._source.rows([self._names[n] for n in names]), {self._names[n]: n for n in names})

    def array(self, name: str, *, most: int = MAX_METADATA) -> Array:
        return self._source.array(self._names[name], most=most)


class _RenamedRows:
    def __init__(self, rows: TableRows, names: Mapping[str, str]) -> None:
        self._rows, self._names = rows, names

    def __enter__(self) -> _RenamedRows:
        self._rows.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._rows.__exit__(*exc)

    def read(self, start: int, stop: int) -> dict[str, Array]:
        return {self._names[k]: v for k, v in self._rows.read(start, stop).items()}


@dataclass(slots=True)
class _GroupEpisode:
    """One episode of a file, as its headers describe it.

    ``keys`` maps fields to columns, ``next_keys`` next observations, ``once`` the columns of the episode table;
    ``others`` are columns kept as metadata, ``used`` the attributes that columns are made of. ``trimmed``: the last row
    of the actions is not a step, but the row of the final observation. ``rewards`` is as in `Archive`. ``videos`` are
    the rules by which frames belong to rows.
    """

    group: str
    table: Table
    meaning: Meaning
    length: int
    keys: dict[str, str]
    next_keys: dict[str, str]
    once: dict[str, str]
    done: str | None = None
    others: tuple[str, ...] = ()
    attributes: dict[str, Scalar] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    trimmed: bool = False
    rewards: str | None = None
    videos: Mapping[str, str] = field(default_factory=dict)
    odd: dict[str, Lacking] = field(default_factory=dict)  # fields that have too few or too many rows

    def late(self, name: str) -> int:
        """Return the rows between an action and its result in a column."""
        return int(self.rewards == ARRIVE and arriving.is_late(name))

    def steps(self, name: str) -> slice:
        """Return the rows of a column that belong to steps; all rows of a field that is known at both ends."""
        if name.startswith("next/") or is_below(name, "action"):
            return slice(self.late(name), self.length + self.late(name))
        return slice(None)

    @property
    def where(self) -> str:
        """The name of the episode in messages."""
        return f"{self.group} of {self.table.path.name}" if self.group else self.table.path.name

    def fates(self) -> dict[str, Fate]:
        """State the fate of the columns of the file that are those of the episode."""
        names = {**self.keys, **self.next_keys, **{COLUMN + n: key for n, key in self.once.items()}}
        what = self.meaning
        marks = (what.ids, what.steps, what.starts, what.lasts, self.done)
        there = self.table.stored
        fates = {key: used_as(ENDS) for mark in marks if mark for key in made_of(mark, there)}
        fates |= {key: left_out(accounting.ROOT_FLAGS) for key in what.ignored}
        fates |= {one.key: left_out(NOT_ALL) for one in self.odd.values()}
        for key in self.others:
            kept = self.table[key].nbytes <= MAX_METADATA
            fates[key] = used_as(METADATA) if kept else left_out(accounting.TOO_LARGE)
        fates |= fates_of(names, there) if self.length else dict.fromkeys(fates_of(names, there), left_out(NO_STEPS))
        return {f"{self.group}/{key}" if self.group else key: fate for key, fate in fates.items()}

    def fields(self) -> dict[str, Field]:
        """Describe the fields by name; a column with one row more than there are steps is placed ``both``."""
        made = {}
        for name, key in self.keys.items():
            if name in FLAGS:
                continue
            c = self.table[key]
            f = row_field(name, c, scalar=name == REWARD)
            longer = c.shape[0] == self.length + 1 and f.placement == "root" and not is_below(name, "action")
            made[name] = replace(f, placement="both") if longer else f
        return made


@contextmanager
def _open(path: Path, archive: Archive) -> Iterator[Iterator[_GroupEpisode]]:
    """Open a file and iterate over its episodes."""
    with open_flat(path, fill=True) as table:
        yield _episodes(table, archive)


def _episodes(table: Table, archive: Archive) -> Iterator[_GroupEpisode]:
    """Iterate over the episodes of a file."""
    chosen, rewards = archive.fields, archive.rewards
    found = groups_of(table, chosen)
    if found is None:
        yield _episode(table, "", chosen_of(archive, table.columns), rewards, once.of_attributes(table))
        return
    level, groups = found
    local = {k: _local(v, level) for k, v in chosen.items()}
    for g, names in groups.items():
        sub = _sub(table, names)
        yield _episode(sub, g, chosen_of(archive, sub.columns, local), rewards, once.of_attributes(table, g))


def _local(key: str, level: str) -> str:
    """Make a key of the user's relative to its group."""
    above = level.removesuffix("*")
    parts = key.strip("/").removeprefix(above).split("/")
    return "/".join(parts[1:]) if is_pattern(key) else key


def _sub(table: Table, names: Mapping[str, str]) -> Table:
    columns = {local: replace(table[name], name=local) for local, name in names.items()}
    return Table(table.path, _GroupSource(table.source, names), columns)


def _episode(
    table: Table, group: str, chosen: Mapping[str, str], rewards: str | None, said: once.Once
) -> _GroupEpisode:
    name = f"{group} of {table.path.name}" if group else table.path.name
    what = meaning(table.columns, {k: v for k, v in chosen.items() if not k.startswith(EPISODE_PREFIX)}, name)
    if not has_essentials(what):
        missing = "action" if any(is_observation(n) for n in what.fields) else "observation"
        raise UnknownLayout(
            f'{name} has no column with a known name for "{missing}". It holds {", ".join(table.columns)}.',
            hint=f"name the column: --map {missing}='GROUPS/*/KEY'"
            if group
            else f"name the column: --map {missing}=KEY",
        )
    if rewards == ARRIVE:
        what = arriving.with_time_steps(what, table)
    fields, done = flags_of(what)
    table.derive([*fields.values(), *(k for k in (what.starts, what.lasts) if k is not None)])
    check_numbers(table, fields)
    table.hidden.update(what.ignored, [done] if done else [])
    following = {n: k for n, k in fields.items() if is_below(n, NEXT_OBSERVATION)}
    for name_of_column, key in chosen.items():
        if name_of_column.startswith(EPISODE_PREFIX):
            check_key(table.columns, key, name)
    rows = _length(table, fields, name)
    videos = cameras.fit(table, fields, rows, name, final=True)
    trimmed = _is_trimmed(table, fields, rows, rewards)
    found = _GroupEpisode(
        group=group,
        table=table,
        meaning=what,
        length=rows - trimmed,
        keys={n: k for n, k in fields.items() if n not in following},
        next_keys=following,
        once={k.removeprefix(EPISODE_PREFIX): v for k, v in chosen.items() if k.startswith(EPISODE_PREFIX)},
        done=done,
        trimmed=trimmed,
        rewards=rewards,
        videos=videos,
    )
    _sort_others(found, {*fields.values(), *what.fields.values()})
    found.attributes |= {name: value for name, value in said.columns.items() if name not in found.once}
    found.used |= {said.keys[name] for name in found.attributes}
    _check_rows(found)
    return found


def _length(table: Table, fields: Mapping[str, str], name: str) -> int:
    shapes = {k: table[k].shape for n, k in fields.items() if is_below(n, "action")}
    if len({s[:1] for s in shapes.values()}) != 1 or () in shapes.values():
        raise UnknownLayout(f"{name}: actions have different numbers of rows, or none: {shapes}.")
    return next(iter(shapes.values()))[0]


def _is_trimmed(table: Table, fields: Mapping[str, str], rows: int, rewards: str | None) -> bool:
    """Tell whether the last row of the actions is that of the final observation: it has no action, or no reward."""
    observed = {table[k].shape[:1] for n, k in fields.items() if is_observation(n)}
    if observed != {(rows,)} or not rows:
        return False
    actions = [k for n, k in fields.items() if is_below(n, "action")]
    if rewards == ARRIVE or any(table[k].dtype.kind not in "fc" for k in actions):
        return rewards == ARRIVE
    missing = [MISSING + k for k in actions]
    table.derive(missing)
    with table.rows(missing) as reader:
        return all(values.all() for values in reader.read(rows - 1, rows).values())


def _sort_others(e: _GroupEpisode, claimed: set[str]) -> None:
    """Make other columns fields, columns of the episode table or metadata, by how many rows they have."""
    known = {*claimed, *e.once.values(), *(i for k in claimed for i in e.table.made_of(k))}
    others = []
    for key, c in e.table.own.items():
        if key in known:
            continue
        if c.shape[:1] in ((e.length,), (e.length + 1,)) and not (c.shape == (1,) and e.length != 1):
            e.keys[free_name(key, {*e.keys, *FLAGS, NEXT_OBSERVATION})] = key
        elif c.shape in ((), (1,)) and c.dtype.kind in "biufO":
            e.once[episode_column(key)] = key
        else:
            others.append(key)
    e.others = tuple(others)


def _check_rows(e: _GroupEpisode) -> None:
    """Take out the fields that have too few or too many rows, and say why; raises UnknownLayout for a needed one."""
    for name, key in [*e.keys.items()]:
        rows = e.table[key].shape[0] if e.table[key].shape else None
        both = not name.startswith("next/") and not is_below(name, "action")
        allowed: set[int | None] = {e.length + 1} if e.late(name) else {e.length}
        allowed |= {e.length, e.length + 1} if both else {e.length + 1} if e.trimmed else set()
        allowed |= {None} if name in FLAGS else set()
        if rows not in allowed:
            why = f"{e.where}: {key} has {f'{rows:,}' if rows else 'no'} rows; there are {e.length:,} actions"
            if lacking.can_drop(name):
                e.odd[name] = Lacking(name, key, why, can_fill=rows == 0)
                del e.keys[name]
                continue
            raise UnknownLayout(
                f"{why}.",
                hint="--rewards arrive is for rewards and flags that stand in the rows of the T+1 observations"
                if e.late(name)
                else "an episode of T actions has T or T+1 observations, and T rewards and flags; if it has T+1 of "
                "these, which came with the observations: --rewards arrive",
            )


def _check_final(e: _GroupEpisode) -> list[Note]:
    """Refuse a reward in the row of the final observation that would be dropped; note other values that are."""
    columns = {
        n: k
        for n, k in e.keys.items()
        if (n.startswith("next/") or is_below(n, "action")) and e.table[k].shape[:1] == (e.length + 1,)
    }
    if not e.length or not columns:
        return []
    e.table.derive([MISSING + k for k in columns.values()])
    ends = np.array([0]), np.array([e.length])
    rows = arriving.read_final_rows(e.table, *ends, columns.values())
    return arriving.judge(rows, columns, e.rewards, lambda row: f"row {row:,} of {e.where}")


# -- plan


@dataclass(frozen=True, slots=True)
class _EpisodeEntry:
    """Episode ``number`` of file ``file``."""

    file: int
    number: int
    length: int
    end: int
    nbytes: int


def _above(key: str) -> list[str]:
    """Return the groups above a column, the root of the file first: ``""``, ``data``, ``data/demo_0``."""
    parts = key.split("/")
    return ["/".join(parts[:depth]) for depth in range(len(parts))]


@dataclass(slots=True)
class _Held:
    """What the episodes of a file hold of it: their groups, and the attributes that are columns of the episode table.

    ``more`` says that one has values that are neither fields nor such columns.
    """

    groups: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    more: bool = False

    def add(self, e: _GroupEpisode) -> None:
        """Add an episode."""
        self.groups.add(e.group)
        self.used |= e.used if e.length else set()
        self.more |= bool(e.others)

    def columns_beside(self, table: Table) -> list[str]:
        """Return the columns of the file that are in no episode. One without a group has all of them."""
        return [k for k in table.columns if self.groups.isdisjoint(_above(k))]

    def has_more(self, table: Table) -> bool:
        """Tell whether the file holds anything else than fields and columns of the episode table."""
        return self.more or bool(self.columns_beside(table)) or not self.used.issuperset(table.attributes())


@dataclass(slots=True)
class _Contents:
    """The contents of the files: the fields of all episodes, and an entry for each.

    ``keys`` maps fields to columns of the first episode, ``once`` the columns of the episode table to theirs.
    """

    schema: dict[str, Field] = field(default_factory=dict)
    entries: list[_EpisodeEntry] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)
    once: dict[str, str] = field(default_factory=dict)
    videos: dict[str, str] = field(default_factory=dict)
    beside: set[int] = field(default_factory=set)  # files with more than fields and columns of the episode table
    told: Ledger = field(default_factory=Ledger)
    lacking: dict[str, Lacking] = field(default_factory=dict)
    first: str = ""  # where the first episode is
    level: str = "file"

    def add_file(self, archive: Archive, index: int) -> None:
        """Add the episodes of a file; with ``skip_bad`` every row of them is read, too."""
        strict = archive.episodes_by != "file"
        with open_flat(archive.files[index], fill=True) as table:
            held = _Held()
            fates: dict[str, Fate] = {}
            for number, e in enumerate(_episodes(table, archive)):
                held.add(e)
                self.level = "group" if e.group else self.level
                check_steps(e.table, {**e.meaning.fields, **e.keys}, archive.episodes_by)
                arriving.check_order(e.table, e.keys.get(REWARD), archive.rewards, e.where)
                fates |= e.fates()
                fields = e.fields()
                if not e.length:
                    self.notes.append(Note("empty-episodes", "episodes without steps were left out", 1, e.where))
                    continue
                self.notes += _check_final(e)
                _, _, end = _ends(e, strict=strict)
                if archive.skip_bad:
                    _read(e, fields, index, archive.name_of(index), strict=strict)
                self._add(e, fields, archive.missing)
                nbytes = (e.length + 1) * sum(f.row_bytes for f in fields.values())
                self.entries.append(_EpisodeEntry(index, number, e.length, end, nbytes))
            if held.has_more(table):
                self.beside.add(index)
            items = inventory.items(archive.files[index])
            told = accounting.of_episodes(items, held.used, held.groups) | fates
            self.told.file(archive.name_of(index), used_as(EPISODES))
            self.told.inside(items, told, archive.name_of(index))

    def _add(self, e: _GroupEpisode, fields: dict[str, Field], missing: str | None) -> None:
        found = dict(e.odd)
        if self.schema:
            found |= {one.name: one for one in _lacking(e, fields, self.schema, self.first)}
        if missing not in (FILL, DROP):
            lacking.check(found.values(), missing)
        self.lacking = found | self.lacking
        self.first = self.first if self.schema else e.where
        self.schema = _joint(self.schema, fields)
        self.once |= dict.fromkeys(e.attributes, once.ATTRIBUTE) | e.once
        if not self.entries:
            self.notes += e.meaning.notes
        self.keys = {**e.keys, **e.next_keys, **self.keys}
        self.videos |= {n: rule for n, rule in e.videos.items() if rule != "count" or n not in self.videos}

    def settle(self, missing: str | None) -> None:
        """Leave out the fields that not all episodes have, or say that they are filled; raises UnknownLayout."""
        for name, one in self.lacking.items():
            known = self.schema.get(name)
            if known is None or known.kind == "frames":
                self.lacking[name] = replace(one, can_fill=False)
        lacking.check(self.lacking.values(), missing)
        if missing == DROP:
            self.schema = {n: f for n, f in self.schema.items() if n not in self.lacking}
            self.keys = {n: key for n, key in self.keys.items() if n not in self.lacking}
            self.told.drop([*self.lacking], NOT_ALL)
        self.notes += lacking.notes([*self.lacking.values()], missing)


def plan(archive: Archive) -> Plan:
    """Find the fields and the parts; reads the headers and flags of every episode.

    Raises
    ------
    UnknownLayout
        Episodes without observations or actions, of different fields, or columns of different lengths.
    """
    if archive.episodes_by not in (None, "file"):
        raise UnknownLayout(
            f"Each file or group is one episode here; --episodes-by {archive.episodes_by} does not apply.",
            hint="leave it out, or name the flat columns by --map",
        )
    found = _Contents()
    for index in _usual_first(archive) if archive.skip_bad else range(len(archive.files)):
        before = found.schema, found.keys, found.first, dict(found.once), dict(found.videos)
        try:
            found.add_file(archive, index)
        except ArchiveError as e:
            if not archive.skip_bad:
                raise
            found.schema, found.keys, found.first, found.once, found.videos = before
            found.entries = [u for u in found.entries if u.file != index]
            found.notes.append(skipped_file(archive.name_of(index), e))
    found.entries.sort(key=lambda u: (u.file, u.number))
    if not found.entries:
        if len(archive.files) == 1:
            raise no_rows(archive.name_of(0))
        raise UnknownLayout(f"None of {len(archive.files):,} files holds an episode with steps.")
    found.settle(archive.missing)
    flags = {name: Field(name, "bool", (), "next") for name in FLAGS}
    good = sorted({u.file for u in found.entries})
    entries = [replace(u, file=good.index(u.file)) for u in found.entries]
    return Plan(
        "plain",
        replace(archive, files=tuple(archive.files[i] for i in good)),
        tuple(sorted({**found.schema, **flags}.values(), key=lambda f: f.name)),
        tuple(_parts(entries)),
        "file",
        beside=tuple(k for k, i in enumerate(good) if i in found.beside),
        facts={
            "read": "grouped",
            "episode": found.level,
            "fields": found.keys,
            "per_episode": found.once,
            **({"rewards": archive.rewards} if archive.rewards else {}),
            **({"missing": archive.missing} if archive.missing else {}),
            **cameras.facts(found.keys, found.videos),
        },
        notes=merge_notes(found.notes),
        computed=cameras.computed(found.keys),
        account=found.told.account(),
        episode_summary=EpisodeSummary(
            np.array([u.length for u in entries], np.int64),
            {name: sum(u.end == i for u in entries) for i, name in enumerate(END_NAMES)},
        ),
    )


def _usual_first(archive: Archive) -> list[int]:
    """Return the numbers of the files, those first that have the fields of most: others are left out beside them."""
    fields: dict[int, frozenset[Any]] = {}
    for index, path in enumerate(archive.files):
        with suppress(ArchiveError), open_flat(path, fill=True) as table:
            episodes = _episodes(table, archive)
            fields[index] = frozenset((n, f.dtype, f.shape) for e in episodes for n, f in e.fields().items())
    usual = Counter(fields.values()).most_common(1)
    return sorted(range(len(archive.files)), key=lambda i: not usual or fields.get(i) != usual[0][0])


def _lacking(
    e: _GroupEpisode, fields: Mapping[str, Field], schema: Mapping[str, Field], first: str
) -> Iterator[Lacking]:
    """Find the fields that an episode or one before it lacks, or that they have in different shapes."""
    for name in [n for n in schema if n not in fields and n not in e.odd]:
        yield Lacking(name, name, f"{e.where} has no {name}, which {first} has", can_fill=_can_fill(e, schema[name]))
    for name, f in fields.items():
        if name not in schema:
            yield Lacking(name, name, f"{first} has no {name}, which {e.where} has", can_fill=f.kind != "frames")
        elif replace(f, placement=schema[name].placement) != schema[name]:
            said = next(differences([f], [schema[name]]))
            yield Lacking(name, name, f"{e.where} and {first} do not hold the same fields: {said}", can_fill=False)


def _can_fill(e: _GroupEpisode, f: Field) -> bool:
    """Tell whether rows of a field can be made up: not those of an image, or of a column with some of the rows."""
    return f.kind != "frames" and not any(key == f.name or f"extra/{key}" == f.name for key in e.others)


def _joint(schema: Mapping[str, Field], fields: Mapping[str, Field]) -> dict[str, Field]:
    """Join the fields of all episodes so far; a field placed ``both`` in one episode is so in all."""
    both = {n for known in (schema, fields) for n, f in known.items() if f.placement == "both"}
    return {n: replace(f, placement="both") if n in both else f for n, f in {**fields, **schema}.items()}


def _parts(units: Sequence[_EpisodeEntry]) -> Iterator[Part]:
    todo: list[_EpisodeEntry] = []
    size = 0
    for u in units:
        if todo and size + u.nbytes > PART_BYTES:
            yield _part(todo)
            todo, size = [], 0
        todo.append(u)
        size += u.nbytes
    yield _part(todo)


def _part(units: Sequence[_EpisodeEntry]) -> Part:
    episodes = [[u.file, u.number] for u in units]
    return Part(sum(u.length + 1 for u in units), {"units": episodes, "episodes": len(units)})


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Read the values that are neither fields nor columns of the episode table; names begin with file and group."""
    several = len(plan.archive.files) > 1
    for index in plan.beside or ():
        prefix = f"{plan.archive.name_of(index)}/" if several else ""
        with open_flat(plan.archive.files[index], fill=True) as table:
            held = _Held()
            for e in _episodes(table, plan.archive):
                held.add(e)
                above = f"{prefix}{e.group}/" if e.group else prefix
                for key in e.others:
                    if e.table[key].nbytes <= MAX_METADATA:
                        yield above + key, np.asarray(e.table.source.array(key))
            columns = [k for k in held.columns_beside(table) if table[k].nbytes <= MAX_METADATA]
            yield from ((prefix + name, value) for name, value in table.constants(columns, held.used))


# -- read


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """Read the episodes of one part, several in a chunk.

    Raises
    ------
    CorruptArchive
        A file is damaged.
    UnknownLayout
        A flag, an id or a step shows that a file or group holds more than one episode.
    """
    yield from chunks(plan.schema, _read_all(plan, part))


def _read_all(plan: Plan, part: Part) -> Iterator[EpisodeData]:
    schema = {f.name: f for f in plan.schema}
    for file, units in groupby(part.args["units"], key=lambda u: int(u[0])):
        wanted = {int(number) for _, number in units}
        with _open(plan.archive.files[file], plan.archive) as found:
            for number, e in enumerate(found):
                if number in wanted:
                    name, strict = plan.archive.name_of(file), plan.archive.episodes_by != "file"
                    yield _read(e, schema, file, name, strict=strict)
                    wanted.discard(number)
                if not wanted:
                    break


def _read(e: _GroupEpisode, schema: Mapping[str, Field], file: int, name: str, *, strict: bool) -> EpisodeData:
    """Read an episode of the file that the archive calls ``name``."""
    columns_of = {n: k for n, k in e.keys.items() if n not in FLAGS and n in schema}
    with e.table.rows(sorted({*columns_of.values(), *e.next_keys.values()})) as rows:
        seen = rows.read(0, e.length + 1)
    columns: dict[str, Any] = {}
    for field_name, key in columns_of.items():
        count = e.table[key].shape[0]
        if schema[field_name].codec == VIDEO:
            frames = cameras.frames(e.table, key, e.videos[field_name], count)
            columns[field_name] = cameras.of_videos([name], key, np.zeros_like(frames), frames)
        else:
            values = seen[key][:count][e.steps(field_name)]
            columns[field_name] = shaped(values, schema[field_name], f"{e.where}: {key}")
    _join_next(e, columns, seen)
    observed = max((len(v) for n, v in columns.items() if is_observation(n)), default=e.length)
    for f in schema.values():
        if f.name not in columns and f.name not in FLAGS:
            count = observed if f.placement == "both" else e.length
            columns[f.name] = [None] * count if f.kind == "text" else nothing(f.shape, np.dtype(f.dtype), count)
    columns[FLAGS[0]], columns[FLAGS[1]], end = _ends(e, strict=strict)
    extra = {name: scalar(e.table.source.array(key)) for name, key in e.once.items()}
    return EpisodeData(columns, e.length, end, source=file, group=e.group, extra={**e.attributes, **extra})


def _ends(e: _GroupEpisode, *, strict: bool) -> tuple[Array, Array, int]:
    """Read the flags of the steps [T], and how the episode ends.

    Raises
    ------
    UnknownLayout
        A flag, an id or a step shows that there is more than one episode.
    """
    what = e.meaning
    told = (what.ids, *what.more, what.agents, what.steps, *what.counts, what.starts, what.lasts, e.done)
    keys = {e.keys[n] for n in FLAGS if n in e.keys} | {k for k in told if k}
    single = {k for k in keys if not e.table[k].shape}
    with e.table.rows(sorted(keys - single)) as rows:
        seen = {**rows.read(0, e.length + 1), **{k: np.asarray(e.table.source.array(k)) for k in single}}
    if strict:
        _check_alone(e, seen)
    terminated, truncated = (_flag(e, name, seen, strict=strict) for name in FLAGS)
    if strict and e.done is not None:
        _check_done(e, seen[e.done], terminated | truncated)
    return terminated, *ended(terminated, truncated)


def _check_alone(e: _GroupEpisode, seen: Mapping[str, Array]) -> None:
    """Refuse an id that changes, steps that do not increase by one, and starts or ends elsewhere than at them."""
    what = e.meaning
    checks: tuple[tuple[str | None, Callable[[Array], Array], str], ...] = (
        *((k, lambda v: 1 + np.flatnonzero(differs(v[:-1], v[1:])), "changes") for k in (what.ids, *what.more)),
        (what.agents, lambda v: 1 + np.flatnonzero(differs(v[:-1], v[1:])), "changes"),
        (what.steps, lambda v: 1 + np.flatnonzero(is_count(v) & (np.diff(signed(v)) != 1)), "does not increase by one"),
        *((k, lambda v: 1 + np.flatnonzero(is_count(v) & (np.diff(signed(v)) < 0)), "goes back") for k in what.counts),
        (what.starts, lambda v: 1 + np.flatnonzero(v[1:]), "is set"),
        (what.lasts, lambda v: np.flatnonzero(v[: e.length - 1]), "is set"),
    )
    for key, rows, says in checks:
        if key is None or key not in seen or seen[key].shape[1:] not in ((), (1,)):
            continue
        if seen[key].dtype.kind not in ("iuf" if key in (what.steps, *what.counts) else "biufOS"):
            continue
        wrong = rows(seen[key].reshape(-1))
        if len(wrong):
            raise UnknownLayout(
                f"{e.where}: {key} {says} at row {int(wrong[0]):,}, so it holds more than one episode.",
                hint="if it is one episode nevertheless: --episodes-by file",
            )


def _check_done(e: _GroupEpisode, done: Array, either: Array) -> None:
    """Refuse a done that differs from terminated or truncated, if there are all three."""
    if {e.keys.get(n) is None or " without " in e.keys[n] for n in FLAGS} != {False} or len(np.atleast_1d(done)) == 1:
        return
    wrong = np.flatnonzero((done.reshape(-1)[e.steps(FLAGS[0])] != 0) != either)
    if len(wrong):
        raise UnknownLayout(
            f"{e.where}: {e.done} is not what {e.keys[FLAGS[0]]} or {e.keys[FLAGS[1]]} is, at row {int(wrong[0]):,}.",
            hint="--map terminated=KEY with --map truncated=KEY, or --map done=KEY alone, says which are right",
        )


def _flag(e: _GroupEpisode, name: str, seen: Mapping[str, Array], *, strict: bool) -> Array:
    key, flag = e.keys.get(name), np.zeros(e.length, bool)
    if key is None:
        return flag
    values = np.atleast_1d(seen[key])
    found = is_set({key: values}, key, len(values))
    if len(found) == 1 and (e.length > 1 or e.late(name)):
        flag[-1] = found[0]
        return flag
    flag[:] = found[e.steps(name)]
    if e.trimmed and not e.late(name):  # a flag may stand in the row of the final observation
        flag[-1] |= found[e.length :].any()
    wrong = np.flatnonzero(flag[:-1])
    if len(wrong) and (strict or name == FLAGS[1]):
        raise UnknownLayout(
            f"{e.where}: row {int(wrong[0]):,} is {key.partition(' without ')[0]}, but it is not the last row.",
            hint="if steps may be terminated inside an episode: --episodes-by file",
        )
    return flag


def _join_next(e: _GroupEpisode, columns: dict[str, Any], seen: Mapping[str, Array]) -> None:
    for name, key in e.next_keys.items():
        now, after = columns.get(name.removeprefix("next/")), seen[key]
        if not isinstance(now, np.ndarray) or now.shape[1:] != after.shape[1:]:
            raise UnknownLayout(f"{e.where}: {key} has rows of another shape than {name.removeprefix('next/')}.")
        message = f"{e.where}: {key} is not the observation of the row after."
        columns[name.removeprefix("next/")] = with_final(now, after, e.length, message)


def look_up(place: ArchivedStep) -> Iterator[ArchivedValue]:
    """Look up the values of one step and the next observation."""
    rewards, missing = place.facts.get("rewards"), place.facts.get("missing")
    archive = Archive(place.root, (place.file,), fields=cameras.mapped(place), rewards=rewards, missing=missing)
    with _open(place.file, archive) as found:
        e = next(e for e in found if e.group == place.group)
        per_row = {k for n, k in e.keys.items() if e.table[k].shape and n not in e.videos}
        with e.table.rows(sorted(per_row)) as rows:
            seen = rows.read(place.step, place.step + 2)
        single = {name for name, key in e.keys.items() if e.table[key].shape == (1,)}
        keys = {n: k for n, k in e.keys.items() if k in seen and (n not in FLAGS or n not in single or place.is_last)}
        late = {name for name in keys if e.late(name) and name not in single}
        if e.trimmed and place.is_last:  # a flag may stand in the row of the final observation
            late |= {name for name in FLAGS if name in keys and seen[keys[name]][1:].any()}
        at, above = (place.step, place.step + 1), f"{e.group}/" if e.group else ""
        yield from looked_up(keys, seen, at, late=late, both=set(filter(is_observation, keys)), above=above)
