"""Which dataset of a flat HDF5 file is what: D4RL's keys, or those that the user names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import h5py

from rlds_cli.archives.hdf5 import expand, free_name, keys_found, row_field
from rlds_cli.archives.tables import Column, Table, hdf5_table
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ted import FLAGS, REWARD, Field, Note

NEXT = "next/observation"
D4RL_KEYS = {
    "observation": "observations",
    "action": "actions",
    REWARD: "rewards",
    "next/terminated": "terminals",
    "next/truncated": "timeouts",
    "next/observation": "next_observations",
    "info": "infos",
}
REQUIRED = ("observation", "action")
RESERVED = {*FLAGS, NEXT}
SHORT_NAMES = {"reward": REWARD, "terminated": FLAGS[0], "truncated": FLAGS[1]}
# Larger than any table of constants, smaller than what a reader may take in at once.
MAX_METADATA = 64 << 20


@dataclass(frozen=True, slots=True)
class Layout:
    """One file.

    ``columns`` maps the names of ``fields`` to keys, ``next_columns`` those of observations to the keys of their next
    values, of which ``own_next`` would be the fields. ``timeouts_field`` is what timeouts are where they end nothing.
    """

    rows: int
    fields: tuple[Field, ...]
    columns: Mapping[str, str]
    next_columns: Mapping[str, str]
    terminals: str | None
    timeouts: str | None
    timeouts_field: Field | None
    metadata: tuple[str, ...]
    own_next: tuple[Field, ...]
    notes: tuple[Note, ...] = ()

    @property
    def recorded(self) -> bool:
        """Whether there are next observations, of the fields and shapes of the observations."""
        return bool(self.own_next) and {f.name: f.shape for f in self._observations} == {
            f.name.removeprefix("next/"): f.shape for f in self.own_next
        }

    @property
    def comparable(self) -> bool:
        """Whether they have the same dtypes too, and so can be told from the rows after."""
        return self.recorded and {f.name: f.dtype for f in self._observations} == {
            f.name.removeprefix("next/"): f.dtype for f in self.own_next
        }

    @property
    def _observations(self) -> list[Field]:
        return [f for f in self.fields if f.placement == "both"]


def of(f: Table | h5py.File, name: str, chosen: Mapping[str, str]) -> Layout:
    """What the datasets of a file are; ``chosen`` maps fields to keys and comes before D4RL's own names.

    Raises
    ------
    UnknownLayout
        No observations or actions, a chosen key that is not there, values that no field can hold.
    CorruptArchive
        Columns of different lengths, flags that are not one per row.
    """
    table = f if isinstance(f, Table) else hdf5_table(Path(f.filename), f)
    table.derive(chosen.values())
    found = table.columns
    claimed = _claim(found, name, {SHORT_NAMES.get(k, k): v for k, v in chosen.items()})
    rows = _common_length(found, name, claimed.values())
    others, constants, notes = _others(table.own, name, rows, set(claimed.values()))
    if table.left_out:
        text = f"columns of values that no field can hold were left out: {', '.join(table.left_out)}"
        notes.append(Note("left-out", text, len(table.left_out), name))
    terminals, timeouts = (claimed.pop(flag, None) for flag in FLAGS)
    for flag in (terminals, timeouts):
        _check_flag(found, name, flag)
    own = {k: claimed.pop(k) for k in list(claimed) if k == NEXT or k.startswith(NEXT + "/")}
    columns = {**claimed, **{free_name(key, {*claimed, *RESERVED}): key for key in others}}
    return Layout(
        rows=rows,
        fields=tuple(row_field(k, found[key], scalar=k == REWARD) for k, key in columns.items()),
        columns=columns,
        next_columns={k.removeprefix("next/"): key for k, key in own.items()},
        terminals=terminals,
        timeouts=timeouts,
        timeouts_field=row_field(free_name(timeouts, {*columns, *RESERVED}), found[timeouts], scalar=True)
        if timeouts
        else None,
        metadata=tuple(constants),
        own_next=tuple(row_field(k, found[key]) for k, key in own.items()),
        notes=tuple(notes),
    )


def flag_fields() -> tuple[Field, ...]:
    """The two flags, which every dataset has."""
    return tuple(Field(flag, "bool", (), "next") for flag in FLAGS)


def _claim(found: Mapping[str, Column], name: str, chosen: Mapping[str, str]) -> dict[str, str]:
    """Field name -> key, for everything that has a meaning."""
    wanted = {k: v for k, v in D4RL_KEYS.items() if not any(_replaces(c, k) for c in chosen)}
    claimed: dict[str, str] = {}
    for field, key in {**wanted, **chosen}.items():
        expanded = expand(found, field, key.strip("/"))
        if not expanded and field in chosen:
            raise _missing(found, name, key)
        claimed.update(expanded)
    for field in REQUIRED:
        if not any(k == field or k.startswith(field + "/") for k in claimed):
            key = D4RL_KEYS[field]
            raise UnknownLayout(
                f'{name} has no "{key}". It holds {keys_found(found)}.',
                hint=f"say which key it is: --map {field}=KEY",
            )
    return claimed


def _replaces(chosen: str, field: str) -> bool:
    return chosen == field or (chosen.startswith(field + "/") and field != "info")


def _missing(found: Mapping[str, Column], name: str, key: str) -> UnknownLayout:
    near = get_close_matches(key, found, n=1)
    meant = f' Did you mean "{near[0]}"?' if near else ""
    return UnknownLayout(f'{name} has no "{key}".{meant}', hint=f"it holds {keys_found(found)}")


def _common_length(found: Mapping[str, Column], name: str, keys: Iterable[str]) -> int:
    lengths = {key: found[key].shape[0] if found[key].shape else None for key in keys}
    if len(set(lengths.values())) > 1 or None in lengths.values():
        listed = ", ".join(f"{key} {'no rows' if n is None else n}" for key, n in lengths.items())
        raise UnknownLayout(
            f"{name}: columns have different numbers of rows: {listed}.",
            hint="every column needs one row per step, but for observations, which may have one more per episode",
        )
    return int(next(iter(lengths.values())) or 0)


def _others(
    found: Mapping[str, Column], name: str, rows: int, claimed: set[str]
) -> tuple[list[str], list[str], list[Note]]:
    """Everything without a meaning of its own: per-row columns, constants, and notes on the doubtful ones."""
    columns, constants, notes = [], [], []
    for key, d in found.items():
        if key in claimed:
            continue
        if key.split("/", 1)[0] == "metadata" or not d.shape:
            constants.append(key)
        elif d.shape[0] == rows:
            columns.append(key)
        elif d.size * d.dtype.itemsize > MAX_METADATA:
            raise CorruptArchive(f"{name}: {key} has {d.shape[0]:,} rows, the other columns {rows:,}.")
        else:
            constants.append(key)
            notes.append(
                Note("not-per-row", "not one value per step: kept as metadata", 1, f"{key} {list(d.shape)} of {name}")
            )
    return columns, constants, notes


def _check_flag(found: Mapping[str, Column], name: str, key: str | None) -> None:
    if key is None:
        return
    d = found[key]
    if d.shape[1:] not in ((), (1,)) or d.dtype.kind not in "biuf":
        raise CorruptArchive(f"{name}: {key} is {d.dtype} {list(d.shape)}; a flag is one number or bool per row.")
