"""Procgen episodes of the generalisation benchmark: a tar.xz of one npz per episode, streamed once.

::

    <time>_<number>_<length>_<level>_<return>.npz
        observations   [T+1, 3, 64, 64] float32, whole numbers 0 to 255   -> observation      both, uint8
        actions        [T, 1] int64                                       -> action           root
        rewards        [T, 1] float32                                     -> next/reward
        dones          [T]                                                -> next/terminated; a time limit is one, too

Environments reset themselves: the frame after a done is the first one of the next episode, in another level. It is no
final observation, and is left out. Members are read one at a time, and their frames inflated when their rows come.
"""

from __future__ import annotations

import re
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np

from rlds_cli.archives import Archive, ArchivedStep, ArchivedValue, Part, Plan, Replan, every_file
from rlds_cli.archives.looking import looked_up
from rlds_cli.errors import CorruptArchive, RldsError, UnknownLayout, UnsafeArchive
from rlds_cli.formats import npz as npz_files
from rlds_cli.formats.compressed import ArchiveMember, is_tar, members, open_unpacked
from rlds_cli.formats.npz import NpzFile, NpzRows, open_npz, parse_header
from rlds_cli.formats.npz import ZipMember as Column
from rlds_cli.ted import (
    CUT,
    FLAGS,
    REWARD,
    TERMINATED,
    Array,
    BoolArray,
    Chunk,
    EpisodeData,
    Field,
    LazyColumn,
    Note,
    Placement,
    chunks,
    merge_notes,
)

VERSION = 1
choose = every_file
NPZ, NPY = npz_files.MAGIC, npz_files.NPY_MAGIC
NAMES = {"observations": "observation", "actions": "action", "rewards": REWARD, "dones": FLAGS[0]}
SPOOL_BYTES = 24 << 20  # of one member in memory; what is larger lies in a temporary file meanwhile
SCAN_ROWS = 256
PROTOCOLS = tuple(bytes((0x80, n)) for n in range(2, 6))
# What the recorder writes behind the time and the number: length, level, return.
NAMED = re.compile(r"_(?P<length>\d+)_(?P<level>-?\d+)_(?P<sum>-?\d+(\.\d+)?)\.np[yz]$")
MAX_COLUMN = 64 << 20
SHOWN = 20  # names in a note
_BLOCK = 256


def recognise(paths: Sequence[Path]) -> str | None:
    """Describe a tar of Procgen episodes in one line; None for other files."""
    try:
        for path in paths:
            with open_unpacked(path) as stream:
                if not is_tar(stream):
                    return None
        if not paths:
            return None
        with open_unpacked(paths[0]) as stream:
            first = next((m for m in members(stream) if is_episode(m.name)), None)
            if first is None:
                return None
            head = first.read(len(NPY))
            if is_pickle(head):
                return f"episodes in a tar, pickled: {first.name}"
            return recognised(first, head)
    except RldsError:
        return None


def plan(archive: Archive) -> Plan:
    """Find the fields by the first episode of every file; a file is a part of an unknown number of rows.

    Raises
    ------
    UnknownLayout
        No episodes, or options that do not apply.
    UnsafeArchive
        Pickled episodes; members that are links or lie elsewhere.
    CorruptArchive
        Files that do not hold the same fields.
    """
    return _plan(archive, exact=False)


