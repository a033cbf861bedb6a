"""V-D4RL: frames of the DeepMind control suite, 64 px as one npz per episode, 84 px as HDF5 shards.

In both, a row holds an observation, and the action and reward that led to it::

    row            0     1     2     3              T = 3 steps, T+1 rows
    image          o0    o1    o2    o3             -> observation     both
    action         0     a0    a1    a2             -> action          root: of step t is row t+1's
    reward         0     r0    r1    r2             -> next/reward, next/discount, next/terminated: likewise
    step_type      0     1     1     2              shards only; in an npz is_first, is_last, is_terminal

A file of 64 px is one episode, named ``<time>-<uuid>-<rows>.npz``. Files of 84 px (``0.hdf5``, ``1.hdf5``, ...) hold
episodes end to end, and were cut into shards anywhere.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives import Archive, ArchivedStep, ArchivedValue, Part, Plan, Replan
from rlds_cli.archives.flat import episodes_of
from rlds_cli.archives.flat_rows import FlatLayout, Stretch, stretch_chunks
from rlds_cli.archives.looking import looked_up
from rlds_cli.archives.names import row_field
from rlds_cli.errors import ArchiveError, CorruptArchive, UnknownLayout
from rlds_cli.formats.hdf5 import attributes, datasets, is_hdf5, open_file
from rlds_cli.formats.npz import is_npz, open_npz
from rlds_cli.formats.tables import NOT, Table, TableColumn, TableView, hdf5_table, npz_table
from rlds_cli.subset import EVERYTHING, Subset
from rlds_cli.ted import CUT, FLAGS, REWARD, TERMINATED, TRUNCATED, Array, BoolArray, Chunk, Field, IntArray, Note

VERSION = 1
DISCOUNT = "next/discount"
STATE = "state/"
NAMES = {"action": "action", "reward": REWARD, "discount": DISCOUNT}
FRAMES = {True: "image", False: "observation"}  # the column of frames: of an npz, of a shard
MARKS = {True: ("is_first", "is_last", "is_terminal"), False: ("step_type",)}
FIRST, MID, LAST = 0, 1, 2  # of step_type
LENGTH, NUMBER = re.compile(r"-(\d+)$"), re.compile(r"(\d+)$")  # at the end of the names of an npz, of a shard
PART_BYTES = 128 << 20
CHECK_ROWS = 1 << 10
SHOWN, RECORDED = 20, 1000  # names of files in a message or a note, and in the manifest

Kind = tuple[str, tuple[int, ...]]  # dtype and shape of a row
Shapes = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class _File:
    """One file.

    Attributes
    ----------
    kinds : mapping of str to (str, tuple)
        Dtype and row shape of each field, whose column is in ``columns``.
    step_type : int array [rows]
    over : bool array [rows]
        True where the environment ended.
    terminals : (str, tuple) or None
        The column of these flags and the shape of its rows, if they may be set inside an episode, too.
    wrong : str or None
        The reason why the file cannot be read.
    """

    rows: int = 0
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    step_type: Array = field(default_factory=lambda: np.zeros(0))
    over: BoolArray = field(default_factory=lambda: np.zeros(0, bool))
    terminals: tuple[str, tuple[int, ...]] | None = None
    wrong: str | None = None

    @property
    def shapes(self) -> Shapes:
        """The row shape of every column, whatever the dtype."""
        return tuple(sorted((name, shape) for name, (_, shape) in self.kinds.items()))


@dataclass(frozen=True, slots=True)
class _Episodes:
    """Episodes in the rows of all files end to end: the row after each, how it ends, if it begins with a first row."""

    stops: IntArray
    end: Array
    whole: BoolArray

    @property
    def rows(self) -> IntArray:
        """The rows of each."""
        return np.asarray(np.diff(self.stops, prepend=0))


def recognise(paths: Sequence[Path]) -> str | None:
    """Describe V-D4RL's files in one line; None for other files."""
    kinds = [is_npz(p) for p in paths]
    small = [p for p, npz in zip(paths, kinds, strict=True) if npz]
    large = [p for p, npz in zip(paths, kinds, strict=True) if not npz]
    if not paths or not all(map(is_hdf5, large)):
        return None
    found = _recognise_npz(small) if small else None
    if not large or (small and not found):
        return found
    shard = _recognise_shard(large)
    return f"{found}; and shards" if found and shard else shard


