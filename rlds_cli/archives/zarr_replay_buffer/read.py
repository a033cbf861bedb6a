"""Replay buffers in Zarr, as Diffusion Policy, UMI and DP3 write them: all episodes end to end.

::

    row               0    1    2    3    4    5    6      two episodes, of 3 and 2 steps, and 2 rows of nobody
    data/img          o0   o1   o2   o0   o1   --   --     -> observation/img     both; the last one stands for the next
    data/state        s0   s1   s2   s0   s1   --   --     -> observation/state
    data/action       a0   a1   a2   a0   a1   --   --     -> action
    meta/episode_ends 3, 5                                 -> where episodes end; nothing says how: they count as cut

Arrays of `data` may be longer than the last end: a buffer grows ahead of its episodes. Those rows are left out and
counted. An array with one of the usual names of actions, rewards or flags is that field; all others are observations.
JPEG and PNG images, one a chunk or one a row, stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from rlds_cli.archives.flat import Flat, FlatEpisodes, FlatLayout
from rlds_cli.archives.formats.tables import Table, TableColumn
from rlds_cli.archives.names import NAMES, row_field
from rlds_cli.archives.readers import Archive
from rlds_cli.base.array_types import IntArray
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ted import CUT, FLAGS, REWARD, Note

DATA, ENDS = "data/", "meta/episode_ends"
OBSERVATION, ACTION = "observation", "action"
_KNOWN = {key: name for name in (ACTION, REWARD, *FLAGS) for key in NAMES[name]}


class ZarrReplayBuffer(Flat):
    """Arrays below `data`, and the row behind the last one of each episode."""

    name, title, container = "zarr_replay_buffer", "A replay buffer", "zarr"
    rules = ("episode_ends",)
    no_rule = f"{ENDS} says where each episode ends"
    marks = (ENDS,)

    def describe(self, table: Table, paths: Sequence[Path]) -> tuple[str, str] | None:
        """Tell a replay buffer from other stores by its arrays."""
        there = _data(table)
        if ENDS not in table or not there:
            return None
        return "Zarr replay buffer", f"{table[ENDS].size:,} episodes; {', '.join(key for key in there)}"

    def layout(self, table: Table, archive: Archive) -> FlatLayout:
        """Assign the arrays below `data` to fields."""
        there = _data(table)
        if ENDS not in table or not there:
            raise UnknownLayout(
                f"{table.path.name} has no {ENDS}, or no array below {DATA}. It holds {', '.join(table.columns)}.",
                hint="--reader plain with --map takes other stores",
            )
        rows = _rows(table, there)
        named = {_KNOWN.get(key): key for key in there}
        if twice := [key for key in there if key in _KNOWN and named[_KNOWN[key]] != key]:
            raise UnknownLayout(
                f"{table.path.name}: {DATA}{twice[0]} and {DATA}{named[_KNOWN[twice[0]]]} are both {_KNOWN[twice[0]]}.",
                hint="--reader plain with --map names the array that is meant",
            )
        observed = [key for key in there if key not in _KNOWN]
        alone = len(observed) == 1 and observed[0] in NAMES[OBSERVATION]
        columns = {OBSERVATION if alone else f"{OBSERVATION}/{key}": DATA + key for key in observed}
        columns |= {name: DATA + key for name in (ACTION, REWARD) if (key := named.get(name))}
        flags = {name: DATA + key for name in FLAGS if (key := named.get(name))}
        fields = tuple(row_field(name, table[key], scalar=name == REWARD) for name, key in columns.items())
        others = tuple(k for k in table.own if not k.startswith(DATA) and k != ENDS)
        return FlatLayout(
            rows,
            fields,
            columns,
            terminals=flags.get(FLAGS[0]),
            timeouts=flags.get(FLAGS[1]),
            metadata=others,
            notes=tuple(_notes(table, there, rows)),
        )

    def episodes(self, table: Table, found: FlatLayout, archive: Archive) -> FlatEpisodes:
        """End episodes where the buffer says; without flags they count as cut."""
        stops = _stops(table)
        end = None if found.terminals or found.timeouts else np.full(len(stops), CUT, np.uint8)
        return FlatEpisodes(stops, np.zeros(len(stops), bool), end)


def _data(table: Table) -> dict[str, TableColumn]:
    """Return the arrays below `data` by name."""
    return {k.removeprefix(DATA): c for k, c in table.own.items() if k.startswith(DATA) and c.shape}


def _stops(table: Table) -> IntArray:
    """Return the row behind each episode. int64 [E].

    Raises
    ------
    CorruptArchive
        They are not whole numbers, or do not ascend.
    """
    c = table[ENDS]
    if len(c.shape) != 1 or c.dtype.kind not in "iu":
        raise CorruptArchive(f"{table.path.name}: {ENDS} is {c.dtype} {list(c.shape)}; a list of row numbers expected.")
    stops = table.source.array(ENDS).astype(np.int64)
    wrong = np.flatnonzero(np.diff(stops, prepend=0) <= 0)
    if len(wrong):
        k = int(wrong[0])
        before = int(stops[k - 1]) if k else 0
        raise CorruptArchive(
            f"{table.path.name}: {ENDS} does not ascend: episode {k:,} ends at row {int(stops[k]):,}, "
            f"the one before it at row {before:,}."
        )
    return stops


def _rows(table: Table, there: Mapping[str, TableColumn]) -> int:
    """Return the number of rows of all episodes; raises CorruptArchive if an array has fewer."""
    stops = _stops(table)
    rows = int(stops[-1]) if len(stops) else 0
    short = {key: c.shape[0] for key, c in there.items() if c.shape[0] < rows}
    if short:
        key, count = next(iter(short.items()))
        raise CorruptArchive(
            f"{table.path.name}: {DATA}{key} has {count:,} rows; the last episode ends at row {rows:,}.",
            hint="the buffer was not written to its end: write or fetch it again",
        )
    return rows


def _notes(table: Table, there: Mapping[str, TableColumn], rows: int) -> Iterator[Note]:
    """Note rows that belong to no episode, and chunks that are not there."""
    behind = {key: c.shape[0] - rows for key, c in there.items() if c.shape[0] > rows}
    if behind:
        named = ", ".join(f"{DATA}{key} ({more:,})" for key, more in behind.items())
        text = f"rows behind the last episode were left out: {named}"
        yield Note("rows-behind", text, max(behind.values()), table.path.name)


READER = ZarrReplayBuffer()