def _plan(archive: Archive, *, exact: bool) -> Plan:
    """Make the plan; ``exact`` keeps the observations' dtype, for values other than whole numbers 0 to 255."""
    if archive.fields or archive.episodes_by not in (None, "file"):
        raise UnknownLayout("Procgen's names and ends are fixed; --map and --episodes-by do not apply.")
    found = [layout(path, exact=exact, skip_bad=archive.skip_bad) for path in archive.files]
    for path, other in zip(archive.files, found, strict=True):
        if other.schema != found[0].schema:
            raise UnknownLayout(
                f"{path.name} does not hold the fields of {archive.files[0].name}: {other.schema}; {found[0].schema}.",
                hint="import them one by one, each with its own name",
            )
    facts = {"observations": found[0].stored, "kept": found[0].kept}
    return Plan(
        reader="gen_dgrl",
        archive=archive,
        schema=found[0].schema,
        parts=tuple(Part(None, {"file": i, "exact": exact}) for i in range(len(archive.files))),
        episodes_by="file",
        facts=facts,
    )


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """Read the episodes of one file, in the order of the tar.

    Raises
    ------
    CorruptArchive
        The file is damaged or truncated, or the columns of an episode have different lengths. With ``skip_bad`` such an
        episode is left out.
    UnsafeArchive
        Members that are links, lie elsewhere, are pickled or of impossible size.
    Replan
        Observations turn out to be other than whole numbers 0 to 255: they are all kept as they are.
    """
    notes: list[Note] = []
    before: Chunk | None = None  # held back, to carry what is known at the end only
    try:
        for chunk in chunks(plan.schema, episodes(plan, int(part.args["file"]), notes)):
            if before is not None:
                yield before
            before = chunk
    except NotWhole as e:
        raise Replan(_plan(plan.archive, exact=True)) from e
    if before is not None:
        before.notes = (*before.notes, *merge_notes(notes))
        yield before


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Return nothing: every value is per row."""
    return iter(())


class NotWhole(Exception):
    """Observations are no whole numbers from 0 to 255."""


@dataclass(frozen=True, slots=True)
class ProcgenLayout:
    """The fields of a file; observations have the dtype ``stored`` in the file and ``kept`` in the dataset."""

    schema: tuple[Field, ...]
    stored: str
    kept: str


def is_episode(name: str) -> bool:
    """Tell by its name whether a member is an episode; files of a desktop (``._a.npz``) are not."""
    base = name.rpartition("/")[2]
    return base.endswith((".npz", ".npy")) and not base.startswith(".")


def is_pickle(head: bytes) -> bool:
    """Tell whether bytes begin as a pickle does. An array of objects is a pickle, too, by its header only."""
    return head.startswith(PROTOCOLS)


def recognised(member: ArchiveMember, head: bytes) -> str | None:
    """Describe the first episode in one line; None if the member is no episode."""
    if not head.startswith(NPZ):
        return f"episodes in a tar, pickled: {member.name}" if head.startswith(NPY) else None
    with spooled(member, head) as file, open_npz(Path(member.name), file) as npz:
        return f"Procgen layout: a tar of episodes, the first {member.name}" if set(NAMES) <= set(npz.members) else None


@contextmanager
def spooled(member: ArchiveMember, head: bytes = b"") -> Iterator[IO[bytes]]:
    """Copy the content of a member to a file that can seek."""
    with spool(member, head) as file:
        yield file


def spool(member: ArchiveMember, head: bytes = b"") -> IO[bytes]:
    """Copy the content of a member to a file that the caller closes."""
    file = tempfile.SpooledTemporaryFile(SPOOL_BYTES, prefix="rlds-")  # noqa: SIM115  (lives as long as its rows)
    try:
        file.write(head)
        while data := member.read():
            file.write(data)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def refuse_pickle(archive: Path, member: ArchiveMember, head: bytes) -> None:
    """Raise the error for a member that is no npz file.

    Raises
    ------
    UnsafeArchive
        The member is a pickle, or an array of objects, which is a pickle, too.
    UnknownLayout
        Anything else.
    """
    if head.startswith(NPZ):
        return
    pickled = is_pickle(head)
    if head.startswith(NPY):
        with spooled(member, head) as file:
            try:
                parse_header(member.name, file, archive.name)
            except UnsafeArchive:
                pickled = True
    if pickled:
        raise UnsafeArchive(
            f"{archive.name}: {member.name} is a pickle, and unpickling can run any code. It is not read.",
            hint="convert it in a sandbox, then import the result: docs/gen_dgrl.md has the script",
        )
    raise UnknownLayout(f"{archive.name}: {member.name} is no npz of an episode (it begins with {head!r}).")


def layout(path: Path, *, exact: bool, skip_bad: bool = False) -> ProcgenLayout:
    """Find the fields of a file, by its first episode; ``exact`` keeps the dtype of observations.

    Raises
    ------
    UnknownLayout
        The file holds no episodes.
    """
    with open_unpacked(path) as stream:
        for member in members(stream):
            if not is_episode(member.name):
                continue
            head = member.read(len(NPY))
            try:
                refuse_pickle(path, member, head)
                with spooled(member, head) as file, open_npz(Path(f"{path.name}:{member.name}"), file) as npz:
                    length(npz)
                    return _layout(npz, exact)
            except (CorruptArchive, UnknownLayout):
                if not skip_bad:
                    raise
    raise UnknownLayout(f"{path.name} holds no episodes (.npz with {', '.join(NAMES)}).")


def field_of(key: str) -> str:
    """Return the field of a column of an episode."""
    return NAMES.get(key) or f"info/{key}"


def length(npz: NpzFile) -> int:
    """Count the steps of an episode.

    Raises
    ------
    UnknownLayout
        Columns that an episode has are not there.
    CorruptArchive
        They do not have T and T+1 rows.
    """
    missing = [key for key in NAMES if key not in npz.members]
    if missing:
        raise UnknownLayout(f"{npz.path} has no {' and no '.join(missing)}; it holds {', '.join(npz.members)}.")
    counts = {key: m.shape[0] if m.shape else -1 for key, m in npz.members.items()}
    steps = counts["actions"]
    allowed = {key: (steps,) if key in NAMES else (steps, steps + 1) for key in counts} | {"observations": (steps + 1,)}
    if steps < 0 or any(n not in allowed[key] for key, n in counts.items()):
        raise CorruptArchive(
            f"{npz.path} is ragged: {', '.join(f'{key} {n}' for key, n in counts.items())} rows; an episode has one "
            "observation more than it has steps."
        )
    return steps


def kinds(npz: NpzFile) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return dtype and row shape of each field; the dtypes of observations and dones are free, and empty."""
    found = {}
    for key, m in npz.members.items():
        scalar = key in ("rewards", "dones") and m.shape[1:] == (1,)
        dtype = "" if key in ("observations", "dones") else _dtype(m)
        found[field_of(key)] = (dtype, () if scalar else m.shape[1:])
    return found


