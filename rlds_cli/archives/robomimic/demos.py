"""Demonstrations of a file, and what each of their datasets is.

::

    data/demo_<k>/obs/<key>        [T, ...]   -> observation/<key>
                  next_obs/<key>   [T, ...]   the final observation, and a check on the others
                  actions          [T, ...]   -> action
                  rewards          [T]        -> next/reward
                  dones            [T]        -> next/terminated
                  states           [T, ...]   -> state; observation, where there is no other (raw files)
                  anything else    [T, ...]   -> a root field of its own name (actions_abs, joint_torques)
    mask/<split>                              names of demonstrations

Raw files of robosuite 0.3 have no ``actions``; what the operator asked for makes them up: joint velocities, gripper
actuations, and the hands' ``dpos`` and ``dquat``, some of them of zero width.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import h5py
import numpy as np

from rlds_cli.archives.hdf5 import check_value, datasets, free_name, keys_found, row_field
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ordering import natural
from rlds_cli.ted import FLAGS, REWARD, Field

DATA, MASK = "data", "mask"
GROUP = re.compile(r"demo_\d+")
MEANINGS = {"actions": "action", "rewards": REWARD, "dones": FLAGS[0], "states": "state"}
OBSERVATION, NEXT = "obs/", "next_obs/"
# What robosuite 0.3 recorded in place of actions.
COMMANDS = re.compile(r"joint_velocities|gripper_actuations|(left|right)_(dpos|dquat)")
MAX_MASKS = 4096


@dataclass(frozen=True, slots=True)
class Demo:
    """One demonstration of T = ``rows`` steps.

    ``columns`` maps fields to keys below its group; ``next_keys`` maps observation fields to the keys of their next
    values; ``constants`` are the keys that are not per row.
    """

    group: str
    rows: int
    columns: Mapping[str, str]
    next_keys: Mapping[str, str]
    fields: Mapping[str, Field]
    constants: tuple[str, ...]

    @property
    def recorded(self) -> bool:
        """Whether every observation has a next one."""
        observations = {name for name, f in self.fields.items() if f.placement == "both"}
        return bool(self.next_keys) and set(self.next_keys) == observations


def names(f: h5py.File) -> list[str]:
    """The demonstrations of a file, in the order of their numbers."""
    data = f.get(DATA)
    if not isinstance(data, h5py.Group):
        return []
    return sorted((k for k in data if GROUP.fullmatch(k) and isinstance(data.get(k), h5py.Group)), key=natural)


def demo(f: h5py.File, name: str, group: str) -> Demo:
    """One demonstration of the file called ``name``.

    Raises
    ------
    UnknownLayout
        No actions, or neither observations nor states.
    CorruptArchive
        Columns of different lengths, next observations of other shapes than the observations.
    """
    where, found = f"{name}: {group}", datasets(f[DATA][group])
    rows = _rows(where, found)
    per_row = [k for k, d in found.items() if d.shape and (d.shape[0] == rows or _is_core(k))]
    columns, next_keys = _meanings(per_row)
    if not any(c == "action" or c.startswith("action/") for c in columns):
        raise UnknownLayout(f"{where} has no actions. It holds {keys_found(found)}.")
    if not any(c == "observation" or c.startswith("observation/") for c in columns):
        raise UnknownLayout(f"{where} has neither observations nor states. It holds {keys_found(found)}.")
    _check_lengths(where, found, {*columns.values(), *next_keys.values()}, rows)
    fields = {k: row_field(k, found[key], scalar=k in (REWARD, FLAGS[0])) for k, key in sorted(columns.items())}
    for field, key in next_keys.items():
        if field in fields and found[key].shape[1:] != fields[field].shape:
            raise CorruptArchive(
                f"{where}: {key} has rows of {found[key].shape[1:]}, {field} of {fields[field].shape}."
            )
    claimed = {*columns.values(), *next_keys.values()}
    return Demo(group, rows, columns, next_keys, fields, tuple(k for k in found if k not in claimed))


def by_chance(demos: Sequence[Demo]) -> set[str]:
    """Keys of no known meaning that have T rows in some demonstrations only: they are not per row."""
    there = {key for d in demos for key in d.columns.values()}
    return {key for d in demos for key in d.constants if key in there and not _is_core(key)}


def without(d: Demo, keys: set[str]) -> Demo:
    """A demonstration whose datasets ``keys`` are not per row."""
    columns = {name: key for name, key in d.columns.items() if key not in keys}
    fields = {name: d.fields[name] for name in d.fields if name in columns}
    more = tuple(key for key in d.columns.values() if key in keys)
    return replace(d, columns=columns, fields=fields, constants=(*d.constants, *more))


def masks(f: h5py.File, name: str) -> dict[str, set[str]]:
    """The named splits of a file: which demonstrations each of them has.

    Raises
    ------
    CorruptArchive
        A mask that is no list of names.
    """
    group = f.get(MASK)
    if not isinstance(group, h5py.Group):
        return {}
    found: dict[str, set[str]] = {}
    for key, d in datasets(group).items():
        if h5py.check_string_dtype(d.dtype) is None or len(found) >= MAX_MASKS:
            raise CorruptArchive(f"{name}: mask/{key} holds {d.dtype} values; names of demonstrations are expected.")
        check_value(d)
        found[key] = set(map(str, np.ravel(d.asstr(errors="replace")[()])))
    return found


def _meanings(keys: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    columns = {MEANINGS[k]: k for k in keys if k in MEANINGS}
    columns |= {f"observation/{k.removeprefix(OBSERVATION)}": k for k in keys if k.startswith(OBSERVATION)}
    next_keys = {f"observation/{k.removeprefix(NEXT)}": k for k in keys if k.startswith(NEXT)}
    if not any(c.startswith("observation/") for c in columns) and "state" in columns:
        columns["observation"] = columns.pop("state")
    if "action" not in columns:
        columns |= {f"action/{k}": k for k in keys if COMMANDS.fullmatch(k)}
    for key in keys:
        if key not in columns.values() and key not in next_keys.values():
            columns[free_name(key, {*columns, *FLAGS})] = key
    return columns, next_keys


def _is_core(key: str) -> bool:
    return key in MEANINGS or key.startswith((OBSERVATION, NEXT))


def _rows(where: str, found: Mapping[str, h5py.Dataset]) -> int:
    """T: of actions, else of states."""
    for key in ("actions", "states"):
        if key in found and found[key].shape:
            return int(found[key].shape[0])
    raise UnknownLayout(f"{where} has neither actions nor states. It holds {keys_found(found)}.")


def _check_lengths(where: str, found: Mapping[str, h5py.Dataset], keys: set[str], rows: int) -> None:
    odd = {key: found[key].shape[0] for key in sorted(keys) if found[key].shape[0] != rows}
    if odd:
        listed = ", ".join(f"{key} {n}" for key, n in odd.items())
        raise CorruptArchive(f"{where} has {rows} steps, and columns of other lengths: {listed}.")
