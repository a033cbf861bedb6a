"""V-D4RL: frames of the DeepMind control suite, 64 px as one npz per episode, 84 px as HDF5 shards.

In both, a row holds an observation, and the action and reward that led to it::

    row            0     1     2     3              T = 3 steps, T+1 rows
    image          o0    o1    o2    o3             -> observation     both
    action         0     a0    a1    a2             -> action          root: of step t is row t+1's
    reward         0     r0    r1    r2             -> next/reward, next/discount, next/terminated: likewise
    step_type      0     1     1     2              shards only; in an npz is_first, is_last, is_terminal

``files`` reads files of one episode each, ``shards`` finds episodes in files that were cut anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from rlds_cli.archives import Archive, ArchivedStep, ArchivedValue, Part, Plan
from rlds_cli.archives.vd4rl import files, shards
from rlds_cli.archives.vd4rl.rows import DISCOUNT, STATE
from rlds_cli.errors import UnknownLayout
from rlds_cli.formats.hdf5 import attributes, is_hdf5, open_file
from rlds_cli.formats.npz import is_npz
from rlds_cli.subset import EVERYTHING, Portion
from rlds_cli.ted import FLAGS, REWARD, Array, Chunk

VERSION = 1
_FRAMES = ("image", "observation")
_NAMES = {"action": "action", "reward": REWARD, "discount": DISCOUNT, "is_terminal": FLAGS[0]}
_MARKS = ("is_first", "is_last", "step_type")


def recognise(paths: Sequence[Path]) -> str | None:
    """Describe V-D4RL's files in one line; None for other files."""
    kinds = [is_npz(p) for p in paths]
    small = [p for p, npz in zip(paths, kinds, strict=True) if npz]
    large = [p for p, npz in zip(paths, kinds, strict=True) if not npz]
    if not paths or not all(map(is_hdf5, large)):
        return None
    found = files.recognise(small) if small else None
    if not large or (small and not found):
        return found
    shard = shards.recognise(large)
    return f"{found}; and shards" if found and shard else shard


def choose(names: Sequence[str], portion: Portion, read: object) -> tuple[Sequence[str], Portion]:
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
        return files.plan(archive)
    if kinds <= {".hdf5", ".h5"}:
        return shards.plan(archive)
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
    return files.read(plan, part) if "files" in part.args else shards.read(plan, part)


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
            if key in _NAMES:
                if after:
                    yield ArchivedValue(_NAMES[key], at, bool(value) if key == "is_terminal" else value)
            elif key not in _MARKS:
                field = "observation" if key in _FRAMES else STATE + key
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
