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
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds_cli.archives import Archive, ArchivedStep, ArchivedValue, Part, Plan, Replan
from rlds_cli.archives.names import differences, row_field
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.formats.hdf5 import attributes, datasets, is_hdf5, keys_found, open_file
from rlds_cli.formats.hdf5_rows import RowReader
from rlds_cli.formats.npz import NpzFile, is_npz, open_npz
from rlds_cli.subset import EVERYTHING, Subset
from rlds_cli.ted import (
    CUT,
    FLAGS,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Array,
    Chunk,
    Column,
    EpisodeData,
    Field,
    IntArray,
    Note,
    chunks,
)

VERSION = 1
DISCOUNT = "next/discount"
STATE = "state/"
# Fields by the names of columns in an npz, in a shard, and in either; columns that a file must have; marks of rows.
NPZ_NAMES = {"image": "observation", "action": "action", "reward": REWARD, "discount": DISCOUNT}
SHARD_NAMES = {"observation": "observation", "action": "action", "reward": REWARD, "discount": DISCOUNT}
NAMES = {"action": "action", "reward": REWARD, "discount": DISCOUNT, "is_terminal": FLAGS[0]}
FRAMES = ("image", "observation")
NPZ_NEEDED = ("image", "action", "reward")
SHARD_NEEDED = ("observation", "action", "reward", "step_type")
NPZ_MARKS = ("is_first", "is_last", "is_terminal")
MARKS = ("is_first", "is_last", "step_type")
FIRST, MID, LAST = 0, 1, 2  # of step_type
LENGTH, NUMBER = re.compile(r"-(\d+)$"), re.compile(r"(\d+)$")  # at the end of the names of an npz, of a shard
MAX_EPISODE = 512 << 20  # bytes of one column of one npz
PART_BYTES = 128 << 20
SHOWN, RECORDED = 20, 1000  # names of files in a message or a note, and in the manifest

Kind = tuple[str, tuple[int, ...]]  # dtype and shape of a row
Shapes = tuple[tuple[str, tuple[int, ...]], ...]


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
    if kinds == {".npz"}:
        return _plan_npz(archive)
    if kinds <= {".hdf5", ".h5"}:
        return _plan_shard(archive)
    raise UnknownLayout(
        f"{archive.root.name} mixes files of the kinds {', '.join(sorted(kinds)) or 'without a suffix'}.",
        hint="an archive of V-D4RL is all .npz (64 px) or all .hdf5 (84 px): name one of its directories",
    )


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """Read the episodes of one part, some to a chunk.

    Raises
    ------
    CorruptArchive
        Damaged data.
    """
    return _read_npz(plan, part) if "files" in part.args else _read_shard(plan, part)


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Return the attributes of shards."""
    episodes = [e for part in plan.parts for e in part.args.get("episodes", ())]
    for index in sorted({piece[0] for e in episodes for piece in e["pieces"]}):
        with open_file(plan.archive.files[index], check=False) as f:
            yield from ((f"{plan.archive.name_of(index)}/{name}", value) for name, value in attributes(f))


def look_up(place: ArchivedStep) -> Iterator[ArchivedValue]:
    """Look up the row of a step and the row after it, which may lie in the next shard."""
    for after in (False, True):
        name, row = _row(place, place.first + place.step + after)
        path = place.root / name if name else place.file
        for key, value in _values(path, row):
            at = f"{name or place.name}/{key}[{row}]"
            if key in NAMES:
                if after:
                    yield ArchivedValue(NAMES[key], at, bool(value) if key == "is_terminal" else value)
            elif key not in MARKS:
                field = "observation" if key in FRAMES else STATE + key
                yield ArchivedValue(f"next/{field}" if after else field, at, value)


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


# -- 64 px: one npz per episode


@dataclass(frozen=True, slots=True)
class _EpisodeFile:
    """One file: ``kinds`` by field, and ``wrong``, the reason why it is no episode."""

    rows: int
    kinds: Mapping[str, Kind]
    wrong: str | None = None

    @property
    def shapes(self) -> Shapes:
        """The row shape of every column, whatever the dtype."""
        return tuple(sorted((name, shape) for name, (_, shape) in self.kinds.items()))


def _recognise_npz(paths: Sequence[Path]) -> str | None:
    """Describe V-D4RL's npz files in one line; None for other files."""
    if not all(map(is_npz, paths)):
        return None
    with open_npz(paths[0]) as npz:
        there = set(npz.members)
    if not {*NPZ_NEEDED} <= there or not there & {*NPZ_MARKS, "discount"}:
        return None
    return f"V-D4RL layout: {len(paths):,} episodes, one npz each"


