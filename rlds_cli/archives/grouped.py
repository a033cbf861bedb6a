"""The engine for HDF5 files with a group for each episode, and for files of an episode each.

A family is a subclass of `Grouped` with a diagram of its groups. It says which groups of a file are episodes
(`Grouped.groups`), and what the datasets of one are (`Grouped.group`); the engine does the rest. Families differ in
where the final observation is::

    nowhere                            T rows of everything
    in a row more ("longer")           T+1 rows of obs, T of everything else
    in columns of next observations    T rows of obs and next_obs; next_obs[t] is obs[t+1], or a field of its own
    in a last row ("late")             T+1 rows; the last has no action; the reward and flags of step t are in row t+1

The flags need no dataset: ``next/terminated`` is False without one, and an episode that ends without it is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, cast

import h5py
import numpy as np

from rlds_cli.archives.account import (
    EPISODES,
    METADATA,
    NO_STEPS,
    Account,
    Fate,
    Ledger,
    fates_of,
    left_out,
    used_as,
)
from rlds_cli.archives.formats import inventory
from rlds_cli.archives.formats.hdf5 import datasets, keys_found, open_file, plain, reading
from rlds_cli.archives.formats.hdf5_rows import nan_count
from rlds_cli.archives.formats.inventory import Item
from rlds_cli.archives.formats.table_datasets import open_datasets
from rlds_cli.archives.formats.tables import is_flat
from rlds_cli.archives.looking import looked_up
from rlds_cli.archives.names import differences, is_observation, row_field
from rlds_cli.archives.readers import CHUNK_ROWS, Archive, ArchivedStep, ArchivedValue, Part, Plan, Replan, every_file
from rlds_cli.base.array_types import Array, BoolArray
from rlds_cli.base.subset import Subset
from rlds_cli.base.text import is_below, natural
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ted import CUT, FLAGS, TASK, TERMINATED, Chunk, EpisodeData, Field, LazyColumn, Note, Scalar, chunks

PART_ROWS = 1 << 17
PART_BYTES = 256 << 20
TEXT_BYTES = 64  # of a row, as a guess
# Rows up to this size are all compared with the next observations; of larger ones (images) one in a piece is.
COMPARED_BYTES = 4096
FINAL, OWN = "final", "own"  # next observations: of the last step alone, or fields
NEXT = "next_observations"


@dataclass(frozen=True, slots=True)
class Group:
    """One episode of ``rows`` rows.

    Attributes
    ----------
    columns : mapping of str to str
        The key of each field, below the group.
    next_keys : mapping of str to str
        The key of the next values of each observation field; empty if the file holds none.
    fields : mapping of str to Field
    constants : tuple of str
        The keys that are not per row.
    next_fields : mapping of str to Field
        The fields of next values, if they are kept.
    late : bool
        The last row is not a step: it holds the final observation, and what arrived with it.
    longer : bool
        Observations have one row more than the ``rows`` of everything else.
    end : int or None
        How the episode ends; None where its flags tell.
    about : object
        What a family knows of the file of the group, for ``facts``.
    """

    group: str
    rows: int
    columns: Mapping[str, str]
    next_keys: Mapping[str, str]
    fields: Mapping[str, Field]
    constants: tuple[str, ...]
    next_fields: Mapping[str, Field] = field(default_factory=dict)
    late: bool = False
    longer: bool = False
    end: int | None = None
    about: Any = None

    @property
    def length(self) -> int:
        """The steps."""
        return self.rows - self.late

    @property
    def has_all_next(self) -> bool:
        """True if every observation has next values."""
        observations = {name for name, f in self.fields.items() if f.placement == "both"}
        return bool(self.next_keys) and set(self.next_keys) == observations

    def without(self, keys: set[str]) -> Group:
        """Move the datasets ``keys`` from the fields to the constants."""
        columns = {name: key for name, key in self.columns.items() if key not in keys}
        fields = {name: self.fields[name] for name in self.fields if name in columns}
        more = tuple(key for key in self.columns.values() if key in keys)
        return replace(self, columns=columns, fields=fields, constants=(*self.constants, *more))


class Grouped:
    """A reader of a family whose files hold a group for each episode; see `Reader` for its functions.

    Attributes
    ----------
    name, title, what, example : str
        The name of the reader, if it is part of rlds; those of the family, of its episodes and of their groups in
        messages.
    parent : str
        The group that holds the groups, with a slash at its end; empty for the root.
    mapped : bool
        ``--map`` applies.
    keys : mapping of str to str
        The datasets of a group by field, for the default of `group`. Of tables they may be derived columns, such as
        ``[x, y]``; see `formats.tables`.
    container : str
        What the files are, one of ``formats.tables.CONTAINERS``.
    by_file : bool
        A file is one episode: one group, whose name is empty. Of other containers than HDF5 it always is.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = "the family"
    what: ClassVar[str] = "episodes"
    example: ClassVar[str] = "episode_0, episode_1, ..."
    parent: ClassVar[str] = ""
    VERSION: int = 1
    rule: ClassVar[str] = "file"  # what the manifest calls the ends of episodes
    mapped: ClassVar[bool] = False
    keys: ClassVar[Mapping[str, str]] = {}
    container: ClassVar[str] = "hdf5"
    by_file: ClassVar[bool] = False

    # What a family says

    def describe(self, f: h5py.File, paths: Sequence[Path]) -> tuple[str, str] | None:
        """Describe the first file in two halves, between which the number of files stands; None for other files.

        By default no files are recognised: then they are read where the reader is named.
        """
        return None

    def groups(self, f: h5py.File) -> list[str]:
        """Name the groups of a file that are episodes, in their order: by default all below ``parent``."""
        if self.by_file or not isinstance(f, h5py.File):
            return [""]
        above = f[self.parent] if self.parent else f
        return sorted((k for k in above if isinstance(above.get(k), h5py.Group)), key=natural)

    def group(self, where: str, name: str, found: Mapping[str, h5py.Dataset], archive: Archive) -> Group:
        """Describe the group ``name`` of the datasets ``found``; ``where`` is for messages.

        By default its fields are those of ``keys``, and all observations may have a row more than the actions.

        Raises
        ------
        UnknownLayout
            A key is missing.
        CorruptArchive
            Columns have different lengths.
        """
        if missing := [key for key in self.keys.values() if key not in found]:
            raise UnknownLayout(f"{where} has no {' and no '.join(missing)}. It holds {keys_found(found)}.")
        rows = {field: found[key].shape[0] if found[key].shape else 0 for field, key in self.keys.items()}
        steps = next(n for field, n in rows.items() if is_below(field, "action"))
        longer = all(n == steps + 1 for field, n in rows.items() if is_observation(field))
        if any(n != steps + (longer and is_observation(field)) for field, n in rows.items()):
            listed = ", ".join(f"{key} {rows[field]}" for field, key in self.keys.items())
            raise CorruptArchive(f"{where} has columns of {listed} rows; observations may have one more than actions.")
        fields = {n: row_field(n, found[key], scalar=n.startswith("next/")) for n, key in sorted(self.keys.items())}
        constants = tuple(key for key in found if key not in self.keys.values())
        return Group(name, steps, self.keys, {}, fields, constants, longer=longer, end=self.end(found))

    def end(self, found: Mapping[str, h5py.Dataset]) -> int | None:
        """Tell how an episode ends: TERMINATED, TRUNCATED or CUT; None if its flags tell."""
        return None

    def look(self, f: h5py.File, path: Path, found: list[Group]) -> list[Group]:
        """Look at the rows of a file for what its headers do not tell: `Group.about`."""
        return found

    def path(self, group: str, key: str) -> str:
        """Return the path of a dataset of a group."""
        return f"{self.parent}{group}/{key}" if group else f"{self.parent}{key}"

    def is_known(self, key: str) -> bool:
        """Tell whether a key has a meaning, and so is per row in every group."""
        return False

    def facts(
        self, archive: Archive, found: Sequence[Sequence[Group]], chance: Sequence[str]
    ) -> tuple[dict[str, Any], list[Note]]:
        """Return the facts that the manifest records, and notes about them.

        ``chance`` are keys that are per row in some groups by chance alone.
        """
        return {}, []

    def arranged(self, g: Group, name: str, facts: Mapping[str, Any]) -> Group:
        """Place the fields of a group by the facts of the plan; ``name`` is the file as the manifest names it."""
        return g

    def environment(self, f: h5py.File) -> dict[str, Any]:
        """Return what a file says about its environment."""
        return {}

    def notes(self, f: h5py.File, name: str, found: Sequence[Group]) -> Iterator[Note]:
        """Make the notes about one file."""
        yield from ()

    def splits(self, f: h5py.File, name: str) -> Mapping[str, set[str]]:
        """Read the named splits of a file, with the groups in each."""
        return {}

    def task(self, f: h5py.File, group: str) -> str | None:
        """Return what a file says of an episode, in words; None if it does not."""
        return None

    def once(self, f: h5py.File, group: str) -> Mapping[str, Scalar]:
        """Return the values of the episode table that a file holds of an episode, by column."""
        return {}

    def constants(self, f: h5py.File, plan: Plan, name: str) -> Iterator[tuple[str, Array | str]]:
        """Read the values of one file that are not per row: by default the constants of its groups."""
        for group in self.groups(f):
            for key in self.described(f, group, plan.archive).constants:
                if (value := plain(f[self.path(group, key)])) is not None:
                    yield f"{group}/{key}" if group else key, value

    # What the engine does

    def choose(
        self, names: Sequence[str], portion: Subset, read: Callable[[str], bytes]
    ) -> tuple[Sequence[str], Subset]:
        """See `Reader`: all files."""
        return every_file(names, portion, read)

    def recognise(self, paths: Sequence[Path]) -> str | None:
        """Describe files of the family in one line; None for other files."""
        if not paths or not all(is_flat(path, self.container) for path in paths):
            return None
        with self.open(paths[0]) as f:
            said = self.describe(f, paths)
        files = f"{len(paths)} files, the first with " if len(paths) > 1 else ""
        return f"{said[0]}: {files}{said[1]}" if said else None

    def open(self, path: Path, *, check: bool = True) -> AbstractContextManager[h5py.File]:
        """Open an HDF5 file; of another container, its columns by name."""
        if self.container == "hdf5":
            return open_file(path, check=check)
        return cast(AbstractContextManager[h5py.File], open_datasets(path, self.keys.values()))

    def described(self, f: h5py.File, group: str, archive: Archive) -> Group:
        """Describe one group of a file."""
        found = datasets(f[f"{self.parent}{group}" or "/"]) if isinstance(f, h5py.File) else f
        name = next((Path(d.file.filename).name for d in found.values()), "a file")
        return self.group(f"{name}: {group}" if group else name, group, found, archive)

    def plan(self, archive: Archive) -> Plan:
        """Find the fields and parts. Reads the headers of every group.

        Raises
        ------
        UnknownLayout
            No groups of the family, or none with observations and actions; a rule for ends, or a mapping, that does not
            apply; groups that do not hold the same fields.
        CorruptArchive
            Columns of a group have different lengths.
        """
        self.check(archive)
        found: list[list[Group]] = []
        notes: list[Note] = []
        envs: list[dict[str, Any]] = []
        for index, path in enumerate(archive.files):
            with self.open(path) as f:
                found.append(self._described(f, path, archive))
                envs.append(self.environment(f))
                notes += self.notes(f, archive.name_of(index), found[-1])
        groups = [g for of_file in found for g in of_file]
        chance = _constant_in_some(groups, self.is_known) - {*archive.fields.values()}
        found = [[g.without(chance) for g in of_file] for of_file in found] if chance else found
        facts, more = self.facts(archive, found, sorted(chance))
        found = [[self.arranged(g, archive.name_of(i), facts) for g in of_file] for i, of_file in enumerate(found)]
        env, odd = _common(envs)
        if odd:
            text = f"files differ in {' and '.join(odd)} of their environment, which is not recorded"
            notes.append(Note("environments", text))
        first = _agreed(archive, found)
        empty = [f"{g.group} of {archive.name_of(i)}" for i, x in enumerate(found) for g in x if g.length < 1]
        if empty:
            notes.append(Note("empty-episodes", f"{self.what} without steps were left out", len(empty), empty[0]))
        width = sum(f.row_bytes for f in first.fields.values())
        return Plan(
            self.name,
            archive,
            _schema(first, own=facts.get(NEXT) == OWN),
            tuple(_parts(found, width)),
            episodes_by=self.rule,
            facts=facts,
            env=env,
            notes=(*notes, *more),
            account=self.account(archive, found),
        )

    def account(self, archive: Archive, found: Sequence[Sequence[Group]]) -> Account:
        """State the fate of all that the files hold, of which ``found`` are the groups of each."""
        told = Ledger()
        for index, (path, groups) in enumerate(zip(archive.files, found, strict=True)):
            name = archive.name_of(index)
            told.file(name, used_as(EPISODES))
            items = inventory.items(path)
            there = {i.name for i in items}
            fates: dict[str, Fate] = {}
            for g in groups:
                fields = {**g.columns, **{f"next/{n}": key for n, key in g.next_keys.items()}}
                of_group = fates_of({n: self.path(g.group, key) for n, key in fields.items()}, there)
                fates |= of_group if g.length else dict.fromkeys(of_group, left_out(NO_STEPS))
                fates |= {self.path(g.group, key): used_as(METADATA) for key in g.constants}
            told.inside(items, fates, name, others=self.fate)
        return told.account()

    def fate(self, item: Item) -> Fate | None:
        """State the fate of a thing in a file that is in no group; None leaves it out."""
        return None

    def check(self, archive: Archive) -> None:
        """Refuse options that do not apply; raises UnknownLayout."""
        if archive.episodes_by not in (None, "file"):
            raise UnknownLayout(
                f'episodes_by="{archive.episodes_by}" does not apply: {self.title} keeps its {self.what} apart.',
                hint="leave it out",
            )
        if archive.fields and not self.mapped:
            raise UnknownLayout(
                f"{self.title}'s names are fixed; --map does not apply.", hint="--reader plain takes any names"
            )

    def _described(self, f: h5py.File, path: Path, archive: Archive) -> list[Group]:
        groups = self.groups(f)
        if not groups:
            raise UnknownLayout(
                f"{path.name} has no {self.what} (groups {self.example}). It holds {keys_found(datasets(f))}."
            )
        return self.look(f, path, [self.described(f, group, archive) for group in groups])

    def read(self, plan: Plan, part: Part) -> Iterator[Chunk]:
        """Read the groups of one part, in chunks of bounded size however long they are.

        Raises
        ------
        Replan
            Next observations are not copies of the rows after.
        CorruptArchive
            A damaged chunk of the file.
        """
        episodes = zip(part.args["files"], part.args["groups"], part.args["lengths"], part.args["ends"], strict=True)
        for number, some in groupby(episodes, key=lambda e: int(e[0])):
            yield from self._read_file(plan, number, [(group, length, end) for _, group, length, end in some])

    def _read_file(self, plan: Plan, number: int, episodes: Sequence[_Entry]) -> Iterator[Chunk]:
        path = plan.archive.files[number]
        with self.open(path, check=False) as f:
            first = self.described(f, episodes[0][0], plan.archive)
            first = self.arranged(first, plan.archive.name_of(number), plan.facts)
            keys = {**first.columns, **{f"next/{n}": key for n, key in first.next_keys.items()}}
            finals = dict(first.next_keys) if first.has_all_next else {}
            compare = plan.facts.get(NEXT) == FINAL
            splits = self.splits(f, path.name)
            observed = first.late or first.longer or bool(finals)
            reader = _Reader(
                file=f,
                source=path,
                number=number,
                path=self.path,
                schema=plan.schema,
                keys=keys,
                splits=splits,
                finals=finals,
                late=first.late,
                observed=observed,
                compare=compare,
                task=partial(self.task, f),
                once=partial(self.once, f),
            )
            try:
                yield from reader.chunks(episodes)
            except _NextDiffer:
                raise Replan(_with_own_next(plan, first)) from None

    def metadata(self, plan: Plan) -> Iterator[tuple[str, Array | str]]:
        """Read what is not per row, below the file's name if there are several files."""
        several = len(plan.archive.files) > 1
        for index, path in enumerate(plan.archive.files):
            prefix = f"{plan.archive.name_of(index)}/" if several else ""
            with self.open(path, check=False) as f, reading(path, "its metadata"):
                for name, value in self.constants(f, plan, path.name):
                    yield prefix + name, value

    def look_up(self, place: ArchivedStep) -> Iterator[ArchivedValue]:
        """Look up the row of a step; the next observation is in its own column, or else in the row after it."""
        with self.open(place.file, check=False) as f:
            archive = Archive(place.root, (place.file,), fields=place.fields)
            found = self.arranged(self.described(f, place.group, archive), place.name, place.facts)
            keys = {**found.columns, **{f"next/{name}": key for name, key in found.next_keys.items()}}
            texts = {found.columns[name] for name, at in found.fields.items() if at.kind == "text"}
            there = {key: f[self.path(place.group, key)] for key in keys.values()}
            rows = slice(place.step, place.step + 2)
            seen = {key: (d.asstr() if key in texts else d)[rows] for key, d in there.items()}
            late = [name for name, at in found.fields.items() if found.late and at.placement == "next"]
            both = {n for n, at in found.fields.items() if at.placement == "both"} - {*found.next_keys}
            above = self.path(place.group, "")
            yield from looked_up(keys, seen, (place.step, place.step + 1), late=late, both=both, above=above)


