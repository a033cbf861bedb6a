"""Fields that some files, rows or episodes of a user's do not have: refused, filled or left out, as ``--missing`` says.

A file of rows lacks a field if it has no such column, or one of no rows; a row does if its number or flag is null.
A column of another length or shape than in other files cannot be filled: nobody knows which rows it lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from rlds_cli.archives.flat_rows import FlatLayout
from rlds_cli.archives.formats.arrow_tables import ArrowFile
from rlds_cli.archives.formats.tables import MISSING, Table, open_flat
from rlds_cli.archives.formats.text_tables import CSV, JSON, JSON_LINES
from rlds_cli.archives.names import NEXT_OBSERVATION, differences, is_observation
from rlds_cli.archives.plain import arriving
from rlds_cli.archives.plain.boundaries import SCAN_ROWS
from rlds_cli.archives.plain.survey import FileSurvey, JoinedFiles, survey
from rlds_cli.archives.readers import DROP, FILL, Archive
from rlds_cli.base.array_types import Array, BoolArray
from rlds_cli.base.text import is_below
from rlds_cli.errors import UnknownLayout
from rlds_cli.ted import FLAGS, REWARD, Field, Note

SCAN_BYTES = 64 << 20  # of a column in a binary file that is read ahead to find rows without a value
WAYS = "--missing drop leaves it out of the dataset; --missing fill writes NaN, 0, False or no text instead"
DROPS = "--missing drop leaves it out of the dataset"


@dataclass(frozen=True, slots=True)
class Lacking:
    """A field that is not everywhere: its column, why, and whether it can be filled."""

    name: str
    key: str
    why: str
    can_fill: bool


@dataclass(frozen=True, slots=True)
class Settled:
    """The files as they are read: without columns that are dropped, and with ``filled`` ones by field."""

    archive: Archive
    seen: tuple[FileSurvey, ...]
    filled: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()


def settle(archive: Archive, seen: Sequence[FileSurvey]) -> Settled:
    """Decide the fate of the columns that some of the files do not have.

    Raises
    ------
    UnknownLayout
        A file lacks a column, and ``missing`` does not state their fate, or cannot.
    """
    found: dict[str, Lacking] = {}
    for one in _of_files(archive, seen):
        found.setdefault(one.name, one)
    return _decided(Settled(archive, tuple(seen)), [*found.values()])


def settle_rows(settled: Settled, joined: JoinedFiles) -> Settled:
    """Decide the fate of columns that have no value in some rows of steps; reads narrow columns.

    Raises
    ------
    UnknownLayout
        As `settle`.
    """
    return _decided(settled, [*_of_rows(settled, joined)])


def completed(s: FileSurvey, schema: Sequence[Field], filled: Mapping[str, str]) -> FileSurvey:
    """Add the fields that are filled to the layout of a file, which may lack their columns."""
    more = {name: key for name, key in filled.items() if name not in s.layout.columns}
    fields = tuple(f for f in schema if f.name in more)
    layout: FlatLayout = replace(s.layout, fields=(*s.layout.fields, *fields), columns={**s.layout.columns, **more})
    return replace(s, layout=layout)


def can_drop(name: str) -> bool:
    """Tell whether a dataset can go without a field: not without what every step needs."""
    return name not in (REWARD, *FLAGS) and not is_below(name, "action") and not is_below(name, NEXT_OBSERVATION)


def check(found: Iterable[Lacking], missing: str | None) -> None:
    """Refuse fields that are not everywhere, unless ``missing`` states the fate of them, and can.

    Raises
    ------
    UnknownLayout
        It does not.
    """
    for one in found:
        if not can_drop(one.name):
            raise UnknownLayout(f"{one.why}.", hint="every step needs one")
        if missing not in (FILL, DROP):
            raise UnknownLayout(f"{one.why}.", hint=WAYS if one.can_fill else DROPS)
        if missing == FILL and not one.can_fill:
            raise UnknownLayout(f"{one.why}, which cannot be filled.", hint=DROPS)


def notes(found: Sequence[Lacking], missing: str | None) -> list[Note]:
    """Say which fields are filled, or left out."""
    if not found:
        return []
    code = "filled" if missing == FILL else "dropped"
    done = "filled where they have no value" if missing == FILL else "left out, since not all have them"
    return [Note(code, f"fields are {done}: {', '.join(one.name for one in found)}", len(found), found[0].why)]


def _decided(before: Settled, found: Sequence[Lacking]) -> Settled:
    if not found:
        return before
    archive = before.archive
    check(found, archive.missing)
    told = (*before.notes, *notes(found, archive.missing))
    if archive.missing == FILL:
        schema = {f.name: f for s in before.seen for f in s.layout.fields}
        filled = {**before.filled, **{one.name: one.key for one in found if one.name in schema}}
        seen = tuple(completed(s, [*schema.values()], filled) for s in before.seen)
        return replace(before, seen=seen, filled=filled, notes=told)
    without = tuple(dict.fromkeys((*archive.without, *(one.key for one in found))))
    mapped = {name: key for name, key in archive.fields.items() if key not in without}
    left_out = (*archive.left_out, *told[len(before.notes) :])  # a plan of this archive does not find them again
    archive = replace(archive, without=without, fields=mapped, left_out=left_out)
    return replace(before, archive=archive, seen=tuple(survey(archive, s.path) for s in before.seen), notes=told)


def _of_files(archive: Archive, seen: Sequence[FileSurvey]) -> Iterator[Lacking]:
    """Find the fields that a file lacks, or has in another shape than the first file that has them."""
    first: dict[str, tuple[Field, str, int]] = {}
    for index, s in enumerate(seen):
        for f in s.layout.fields:
            first.setdefault(f.name, (f, s.layout.columns[f.name], index))
    for index, s in enumerate(seen):
        where = archive.name_of(index)
        for name, (key, rows) in s.odd.items():
            why = f"{where}: {key} has {f'{rows:,}' if rows else 'no'} rows; there are {s.rows:,} actions"
            yield Lacking(name, key, why, can_fill=not rows and name in first and first[name][0].kind != "frames")
    for index, s in enumerate(seen):
        where, fields = archive.name_of(index), {f.name: f for f in s.layout.fields}
        for name, (f, key, other) in first.items():
            if name not in fields and name not in s.odd:
                why = f"{where} has no {key}, which {archive.name_of(other)} has"
                yield Lacking(name, key, why, can_fill=f.kind != "frames")
            elif name in fields and fields[name] != f:
                said = next(differences([fields[name]], [f]))
                yield Lacking(name, key, f"{where} and {archive.name_of(other)} differ: {said}", can_fill=False)


# -- rows without a value


def _of_rows(settled: Settled, joined: JoinedFiles) -> Iterator[Lacking]:
    archive, steps = settled.archive, _steps_of(joined)
    done: set[str] = {*settled.filled}
    for index, (s, (a, b)) in enumerate(
        zip(settled.seen, pairwise(np.cumsum([0, *joined.view.counts]).tolist()), strict=True)
    ):
        if not any(_may_lack(s, f) for f in s.layout.fields):
            continue
        with open_flat(s.path, fill=True) as table:
            if not isinstance(table.source, ArrowFile):
                continue
            table.derive([*s.keys.values(), *s.by.keys])
            for name, key in _to_scan(archive, s, table):
                if name in done:
                    continue
                found = _gap(archive, table, name, key, steps[a:b], archive.name_of(index))
                if found is not None:
                    done.add(name)
                    yield found


def _steps_of(joined: JoinedFiles) -> BoolArray:
    """Tell which rows are steps, in the order of the files; the others hold final observations."""
    steps: BoolArray = np.ones(sum(joined.view.counts), bool)
    finals = joined.view.stops[joined.finals] - 1
    steps[finals if joined.view.order is None else joined.view.order[finals]] = False
    return steps


def _may_lack(s: FileSurvey, f: Field) -> bool:
    """Tell whether rows of a field's column may have no value, or several shapes, and nobody has looked yet."""
    may = f.kind == "array" and (f.shape != () or np.dtype(f.dtype).kind in "biu")
    return may and s.layout.columns[f.name] not in s.by.keys