def choose(names: Sequence[str], portion: Subset, read: object) -> tuple[Sequence[str], Subset]:
    """Choose the files of the wanted episodes, if each file is one; only the rows of shards tell their episodes."""
    files = [n for n in names if n.endswith(".npz")]
    if portion.split is not None or not files:
        return names, portion
    unwanted = {*files} - {files[k] for k in portion.numbers(len(files))}
    return [n for n in names if n not in unwanted], EVERYTHING


def plan(archive: Archive) -> Plan:
    """Find the fields, parts and episodes. Reads headers and flags only.

    Raises
    ------
    UnknownLayout
        Files of neither kind, or options that do not apply.
    CorruptArchive
        Files that are ragged, damaged or unlike the others; all are named. With ``skip_bad`` they are left out.
    """
    if archive.fields or archive.episodes_by not in (None, "file", "flags"):
        raise UnknownLayout("V-D4RL's names and ends are fixed; --map and --episodes-by do not apply.")
    kinds = {p.suffix.lower() for p in archive.files}
    if kinds != {".npz"} and not kinds <= {".hdf5", ".h5"}:
        raise UnknownLayout(
            f"{archive.root.name} mixes files of the kinds {', '.join(sorted(kinds)) or 'without a suffix'}.",
            hint="an archive of V-D4RL is all .npz (64 px) or all .hdf5 (84 px): name one of its directories",
        )
    return _plan(archive, {}, small=kinds == {".npz"})


def _plan(archive: Archive, damaged: Mapping[int, str], *, small: bool) -> Plan:
    """Make the plan of files of one kind; ``damaged`` are files with known faults."""
    seen = [_look(path, small=small) for path in archive.files]
    bad = {i: f.wrong for i, f in enumerate(seen) if f.wrong} | dict(damaged)
    good = [i for i in range(len(seen)) if i not in bad]
    bad = dict(sorted((bad | _unlike([(i, seen[i]) for i in good])).items()))
    notes = _leave_out(archive, bad)
    good = [i for i in good if i not in bad]
    gaps = [] if small else _gaps(archive, good)
    if gaps:
        text = "numbers are missing among the shards; episodes that ran into the gap are cut there"
        notes.append(Note("missing-shards", text, len(gaps), archive.name_of(gaps[0])))
    breaks = {*good} if small else {*gaps, *(i for a, i in pairwise(good) if i != a + 1)}
    starts = np.cumsum([0, *(seen[i].rows for i in good)])
    at_breaks = starts[:-1][np.isin(good, sorted(breaks))]
    episodes = _episodes([seen[i] for i in good], at_breaks)
    if small:
        notes += _names(archive, {i: seen[i] for i in good})
    notes += _remarks(archive, good, starts, episodes, small=small)
    fields = _schema(_promoted([seen[i].kinds for i in good]))
    facts: dict[str, Any] = {
        "kind": "npz" if small else "shards",
        "rows": "a row holds the action and reward that led to it",
    }
    if not small:
        facts["shards"] = {archive.name_of(i): seen[i].rows for i in good}
    if bad:
        facts["left_out"] = {archive.name_of(i): why for i, why in [*bad.items()][:RECORDED]}
    return Plan(
        reader="vd4rl",
        archive=archive,
        schema=fields,
        parts=tuple(_parts(seen, good, starts, episodes, sum(f.row_bytes for f in fields))),
        episodes_by="file" if small else "flags",
        facts=facts,
        notes=tuple(notes),
    )