def _common(envs: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Return what the files that describe an environment say alike, and the keys in which they differ."""
    said = [env for env in envs if env]
    alike = {k: v for k, v in said[0].items() if all(env.get(k) == v for env in said)} if said else {}
    return alike, sorted({key for env in said for key in env if key not in alike})


def _schema(first: Group, *, own: bool) -> tuple[Field, ...]:
    fields = {**first.fields, **{flag: Field(flag, "bool", (), "next") for flag in FLAGS}}
    return tuple(sorted((fields | (dict(first.next_fields) if own else {})).values(), key=lambda f: f.name))


def _with_own_next(plan: Plan, first: Group) -> Plan:
    """Change a plan to keep next observations as fields of their own."""
    schema = tuple(sorted((*plan.schema, *first.next_fields.values()), key=lambda f: f.name))
    text = "next observations differ from the next rows: kept as separate fields"
    note = Note("next-observation", text, 1, "next/observation/...")
    return replace(plan, schema=schema, facts={**plan.facts, NEXT: OWN}, notes=(*plan.notes, note))


def _constant_in_some(groups: Sequence[Group], is_known: Callable[[str], bool]) -> set[str]:
    """Find the keys of no known meaning that are not per row, although some groups happen to have as many rows."""
    per_row = {key for g in groups for key in g.columns.values()}
    return {key for g in groups for key in g.constants if key in per_row and not is_known(key)}


def _agreed(archive: Archive, found: Sequence[Sequence[Group]]) -> Group:
    """Return the first group; refuse others that do not hold the same fields."""
    first = found[0][0]
    for index, groups in enumerate(found):
        for g in groups:
            if (g.fields, g.columns, g.next_keys) != (first.fields, first.columns, first.next_keys):
                raise UnknownLayout(
                    f"{archive.name_of(index)}: {g.group} does not hold the fields of {first.group} of "
                    f"{archive.name_of(0)}: "
                    + ("; ".join(differences(g.fields.values(), first.fields.values())) or "next observations differ"),
                    hint="import files with other fields separately, each with its own name",
                )
    return first


def _parts(found: Sequence[Sequence[Group]], width: int) -> Iterator[Part]:
    """Divide the groups of all files, in their order, into parts of about the same size; without those of no steps."""
    limit = max(1, min(PART_ROWS, PART_BYTES // max(width, 1)))
    todo = [(file, g) for file, groups in enumerate(found) for g in groups if g.length > 0]
    part: list[tuple[int, Group]] = []
    rows = 0
    for k, (file, g) in enumerate(todo):
        part.append((file, g))
        rows += g.length + 1
        if rows >= limit or k == len(todo) - 1:
            args = {"files": [i for i, _ in part], "groups": [x.group for _, x in part]}
            args |= {"lengths": [x.length for _, x in part], "ends": [x.end for _, x in part]}
            yield Part(rows, args)
            part, rows = [], 0


# -- reading


_Entry = tuple[str, int, int | None]  # a group, its steps, and how it ends if that is known


class _NextDiffer(Exception):
    """A next observation is not the observation of the row after."""


_TERMINATED = Field(FLAGS[0], "bool", (), "next")


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the groups of one file.

    ``keys`` are those of the fields, ``finals`` those of the next values of observations, which are compared with the
    rows after if ``compare`` says so. ``observed`` says that the file holds final observations.
    """

    file: h5py.File
    source: Path
    number: int
    path: Callable[[str, str], str]
    schema: Sequence[Field]
    keys: Mapping[str, str]
    splits: Mapping[str, set[str]]
    finals: Mapping[str, str]
    late: bool
    observed: bool
    compare: bool
    task: Callable[[str], str | None]
    once: Callable[[str], Mapping[str, Scalar]]

    def chunks(self, entries: Sequence[_Entry]) -> Iterator[Chunk]:
        """Read groups in chunks of bounded size: several short ones together, a long one in pieces."""
        notes: list[Note] = []  # of the rows that are read for a chunk
        episodes = (self._episode(group, length, end, notes) for group, length, end in entries)
        for chunk in chunks(self.schema, episodes, rows=CHUNK_ROWS):
            chunk.notes = (*notes, *chunk.notes)
            notes.clear()
            yield chunk

    def _episode(self, group: str, length: int, end: int | None, notes: list[Note]) -> EpisodeData:
        terminated = self._terminated(group, length)
        last = np.arange(length) == length - 1
        terminated |= last & (end == TERMINATED)
        columns: dict[str, Array | LazyColumn] = {FLAGS[0]: terminated, FLAGS[1]: last & ~terminated}
        columns |= {f.name: _Rows(self, f, group, length, notes) for f in self.schema if f.name not in FLAGS}
        inside = int(terminated[:-1].sum())
        text, task = "steps are terminated inside an episode", self.task(group)
        return EpisodeData(
            columns,
            length,
            TERMINATED if terminated[-1] else CUT if end is None else end,
            source=self.number,
            group=group,
            splits=tuple(s for s, groups in self.splits.items() if group in groups),
            extra={**self.once(group), **({} if task is None else {TASK: task})},
            observed=self.observed,
            notes=(Note("terminated-inside", text, inside, group),) if inside else (),
        )

    def _terminated(self, group: str, length: int) -> BoolArray:
        if FLAGS[0] not in self.keys:
            return np.zeros(length, bool)
        done = self.rows(_TERMINATED, group, length, 0, length).reshape(-1)
        return np.asarray((done != 0) & (done == done))

    def rows(self, f: Field, group: str, length: int, start: int, stop: int) -> Array:
        """Read rows [start, stop) of the T or T+1 rows of a field.

        Raises
        ------
        _NextDiffer
            Next observations are not copies of the rows after.
        """
        with reading(self.source, self.path(group, self.keys[f.name])):
            values = self._values(f, group, self.keys[f.name])
            shift = int(self.late and f.placement == "next")
            if f.name not in self.finals:
                return np.asarray(values[start + shift : stop + shift])
            rows = np.asarray(values[start : min(stop + 1, length)])
            final = self._values(f, group, self.finals[f.name])
            if self.compare:
                _compare(rows, final, f, start)
            if stop <= length:
                return rows[: stop - start]
            return np.concatenate([rows, np.asarray(final[length - 1])[None].astype(rows.dtype, copy=False)])

    def _values(self, f: Field, group: str, key: str) -> Any:
        d = self.file[self.path(group, key)]
        return d.asstr() if f.kind == "text" else d


@dataclass(frozen=True, slots=True)
class _Rows(LazyColumn):
    """A column of a group; ``notes`` receives a note if values are NaN."""

    reader: _Reader
    field: Field
    group: str
    length: int
    notes: list[Note]

    def __len__(self) -> int:
        return self.length + (self.reader.observed and self.field.placement == "both")

    @property
    def nbytes(self) -> int:
        """The approximate bytes of all rows in memory."""
        return len(self) * (TEXT_BYTES if self.field.kind == "text" else self.field.row_bytes)

    def cut(self, start: int, stop: int) -> Array:
        """Read rows [start, stop)."""
        rows = self.reader.rows(self.field, self.group, self.length, start, stop)
        if missing := nan_count(rows):
            text = f"values are NaN and kept, first in {self.field.name}"
            self.notes.append(Note("nan", text, missing, self.group))
        return rows.reshape(len(rows), *self.field.shape)


def _compare(rows: Array, after: Any, f: Field, start: int) -> None:
    pairs = len(rows) - 1
    if pairs < 1:
        return
    at = slice(0, pairs) if f.row_bytes <= COMPARED_BYTES else slice(pairs // 2, pairs // 2 + 1)
    said = np.asarray(after[start + at.start : start + at.stop])
    if not np.array_equal(said, rows[1:][at], equal_nan=said.dtype.kind in "fc"):
        raise _NextDiffer
