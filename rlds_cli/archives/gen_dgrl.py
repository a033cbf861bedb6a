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
from contextlib import ExitStack
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np

from rlds_cli.archives.account import BAD_FILES, EMPTY_EPISODES, EPISODES, Account, Ledger, used_as
from rlds_cli.archives.formats import inventory
from rlds_cli.archives.formats.compressed import ArchiveMember, is_tar, members, open_unpacked
from rlds_cli.archives.formats.npz import MAGIC, NPY_MAGIC, NpzFile, NpzRows, open_npz, parse_header
from rlds_cli.archives.looking import looked_up
from rlds_cli.archives.names import differences
from rlds_cli.archives.readers import Archive, ArchivedStep, ArchivedValue, Part, Plan, Replan, every_file
from rlds_cli.base.array_types import Array
from rlds_cli.errors import CorruptArchive, RldsError, UnknownLayout, UnsafeArchive
from rlds_cli.ted import (
    CUT,
    FLAGS,
    REWARD,
    TERMINATED,
    Chunk,
    EpisodeData,
    Field,
    LazyColumn,
    Note,
    Placement,
    chunks,
    lay_out,
)

VERSION = 1
choose = every_file
NAMES = {"observations": "observation", "actions": "action", "rewards": REWARD, "dones": FLAGS[0]}
SPOOL_BYTES = 24 << 20  # of one member in memory; what is larger lies in a temporary file meanwhile
SCAN_ROWS = 256
PROTOCOLS = tuple(bytes((0x80, n)) for n in range(2, 6))  # how a pickle begins
# What the recorder writes behind the time and the number: length, level, return.
NAMED = re.compile(r"_(?P<length>\d+)_(?P<level>-?\d+)_(?P<sum>-?\d+(\.\d+)?)\.np[yz]$")
MAX_COLUMN = 64 << 20
SHOWN = 20  # names in a note


def recognise(paths: Sequence[Path]) -> str | None:
    """Describe a tar of Procgen episodes in one line; None for other files."""
    try:
        for path in paths:
            with open_unpacked(path) as stream:
                if not is_tar(stream):
                    return None
        for path in paths[:1]:
            with open_unpacked(path) as stream:
                first = next((m for m in members(stream) if _is_episode(m.name)), None)
                return _recognised(first) if first else None
    except RldsError:
        pass
    return None


def _recognised(first: ArchiveMember) -> str | None:
    head = first.read(len(NPY_MAGIC))
    if head.startswith((*PROTOCOLS, NPY_MAGIC)):
        return f"episodes in a tar, pickled: {first.name}"
    if not head.startswith(MAGIC):
        return None
    with _spool(first, head) as file, open_npz(Path(first.name), file) as npz:
        known = set(NAMES) <= set(npz.members)
    return f"Procgen layout: a tar of episodes, the first {first.name}" if known else None


def plan(archive: Archive) -> Plan:
    """Find the fields by the first episode of every file; a file is a part of an unknown number of rows.

    Raises
    ------
    UnknownLayout
        No episodes, files that do not hold the same fields, or options that do not apply.
    UnsafeArchive
        Pickled episodes; members that are links or lie elsewhere.
    """
    return _plan(archive, exact=False)


def _plan(archive: Archive, *, exact: bool) -> Plan:
    """Make the plan; ``exact`` keeps the observations' dtype, for values other than whole numbers 0 to 255."""
    if archive.fields or archive.episodes_by not in (None, "file"):
        raise UnknownLayout("Procgen's names and ends are fixed; --map and --episodes-by do not apply.")
    found = [_layout(path, exact=exact, skip_bad=archive.skip_bad) for path in archive.files]
    for path, (schema, _) in zip(archive.files, found, strict=True):
        if schema != found[0][0]:
            raise UnknownLayout(
                f"{path.name} does not hold the fields of {archive.files[0].name}: "
                f"{'; '.join(differences(schema, found[0][0]))}.",
                hint="import them one by one, each with its own name",
            )
    schema, stored = found[0]
    return Plan(
        reader="gen_dgrl",
        archive=archive,
        schema=schema,
        parts=tuple(Part(None, {"file": i, "exact": exact}) for i in range(len(archive.files))),
        episodes_by="file",
        facts={"observations": stored, "kept": _kept(schema)},
        account=_account(archive, schema),
    )