def _plan_npz(archive: Archive, damaged: Mapping[int, str] | None = None) -> Plan:
    """Find the fields and parts, by the headers and flags of all files; ``damaged`` are files with known faults."""
    seen = {i: _look_npz(path) for i, path in enumerate(archive.files)}
    bad = {i: f.wrong for i, f in seen.items() if f.wrong} | dict(damaged or {})
    good = {i: f for i, f in seen.items() if i not in bad}
    if good:
        usual, _ = Counter(f.shapes for f in good.values()).most_common(1)[0]
        bad |= {i: _unlike_npz(f.shapes, usual) for i, f in good.items() if f.shapes != usual}
    bad = dict(sorted(bad.items()))
    notes = _leave_out(archive, bad)
    good = {i: f for i, f in good.items() if i not in bad}
    notes += _names(archive, good)
    if short := [i for i, f in good.items() if f.rows < 2]:
        notes.append(Note("empty-episodes", "files without a step are left out", len(short), archive.name_of(short[0])))
    fields = _schema(_promoted([f.kinds for f in good.values()]))
    width = sum(f.row_bytes for f in fields)
    facts = {"kind": "npz", "rows": "a row holds the action and reward that led to it"}
    left = {"left_out": _left_out(archive, bad)} if bad else {}
    return Plan(
        reader="vd4rl",
        archive=archive,
        schema=fields,
        parts=tuple(_parts_npz({i: f.rows for i, f in good.items() if f.rows > 1}, width)),
        episodes_by="file",
        facts=facts | left,
        notes=tuple(notes),
    )


def _read_npz(plan: Plan, part: Part) -> Iterator[Chunk]:
    """Read the episodes of some files.

    Raises
    ------
    CorruptArchive
        A file is damaged.
    Replan
        A file is damaged, and damaged files are left out.
    """
    return chunks(plan.schema, (_episode(plan, int(i)) for i in part.args["files"]))


def _look_npz(path: Path) -> _EpisodeFile:
    try:
        with open_npz(path) as npz:
            return _layout_npz(npz)
    except (CorruptArchive, UnknownLayout) as e:
        return _EpisodeFile(0, {}, e.message)


def _layout_npz(npz: NpzFile) -> _EpisodeFile:
    missing = [key for key in NPZ_NEEDED if key not in npz.members]
    if missing:
        return _EpisodeFile(0, {}, f"has no {' and no '.join(missing)}; it holds {', '.join(sorted(npz.members))}")
    counts = {key: m.shape[0] if m.shape else None for key, m in npz.members.items()}
    if len(set(counts.values())) > 1:
        usual, _ = Counter(counts.values()).most_common(1)[0]
        odd = ", ".join(f"{key} {n}" for key, n in counts.items() if n != usual)
        return _EpisodeFile(0, {}, f"is ragged: {odd} rows, all others {usual}")
    count = npz.members["image"].shape[0]
    kinds = {_name(key): (m.dtype.name, m.shape[1:]) for key, m in npz.members.items() if key not in NPZ_MARKS}
    wide = [key for key in ("reward", "discount", *NPZ_MARKS) if key in npz.members and npz.members[key].size != count]
    if wide:
        return _EpisodeFile(0, {}, f"has more than one value a row in {', '.join(wide)}")
    strange = [key for key, m in npz.members.items() if m.dtype.kind not in "biuf"]
    if strange:
        return _EpisodeFile(0, {}, f"holds values that are no numbers: {', '.join(strange)}")
    return _EpisodeFile(count, kinds, _marks(npz, count))


def _marks(npz: NpzFile, count: int) -> str | None:
    """Return the fault in the marks of the first and the last row, if there is one."""
    for key, at in (("is_first", 0), ("is_last", count - 1)):
        if key in npz.members:
            found = np.flatnonzero(npz.array(key))
            if len(found) > 1 or (len(found) and found[0] != at):
                return f"{key} is set in rows {', '.join(map(str, found[:5]))} of {count}: not one episode"
    return None


def _name(key: str) -> str:
    return NPZ_NAMES.get(key) or STATE + key


def _unlike_npz(shapes: Shapes, usual: Shapes) -> str:
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


def _names(archive: Archive, good: Mapping[int, _EpisodeFile]) -> list[Note]:
    """Note the names of files that end in another length than the file has."""
    odd = [
        archive.name_of(i)
        for i, f in good.items()
        if (m := LENGTH.search(archive.files[i].stem)) and int(m[1]) != f.rows
    ]
    text = "names of files say another number of rows than they have; the files count"
    return [Note("length-in-name", text, len(odd), odd[0])] if odd else []