def _dtype(m: Column) -> str:
    return m.dtype.newbyteorder("=").name


def _layout(npz: NpzFile, exact: bool) -> ProcgenLayout:
    steps = length(npz)
    stored = _dtype(npz.members["observations"])
    kept = stored if exact or not _is_whole(npz) else "uint8"
    longer = {field_of(key) for key, m in npz.members.items() if m.shape[0] == steps + 1}
    schema = [Field(flag, "bool", (), "next") for flag in FLAGS]
    for name, (dtype, shape) in kinds(npz).items():
        if name != FLAGS[0]:
            placement: Placement = "next" if name == REWARD else "both" if name in longer else "root"
            schema.append(Field(name, dtype or kept, shape, placement))
    return ProcgenLayout(tuple(sorted(schema, key=lambda f: f.name)), stored, kept)


def _is_whole(npz: NpzFile) -> bool:
    count = npz.members["observations"].shape[0]
    with npz.rows(["observations"]) as rows:
        try:
            for a in range(0, count, SCAN_ROWS):
                whole(rows.read(a, a + SCAN_ROWS)["observations"])
        except NotWhole:
            return False
    return True


def whole(values: Array) -> Array:
    """Convert values to uint8 if that loses nothing.

    Raises
    ------
    NotWhole
        It would.
    """
    if values.dtype == np.uint8:
        return values
    if values.dtype.kind not in "biuf":
        raise NotWhole
    with np.errstate(invalid="ignore"):
        small = values.astype(np.uint8)
    if not np.array_equal(small, values):
        raise NotWhole
    return small