def _parts(
    seen: Sequence[_File], good: Sequence[int], starts: IntArray, episodes: _Episodes, width: int
) -> Iterator[Part]:
    """Divide the episodes into parts of about one size; the files of a part have the same column of flags."""
    stops, rows = episodes.stops, episodes.rows
    first = np.searchsorted(starts, stops - rows, "right") - 1  # the file in which each episode begins
    flags = [seen[good[k]].terminals for k in first.tolist()]
    a = 0
    for b in range(1, len(stops) + 1):
        begin = int(stops[a] - rows[a])
        full = b == len(stops) or (int(stops[b - 1]) - begin) * width >= PART_BYTES
        if not full and flags[b] == flags[a]:
            continue
        some = rows[a:b] > 1
        if some.any():
            files = range(int(first[a]), int(np.searchsorted(starts, stops[b - 1])))
            at = int(starts[files[0]])
            args: dict[str, Any] = {"files": [good[k] for k in files], "counts": [seen[good[k]].rows for k in files]}
            args |= {"start": begin - at, "stops": stops[a:b] - at, "end": episodes.end[a:b]}
            args |= {"finals": np.arange(b - a), "whole": episodes.whole[a:b], "terminals": flags[a] and flags[a][0]}
            yield Part(int(rows[a:b][some].sum()), args | {"episodes": int(some.sum())})
        a = b


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """Read the rows of one part: those of its files end to end.

    Raises
    ------
    CorruptArchive
        Damaged data.
    Replan
        A file of 64 px is damaged, and damaged files are left out.
    """
    files, terminals = part.args["files"], part.args["terminals"]
    paths = tuple(plan.archive.files[i] for i in files)
    small = plan.facts["kind"] == "npz"
    named = {"observation": FRAMES[small], **{name: key for key, name in NAMES.items()}}
    columns = {f.name: named.get(f.name) or f.name.removeprefix(STATE) for f in plan.schema if f.name not in FLAGS}
    episodes = episodes_of(part)
    view = TableView(paths, tuple(part.args["counts"]), (terminals,) if terminals else (), episodes.stops)

    def places(rows: IntArray) -> tuple[IntArray, IntArray]:
        at, row = view.places(rows)
        return np.asarray(files)[at], row

    def first_rows(f: Field, values: Array, start: int) -> tuple[str, str, BoolArray] | None:
        if f.name not in ("action", REWARD):
            return None
        here = begins[slice(*np.searchsorted(begins, (start, start + len(values))))]
        odd = [at for at in here.tolist() if at not in told and np.any(values[at - start])]
        told.update(odd)
        marks = np.isin(np.arange(start, start + len(values)), odd)
        text = "first rows have an action or a reward of the step before them; it is left out"
        return ("first-action", text, marks) if odd else None

    told: set[int] = set()  # rows that a note tells of
    begins = np.append(int(part.args["start"]), episodes.stops[:-1])[part.args["whole"] & (episodes.length > 0)]
    stretch = Stretch(
        name_of=plan.archive.name_of,
        total=int(sum(part.args["counts"])),
        start=int(part.args["start"]),
        episodes=episodes,
        layout=FlatLayout(view.counts[0], plan.schema, columns, terminals=terminals, late=True),
        fields=tuple(f for f in plan.schema if f.name not in FLAGS),
        odd_values=first_rows,
        places=places,
    )
    try:
        yield from stretch_chunks(view, stretch)
    except (CorruptArchive, UnknownLayout) as e:
        if small and plan.archive.skip_bad and len(plan.facts.get("left_out", ())) < RECORDED:
            raise Replan(_without(plan, files, e)) from e
        e.hint = "--skip-bad leaves it out" if small else e.hint
        raise


