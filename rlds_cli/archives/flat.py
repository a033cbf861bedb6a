"""The engine for rows of many episodes end to end: HDF5, npz, Parquet, Arrow, CSV or JSON lines, with columns.

A family is a subclass of `Flat` with a diagram of its rows. It says what the columns of a file are (`Flat.layout`), and
where its episodes end (`Flat.episodes`); the engine does the rest. Two things differ between families::

    the last row of an episode            a step like any other               o0 o1 o2 | o3 o4 |
                                          the final observation, no step      o0 o1 o2 n2 | o3 o4 n4 |
    action and results of step t          in row t, or in row t+1 ("late", as dm_env logs them)

Rows are read block by block. A row of the file is a row of the store; an end without a final row repeats its last row,
which then takes the final observation: the one of a column of next observations, else the observation once more. Where
next observations are recorded, a step whose next observation is not the row after ends the episode, too, unless that
happens throughout: then they are a field of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlds_cli.archives.account import ENDS, EPISODES, METADATA, Account, Fate, Ledger, fates_of, used_as
from rlds_cli.archives.flat_rows import (
    FlatEpisodes as FlatEpisodes,
)
from rlds_cli.archives.flat_rows import (
    FlatLayout as FlatLayout,
)
from rlds_cli.archives.flat_rows import (
    NextValuesDiffer,
    Stretch,
    noted_nan,
    stretch_chunks,
)
from rlds_cli.archives.formats import inventory
from rlds_cli.archives.formats.hdf5 import reading
from rlds_cli.archives.formats.inventory import Item
from rlds_cli.archives.formats.table_views import TableView
from rlds_cli.archives.formats.tables import Table, is_flat, open_flat
from rlds_cli.archives.looking import looked_up
from rlds_cli.archives.names import differences
from rlds_cli.archives.readers import Archive, ArchivedStep, ArchivedValue, Part, Plan, Replan, every_file
from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.subset import Subset
from rlds_cli.errors import ArchiveError, CorruptArchive, ReaderError, UnknownLayout
from rlds_cli.ted import FLAGS, Chunk, Field, Note

PART_ROWS, PART_BYTES = 1 << 19, 512 << 20
SCAN_ROWS = 1 << 18
FINAL, OWN = "final", "own"  # next observations: of the last step alone, or a field
SHARDS = "shards"  # the rows of each file, in the facts of a family whose files are joined


def stops_of(last: BoolArray) -> IntArray:
    """Return the row after each last row of an episode; rows after the last flag are an episode, too. int64 [E]."""
    stops = np.flatnonzero(last).astype(np.int64) + 1
    return stops if not len(last) or last[-1] else np.append(stops, len(last))


def flag_fields() -> tuple[Field, ...]:
    """Return the two flags, which every dataset has."""
    return tuple(Field(flag, "bool", (), "next") for flag in FLAGS)


def nonzero(table: Table, keys: Sequence[str], rows: int) -> dict[str, BoolArray]:
    """Read flags of any number type, one value per row, as bool [rows].

    Raises
    ------
    CorruptArchive
        A column holds something else.
    """
    for key in keys:
        if table[key].shape[1:] not in ((), (1,)) or table[key].dtype.kind not in "biuf":
            raise CorruptArchive(f"{table.path.name}: {key} is {table[key].dtype} {list(table[key].shape)}.")
    found = {key: np.zeros(rows, bool) for key in keys}
    with table.rows(keys) as reader:
        for start in range(0, rows, SCAN_ROWS):
            for key, values in reader.read(start, min(start + SCAN_ROWS, rows)).items():
                found[key][start : start + SCAN_ROWS] = values.reshape(-1) != 0
    return found


# -- a family


class Flat(ABC):
    """A reader of a family whose files hold rows of many episodes end to end; see `Reader` for its functions.

    Attributes
    ----------
    name, title : str
        The name of the reader, if it is part of rlds, and of the family in messages.
    rules : tuple of str
        What ``--episodes-by`` may say; ``no_rule`` is the message otherwise, and ``mapped`` says whether ``--map``
        applies.
    whole_files : bool
        A file is one part: parts of a compressed npz would each inflate what lies before them.
    container : str or None
        What the files are, one of ``formats.tables.CONTAINERS``; None takes all of these.
    joined : bool
        Episodes run from one file into the next: the files are one table; see `join`.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = "the family"
    VERSION: int = 1
    rules: ClassVar[tuple[str, ...]] = ("flags",)
    no_rule: ClassVar[str] = "the files say where their episodes end"
    mapped: ClassVar[bool] = False
    whole_files: ClassVar[bool] = False
    container: ClassVar[str | None] = None
    joined: ClassVar[bool] = False
    unlike: ClassVar[type[ArchiveError]] = UnknownLayout  # files that do not hold the same fields
    inside_notes: ClassVar[bool] = True  # a step that terminates inside an episode is noted
    marks: ClassVar[tuple[str, ...]] = ()  # columns that `episodes` alone reads
    flag: ClassVar[str | None] = None  # the column that shows where a step terminates, if `episodes` alone reads it

    # What a family says

    def is_file(self, path: Path) -> bool:
        """Tell by its first bytes, or its name if it is text, whether a file may be of the family."""
        return is_flat(path, self.container)

    def open(
        self, path: Path, archive: Archive, facts: Mapping[str, Any] | None = None
    ) -> AbstractContextManager[Table]:
        """Open a file as a table; ``facts`` are those of the plan, if there is one."""
        return open_flat(path, check=facts is None)

    def describe(self, table: Table, paths: Sequence[Path]) -> tuple[str, str] | None:
        """Describe the first file in two halves, between which the number of files stands; None for other files.

        By default no files are recognised: then they are read where the reader is named.
        """
        return None

    @abstractmethod
    def layout(self, table: Table, archive: Archive) -> FlatLayout:
        """Assign the columns of a file to fields."""

    @abstractmethod
    def episodes(self, table: Table, found: FlatLayout, archive: Archive) -> FlatEpisodes:
        """Find the episodes of a file; reads its flags."""

    def join(
        self, archive: Archive, seen: Sequence[FlatLayout], found: Sequence[FlatEpisodes]
    ) -> tuple[FlatEpisodes, list[Note]]:
        """Find the episodes in the rows of all files, of which ``found`` are those of each; also return notes."""
        raise ReaderError(f"{type(self).__name__} joins its files, and has no join.")

    def joint_schema(self, archive: Archive, schemas: Sequence[tuple[Field, ...]]) -> tuple[Field, ...]:
        """Return the fields that hold the values of all files; raises ``unlike`` if there are none."""
        return same_schema(archive, schemas, self.unlike)

    def facts(
        self, archive: Archive, seen: Sequence[FlatLayout], found: Sequence[FlatEpisodes], mode: str | None
    ) -> Mapping[str, Any]:
        """Return the facts that the manifest records: by default those of the first file."""
        return seen[0].facts

    def notes(self, archive: Archive, index: int, found: FlatLayout, episodes: FlatEpisodes) -> Iterator[Note]:
        """Make the notes about a file."""
        yield from found.notes
        if empty := int(np.count_nonzero(episodes.length < 1)):
            yield Note("empty-episodes", "episodes without steps were left out", empty, archive.name_of(index))

    def splits(self, plan: Plan, file: int) -> Mapping[str, bool]:
        """Tell for each named split whether the episodes of a file are in it."""
        return {}

    def odd_values(self, f: Field, values: Array, start: int) -> tuple[str, str, BoolArray] | None:
        """Mark values [rows, ...] from row ``start`` on that a note tells of, with its code and text."""
        return noted_nan(f, values, start)

    def has_final(self, table: Table, place: ArchivedStep) -> bool:
        """Tell whether the row after the last step of an episode holds its final observation."""
        return False

    # What the engine does

    def choose(
        self, names: Sequence[str], portion: Subset, read: Callable[[str], bytes]
    ) -> tuple[Sequence[str], Subset]:
        """See `Reader`: all files."""
        return every_file(names, portion, read)

    def recognise(self, paths: Sequence[Path]) -> str | None:
        """Describe files of the family in one line; None for other files."""
        if not paths or not all(map(self.is_file, paths)):
            return None
        with self.open(paths[0], Archive(paths[0].parent, tuple(paths))) as table:
            said = self.describe(table, paths)
        files = f"{len(paths)} files, the first with " if len(paths) > 1 else ""
        return f"{said[0]}: {files}{said[1]}" if said else None

    def plan(self, archive: Archive) -> Plan:
        """Find fields, parts and ends. Reads the flags, in blocks.

        Raises
        ------
        UnknownLayout
            A column that is needed and not there; a rule for ends, or a mapping, that does not apply; files that do
            not hold the same fields.
        CorruptArchive
            Columns of different lengths, or invalid flags.
        ReaderError
            ``episodes`` returned what are not the episodes of all rows.
        """
        self.check(archive)
        seen: list[FlatLayout] = []
        found: list[FlatEpisodes] = []
        notes: list[Note] = []
        for index, path in enumerate(archive.files):
            with self.open(path, archive) as table:
                seen.append(self.layout(table, archive))
                found.append(self.episodes(table, seen[-1], archive))
            found[-1].check(seen[-1].rows, path.name)
            notes += self.notes(archive, index, seen[-1], found[-1])
        rows = {archive.name_of(i): s.rows for i, s in enumerate(seen)}
        if self.joined:
            joined, more = self.join(archive, seen, found)
            joined.check(sum(rows.values()), archive.root.name)
            found, notes = [joined], [*notes, *more]
        recorded = all(s.comparable or not s.next_columns for s in seen)
        mode = None if not any(s.next_columns for s in seen) else FINAL if recorded else OWN
        rule = archive.episodes_by or self.rules[0]
        schema = self.joint_schema(archive, [self.schema(s, mode, rule) for s in seen])
        width = sum(f.row_bytes for f in seen[0].fields)
        parts = [p for i, e in enumerate(found) for p in self.parts(i, e, width, known=mode != FINAL)]
        facts = {**self.facts(archive, seen, found, mode), **({SHARDS: rows} if self.joined else {})}
        account = self.account(archive, seen)
        return Plan(self.name, archive, schema, tuple(parts), rule, facts=facts, notes=tuple(notes), account=account)

    def account(self, archive: Archive, seen: Sequence[FlatLayout]) -> Account:
        """State the fate of all that the files hold."""
        told = Ledger()
        kind, _, key = (archive.episodes_by or self.rules[0]).partition(":")
        inside = kind not in ("flags", "timeouts")
        marks = (*self.marks, *([key] if kind == "field" else []))
        for index, (path, found) in enumerate(zip(archive.files, seen, strict=True)):
            items = inventory.items(path)
            there = {i.name for i in items}
            told.file(archive.name_of(index), used_as(EPISODES))
            fates = {key: used_as(ENDS) for key in marks if key in there}
            fates |= {key: used_as(METADATA) for key in found.metadata} | fates_of(found.sources(inside=inside), there)
            told.inside(items, fates, archive.name_of(index), others=self.fate)
        return told.account()

    def fate(self, item: Item) -> Fate | None:
        """State the fate of anything but a column; None leaves it out."""
        kept = item.kind == inventory.ATTRIBUTE and not item.why and type(self).metadata is Flat.metadata
        return used_as(METADATA) if kept else None

    def check(self, archive: Archive) -> None:
        """Refuse options that do not apply; raises UnknownLayout."""
        if archive.episodes_by not in (None, *self.rules):
            raise UnknownLayout(
                f'episodes_by="{archive.episodes_by}" does not apply: {self.no_rule}.', hint="leave it out"
            )
        if archive.fields and not self.mapped:
            raise UnknownLayout(
                f"{self.title}'s names are fixed; --map does not apply.", hint="--reader plain takes any names"
            )

    def schema(self, found: FlatLayout, mode: str | None, rule: str) -> tuple[Field, ...]:
        """Return the fields of a file, sorted by name; timeouts that end nothing are one of them."""
        fields = [*found.fields, *flag_fields(), *(found.own_next if mode == OWN else ())]
        if found.timeouts_field and rule not in ("flags", "timeouts"):
            fields.append(found.timeouts_field)
        return tuple(sorted(fields, key=lambda f: f.name))

    def parts(self, file: int, episodes: FlatEpisodes, width: int, *, known: bool) -> Iterator[Part]:
        """Divide the episodes of a file into parts of about one size; ``known`` says that all ends are."""
        for part in parts_of(episodes, width, known=known, whole=self.whole_files):
            yield replace(part, args={"file": file, **part.args})

    def read(self, plan: Plan, part: Part) -> Iterator[Chunk]:
        """Read the rows of one part, in chunks of bounded size however long the episodes are.

        Raises
        ------
        Replan
            Next observations differ from the rows after throughout.
        CorruptArchive
            A damaged chunk of the file.
        """
        source = int(part.args["file"])
        with self.open(plan.archive.files[source], plan.archive, plan.facts) as table:
            found = self.layout(table, plan.archive)
            stretch = self.stretch(plan, part, found)
            try:
                for chunk in stretch_chunks(_view(plan.archive.root, plan.facts) if self.joined else table, stretch):
                    count = len(chunk.episodes)
                    chunk.episodes.splits = {n: np.full(count, v) for n, v in self.splits(plan, source).items()}
                    yield chunk
            except NextValuesDiffer:
                raise Replan(with_own_next(plan, found)) from None

    def stretch(self, plan: Plan, part: Part, found: FlatLayout) -> Stretch:
        """Say how a part of one file is read."""
        source = int(part.args["file"])
        view = _view(plan.archive.root, plan.facts) if self.joined else None
        return Stretch(
            name_of=plan.archive.name_of,
            total=sum(view.counts) if view else found.rows,
            start=int(part.args["start"]),
            episodes=episodes_of(part),
            layout=found,
            fields=tuple(f for f in plan.schema if f.name not in FLAGS),
            cuts=plan.facts.get("next_observations") == FINAL and found.recorded,
            jumps=plan.episodes_by == "jumps",
            flagged=plan.episodes_by in ("flags", "timeouts"),
            odd_values=self.odd_values,
            inside_notes=self.inside_notes,
            places=view.places if view else lambda rows: (np.full(len(rows), source), rows),
        )

    def metadata(self, plan: Plan) -> Iterator[tuple[str, Array | str]]:
        """Read constants and attributes, below the file's name if there are several files."""
        several = len(plan.archive.files) > 1
        for index, path in enumerate(plan.archive.files):
            prefix = f"{plan.archive.name_of(index)}/" if several else ""
            with self.open(path, plan.archive, plan.facts) as table, reading(path, "its metadata"):
                for name, value in table.constants(self.layout(table, plan.archive).metadata):
                    yield prefix + name, value

    def look_up(self, place: ArchivedStep) -> Iterator[ArchivedValue]:
        """Look up the row of a step; next observations are in their own columns, or else in the row after it."""
        row = place.first + place.step
        archive = Archive(place.root, (place.file,), fields=place.fields)
        with self.open(place.file, archive, place.facts) as table:
            found = self.layout(table, archive)
            flag = self.flag or found.terminals
            after = not place.is_last or self.has_final(table, place)
            both = {f.name for f in found.fields if f.placement == "both"}
            keys = {**found.columns, **({FLAGS[0]: flag} if flag else {})}
            late = keys.keys() - both if found.late else ()
            keys |= {f"next/{name}": key for name, key in found.next_columns.items()}
            if self.joined and place.name in place.facts[SHARDS]:  # the row after may be in the next file
                view = _view(place.root, place.facts)
                start = sum(view.counts[: [*place.facts[SHARDS]].index(place.name)])
                with view.rows({*keys.values()}) as reader:
                    seen = reader.read(start + row, start + row + 2)
            else:
                seen = {k: next(iter(table.samples(k, [row], 2 if after or late else 1))) for k in {*keys.values()}}
            known = both if after and not found.next_columns else ()
            yield from looked_up(keys, seen, (row, row + 1), late=late, both=known)


