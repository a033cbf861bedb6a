"""Trials of a file, and what each of their datasets is.

::

    RoboHive                                     RoboSet (hardware)
    Trial<k>/observations   [h, ...] or group    Trial<k>/data/{qp,qv,tau,rgb,d,...}_*  -> observation/<key>
             actions        [h, ...]                      data/ctrl_*                   -> action/<key>
             rewards        [h]                           data/time                     -> time
             done           [h]                           data/user*                    -> info/<key>
             time           [h]                           derived/*                     -> info/derived/<key>
             env_infos/*    [h, ...] -> info/<key>        config/*                      -> metadata
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import h5py

from rlds_cli.archives.hdf5 import datasets, expand, free_name, is_observation, keys_found, row_field
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ordering import natural
from rlds_cli.ted import FLAGS, REWARD, Field

GROUP = re.compile(r"(trial|rollout)_?\d+", re.IGNORECASE)

ROBOHIVE, ROBOSET = "RoboHive", "RoboSet"
CORE = {"observations": "observation", "actions": "action", "rewards": REWARD, "done": FLAGS[0], "time": "time"}
SHORT_NAMES = {"reward": REWARD, "terminated": FLAGS[0]}
INFOS = "env_infos/"


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial: ``columns`` maps fields to keys below its group, ``constants`` are the keys that are not per row."""

    group: str
    rows: int
    columns: Mapping[str, str]
    fields: Mapping[str, Field]
    constants: tuple[str, ...]


def names(f: h5py.File) -> list[str]:
    """The groups of a file that are trials, in the order of their numbers."""
    return sorted((k for k in f if GROUP.fullmatch(k) and isinstance(f.get(k), h5py.Group)), key=natural)


def schema_of(f: h5py.File) -> str | None:
    """RoboHive's or RoboSet's schema, by the keys of the first trial; None where there is neither."""
    for name in names(f)[:1]:
        if "observations" in f[name] and "actions" in f[name]:
            return ROBOHIVE
        if isinstance(f[name].get("data"), h5py.Group):
            return ROBOSET
    return None


def trials(f: h5py.File, name: str, chosen: Mapping[str, str]) -> Iterator[Trial]:
    """The trials of a file, in the order of their numbers; ``chosen`` maps fields to keys, before all others.

    Raises
    ------
    UnknownLayout
        There are none, or the first has no observations or actions.
    CorruptArchive
        Columns of one trial have different lengths.
    """
    groups = names(f)
    if not groups:
        raise UnknownLayout(f"{name} has no trials (groups Trial0, Trial1, ...). It holds {keys_found(datasets(f))}.")
    for group in groups:
        yield trial(f, name, group, chosen)


def trial(f: h5py.File, name: str, group: str, chosen: Mapping[str, str]) -> Trial:
    """One trial of a file; raises as ``trials`` does."""
    where, found = f"{name}: {group}", datasets(f[group])
    columns = {field: key for key in found if (field := _meaning(key)) and found[key].shape}
    for field, key in ((SHORT_NAMES.get(k, k), v) for k, v in chosen.items()):
        expanded = expand(found, field, key.strip("/"))
        if not expanded:
            raise UnknownLayout(f'{where} has no "{key}".', hint=f"it holds {keys_found(found)}")
        columns = {k: v for k, v in columns.items() if k != field and v not in expanded.values()} | expanded
    for field in ("observation", "action"):
        if not any(k == field or k.startswith(field + "/") for k in columns):
            raise UnknownLayout(
                f"{where} has no {field}s. It holds {keys_found(found)}.",
                hint=f"say which key they are: --map {field}=KEY",
            )
    rows = _common_length(where, {key: found[key] for key in columns.values()})
    claimed = set(columns.values())
    for key, d in found.items():
        if key not in claimed and d.shape and d.shape[0] == rows and not _is_constant(key):
            columns[free_name(key, {*columns, *FLAGS})] = key
    fields = {k: row_field(k, found[key], scalar=k in (REWARD, FLAGS[0])) for k, key in sorted(columns.items())}
    per_row = set(columns.values())
    return Trial(group, rows, columns, fields, tuple(key for key in found if key not in per_row))


def by_chance(trials: Sequence[Trial]) -> set[str]:
    """Keys of no known meaning that have as many rows as observations in some trials only: they are not per row."""
    there = {key for t in trials for key in t.columns.values()}
    return {key for t in trials for key in t.constants if key in there and _meaning(key) is None}


def without(t: Trial, keys: set[str]) -> Trial:
    """A trial whose datasets ``keys`` are not per row."""
    columns = {name: key for name, key in t.columns.items() if key not in keys}
    fields = {name: t.fields[name] for name in t.fields if name in columns}
    more = tuple(key for key in t.columns.values() if key in keys)
    return replace(t, columns=columns, fields=fields, constants=(*t.constants, *more))


def _meaning(key: str) -> str | None:
    first, _, rest = key.partition("/")
    if first in CORE:
        return f"{CORE[first]}/{rest}" if rest else CORE[first]
    if key.startswith(INFOS):
        return "info/" + key.removeprefix(INFOS)
    if first == "derived":
        return f"info/{key}"
    if first == "data":
        kind = {"ctrl": "action/", "user": "info/", "time": ""}.get(re.split(r"[_/]", rest)[0], "observation/")
        return kind + rest
    return None


def _is_constant(key: str) -> bool:
    return key.split("/", 1)[0] in ("config", "metadata")


def _common_length(where: str, columns: Mapping[str, h5py.Dataset]) -> int:
    lengths = {key: d.shape[0] if d.shape else None for key, d in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{key} {'none' if n is None else n}" for key, n in lengths.items())
        raise CorruptArchive(f"{where}: columns have different numbers of rows: {listed}.")
    return int(next(iter(lengths.values())) or 0)


def placed(field: Field, convention: str) -> Field:
    """A field as files of this convention hold it (see ``conventions``)."""
    name, placement = field.name, field.placement
    if is_observation(name) or name == "time":
        placement = "both"
    elif name.startswith("info/") and convention == "path":
        name, placement = f"next/{name}", "next"
    elif convention == "trace" and placement == "root" and name.split("/", 1)[0] != "action":
        placement = "both"
    return Field(name, field.dtype, field.shape, placement, field.kind)


def unplaced(name: str) -> str:
    """The name that a placed field had before."""
    return name.removeprefix("next/") if name.startswith("next/info/") else name