def _without(before: Plan, files: Sequence[int], error: ArchiveError) -> Plan:
    """Make the plan again without the files of a part that are damaged."""
    archive = before.archive
    names = {archive.name_of(i): i for i in range(len(archive.files))}
    known = {names[name]: reason for name, reason in before.facts.get("left_out", {}).items()}
    for i in files:
        try:
            with open_npz(archive.files[i]) as npz, npz.rows([*npz.members]) as rows:
                count = next(iter(npz.members.values())).shape[0]
                for start in range(0, count, CHECK_ROWS):
                    rows.read(start, min(start + CHECK_ROWS, count))
        except (CorruptArchive, UnknownLayout) as e:
            known[i] = e.message
    if len(known) == len(before.facts.get("left_out", ())):
        raise error
    return _plan(archive, known, small=True)


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Return the attributes of shards."""
    if plan.facts["kind"] == "shards":
        for index in sorted({i for part in plan.parts for i in part.args["files"]}):
            with open_file(plan.archive.files[index], check=False) as f:
                yield from ((f"{plan.archive.name_of(index)}/{name}", value) for name, value in attributes(f))


def look_up(place: ArchivedStep) -> Iterator[ArchivedValue]:
    """Look up the row of a step and the row after it, which may lie in the next shard."""
    places = [_row(place, place.first + place.step + after) for after in (0, 1)]
    here, after = (dict(_values(place.root / name if name else place.file, row)) for name, row in places)
    small = place.file.suffix == ".npz"
    keys = _fields_of(here, small=small) | ({FLAGS[0]: "is_terminal"} if small and "is_terminal" in here else {})
    late = {*NAMES.values(), FLAGS[0]}
    seen = {key: (here[key], after[key]) for key in keys.values()}
    rows, above = (places[0][1], places[1][1]), f"{places[1][0] or place.name}/"
    yield from looked_up(keys, seen, rows, late=late, both=keys.keys() - late, above=above)


def _row(place: ArchivedStep, row: int) -> tuple[str, int]:
    """Find the shard and the row in it, for a row counted from the start of the episode's first shard."""
    shards: dict[str, int] = dict(place.facts.get("shards", {}))
    names = list(shards)
    at = names.index(place.name) if place.name in shards else None
    while at is not None and row >= shards[names[at]]:
        row, at = row - shards[names[at]], at + 1
    return (names[at] if at is not None else ""), row


def _values(path: Path, row: int) -> Iterator[tuple[str, object]]:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as f:
            yield from ((key, f[key][row]) for key in f)
    else:
        with open_file(path, check=False) as f:
            yield from ((key, d[row]) for key, d in f.items())


# -- one file


def _recognise_npz(paths: Sequence[Path]) -> str | None:
    """Describe V-D4RL's npz files in one line; None for other files."""
    with open_npz(paths[0]) as npz:
        there = set(npz.members)
    if not {*_needed(small=True)} <= there or not there & {*MARKS[True], "discount"}:
        return None
    return f"V-D4RL layout: {len(paths):,} episodes, one npz each"


def _recognise_shard(paths: Sequence[Path]) -> str | None:
    """Describe V-D4RL's shards in one line; None for other files."""
    with open_file(paths[0]) as f:
        found = datasets(f)
        if not {*_needed(small=False)} <= set(found) or len(found["observation"].shape) != 4:
            return None  # other logs of dm_env hold no frames, and their actions stand in other rows
        count = found["observation"].shape[0]
    files = f"{len(paths)} shards, the first with " if len(paths) > 1 else ""
    return f"V-D4RL layout: {files}{count:,} rows"


def _needed(*, small: bool) -> tuple[str, ...]:
    return (FRAMES[small], "action", "reward", *(() if small else MARKS[small]))


def _fields_of(keys: Iterable[str], *, small: bool) -> dict[str, str]:
    """Map fields to the columns of a file, without the marks of rows."""
    names = {FRAMES[small]: "observation", **NAMES}
    return {names.get(key) or STATE + key: key for key in keys if key not in MARKS[small]}


def _look(path: Path, *, small: bool) -> _File:
    try:
        if small:
            with open_npz(path) as npz:
                return _described(npz_table(path, npz), small=small)
        with open_file(path) as f:
            return _described(hdf5_table(path, f), small=small)
    except (CorruptArchive, UnknownLayout) as e:
        return _File(wrong=e.message)