def _account(archive: Archive, schema: Sequence[Field]) -> Account:
    """State the fate of the files, and of the arrays of each episode; a note names other members."""
    told, keys = Ledger(), {name: key for key, name in NAMES.items()}
    told.all_files(archive.files, archive.root, dict.fromkeys(archive.files, used_as(EPISODES)))
    for f in schema:
        if f.name != FLAGS[1]:
            told.each(inventory.ARRAY, keys.get(f.name) or f.name.removeprefix("info/"), used_as(f.name))
    return told.account()


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
    try:
        yield from chunks(plan.schema, _episodes(plan, int(part.args["file"]), notes))
    except _NotWhole as e:
        raise Replan(_plan(plan.archive, exact=True)) from e
    if notes:
        end = lay_out(plan.schema, [])
        end.notes = tuple(notes)
        yield end


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Return nothing: every value is per row."""
    return iter(())


def look_up(place: ArchivedStep) -> Iterator[ArchivedValue]:
    """Look up a step, and the frame after it unless that belongs to the next episode.

    The tar is read up to the episode.
    """
    episode = _arrays_of(place.file, place.group)
    steps = len(episode["actions"])
    over = place.is_last and bool(episode["dones"].reshape(-1)[-1])
    keys = {_field_of(key): key for key in episode}
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


# -- one member


def _is_episode(name: str) -> bool:
    """Tell by its name whether a member is an episode; files of a desktop (``._a.npz``) are not."""
    base = name.rpartition("/")[2]
    return base.endswith((".npz", ".npy")) and not base.startswith(".")


def _field_of(key: str) -> str:
    return NAMES.get(key) or f"info/{key}"


def _spool(member: ArchiveMember, head: bytes) -> IO[bytes]:
    """Copy the content of a member to a file that can seek, and that the caller closes."""
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


def _open(stack: ExitStack, path: Path, member: ArchiveMember) -> NpzFile:
    """Open a member as npz, until the stack is closed.

    Raises
    ------
    UnsafeArchive
        The member is a pickle, or an array of objects, which is a pickle, too.
    UnknownLayout
        Anything else that is not an npz.
    """
    head = member.read(len(NPY_MAGIC))
    if head.startswith(MAGIC):
        file = stack.enter_context(_spool(member, head))
        return stack.enter_context(open_npz(Path(f"{path.name}:{member.name}"), file))
    pickled = head.startswith(PROTOCOLS)
    if head.startswith(NPY_MAGIC):
        with _spool(member, head) as file:
            try:
                parse_header(member.name, file, path.name)
            except UnsafeArchive:
                pickled = True
    if pickled:
        raise UnsafeArchive(
            f"{path.name}: {member.name} is a pickle, and unpickling can run any code. It is not read.",
            hint="convert it in a sandbox, then import the result: docs/families/gen_dgrl.md has the script",
        )
    raise UnknownLayout(f"{path.name}: {member.name} is not an npz of an episode (it begins with {head!r}).")


def _described(npz: NpzFile, kept: str = "") -> tuple[int, tuple[Field, ...]]:
    """Count the steps of an episode, and describe its fields; observations are ``kept``, or as they are stored.

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
    schema = [Field(FLAGS[1], "bool", (), "next")]
    for key, m in npz.members.items():
        name = _field_of(key)
        shape = () if key in ("rewards", "dones") and m.shape[1:] == (1,) else m.shape[1:]
        dtype = "bool" if key == "dones" else (key == "observations" and kept) or m.dtype.newbyteorder("=").name
        both = counts[key] == steps + 1
        placement: Placement = "next" if name.startswith("next/") else "both" if both else "root"
        schema.append(Field(name, dtype, shape, placement))
    return steps, tuple(sorted(schema, key=lambda f: f.name))


def _kept(schema: Sequence[Field]) -> str:
    return next(f.dtype for f in schema if f.name == "observation")


def _layout(path: Path, *, exact: bool, skip_bad: bool) -> tuple[tuple[Field, ...], str]:
    """Find the fields of a file by its first episode, and the dtype of its observations.

    Raises
    ------
    UnknownLayout
        The file holds no episodes.
    """
    with open_unpacked(path) as stream:
        for member in filter(lambda m: _is_episode(m.name), members(stream)):
            try:
                with ExitStack() as stack:
                    npz = _open(stack, path, member)
                    _, schema = _described(npz)
                    stored = _kept(schema)
                    return (schema if exact or not _is_whole(npz) else _described(npz, "uint8")[1]), stored
            except (CorruptArchive, UnknownLayout):
                if not skip_bad:
                    raise
    raise UnknownLayout(f"{path.name} holds no episodes (.npz with {', '.join(NAMES)}).")


# -- observations


class _NotWhole(Exception):
    """Observations are not whole numbers from 0 to 255."""