class SpooledFrames(LazyColumn):
    """The first ``count`` observations of a spooled episode, read forward; the file closes with its last reference."""

    def __init__(self, stack: ExitStack, rows: NpzRows, count: int, field: Field) -> None:
        self._rows, self._count, self._field = rows, count, field
        weakref.finalize(self, stack.close)

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of all rows as they are stored."""
        return self._count * self._field.row_bytes

    def cut(self, start: int, stop: int) -> Array:
        """Read rows [start, stop)."""
        # To the last row of the archive, although it may not count: the checksum stands behind it.
        values = self._rows.read(start, stop + (stop == self._count))["observations"][: stop - start]
        return whole(values) if self._field.dtype == "uint8" else values


def episodes(plan: Plan, index: int, notes: list[Note]) -> Iterator[EpisodeData]:
    """Read the episodes of file number ``index``; ``notes`` receives the notes about episodes that are left out."""
    path = plan.archive.files[index]
    bad: dict[str, str] = {}
    with open_unpacked(path) as stream:
        for member in members(stream):
            if not is_episode(member.name):
                notes.append(Note("other-files", "members that are not episodes were not read", 1, member.name))
                continue
            head = member.read(len(NPY))
            try:
                refuse_pickle(path, member, head)
                found = _episode(plan, index, member, head)
            except (CorruptArchive, UnknownLayout) as e:
                if member.left:  # the tar itself is truncated
                    raise
                if not plan.archive.skip_bad:
                    e.hint = "--skip-bad leaves such episodes out"
                    raise
                bad[member.name] = e.message
                continue
            if found is None:
                notes.append(Note("empty-episodes", "episodes without steps are left out", 1, member.name))
            else:
                yield found
    if bad:
        more = f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
        text = f"episodes were left out. {'; '.join([*bad.values()][:SHOWN])}{more}"
        notes.append(Note("bad-files", text, len(bad), next(iter(bad))))


def _episode(plan: Plan, index: int, member: ArchiveMember, head: bytes) -> EpisodeData | None:
    path = Path(f"{plan.archive.name_of(index)}:{member.name}")
    with ExitStack() as stack:
        npz = stack.enter_context(open_npz(path, stack.enter_context(spool(member, head))))
        steps = length(npz)
        if steps == 0:
            return None
        _check_fields(plan, npz)
        if plan.archive.skip_bad:
            _read_through(npz)
        columns = {key: npz.array(key, most=MAX_COLUMN) for key in npz.members if key != "observations"}
        return _whole(plan, index, member.name, columns, npz, stack.pop_all())


def _whole(plan: Plan, index: int, name: str, columns: dict[str, Array], npz: NpzFile, stack: ExitStack) -> EpisodeData:
    fields = {f.name: f for f in plan.schema}
    terminated: BoolArray = columns["dones"].reshape(-1) != 0
    steps, done = len(terminated), bool(terminated[-1])
    # With a done the environment has begun anew: the frame after it is of the next episode.
    count = steps if done else steps + 1
    named: dict[str, Array] = {FLAGS[0]: terminated, FLAGS[1]: np.arange(steps) == (-1 if done else steps - 1)}
    for key, values in columns.items():
        f = fields[field_of(key)]
        if key != "dones":
            rows = values.reshape(len(values), *f.shape)
            named[f.name] = rows[:count] if f.placement == "both" else rows
    frames = SpooledFrames(stack, npz.rows(["observations"]), count, fields["observation"])
    return EpisodeData(
        {**named, "observation": frames},
        steps,
        TERMINATED if done else CUT,
        observed=not done,
        source=index,
        group=name,
        seed=_level(name),
        notes=tuple(_remarks(name, steps, columns["rewards"], terminated)),
    )


def _check_fields(plan: Plan, npz: NpzFile) -> None:
    free = ("observation", FLAGS[0])
    wanted = {f.name: ("" if f.name in free else f.dtype, f.shape) for f in plan.schema if f.name != FLAGS[1]}
    found = kinds(npz)
    if found != wanted:
        odd = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
        said = "; ".join(f"{name} is {_said(found.get(name))}, not {_said(wanted.get(name))}" for name in odd)
        raise UnknownLayout(f"{npz.path} does not hold the fields of the first episode: {said}.")
    stored = npz.members["observations"].dtype.newbyteorder("=").name
    kept = next(f.dtype for f in plan.schema if f.name == "observation")
    if kept not in ("uint8", stored):
        raise UnknownLayout(f"{npz.path} has observations of {stored}; the first episode has {kept}.")


def _said(kind: tuple[str, tuple[int, ...]] | None) -> str:
    return "absent" if kind is None else f"{kind[0]} {list(kind[1])}".strip()


def _read_through(npz: NpzFile) -> None:
    """Read an episode to its end, to find damage while the episode can still be left out."""
    with npz.rows(["observations"]) as rows:
        for a in range(0, npz.members["observations"].shape[0], _BLOCK):
            rows.read(a, a + _BLOCK)


def _level(name: str) -> int | None:
    m = NAMED.search(name)
    return int(m["level"]) if m and int(m["level"]) >= 0 else None


def _remarks(name: str, steps: int, rewards: Array, terminated: BoolArray) -> Iterator[Note]:
    m = NAMED.search(name)
    if m and int(m["length"]) != steps:
        text = "names of episodes say another number of steps than they have; the episodes count"
        yield Note("length-in-name", text, 1, name)
    if m and abs(float(m["sum"]) - float(rewards.sum(dtype=np.float64))) > 0.0051:
        yield Note("return-in-name", "names of episodes contain another return than the sum of their rewards", 1, name)
    if inside := int(np.count_nonzero(terminated[:-1])):
        yield Note("terminated-inside", "steps are terminated inside an episode", inside, name)


def look_up(place: ArchivedStep) -> Iterator[ArchivedValue]:
    """Look up a step, and the frame after it unless that belongs to the next episode.

    The tar is read up to the episode.
    """
    episode = _arrays_of(place.file, place.group)
    steps = len(episode["actions"])
    over = place.is_last and bool(episode["dones"].reshape(-1)[-1])
    keys = {field_of(key): key for key in episode}
    seen = {key: values[place.step : place.step + 2] for key, values in episode.items()}
    both = () if over else {name for name, key in keys.items() if len(episode[key]) == steps + 1}
    yield from looked_up(keys, seen, (place.step, place.step + 1), both=both, above=f"{place.group}:")


@lru_cache(maxsize=1)  # steps are asked for in their order, several of one episode
def _arrays_of(file: Path, name: str) -> dict[str, Any]:
    with open_unpacked(file) as stream:
        for member in members(stream):
            if member.name == name:
                packed = b"".join(iter(member.read, b""))
                with np.load(BytesIO(packed), allow_pickle=False) as f:
                    return dict(f)
    raise CorruptArchive(f"{file.name} has no {name}.")
