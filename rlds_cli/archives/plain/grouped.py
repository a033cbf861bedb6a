"""Read files or HDF5 groups that hold one episode each.

An episode has as many steps as actions; observations have as many rows, or one more. A scalar, or an attribute of a
group, of the groups above it or of the file, becomes a column of the episode table. Groups are read in natural order:
``demo_2`` before ``demo_10``. Groups without numbers in their names are given by a pattern:
``--map action='data/*/act'``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np

from rlds_cli.archives import once
from rlds_cli.archives.account import (
    EPISODES,
    NOT_ALL,
    Fate,
    Ledger,
    used_as,
)
from rlds_cli.archives.formats import inventory
from rlds_cli.archives.formats.table_views import nothing
from rlds_cli.archives.formats.tables import Table, no_rows, open_flat
from rlds_cli.archives.looking import looked_up
from rlds_cli.archives.names import (
    differences,
    is_observation,
    scalar,
)
from rlds_cli.archives.plain import accounting, arriving, cameras, lacking
from rlds_cli.archives.plain.episode_groups import (
    MAX_METADATA,
    GroupEpisode,
    check_final,
    end_keys,
    episodes_of,
    open_episodes,
    read_ends,
    shows_order,
)
from rlds_cli.archives.plain.lacking import Lacking
from rlds_cli.archives.plain.survey import shaped, with_final
from rlds_cli.archives.readers import (
    DROP,
    FILL,
    Archive,
    ArchivedStep,
    ArchivedValue,
    EpisodeSummary,
    Part,
    Plan,
    skipped_file,
)
from rlds_cli.archives.steps import check_steps
from rlds_cli.base.array_types import Array
from rlds_cli.errors import ArchiveError, UnknownLayout
from rlds_cli.ted import END_NAMES, FLAGS, REWARD, VIDEO, Chunk, EpisodeData, Field, Note, chunks

PART_BYTES = 64 << 20


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

    def add(self, e: GroupEpisode) -> None:
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
    signs: tuple[str, ...] = ()  # of another order of rewards than is assumed
    shown: bool = False  # that rewards are those of their own actions

    def add_file(self, archive: Archive, index: int) -> None:
        """Add the episodes of a file; with ``skip_bad`` every row of them is read, too."""
        strict = archive.episodes_by != "file"
        with open_flat(archive.files[index], fill=True) as table:
            held = _Held()
            fates: dict[str, Fate] = {}
            for number, e in enumerate(episodes_of(table, archive)):
                held.add(e)
                self.level = "group" if e.group else self.level
                check_steps(e.table, {**e.meaning.fields, **e.keys}, archive.episodes_by)
                arriving.check_order(e.table, e.keys.get(REWARD), archive.rewards, e.where)
                fates |= e.fates()
                fields = e.fields()
                if not e.length:
                    self.notes.append(Note("empty-episodes", "episodes without steps were left out", 1, e.where))
                    continue
                self.notes += check_final(e)
                self.signs = self.signs or tuple(arriving.signs(e.table.own))
                self.shown = self.shown or bool(self.signs and shows_order(e))
                end = read_ends(e, strict=strict).end
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

    def _add(self, e: GroupEpisode, fields: dict[str, Field], missing: str | None) -> None:
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
        self.notes += [arriving.assumed(self.signs)] if self.signs and not self.shown else []


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
    if role := next((name for name in ("episode", "starts") if name in archive.fields), None):
        raise UnknownLayout(
            f"Each file or group is one episode here; {archive.fields[role]} does not divide them further.",
            hint=f"leave --map {role}= out; a reader of your own divides groups (docs/reference/writing-a-reader.md)",
        )
    found = _contents(archive)
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
        notes=Note.merged(found.notes),
        computed=cameras.computed(found.keys),
        account=found.told.account(),
        episode_summary=EpisodeSummary(
            np.array([u.length for u in entries], np.int64),
            {name: sum(u.end == i for u in entries) for i, name in enumerate(END_NAMES)},
        ),
    )


def _contents(archive: Archive) -> _Contents:
    """Read the headers and flags of all files, without those that ``skip_bad`` leaves out."""
    found = _Contents()
    for index in _usual_first(archive) if archive.skip_bad else range(len(archive.files)):
        if not archive.skip_bad:
            found.add_file(archive, index)
            continue
        before = replace(found, once=dict(found.once), videos=dict(found.videos))  # nothing else is changed in place
        entries, notes = len(found.entries), len(found.notes)  # but these, which become longer
        try:
            found.add_file(archive, index)
        except ArchiveError as e:
            found = before
            del found.entries[entries:], found.notes[notes:]
            found.notes.append(skipped_file(archive.name_of(index), e))
    found.entries.sort(key=lambda u: (u.file, u.number))
    if not found.entries:
        if len(archive.files) == 1:
            raise no_rows(archive.name_of(0))
        raise UnknownLayout(f"None of {len(archive.files):,} files holds an episode with steps.")
    return found


def _usual_first(archive: Archive) -> list[int]:
    """Return the numbers of the files, those first that have the fields of most: others are left out beside them."""
    fields: dict[int, frozenset[Any]] = {}
    for index, path in enumerate(archive.files):
        with suppress(ArchiveError), open_flat(path, fill=True) as table:
            episodes = episodes_of(table, archive)
            fields[index] = frozenset((n, f.dtype, f.shape) for e in episodes for n, f in e.fields().items())
    usual = Counter(fields.values()).most_common(1)
    return sorted(range(len(archive.files)), key=lambda i: not usual or fields.get(i) != usual[0][0])


def _lacking(
    e: GroupEpisode, fields: Mapping[str, Field], schema: Mapping[str, Field], first: str
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


def _can_fill(e: GroupEpisode, f: Field) -> bool:
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
            for e in episodes_of(table, plan.archive):
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
        with open_episodes(plan.archive.files[file], plan.archive) as found:
            for number, e in enumerate(found):
                if number in wanted:
                    name, strict = plan.archive.name_of(file), plan.archive.episodes_by != "file"
                    yield _read(e, schema, file, name, strict=strict)
                    wanted.discard(number)
                if not wanted:
                    break


def _read(e: GroupEpisode, schema: Mapping[str, Field], file: int, name: str, *, strict: bool) -> EpisodeData:
    """Read an episode of the file that the archive calls ``name``."""
    columns_of = {n: k for n, k in e.keys.items() if n not in FLAGS and n in schema}
    of_ends = {key for key in end_keys(e) if e.table[key].shape}
    with e.table.rows(sorted({*columns_of.values(), *e.next_keys.values(), *of_ends})) as rows:
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
    ends = read_ends(e, strict=strict, read=seen)
    columns |= dict(zip(FLAGS, (ends.terminated, ends.truncated), strict=True))
    extra = {name: scalar(e.table.source.array(key)) for name, key in e.once.items()}
    return EpisodeData(columns, e.length, ends.end, source=file, group=e.group, extra={**e.attributes, **extra})


def _join_next(e: GroupEpisode, columns: dict[str, Any], seen: Mapping[str, Array]) -> None:
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
    with open_episodes(place.file, archive) as found:
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