def _parts_npz(counts: Mapping[int, int], width: int) -> Iterator[Part]:
    todo: list[int] = []
    last = next(reversed(counts), None)
    for i in counts:
        todo.append(i)
        if i == last or sum(counts[k] for k in todo) * width >= PART_BYTES:
            yield Part(sum(counts[k] for k in todo), {"files": todo, "rows": [counts[k] for k in todo]})
            todo = []


def _episode(plan: Plan, index: int) -> EpisodeData:
    archive = plan.archive
    try:
        with open_npz(archive.files[index]) as npz:
            found = {key: npz.array(key, most=MAX_EPISODE) for key in npz.members}
    except (CorruptArchive, UnknownLayout) as e:
        if archive.skip_bad and len(plan.facts.get("left_out", ())) < RECORDED:
            raise Replan(_without(plan, index, e.message)) from e
        e.hint = "--skip-bad leaves it out"
        raise
    columns = {_name(key): values for key, values in found.items() if key not in NPZ_MARKS}
    terminal = _terminal(found)
    end = _ending(last=bool(found.get("is_last", np.zeros(1))[-1]), terminal=bool(terminal[-1]))
    notes = _remarks(columns, terminal, archive.name_of(index))
    return _make_episode(columns, end, terminal, index, 0, notes)


def _terminal(found: Mapping[str, Array]) -> Array:
    if "is_terminal" in found:
        return np.not_equal(found["is_terminal"].reshape(-1), 0)
    if "discount" in found:
        return np.equal(found["discount"].reshape(-1), 0)
    return np.zeros(len(found["image"]), bool)


def _without(before: Plan, index: int, why: str) -> Plan:
    archive = before.archive
    names = {archive.name_of(i): i for i in range(len(archive.files))}
    known = {names[name]: reason for name, reason in before.facts.get("left_out", {}).items()}
    return _plan_npz(archive, {**known, index: why})


# -- 84 px: shards


@dataclass(frozen=True, slots=True)
class _Shard:
    """One file: its rows, their kinds by field, and their step types (first, mid and last)."""

    rows: int = 0
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    step_type: Array = field(default_factory=lambda: np.zeros(0))
    over: Array = field(default_factory=lambda: np.zeros(0, bool))  # whether the environment ended at a row
    wrong: str | None = None


@dataclass(frozen=True, slots=True)
class _ShardEpisode:
    """Rows [start, stop) of all shards end to end; ``whole`` says that it begins with a first row."""

    start: int
    stop: int
    end: int
    whole: bool


def _recognise_shard(paths: Sequence[Path]) -> str | None:
    """Describe V-D4RL's shards in one line; None for other files."""
    with open_file(paths[0]) as f:
        found = datasets(f)
        if not {*SHARD_NEEDED} <= set(found) or len(found["observation"].shape) != 4:
            return None  # other logs of dm_env hold no frames, and their actions stand in other rows
        count = found["observation"].shape[0]
    files = f"{len(paths)} shards, the first with " if len(paths) > 1 else ""
    return f"V-D4RL layout: {files}{count:,} rows"


def _plan_shard(archive: Archive) -> Plan:
    """Find the fields, parts and episodes, by the step types of all shards."""
    seen = [_look_shard(path) for path in archive.files]
    usual = next((s.kinds for s in seen if s.wrong is None), {})
    bad = {i: why for i, s in enumerate(seen) if (why := s.wrong or _unlike_shard(s.kinds, usual))}
    notes = _leave_out(archive, bad)
    good = [i for i in range(len(seen)) if i not in bad]
    gaps = _gaps(archive, good)
    if gaps:
        text = "numbers are missing among the shards; episodes that ran into the gap are cut there"
        notes.append(Note("missing-shards", text, len(gaps), archive.name_of(gaps[0])))
    breaks = {*gaps, *(i for a, i in pairwise(good) if i != a + 1)}
    offsets = np.concatenate([[0], np.cumsum([0 if i in bad else s.rows for i, s in enumerate(seen)])])
    episodes = list(_episodes([seen[i] for i in good], {int(offsets[i]) for i in breaks}))
    notes += _remarks_shard(episodes)
    fields = _schema(usual)
    width = sum(f.row_bytes for f in fields)
    facts: dict[str, Any] = {"kind": "shards", "rows": "a row holds the action and reward that led to it"}
    facts["shards"] = {archive.name_of(i): s.rows for i, s in enumerate(seen) if i not in bad}
    left = {"left_out": _left_out(archive, bad)} if bad else {}
    return Plan(
        reader="vd4rl",
        archive=archive,
        schema=fields,
        parts=tuple(_parts_shard([e for e in episodes if e.stop - e.start > 1], offsets, width)),
        episodes_by="flags",
        facts=facts | left,
        notes=tuple(notes),
    )


