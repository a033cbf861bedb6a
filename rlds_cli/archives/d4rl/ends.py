"""The columns of a flat HDF5 file, and its ends of episodes by a rule: flags, timeouts, jumps, field:KEY or file.

The columns are those of D4RL's keys, or of the keys that the user names. The rule ``jumps`` finds ends in next
observations or, without them, in the observations alone: rows between which a component jumps, as on a reset. Some
archives carry flags that are out of step with their resets (AntMaze's first version). There a component moves by its
own small steps for hundreds of rows, and then by metres::

    |o[t+1] - o[t]|  >  8 x the 99th percentile of that component's steps   in any component: t ends an episode

A component that hardly ever moves has no scale, and does not count. The percentiles come from up to 128 evenly spaced
blocks of 1,024 rows and are recorded in the manifest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from rlds_cli.archives.flat_rows import FlatLayout, differs, is_set
from rlds_cli.archives.formats.hdf5 import keys_found, reading
from rlds_cli.archives.formats.hdf5_rows import components
from rlds_cli.archives.formats.tables import Table, TableColumn
from rlds_cli.archives.names import expand, free_name, row_field
from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.text import did_you_mean, is_below
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ted import FLAGS, REWARD, Note

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
# A jump is larger than this factor times a percentile of the differences in a sample: blocks of rows, a number of them,
# the bytes of all, and the components of a row.
FACTOR, PERCENTILE = 8.0, 99
BLOCK_ROWS, BLOCKS = 1024, 128
SAMPLE_BYTES = 16 << 20
MAX_COMPONENTS = 4096
Limits = Mapping[str, list[float | None]]
DEFAULT = "flags"
RULES = ("flags", "timeouts", "jumps", "field:KEY", "file")
SCAN_ROWS, SCAN_BYTES = 1 << 18, 16 << 20  # of a block of flags or observations


def of(table: Table, name: str, chosen: Mapping[str, str]) -> FlatLayout:
    """Assign the columns of a file to fields; ``chosen`` maps fields to keys and comes before D4RL's own names.

    Raises
    ------
    UnknownLayout
        No observations or actions, a chosen key that is not there, values that no field can hold.
    CorruptArchive
        Columns of different lengths, flags that are not one per row.
    """
    table.derive(chosen.values())
    found = table.columns
    claimed = _claim(found, name, {SHORT_NAMES.get(k, k): v for k, v in chosen.items()})
    rows = _common_length(found, name, claimed.values())
    others, constants, notes = _others(table.own, name, rows, set(claimed.values()))
    if table.left_out:
        text = f"columns of values that no field can hold were left out: {', '.join(table.left_out)}"
        notes.append(Note("left-out", text, len(table.left_out), name))
    notes += [Note(code, text, 1, name) for code, text in table.remarks]
    notes += [
        Note("mixed", f"numbers are kept as texts: {key} holds {m.text[:40]!r} in row {m.row:,}", m.numbers, name)
        for key, m in table.mixed.items()
        if key in table.own and 2 * m.numbers >= m.values
    ]
    terminals, timeouts = (claimed.pop(flag, None) for flag in FLAGS)
    for flag in (terminals, timeouts):
        _check_flag(found, name, flag)
    own = {k: claimed.pop(k) for k in list(claimed) if k == NEXT or k.startswith(NEXT + "/")}
    columns = {**claimed, **{free_name(key, {*claimed, *RESERVED}): key for key in others}}
    dtypes = {"terminals": terminals, "timeouts": timeouts}
    return FlatLayout(
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
        facts={"flags": {name: str(found[key].dtype) for name, key in dtypes.items() if key}},
    )


def _claim(found: Mapping[str, TableColumn], name: str, chosen: Mapping[str, str]) -> dict[str, str]:
    """Map field names to keys, for every key with a meaning of its own."""
    wanted = {k: v for k, v in D4RL_KEYS.items() if not any(_replaces(c, k) for c in chosen)}
    claimed: dict[str, str] = {}
    for field, key in {**wanted, **chosen}.items():
        expanded = expand(found, field, key.strip("/"))
        if not expanded and field in chosen:
            raise _missing(found, name, key)
        claimed.update(expanded)
    for field in REQUIRED:
        if not any(is_below(k, field) for k in claimed):
            key = D4RL_KEYS[field]
            raise UnknownLayout(
                f'{name} has no "{key}". It holds {keys_found(found)}.',
                hint=f"name the key: --map {field}=KEY",
            )
    return claimed


def _replaces(chosen: str, field: str) -> bool:
    return chosen == field or (chosen.startswith(field + "/") and field != "info")


def _missing(found: Mapping[str, TableColumn], name: str, key: str) -> UnknownLayout:
    near = did_you_mean(key, found)
    return UnknownLayout(f'{name} has no "{key}".{near}', hint=f"it holds {keys_found(found)}")


def _common_length(found: Mapping[str, TableColumn], name: str, keys: Iterable[str]) -> int:
    lengths = {key: found[key].shape[0] if found[key].shape else None for key in keys}
    if len(set(lengths.values())) > 1 or None in lengths.values():
        listed = ", ".join(f"{key} {'no rows' if n is None else n}" for key, n in lengths.items())
        raise UnknownLayout(
            f"{name}: columns have different numbers of rows: {listed}.",
            hint="every column needs one row per step, but for observations, which may have one more per episode",
        )
    return int(next(iter(lengths.values())) or 0)


def _others(
    found: Mapping[str, TableColumn], name: str, rows: int, claimed: set[str]
) -> tuple[list[str], list[str], list[Note]]:
    """Divide the other keys into per-row columns and constants, with notes on the doubtful ones."""
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


def _check_flag(found: Mapping[str, TableColumn], name: str, key: str | None) -> None:
    if key is None:
        return
    d = found[key]
    if d.shape[1:] not in ((), (1,)) or d.dtype.kind not in "biuf":
        raise CorruptArchive(f"{name}: {key} is {d.dtype} {list(d.shape)}; a flag is one number or bool per row.")


def jump_limits(f: Table, layout: FlatLayout) -> Limits:
    """Measure the longest step that is not a jump, by observation column and component; None for one without scale.

    Columns without any scale are left out.

    Raises
    ------
    UnknownLayout
        No component has a scale, or the observations are images.
    """
    keys = [layout.columns[x.name] for x in layout.fields if x.placement == "both" and x.kind == "array"]
    found = {}
    for key in keys:
        with reading(f.path, key):
            column = _limits_of(f, key)
        if any(limit is not None for limit in column):
            found[key] = column
    if layout.rows and not found:
        raise UnknownLayout(
            f"{f.path.name}: jumps cannot be detected in the observations.",
            hint="--episodes-by flags, or --map next/observation=KEY",
        )
    return found


def jump_ends(values: Array, limit: list[float | None], rows: int) -> BoolArray:
    """Mark the rows before a jump, among the first ``rows``; ``values`` has one row more unless the file ends."""
    bound = np.array([np.inf if x is None else x for x in limit])
    out = np.zeros(rows, bool)
    steps = _steps(values[: rows + 1])
    out[: len(steps)] = (steps > bound).any(axis=1)
    return out


def _limits_of(f: Table, key: str) -> list[float | None]:
    d = f[key]
    width = int(np.prod(d.shape[1:], dtype=np.int64))
    if width > MAX_COMPONENTS:
        return [None] * width
    blocks = max(1, min(BLOCKS, d.shape[0] // BLOCK_ROWS, SAMPLE_BYTES // (BLOCK_ROWS * max(width, 1) * 8)))
    starts = np.linspace(0, max(d.shape[0] - BLOCK_ROWS, 0), blocks).astype(np.int64)
    steps = np.concatenate([_steps(block) for block in f.samples(key, starts.tolist(), BLOCK_ROWS)])
    steps = steps[np.isfinite(steps).all(axis=1)]
    if not len(steps):
        return [None] * width
    return [float(q) * FACTOR if q > 0 else None for q in np.percentile(steps, PERCENTILE, axis=0)]


def _steps(values: Array) -> Array:
    flat = components(values).astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.abs(np.diff(flat, axis=0)))


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule for one file.

    ``kind`` is the part before the colon, ``key`` the column of the rule ``field``, and ``limits`` the longest steps
    for the rule ``jumps`` without next observations.
    """

    kind: str
    layout: FlatLayout
    key: str | None = None
    limits: Limits = dataclasses.field(default_factory=dict)

    @property
    def keys(self) -> set[str]:
        """The columns that the rule and the flags read."""
        return {k for k in (self.layout.terminals, self.layout.timeouts, self.key, *self.limits) if k is not None}

    def ends(self, seen: Mapping[str, Array], rows: int, *, last: bool) -> BoolArray:
        """Mark the rows that end an episode, bool [rows]; with ``last`` the file ends with these rows.

        ``seen`` holds the columns ``keys``, with one row more than ``rows`` unless the file ends.
        """
        ends = np.zeros(rows, bool)
        if self.kind == "flags":
            ends |= is_set(seen, self.layout.terminals, rows)
        if self.kind in ("flags", "timeouts"):
            ends |= is_set(seen, self.layout.timeouts, rows)
        if self.key is not None:
            value = seen[self.key].reshape(-1)
            ends[: len(value) - 1] = differs(value[:-1], value[1:])[:rows]
        for key, limit in self.limits.items():
            ends |= jump_ends(seen[key], limit, rows)
        if last and rows:
            ends[-1] = True
        return ends


