"""64 px: one npz per episode, ``<time>-<uuid>-<rows>.npz``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlds_cli.archives import Archive, Part, Plan, Replan
from rlds_cli.archives.vd4rl import rows
from rlds_cli.archives.vd4rl.rows import DISCOUNT, STATE, Kind
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.formats.npz import NpzFile, is_npz, open_npz
from rlds_cli.ted import REWARD, Array, Chunk, EpisodeData, Note, chunks

NAMES = {"image": "observation", "action": "action", "reward": REWARD, "discount": DISCOUNT}
NEEDED = ("image", "action", "reward")
MARKS = ("is_first", "is_last", "is_terminal")
LENGTH = re.compile(r"-(\d+)$")
Shapes = tuple[tuple[str, tuple[int, ...]], ...]
MAX_EPISODE = 512 << 20  # bytes of one column of one file


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


def recognise(paths: Sequence[Path]) -> str | None:
    """Describe V-D4RL's npz files in one line; None for other files."""
    if not all(map(is_npz, paths)):
        return None
    with open_npz(paths[0]) as npz:
        there = set(npz.members)
    if not {*NEEDED} <= there or not there & {*MARKS, "discount"}:
        return None
    return f"V-D4RL layout: {len(paths):,} episodes, one npz each"


def plan(archive: Archive, damaged: Mapping[int, str] | None = None) -> Plan:
    """Find the fields and parts, by the headers and flags of all files; ``damaged`` are files with known faults."""
    seen = {i: _look(path) for i, path in enumerate(archive.files)}
    bad = {i: f.wrong for i, f in seen.items() if f.wrong} | dict(damaged or {})
    good = {i: f for i, f in seen.items() if i not in bad}
    if good:
        usual, _ = Counter(f.shapes for f in good.values()).most_common(1)[0]
        bad |= {i: _unlike(f.shapes, usual) for i, f in good.items() if f.shapes != usual}
    bad = dict(sorted(bad.items()))
    notes = rows.leave_out(archive, bad)
    good = {i: f for i, f in good.items() if i not in bad}
    notes += _names(archive, good)
    if short := [i for i, f in good.items() if f.rows < 2]:
        notes.append(Note("empty-episodes", "files without a step are left out", len(short), archive.name_of(short[0])))
    fields = rows.schema(_promoted([f.kinds for f in good.values()]))
    width = sum(f.row_bytes for f in fields)
    facts = {"kind": "npz", "rows": "a row holds the action and reward that led to it"}
    left = {"left_out": rows.left_out(archive, bad)} if bad else {}
    return Plan(
        reader="vd4rl",
        archive=archive,
        schema=fields,
        parts=tuple(_parts({i: f.rows for i, f in good.items() if f.rows > 1}, width)),
        episodes_by="file",
        facts=facts | left,
        notes=tuple(notes),
    )


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """Read the episodes of some files.

    Raises
    ------
    CorruptArchive
        A file is damaged.
    Replan
        A file is damaged, and damaged files are left out.
    """
    return chunks(plan.schema, (_episode(plan, int(i)) for i in part.args["files"]))


def _look(path: Path) -> _EpisodeFile:
    try:
        with open_npz(path) as npz:
            return _layout(npz)
    except (CorruptArchive, UnknownLayout) as e:
        return _EpisodeFile(0, {}, e.message)


def _layout(npz: NpzFile) -> _EpisodeFile:
    missing = [key for key in NEEDED if key not in npz.members]
    if missing:
        return _EpisodeFile(0, {}, f"has no {' and no '.join(missing)}; it holds {', '.join(sorted(npz.members))}")
    counts = {key: m.shape[0] if m.shape else None for key, m in npz.members.items()}
    if len(set(counts.values())) > 1:
        usual, _ = Counter(counts.values()).most_common(1)[0]
        odd = ", ".join(f"{key} {n}" for key, n in counts.items() if n != usual)
        return _EpisodeFile(0, {}, f"is ragged: {odd} rows, all others {usual}")
    count = npz.members["image"].shape[0]
    kinds = {_name(key): (m.dtype.name, m.shape[1:]) for key, m in npz.members.items() if key not in MARKS}
    wide = [key for key in ("reward", "discount", *MARKS) if key in npz.members and npz.members[key].size != count]
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
    return NAMES.get(key) or STATE + key


def _unlike(shapes: Shapes, usual: Shapes) -> str:
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


def _parts(counts: Mapping[int, int], width: int) -> Iterator[Part]:
    todo: list[int] = []
    last = next(reversed(counts), None)
    for i in counts:
        todo.append(i)
        if i == last or sum(counts[k] for k in todo) * width >= rows.PART_BYTES:
            yield Part(sum(counts[k] for k in todo), {"files": todo, "rows": [counts[k] for k in todo]})
            todo = []


def _episode(plan: Plan, index: int) -> EpisodeData:
    archive = plan.archive
    try:
        with open_npz(archive.files[index]) as npz:
            found = {key: npz.array(key, most=MAX_EPISODE) for key in npz.members}
    except (CorruptArchive, UnknownLayout) as e:
        if archive.skip_bad and len(plan.facts.get("left_out", ())) < rows.RECORDED:
            raise Replan(_without(plan, index, e.message)) from e
        e.hint = "--skip-bad leaves it out"
        raise
    columns = {_name(key): values for key, values in found.items() if key not in MARKS}
    terminal = _terminal(found)
    end = rows.ending(last=bool(found.get("is_last", np.zeros(1))[-1]), terminal=bool(terminal[-1]))
    notes = rows.remarks(columns, terminal, archive.name_of(index))
    return rows.episode(columns, end, terminal, index, 0, notes)


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
    return plan(archive, {**known, index: why})