def _read_shard(plan: Plan, part: Part) -> Iterator[Chunk]:
    """Read the episodes of one part, and join those that were cut between shards."""
    with ExitStack() as stack:
        readers: dict[int, RowReader] = {}
        for index in sorted({piece[0] for e in part.args["episodes"] for piece in e["pieces"]}):
            path = plan.archive.files[index]
            found = datasets(stack.enter_context(open_file(path, check=False)))
            readers[index] = stack.enter_context(RowReader(path, _columns(found)))
        yield from chunks(plan.schema, (_read(plan.archive, readers, e) for e in part.args["episodes"]))


def _read(archive: Archive, readers: Mapping[int, RowReader], e: Mapping[str, Any]) -> EpisodeData:
    read = [readers[index].read(a, b) for index, a, b in e["pieces"]]
    columns = {name: np.concatenate([r[name] for r in read]) if len(read) > 1 else read[0][name] for name in read[0]}
    end = int(e["end"])
    terminal = np.zeros(len(columns["action"]), bool)
    terminal[-1] = end == TERMINATED
    index, row, _ = e["pieces"][0]
    odd = _remarks(columns, terminal, f"{archive.name_of(index)}, row {row}") if e["whole"] else ()
    return _make_episode(columns, end, terminal, index, row, odd)


def _look_shard(path: Path) -> _Shard:
    try:
        with open_file(path) as f:
            return _layout_shard(path, f)
    except (CorruptArchive, UnknownLayout) as e:
        return _Shard(wrong=e.message)


def _layout_shard(path: Path, f: h5py.File) -> _Shard:
    found = datasets(f)
    missing = [key for key in SHARD_NEEDED if key not in found]
    if missing:
        return _Shard(wrong=f"has no {' and no '.join(missing)}; it holds {keys_found(found)}")
    counts = {key: d.shape[0] if d.shape else None for key, d in found.items()}
    if len(set(counts.values())) > 1:
        return _Shard(wrong=f"is ragged: {', '.join(f'{key} has {n} rows' for key, n in counts.items())}")
    kinds = {name: _kind(name, d) for name, d in _columns(found).items()}
    step_type = np.asarray(found["step_type"]).reshape(-1)
    if not np.isin(step_type, (FIRST, MID, LAST)).all():
        return _Shard(wrong="has step types other than 0 (first), 1 (mid) and 2 (last)")
    over = np.zeros(len(step_type), bool)
    if "discount" in found:
        over = np.asarray(found["discount"]).reshape(-1) == 0
    return _Shard(len(step_type), kinds, step_type, over)


def _columns(found: Mapping[str, h5py.Dataset]) -> dict[str, h5py.Dataset]:
    return {SHARD_NAMES.get(key) or STATE + key: d for key, d in found.items() if key != "step_type"}


def _kind(name: str, d: h5py.Dataset) -> Kind:
    f = row_field(name, d, scalar=name.startswith("next/"))
    return f.dtype, f.shape


def _unlike_shard(kinds: Mapping[str, Kind], usual: Mapping[str, Kind]) -> str | None:
    if kinds == usual:
        return None
    a, b = ([Field(n, *k) for n, k in x.items()] for x in (kinds, usual))
    return f"has other columns than the first: {'; '.join(differences(a, b))}"


def _gaps(archive: Archive, good: Sequence[int]) -> list[int]:
    """Find the shards that do not follow the one before by number, if all have numbers."""
    found = [NUMBER.search(archive.files[i].stem) for i in good]
    numbers = [int(m[1]) for m in found if m]
    if len(numbers) < len(good):
        return []
    return [i for i, (a, b) in zip(good[1:], pairwise(numbers), strict=True) if b != a + 1]