def _to_scan(archive: Archive, s: FileSurvey, table: Table) -> Iterator[tuple[str, str]]:
    """Name the fields whose columns may lack values, or have rows of several shapes, without those that are large."""
    is_text = s.path.suffix.lower() in (*CSV, *JSON_LINES, *JSON)
    for f in s.layout.fields:
        key = s.layout.columns[f.name]
        if not _may_lack(s, f) or not (table.may_miss(key) or f.shape) or table.made_of(key):
            continue
        if is_text or archive.missing in (FILL, DROP) or s.rows * f.row_bytes <= SCAN_BYTES:
            yield f.name, key


def _gap(archive: Archive, table: Table, name: str, key: str, steps: BoolArray, where: str) -> Lacking | None:
    """Find the first row of a step that has no value, among the rows of a file of which ``steps`` [rows] are such."""
    late = archive.arrive and arriving.is_late(name)
    read = MISSING + key if table.may_miss(key) and not late else key
    table.derive([read])
    rows = table[key].shape[0]
    try:
        with table.rows([read]) as reader:
            for start in range(0, rows, SCAN_ROWS):
                stop = min(start + SCAN_ROWS, rows)
                seen: Array = reader.read(start, stop)[read]
                wrong = np.zeros(0, np.int64)
                if read != key:
                    wrong = np.flatnonzero(seen & (steps[start:stop] | is_observation(name)))
                if len(wrong):
                    return Lacking(name, key, f"row {start + int(wrong[0]):,} of {where} has no {key}", can_fill=True)
    except UnknownLayout as e:
        return Lacking(name, key, e.message.removesuffix("."), can_fill=False)
    return None
