"""Members of a tar as episodes, one at a time; their frames are inflated when their rows come."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from rlds_cli.archives import Plan
from rlds_cli.archives.gen_dgrl import content
from rlds_cli.archives.npz import NpzFile, NpzRows, open_npz
from rlds_cli.archives.pieces import Slices, Whole
from rlds_cli.archives.tar import Member, members
from rlds_cli.archives.unpacking import open_unpacked
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ted import CUT, FLAGS, TERMINATED, Array, BoolArray, Field, Note

# What the recorder writes behind the time and the number: length, level, return.
NAMED = re.compile(r"_(?P<length>\d+)_(?P<level>-?\d+)_(?P<sum>-?\d+(\.\d+)?)\.np[yz]$")
MAX_COLUMN = 64 << 20
SHOWN = 20  # names in a note
_BLOCK = 256


class Frames(Slices):
    """The first ``count`` observations of a spooled episode, read forward; its file goes with the last reference."""

    def __init__(self, stack: ExitStack, rows: NpzRows, count: int, field: Field) -> None:
        self._rows, self._count, self._field = rows, count, field
        weakref.finalize(self, stack.close)

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Of all rows as they are stored."""
        return self._count * self._field.row_bytes

    def cut(self, start: int, stop: int) -> Array:
        """Rows [start, stop)."""
        # To the last row of the archive, although it may not count: the checksum stands behind it.
        values = self._rows.read(start, stop + (stop == self._count))["observations"][: stop - start]
        return content.whole(values) if self._field.dtype == "uint8" else values


def episodes(plan: Plan, index: int, notes: list[Note]) -> Iterator[Whole]:
    """The episodes of file number ``index``; ``notes`` takes what is about none that is given."""
    path = plan.archive.files[index]
    bad: dict[str, str] = {}
    with open_unpacked(path) as stream:
        for member in members(stream):
            if not content.is_episode(member.name):
                notes.append(Note("other-files", "members that are no episodes were not read", 1, member.name))
                continue
            head = member.read(len(content.NPY))
            try:
                content.refuse_pickle(path, member, head)
                found = _episode(plan, index, member, head)
            except (CorruptArchive, UnknownLayout) as e:
                if member.left:  # the tar itself breaks off
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


def _episode(plan: Plan, index: int, member: Member, head: bytes) -> Whole | None:
    path = Path(f"{plan.archive.name_of(index)}:{member.name}")
    with ExitStack() as stack:
        npz = stack.enter_context(open_npz(path, stack.enter_context(content.spool(member, head))))
        steps = content.length(npz)
        if steps == 0:
            return None
        _check_fields(plan, npz)
        if plan.archive.skip_bad:
            _read_through(npz)
        columns = {key: npz.array(key, most=MAX_COLUMN) for key in npz.members if key != "observations"}
        return _whole(plan, index, member.name, columns, npz, stack.pop_all())


def _whole(plan: Plan, index: int, name: str, columns: dict[str, Array], npz: NpzFile, stack: ExitStack) -> Whole:
    fields = {f.name: f for f in plan.schema}
    terminated: BoolArray = columns["dones"].reshape(-1) != 0
    steps, done = len(terminated), bool(terminated[-1])
    # With a done the environment has begun anew: the frame after it is of the next episode.
    count = steps if done else steps + 1
    named: dict[str, Array] = {FLAGS[0]: terminated, FLAGS[1]: np.arange(steps) == (-1 if done else steps - 1)}
    for key, values in columns.items():
        f = fields[content.field_of(key)]
        if key != "dones":
            rows = values.reshape(len(values), *f.shape)
            named[f.name] = rows[:count] if f.placement == "both" else rows
    frames = Frames(stack, npz.rows(["observations"]), count, fields["observation"])
    return Whole(
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
    found = content.kinds(npz)
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
    """Find damage now, while the episode can be left out."""
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
        yield Note("return-in-name", "names of episodes say another return than their rewards sum to", 1, name)
    if inside := int(np.count_nonzero(terminated[:-1])):
        yield Note("terminated-inside", "steps are terminated and their episode goes on", inside, name)