def rule(text: str | None, layout: FlatLayout, table: Table) -> Rule:
    """Return the rule that ``text`` names, for one file.

    Raises
    ------
    UnknownLayout
        There is no such rule, or the file lacks what it needs.
    """
    check_ends(table)
    kind, _, key = (text or DEFAULT).partition(":")
    name = table.path.name
    if kind not in [r.partition(":")[0] for r in RULES] or bool(key) != (kind == "field"):
        raise UnknownLayout(f'"{text}" is not a rule for the ends of episodes.', hint=f"one of {', '.join(RULES)}")
    if kind == "timeouts" and layout.timeouts is None:
        raise UnknownLayout(
            f'{name} has no "timeouts", which should mark the ends of its episodes.',
            hint="--episodes-by flags, or --map truncated=KEY",
        )
    if kind == "jumps" and not layout.comparable:
        return Rule(kind, layout, limits=jump_limits(table, layout))
    return Rule(kind, layout, _boundary(key, layout, table, name) if kind == "field" else None)


def check_ends(table: Table) -> None:
    """Refuse a rule for the ends of episodes where the file says itself where they are; raises UnknownLayout."""
    if table.ends is not None:
        raise UnknownLayout(
            f"{table.path.name} says where its episodes end, and no rule replaces that.",
            hint="leave out --episodes-by and --reader",
        )


def _boundary(key: str, layout: FlatLayout, f: Table, name: str) -> str:
    key = layout.columns.get(key, key)
    f.derive([key])
    d = f.get(key)
    if d is None or not d.shape or d.shape[0] != layout.rows or d.shape[1:] not in ((), (1,)):
        raise UnknownLayout(
            f'{name} has no column "{key}" with one value per row, which should divide its episodes.',
            hint=f"columns: {', '.join(layout.columns.values())}",
        )
    return key


def scan(f: Table, by: Rule) -> IntArray:
    """Find the last row of every episode, int64 [E], as far as the rule needs no observations."""
    found = [np.zeros(0, np.int64)]
    width = sum(8 * int(np.prod(f[key].shape[1:], dtype=np.int64)) for key in by.keys)
    size = max(1, min(SCAN_ROWS, SCAN_BYTES // max(width, 1)))
    with f.rows(by.keys) as reader:
        for start in range(0, by.layout.rows, size):
            stop = min(start + size, by.layout.rows)
            seen = reader.read(start, min(stop + 1, by.layout.rows))
            found.append(start + np.flatnonzero(by.ends(seen, stop - start, last=stop == by.layout.rows)))
    return np.concatenate(found)