def _view(root: Path, facts: Mapping[str, Any]) -> TableView:
    """Return the rows of all files of a family that joins them."""
    rows: Mapping[str, int] = facts[SHARDS]
    return TableView(tuple(root / name for name in rows), tuple(rows.values()), (), np.zeros(0, np.int64))


def parts_of(episodes: FlatEpisodes, width: int, *, known: bool, whole: bool = False) -> Iterator[Part]:
    """Divide episodes into parts of about one size, without those of no step.

    Parameters
    ----------
    episodes : FlatEpisodes
    width : int
        Bytes of a row.
    known : bool
        All ends are known, so that the rows of a part can be counted.
    whole : bool
        Make one part.
    """
    stops = episodes.stops
    total = int(stops[-1]) if len(stops) else 0
    number = 1 if whole else -(-total // max(1, min(PART_ROWS, PART_BYTES // max(width, 1))))
    marks = np.linspace(0, total, number + 1)[1:].astype(np.int64)
    bounds = np.searchsorted(stops, marks) + 1  # in order; long episodes make several of them the same
    for a, b in pairwise([0, *dict.fromkeys(np.minimum(bounds, len(stops)).tolist())]):
        steps = episodes.length[a:b]
        some = steps[steps > 0]
        if len(some):
            args: dict[str, Any] = {"first": a, "start": int(stops[a - 1]) if a else 0, "stops": stops[a:b]}
            args |= {"finals": np.flatnonzero(episodes.finals[a:b]), "episodes": len(some)}
            args |= {} if episodes.end is None else {"end": episodes.end[a:b]}
            yield Part(int((some + 1).sum()) if known else None, args)


def same_schema(
    archive: Archive, schemas: Sequence[tuple[Field, ...]], error: type[ArchiveError] = UnknownLayout
) -> tuple[Field, ...]:
    """Return the fields of the first file; raises ``error`` if another file has others."""
    for index, schema in enumerate(schemas):
        if schema != schemas[0]:
            raise error(
                f"{archive.name_of(index)} and {archive.name_of(0)} do not hold the same fields: "
                + "; ".join(differences(schema, schemas[0])),
                hint="import them one by one, each with its own name",
            )
    return schemas[0]


def episodes_of(part: Part) -> FlatEpisodes:
    """Return the episodes of a part, in rows of the file."""
    stops = np.asarray(part.args["stops"], np.int64)
    finals = np.zeros(len(stops), bool)
    finals[np.asarray(part.args["finals"], np.int64)] = True
    return FlatEpisodes(stops, finals, part.args.get("end"))


def with_own_next(plan: Plan, found: FlatLayout) -> Plan:
    """Change a plan to keep next observations as a field of their own."""
    schema = tuple(sorted([*plan.schema, *found.own_next], key=lambda f: f.name))
    parts = tuple(replace(p, rows=_known_rows(p)) for p in plan.parts)
    note = Note(
        "next-observation",
        "next observations differ from the next rows throughout: kept as a separate field",
        1,
        "if episodes end there unflagged: --episodes-by jumps",
    )
    facts = {**plan.facts, "next_observations": OWN}
    return replace(plan, schema=schema, parts=parts, facts=facts, notes=(*plan.notes, note))


def _known_rows(part: Part) -> int:
    steps = np.diff(part.args["stops"], prepend=part.args["start"])
    steps[part.args["finals"]] -= 1
    return int((steps[steps > 0] + 1).sum())