def _described(table: Table, *, small: bool) -> _File:
    """Describe a file of 64 px, which is one episode, or a shard."""
    there = table.columns
    if missing := [key for key in _needed(small=small) if key not in there]:
        return _File(wrong=f"has no {' and no '.join(missing)}; it holds {', '.join(sorted(there))}")
    counts = {key: c.shape[0] if c.shape else None for key, c in there.items()}
    if len(set(counts.values())) > 1:
        usual, _ = Counter(counts.values()).most_common(1)[0]
        odd = ", ".join(f"{key} {n}" for key, n in counts.items() if n != usual)
        return _File(wrong=f"is ragged: {odd} rows, all others {usual}")
    count = there["action"].shape[0]
    if strange := [key for key, c in there.items() if c.dtype.kind not in "biuf"]:
        return _File(wrong=f"holds values that are no numbers: {', '.join(strange)}")
    scalars = [key for key in ("reward", "discount", *MARKS[small]) if key in there]
    if wide := [key for key in scalars if there[key].size != count]:
        return _File(wrong=f"has more than one value a row in {', '.join(wide)}")
    columns = _fields_of(there, small=small)
    made = [row_field(name, there[key], scalar=name.startswith("next/")) for name, key in columns.items()]
    about = {key: table.source.array(key).reshape(-1) for key in scalars if key != "reward"}
    found = _File(count, {f.name: (f.dtype, f.shape) for f in made}, columns)
    return _ends_of_one(found, about, there) if small else _ends_of_shard(found, about)


def _ends_of_shard(f: _File, about: Mapping[str, Array]) -> _File:
    step_type = about["step_type"]
    if not np.isin(step_type, (FIRST, MID, LAST)).all():
        return _File(wrong="has step types other than 0 (first), 1 (mid) and 2 (last)")
    over = about["discount"] == 0 if "discount" in about else np.zeros(f.rows, bool)
    return replace(f, step_type=step_type, over=over)


def _ends_of_one(f: _File, about: Mapping[str, Array], there: Mapping[str, TableColumn]) -> _File:
    """Find how the episode of a file ends, and refuse marks that are in other rows than the first and the last."""
    for key, at in (("is_first", 0), ("is_last", f.rows - 1)):
        found = np.flatnonzero(about.get(key, ()))
        if len(found) > 1 or (len(found) and found[0] != at):
            text = f"{key} is set in rows {', '.join(map(str, found[:5]))} of {f.rows}: not one episode"
            return _File(wrong=text)
    ending = next((key for key in ("is_terminal", "discount") if key in about), None)
    terminals = None
    if ending is not None:  # any value but 0 is a flag, and so is a discount of 0
        name = f"{NOT}{ending}" if ending == "discount" else f"{NOT}{NOT}{ending}"
        terminals = (name, there[ending].shape[1:])
    step_type = np.full(f.rows, MID)
    step_type[:1], over = FIRST, np.zeros(f.rows, bool)
    if f.rows:
        over[-1] = ending is not None and (about[ending][-1] != 0) == (ending == "is_terminal")
        is_last = over[-1] or ("is_last" in about and about["is_last"][-1] != 0)
        step_type[-1] = LAST if is_last else step_type[-1]
    return replace(f, step_type=step_type, over=over, terminals=terminals)


# -- all files


def _unlike(good: Sequence[tuple[int, _File]]) -> dict[int, str]:
    """Find the files with columns of other shapes than most files have."""
    if not good:
        return {}
    usual, _ = Counter(f.shapes for _, f in good).most_common(1)[0]
    return {i: _other_columns(f.shapes, usual) for i, f in good if f.shapes != usual}


def _other_columns(shapes: Shapes, usual: Shapes) -> str:
    odd = [f"{name} {list(shape)}" for name, shape in sorted({*shapes} ^ {*usual})]
    return f"has other columns than most files: {', '.join(odd)}"


def _promoted(all_kinds: Sequence[Mapping[str, Kind]]) -> dict[str, Kind]:
    """Find the kinds that hold the values of all files: float64 if others are float32."""
    found: dict[str, Kind] = {}
    for kinds in all_kinds:
        for name, (dtype, shape) in kinds.items():
            before = found.get(name, (dtype, shape))[0]
            found[name] = (np.result_type(before, dtype).name if before != dtype else dtype, shape)
    return found