def _episodes(shards: Sequence[_Shard], breaks: set[int]) -> Iterator[_ShardEpisode]:
    """Find the episodes in the rows of all shards, end to end; none runs across a break."""
    if not shards:
        return
    kind = np.concatenate([s.step_type for s in shards])
    over = np.concatenate([s.over for s in shards])
    begins = kind == FIRST
    begins[1:] |= kind[:-1] == LAST
    begins[[0, *breaks] if len(kind) else []] = True
    starts: IntArray = np.append(np.flatnonzero(begins), len(kind))
    for a, b in pairwise(starts.tolist()):
        ends = kind[b - 1] == LAST
        yield _ShardEpisode(a, b, _ending(last=ends, terminal=bool(ends and over[b - 1])), bool(kind[a] == FIRST))


def _remarks_shard(episodes: Sequence[_ShardEpisode]) -> Iterator[Note]:
    alone = [e for e in episodes if e.stop - e.start < 2]
    if alone:
        yield Note("empty-episodes", "episodes of one row have no step, and are left out", len(alone))
    odd = [e for e in episodes if not e.whole]
    if odd:
        text = "episodes begin in the middle: their first rows are in no shard"
        yield Note("fragments", text, len(odd), f"row {odd[0].start:,}")
    if sum(e.end not in (TERMINATED, TRUNCATED) for e in episodes):
        cut = [e for e in episodes if e.end not in (TERMINATED, TRUNCATED)]
        yield Note("cut", "episodes have no last row, and are cut", len(cut), f"row {cut[0].start:,}")


def _parts_shard(episodes: Sequence[_ShardEpisode], offsets: IntArray, width: int) -> Iterator[Part]:
    todo: list[_ShardEpisode] = []
    for k, e in enumerate(episodes):
        todo.append(e)
        count = todo[-1].stop - todo[0].start
        if k == len(episodes) - 1 or count * width >= PART_BYTES:
            described = [{"pieces": _pieces(x, offsets), "end": x.end, "whole": x.whole} for x in todo]
            yield Part(sum(x.stop - x.start for x in todo), {"episodes": described})
            todo = []


def _pieces(e: _ShardEpisode, offsets: IntArray) -> list[list[int]]:
    """Divide the rows of an episode by file: the file, the first row in it, the row after the last."""
    first = int(np.searchsorted(offsets, e.start, side="right")) - 1
    found, at = [], e.start
    while at < e.stop:
        stop = min(e.stop, int(offsets[first + 1]))
        if stop > at:
            found.append([first, at - int(offsets[first]), stop - int(offsets[first])])
        at, first = stop, first + 1
    return found


# -- both


def _schema(kinds: Mapping[str, Kind]) -> tuple[Field, ...]:
    """Make the fields, sorted by name; ``kinds`` are the kinds of the archive's per-row columns, by field."""
    fields = [Field(flag, "bool", (), "next") for flag in FLAGS]
    for name, (dtype, shape) in kinds.items():
        if name.startswith("next/"):
            fields.append(Field(name, dtype, (), "next"))
        else:
            fields.append(Field(name, dtype, shape, "root" if name == "action" else "both"))
    return tuple(sorted(fields, key=lambda f: f.name))


def _make_episode(
    columns: Mapping[str, Array], end: int, terminal: Array, source: int, row: int, notes: Iterable[Note]
) -> EpisodeData:
    """Make an episode of T+1 rows of the archive; ``terminal`` [T+1] marks rows at which the environment ended."""
    length = len(terminal) - 1
    found: dict[str, Column] = {}
    for name, rows in columns.items():
        late = name == "action" or name.startswith("next/")
        found[name] = (rows.reshape(len(rows)) if name.startswith("next/") else rows)[1:] if late else rows
    found[FLAGS[0]] = terminal[1:].astype(bool)
    found[FLAGS[1]] = np.arange(length) == (length - 1 if end != TERMINATED else -1)
    return EpisodeData(found, length, end, source, row, notes=tuple(notes))


def _ending(*, last: bool, terminal: bool) -> int:
    """Return how an episode ends, by the flags of its last row."""
    return TERMINATED if terminal else TRUNCATED if last else CUT


def _remarks(columns: Mapping[str, Array], terminal: Array, where: str) -> Iterator[Note]:
    """Make the notes about one episode."""
    if np.any(columns["action"][0]) or np.any(columns.get(REWARD, np.zeros(1))[0]):
        yield Note(
            "first-action", "first rows have an action or a reward of the step before them; it is left out", 1, where
        )
    if inside := int(np.count_nonzero(terminal[:-1])):
        yield Note("terminated-inside", "steps are terminated inside an episode", inside, where)


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


def _left_out(archive: Archive, bad: Mapping[int, str]) -> dict[str, str]:
    """Return the damaged files with their faults, for the manifest."""
    return {archive.name_of(i): why for i, why in [*bad.items()][:RECORDED]}