def _whole(values: Array) -> Array:
    """Convert values to uint8; raises _NotWhole if that loses something."""
    if values.dtype == np.uint8:
        return values
    if values.dtype.kind not in "biuf":
        raise _NotWhole
    with np.errstate(invalid="ignore"):
        small = values.astype(np.uint8)
    if not np.array_equal(small, values):
        raise _NotWhole
    return small


def _blocks(npz: NpzFile) -> Iterator[Array]:
    """Read the observations of an episode to their end."""
    with npz.rows(["observations"]) as rows:
        for a in range(0, npz.members["observations"].shape[0], SCAN_ROWS):
            yield rows.read(a, a + SCAN_ROWS)["observations"]


def _is_whole(npz: NpzFile) -> bool:
    try:
        for values in _blocks(npz):
            _whole(values)
    except _NotWhole:
        return False
    return True


class _Frames(LazyColumn):
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
        return _whole(values) if self._field.dtype == "uint8" else values


# -- episodes


def _episodes(plan: Plan, index: int, notes: list[Note]) -> Iterator[EpisodeData]:
    """Read the episodes of file number ``index``; ``notes`` receives the notes about what is left out."""
    path = plan.archive.files[index]
    bad: dict[str, str] = {}
    with open_unpacked(path) as stream:
        for member in members(stream):
            if not _is_episode(member.name):
                notes.append(Note("other-files", "members that are not episodes were not read", 1, member.name))
                continue
            try:
                found = _episode(plan, index, member)
            except (CorruptArchive, UnknownLayout) as e:
                if member.left:  # the tar itself is truncated
                    raise
                if not plan.archive.skip_bad:
                    e.hint = "--skip-bad leaves such episodes out"
                    raise
                bad[member.name] = e.message
                continue
            if found is None:
                notes.append(Note(EMPTY_EPISODES, "episodes without steps are left out", 1, member.name))
            else:
                yield found
    if bad:
        more = f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
        text = f"episodes were left out. {'; '.join([*bad.values()][:SHOWN])}{more}"
        notes.append(Note(BAD_FILES, text, len(bad), next(iter(bad))))


def _episode(plan: Plan, index: int, member: ArchiveMember) -> EpisodeData | None:
    """Read one episode, but for its frames; None if it has no step."""
    fields = {f.name: f for f in plan.schema}
    with ExitStack() as stack:
        npz = _open(stack, plan.archive.files[index], member)
        steps, found = _described(npz, "uint8" if _kept(plan.schema) == "uint8" else "")
        if steps == 0:
            return None
        if found != plan.schema:
            said = "; ".join(differences(found, plan.schema))
            raise UnknownLayout(f"{npz.path} does not hold the fields of the first episode: {said}.")
        if plan.archive.skip_bad:  # to find damage while the episode can still be left out
            for _ in _blocks(npz):
                pass
        columns = {_field_of(k): npz.array(k, most=MAX_COLUMN) for k in npz.members if k != "observations"}
        over = columns[FLAGS[0]].reshape(-1) != 0
        done = bool(over[-1])
        # With a done the environment has begun anew: the frame after it is of the next episode.
        count = steps if done else steps + 1
        made: dict[str, Array | LazyColumn] = {}
        for name, values in columns.items():
            rows = values.reshape(len(values), *fields[name].shape)
            made[name] = rows[:count] if fields[name].placement == "both" else rows
        made |= {FLAGS[0]: over, FLAGS[1]: np.arange(steps) == (-1 if done else steps - 1)}
        frames = npz.rows(["observations"])
        made["observation"] = _Frames(stack.pop_all(), frames, count, fields["observation"])
    named = NAMED.search(member.name)
    level = int(named["level"]) if named else -1
    return EpisodeData(
        made,
        steps,
        TERMINATED if done else CUT,
        observed=not done,
        source=index,
        group=member.name,
        seed=level if level >= 0 else None,
        notes=tuple(_remarks(member.name, steps, float(columns[REWARD].sum(dtype=np.float64)), over)),
    )


def _remarks(name: str, steps: int, total: float, over: Array) -> Iterator[Note]:
    m = NAMED.search(name)
    if m and int(m["length"]) != steps:
        text = "names of episodes say another number of steps than they have; the episodes count"
        yield Note("length-in-name", text, 1, name)
    if m and abs(float(m["sum"]) - total) > 0.0051:
        yield Note("return-in-name", "names of episodes contain another return than the sum of their rewards", 1, name)
    if inside := int(np.count_nonzero(over[:-1])):
        yield Note("terminated-inside", "steps are terminated inside an episode", inside, name)