def _names(archive: Archive, good: Mapping[int, _File]) -> list[Note]:
    """Note the names of files that end in another length than the file has."""
    odd = [
        archive.name_of(i)
        for i, f in good.items()
        if (m := LENGTH.search(archive.files[i].stem)) and int(m[1]) != f.rows
    ]
    text = "names of files say another number of rows than they have; the files count"
    return [Note("length-in-name", text, len(odd), odd[0])] if odd else []


def _gaps(archive: Archive, good: Sequence[int]) -> list[int]:
    """Find the shards that do not follow the one before by number, if all have numbers."""
    found = [NUMBER.search(archive.files[i].stem) for i in good]
    numbers = [int(m[1]) for m in found if m]
    if len(numbers) < len(good):
        return []
    return [i for i, (a, b) in zip(good[1:], pairwise(numbers), strict=True) if b != a + 1]


def _episodes(files: Sequence[_File], breaks: IntArray) -> _Episodes:
    """Find the episodes in the rows of all files, end to end; none runs across a break."""
    kind = np.concatenate([np.zeros(0, np.int64), *(f.step_type for f in files)])
    over = np.concatenate([np.zeros(0, bool), *(f.over for f in files)])
    if not len(kind):
        return _Episodes(np.zeros(0, np.int64), np.zeros(0, np.uint8), np.zeros(0, bool))
    begins = kind == FIRST
    begins[1:] |= kind[:-1] == LAST
    begins[[0, *(at for at in breaks.tolist() if at < len(kind))]] = True
    stops = np.append(np.flatnonzero(begins)[1:], len(kind))
    last = kind[stops - 1] == LAST
    end = np.where(last & over[stops - 1], TERMINATED, np.where(last, TRUNCATED, CUT)).astype(np.uint8)
    return _Episodes(stops, end, kind[begins] == FIRST)


def _remarks(
    archive: Archive, good: Sequence[int], starts: IntArray, episodes: _Episodes, *, small: bool
) -> Iterator[Note]:
    """Make the notes about episodes without a step, without a first row and without a last one."""
    begins = episodes.stops - episodes.rows
    if (alone := episodes.rows < 2).any():
        at = archive.name_of(good[int(np.searchsorted(starts, begins[alone][0], "right")) - 1])
        yield Note("empty-episodes", "episodes of one row have no step, and are left out", int(alone.sum()), at)
    if small:
        return
    if (odd := ~episodes.whole).any():
        text = "episodes begin in the middle: their first rows are in no shard"
        yield Note("fragments", text, int(odd.sum()), f"row {begins[odd][0]:,}")
    if (cut := episodes.end == CUT).any():
        text = "episodes have no last row, and are cut"
        yield Note("cut", text, int(cut.sum()), f"row {begins[cut][0]:,}")


def _schema(kinds: Mapping[str, Kind]) -> tuple[Field, ...]:
    """Make the fields, sorted by name; ``kinds`` are the kinds of the archive's per-row columns, by field."""
    fields = [Field(flag, "bool", (), "next") for flag in FLAGS]
    for name, (dtype, shape) in kinds.items():
        if name.startswith("next/"):
            fields.append(Field(name, dtype, (), "next"))
        else:
            fields.append(Field(name, dtype, shape, "root" if name == "action" else "both"))
    return tuple(sorted(fields, key=lambda f: f.name))


def _leave_out(archive: Archive, bad: Mapping[int, str]) -> list[Note]:
    """Make a note that names the damaged files, if the user wants them left out.

    Raises
    ------
    CorruptArchive
        The user does not.
    """
    if not bad:
        return []
    named = "; ".join(f"{archive.name_of(i)}: {why}" for i, why in [*bad.items()][:SHOWN])
    more = f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
    if not archive.skip_bad or len(bad) == len(archive.files):
        hint = "--skip-bad leaves them out" if len(bad) < len(archive.files) else "fetch or write them again"
        raise CorruptArchive(f"{len(bad)} of {len(archive.files)} files cannot be read. {named}{more}.", hint=hint)
    first = archive.name_of(next(iter(bad)))
    return [Note("bad-files", f"files were left out. {named}{more}", len(bad), first)]
