"""The groups of a file that are episodes, and the arrays of one episode."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlds_cli.archives.d4rl.ends import differs, is_set
from rlds_cli.archives.names import flags_of, has_essentials, meaning
from rlds_cli.errors import UnknownLayout
from rlds_cli.formats.arrow_tables import ArrowFile
from rlds_cli.formats.hdf5 import is_observation
from rlds_cli.formats.tables import Table
from rlds_cli.ted import CUT, FLAGS, REWARD, TERMINATED, TRUNCATED, Array, BoolArray, Field, Text
from rlds_cli.text import natural

MAX_DEPTH = 3


def groups_of(table: Table, chosen: Mapping[str, str]) -> tuple[str, dict[str, dict[str, str]]] | None:
    """Find the groups that are episodes: their pattern, and the columns of each, local name -> name in the file.

    A pattern of the user's (``data/*/act``) comes first; else groups count that have a digit in their names and hold
    observations and actions, and all groups beside them that hold both or are named alike. None where there are no
    such groups.

    Raises
    ------
    UnknownLayout
        The groups are parts of the same steps: columns beside them have a row for each of their rows.
    """
    columns = list(table.columns)
    patterns = [k.strip("/") for k in chosen.values() if is_pattern(k)]
    if patterns:
        above = patterns[0].partition("*")[0].strip("/")
        return _pattern(above), _below(columns, above)
    if isinstance(table.source, ArrowFile) or any(k.strip("/[").partition(",")[0] in columns for k in chosen.values()):
        return None
    for depth in range(MAX_DEPTH):
        parents = dict.fromkeys("/".join(p[:depth]) for c in columns if len(p := c.split("/")) > depth + 1)
        found = {p: known for p in sorted(parents, key=natural) if (known := _episodes_below(columns, p, chosen))}
        if found:
            groups = {g: names for known in found.values() for g, names in known.items()}
            _check_apart(table, groups)
            return ", ".join(map(_pattern, found)), groups
    return None


def _episodes_below(columns: Sequence[str], parent: str, chosen: Mapping[str, str]) -> dict[str, dict[str, str]]:
    groups = _below(columns, parent)
    episodes = {g for g, names in groups.items() if _is_episode(frozenset(names), chosen)}
    numbered = {_stem(g) for g in episodes if any(map(str.isdigit, g.removeprefix(parent)))}
    return {g: names for g, names in groups.items() if numbered and (g in episodes or _stem(g) in numbered)}


def _stem(group: str) -> str:
    """Return the name of a group, whatever its number."""
    return re.sub(r"\d+", "0", group)


def _check_apart(table: Table, groups: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse groups of agents or robots, beside which each of their rows has a reward or flag."""
    inside = {name for names in groups.values() for name in names.values()}
    beside = {k: c for k, c in table.columns.items() if k not in inside}
    told = [k for n, k in meaning(beside, {}, table.path.name).fields.items() if n in (REWARD, "next/done", *FLAGS)]
    lengths = {table[k].shape[:1] for names in groups.values() for k in names.values() if table[k].shape}
    for key in told:
        if table[key].shape[:1] and lengths == {table[key].shape[:1]}:
            first = next(iter(groups))
            raise UnknownLayout(
                f"{table.path.name}: {key} has a row for each row of {first} and of every group like it, so they are "
                "parts of the same steps, and no episodes.",
                hint="--map 'observation=[GROUP/KEY, GROUP/KEY]' and --map action=... name their columns",
            )


def is_pattern(key: str) -> bool:
    """Tell whether a key of the user's names a group per episode: a component before the last has ``*``."""
    return "*" in key.strip("/").split("/")[:-1]


def _pattern(parent: str) -> str:
    return f"{parent}/*" if parent else "*"


def _below(columns: Sequence[str], parent: str) -> dict[str, dict[str, str]]:
    prefix = f"{parent}/" if parent else ""
    found: dict[str, dict[str, str]] = {}
    for name in columns:
        if name.startswith(prefix):
            group, slash, local = name[len(prefix) :].partition("/")
            if slash:
                found.setdefault(prefix + group, {})[local] = name
    return dict(sorted(found.items(), key=lambda item: natural(item[0])))


def _is_episode(names: frozenset[str], chosen: Mapping[str, str]) -> bool:
    found = meaning(dict.fromkeys(names, _NAME_ONLY), {k: v for k, v in chosen.items() if v in names}, "")
    return has_essentials(found)


@dataclass(frozen=True, slots=True)
class _NameOnly:
    shape: tuple[int, ...] = ()


_NAME_ONLY = _NameOnly()


def is_one_episode(table: Table, chosen: Mapping[str, str], files: int) -> bool:
    """Tell whether a whole file is one episode.

    It is one if observations have one row more than actions, if a flag is a scalar, or if each of several files has
    scalars beside its columns. It is not one if a flag is set inside, or if there is a column of ids.
    """
    what = meaning(table.columns, chosen, table.path.name)
    if not has_essentials(what) or what.lists is not None:
        return False
    fields, _ = flags_of(what)
    table.derive(list(fields.values()))
    shapes = {name: table[key].shape for name, key in fields.items()}
    rows = max((s[0] for n, s in shapes.items() if n.partition("/")[0] == "action" and s), default=0)
    observed = {s[0] for n, s in shapes.items() if is_observation(n) and s}
    if what.ids is not None and table[what.ids].shape[:1] == (rows,):
        return False
    once = any(name in FLAGS and shape == () for name, shape in shapes.items())
    if once or (observed == {rows + 1} and not _inside(table, fields, rows)):
        return True
    scalars = any(c.shape == () and c.dtype.kind in "biufO" for c in table.own.values())
    return files > 1 and scalars and observed == {rows} and not _inside(table, fields, rows)


def _inside(table: Table, fields: Mapping[str, str], rows: int) -> bool:
    """Tell whether a flag is set before the last row."""
    flags = [k for k in (fields.get(f) for f in FLAGS) if k is not None and table[k].shape[:1] == (rows,)]
    if not flags:
        return False
    with table.rows(flags) as reader:
        seen = reader.read(0, rows)
    return any(is_set(seen, k, rows)[:-1].any() for k in flags)


def shaped(values: Array, f: Field) -> Array | Text:
    """Convert values [rows, ...] to the dtype and the shape of a field; texts to a list."""
    found = values.reshape(len(values), *f.shape)
    return found.tolist() if f.kind == "text" else found.astype(f.dtype, copy=False)


def ended(terminated: BoolArray, truncated: BoolArray) -> tuple[BoolArray, int]:
    """Make the stored flag ``truncated`` [T], set at the last step alone, and return how the episode ends.

    An episode that no flag ends is a cut, which is stored as truncated.
    """
    end = TERMINATED if terminated[-1] else TRUNCATED if truncated[-1] else CUT
    stored = np.zeros(len(terminated), bool)
    stored[-1] = truncated[-1] or end == CUT
    return stored, end


def with_final(now: Array, after: Array, length: int, message: str, hint: str | None = None) -> Array:
    """Complete observations [T or T+1, ...] with the final one, from next observations [T, ...].

    Raises
    ------
    UnknownLayout
        A next observation is not the observation of the row after; with ``message`` and ``hint``.
    """
    known = min(len(now) - 1, len(after))
    if differs(after[:known], now[1 : known + 1]).any():
        raise UnknownLayout(message, hint=hint)
    return np.concatenate([now, after[-1:].astype(now.dtype)]) if len(now) == length else now
