"""d3rlpy's second format, ``ReplayBuffer.dump``: a dataset per column and episode.

::

    version        "2.1"
    columns        ["observations", "actions", "rewards", "terminated"]
    num_episodes   E
    observations_<i>      [T, ...]    -> observation;  observations_<i>_<j>, of a tuple, -> observation/<j>
    actions_<i>           [T, ...]    -> action
    rewards_<i>           [T, 1]      -> next/reward
    terminated_<i>        bool        -> how the episode ends: terminated, else truncated
    any other column      [T, ...]    -> a root field of its own name

The observation after the last step is not recorded: ``Episode.transition_count`` counts T steps of an episode that
terminated, and T-1 of another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds_cli.archives.hdf5 import reading, row_field, whole
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ted import FLAGS, REWARD, TERMINATED, TRUNCATED, Chunk, EpisodeData, Field, flags, lay_out

MARKS = ("columns", "num_episodes", "version")
NAMES = {"observations": "observation", "actions": "action", "rewards": REWARD}
END = "terminated"
KNOWN = "2.1"
MAX_TUPLE = 256


def is_buffer(f: h5py.File) -> bool:
    """Whether a file is of the second format."""
    return set(MARKS) <= set(f)


def columns(f: h5py.File, name: str, episode: int) -> dict[str, str]:
    """Field name -> dataset, of one episode of the file called ``name``.

    Raises
    ------
    UnknownLayout
        An older version, or no observations or actions.
    CorruptArchive
        A column is not there.
    """
    version = _text(whole(f["version"]))
    if version != KNOWN:
        raise UnknownLayout(
            f"{name} is of version {version[:40]} of d3rlpy's format; 2.1 and the flat files of d3rlpy 1 are read.",
            hint="load it with the d3rlpy that wrote it, and dump it with a newer one",
        )
    found: dict[str, str] = {}
    for column in map(_text, np.ravel(whole(f["columns"]))):
        key, field = f"{column}_{episode}", NAMES.get(column, column)
        parts = [f"{key}_{j}" for j in range(MAX_TUPLE) if f"{key}_{j}" in f] if key not in f else []
        if key not in f and not parts:
            raise CorruptArchive(f"{name}: {key} is not there, though {whole(f['num_episodes'])} episodes are.")
        found |= {f"{field}/{j}": part for j, part in enumerate(parts)} if parts else {field: key}
    for needed in ("observation", "action"):
        if not any(n == needed or n.startswith(needed + "/") for n in found):
            raise UnknownLayout(f"{name} has no {needed}s.")
    return found


def fields(f: h5py.File, name: str) -> tuple[Field, ...]:
    """The fields, as the first episode has them."""
    found = columns(f, name, 0) if count(f) else {}
    made = [row_field(n, f[k], scalar=n == REWARD) for n, k in found.items() if n != END]
    made += [Field(flag, "bool", (), "next") for flag in FLAGS]
    return tuple(sorted(made, key=lambda x: x.name))


def count(f: h5py.File) -> int:
    """How many episodes a file says that it has."""
    return int(whole(f["num_episodes"]))


def lengths(f: h5py.File, name: str) -> list[int]:
    """Steps of every episode.

    Raises
    ------
    CorruptArchive
        Fewer episodes than the file says.
    """
    found = []
    for i in range(count(f)):
        d = f.get(f"actions_{i}")
        if not isinstance(d, h5py.Dataset) or not d.shape:
            raise CorruptArchive(f"{name}: actions_{i} is not there, though {count(f)} episodes are.")
        found.append(int(d.shape[0]))
    return found


def read(
    f: h5py.File, path: Path, schema: Sequence[Field], source: int, todo: Sequence[int], budget: int
) -> Iterator[Chunk]:
    """The episodes ``todo``, about ``budget`` rows to a chunk.

    Raises
    ------
    CorruptArchive
        Damage, or an episode that does not fit the others.
    """
    collected: list[EpisodeData] = []
    rows = 0
    for i in todo:
        collected.append(_episode(f, path, schema, source, i))
        rows += collected[-1].length + 1
        if rows >= budget or i == todo[-1]:
            yield lay_out(schema, collected)
            collected, rows = [], 0


def _episode(f: h5py.File, path: Path, schema: Sequence[Field], source: int, i: int) -> EpisodeData:
    keys = columns(f, path.name, i)
    known = {x.name: x for x in schema}
    values: dict[str, Any] = {}
    for name, key in keys.items():
        if name == END:
            continue
        made = row_field(name, f[key], scalar=name == REWARD)
        if known.get(name) != made:
            raise CorruptArchive(
                f"{path.name}: {key} is {made.dtype} {list(made.shape)}, unlike that of other episodes."
            )
        with reading(path, key):
            values[name] = whole(f[key]).reshape(len(f[key]), *made.shape)
    length = len(f[f"actions_{i}"])
    end = TERMINATED if END in keys and bool(np.all(whole(f[keys[END]]))) else TRUNCATED
    return EpisodeData(values | flags(length, end), length, end, source=source, group=f"episode_{i}")


def constants(f: h5py.File, name: str) -> Mapping[str, str]:
    """What is not per row."""
    return {"version": _text(whole(f["version"]))}


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
