"""What a member of the tar is, by its first bytes, and the fields that an episode makes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from rlds_cli.archives import npz as npz_files
from rlds_cli.archives.npz import Member as Column
from rlds_cli.archives.npz import NpzFile, open_npz, parse_header
from rlds_cli.archives.tar import Member, members
from rlds_cli.archives.unpacking import open_unpacked
from rlds_cli.errors import CorruptArchive, UnknownLayout, UnsafeArchive
from rlds_cli.ted import FLAGS, REWARD, Array, Field, Placement

NPZ, NPY = npz_files.MAGIC, npz_files.NPY_MAGIC
NAMES = {"observations": "observation", "actions": "action", "rewards": REWARD, "dones": FLAGS[0]}
SPOOL_BYTES = 24 << 20  # of one member in memory; what is larger lies in a temporary file meanwhile
SCAN_ROWS = 256
PROTOCOLS = tuple(bytes((0x80, n)) for n in range(2, 6))


class NotWhole(Exception):
    """Observations that are no whole numbers 0 to 255."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The fields of a file; ``stored`` is the dtype of its observations, ``kept`` the one that they are given."""

    schema: tuple[Field, ...]
    stored: str
    kept: str


def is_episode(name: str) -> bool:
    """Whether a member is one, by its name; files of a desktop (``._a.npz``) are not."""
    base = name.rpartition("/")[2]
    return base.endswith((".npz", ".npy")) and not base.startswith(".")


def is_pickle(head: bytes) -> bool:
    """Whether bytes begin as a pickle does. An array of objects is one, too; only its header tells."""
    return head.startswith(PROTOCOLS)


def recognised(member: Member, head: bytes) -> str | None:
    """One line on the first episode, or None where it is none."""
    if not head.startswith(NPZ):
        return f"episodes in a tar, pickled: {member.name}" if head.startswith(NPY) else None
    with spooled(member, head) as file, open_npz(Path(member.name), file) as npz:
        return f"Procgen layout: a tar of episodes, the first {member.name}" if set(NAMES) <= set(npz.members) else None


@contextmanager
def spooled(member: Member, head: bytes = b"") -> Iterator[IO[bytes]]:
    """The content of a member as a file that can seek."""
    with spool(member, head) as file:
        yield file


def spool(member: Member, head: bytes = b"") -> IO[bytes]:
    """The same, closed by whoever asked."""
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


def refuse_pickle(archive: Path, member: Member, head: bytes) -> None:
    """Raise for what is no npz, saying why.

    Raises
    ------
    UnsafeArchive
        A pickle, or an array of objects, which is one.
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
            f"{archive.name}: {member.name} is a pickle, and unpickling runs whatever its writer put there. "
            "It is not read.",
            hint="convert it in a sandbox, then import the result: docs/gen_dgrl.md has the script",
        )
    raise UnknownLayout(f"{archive.name}: {member.name} is no npz of an episode (it begins with {head!r}).")


def layout(path: Path, *, exact: bool, skip_bad: bool = False) -> Layout:
    """The fields of a file, by its first episode; ``exact`` keeps the dtype of observations.

    Raises
    ------
    UnknownLayout
        It holds no episodes.
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
    """The field that a column of an episode makes."""
    return NAMES.get(key) or f"info/{key}"


def length(npz: NpzFile) -> int:
    """The steps of an episode.

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
    """Dtype and row shape of every column, by field; the dtypes of observations and dones are free, and empty."""
    found = {}
    for key, m in npz.members.items():
        scalar = key in ("rewards", "dones") and m.shape[1:] == (1,)
        dtype = "" if key in ("observations", "dones") else _dtype(m)
        found[field_of(key)] = (dtype, () if scalar else m.shape[1:])
    return found


def _dtype(m: Column) -> str:
    return m.dtype.newbyteorder("=").name


def _layout(npz: NpzFile, exact: bool) -> Layout:
    steps = length(npz)
    stored = _dtype(npz.members["observations"])
    kept = stored if exact or not _is_whole(npz) else "uint8"
    longer = {field_of(key) for key, m in npz.members.items() if m.shape[0] == steps + 1}
    schema = [Field(flag, "bool", (), "next") for flag in FLAGS]
    for name, (dtype, shape) in kinds(npz).items():
        if name != FLAGS[0]:
            placement: Placement = "next" if name == REWARD else "both" if name in longer else "root"
            schema.append(Field(name, dtype or kept, shape, placement))
    return Layout(tuple(sorted(schema, key=lambda f: f.name)), stored, kept)


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
    """Values as uint8, where that loses nothing.

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
